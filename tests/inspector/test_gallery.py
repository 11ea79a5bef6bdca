"""The gallery, without a browser: drawn pictures, and what MGAP did in the latest finished pocket run."""

import shutil

import gradio as gr
import pytest

from mgap.errors import MgapError, RunError, SettingError
from mgap.inspector.archive import Archive
from mgap.inspector.gallery import (
    AGREE,
    SHOWN,
    build_gallery,
    drawn_sections,
    exhibit_at,
    gallery_page,
    is_comparison,
    latest_run,
    run_sections,
    stronger_run,
)
from mgap.pocket import showcase
from mgap.pocket.scenes import Scene
from mgap.run.records import Record, Run
from tests.reports.runs import answers, questions, write_run

MODELS = ("pocket/llava",)


@pytest.fixture
def archive(runs):
    return Archive(runs)


def test_every_drawn_picture_is_shown_once_the_bananas_first():
    agree, conflict = drawn_sections()
    assert [one.title for one in agree.exhibits] == list(AGREE)
    assert conflict.exhibits[0].title == "Blue banana"
    found = sorted(one.number for one in [*agree.exhibits, *conflict.exhibits])
    assert found == list(range(len(showcase.cases())))
    assert all(one.picture.width <= 192 for one in [*agree.exhibits, *conflict.exhibits])


@pytest.mark.long
def test_a_drawn_picture_opens_with_the_pages_own_model_and_settings(archive):
    case = exhibit_at(archive, MODELS, {"show": "1"})
    assert case.question == "What color is the banana?"
    assert isinstance(case.picture, Scene)
    assert case.picture.only("banana").colour == "blue"
    assert (case.model, case.method, case.settings, case.prior) == (None, "mgap", {}, None)


@pytest.mark.parametrize(
    "clicked",
    [{"show": "99"}, {"show": "-1"}, {"show": 1}, {"show": None}, {"show": [1]}, {}, None, "1", {"run": "../x", "id": "1"}],
)
def test_what_the_gallery_does_not_have_is_refused(archive, clicked):
    with pytest.raises(MgapError):
        exhibit_at(archive, MODELS, clicked)


def test_answers_come_from_the_latest_run_by_effect_and_are_counted(tmp_path):
    asked = questions(pictures=10)  # 20 a group
    lost, wrong = {"random/0"}, {f"adversarial/{n}" for n in range(9)}
    told = {"Vanilla": answers(asked, wrong), "Ours": answers(asked, lost | {f"adversarial/{n}" for n in (0, 1, 2)})}
    write_run(tmp_path / "old", asked, told, created="2026-11-01T12:00:00+00:00")
    write_run(tmp_path / "new", asked, told)
    archive = Archive(tmp_path)
    opened = latest_run(archive, MODELS)
    assert opened.name == "new"
    helps, nothing, harms = run_sections(opened, MODELS)
    assert helps.about == "4 of 6 that were wrong before and right after, among 40 answers of Ours in the run new."
    assert {one.pair.effect for one in helps.cards} == {"corrected"}
    assert [one.pair.effect for one in nothing.cards] == ["wrong both times"] * 3 + ["right both times"]
    assert nothing.about.startswith("4 of 33")
    assert harms.about.startswith("1 of 1 ")
    assert [one.id for one in harms.cards] == ["random/0"]
    assert not helps.command


def test_a_card_of_a_run_opens_as_on_the_page_of_runs(runs, tmp_path):
    shutil.copytree(runs / "questions", tmp_path / "questions")
    archive = Archive(tmp_path)
    opened = latest_run(archive, MODELS)
    page = gallery_page(archive, MODELS)
    first = next(one for section in run_sections(opened, MODELS) for one in section.cards)
    assert f'data-run="{opened.name}" data-id="{first.id}"' in page
    case = exhibit_at(archive, MODELS, {"run": opened.name, "id": first.id})
    assert (case.model, case.question) == ("pocket/llava", first.question)
    assert dict(case.settings) == {"alpha": 6.0}
    assert case.prior is not None
    with pytest.raises(RunError, match="is no answer of this run"):
        exhibit_at(archive, MODELS, {"run": opened.name, "id": "9"})


def test_only_finished_pocket_runs_with_both_methods_count(runs, tmp_path):
    asked = questions()
    both = {"Vanilla": answers(asked), "Ours": answers(asked)}
    own = {"name": "mine", "task": "yesno", "lexicon": {}, "sources": {}, "notes": []}
    for name, told, plan in (
        ("plain", {"Vanilla": answers(asked)}, {}),
        ("unfinished", {"Vanilla": answers(asked), "Ours": answers(asked)[:9]}, {}),
        ("own", both, {"benchmark": own}),
        ("distances", both, {"departure": {"tau": 1.0}}),
    ):
        assert not is_comparison(Run.load(write_run(tmp_path / name, asked, told, **plan))), name
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    assert latest_run(Archive(tmp_path), MODELS) is None
    assert is_comparison(Run.load(runs / "questions"))


def test_without_a_run_the_command_that_makes_one_is_told_and_a_run_made_meanwhile_is_found(runs, tmp_path):
    archive = Archive(tmp_path)
    page = gallery_page(archive, MODELS)
    assert "mgap run pope --model pocket/llava --method vanilla --method mgap" in page
    assert page.count("data-show") == len(showcase.cases())
    shutil.copytree(runs / "held-out", tmp_path / "made")
    assert "in the run made" in gallery_page(archive, MODELS)


def test_an_effect_that_never_happened_says_which_run_may_have_it(tmp_path):
    asked = questions()
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked), "Ours": answers(asked)})
    helps, nothing, _ = run_sections(latest_run(Archive(tmp_path), MODELS), MODELS)
    assert helps.about.startswith("None that were wrong before and right after, among 24 answers")
    assert helps.command == stronger_run("pocket/llava")
    assert helps.command.endswith("--method vanilla --method mgap --set mgap.alpha=6")
    assert len(nothing.cards) == SHOWN
    assert stronger_run("some/model").startswith("mgap run pope --model pocket/llava")


def test_a_run_that_can_be_opened_comes_before_a_newer_one_that_cannot(tmp_path):
    asked = questions()
    told = {"Vanilla": answers(asked), "Ours": answers(asked)}
    other = {"name": "pocket/qwen3-vl", "family": "qwen3_vl"}
    write_run(tmp_path / "newer", asked, told, model=other, created="2026-12-01T12:00:00+00:00")
    archive = Archive(tmp_path)
    assert latest_run(archive, MODELS).name == "newer"
    assert "mgap inspect --model pocket/qwen3-vl" in gallery_page(archive, MODELS)
    write_run(tmp_path / "older", asked, told)
    assert latest_run(archive, MODELS).name == "older"


def test_the_gallery_is_built_with_private_events_only(runs, in_a_tab):
    page, opening = in_a_tab(build_gallery, runs, MODELS)
    assert isinstance(opening.case, gr.State)
    assert all(dep["api_visibility"] == "private" for dep in page.config["dependencies"])


def test_a_run_without_ours_cannot_be_opened_from_the_gallery(tmp_path):
    asked = questions()
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked)})
    with pytest.raises(SettingError, match="no answer of MGAP"):
        exhibit_at(Archive(tmp_path), MODELS, {"run": "run", "id": "random/0"})


def test_a_run_in_which_ours_always_failed_is_a_sentence_in_the_gallery(tmp_path):
    asked = questions()
    failed = [Record(sample.id, failed="ImageError: broken") for sample in asked]
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked), "Ours": failed})
    page = gallery_page(Archive(tmp_path), MODELS)
    assert "run: no answer of MGAP in it" in page
    assert page.count("data-show") == len(showcase.cases())
