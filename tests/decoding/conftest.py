"""What several tests of decoding start from."""

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from tests.tiers import NAMES, ONE_OF_A_KIND

BUILT = {*ONE_OF_A_KIND.values(), "bias", "blind", "dola", "nullu"}  # methods whose steps are compiled to the end


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture(scope="module")
def pictures(picture):
    return [picture, Image.fromarray(np.asarray(picture)[::-1].copy()), picture]


@pytest.fixture
def uncompiled_graphs(request, monkeypatch):
    """torch.compile captures its graphs and runs them as they are: to write and build C++ for one takes ten seconds.

    Two methods of each kind are compiled to the end, in make test-all; the decoder that is compiled is the same for a kind.
    """
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if not request.node.get_closest_marker("product") or (name in NAMES and name not in BUILT):
        compiled, quick = torch.compile, {"backend": "aot_eager", "mode": None, "options": None}
        monkeypatch.setattr(torch, "compile", lambda *args, **options: compiled(*args, **{**options, **quick}))
