"""`mgap score amber` and `mgap fetch` as a user types them."""

import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import yaml

from mgap.benchmarks import published_files as module


@pytest.fixture
def score(shared, run):
    """Score the responses of a fixture; returns the printed JSON."""
    folder = shared / "fixtures" / "benchmarks" / "amber"

    def call(name, *words):
        status, out, err = run(
            "score", "amber", "--responses", folder / f"{name}.responses.json", "--data", shared / "data" / "amber",
            "--json", *words,
        )  # fmt: skip
        assert (status, err) == (0, "")
        return json.loads(out), json.loads((folder / f"{name}.expected.json").read_text())

    return call


def agree(found, expected):
    assert found["printed"] == expected["printed"]
    assert found["counters"] == expected.get("counters", found["counters"])
    assert found["unrounded"].keys() == expected["unrounded"].keys()
    for name, value in expected["unrounded"].items():
        assert found["unrounded"][name] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    "name", ["real_llava15_7b_generative_1_83", "made_up_generative_exact", "made_up_generative_with_table"]
)
def test_captions_are_scored_as_published(score, shared, tmp_path, name):
    table = tmp_path / "table.json"
    expected = json.loads((shared / "fixtures" / "benchmarks" / "amber" / f"{name}.expected.json").read_text())
    table.write_text(json.dumps(expected["similarity_table"]))
    words = ["--similarity", table] if expected["similarity_table"] else []
    found, _ = score(name, *words, "--per-response", tmp_path / "out" / "rows.json")
    agree(found, expected)
    assert found["settings"]["language"] == "nltk"
    assert found["settings"]["language_data"] == str(shared / "data")  # beside the benchmark's own folder
    assert (found["settings"]["similarity"] == "identical") is (not words)
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    assert len(rows) == found["responses"] == len(expected["per_response"])
    for row, wanted in zip(rows, expected["per_response"], strict=True):
        assert row | {"nouns": 0} == wanted | {"nouns": 0}


def test_answers_are_scored_as_published(score, tmp_path):
    agree(*score("made_up_discriminative_yes_no", "--normaliser", "original", "--per-response", tmp_path / "rows.json"))
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows[0].keys() == {"id", "truth", "verdict", "right"}
    for name in ("strict", "haltrapper", "mod", "lmms_eval"):
        found, expected = score("made_up_discriminative_free_text", "--normaliser", name)
        agree(found, expected["expected"][name])
        assert found["settings"] == {"normaliser": name, "similarity": "identical"}  # no language reads a yes


def test_a_table_is_printed_with_what_it_was_made_by(shared, run, tmp_path):
    responses = tmp_path / "both.json"
    responses.write_text(json.dumps([[1, "A dog on the grass."], {"id": 8633, "response": "No."}, [1005, "Yes, it is."]]))
    words = ["score", "amber", "--responses", responses, "--data", shared / "data", "--language", "builtin"]
    status, out, _ = run(*words)
    assert status == 0
    assert [line.split("  ")[0] for line in out.splitlines()[:2]] == ["Generative Task", "Descriminative Task"]
    assert "AMBER score" in out
    assert "3 responses; language builtin, normaliser first-sentence, similarity identical, unfinished keep" in out
    responses.write_text(json.dumps([[1, "A dog on the grass. A cat"], {"id": 8633, "response": "No."}]))
    assert 'unfinished drop, dropped {"shortened": 1, "without_end": 0}' in run(*words, "--unfinished", "drop")[1]
    responses.write_text('[[8633, "No."]]')
    status, _, err = run(*words, "--unfinished", "drop")
    assert (status, "unfinished=drop acts on captions, and only questions are asked" in err) == (2, True)


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        ('[{"id": 1, "response": "a"}, {"id": 1, "response": "b"}]', "id 1 has two responses"),
        ('[[15221, "Yes"], [0, "No"]]', "id 0 is none of AMBER's; remove 2 such responses"),
        ('[{"id": 1}]', "entry 1 is"),
        ('[["1", "Yes"]]', "entry 1 is"),
        ("[]", "no responses"),
        ('{"id": 1}', "no responses"),
        ("[", "no responses can be read"),
    ],
)
def test_responses_that_do_not_fit_are_refused(shared, run, tmp_path, responses, message):
    path = tmp_path / "responses.json"
    path.write_text(responses)
    status, out, err = run("score", "amber", "--responses", path, "--data", shared / "data" / "amber")
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_unknown_ways_to_score_are_refused(shared, run, tmp_path):
    (tmp_path / "r.json").write_text('[[8633, "No"]]')
    words = ["score", "amber", "--responses", tmp_path / "r.json", "--data", shared / "data"]
    for option, message in (("--language", "unknown language 'x'"), ("--normaliser", "unknown normaliser 'x'"),
                            ("--similarity", "similarity='x'")):  # fmt: skip
        status, _, err = run(*words, option, "x")
        assert (status, message in err) == (2, True)


def test_missing_files_are_refused(run, tmp_path):
    status, _, err = run("score", "amber", "--responses", tmp_path / "no.json", "--data", tmp_path)
    assert status == 2
    assert "no.json" in err
    (tmp_path / "r.json").write_text('[[1, "a"]]')
    assert "no annotations.json in it" in run("score", "amber", "--responses", tmp_path / "r.json", "--data", tmp_path)[2]
    assert "no such folder" in run("score", "amber", "--responses", tmp_path / "r.json", "--data", tmp_path / "x")[2]


@pytest.fixture
def mirror(shared, monkeypatch):
    """The published files from a server on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=shared / "data" / "amber"))
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    table = yaml.safe_load((module.files("mgap.benchmarks") / "published.yaml").read_text())
    table["amber"]["sources"][0]["address"] = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(module, "_table", lambda: table)
    yield
    server.shutdown()
    server.server_close()


def test_fetch_says_what_is_where(mirror, run, tmp_path, shared, monkeypatch):
    status, out, _ = run("fetch", "amber", "--to", tmp_path / "amber")
    assert status == 0
    assert (tmp_path / "amber" / "query" / "query_all.json").is_file()
    assert "annotations.json  (junyangwang0410/AMBER, Apache-2.0)" in out
    assert f"all in {tmp_path / 'amber'}" in out
    assert "AMBER_1.jpg to AMBER_1004.jpg" in out
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "r.json").write_text('[[8633, "No"]]')
    assert run("score", "amber", "--responses", tmp_path / "r.json")[0] == 0  # fetched on the way
    assert (tmp_path / "cache" / "amber" / "annotations.json").is_file()


def test_fetch_refuses_what_it_does_not_know(run):
    status, _, err = run("fetch", "vqa")
    choices = "pope, repope, chair, amber, mme, hallusionbench"
    assert (status, err) == (2, f"mgap: unknown benchmark 'vqa': choose from {choices}\n")
