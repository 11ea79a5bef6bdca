"""A stated template: prompts are written as a text with places for the question and the picture says."""

import json
import shutil

import pytest
import torch

import mgap
from mgap.backbones.template_rendering import chat_template
from mgap.errors import PromptError, SettingError
from mgap.methods.nullu_export import export

WRITTEN = {
    "llava": "USER: {image}\n{question} ASSISTANT:",
    "qwen3-vl": "<|im_start|>user\n{image}{question}<|im_end|>\n<|im_start|>assistant\n",
}
QUESTIONS = ["Is there a dog?", 'Quotes " \\ and {braces}, {{ both }} and {% kinds %}, 你好 🙂\nin two lines']


@pytest.fixture
def bare(family, checkpoints, tmp_path):
    """A checkpoint that lost its template, of a family that declares none: of another model type's class."""
    folder = shutil.copytree(checkpoints[family], tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    return folder


@pytest.fixture
def without_fallback(model, monkeypatch):
    monkeypatch.setattr(type(model.backbone), "fallback_template", None)


@pytest.mark.both_families
def test_a_checkpoint_without_a_template_reads_what_the_stated_one_says(
    bare, without_fallback, family, model, picture, monkeypatch
):
    stated = mgap.load(str(bare), template=WRITTEN[family])
    monkeypatch.undo()  # the other model has its family's template in any case
    images = [picture, None, [picture, picture]]
    for question in QUESTIONS:
        for image in images:
            ours, theirs = (m.backbone.encode([image], [question])["input_ids"] for m in (stated, model))
            assert m_text(stated, ours).replace(" ", "") == m_text(model, theirs).replace(" ", "")  # LLaVA's has one more
    assert stated.answer(picture, QUESTIONS[0], max_new_tokens=3).prompt == WRITTEN[family].replace(
        "{image}", stated.backbone.placeholder
    ).replace("{question}", QUESTIONS[0])


def m_text(model, ids):
    return model.backbone.tokenizer.decode(ids[0])


@pytest.mark.both_families
def test_a_model_without_any_template_is_refused_before_its_weights_are_read(bare, without_fallback):
    for weights in bare.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(
        PromptError, match=r"no chat template.*template='USER: \{image\}\\n\{question\} ASSISTANT:' \(--template"
    ):
        mgap.load(str(bare))


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("USER: {image} what?", "must have {question} in one place"),
        ("{image}{question}{question}", "must have {question} in one place"),
        (3, "must have {question} in one place"),
        ("USER: {question}", "must have {image} in one place"),
        ("{image}{image}{question}", "must have {image} in one place"),
        ("<image>{image}{question}", "must have {image} in one place"),
    ],
)
def test_a_template_without_its_places_is_refused_before_weights_are_read(checkpoints, tmp_path, stated, said):
    folder = shutil.copytree(checkpoints["llava"], tmp_path / "weightless")
    (folder / "model.safetensors").unlink()
    with pytest.raises(SettingError) as caught:
        mgap.load(str(folder), template=stated)
    assert said in str(caught.value)


def test_the_model_s_own_placeholder_may_be_written(checkpoints, picture):
    written = [mgap.load(str(checkpoints["llava"]), template=f"A: {place} {{question}}") for place in ("<image>", "{image}")]
    assert written[0].backbone.template == written[1].backbone.template
    assert written[0].backbone.render("What?") == "A: <image> What?"
    assert written[0].backbone.render("What?", pictures=0) == "A: What?"


def test_a_stated_template_takes_the_place_of_the_checkpoint_s_own(checkpoints, model, family, picture):
    stated = mgap.wrap(
        model.backbone.model, mgap.load(str(checkpoints[family])).backbone.processor, template="{image}{question}"
    )
    assert stated.backbone.template != model.backbone.template
    assert stated.backbone.template_hash() != model.backbone.template_hash()
    assert stated.answer(picture, "What?", max_new_tokens=2).prompt == f"{stated.backbone.placeholder}What?"


def test_a_prior_notes_the_stated_template(checkpoints):
    prompts = list(mgap.default_prompts())[:12]
    plain, stated = (mgap.load(str(checkpoints["llava"]), template=one) for one in (None, "{image} Q: {question} A:"))
    noted = [mgap.Subspace.fit(one, prompts, rank=2).origin["template_sha256"] for one in (plain, stated)]
    assert noted == [plain.backbone.template_hash(), stated.backbone.template_hash()]
    assert len(set(noted)) == 2


def test_it_has_one_turn_and_no_system_text(checkpoints, picture):
    model = mgap.load(str(checkpoints["llava"]), template="{image}{question}")
    with pytest.raises(PromptError, match="no system role"):
        model.backbone.render("What?", system="Be brief.")


def test_a_text_without_its_picture_is_read_by_branches(checkpoints, picture):
    model = mgap.load(str(checkpoints["llava"]), template="Look: {image}\n{question} Answer:")
    inputs = model.backbone.encode([picture], ["Is it?"])
    branch = mgap.Blind(null_image="no_image").branch(model.backbone, inputs)
    assert torch.equal(branch["input_ids"], model.backbone.blind(["Is it?"], "no_image")["input_ids"])


def test_an_exported_checkpoint_has_the_stated_template(checkpoints, tmp_path):
    model = mgap.load(str(checkpoints["llava"]), template="Look: {image}\n{question} Answer:")
    drawn = torch.randn(2, 12, 3, 64, generator=torch.Generator().manual_seed(0))
    export(model, mgap.Nullu(space=mgap.NullSpace.from_states(*drawn, rank=4, start=0)), tmp_path / "out")
    assert mgap.load(str(tmp_path / "out")).backbone.render("Is it?") == "Look: <image>\nIs it? Answer:"


def test_the_chat_template_is_a_program_of_literals_only():
    written = chat_template('{{ 7*7 }} "{image}\n" {question} %}', "<image>", "x")
    assert json.dumps('{{ 7*7 }} "') in written


def test_the_command_line_takes_it(run, checkpoints, picture_file):
    words = [
        "ask",
        picture_file,
        "What?",
        "--model",
        checkpoints["llava"],
        "--method",
        "vanilla",
        "--json",
        "--max-new-tokens",
        2,
    ]
    status, out, _ = run(*words, "--template", r"{image}\n{question}")
    assert (status, json.loads(out)["prompt"]) == (0, "<image>\nWhat?")
    status, _, err = run(*words, "--template", "What?")
    assert status == 2
    assert "must have {question} in one place" in err
    assert "loading" not in err


def test_a_run_remembers_it(run, checkpoints, tmp_path):
    words = ["run", "pope", "--model", checkpoints["llava"], "--dataset", "pocket", "--scenes", 2, "--split", "random"]
    words += ["--method", "vanilla", "--decoding", "max_new_tokens=2", "--out", tmp_path / "out"]
    template = ["--template", "{image} Q: {question} A:"]
    assert run(*words, *template)[0] == 0
    records = (tmp_path / "out" / "run.json").read_text()
    assert json.loads(records)["template"] == template[1]
    status, _, err = run(*words)
    assert status == 2
    assert "its answers were made with template" in err
    assert run(*words, *template)[0] == 0


def test_the_doctor_shows_how_prompts_are_written(run, checkpoints):
    status, out, _ = run("doctor", checkpoints["llava"], "--template", r"{image}\nQ: {question} A:", "--json")
    assert status == 0
    assert "<image>\\nQ: ... A:', with the question at ..." in json.loads(out)["model"]["prompts"]
