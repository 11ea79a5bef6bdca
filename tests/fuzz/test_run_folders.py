"""A run's folder, damaged anywhere: it is read and scored as it is, or refused."""

import json
import shutil
from dataclasses import asdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mgap.backbones.clock import STAGES
from mgap.inspector.archive import Archive
from mgap.inspector.runs import list_answers, show_run
from mgap.reports.report import report_files
from mgap.reports.scores import score
from mgap.run.engine import Spent
from mgap.run.folder import Journal, Shard, note_process, open_run
from mgap.run.records import ANSWERS, RUN, SAMPLES, Record, Run, read_lines
from mgap.run.stage_times import save_profile
from mgap.types import Sample
from tests.fuzz.damage import Refused, cases, damaged_bytes, damaged_number, json_files, line_files, numbers_in, outcome
from tests.reports.runs import OURS, VANILLA, answers, questions, write_run

ASKED = questions(2)
TOLD = [Sample(str(n), f"pocket_{n}.png", "Describe.", "captions", ["dog"]) for n in range(3)]
DISTANCES = {"along": "first", "tau": 1.0, "k": 5, "strengths": [0.0, 1.0]}


@pytest.fixture(scope="module")
def runs(place):
    """Questions, captions, and departures, each as a whole run."""
    root = place / "runs"
    answered = {"Vanilla": answers(ASKED, ["random/1"]), "Ours": answers(ASKED, ["random/0"])}
    write_run(root / "questions", ASKED, answered)
    (root / "questions" / "order.json").write_text(json.dumps([sample.id for sample in ASKED]))
    said = [Record(sample.id, "A dog and a cat.", tokens=6, stop="end", milliseconds=4.0) for sample in TOLD]
    task = {"name": "pocket-chair", "task": "captions", "lexicon": {"synonyms": {"dog": [], "cat": []}}}
    write_run(root / "captions", TOLD, {"Vanilla": said, "Ours": said}, benchmark=task)
    far = [Record(sample.id, extra={"distances": {"0.0": 0.5, "1.0": 1.5}}) for sample in ASKED]
    write_run(root / "departures", ASKED, {"Vanilla": far, "Ours": far}, departure=DISTANCES)
    return root


def damaged_run(runs, data):
    """One file of a run damaged; where it lies."""
    name = data.draw(st.sampled_from(("questions", "captions", "departures")))
    folder = runs.parent / "damaged" / name
    shutil.rmtree(runs.parent / "damaged", ignore_errors=True)
    shutil.copytree(runs / name, folder)
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*.json*") if path.is_file())))
    is_whole = path.suffix == ".json"
    found = json_files(json.loads(path.read_text())) if is_whole else line_files(list(read_lines(path)))
    path.write_bytes(data.draw(st.one_of(damaged_bytes(path.read_bytes()), found)))
    return folder


@cases(50)
@given(data=st.data())
def test_a_damaged_run_is_read_or_refused(runs, data):
    folder = damaged_run(runs, data)
    run = outcome(Run.load, folder, names=str(folder))
    if isinstance(run, Refused):
        return
    assert all(isinstance(sample, Sample) for sample in run.samples)
    json.dumps([run.plan, [asdict(sample) for sample in run.samples]], ensure_ascii=False).encode()
    for method in run.methods:
        records = outcome(run.records, method, names=str(folder))
        assert isinstance(records, Refused) or all(isinstance(record.text, str) for record in records.values())


@cases(50)
@given(data=st.data())
def test_any_other_number_in_a_run_is_read_as_a_valid_one_or_refused(runs, data):
    name = data.draw(st.sampled_from(("questions", "captions", "departures")))
    folder = runs.parent / "renumbered"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(runs / name, folder)
    counted = [path for path in sorted(folder.rglob("*.json*")) if any(numbers_in(read_all(path)))]
    path = data.draw(st.sampled_from(counted))
    changed = data.draw(damaged_number(read_all(path)))
    path.write_text(json.dumps(changed) if path.suffix == ".json" else "".join(json.dumps(line) + "\n" for line in changed))
    run = outcome(Run.load, folder, names=str(folder))
    for method in () if isinstance(run, Refused) else run.methods:
        records = outcome(run.records, method, names=str(folder))
        for record in () if isinstance(records, Refused) else records.values():
            assert min(record.tokens, record.rows, record.ties or 0) >= 0
            assert 0 <= record.milliseconds < float("inf")


def read_all(path):
    return json.loads(path.read_text()) if path.suffix == ".json" else list(read_lines(path))


@cases(25)
@given(data=st.data())
def test_a_damaged_run_is_scored_and_reported_or_refused(runs, data):
    folder = damaged_run(runs, data)
    run = outcome(Run.load, folder)
    scores = run if isinstance(run, Refused) else outcome(score, run)
    if not isinstance(scores, Refused):
        files = outcome(report_files, [scores])
        assert isinstance(files, Refused) or all(text.encode() for text in files.values())
        assert isinstance(files, Refused) or json.loads(files["report.json"], parse_constant=pytest.fail)


@cases(12)
@given(data=st.data(), word=st.sampled_from(("", "dog", None, 3, "x" * 300)))
def test_the_page_of_runs_shows_a_damaged_run_or_a_sentence(runs, data, word):
    folder = damaged_run(runs, data)
    archive = Archive(folder.parent)
    for entry in archive.entries():
        assert outcome(show_run, archive, entry.name).heading
        outcome(list_answers, archive, ["pocket/llava"], entry.name, "Ours", "all", "", word)


def test_a_runs_plan_of_brackets_without_end_is_named_and_not_read(runs, tmp_path):
    shutil.copytree(runs / "questions", tmp_path / "questions")
    (tmp_path / "questions" / "run.json").write_text("[" * 200_000)
    (entry,) = Archive(tmp_path).entries()
    assert "cannot be read" in str(entry)


RECORDS = st.builds(
    Record, id=st.text(), text=st.text(), prompt=st.text(), tokens=st.integers(0, 10**6), stop=st.sampled_from(("", "end")),
    milliseconds=st.floats(0, 1e9), rows=st.integers(0, 64), ties=st.none() | st.integers(0, 64),
    log_odds=st.none() | st.floats(allow_nan=False, allow_infinity=False), failed=st.text(max_size=5),
    extra=st.dictionaries(st.text(max_size=4), st.floats(allow_nan=False, allow_infinity=False), max_size=2),
)  # fmt: skip


@given(st.lists(RECORDS, max_size=5), st.integers(0, 400))
@example([Record("1", "a\u2028b\x85c\r\nd")], 0)
def test_records_that_were_written_are_read_again_but_for_what_was_cut_off(place, records, cut):
    folder = place / "journal"
    shutil.rmtree(folder, ignore_errors=True)
    with Journal(folder, OURS, Shard()) as journal:
        journal.write(records)
    path = journal.path
    assert [Record.of(data) for data in read_lines(path)] == records
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    left = [Record.of(found) for found in read_lines(path)]
    assert left == records[: len(left)]
    more = Record("more", "after the cut")
    with Journal(folder, OURS, Shard()) as journal:
        journal.write([more])
    assert [Record.of(found) for found in read_lines(path)] == [*left, more]


PLAN = {"benchmark": {"name": "n", "task": "yesno", "sources": {}, "lexicon": {}, "notes": []}, "model": {"name": "m"}}
SAMPLES_OF_ANY_TEXT = st.lists(
    st.builds(Sample, id=st.text(), image=st.text(), prompt=st.text(), group=st.text(), truth=st.sampled_from(("yes", "no"))),
    unique_by=lambda sample: sample.id, min_size=1, max_size=4,
)  # fmt: skip


@cases(25)
@given(SAMPLES_OF_ANY_TEXT)
def test_a_run_that_was_opened_is_joined_with_the_same_samples(place, samples):
    folder = place / "joined"
    shutil.rmtree(folder, ignore_errors=True)
    made = open_run(folder, PLAN, samples, [VANILLA], [sample.id for sample in samples])
    again = open_run(folder, PLAN, samples, [VANILLA, OURS])
    assert made.samples == again.samples == tuple(samples)
    assert [method.label for method in again.methods] == ["Vanilla", "Ours"]


@cases(40)
@given(st.data())
def test_joining_a_damaged_run_is_refused_or_goes_on(runs, data):
    folder = damaged_run(runs, data)
    run = outcome(open_run, folder, PLAN, ASKED, [VANILLA, OURS], names=str(folder))
    assert isinstance(run, Refused) or run.samples == tuple(ASKED)


@given(st.text())
def test_a_share_is_two_numbers_or_refused(text):
    found = outcome(Shard.parse, text)
    assert isinstance(found, Refused) or 0 <= found.number < found.of


FACTS = {"versions": {"mgap": "0"}, "device": "cpu", "command": "mgap run", "pid": 1}


@cases(40)
@given(line_files([FACTS, FACTS]), json_files({"Ours": asdict(Spent(1.0, 2, {STAGES[0]: 0.5}))}))
def test_notes_on_processes_and_times_go_on_or_are_refused(place, processes, profile):
    (place / "processes.jsonl").write_bytes(processes)
    found = outcome(note_process, place, FACTS, names="processes.jsonl")
    assert isinstance(found, Refused) or all(isinstance(text, str) for text in found)
    (place / "profile.json").write_bytes(profile)
    outcome(save_profile, place, Shard(), {"Ours": Spent(1.0, 2, {STAGES[0]: 0.5})}, names="profile.json")


def test_the_files_of_a_run_are_those_that_are_damaged_here(runs):
    assert {path.name for path in (runs / "questions").iterdir()} == {RUN, SAMPLES, "order.json", ANSWERS}
