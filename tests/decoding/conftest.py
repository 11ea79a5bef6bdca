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


@pytest.fixture
def uncompiled_graphs(request, monkeypatch):
    """torch.compile captures its graphs and runs them as they are: to write and build C++ for one takes ten seconds.

    The product of methods and families is compiled to the end, in make test-all.
    """
    if not request.node.get_closest_marker("product"):
        compiled, quick = torch.compile, {"backend": "aot_eager", "mode": None, "options": None}
        monkeypatch.setattr(torch, "compile", lambda *args, **options: compiled(*args, **{**options, **quick}))
