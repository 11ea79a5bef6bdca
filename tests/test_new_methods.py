"""A new method of each kind is one file and one entry point: every verb and every property of the registry follows."""

import json

import pytest
import torch

from mgap.errors import UnsupportedDecoding
from mgap.registry import METHODS
from mgap.types import Mode
from tests.packages import installed

FILES = {
    "cool": '''
        """At the head: shrink all logits."""
        from dataclasses import dataclass
        from typing import ClassVar

        from mgap.methods.kinds.head import HeadMethod
        from mgap.priors.subspace import Subspace


        @dataclass(frozen=True)
        class New(HeadMethod):
            name: ClassVar[str] = "cool"
            summary: ClassVar[str] = "take the prior's mean direction out of the logits"
            zero: ClassVar[dict] = {"strength": 0.0}
            needs: ClassVar[dict] = {}
            moved_by: ClassVar[str] = "strength"

            prior: Subspace
            strength: float = 1.0

            def correction(self, backbone, head, tap):
                v = self.prior.basis[:, :1].to(head.device, head.wide)
                table = head.table(v)

                def act(_module, args, output):
                    if self.strength == 0:
                        return output
                    return (output.to(head.wide) - self.strength * (args[0].to(v) @ v) @ table).to(output.dtype)

                return act

            def effective_states(self, head, seen, strength):
                v = self.prior.basis[:, :1].to(seen.h)
                return seen.h - strength * (seen.h @ v) @ v.T
    ''',
    "grey": '''
        """A second branch: contrast with a picture without contrast."""
        from dataclasses import dataclass
        from typing import ClassVar

        from mgap.methods.kinds.branch import BranchMethod, contrast


        @dataclass(frozen=True)
        class New(BranchMethod):
            name: ClassVar[str] = "grey"
            summary: ClassVar[str] = "contrast with a grey picture"
            zero: ClassVar[dict] = {"alpha": 0.0}
            moved_by: ClassVar[str] = "alpha"

            alpha: float = 2.0

            def branch(self, backbone, main):
                return {**main, **{key: main[key] * 0 for key in backbone.pixel_keys}}

            def combine(self, main, branch, step):
                return contrast(main, branch, self.alpha, 0.0), {}
    ''',
    "recall": '''
        """Earlier layers: add what the middle of the model says."""
        from dataclasses import dataclass
        from typing import ClassVar

        import torch

        from mgap.methods.head_inputs import mix_states
        from mgap.methods.kinds.layers import Combined, LayersMethod


        @dataclass(frozen=True)
        class New(LayersMethod):
            name: ClassVar[str] = "recall"
            summary: ClassVar[str] = "add the middle layer"
            zero: ClassVar[dict] = {"weight": 0.0}
            moved_by: ClassVar[str] = "weight"
            is_normed = True

            weight: float = 3.0

            def early_layers(self, count, head):
                return (count // 2,)

            def combine(self, final, early):
                return Combined(final + self.weight * early[0], torch.zeros_like(final[..., 0], dtype=torch.long), dict)

            def effective_states(self, head, seen, strength):
                return mix_states(self.name, head, (1.0, strength), (seen.h, seen.anchor))
    ''',
    "stare": '''
        """In attention: look harder at the picture."""
        from dataclasses import dataclass
        from typing import ClassVar

        from mgap.methods.kinds.attention import AttentionMethod


        @dataclass(frozen=True)
        class New(AttentionMethod):
            name: ClassVar[str] = "stare"
            summary: ClassVar[str] = "add a constant to the scores of the picture's keys"
            zero: ClassVar[dict] = {"gain": 0.0}
            no_state: ClassVar[str] = "changes attention, which no one state undoes"

            gain: float = 8.0

            def edit_scores(self, scores, keys):
                return scores + self.gain * keys.images[:, None, None, :]
    ''',
}
NAMES = list(FILES)
QUESTION = "Is there a dog in the image?"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    modules = {f"new_{name}": text for name, text in FILES.items()}
    with installed(tmp_path_factory.mktemp("site") / "new", modules, {"mgap.methods": {n: f"new_{n}:New" for n in FILES}}):
        yield


def built(name, prior, **settings):
    method = METHODS.get(name)
    return method.of(**({"prior": prior} if method.takes_prior() else {}), **settings)


def logits(model, inputs):
    with torch.no_grad():
        return model.backbone.model.generate(
            **inputs, max_new_tokens=1, do_sample=False, output_logits=True, return_dict_in_generate=True
        ).logits[0]


def test_all_are_listed_with_their_cost(package, run):
    status, out, told = run("ls", "methods")
    assert status == 0, told
    for name in NAMES:
        assert name in out


@pytest.mark.parametrize("name", NAMES)
def test_ask_answers_with_it(package, run, tiny, picture_file, name):
    words = ["ask", picture_file, QUESTION, "--model", tiny, "--method", name, "--max-new-tokens", 3, "--json"]
    status, out, told = run(*words)
    assert status == 0, told
    assert json.loads(out)["method"] == name
    status, _, told = run(*words, "--set", "no_such_setting=1")
    assert status == 2
    assert "no_such_setting" in told


@pytest.mark.long
def test_a_run_compares_them_and_a_diagnosis_measures_those_that_have_a_state(package, run, tiny, tmp_path):
    methods = [word for name in ["vanilla", *NAMES] for word in ("--method", name)]
    common = ["--model", tiny, "--dataset", "pocket", "--scenes", 2]
    status, out, told = run("run", "pope", *common, *methods, "--out", tmp_path / "run")
    assert status == 0, told
    assert all(f"| {name} |" in out for name in NAMES)
    stateful = [word for name in ["vanilla", "cool", "grey", "recall"] for word in ("--method", name)]
    status, out, told = run("diagnose", *common, *stateful, "--bank", 20, "--out", tmp_path / "diagnosis")
    assert status == 0, told
    assert all(name in out for name in ("cool", "grey", "recall"))
    status, _, told = run("diagnose", *common, "--method", "vanilla", "--method", "stare", "--out", tmp_path / "none")
    assert status == 2
    assert "stare" in told


@pytest.mark.parametrize("name", NAMES)
def test_its_zero_is_plain_decoding_its_strength_is_not_and_nothing_stays_behind(package, model, prior, picture, name):
    backbone = model.backbone
    inputs = backbone.encode([picture], [QUESTION])
    plain = logits(model, inputs)
    hooks = {module: len(module._forward_hooks) + len(module._forward_pre_hooks) for module in backbone.model.modules()}
    with model.using(built(name, prior, **METHODS.get(name).zero)):
        torch.testing.assert_close(logits(model, inputs), plain, rtol=1e-5, atol=1e-5)
    with model.using(built(name, prior)):
        assert not torch.allclose(logits(model, inputs), plain, atol=1e-3)
        alone = [model.answer(picture, text, max_new_tokens=4).token_ids for text in (QUESTION, "What is it?")]
        together = model.answers([picture, picture], [QUESTION, "What is it?"], max_new_tokens=4)
        assert [answer.token_ids for answer in together] == alone
    assert torch.equal(logits(model, inputs), plain)
    now = {module: len(module._forward_hooks) + len(module._forward_pre_hooks) for module in backbone.model.modules()}
    assert now == hooks


@pytest.mark.parametrize("name", NAMES)
def test_every_mode_works_or_is_refused_as_declared(package, model, prior, picture, name):
    options = {Mode.BEAM: {"num_beams": 2}, Mode.SAMPLE: {"sample": True}, Mode.ASSISTED: {"prompt_lookup": 2}}
    with model.using(built(name, prior)):
        for mode, given in options.items():
            if mode in METHODS.get(name).modes:
                assert model.answer(picture, QUESTION, max_new_tokens=3, **given).token_ids
            else:
                with pytest.raises(UnsupportedDecoding, match=f"{name} does not work with {mode.value}"):
                    model.answer(picture, QUESTION, max_new_tokens=3, **given)
