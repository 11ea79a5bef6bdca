import pytest

from mgap.benchmarks.picture_folder import PictureFolder
from mgap.errors import BenchmarkError, SettingError


@pytest.fixture
def folder(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"pixels")
    (tmp_path / "empty.jpg").touch()
    return tmp_path


def test_a_name_becomes_the_path_of_its_file(folder):
    assert PictureFolder(folder)("a.jpg") == folder / "a.jpg"
    assert PictureFolder(str(folder)).check(["a.jpg", "b.jpg", "a.jpg"]) == set()


def test_missing_pictures_are_named_and_counted_once_each(folder):
    names = ["a.jpg", "c.jpg", "c.jpg", "empty.jpg"]
    with pytest.raises(BenchmarkError, match=r"2 of 3 pictures are missing, first c\.jpg; add them"):
        PictureFolder(folder).check(names)
    assert PictureFolder(folder).check(names, missing="skip") == {"c.jpg", "empty.jpg"}


def test_none_there_at_all_is_refused_even_when_some_may_be_left_out(folder):
    with pytest.raises(BenchmarkError, match="2 of 2 pictures are missing"):
        PictureFolder(folder).check(["c.jpg", "d.jpg"], missing="skip")


def test_the_folder_one_level_down_is_pointed_to(tmp_path):
    (tmp_path / "val2014").mkdir()
    (tmp_path / "val2014" / "a.jpg").write_bytes(b"pixels")
    with pytest.raises(BenchmarkError, match=r"they are all in .*val2014: name that folder"):
        PictureFolder(tmp_path).check(["a.jpg"])


def test_a_missing_folder_and_an_unknown_choice_are_refused(tmp_path):
    with pytest.raises(BenchmarkError, match="no such folder of pictures"):
        PictureFolder(tmp_path / "none").check(["a.jpg"])
    with pytest.raises(SettingError, match="refuse, skip"):
        PictureFolder(tmp_path).check([], missing="ignore")


@pytest.mark.parametrize("name", ["../secret.png", "inner/../../secret.png", "/etc/secret.png"])
def test_a_name_that_leads_out_of_the_folder_is_refused(folder, name):
    (folder.parent / "secret.png").write_bytes(b"x")
    with pytest.raises(BenchmarkError, match=r"secret\.png.* is not below"):
        PictureFolder(folder).check([name])


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.png").write_bytes(b"x")
    (folder / "link.jpg").symlink_to(elsewhere / "secret.png")
    (folder / "inner").symlink_to(elsewhere)
    for name in ("link.jpg", "inner/secret.png"):
        with pytest.raises(BenchmarkError, match=r"leads out of .*, to .*secret\.png: name the folder"):
            PictureFolder(folder).check(["a.jpg", name], missing="skip")


def test_a_link_to_the_folder_and_links_within_it_are_followed(folder, tmp_path_factory, monkeypatch):
    link = tmp_path_factory.mktemp("elsewhere") / "pictures"
    link.symlink_to(folder)
    (folder / "inner").mkdir()
    (folder / "inner" / "same.jpg").symlink_to("../a.jpg")
    assert PictureFolder(link).check(["a.jpg", "inner/same.jpg"]) == set()
    monkeypatch.chdir(link.parent)
    assert PictureFolder("pictures")("inner/same.jpg").read_bytes() == b"pixels"


def test_a_snapshot_in_the_hubs_cache_links_to_its_own_blobs_and_no_others(tmp_path):
    for repo in ("datasets--a--b", "datasets--c--d"):
        (tmp_path / repo / "blobs").mkdir(parents=True)
        (tmp_path / repo / "blobs" / "0123").write_bytes(b"pixels")
    pictures = tmp_path / "datasets--a--b" / "snapshots" / "4567" / "val"
    pictures.mkdir(parents=True)
    (pictures / "a.jpg").symlink_to("../../../blobs/0123")
    (pictures / "b.jpg").symlink_to(tmp_path / "datasets--c--d" / "blobs" / "0123")
    for folder in (pictures, pictures.parent):
        assert PictureFolder(folder).check([str((pictures / "a.jpg").relative_to(folder))]) == set()
    with pytest.raises(BenchmarkError, match="leads out of"):
        PictureFolder(pictures)("b.jpg")
