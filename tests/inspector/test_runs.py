"""The page of runs, without a browser: which runs are found, what is shown of one, which answers are listed, what is opened."""

import json
import re
import shutil
from dataclasses import replace

import gradio as gr
import pytest
from PIL import Image

from mgap.errors import CorruptFile, ImageError, MgapError, RunError, SettingError
from mgap.inspector import archive as archives
from mgap.inspector.answer_pairs import FILTERS, Pair, choose, groups_of, methods_of, pairs
from mgap.inspector.archive import DEPTH, Archive
from mgap.inspector.opening import picture_of
from mgap.inspector.runs import PAGE, build_runs, case_at, list_answers, run_choices, show_run
from mgap.pocket.difficulty import Difficulty
from mgap.pocket.drawing import HELD_OUT_STYLE
from mgap.pocket.scenes import Scene, render
from mgap.run.records import Record, Run, RunMethod
from mgap.run.seen_pictures import pictures_folder
from mgap.types import Sample
from tests.reports.runs import answers, questions, write_run
from tests.reports.test_printed import departure

MODELS = ("pocket/llava",)


@pytest.fixture
def archive(runs):
    return Archive(runs)


def spoil(pair, **other):
    return Pair(**{**{name: getattr(pair, name) for name in pair.__dataclass_fields__}, **other})


# Which runs there are


def test_runs_are_found_in_folders_below(archive):
    assert {entry.name: entry.about for entry in archive.entries()} == {
        "questions": "pocket-pope, pocket/llava",
        "deep/captions": "pocket-chair, pocket/llava",
        "held-out": "pocket-pope, pocket/llava",
    }


def test_the_newest_is_told_by_when_it_was_begun(tmp_path):
    for day, name in (("14", "b"), ("16", "c"), ("15", "a")):
        write_run(tmp_path / name, questions(), {"Vanilla": answers(questions())}, created=f"2026-11-{day}T12:00:00+00:00")
    assert [entry.name for entry in Archive(tmp_path).entries()] == ["c", "a", "b"]


def test_a_root_that_is_a_run_itself_goes_by_its_own_name(runs):
    archive = Archive(runs / "held-out")
    ((label, name),) = run_choices(archive)
    assert label.startswith("held-out ")
    assert case_at(archive, MODELS, name, "mgap", "random/1").why.startswith("From the run held-out:")


def test_hidden_folders_links_and_what_lies_too_deep_are_left_out(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    write_run(outside, questions(), {"Vanilla": answers(questions())})
    write_run(root / ".hidden", questions(), {"Vanilla": answers(questions())})
    write_run(root.joinpath(*"abcd"[: DEPTH + 1]), questions(), {"Vanilla": answers(questions())})
    (root / "link").symlink_to(outside)
    (root / "half").mkdir()
    (root / "half" / "run.json").symlink_to(outside / "run.json")
    assert Archive(root).entries() == []


@pytest.mark.parametrize("name", ["../outside", "/etc", "questions/../questions", "", None, 3, "nothing", ["questions"]])
def test_a_name_that_is_not_on_the_list_is_refused(archive, name):
    with pytest.raises(RunError, match="is not among the runs"):
        archive.open(name)
    with pytest.raises(RunError, match="is not among the runs"):
        case_at(archive, MODELS, name, "mgap", "random/1")


def test_a_folder_without_runs_says_how_to_make_one(tmp_path):
    shown = show_run(Archive(tmp_path / "not there"), None)
    assert "mgap run pope --model pocket/llava" in shown.heading
    assert not shown.tables
    assert not shown.parts["visible"]
    assert run_choices(Archive(tmp_path)) == []


# What is shown of one


def test_a_run_is_shown_with_the_tables_plots_and_facts_of_its_report(archive):
    shown = show_run(archive, "questions")
    assert "120 of 120 samples under 2 methods" in shown.heading
    assert "What each method changes" in shown.tables
    assert shown.figures.count("<svg") == 3
    assert "alpha 6.0" in shown.facts
    assert shown.method["choices"] == ["mgap"]
    assert [value for _, value in shown.group["choices"]] == ["", "random", "adversarial"]
    assert shown.filters["visible"]


def test_figures_for_print_are_shown_with_their_captions_and_others_without(runs, tmp_path):
    shutil.copytree(runs / "held-out", tmp_path / "run")
    folder = tmp_path / "run" / "figures"
    folder.mkdir()
    from PIL.PngImagePlugin import PngInfo

    said = PngInfo()
    said.add_text("Description", "Less <b>is</b> more.")
    Image.new("RGB", (3000, 300), "white").save(folder / "a.png", pnginfo=said)
    Image.new("RGB", (30, 30), "white").save(folder / "mine.png")
    shown = show_run(Archive(tmp_path), "run").figures
    assert "Less &lt;b&gt;is&lt;/b&gt; more." in shown
    assert "mine" in shown
    assert 'width="1200" height="120"' in shown


def test_what_a_run_says_is_escaped(tmp_path):
    asked = [Sample("random/1", "1.png", "<script>alert(1)</script>", "random", "yes")]
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked), "Ours": answers(asked, {"random/1"})})
    listed = list_answers(Archive(tmp_path), MODELS, "run", "Ours", "all", "", "")
    assert "<script" not in listed.cards
    assert "&lt;script&gt;" in listed.cards


def test_a_question_without_a_picture_is_listed_and_not_opened(tmp_path):
    asked = [replace(sample, image="") for sample in questions()]
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked), "Ours": answers(asked, {"random/1"})})
    listed = list_answers(Archive(tmp_path), MODELS, "run", "Ours", "all", "", "")
    assert "this question was asked without a picture" in listed.cards
    with pytest.raises(ImageError, match="as text alone"):
        case_at(Archive(tmp_path), MODELS, "run", "Ours", "random/1")


def test_a_run_that_measured_distances_shows_tables_and_figures_and_has_no_answers(tmp_path):
    departure(tmp_path / "run")
    archive = Archive(tmp_path)
    shown = show_run(archive, "run")
    assert "<table" in shown.tables
    assert "<svg" in shown.figures
    assert (shown.filters["visible"], shown.parts["visible"]) == (False, True)
    assert "holds no answers" in list_answers(archive, MODELS, "run", None, "all", "", "").cards
    with pytest.raises(SettingError, match="holds no answers"):
        pairs(archive.open("run").scores, methods_of(archive.open("run").scores)[0])


def test_an_unfinished_run_and_failed_records_are_shown_as_far_as_they_go(tmp_path):
    asked = questions()
    half = answers(asked)[:10]
    half[3] = Record(asked[3].id, failed="ImageError: broken")
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked), "Ours": half})
    archive = Archive(tmp_path)
    shown = show_run(archive, "run")
    assert "9 of 24 samples are scored" in shown.heading
    assert "1 to 9 of 9 answers" in list_answers(archive, MODELS, "run", "Ours", "all", "", "").cards


@pytest.mark.parametrize("damage", ["{", "[]", '{"format": 1}', '{"format": 1, "arms": 3, "benchmark": {}}', "\x00"])
def test_a_damaged_run_is_a_sentence(runs, tmp_path, damage):
    shutil.copytree(runs / "held-out", tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(damage)
    archive = Archive(tmp_path)
    assert [name for _, name in run_choices(archive)] == ["run"]
    shown = show_run(archive, "run")
    assert 'class="sentence"' in shown.heading
    assert "Traceback" not in shown.heading
    assert "KeyError(" not in list_answers(archive, MODELS, "run", "mgap", "all", "", "").cards
    with pytest.raises(MgapError):
        archive.open("run")


def test_a_line_that_is_no_record_is_a_sentence(runs, tmp_path):
    shutil.copytree(runs / "held-out", tmp_path / "run")
    (tmp_path / "run" / "answers" / "mgap" / "0-of-1.jsonl").write_text('{"text": "no id"}\n')
    with pytest.raises(CorruptFile, match="the record has no 'id'; remove the line"):
        Archive(tmp_path).open("run")


def test_a_run_is_scored_once_and_again_when_it_has_grown(runs, tmp_path):
    shutil.copytree(runs / "held-out", tmp_path / "run")
    archive, path = Archive(tmp_path), tmp_path / "run" / "answers" / "mgap" / "0-of-1.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    before = archive.open("run")
    assert archive.open("run") is before
    path.write_text("".join(lines))
    assert (before.scores.scored, archive.open("run").scores.scored) == (3, 6)
    assert archives._score_run.cache_info().maxsize == 4


# Which answers are listed


def test_filters_part_the_answers_of_a_real_run_as_its_scores_count_them(archive):
    scores = archive.open("questions").scores
    found = pairs(scores, "mgap")
    parts = [part.against for part in scores.results["mgap"].groups.values()]
    gained, lost = choose(found, "gained"), choose(found, "lost")
    assert len(gained) == sum(part.gained for part in parts) > 0
    assert len(lost) == sum(part.lost for part in parts)
    assert {p.sample.id for p in [*gained, *lost]} <= {p.sample.id for p in choose(found, "changed")}
    assert all(pair.effect == "corrected" and pair.tone == "right" for pair in gained)
    assert [len(choose(found, group=name)) for name in groups_of(scores)] == [60, 60]
    assert len(choose(found)) == 120


def test_a_question_is_changed_by_another_verdict_and_a_caption_by_another_text():
    asked = Sample("1", "1.png", "Is there a dog?", "random", "no")
    same = Pair(asked, "Yes.", "Yes, there is.", was_right=False, is_right=False)
    assert not same.is_changed
    assert same.effect == "reworded, wrong both times"
    assert spoil(same, after="Perhaps.").is_changed
    assert spoil(same, after="No.", is_right=True).effect == "corrected"
    caption = spoil(
        same, sample=Sample("1", "1.png", "Describe this image.", "captions", ["dog"]), was_right=True, is_right=True
    )
    assert caption.is_changed
    assert caption.effect == "changed, right both times"
    assert spoil(caption, after="Yes.").effect == "right both times"


def test_words_are_looked_for_in_questions_answers_and_names_of_pictures(archive):
    found = pairs(archive.open("questions").scores, "mgap")
    thing = found[0].sample.prompt.split()[3]
    assert all(thing in pair.sample.prompt for pair in choose(found, words=f" {thing.upper()} "))
    assert found[0] in choose(found, words=thing)
    assert {pair.sample.image for pair in choose(found, words=found[0].sample.image)} == {found[0].sample.image}
    assert choose(found, words="no such thing as this") == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"effect": "best"}, "filter"),
        ({"group": "x"}, "group"),
        ({"words": "x" * 999}, "at most"),
        ({"effect": ["all"]}, "filter"),
        ({"group": ["random"]}, "group"),
    ],
)
def test_filters_that_do_not_exist_are_refused(archive, given, said):
    with pytest.raises(SettingError, match=said):
        choose(pairs(archive.open("questions").scores, "mgap"), **given)
    listed = {"effect": "all", "group": "", "words": "", **given}
    assert 'class="sentence"' in list_answers(archive, MODELS, "questions", "mgap", *listed.values()).cards


def test_a_method_that_the_run_has_not_is_refused(archive):
    with pytest.raises(SettingError, match="'vcd' is no method of this run: choose from mgap"):
        pairs(archive.open("questions").scores, "vcd")


def test_cards_come_a_page_at_a_time_with_counts_for_every_filter(archive):
    first = list_answers(archive, MODELS, "questions", "mgap", "all", "", "")
    last = list_answers(archive, MODELS, "questions", "mgap", "all", "", "", page=99)
    assert first.cards.count("<button") == PAGE == last.cards.count("<button")
    assert (first.page, first.back["interactive"], first.on["interactive"]) == (0, False, True)
    assert (last.page, last.back["interactive"], last.on["interactive"]) == (9, True, False)
    assert first.effect["choices"][0] == ("All (120)", "all")
    assert [name for _, name in first.effect["choices"]] == list(FILTERS)
    assert all(int(width) <= 192 for width in re.findall(r'width="(\d+)"', first.cards))


def test_a_run_of_plain_decoding_alone_lists_its_answers_and_opens_them_beside_the_pages_own_method(tmp_path):
    asked = [Sample("1", "pocket_200000.png", "Is there a dog in the image?", "random", "no")]
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked)})
    archive = Archive(tmp_path)
    assert methods_of(archive.open("run").scores) == ["Vanilla"]
    case = case_at(archive, MODELS, "run", "Vanilla", "1")
    assert (case.method, case.settings, case.prior, case.recorded) == ("mgap", {}, None, {"vanilla": "No."})


# What is opened


def test_a_card_opens_the_question_as_the_run_asked_it(archive):
    pair = choose(pairs(archive.open("questions").scores, "mgap"), "gained")[0]
    case = case_at(archive, MODELS, "questions", "mgap", pair.sample.id)
    assert (case.question, case.model, case.method) == (pair.sample.prompt, "pocket/llava", "mgap")
    assert dict(case.settings) == {"alpha": 6.0}
    assert isinstance(case.picture, Scene)
    assert case.prior is not None
    assert (case.prior.rank, case.prior.count) == (5, 50)
    assert case.recorded == {"vanilla": pair.before, "mgap": pair.after}
    assert "corrected" in case.why


def test_what_is_opened_gives_the_recorded_answers_again(archive, pocket):
    pair = choose(pairs(archive.open("questions").scores, "mgap"), "gained")[0]
    case = case_at(archive, MODELS, "questions", "mgap", pair.sample.id)
    from mgap.pocket.figures import mgap_at

    with pocket.using(mgap_at(case.prior, **case.settings)):
        assert pocket.answer(render(case.picture), case.question, max_new_tokens=16).text == pair.after
    assert pocket.answer(render(case.picture), case.question, max_new_tokens=16).text == pair.before


def test_the_drawing_style_of_a_pocket_run_is_told_by_its_pixels(archive):
    opened = archive.open("held-out")
    name = opened.run.samples[0].image
    shown = picture_of(opened, name)
    assert {thing.style for thing in shown.things} == {HELD_OUT_STYLE}
    opened.digests[name] = "0" * 64
    with pytest.raises(ImageError, match="draws it otherwise"):
        picture_of(opened, name)
    archives._score_run.cache_clear()


def test_the_pictures_of_a_difficult_run_are_drawn_again_as_hard_as_they_were(make_run, tmp_path):
    knobs = {"noise": 0.1, "crowding": 0.5}
    make_run(tmp_path / "hard", benchmark="pope", scenes=1, splits=("random",), difficulty=knobs)
    opened = Archive(tmp_path).open("hard")
    name = opened.run.samples[0].image
    assert picture_of(opened, name).difficulty == Difficulty(**knobs)
    opened.run.plan["difficulty"] = {"fog": 1}
    with pytest.raises(SettingError, match="no knob 'fog'"):
        picture_of(opened, name)
    archives._score_run.cache_clear()


def test_a_sample_that_the_run_has_not_is_refused(archive):
    for sample in ("random/999", None, {"id": 1}):
        with pytest.raises(RunError, match="is no answer of this run"):
            case_at(archive, MODELS, "questions", "mgap", sample)


def test_a_run_of_another_model_says_how_to_start_and_has_no_buttons(archive):
    listed = list_answers(archive, ("pocket/qwen3-vl",), "questions", "mgap", "all", "", "")
    assert "mgap inspect --model pocket/llava" in listed.cards
    assert "<button" not in listed.cards
    with pytest.raises(RunError, match="mgap inspect --model pocket/llava"):
        case_at(archive, ("pocket/qwen3-vl",), "questions", "mgap", "random/1")


def test_own_pictures_are_read_from_the_folder_that_the_run_recorded(own):
    archive = Archive(own / "runs")
    (label,) = methods_of(archive.open("mine").scores)
    case = case_at(archive, MODELS, "mine", label, archive.open("mine").run.samples[0].id)
    assert isinstance(case.picture, Image.Image)
    assert case.picture.size == (300, 300)
    assert (case.method, case.prior) == ("vcd", None)
    listed = list_answers(archive, MODELS, "mine", label, "all", "", "")
    assert listed.cards.count("<button") == 2
    assert 'width="192" height="192"' in listed.cards


def test_a_picture_that_is_another_one_now_or_gone_closes_its_card(own, tmp_path):
    shutil.copytree(own, tmp_path / "own")
    archive, pictures = Archive(tmp_path / "own" / "runs"), tmp_path / "own" / "pictures"
    plan = json.loads((tmp_path / "own/runs/mine/run.json").read_text())
    (tmp_path / "own/runs/mine/run.json").write_text(json.dumps({**plan, "images": str(pictures)}))
    first, second = sorted(pictures.iterdir())
    Image.new("RGB", (300, 300), "red").save(first)
    second.unlink()
    listed = list_answers(archive, MODELS, "mine", "vcd", "all", "", "")
    assert "<button" not in listed.cards
    assert "is another picture than the one that the run saw" in listed.cards
    assert "no such image file" in listed.cards


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/../../secret.png", "..\\secret.png", "link.png"])
def test_a_picture_outside_of_the_runs_folder_of_pictures_is_not_read(tmp_path, name):
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    Image.new("RGB", (30, 30), "white").save(tmp_path / "secret.png")
    (tmp_path / "pictures" / "link.png").symlink_to(tmp_path / "secret.png")
    asked = [Sample("1", name, "Is there a dog?", "all", "no")]
    own = {"name": "mine", "task": "yesno", "lexicon": {}, "sources": {}, "notes": []}
    told = {"Vanilla": answers(asked), "Ours": answers(asked)}
    write_run(tmp_path / "runs" / "run", asked, told, benchmark=own, images=str(tmp_path / "pictures"))
    archive = Archive(tmp_path / "runs")
    with pytest.raises(MgapError, match=r"is not inside|leads out of"):
        picture_of(archive.open("run"), name)
    assert "<button" not in list_answers(archive, MODELS, "run", "Ours", "all", "", "").cards


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("mgap run own --images '/a b/c' --limit 3", "/a b/c"),
        ("mgap run own --images=/d", "/d"),
        ("mgap run own --limit 3", None),
        ("mgap run own --images 'open", None),
    ],
)
def test_older_runs_tell_their_pictures_by_the_command(tmp_path, command, folder):
    found = pictures_folder(Run(tmp_path, {"command": command}, ()))
    assert (None if found is None else str(found)) == folder


def test_a_prior_that_is_gone_or_lies_elsewhere_is_refused(runs, tmp_path):
    shutil.copytree(runs / "held-out", tmp_path / "run")
    archive, sample = Archive(tmp_path), "random/1"
    assert case_at(archive, MODELS, "run", "mgap", sample).prior is not None
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    for given in ({"null_image": "x/../../../../out"}, {"folder": str(tmp_path / "none")}):
        plan["arms"][1]["prior"] = given
        (tmp_path / "run" / "run.json").write_text(json.dumps(plan))
        with pytest.raises(RunError, match=r"own folder of priors|is not there"):
            case_at(archive, MODELS, "run", "mgap", sample)


def test_a_method_of_the_run_that_is_not_ours_keeps_its_own_settings(tmp_path):
    asked = [Sample("1", "pocket_200000.png", "Is there a dog in the image?", "random", "no")]
    method = RunMethod("Contrast, strong", "vcd", {"alpha": 2.0})
    write_run(tmp_path / "run", asked, {"Vanilla": answers(asked), method.label: answers(asked)}, method)
    case = case_at(Archive(tmp_path), MODELS, "run", method.label, "1")
    assert (case.method, dict(case.settings), case.prior) == ("vcd", {"alpha": 2.0}, None)
    assert set(case.recorded) == {"vanilla", "vcd"}


def test_the_page_is_built_in_a_tab_with_private_events_only(runs, in_a_tab):
    page, opening = in_a_tab(build_runs, runs, MODELS)
    assert isinstance(opening.case, gr.State)
    assert all(dep["api_visibility"] == "private" for dep in page.config["dependencies"])


def test_a_run_is_shown_with_its_verdict(archive):
    shown = show_run(archive, "questions")
    assert shown.tables.index("too few to say which method is best") < shown.tables.index("<table")
    assert "mgap with alpha 6.0, lam 0.5, gate true" in shown.tables
