"""A run writes nothing to where a link in its folder leads."""

import shutil

import pytest

from mgap.errors import CorruptFile


@pytest.mark.parametrize(
    ("name", "method"),
    [("answers", "vanilla"), ("answers/vanilla", "vanilla"), ("priors", "mgap"), ("priors/auto-50-black336-5", "mgap")],
)
def test_a_link_in_a_runs_folder_is_named_and_not_written_through(answer, tmp_path, name, method):
    out, outside = tmp_path / "run", tmp_path / "outside"
    if method == "vanilla":
        answer(out, methods=[method])
        shutil.rmtree(out / name)
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    outside.mkdir()
    (out / name).symlink_to(outside)
    with pytest.raises(CorruptFile, match=f"{name}: a link, and nothing is written through links"):
        answer(out, methods=[method])
    assert not list(outside.iterdir())
