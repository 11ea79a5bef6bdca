"""The rule chooses as it says, what is counted is what was decoded, methods are paired by scene, nothing is measured twice."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mgap
from mgap.benchmarks.pope.questions import SPLITS
from mgap.errors import CorruptFile, RunError, SettingError
from mgap.methods.blind import NULLS as BLIND_NULLS
from mgap.pocket.benchmark import DEVELOPMENT, FIT, JUDGE, REPORT, TEST, pope
from mgap.pocket.evaluation import evaluate_amber, evaluate_captions, evaluate_odd_colours, evaluate_pope
from mgap.pocket.figures import mgap_at
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS, collect, rows_of
from mgap.pocket.samples import chair_samples
from mgap.pocket.scenes import render
from mgap.priors.bank import Bank
from mgap.registry import METHODS
from mgap.run.first_words import first_words
from research.comparison import counting
from research.frontier import choosing, reporting
from research.frontier.__main__ import main
from research.frontier.choosing import CaptionTrial, Choices, QuestionTrial, Tried, pick, pick_captions, pick_questions
from research.frontier.contenders import BOTH, CAPTIONS, FAMILIES, NEAR, PUBLISHED, QUESTIONS, Contender, Setting, take
from research.frontier.kit import Judges, Kit
from research.frontier.measures import (
    HARDEST,
    SceneCaptions,
    Sheet,
    SheetAnswers,
    ask,
    describe,
    judge_first,
)
from research.frontier.pricing import Price, passes, price
from research.frontier.tables import REPORT_FILE, TABLES, write_report
from research.frontier.thresholds import at_equal_recall

pytestmark = pytest.mark.long


def words_of(model, questions, methods, **options):
    return first_words(model, [(q.scene, q.text) for q in questions], methods, render, **options)


SIZES = {"scenes": 2, "captions": 2, "fit": 2, "judge": 4}
REPORTED = {"scenes": 2, "held_out": 1, "captions": 2, "amber": 1, "colours": 40}


@pytest.fixture(scope="module")
def loaded():
    return mgap.load("pocket/llava", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def kit(loaded):
    return Kit(loaded, scenes=8)  # questions are about two of them


@pytest.fixture(scope="module")
def judges(loaded):
    return Judges.of(loaded, 5)


@pytest.fixture(scope="module")
def sheet():
    return Sheet.of(TEST, scenes=2, captions=3, held_out=1, amber=2)


def few():
    """Small families of every kind: plain, at the head without a state, at the head, and with a branch."""
    small = {"bias": 2, "mgap": 2, "blind": 2}
    kept = [replace(each, published="", settings=each.settings[: small.get(each.family, 1)]) for each in take(small)]
    return [replace(each, published=each.settings[-1].label) if each.family == "mgap" else each for each in kept]


# --- the rule ------------------------------------------------------------------------------------------------------


def asked(label, *f1):
    return QuestionTrial(dict(zip(SPLITS, f1, strict=True)), label)


def test_questions_are_chosen_by_the_mean_of_the_splits_and_ties_go_to_the_first():
    trials = [asked("a", 0.9, 0.8, 0.7), asked("b", 0.99, 0.8, 0.65), asked("c", 0.65, 0.8, 0.99)]
    assert pick_questions(trials).label == "b"
    assert pick_questions(trials[::-1]).label == "c"


def told(label, chair_i, recall, departed):
    return CaptionTrial(label, chair_i, recall, 20.0, departed)


PLAIN_TRIAL = told("plain", 0.16, 0.94, 0.06)


@pytest.mark.parametrize(
    ("trials", "best", "near"),
    [
        ([("a", 0.10, 0.95, 0.01), ("b", 0.05, 0.95, 0.30)], "b", "a"),  # near: another one
        ([("a", 0.10, 0.91, 0.01), ("b", 0.05, 0.909, 0.01)], "a", "a"),  # three points are allowed, and no more
        ([("a", 0.10, 0.95, 0.01), ("b", 0.10, 0.99, 0.00)], "a", "a"),  # a tie
        ([("a", 0.10, 0.95, 0.06), ("b", 0.12, 0.95, 0.061)], "a", "a"),  # as far as plain decoding
        ([("a", 0.10, 0.95, 0.061)], "a", None),
        ([("a", 0.10, 0.95, None), ("b", 0.20, 0.95, 0.049)], "a", "b"),  # decodes from no state
        ([("a", 0.00, 0.10, 0.01)], None, None),  # says too little
    ],
)
def test_captions_are_chosen_among_those_that_recall_enough_and_those_that_are_near(trials, best, near):
    tried = Tried([], [told(*trial) for trial in trials], {})
    chosen = pick(tried, Tried([], [PLAIN_TRIAL], {}), (CAPTIONS, NEAR))
    assert (chosen.get(CAPTIONS), chosen.get(NEAR)) == (best, near)


def test_the_limit_of_departures_is_five_percent_where_plain_decoding_departs_less():
    plain = replace(PLAIN_TRIAL, departed=0.01)
    assert pick_captions([told("a", 0.1, 0.95, 0.05)], plain, near=True) is None
    assert pick_captions([told("a", 0.1, 0.95, 0.049)], plain, near=True).label == "a"


def test_a_family_is_chosen_for_what_it_is_meant_for():
    tried = Tried([asked("a", 0.1, 0.1, 0.1)], [], {})
    assert pick(tried, Tried([], [PLAIN_TRIAL], {}), (QUESTIONS,)) == {QUESTIONS: "a"}


# --- what methods are made of, and judged by --------------------------------------------------------------------------


def test_every_setting_makes_its_method(kit):
    few_of = {"predicted-prior": 2}  # each null image and rank takes a fit of its own
    made = {c.family: {s.label: s.make(kit) for s in c.settings[: few_of.get(c.family)]} for c in FAMILIES}
    assert made["vanilla"] == {"plain": None}
    assert len(made["mgap"]) == 80
    strong = made["mgap"]["alpha 4, mean_colour, rank 1"]
    assert (strong.alpha, strong.prior.rank, strong.prior.origin["null_image"]) == (4.0, 1, "mean_colour")
    published = {contender.family: contender.published for contender in FAMILIES if contender.published}
    paper = made["mgap"][published["mgap"]]
    assert (paper.alpha, paper.lam, paper.prior.rank, paper.prior.origin["null_image"]) == (0.75, 0.5, 5, "black336")
    assert made["blind"]["rho 0.25, no_image"] == mgap.Blind(rho=0.25, null_image="no_image")
    assert made["vcd"]["alpha 2"] == mgap.VCD(alpha=2.0, noise_step=500)
    assert made["vcd"][published["vcd"]] == mgap.VCD()
    defaults = {"icd": mgap.ICD(), "code": mgap.CODE(), "m3id": mgap.M3ID(), "deco": mgap.DeCo(), "dola": mgap.DoLa()}
    defaults |= {"mod": mgap.MoD(), "ritual": mgap.RITUAL(), "sid": mgap.SID(), "avisc": mgap.AvisC(), "vaf": mgap.VAF()}
    defaults |= {"vista": mgap.VISTA(), "ed": mgap.ED(), "fast-ed": mgap.FastED(), "yes-if-close": mgap.YesIfClose()}
    for family, method in defaults.items():
        assert made[family][published[family]] == method
    pai = made["pai"][published["pai"]]
    assert (pai.alpha, pai.gamma) == (mgap.PAI().alpha, mgap.PAI().gamma)
    assert made["haltrapper"][published["haltrapper"]].alpha == mgap.HalTrapper().alpha
    nullu = made["nullu"][published["nullu"]]
    assert (nullu.space.rank, nullu.strength) == (4, 1.0)
    assert {*METHODS.names()} - {"vanilla"} <= {*made}  # every method is a family


def test_what_is_made_is_kept(kit):
    assert kit.prior("no_image", 3) is kit.prior("no_image", 3)
    assert kit.prior("no_image", 3).rank == 3
    assert kit.bank("questions") is kit.bank("questions")
    assert kit.keep("new", lambda: [1]) is kit.keep("new", lambda: [2])


def test_a_bank_holds_whole_plain_answers_and_a_row_of_it_is_a_scene(loaded, kit):
    bank = kit.bank("questions")
    rows = rows_of("questions", FIT, 2)
    assert len({row[0].seed for row in rows}) == 2
    assert len(set(rows)) == len(rows) > 12  # of all splits, each once
    assert set(bank.rows.tolist()) == {0, 1}
    assert int((bank.steps == 0).sum()) == len(rows)
    said = [
        a.token_ids
        for a in loaded.answers([render(s) for s, _ in rows], [t for _, t in rows], max_new_tokens=MAX_ANSWER_TOKENS)
    ]
    assert len(bank) == sum(map(len, said))
    both = kit.bank()
    assert len(both) == len(bank) + len(kit.bank("captions"))
    assert set(both.rows.tolist()) == {0, 1, *range(len(set(both.rows.tolist())))}
    with pytest.raises(SettingError, match="choose from questions, captions"):
        kit.bank("colours")


def test_scenes_of_one_use_are_of_no_other():
    firsts = sorted([DEVELOPMENT, FIT, JUDGE, TEST, REPORT])
    longest = max(q.scene.seed for q in pope("random", REPORT, 200)) - REPORT  # scenes without three kinds are passed over
    assert min(np.diff(firsts)) > choosing.MAX_SCENES * longest / 200
    assert {scene.seed for scene, _ in rows_of("captions", JUDGE, 3)} == {JUDGE, JUDGE + 1, JUDGE + 2}


# --- what is measured -------------------------------------------------------------------------------------------------


def test_what_is_told_scores_as_evaluation_does(loaded, sheet, kit):
    methods = {"plain": None, "blind": mgap.Blind(), "mgap": mgap_at(kit.prior("black336"), 8.0)}
    said = ask(loaded, sheet, methods)
    pope_scores = evaluate_pope(loaded, methods, TEST, 2)
    held_out = evaluate_pope(loaded, methods, TEST, 1, held_out=True)
    amber = evaluate_amber(loaded, methods, TEST, 2)
    for name in methods:
        answers = SheetAnswers(said[name], SceneCaptions([], [], None), None)
        for split in SPLITS:
            assert answers.tally(sheet, split).rates()["f1"] == pope_scores[split][name].f1
            assert answers.tally(sheet, f"held-out {split}").rates()["accuracy"] == held_out[split][name].accuracy
        assert answers.amber(sheet).value == pytest.approx(np.mean([of[name].accuracy.value for of in amber.values()]))
    with pytest.raises(CorruptFile, match="measure again"):
        SheetAnswers({"random": "y"}, SceneCaptions([], [], None), None).tally(sheet, "random")


def test_captions_are_those_of_evaluation_and_their_states_are_judged(loaded, sheet, judges):
    methods = {"plain": None, "blind": mgap.Blind(rho=4.0), "bias": mgap.Bias(shift=-1.0)}
    expected = evaluate_captions(loaded, methods, TEST, 3, batch_size=2)
    found = {name: describe(loaded, method, sheet.described, judges.along, batch_size=2) for name, method in methods.items()}
    for name in methods:
        assert found[name].texts == expected[name].texts
        score = SheetAnswers({}, found[name], None).tally_captions(sheet).rates()
        assert (score["CHAIRi"], score["recall"]) == (expected[name].score.chair_i, expected[name].score.recall)
    assert found["bias"].departed is None
    assert SheetAnswers({}, found["bias"], None).caption_departures(sheet) is None
    rows = rows_of("captions", TEST, 3)
    plain = Bank.collect(
        loaded, [render(scene) for scene, _ in rows], [text for _, text in rows], max_new_tokens=MAX_ANSWER_TOKENS
    )
    beyond = judges.along.distances(plain.states) > judges.along.tau
    assert found["plain"].departed == [int(beyond[plain.rows == row].sum()) for row in range(3)]
    assert found["plain"].tokens == [int((plain.rows == row).sum()) for row in range(3)]
    assert sum(found["blind"].departed) > sum(found["plain"].departed)
    rate = SheetAnswers({}, found["blind"], None).caption_departures(sheet)
    assert rate.value == sum(found["blind"].departed) / sum(found["blind"].tokens)


def test_first_states_are_judged(loaded, sheet, judges):
    questions, asked_now = sheet.hardest, list(pope(HARDEST, TEST, 2))
    assert [sample.prompt for sample in questions.samples] == [q.text for q in asked_now]
    plain = collect(loaded, [(q.scene, q.text) for q in asked_now], 1)
    expected = (judges.first.distances(plain.states) > judges.first.tau).int().tolist()
    assert judge_first(loaded, None, questions, judges.first, batch_size=7) == expected
    far = judge_first(loaded, mgap.Blind(rho=8.0), questions, judges.first)
    assert sum(far) > sum(expected)
    assert SheetAnswers({}, SceneCaptions([], [], None), far).first_departures(sheet).value == sum(far) / len(asked_now)
    assert judge_first(loaded, mgap.Bias(shift=1.0), questions, judges.first) is None


@pytest.mark.parametrize(("name", "forwards"), [("plain", 1.0), ("mgap", 1.0), ("blind", 2.0), ("aside", 2.0), ("asked", 1.0)])
def test_forwards_a_token_are_counted(loaded, kit, name, forwards):
    methods = {
        "plain": None,
        "mgap": mgap.MGAP(kit.prior("black336")),
        "blind": mgap.Blind(),
        "aside": mgap.Blind(branch_mode="sequential"),
        "asked": mgap.PromptPrior(prior=kit.prior("black336"), unsure=100.0, branch_mode="cached"),  # the first token only
    }
    found = price(loaded, methods[name], chair_samples(3), 3)
    assert found.forwards == forwards
    assert found.steps == found.tokens - 3
    assert found.milliseconds_a_token > 0


def test_a_row_that_reads_several_tokens_passes_once_and_a_prompt_is_no_pass():
    def call(length):
        return {"past_key_values": SimpleNamespace(get_seq_length=lambda: length)}

    states = torch.zeros(5, 3, 4)
    assert passes(states, call(7)) == 5
    assert passes(states, call(0)) == passes(states, {}) == 0
    assert Price(3, 0, 0, 1.0).forwards is None


def test_strengths_of_one_branch_share_its_forward_and_say_what_decoding_says(loaded):
    questions = list(pope("adversarial", TEST, 3))
    methods = {f"blind {rho}": mgap.Blind(rho=rho) for rho in (0.25, 1.0, 8.0)}
    methods |= {f"vcd {alpha}": mgap.VCD(alpha=alpha, beta=0.2) for alpha in (0.5, 4.0)}
    with counting(loaded) as together:
        words = words_of(loaded, questions, methods)
    with counting(loaded) as apart:
        for name, method in methods.items():
            assert words[name] == words_of(loaded, questions, {name: method})[name]
    assert len(set(map(tuple, words.values()))) > 2
    assert together[0] < 0.5 * apart[0]


# --- choosing -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(loaded, tmp_path_factory):
    """With a choice and a report in it."""
    folder = tmp_path_factory.mktemp("frontier")
    choices = choosing.choose(loaded, few(), folder, **SIZES)
    found = reporting.report(loaded, few(), choices, folder, **REPORTED, priced=2)
    write_report(folder, choices, *found)
    return folder


def refuse(*_, **__):
    raise AssertionError("measured again")


def test_every_trial_is_kept_and_the_choice_is_the_rules(folder, loaded):
    choices = Choices.load(folder)
    assert list(choices.tried) == ["vanilla", "bias", "mgap", "blind"]
    assert choices.about["sizes"] == SIZES
    for contender in few():
        tried = choices.tried[contender.family]
        labels = [setting.label for setting in contender.settings]
        assert [trial.label for trial in tried.questions] == labels
        assert [trial.label for trial in tried.captions] == (labels if contender.family != "bias" else [])
        assert tried.chosen == pick(tried, choices.tried["vanilla"], contender.chosen_for, contender.published)
    assert choices.tried["mgap"].chosen[PUBLISHED] == few()[2].settings[-1].label
    scores = evaluate_pope(loaded, {"it": mgap.Blind(rho=0.25, null_image="mean_colour")}, DEVELOPMENT, 2)
    assert choices.tried["blind"].questions[1].label == "rho 0.25, mean_colour"
    assert choices.tried["blind"].questions[1].f1 == {split: scores[split]["it"].f1.value for split in SPLITS}


def test_what_was_tried_is_not_tried_again(folder, loaded, monkeypatch):
    monkeypatch.setattr(choosing, "ask", refuse)
    monkeypatch.setattr(choosing, "describe", refuse)
    assert choosing.choose(loaded, few(), folder, **SIZES) == Choices.load(folder)
    more = [*few()[:3], replace(few()[3], settings=FAMILIES[3].settings[:3])]
    with pytest.raises(AssertionError, match="measured again"):
        choosing.choose(loaded, more, folder, **SIZES)  # other settings than those in the file
    with pytest.raises(RunError, match="its sizes is"):
        choosing.choose(loaded, few(), folder, **{**SIZES, "scenes": 3})


def test_what_cannot_be_chosen_from_is_refused(loaded, tmp_path):
    with pytest.raises(SettingError, match="must be the first contender"):
        choosing.choose(loaded, few()[1:], tmp_path, **SIZES)
    with pytest.raises(SettingError, match="run into those of another"):
        choosing.choose(loaded, few(), tmp_path, **{**SIZES, "captions": 10_001})
    with pytest.raises(SettingError, match="label of its own"):
        Contender("twice", (Setting("a", refuse), Setting("a", refuse)))
    with pytest.raises(RunError, match="run choose first"):
        Choices.load(tmp_path)
    (tmp_path / choosing.FILE).write_text("{}")
    with pytest.raises(CorruptFile, match="no choices"):
        Choices.load(tmp_path)


# --- reporting ----------------------------------------------------------------------------------------------------------


def test_a_report_is_of_every_chosen_setting_and_nothing_is_measured_again(folder, loaded, monkeypatch):
    monkeypatch.setattr(reporting, "measure", refuse)
    monkeypatch.setattr(reporting, "Judges", SimpleNamespace(of=refuse))
    choices, heard = Choices.load(folder), []
    sizes = REPORTED
    _, answers = reporting.report(loaded, few(), choices, folder, **sizes, log=heard.append)
    chosen = {f"{family} ({label})" for family, tried in choices.tried.items() for label in tried.chosen.values()}
    assert set(answers.results) == chosen
    assert heard == [f"{name}: measured before" for name in answers.results]
    assert answers.results["vanilla (plain)"].chosen.purposes == (QUESTIONS, CAPTIONS, NEAR, BOTH)
    with pytest.raises(RunError, match="its sizes is"):
        reporting.report(loaded, few(), choices, folder, **{**sizes, "amber": 2})
    with pytest.raises(RunError, match="no setting of vcd has been chosen"):
        reporting.report(loaded, take(["vcd"]), choices, folder, **sizes)
    with pytest.raises(RunError, match="its model is another"):
        reporting.report(loaded, few(), replace(choices, about={**choices.about, "model": "another"}), folder, **sizes)
    elsewhere = replace(choices, about={**choices.about, "dtype": "bfloat16"})  # what was chosen in 16 bits
    assert reporting.report(loaded, few(), elsewhere, folder, **sizes)[1].about["dtype"] == "float32"


def test_what_is_chosen_no_more_leaves_the_tables(folder, loaded):
    choices = Choices.load(folder)
    bias = choices.tried["bias"]
    other = next(trial.label for trial in bias.questions if trial.label != bias.chosen[QUESTIONS])
    changed = replace(choices, tried={**choices.tried, "bias": replace(bias, chosen={QUESTIONS: other})})
    _, answers = reporting.report(loaded, few()[:1], changed, folder, **REPORTED)
    assert not [name for name in answers.results if name.startswith("bias")]


def test_the_report_says_what_was_measured(folder, loaded):
    answers = reporting.Answers.load(folder)
    report = json.loads((folder / REPORT_FILE).read_text())
    plain = evaluate_pope(loaded, {"it": None}, REPORT, 2)["adversarial"]["it"]
    found = report["figures"]["vanilla (plain)"]
    assert found["adversarial F1"]["value"] == plain.f1.value
    assert found["forwards a token"] == 1.0
    colours = evaluate_odd_colours(loaded, {"it": None}, REPORT, 40)["it"]
    assert (found["odd colours: usual"]["value"], found["odd colours: true"]["value"]) == (
        colours.usual.value,
        colours.true.value,
    )
    (blind,) = (name for name, of in answers.results.items() if of.chosen.family == "blind" and QUESTIONS in of.chosen.purposes)
    (bias,) = (name for name in answers.results if name.startswith("bias"))
    assert report["figures"][blind]["forwards a token"] == 2.0
    assert report["figures"][bias]["departed: captions"] is None
    assert set(report["paired"]["vanilla (plain)"]) == set(answers.results) - {"vanilla (plain)"}
    tables = (folder / TABLES).read_text()
    assert f"| vanilla (plain) | {evaluate_pope(loaded, {'it': None}, REPORT, 2)['random']['it'].f1} |" in tables
    assert "### Against vanilla (plain)" in tables
    assert all(f"| {name} |" in tables for name in answers.results)


def test_a_method_does_not_differ_from_itself_and_a_difference_shows():
    sheet = Sheet.of(TEST, scenes=40, captions=40, held_out=40)
    right = {group: "".join(q.truth[0] for q in asked) for group, asked in sheet.groups.items()}
    texts = [f"There is a {sample.truth[0]}." for sample in sheet.described.samples]
    good = SheetAnswers(right, SceneCaptions(texts, [5] * 40, None), None)
    wrong = {group: "".join("y" if place % 4 else letter for place, letter in enumerate(said)) for group, said in right.items()}
    inventing = [text + " There is a zebra and a toilet." for text in texts]
    bad = SheetAnswers(wrong, SceneCaptions(inventing, [9] * 40, None), None)
    for found in reporting.differences(sheet, bad, bad).values():
        assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    found = reporting.differences(sheet, good, bad)
    assert all(not found[name].is_noise for name in found if name != "recall")
    assert found["adversarial F1"].low > 0 > found["CHAIRi"].high
    back = reporting.differences(sheet, bad, good)["CHAIRi"]
    assert (back.value, back.low, back.high) == pytest.approx(
        (-found["CHAIRi"].value, -found["CHAIRi"].high, -found["CHAIRi"].low)
    )


def test_broken_answers_are_refused(tmp_path):
    (tmp_path / reporting.ANSWERS).write_text('{"about": {}, "results": 3}')
    with pytest.raises(CorruptFile, match="no answers of a report"):
        reporting.Answers.load(tmp_path)


# --- the command --------------------------------------------------------------------------------------------------------


def test_the_command_chooses_then_reports(tmp_path, capsys):
    where = ["pocket/llava", "--out", str(tmp_path), "--device", "cpu"]
    main(["choose", *where, "--scenes", "1", "--captions", "1", "--fit", "1", "--judge", "4", "--family", "dola"])
    assert "dola: 2 tried" in capsys.readouterr().out
    main(["report", *where, "--scenes", "1", "--captions", "1", "--held-out", "1", "--amber", "1", "--colours", "0"])
    shown = capsys.readouterr().out
    assert "dola (as published): measured" in shown
    assert (tmp_path / TABLES).read_text() in shown
    assert json.loads((tmp_path / choosing.FILE).read_text())["about"]["dtype"] == "float32"


def test_the_command_refuses_in_a_sentence(tmp_path, capsys):
    for words, sentence in (
        (["choose", "pocket/llava", "--family", "nothing"], "unknown family 'nothing': choose from vanilla, bias"),
        (["report", "pocket/llava"], "nothing has been chosen there; run choose first"),
    ):
        with pytest.raises(SystemExit) as left:
            main([*words, "--out", str(tmp_path)])
        assert left.value.code == 2
        assert sentence in capsys.readouterr().err


# --- the figure, and what could be had at all -------------------------------------------------------------------------


def test_every_trial_is_in_the_figures_data(tmp_path, folder):
    main(["draw", str(folder), "--out", str(tmp_path)])
    choices = Choices.load(folder)
    rows = (tmp_path / "frontier.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(len(tried.captions) for tried in choices.tried.values())
    assert rows[0].startswith("model,family,setting,departed_percent")
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".pdf", ".png", ".svg"}


def test_probes_that_are_taught_the_truth_answer_better_the_later_the_layer(tmp_path, capsys):
    main(["ceiling", "pocket/llava", "--out", str(tmp_path), "--scenes", "8", "--reported", "4", "--device", "cpu"])
    found = json.loads((tmp_path / "ceiling.json").read_text())
    assert set(found["margins"]) == {"plain", *(f"plain and {null}" for null in BLIND_NULLS)}
    f1 = [of["adversarial"]["value"] for _, of in sorted(found["probes"].items(), key=lambda item: int(item[0]))]
    assert len(f1) == 7  # what the first block reads, and six blocks
    assert max(f1[:3]) < 0.8 < min(f1[5:])
    assert found["best_threshold"]["adversarial"]["value"] >= found["plain"]["adversarial"]["value"]
    assert "plain, best threshold: random F1" in capsys.readouterr().out


def test_a_method_that_is_a_constant_does_not_differ_from_the_constant():
    sheet = Sheet.of(TEST, scenes=40, captions=1)
    questions, rng = sheet.groups[HARDEST], np.random.default_rng(3)
    margins = [float(rng.normal(1.0 if q.truth == "yes" else -0.5)) for q in questions]
    least = sorted(m for q, m in zip(questions, margins, strict=True) if q.truth == "yes")[
        40
    ]  # the constant ends at a right yes
    moved = at_equal_recall(questions, "".join("y" if margin >= least else "n" for margin in margins), margins)
    assert (moved.f1.value, moved.f1.low, moved.f1.high) == (0.0, 0.0, 0.0)
    assert moved.false_yes == moved.false_yes_of_constant > 0
    knowing = "".join("y" if q.truth == "yes" and m >= least else "n" for q, m in zip(questions, margins, strict=True))
    better = at_equal_recall(questions, knowing, margins)
    assert better.f1.low > 0
    assert (better.recall, better.false_yes) == (moved.recall, 0.0)
    silent = at_equal_recall(questions, "n" * len(questions), margins)
    assert (silent.recall, silent.false_yes, silent.false_yes_of_constant) == (0.0, 0.0, 0.0)


def test_equal_margins_are_ranked_whatever_their_truth():
    questions = Sheet.of(TEST, scenes=40, captions=1).groups[HARDEST]
    half = "".join("yn"[number // 2 % 2] for number in range(len(questions)))  # every other pair of a yes and a no
    tied = at_equal_recall(questions, half, [0.0] * len(questions))
    assert tied.recall == 0.5
    assert 0.35 < tied.false_yes_of_constant < 0.65


def test_thresholds_are_of_the_questions_of_the_report(folder, capsys):
    answers = reporting.Answers.load(folder)
    sheet = reporting.sheet_of(answers)
    (folder / "margins.json").write_text(json.dumps({split: [0.5] * len(sheet.groups[split]) for split in SPLITS}))
    main(["thresholds", "--out", str(folder)])
    shown = capsys.readouterr().out
    assert all(f"| {name} |" in shown for name in answers.results)
    assert set(json.loads((folder / "thresholds.json").read_text())) == set(answers.results)
    (folder / "margins.json").write_text(json.dumps({split: [0.5] for split in SPLITS}))
    with pytest.raises(SystemExit):
        main(["thresholds", "--out", str(folder)])
    assert "1 margins of 12 random questions" in capsys.readouterr().err


def test_processes_that_share_a_folder_keep_each_others_families(tmp_path):
    empty = Choices({"model": "m"}, {})
    one, other = Tried([asked("a", 0.1, 0.1, 0.1)], [], {}), Tried([asked("b", 0.2, 0.2, 0.2)], [], {})
    empty.add(tmp_path, "first", one)
    made = empty.add(tmp_path, "second", other)  # a process that began when the folder was empty
    assert made == Choices.load(tmp_path) == Choices({"model": "m"}, {"first": one, "second": other})


def test_a_published_setting_that_is_not_tried_is_refused():
    with pytest.raises(SettingError, match="no setting 'b', which is to be the published one"):
        Contender("it", (Setting("a", refuse),), published="b")


def test_a_setting_for_both_is_near_and_answers_as_well_as_the_best_of_its_family():
    questions = [asked("a", 0.9, 0.9, 0.9), asked("b", 0.899, 0.899, 0.899), asked("c", 0.8, 0.8, 0.8)]
    captions = [told("a", 0.14, 0.95, 0.01), told("b", 0.12, 0.95, 0.01), told("c", 0.05, 0.95, 0.01)]
    plain = Tried([], [PLAIN_TRIAL], {})
    assert pick(Tried(questions, captions, {}), plain, (BOTH,)) == {BOTH: "b"}
    assert pick(Tried(questions[:1], [told("a", 0.14, 0.95, 0.3)], {}), plain, (BOTH,)) == {}


def test_methods_that_read_blind_states_share_a_forward_and_say_what_decoding_says(loaded, kit):
    questions = list(pope("adversarial", TEST, 4))
    methods = {
        "sure": mgap.Tether(bank=kit.bank(), rho=4.0, unsure=0.4, branch_mode="cached"),  # asks for some of them only
        "projected": mgap.PromptPrior(prior=kit.prior("black336"), rho=4.0, branch_mode="cached"),
        "tethered": mgap.Tether(bank=kit.bank(), rho=8.0),
    }
    together = words_of(loaded, questions, methods)
    for name, method in methods.items():
        assert words_of(loaded, questions, {name: method})[name] == together[name]
    assert together["projected"] != together["sure"]
