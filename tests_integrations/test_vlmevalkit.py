"""Our model class for VLMEvalKit: messages answered as the model answers, and refused by name; its own program where it is.

VLMEvalKit is not on the package index: the last tests, which need it, are skipped unless a clone of it is installed
(docs/vlmevalkit.md).
"""

import csv
import json
import os
import runpy
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

import mgap
from mgap.errors import MgapError, PromptError, SettingError, UnsupportedRequest
from mgap.integrations.harness_models import ModelArguments
from mgap.integrations.vlmevalkit import VLMEvalKitModel, register, run
from mgap.pocket.benchmark import pope
from mgap.pocket.scenes import render
from tests import processes

pytestmark = pytest.mark.filterwarnings("ignore:alpha=6 > 1")
EXAMPLE = Path(__file__).parents[1] / "examples" / "vlmevalkit"
SHORT = {"max_new_tokens": 16}
INSIDE = pytest.mark.skipif(find_spec("vlmeval") is None, reason="VLMEvalKit is not on the package index: docs/vlmevalkit.md")
OUTSIDE = pytest.mark.skipif(find_spec("vlmeval") is not None, reason="VLMEvalKit is here")


@pytest.fixture(scope="module")
def questions():
    return list(pope("adversarial", count=2))


@pytest.fixture(scope="module")
def files(questions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number, question in enumerate(questions):
        render(question.scene).save(folder / f"{number}.png")
    return [str(folder / f"{number}.png") for number in range(len(questions))]


@pytest.fixture(scope="module")
def plain():
    return VLMEvalKitModel("pocket/llava", method="vanilla", decoding=SHORT, device="cpu")


def message(files, text):
    return [*({"type": "image", "value": file} for file in files), {"type": "text", "value": text}]


@pytest.mark.parametrize("given", [{"method": "vanilla"}, {"method": "mgap", "alpha": 6}, {"method": "bias", "shift": -50.0}])
def test_messages_are_answered_as_the_model_answers_them_under_the_method(questions, files, given):
    texts = [question.text for question in questions]
    harness = VLMEvalKitModel("pocket/llava", decoding=SHORT, device="cpu", **given)
    found = [harness.generate_inner(message([file], text), "POPE") for file, text in zip(files, texts, strict=True)]
    model, method = ModelArguments.of("pocket/llava", {**given, "device": "cpu"}).load()
    plain = [answer.text for answer in model.answers(files, texts, batch_size=1, **SHORT)]
    with nullcontext() if method is None else model.using(method):
        assert found == [answer.text for answer in model.answers(files, texts, batch_size=1, **SHORT)]
    assert (found == plain) is (method is None)


@pytest.mark.parametrize("shown", [0, 2, 3])
def test_several_pictures_stand_before_the_text_and_none_is_text_alone(plain, questions, files, shown):
    text, pictures = questions[0].text, files[::5][:shown]
    assert len(pictures) == shown
    own = mgap.load("pocket/llava", device="cpu").answer(pictures or None, text, **SHORT)
    assert plain.generate_inner(message(pictures, text)) == own.text


def test_texts_are_joined_by_newlines(plain, questions, files):
    parts = [*message(files[:1], "Look."), {"type": "text", "value": questions[0].text, "role": "user"}]
    joined = message(files[:1], f"Look.\n{questions[0].text}")
    assert plain.generate_inner(parts) == plain.generate_inner(joined)


def test_an_empty_text_before_a_picture_is_no_text(plain, questions, files):
    whole = message(files[:1], questions[0].text)
    assert plain.generate_inner([{"type": "text", "value": ""}, *whole], "MMMU") == plain.generate_inner(whole)


def test_a_placeholder_in_the_text_is_refused(plain, files):
    with pytest.raises(PromptError, match="the prompt contains <image>"):
        plain.generate_inner(message(files[:1], "<image> Is there a dog?"))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (["text", "image"], "MMMU has a picture after text"),
        (["image", "text", "image", "text"], "MMMU has a picture after text"),
        (["video", "text"], "MMMU comes with video"),
        ([{"type": "text", "value": "You see.", "role": "system"}, "image", "text"], "MMMU sets role='system' in a message"),
        ([{"type": "image", "value": "a.png", "min_pixels": 9}, "text"], "MMMU sets min_pixels=9 in a message"),
    ],
)
def test_messages_that_cannot_be_asked_as_they_are_are_refused_by_name(plain, files, parts, why):
    values = {"image": files[0], "text": "Is there a dog?", "video": "clip.mp4"}
    whole = [part if isinstance(part, dict) else {"type": part, "value": values[part]} for part in parts]
    with pytest.raises(UnsupportedRequest, match=why):
        plain.generate_inner(whole, "MMMU")


def test_a_method_that_needs_one_picture_refuses_several(questions, files):
    vcd = VLMEvalKitModel("pocket/llava", method="vcd", decoding=SHORT, device="cpu")
    with pytest.raises(PromptError, match="vcd needs one picture"):
        vcd.generate_inner(message(files[:2], questions[0].text))


def test_conversations_are_refused_when_vlmevalkit_looks_for_them(plain):
    with pytest.raises(UnsupportedRequest, match="several rounds"):
        hasattr(plain, "chat_inner")


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "magic"},
        {"method": "vanilla", "alpha": 1},
        {"alhpa": 1},
        {"decoding": {"temprature": 1}},
        {"decoding": {"num_return_sequences": 2, "sample": True}},
        {"use_vllm": True},
    ],
)
def test_what_cannot_be_used_is_refused_at_registration_before_any_model_is_loaded(wrong):
    with pytest.raises(SettingError):
        register("ours", "no/such-model", **wrong)


def test_vllm_is_refused_where_vlmevalkit_would_leave_it_out(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "--model", "pocket-mgap", "--use-vllm"])
    with pytest.raises(SettingError, match="leave out use_vllm"):
        run()


@OUTSIDE
def test_without_vlmevalkit_it_is_said_where_it_is_found():
    for act in (lambda: register("ours", "pocket/llava"), run):
        with pytest.raises(MgapError, match="vlmeval is not installed: clone"):
            act()


def program(folder, *models, data="PocketPOPE"):
    """Run VLMEvalKit's own program on models of the example; returns all that it prints."""
    about = json.dumps({data: {"class": "ImageYORNDataset", "dataset": data}})
    words = ["--model", *models, "--data", data, "--data-config", about, "--judge", "exact_matching"]
    env = {**os.environ, "LMUData": str(folder / "LMUData"), "PRED_FORMAT": "tsv", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = processes.run([sys.executable, EXAMPLE / "run.py", *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def answers_of(folder, name, data="PocketPOPE"):
    (file,) = (folder / "outputs" / name).glob(f"*/{name}_{data}.tsv")
    return [row["prediction"] for row in csv.DictReader(file.open(newline=""), delimiter="\t")]


@INSIDE
def test_vlmevalkits_program_gives_the_answers_of_the_model_and_scores_them(tmp_path):
    command = [sys.executable, EXAMPLE / "make_data.py", "LMUData", "adversarial", "2"]
    processes.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
    program(tmp_path, "pocket-vanilla", "pocket-mgap-6")
    questions = list(pope("adversarial", count=2))
    shown, texts = [render(question.scene) for question in questions], [question.text for question in questions]
    how = {"batch_size": 1, "max_new_tokens": 32}
    for name, given in {"pocket-vanilla": {"method": "vanilla"}, "pocket-mgap-6": {"method": "mgap", "alpha": 6}}.items():
        model, method = ModelArguments.of("pocket/llava", given).load()
        with nullcontext() if method is None else model.using(method):
            direct = [answer.text for answer in model.answers(shown, texts, **how)]
        assert answers_of(tmp_path, name) == direct
        (file,) = (tmp_path / "outputs" / name).glob("*/*_score.csv")
        (overall,) = [row for row in csv.DictReader(file.open(newline="")) if row["split"] == "Overall"]
        right = [text.lower().startswith(question.label) for text, question in zip(direct, questions, strict=True)]
        assert float(overall["acc"]) == pytest.approx(100 * sum(right) / len(right))


@INSIDE
def test_vlmevalkits_program_shows_two_pictures_and_refuses_a_placeholder(tmp_path):
    encoded = runpy.run_path(str(EXAMPLE / "make_data.py"))["encoded"]
    questions = list(pope("adversarial", count=2))
    first, second = render(questions[0].scene), render(questions[-1].scene)
    (tmp_path / "LMUData").mkdir()
    asked = {"PairPOPE": questions[0].text, "HolePOPE": "<image> Is there a dog?"}
    for name, text in asked.items():
        with (tmp_path / "LMUData" / f"{name}.tsv").open("w", newline="") as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            table.writerow(["index", "image", "question", "answer", "category"])
            table.writerow([1, repr([encoded(first), encoded(second)]), text, "Yes", "pairs"])
    program(tmp_path, "pocket-vanilla", data="PairPOPE")
    own = mgap.load("pocket/llava").answer([first, second], asked["PairPOPE"], max_new_tokens=32)
    assert answers_of(tmp_path, "pocket-vanilla", "PairPOPE") == [own.text]
    assert "the prompt contains <image>" in program(tmp_path, "pocket-vanilla", data="HolePOPE")


@INSIDE
def test_a_name_that_vlmevalkit_has_is_refused():
    with pytest.raises(SettingError, match="has a model called 'Qwen3-VL-8B-Instruct' already"):
        register("Qwen3-VL-8B-Instruct", "pocket/llava")
