"""What several tests of decoding start from."""

import numpy as np
import pytest
import torch
from PIL import Image

import mgap


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture(scope="module")
def pictures(picture):
    return [picture, Image.fromarray(np.asarray(picture)[::-1].copy()), picture]
