"""A pipe, a socket, a device, a folder or a link in the place of any file or folder: read, replaced or refused, and at once.

Nothing is written to where a link leads. `outcome` ends what waits.
"""

import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgap.backbones.loading import load_config
from mgap.benchmarks.amber.similarity import PairTable
from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.pope.printed_figures import read_table
from mgap.cli.score.amber import read_responses
from mgap.errors import MgapError
from mgap.inspector.archive import Archive
from mgap.io.atomic_files import file_sha256
from mgap.io.images import open_image, picture_size
from mgap.io.prompt_files import read_prompts
from mgap.io.record_files import read_json, read_rows
from mgap.methods.given.evidence import EvidenceTable
from mgap.pocket.figures import CardFigures
from mgap.priors.object_words import Vocabulary
from mgap.reports.diagnosis_sections import analysis_tables
from mgap.run.config import read_yaml
from mgap.run.records import Run, read_lines
from mgap.serving.checkpoint import servable
from mgap.verify.compare import verify_folder
from tests.fuzz import writers
from tests.fuzz.damage import Refused, cases, outcome
from tests.fuzz.readers import NOTHING, READERS, read_files

KINDS = {
    **READERS,
    "records": lambda folder: Run(folder, {}, ()).records(writers.METHODS[0]),
    "processes": lambda folder: list(read_lines(folder / "processes.jsonl")),
    "report": read_files,
}
ODD = {
    "pipe": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "folder": os.mkdir,
    "device": lambda path: os.symlink("/dev/zero", path),
    "link to nothing": lambda path: os.symlink(path.parent / "nowhere", path),
}
LINK = "link"


def content(folder):
    """Every name below a folder, and the bytes of its files."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def made(place):
    """Of each kind the first version, and what it and the second are read as."""
    read = {}
    for kind, reader in KINDS.items():
        for version in range(2):
            writers.WRITERS[kind](place / "made" / kind, version)
            read[kind, version] = reader(place / "made" / kind)
            if version == 0:
                shutil.copytree(place / "made" / kind, place / "first" / kind)
    return place / "first", read


@cases(70)
@given(st.sampled_from(sorted(KINDS)), st.sampled_from((*ODD, LINK, LINK)), st.booleans(), st.data())
def test_anything_in_the_place_of_a_saved_file_or_folder(made, place, kind, odd, is_linked, data):
    first, read = made
    root = place / "odd"
    shutil.rmtree(root, ignore_errors=True)
    folder = shutil.copytree(first / kind, root / "folder")
    if is_linked:  # as a whole it may be elsewhere
        (root / "linked").symlink_to(folder)
        folder = root / "linked"
    (outside := root / "outside").mkdir()
    path = data.draw(st.sampled_from(sorted(folder.rglob("*"))))
    path.rename(outside / path.name)
    ODD.get(odd, lambda path: path.symlink_to(outside / path.name))(path)
    before = content(outside)
    found = NOTHING if kind in ("report", "profile") else outcome(KINDS[kind], folder, names=str(root))  # which people read
    assert isinstance(found, Refused) or found in (read[kind, 0], NOTHING) or kind == "records"  # those of other files
    done = outcome(writers.WRITERS[kind], folder, 1, names=str(root))
    assert content(outside) == before
    if not isinstance(done, Refused) and kind not in ("records", "processes", "report"):
        assert KINDS[kind](folder) == read[kind, 1]


def within(name, read):
    """A reader of a folder, as one of the file of this name in it."""

    def reading(path):
        shutil.rmtree(path.parent / "around", ignore_errors=True)
        (path.parent / "around" / name).parent.mkdir(parents=True)
        (path.parent / "around" / name).symlink_to(path)
        return read(path.parent / "around")

    return reading


def checkpoint(folder):
    (folder / "config.json").write_text('{"model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}}')
    return str(folder)


FILES = {
    "questions": read_rows,
    "JSON": read_json,
    "prompts": lambda path: list(read_prompts(path)),
    "evidence": EvidenceTable.load,
    "vocabulary": lambda path: Vocabulary.of(str(path)),
    "settings": lambda path: read_yaml(str(path)),
    "responses": read_responses,
    "printed figures": read_table,
    "similar words": PairTable.read,
    "synonyms": within("synonyms.txt", Lexicon.read),
    "a picture": open_image,
    "checksum": file_sha256,
    "card": within("figures.json", CardFigures.load),
    "an analysis": within("analysis/subspace.json", lambda folder: analysis_tables(folder, "subspace")),
    "a model's tokenizer": within("tokenizer.json", lambda folder: load_config(checkpoint(folder))),
    "a model's weights": within("model.safetensors", lambda folder: servable(checkpoint(folder), folder / "copy")),
}


@pytest.mark.parametrize("odd", ["pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("reader", FILES)
def test_an_input_that_is_no_regular_file_is_refused_at_once(tmp_path, reader, odd):
    ODD[odd](tmp_path / "given")
    if odd == "folder" and reader.startswith("a model's"):
        return  # which a checkpoint may have
    found = outcome(FILES[reader], tmp_path / "given", names=str(tmp_path))
    assert isinstance(found, Refused)


@pytest.mark.parametrize("odd", ["pipe", "device"])
def test_what_answers_without_raising_does_not_wait_either(tmp_path, odd):
    ODD[odd](tmp_path / "given.png")
    assert outcome(picture_size, tmp_path / "given.png") is None
    ODD[odd](tmp_path / "vcd.npz")
    assert [verdict.status for verdict in outcome(lambda: list(verify_folder(tmp_path)))] == ["failed"]
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "run.json")
    (entry,) = outcome(lambda: Archive(tmp_path).entries())
    assert entry.about == "cannot be read"


def test_what_comes_through_a_pipe_is_put_into_a_file_first(tmp_path):
    """As `<(command)` and /dev/stdin behind a pipe give it."""
    reading, writing = os.pipe()
    os.write(writing, b"What is in the picture?\n")
    os.close(writing)
    try:
        with pytest.raises(MgapError, match="a pipe where a regular file is expected"):
            list(read_prompts(Path(f"/dev/fd/{reading}")))
    finally:
        os.close(reading)
    (tmp_path / "prompts.txt").write_text("What is in the picture?\n")
    with open(tmp_path / "prompts.txt") as file:  # < prompts.txt
        assert list(read_prompts(Path(f"/dev/fd/{file.fileno()}"))) == ["What is in the picture?"]
