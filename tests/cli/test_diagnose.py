"""`mgap diagnose` as a user calls it: the pocket model, several values after one option, and mistakes."""

import json

import pytest
from typer.testing import CliRunner

import mgap.cli.main
from mgap.cli.options import SeveralAtOnce
from mgap.pocket.samples import SceneRenderer
from mgap.pocket.tiny import build_tiny


@pytest.mark.parametrize(
    ("words", "spread"),
    [
        (["--alpha", "0", ".5", "-1"], ["--alpha", "0", "--alpha", ".5", "--alpha", "-1"]),
        (["--method", "vcd", "mgap", "--k", "3"], ["--method", "vcd", "--method", "mgap", "--k", "3"]),
        (["--alpha", "0", "--alpha", "1", "2"], ["--alpha", "0", "--alpha", "1", "--alpha", "2"]),
        (["--alpha=0", "--k", "3"], ["--alpha=0", "--k", "3"]),
    ],
)
def test_an_option_that_may_be_repeated_takes_several_values_in_a_row(words, spread):
    import typer

    app, seen = typer.Typer(), []

    @app.command(cls=SeveralAtOnce)
    def verb(alpha: list[float] = [], method: list[str] = [], k: int = 0) -> None:  # noqa: B006
        seen.append((alpha, method, k))

    for given in (words, spread):
        assert CliRunner().invoke(app, given).exit_code == 0
    assert seen[0] == seen[1]


def test_a_word_that_belongs_to_no_option_is_an_error():
    found = CliRunner().invoke(mgap.cli.main.app, ["diagnose", "--model", "pocket/llava", "--k", "3", "4"])
    assert found.exit_code == 2


@pytest.mark.long
def test_a_diagnosis_of_the_pocket_model(run, tmp_path):
    out = tmp_path / "diagnosis"
    asked = ["--model", "pocket/llava", "--method", "blind", "mgap", "--alpha", 0, 1, 2, "--scenes", 2, "--k", 3, "--out", out]
    asked += ["--against", "pocket/qwen3-vl"]
    status, said, error = run("diagnose", *asked)
    assert status == 0, error
    assert "| blind |" in said
    plan = json.loads((out / "run.json").read_text())
    assert plan["departure"]["strengths"] == [0, 1, 2]
    assert plan["departure"]["k"] == 3
    assert [method["label"] for method in plan["arms"]] == ["vanilla", "blind", "mgap"]
    assert {path.stem for path in (out / "analysis").iterdir()} == {"subspace", "representation", "picture", "models"}
    figures = {path.name for path in (out / "figures").iterdir()}
    for name in ("departures", "manifold", "reach", "spectrum", "angles"):
        assert {f"{name}.{form}" for form in ("pdf", "svg", "png", "csv")} <= figures
    report = (out / "report.md").read_text()
    for heading in (
        "## Results",
        "## Where the states are moved to",
        "## The prior's subspace",
        "pocket/llava and pocket/qwen3-vl",
    ):
        assert heading in report
    before = {path: path.read_bytes() for path in (out / "analysis").iterdir()}
    (out / "report.md").unlink()
    status, _, error = run("diagnose", *asked)  # goes on: nothing is measured again
    assert status == 0, error
    assert "blind states" not in error
    assert before == {path: path.read_bytes() for path in (out / "analysis").iterdir()}
    assert (out / "report.md").read_text() == report


@pytest.mark.long
def test_a_diagnosis_on_own_pictures_with_a_model_that_says_neither_yes_nor_no(run, tmp_path):
    build_tiny("llava", tmp_path / "tiny")
    rows = []
    for seed in range(200_000, 200_006):
        SceneRenderer()(f"pocket_{seed}.png").save(tmp_path / f"{seed}.png")
        rows += [{"image": f"{seed}.png", "question": f"Is there a {thing} here?", "label": "no"} for thing in ("cat", "cup")]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, said, error = run(
        "diagnose", "--model", tmp_path / "tiny", "--questions", tmp_path / "mine.jsonl", "--images", tmp_path,
        "--method", "icd", "--alpha", 0, 1, "--k", 2, "--out", tmp_path / "out",
    )  # fmt: skip
    assert status == 0, error
    assert "where states are moved to is left out" in error
    assert "| icd |" in said
    assert {path.stem for path in (tmp_path / "out" / "analysis").iterdir()} == {"subspace", "picture"}
    assert "not one token each" in error


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--method", "opera"], "opera"),
        (["--metric", "manhattan"], "manhattan"),
        (["--questions", "mine.csv"], "pocket world asks its own questions"),
    ],
)
def test_mistakes_are_told_in_a_sentence(run, tmp_path, more, why):
    status, _, error = run("diagnose", "--model", "pocket/llava", "--scenes", 2, "--out", tmp_path / "none", *more)
    assert status == 2
    assert why in error
