"""Files of results that are read again: choices, answers, comparisons, figures, analyses, reference vectors, archives."""

import io
import json
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgap.benchmarks.statistics import Rate
from mgap.diagnosis.representation import Line, Representation
from mgap.diagnosis.representation_tables import ORACLE, SHIFTS
from mgap.diagnosis.subspace_analysis import ModelComparison
from mgap.io.download import unpack
from mgap.pocket.figures import FILE as FIGURES
from mgap.pocket.figures import CardFigures
from mgap.registry import EMBEDDED
from mgap.reports.diagnosis_sections import analysis_tables
from mgap.run.records import analysis_file
from mgap.verify.compare import verify_folder
from research.comparison import FILE as COMPARED
from research.comparison import load_results
from research.frontier.choosing import FILE as CHOSEN
from research.frontier.choosing import CaptionTrial, Choices, QuestionTrial, Tried
from tests.fuzz.damage import Refused, byte_files, cases, damaged_bytes, json_files, outcome

DOCS = Path(__file__).parents[2] / "docs"


def few(data, count=2):
    """A part of a committed file that has everything once or twice."""
    if isinstance(data, dict):
        kept = data if len(data) <= 16 else dict(list(data.items())[:count])
        return {name: few(value, count) for name, value in kept.items()}
    return [few(value, count) for value in data[:count]] if isinstance(data, list) else data


COMPARISON = dict(list(json.loads((DOCS / "comparison" / "llava" / COMPARED).read_text()).items())[:1])
CHOICES = asdict(
    Choices(
        {"model": "pocket/llava", "scenes": 3},
        {
            "mgap": Tried(
                [QuestionTrial({"random": 0.5, "popular": 0.25}, "alpha 1")],
                [CaptionTrial("alpha 1", 0.1, 0.5, 12.0, None)],
                {"questions": "alpha 1"},
            )
        },
    )
)
PICTURED = few(json.loads((EMBEDDED["pocket/llava"] / FIGURES).read_text()))
RATES = dict.fromkeys((*ORACLE, *SHIFTS, "closer"), Rate(0.5, 0.25, 0.75, 4))
REPRESENTATION = Representation(
    "m",
    6,
    2,
    9,
    5,
    {"right": 3},
    (Line("mgap", 1.0, RATES),),
    (Line("mgap", 1.0, RATES, "teacher", "right"),),
).to_json()
MODELS = ModelComparison(
    ("a", "b"), (2, 2), 9, (1.0, 2.0), 2.0, 0.5, 0.1, 0.2, 0.1, 3.0, ((0.5, 0.5), (0.5, 0.5)), ("a note",)
).to_json()


FILES = [(COMPARED, COMPARISON, load_results), (CHOSEN, CHOICES, Choices.load), (FIGURES, PICTURED, CardFigures.load)]


def test_whole_results_are_read(place):
    """Which the damaged ones begin from."""
    for name, value, load in FILES:
        (place / name).write_text(json.dumps(value))
        assert load(place)


@cases(50)
@given(st.sampled_from(FILES), st.data())
def test_results_are_read_with_their_types_or_refused(place, file, data):
    name, value, load = file
    (place / name).write_bytes(data.draw(json_files(value)))
    found = outcome(load, place, names=name)
    if not isinstance(found, Refused) and hasattr(found, "save"):
        found.save(place / "again")
        assert repr(load(place / "again")) == repr(found)


@cases(50)
@given(st.sampled_from([("representation", REPRESENTATION), ("models", MODELS)]), st.data())
def test_analyses_are_tables_or_refused(place, analysis, data):
    name, value = analysis
    path = analysis_file(place, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.draw(json_files(json.loads(json.dumps(value)))))
    outcome(analysis_tables, place, name)


def reference():
    """As the published vectors are kept, with too little in it to pass."""
    file = io.BytesIO()
    np.savez(file, h=np.arange(6.0), basis=np.eye(3))
    return file.getvalue()


@cases(40)
@given(byte_files(reference()), json_files({"words": ["a"], "found": [1, 2]}))
def test_reference_vectors_are_judged_whatever_they_hold(place, arrays, words):
    (place / "vectors").mkdir(exist_ok=True)
    (place / "vectors" / "mgap_paper.npz").write_bytes(arrays)
    (place / "vectors" / "haltrapper.json").write_bytes(words)
    for verdict in outcome(lambda: list(verify_folder(place / "vectors"))):
        assert verdict.status == "failed"


@cases(15)
@given(data=st.data())
def test_published_vectors_with_a_damaged_byte(place, shared, data):
    source = data.draw(st.sampled_from(sorted((shared / "fixtures" / "methods").glob("*_*.npz"))))
    folder = place / "published"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / source.name).write_bytes(data.draw(damaged_bytes(source.read_bytes())))
    (verdict,) = outcome(lambda: list(verify_folder(folder)))
    assert verdict.status in ("ok", "failed")


def packed():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations/captions.json", json.dumps(CHOICES))
    return file.getvalue()


@given(byte_files(packed()))
def test_an_archive_is_unpacked_whole_or_refused(place, data):
    (place / "archive.zip").write_bytes(data)
    (place / "out.json").unlink(missing_ok=True)
    found = outcome(unpack, place / "archive.zip", "annotations/captions.json", place / "out.json", names="archive.zip")
    if isinstance(found, Refused):
        assert not (place / "out.json").exists()
    else:
        assert json.loads((place / "out.json").read_text()) == CHOICES
