"""Hostile checkpoints: whatever is in their files, the model answers, or there is an error of ours; never a hang."""

import json
import shutil

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import mgap
from mgap.backbones import template_rendering
from tests.fuzz.damage import Refused, cases, damaged_bytes, damaged_value, json_files, outcome

FILES = ("config.json", "generation_config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json")
QUESTION = "Is there a dog in the picture?"


@pytest.fixture(scope="module", autouse=True)
def impatient():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_rendering, "SECONDS", 1.0)
        yield


@pytest.fixture(scope="module")
def copied(place, checkpoints):
    """A fresh copy of the tiny checkpoint: a function."""

    def copy():
        shutil.rmtree(place / "hostile", ignore_errors=True)
        return shutil.copytree(checkpoints["llava"], place / "hostile")

    return copy


def ask(folder, picture, **options):
    model = mgap.load(str(folder))
    return model.answer(picture, QUESTION, max_new_tokens=2, **options)


def check(found):
    assert isinstance(found, Refused) or 0 < len(found.token_ids) <= 2


@cases(12)
@given(st.sampled_from(FILES), st.booleans(), st.data())
def test_any_json_of_a_checkpoint(copied, picture, name, static, data):
    folder = copied()
    whole = json.loads((folder / name).read_text())
    (folder / name).write_bytes(data.draw(json_files(whole) if name != "tokenizer.json" else damaged_value(whole).map(_bytes)))
    check(outcome(ask, folder, picture, static_cache=static))


def _bytes(value):
    return json.dumps(value).encode("utf-8", "surrogatepass")


@cases(8)
@given(st.sampled_from((float("nan"), float("inf"), -float("inf"), 1e38, 0.0)), st.integers(0, 10**6), st.booleans(), st.data())
@example(float("nan"), 0, False, None)
def test_any_weight(copied, picture, value, place, everywhere, data):
    folder = copied()
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[0] if data is None else data.draw(st.sampled_from(sorted(tensors)))
    changed = tensors[name].clone().flatten()
    changed[slice(None) if everywhere else place % len(changed)] = value
    save_file({**tensors, name: changed.view(tensors[name].shape)}, folder / "model.safetensors", metadata={"format": "pt"})
    check(outcome(ask, folder, picture))


@pytest.mark.long
@cases(8)
@given(st.sampled_from(("rows", "columns", "gone", "more", "integers", "half")), st.data())
def test_any_shape_of_a_weight(copied, picture, kind, data):
    folder = copied()
    tensors = load_file(folder / "model.safetensors")
    name = data.draw(st.sampled_from(sorted(tensors)))
    weight = tensors.pop(name)
    match kind:
        case "rows":
            tensors[name] = weight[: len(weight) // 2].contiguous()
        case "columns":
            tensors[name] = weight[..., :1].contiguous()
        case "more":
            tensors[name] = torch.cat([weight, weight])
        case "integers":
            tensors[name] = weight.to(torch.int32)
        case "half":
            tensors[name] = weight.half()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    check(outcome(ask, folder, picture))


@pytest.mark.long
@cases(6)
@given(st.data())
def test_any_byte_of_the_weights(copied, picture, data):
    folder = copied()
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data.draw(damaged_bytes(whole)))
    check(outcome(ask, folder, picture))


NAMES = st.sampled_from(
    ("messages", "messages[0]", "messages[0].content", "bos_token", "nothing", "loop", "a", "self", "lipsum")
)
NUMBERS = st.sampled_from(("0", "1", "3", "300", "99999", "10**12", "-1", "'x'", "none"))
VALUES = st.recursive(
    st.one_of(NAMES, NUMBERS),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from((" + ", " ~ ", " // ", " in ", " == ")), inner).map("".join),
        st.tuples(
            inner, st.sampled_from(("|length", "|tojson", "|first", "|join", "|upper", "[0]", ".text", ".__class__", "()"))
        ).map("".join),
        inner.map("range({})".format),
        inner.map("raise_exception({})".format),
    ),
    max_leaves=3,
)
TEMPLATES = st.recursive(
    st.one_of(
        st.sampled_from(
            ("USER: ", "<image>\n", "{{ messages[0].content[-1].text }}", "{{ bos_token }}", "ASSISTANT:", "{%", "{{ }}", "{#")
        ),
        VALUES.map("{{{{ {} }}}}".format),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.tuples(VALUES, inner).map(lambda pair: f"{{% for a in {pair[0]} %}}{pair[1]}{{% endfor %}}"),
        st.tuples(VALUES, inner).map(lambda pair: f"{{% if {pair[0]} %}}{pair[1]}{{% endif %}}"),
        st.tuples(VALUES, inner).map(lambda pair: f"{{% set a = {pair[0]} %}}{pair[1]}"),
        inner.map(lambda text: f"{{% macro f() %}}{text}{{{{ f() }}}}{{% endmacro %}}{{{{ f() }}}}"),
    ),
    max_leaves=6,
)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a template that is stopped in such a place
@cases(20)
@given(st.booleans(), TEMPLATES)
@example(True, "{% for a in range(99999) %}{% for a in range(99999) %}{% endfor %}{% endfor %}")
def test_any_chat_template(model, picture, shown, template):
    before = model.backbone.processor.chat_template
    model.backbone.processor.chat_template = template
    try:
        check(outcome(model.answer, picture if shown else None, QUESTION, max_new_tokens=2))
    finally:
        model.backbone.processor.chat_template = before
