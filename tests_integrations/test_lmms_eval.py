"""Our model class inside lmms-eval itself; needs lmms-eval (docs/lmms-eval.md says how to install it)."""

import json
import os
import sys
import warnings
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

import mgap
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.errors import BackboneMismatch, SettingError, UnsupportedDecoding, UnsupportedRequest
from mgap.pocket.benchmark import pope
from mgap.pocket.scenes import render
from tests import processes

pytestmark = [
    pytest.mark.skipif(find_spec("lmms_eval") is None, reason="lmms-eval is not installed: see docs/lmms-eval.md"),
    pytest.mark.filterwarnings("default"),  # of lmms-eval and what it imports
]
EXAMPLE = Path(__file__).parents[1] / "examples" / "lmms_eval"
GREEDY = {"max_new_tokens": 12, "temperature": 0.0, "do_sample": False, "until": [","]}
DESCRIBE = {"max_new_tokens": 6, "until": ["\n\n"]}


@pytest.fixture(scope="module")
def plugin():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lmms_eval.models import get_model

        return get_model("mgap")


@pytest.fixture(scope="module")
def questions():
    return list(pope("adversarial", count=2))


@pytest.fixture(scope="module")
def plain(plugin):
    return plugin(pretrained="pocket/llava", method="vanilla", batch_size=5, device="cpu")


def show(question):
    return [render(question.scene)]


def instances(questions, options=GREEDY, visual=show, kind="generate_until"):
    from lmms_eval.api.instance import Instance

    about = {"task": "pocket", "repeats": 1}
    return [
        Instance(kind, (q.text, dict(options), visual, place, "pocket", "test"), place, {**about, "doc_id": place})
        for place, q in enumerate(questions)
    ]


def answer(lmm, questions, *args, **kwargs):
    lmm.task_dict = {"pocket": {"test": questions}}
    return lmm.generate_until(instances(questions, *args, **kwargs))


def test_lmms_eval_finds_the_model_by_its_entry_point(plugin):
    assert "mgap" in entry_points(group="lmms_eval.models").names
    assert plugin.__module__ == "mgap.integrations.lmms_eval"


def test_answers_are_those_of_the_model_itself_cut_at_the_stop_word(plain, questions):
    direct = plain.model.answers([render(q.scene) for q in questions], [q.text for q in questions], max_new_tokens=12)
    expected = list(direct)
    found = answer(plain, questions)
    assert [result.text for result in found] == [each.text.split(",")[0] for each in expected]
    assert {result.text for result in found} == {"Yes", "No"}
    assert [result.token_counts.output_tokens for result in found] == [len(each.token_ids) for each in expected]


def test_answers_come_back_in_the_order_of_requests_with_different_options(plain, questions):
    plain.task_dict = {"pocket": {"test": questions}}
    short, long = instances(questions), instances(questions, DESCRIBE)
    mixed = [long[i] if i % 3 == 0 else short[i] for i in range(len(questions))]
    found = [result.text for result in plain.generate_until(mixed)]
    expected = [r.text for r in plain.generate_until(short)], [r.text for r in plain.generate_until(long)]
    assert found == [expected[i % 3 == 0][i] for i in range(len(questions))]
    assert expected[0] != expected[1]


def test_stop_words_can_be_left_alone(plugin, questions):
    uncut = plugin(pretrained="pocket/llava", method="vanilla", batch_size=12, device="cpu", until="none")
    assert all("," in result.text for result in answer(uncut, questions))


def test_repeats_of_a_sampled_request_are_not_copies(plain, questions):
    plain.task_dict = {"pocket": {"test": questions}}
    options = {"max_new_tokens": 20, "temperature": 3.0}
    again = instances(questions[:1], options) * 15  # three batches
    texts = [result.text for result in plain.generate_until(again)]
    assert texts[:5] != texts[5:10]
    assert texts == [result.text for result in plain.generate_until(again)]


def test_the_method_acts_and_its_settings_are_read(plugin, plain, questions):
    denier = plugin(pretrained="pocket/llava", method="bias", shift=-50.0, batch_size=12, device="cpu")
    assert {yes_or_no(result.text) for result in answer(denier, questions)} == {"no"}
    still = plugin(pretrained="pocket/llava", method="mgap", alpha=0, batch_size=5, device="cpu")
    assert [r.text for r in answer(still, questions)] == [r.text for r in answer(plain, questions)]


def test_a_saved_prior_is_used_and_one_of_another_model_refused(plugin, tmp_path, checkpoints):
    model = mgap.load(str(checkpoints["llava"]), device="cpu")
    mgap.Subspace.fit(model, mgap.default_prompts()[:12], rank=3).save(tmp_path)
    lmm = plugin(pretrained=str(checkpoints["llava"]), prior=str(tmp_path), device="cpu")
    assert lmm.method.prior.rank == 3
    with pytest.raises(BackboneMismatch):
        plugin(pretrained="pocket/llava", prior=str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "magic"},
        {"method": "vanilla", "alpha": 1},
        {"method": "vcd", "prior": "folder"},
        {"alhpa": 1},
        {"batch_size": "auto"},
        {"batch_size": 0},
        {"until": "never"},
    ],
)
def test_model_args_that_cannot_be_used_are_refused_before_the_model_is_loaded(plugin, wrong):
    with pytest.raises(SettingError):
        plugin(pretrained="no/such-model", **wrong)


def test_requests_of_other_kinds_are_refused(plain, questions):
    for kind in ("loglikelihood", "generate_until_multi_round"):
        with pytest.raises(UnsupportedRequest, match="pocket asks for"):
            getattr(plain, kind)(instances(questions, kind=kind))


def test_no_picture_and_several_are_asked_as_they_are_where_the_method_can(plugin, plain, questions):
    two = [render(question.scene) for question in questions[:2]]
    vcd = plugin(pretrained="pocket/llava", method="vcd", batch_size=2, device="cpu")
    for shown in ([], two):
        (found,) = answer(plain, questions[:1], visual=lambda _doc, shown=shown: shown)
        own = plain.model.answer(shown or None, questions[0].text, max_new_tokens=12)
        assert found.text == own.text.split(",")[0]
        with pytest.raises(
            UnsupportedRequest, match=f"pocket, document 0, comes with {len(shown)} pictures, and vcd needs one"
        ):
            answer(vcd, questions[:1], visual=lambda _doc, shown=shown: shown)


def test_videos_are_refused(plain, questions):
    with pytest.raises(UnsupportedRequest, match="pocket, document 0,"):
        answer(plain, questions, visual=lambda _doc: ["clip.mp4"])


def test_a_placeholder_in_the_text_is_refused(plain, questions):
    with pytest.raises(UnsupportedRequest, match="'<image>' in its text"):
        answer(plain, [replace(questions[0], text="<image> Is there a dog in the image?")])


def test_decoding_that_the_method_does_not_accept_is_refused(plugin, questions):
    opera = plugin(pretrained="pocket/llava", method="opera", batch_size=12, device="cpu")
    with pytest.raises(UnsupportedDecoding):
        answer(opera, questions, {**GREEDY, "do_sample": True, "temperature": 1.0})


def test_a_run_of_lmms_eval_gives_the_figures_of_the_answers(tmp_path, plain, questions):
    def call(*words):
        env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1"}
        done = processes.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "12 questions" in call(str(EXAMPLE / "make_data.py"), "pocket_pope.parquet", "adversarial", "2")
    args = ["--model", "mgap", "--model_args", "pretrained=pocket/llava,method=vanilla", "--batch_size", "5", "--device", "cpu"]
    task = ["--tasks", "pocket_pope", "--include_path", str(EXAMPLE), "--output_path", "logs"]
    shown = call("-m", "lmms_eval", "eval", *args, *task)
    assert "pocket_pope" in shown
    (file,) = (tmp_path / "logs").rglob("*_results.json")
    figures = json.loads(file.read_text())["results"]["pocket_pope"]
    right = [yes_or_no(r.text) == q.label for q, r in zip(questions, answer(plain, questions), strict=True)]
    assert figures["pope_accuracy,none"] == pytest.approx(sum(right) / len(right))
