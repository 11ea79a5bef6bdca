"""Without mlx-vlm."""

from importlib import import_module
from importlib.util import find_spec

import pytest

from mgap.errors import MissingExtra


@pytest.mark.skipif(find_spec("mlx_vlm") is not None, reason="mlx-vlm is installed")
def test_the_extra_that_mlx_needs_is_named():
    with pytest.raises(MissingExtra, match=r"mgap\[mlx\]"):
        import_module("mgap.integrations.mlx")
