"""Every registered method in every decoding mode: it changes the tokens, or it is refused before one is made."""

from functools import cache

import pytest
import torch
from transformers import CompileConfig, TextIteratorStreamer

import mgap
from mgap.decoding.generate import generation_config
from mgap.errors import SettingError, UnsupportedDecoding
from mgap.methods.kinds.branch import PairedMethod
from mgap.registry import METHODS
from mgap.types import ALL_MODES, Decoding, Mode
from tests.methods.builders import build

QUESTIONS = ["Is there a dog?", "What?", "Describe what you can make out in this long and winding picture, please."]
NEW = 8


def ask(model, picture, **options):
    answer = model.answer(picture, QUESTIONS[0], max_new_tokens=NEW, **options)
    return [answer.token_ids, *(other.token_ids for other in answer.alternatives)]


def batch(model, picture):
    return [a.token_ids for a in model.answers([picture] * 3, QUESTIONS, batch_size=3, max_new_tokens=NEW)]


# mode -> what a user of mgap.load calls
CALLS = {
    Mode.GREEDY: lambda model, picture, draft: ask(model, picture),
    Mode.SAMPLE: lambda model, picture, draft: ask(model, picture, sample=True, seed=3),
    Mode.BEAM: lambda model, picture, draft: ask(model, picture, num_beams=3),
    Mode.STREAM: lambda model, picture, draft: list(model.stream(picture, QUESTIONS[0], max_new_tokens=NEW)),
    Mode.BATCH: lambda model, picture, draft: batch(model, picture),
    Mode.SEQUENCES: lambda model, picture, draft: ask(model, picture, sample=True, num_return_sequences=3),
    Mode.ASSISTED: lambda model, picture, draft: ask(model, picture, assistant=draft),
    Mode.STATIC: lambda model, picture, draft: ask(model, picture, static_cache=True),
    Mode.COMPILE: lambda model, picture, draft: ask(model, picture, compile=True),
}
# the same of a method that searches: several answers are its best beams
SEARCHED = {Mode.SEQUENCES: lambda model, picture, draft: ask(model, picture, num_beams=3, num_return_sequences=3)}

AS_GREEDY = (Mode.BATCH, Mode.STATIC, Mode.ASSISTED, Mode.COMPILE)  # other ways to the same tokens


def call_of(method, mode):
    return {**CALLS, **({} if Mode.SAMPLE in method.modes else SEARCHED)}[mode]


@pytest.fixture(scope="module")
def draft(family, checkpoints):
    return mgap.load(str(checkpoints[family]))


def test_there_is_a_call_for_every_mode():
    assert set(CALLS) == ALL_MODES


@pytest.fixture(scope="module")
def plainly(model, picture, draft):
    """What a call says without a method, found once; it must say the same twice."""
    said = {}

    def say(call):
        if call not in said:
            said[call] = call(model, picture, draft)
            assert call(model, picture, draft) == said[call], "the mode itself must be repeatable"
        return said[call]

    return say


@pytest.mark.usefixtures("uncompiled_graphs")
@pytest.mark.parametrize("mode", CALLS, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_changes_the_tokens_or_is_refused(model, prior, picture, draft, plainly, name, mode):
    method = build(name, prior)
    call = call_of(method, mode)
    if mode not in method.modes:
        with model.using(method), pytest.raises(UnsupportedDecoding, match=mode.value):
            call(model, picture, draft)
        call = CALLS[Mode.GREEDY]
        assert call(model, picture, draft) == plainly(call), "nothing may stay behind"
        return
    plain = plainly(call)
    with model.using(method):
        told = call(model, picture, draft)
        assert told != plain
        if mode in AS_GREEDY and Mode.GREEDY in method.modes:
            assert told[0] == CALLS[Mode.GREEDY](model, picture, draft)[0]
    assert call(model, picture, draft) == plain, "nothing may stay behind"


@pytest.mark.parametrize("name", METHODS.names())
def test_a_stream_says_what_greedy_says(model, prior, picture, name):
    method = build(name, prior)
    if not {Mode.STREAM, Mode.GREEDY} <= method.modes:
        return
    with model.using(method):
        pieces = list(model.stream(picture, QUESTIONS[0], max_new_tokens=NEW))
        assert "".join(pieces).strip() == model.answer(picture, QUESTIONS[0], max_new_tokens=NEW).text


def assert_rows_do_not_matter(model, picture, method):
    pictures = [picture, picture.rotate(90, expand=True), picture]
    with model.using(method):
        alone = [model.answer(p, q, max_new_tokens=NEW) for p, q in zip(pictures, QUESTIONS, strict=True)]
        together = list(model.answers(pictures, QUESTIONS, batch_size=3, max_new_tokens=NEW))
        backwards = list(model.answers(pictures[::-1], QUESTIONS[::-1], batch_size=3, max_new_tokens=NEW))[::-1]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert [a.token_ids for a in backwards] == [a.token_ids for a in alone]


@pytest.mark.each_kind
@pytest.mark.parametrize("name", METHODS.names())
def test_a_batch_of_mixed_lengths_gives_each_row_the_answer_it_has_alone(model, prior, picture, name):
    method = build(name, prior)
    if {Mode.BATCH, Mode.GREEDY} <= method.modes:
        assert_rows_do_not_matter(model, picture, method)


@pytest.mark.parametrize("preset", ["paper", "reference-code"])
def test_a_batch_of_mixed_lengths_at_the_published_strengths(model, prior, picture, preset):
    assert_rows_do_not_matter(model, picture, mgap.MGAP(prior, preset=preset))


def test_prompt_lookup_drafts_without_changing_the_answer(model, prior, picture):
    with model.using(build("mgap", prior)):
        greedy, looked_up = ask(model, picture)[0], ask(model, picture, prompt_lookup=3)[0]
    image_token = model.backbone.image_token_id  # lookup never drafts it; a random model may choose it
    until = greedy.index(image_token) if image_token in greedy else NEW
    assert looked_up[:until] == greedy[:until]


def test_sampling_follows_its_seed_and_leaves_the_callers_generator_alone(model, picture):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert ask(model, picture, sample=True, seed=1) == ask(model, picture, sample=True, seed=1)
    assert ask(model, picture, sample=True, seed=1) != ask(model, picture, sample=True, seed=2)
    assert torch.equal(torch.get_rng_state(), state)


# what people with their own transformers model pass to their own generate
OWN = {
    Mode.GREEDY: {"do_sample": False},
    Mode.SAMPLE: {"do_sample": True, "top_k": 0},
    Mode.BEAM: {"num_beams": 3, "do_sample": False},
    Mode.SEQUENCES: {"num_beams": 3, "num_return_sequences": 3, "do_sample": False},
    Mode.STATIC: {"cache_implementation": "static", "do_sample": False},
    Mode.COMPILE: {"cache_implementation": "static", "do_sample": False},
    Mode.STREAM: {"do_sample": False},
    Mode.BATCH: {"do_sample": False},
    Mode.ASSISTED: {"do_sample": False},
}


@pytest.fixture(scope="module")
def own_call(model, picture, draft):
    """By mode, what the model's own generate says; and the same for when it has no method, found once."""
    own, backbone = model.backbone.model, model.backbone

    def call(mode):
        rows = len(QUESTIONS) if mode is Mode.BATCH else 1
        options = dict(OWN[mode], max_new_tokens=NEW)
        if mode is Mode.COMPILE:
            options["compile_config"] = CompileConfig(backend="eager")
            options["compile_config"]._compile_all_devices = True
        if mode is Mode.ASSISTED:
            options["assistant_model"] = draft.backbone.model
        if mode is Mode.STREAM:
            options["streamer"] = TextIteratorStreamer(backbone.tokenizer, skip_prompt=True)
        torch.manual_seed(0)
        tokens = own.generate(**backbone.encode([picture] * rows, QUESTIONS[:rows]), **options)
        return list(options["streamer"]) if mode is Mode.STREAM else tokens.tolist()

    return call, cache(call)


ONE_BRANCH = [name for name in METHODS.names() if not issubclass(METHODS.get(name), PairedMethod)]


def own_case(name, mode):
    """MGAP compiled stands for the others, which are compiled elsewhere too."""
    is_twin = mode is Mode.COMPILE and name != "mgap" and mode in METHODS.get(name).modes
    return pytest.param(name, mode, id=f"{name}-{mode.value}", marks=[pytest.mark.product] if is_twin else [])


@pytest.mark.parametrize(("name", "mode"), [own_case(name, mode) for name in ONE_BRANCH for mode in OWN])
def test_a_method_on_somebodys_own_model_acts_in_their_own_generate(model, prior, own_call, name, mode):
    method = build(name, prior)
    call, plain = own_call
    last = mode if mode in method.modes else Mode.GREEDY
    said = plain(last)
    with mgap.attach(model if name in ("bias", "yes-if-close") else model.backbone.model, method):  # words need the tokenizer
        if mode in method.modes:
            assert call(mode) != said
        else:
            with pytest.raises(UnsupportedDecoding):
                call(mode)
    assert call(last) == said, "nothing may stay behind"


@pytest.mark.parametrize("end", [5, [7, 5]], ids=["one end", "two ends"])
def test_a_checkpoint_without_a_padding_token_is_filled_up_with_its_first_end(model, monkeypatch, end):
    own = model.backbone.model.generation_config
    assert generation_config(model.backbone, Decoding()).pad_token_id == own.pad_token_id is not None
    monkeypatch.setattr(own, "pad_token_id", None)
    monkeypatch.setattr(own, "eos_token_id", end)
    assert generation_config(model.backbone, Decoding()).pad_token_id == (end if isinstance(end, int) else end[0])


def test_transformers_own_loop_compiles_on_a_processor_only_when_it_is_asked_to(model):
    told = {mode: generation_config(model.backbone, Decoding.of(**{mode: True})) for mode in ("compile", "static_cache")}
    assert {config.cache_implementation for config in told.values()} == {"static"}
    assert told["compile"].compile_config._compile_all_devices
    assert (told["compile"].disable_compile, told["static_cache"].disable_compile) == (False, True)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"num_beams": 2, "prompt_lookup": 2}, {}),
        ({"static_cache": True, "prompt_lookup": 2}, {}),
        ({"num_beams": 2}, {"stream": True}),
        ({"prompt_lookup": 2}, {"rows": 2}),
    ],
)
def test_modes_that_exclude_each_other_are_refused(options, call):
    with pytest.raises(UnsupportedDecoding, match="cannot be combined"):
        Decoding(**options).modes(**call)


@pytest.mark.parametrize(
    "options",
    [{"max_new_tokens": 0}, {"temperature": 0.0, "sample": True}, {"top_p": 1.5, "sample": True}, {"temperature": 0.5},
     {"num_return_sequences": 2}, {"num_beams": 0}, {"temprature": 1}, {"temperature": float("nan"), "sample": True},
     {"seed": -1}, {"min_p": 1.0, "sample": True}, {"min_p": -0.1, "sample": True}, {"min_p": float("nan"), "sample": True},
     {"min_p": True, "sample": True}, {"min_p": 0.2}],
)  # fmt: skip
def test_a_decoding_option_out_of_range_is_refused(options):
    with pytest.raises(SettingError):
        Decoding.of(**options)
