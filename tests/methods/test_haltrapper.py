"""HalTrapper: against itself written out, searched once a picture, at the right place, plain where nothing is found."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import mgap
from mgap.backbones.base import Backbone
from mgap.errors import ModelError, PromptError, SettingError
from mgap.methods.haltrapper.candidates import (
    DIRECTIONS,
    IMAGINE,
    CandidateRules,
    parse_reply,
    score_expansion,
    select,
)
from mgap.methods.haltrapper.grounding import ImageWeights, ground
from mgap.methods.haltrapper.haltrapper import spell_words
from mgap.methods.kinds.attention_interceptor import ARGUMENT, MASKED, attend
from mgap.methods.kinds.description import CAPTION
from mgap.methods.kinds.paired_forward import ALONE
from mgap.methods.kinds.per_picture import pictures_of, render
from mgap.pocket.scenes import make_scene
from mgap.pocket.scenes import render as draw
from mgap.priors.object_words import Vocabulary
from tests.methods.following import NEW, QUESTIONS, follow, rows_read
from tests.methods.test_code import Count, pair
from tests.reference import contrast
from tests.reference import haltrapper as reference

WORDS = ("dog", "cat", "dining table")
SAID = "There is a dog beside two cats, and a person with an umbrella."
THINGS = {"dog": (), "cat": (), "person": (), "umbrella": (), "bus": (), "cup": ("mug",), "mug": (), "bed": ()}
POCKET = dict.fromkeys(
    ("cup", "chair", "bed", "vase", "cat", "laptop", "book", "person", "dog", "bus", "skis", "snowboard", "train", "airplane"),
    (),
)
LENGTH = 16


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.fixture(scope="module")
def pocket(family):
    """A trained one: its captions name things."""
    return mgap.load(f"pocket/{family}", dtype=torch.float32)


@pytest.fixture(scope="module")
def scenes():
    return [draw(make_scene(number)) for number in (1, 2)]


def shown(model, picture):
    """The picture as a search sees it."""
    return pictures_of(model.backbone, model.backbone.encode([picture], ["What?"]))[0][0]


class Scripted:
    """While entered, the model says what it is told to where a prompt asks to imagine; elsewhere what it wants."""

    def __init__(self, model, replies):
        self.backbone, self.replies, self.asked = model.backbone, replies, []

    def __enter__(self):
        self.handle = self.backbone.model.register_forward_hook(self.speak, with_kwargs=True)
        return self

    def speak(self, _model, _args, kwargs, output):
        tokenizer = self.backbone.tokenizer
        if kwargs["input_ids"].shape[1] > 1:
            texts = tokenizer.batch_decode(kwargs["input_ids"])
            self.asked = [[d for d in DIRECTIONS if f"in the {d} outside" in text] for text in texts]
            self.rest = [tokenizer(self.replies[d[0]], add_special_tokens=False)["input_ids"] if d else [] for d in self.asked]
        for row, directions in enumerate(self.asked):
            if directions:
                token = self.rest[row].pop(0) if self.rest[row] else tokenizer.eos_token_id
                output.logits[row, -1] = torch.zeros_like(output.logits[row, -1]).index_fill(0, torch.tensor(token), 9.0)

    def __exit__(self, *_):
        self.handle.remove()


# --- decoding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({}, contrast.contrastive(1.0, 0.1)),
        ({"alpha": 3.0, "beta": 0.0, "repeats": 2}, contrast.contrastive(3.0, 0.0)),
        ({"alpha": 2.0, "form": "augmentive"}, reference.augmenting(2.0, 0.1)),
    ],
    ids=["default", "repeated", "augmentive"],
)
def test_it_is_what_its_equation_says(exact, picture, settings, step):
    words = [word for word in WORDS for _ in range(settings.get("repeats", 1))]

    def branch(_main, question):
        return reference.behind_the_picture(exact.backbone, picture, question, words)

    follow(exact, picture, mgap.HalTrapper(candidates=WORDS, **settings), branch, step)


def test_with_its_own_search_it_decodes_as_written_out(exact, picture):
    method = mgap.HalTrapper(alpha=3.0, n=4, length=6, seed=7, vocabulary=THINGS)
    caption, ee, ig = reference.betray(exact, picture, THINGS, 6)
    words = reference.choose(reference.named(caption, THINGS), ee, ig, THINGS, tau_ig=0.75, tau_ee=1.0, n=4, seed=7)
    assert len(words) == 4

    def branch(_main, question):
        return reference.behind_the_picture(exact.backbone, picture, question, words)

    follow(exact, picture, method, branch, contrast.contrastive(3.0, 0.1))


def test_zero_strength_says_what_the_model_says(exact, picture):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.HalTrapper(alpha=0.0, length=4)):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


def test_rows_of_any_length_read_what_they_would_read_alone(exact, picture):
    pictures = [*pair(picture), picture]
    main = exact.backbone.encode(pictures, QUESTIONS[:3])
    branch = mgap.HalTrapper(candidates=WORDS).branch(exact.backbone, main)
    assert branch["pixel_values"] is main["pixel_values"]
    assert not branch[ALONE].any()
    for row in range(3):
        alone = reference.behind_the_picture(exact.backbone, pictures[row], QUESTIONS[row], WORDS)
        length = alone["input_ids"].shape[1]
        for key in {"input_ids", "attention_mask", "mm_token_type_ids"} & set(main):
            assert torch.equal(branch[key][row, -length:], alone[key][0])
        assert not branch["attention_mask"][row, :-length].any()


def test_the_words_stand_before_the_marker_that_closes_the_picture(exact, picture):
    backbone = exact.backbone
    main = backbone.encode([picture], ["What?"])
    (before,), (after,) = (
        rows["input_ids"].tolist() for rows in (main, mgap.HalTrapper(candidates=WORDS).branch(backbone, main))
    )
    last = max(n for n, token in enumerate(before) if token == backbone.image_token_id)
    words = backbone.tokenizer(" dog cat dining table", add_special_tokens=False)["input_ids"]
    assert after == before[: last + 1] + words + before[last + 1 :]
    if backbone.config.model_type == "qwen3_vl":
        assert before[last + 1] == backbone.config.vision_end_token_id


def test_positions_count_the_words(exact, picture):
    """In the first forward the branch's row is as far on as its words are many, in every part of the position."""
    seen = []
    handle = exact.backbone.language.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["position_ids"]), with_kwargs=True
    )
    with exact.using(mgap.HalTrapper(candidates=WORDS)):
        exact.answer(picture, "What?", max_new_tokens=3)
    handle.remove()
    count = len(spell_words(exact.backbone, WORDS))
    for positions in seen[:3]:
        last = positions[..., -1]  # [..., rows]
        assert (last[..., 1] - last[..., 0] == count).all()


# --- what is found ----------------------------------------------------------------------------------------------


def test_the_search_is_what_it_is_written_out(pocket):
    scene = draw(make_scene(5))  # a cell phone, an airplane, a chair and a train
    caption, ee = reference.describe(pocket, scene, reference.CAPTION, 32), {}  # its replies do not keep to the format
    ig = reference.grounding(pocket, scene, caption, POCKET)
    assert len(ig) > 2
    rules = {"tau_ig": min(ig.values()) + 1e-3, "tau_ee": 1.0, "n": 5, "seed": 3}
    found = mgap.HalTrapper(vocabulary=POCKET, length=32, **rules).search(pocket, scene)
    assert (found.caption, found.expansion) == (caption, ee)
    assert list(found.grounding) == list(ig)
    assert found.grounding == pytest.approx(ig, abs=1e-5)
    words = reference.choose(reference.named(caption, POCKET), ee, ig, POCKET, **rules)
    assert list(found.candidates) == words
    assert 0 < len(set(words) & set(ig)) < len(ig)


def test_a_caption_is_grounded_in_the_attention_that_predicted_it(exact, picture):
    expected = reference.grounding(exact, picture, SAID, THINGS)
    assert list(expected) == ["dog", "cat", "person", "umbrella"]
    text = render(exact.backbone, CAPTION)
    found = ground(exact.backbone, shown(exact, picture), text, SAID, Vocabulary(THINGS))
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(value, 4) for value in found.values()}) == 4


def test_a_thing_is_grounded_where_it_is_named_first(exact, picture):
    text, seen, things = render(exact.backbone, CAPTION), shown(exact, picture), Vocabulary(THINGS)
    once = ground(exact.backbone, seen, text, "A dog. A cat.", things)
    again = ground(exact.backbone, seen, text, "A dog. A cat. A dog.", things)
    assert list(again) == list(once)
    rows = reference.grounding(exact, picture, "A dog. A cat. A dog.", THINGS)
    assert again == pytest.approx(rows, abs=1e-5)


def test_a_model_that_has_nothing_to_add_grounds_nothing(exact, picture):
    backbone = exact.backbone

    def stop(_model, _args, output):
        output.logits[..., backbone.tokenizer.eos_token_id] = 1e4

    seen, text = shown(exact, picture), render(backbone, CAPTION)
    with Count(backbone.language) as runs:
        handle = backbone.model.register_forward_hook(stop)
        assert ground(backbone, seen, text, SAID, Vocabulary(THINGS)) == {}
        handle.remove()
        assert runs.runs == 1
        assert ground(backbone, seen, text, "Nothing at all.", Vocabulary(THINGS)) == {}
        assert runs.runs == 1, "a caption without things needs no forward"
    assert ground(backbone, seen, text, SAID, Vocabulary(THINGS))


def test_a_caption_that_spells_the_placeholder_shows_no_picture(exact, picture):
    name = exact.backbone.tokenizer.convert_ids_to_tokens(exact.backbone.image_token_id)
    text, seen, things = render(exact.backbone, CAPTION), shown(exact, picture), Vocabulary(THINGS)
    assert ground(exact.backbone, seen, text, f"{name}A dog.", things) == ground(exact.backbone, seen, text, "A dog.", things)


REPLIES = {
    "top": "Imagination: a bus\nReason: The image features a dog and a cat, which suggests that a bus is above.",
    "bottom": "Imagination: cups\nReason: The image features a bed, it might be that a bus indicates that all is well.",
    "left side": "Imagination: bus\nReason: The image shows a person.",
    "right side": "I cannot imagine a bed.",
    "top left corner": "Imagination: dog",
    "top right corner": "Imagination: bus\nReason: A cat\nwhich suggests that a dog is near.",
    "bottom left corner": "",
    "bottom right corner": "Imagination: cup\nReason: A bus, a dog and a bus: it is likely that a cup stands there.",
}


def test_replies_in_the_format_are_weighed_direction_by_direction(exact, picture):
    method = mgap.HalTrapper(vocabulary=THINGS, n=0, length=120)
    with Scripted(exact, REPLIES) as script:
        found = method.search(exact, picture)
        assert script.asked == [[direction] for direction in DIRECTIONS], "eight rows of one batch"
    expected = reference.expansion(REPLIES.values(), THINGS)
    assert found.expansion == expected == {"bus": -3, "dog": 2, "cat": 2, "cup": -2, "bed": 1, "person": 1}
    assert list(found.expansion) == list(expected)
    assert found.candidates == ("bus", "cup")
    with Scripted(exact, REPLIES), exact.using(method):
        changed = exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    with exact.using(mgap.HalTrapper(candidates=("bus", "cup"))):
        assert exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids == changed
    assert exact.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids != changed


@pytest.mark.parametrize("reply", [*REPLIES.values(), "Well. Imagination: dog\nReason: a cat"])
def test_a_reply_is_cut_as_by_hand(reply):
    assert parse_reply(reply) == reference.parse(reply)


def test_replies_that_do_not_parse_count_for_nothing():
    assert score_expansion(["", "a dog", "Reason: a dog\nImagination: a cat"], Vocabulary(THINGS)) == {}


def test_the_eight_prompts_are_the_authors_own():
    assert [IMAGINE.format(direction=d) for d in DIRECTIONS] == [reference.IMAGINE.format(d) for d in reference.WHERE]


@pytest.mark.parametrize("n", [0, 1, 3, 5, 8, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_candidates_are_chosen_as_by_hand(n, seed):
    ee, ig = {"bus": -3, "dog": 0, "cup": -2, "person": -2}, {"person": 0.9, "cat": 0.76, "dog": 0.75}
    rules = {"tau_ig": 0.75, "tau_ee": 1.0, "n": n, "seed": seed}
    chosen = select(ig, ee, ig, Vocabulary(THINGS), CandidateRules(**rules))
    assert list(chosen) == reference.choose(ig, ee, ig, THINGS, **rules)
    assert len(chosen) <= n or n == 0
    assert "mug" not in chosen, "a synonym of what was seen does not fill up"


def test_equal_scores_keep_the_order_in_which_they_were_seen():
    rules, things = CandidateRules(0.75, 0.0, 1, 0), Vocabulary(THINGS)
    assert select([], {"bus": -1, "bed": -5}, {}, things, rules) == ("bus",)
    assert select([], {"bed": -5, "bus": -1}, {}, things, rules) == ("bed",)
    assert select([], {"bed": -5}, {"bus": 0.8}, things, rules) == ("bus",)


# --- once a picture, whatever the batch -------------------------------------------------------------------------


def test_a_picture_is_searched_once(exact, picture):
    method = mgap.HalTrapper(length=4, n=2)
    with exact.using(method):
        for searched in (True, False, False):
            with Count(exact.backbone.model) as model:
                exact.answer(picture, QUESTIONS[searched], max_new_tokens=1)
            assert (model.runs > 1) == searched
    with exact.using(method), Count(exact.backbone.model) as model:
        exact.answer(picture, QUESTIONS[0], max_new_tokens=1)
        assert model.runs > 1, "nothing is kept from one attachment to the next"


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        pytest.param({}, {}, marks=pytest.mark.product),
        *(
            pytest.param(settings, {"num_beams": 2}, marks=[pytest.mark.product, pytest.mark.one_family])
            for settings in ({"branch_mode": "sequential"}, {"seed": 5})
        ),
    ],
    ids=str,
)
def test_neither_the_batch_nor_its_order_changes_a_row(pocket, scenes, settings, options):
    method = mgap.HalTrapper(alpha=2.0, length=LENGTH, n=4, **settings)
    asked = {"max_new_tokens": NEW, **options}
    told = []
    for order in ([0, 1], [1, 0]):
        with pocket.using(method):
            rows = [(scenes[n], QUESTIONS[n]) for n in order]
            answers = list(pocket.answers(*zip(*rows, strict=True), batch_size=2, **asked))
        told.append([answers[order.index(n)].token_ids for n in range(2)])
    with pocket.using(method):
        told.append([pocket.answer(scenes[n], QUESTIONS[n], **asked).token_ids for n in range(2)])
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_decoding_fills_up_with_the_words_that_the_search_names(family, checkpoints, exact, picture, dtype):
    model, method = mgap.load(str(checkpoints[family]), dtype=dtype), mgap.HalTrapper(length=2)
    words = method.search(model, picture).candidates
    assert words == method.search(exact, picture).candidates, "it finds nothing here: all of them fill up"
    branch = rows_read(model, picture, method)[-1][-1].tolist()
    start, spelled = len(branch) - branch[::-1].index(model.backbone.image_token_id), spell_words(model.backbone, words)
    assert branch[start : start + len(spelled)] == spelled


def test_words_that_fill_up_follow_the_picture_or_the_seed(exact, picture):
    one, other = pair(picture)
    free, fixed = mgap.HalTrapper(length=2), mgap.HalTrapper(length=2, seed=1)
    assert free.search(exact, one) == free.search(exact, one)
    assert free.search(exact, one).candidates != free.search(exact, other).candidates
    assert fixed.search(exact, one).candidates == fixed.search(exact, other).candidates
    assert fixed.search(exact, one).candidates != mgap.HalTrapper(length=2, seed=2).search(exact, one).candidates
    assert len(free.search(exact, one).candidates) == 10
    assert len(mgap.HalTrapper(length=2, preset="reference-code-5").search(exact, one).candidates) == 5


@pytest.mark.one_family
@pytest.mark.parametrize("mode", ["batched", pytest.param("sequential", marks=pytest.mark.product)])
@pytest.mark.parametrize("options", [{}, pytest.param({"num_beams": 3}, marks=pytest.mark.product)], ids=["one", "beams"])
def test_a_row_without_candidates_is_decoded_plainly(pocket, scenes, mode, options):
    """No contrast, and no cut either: its logits are the model's own, beside a row that has candidates."""
    method = mgap.HalTrapper(alpha=4.0, vocabulary=["vase"], tau_ig=0.0, n=0, length=LENGTH, branch_mode=mode)
    assert [method.search(pocket, scene).candidates for scene in scenes] == [(), ("vase",)]
    own, inputs = pocket.backbone.model, pocket.backbone.encode(scenes, QUESTIONS[:2])
    asked = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True, **options}
    plain = own.generate(**inputs, **asked)
    with pocket.using(method):
        made = own.generate(**inputs, **asked)
    rows = options.get("num_beams", 1)
    for step, (one, other) in enumerate(zip(made.logits, plain.logits, strict=False)):
        torch.testing.assert_close(one[:rows], other[:rows], rtol=1e-4, atol=1e-4)
        assert one[:rows].isfinite().all()
        if step == 0:
            assert one[rows:].isinf().any()
    assert torch.equal(made.sequences[0], plain.sequences[0, : made.sequences.shape[1]])


def test_a_method_at_the_head_leaves_the_search_alone(exact, picture):
    method, shift = mgap.HalTrapper(length=6, n=3), mgap.Bias(shift=90.0, up=("is",), down=("the",))
    seen = []
    for methods in ((method,), (method, shift)):
        rows = rows_read(exact, picture, *methods)
        seen.append(rows[-1].tolist())
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]


def test_one_hears_what_it_is_busy_with(exact, picture):
    heard = []
    with exact.using(mgap.HalTrapper(length=2)) as attachment, attachment.hear(heard.append):
        list(exact.answers(pair(picture), QUESTIONS[:2], batch_size=2, max_new_tokens=1))
        assert [line.split()[0] for line in heard] == ["describing", "imagining", "tracing", "imagining", "tracing"]
        assert "2 of 2" in heard[-1]
        exact.answer(picture, QUESTIONS[0], max_new_tokens=1)
        assert len(heard) == 5
    heard.clear()
    with exact.using(mgap.CODE(length=2)) as attachment, attachment.hear(heard.append):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=1)
    assert heard == ["describing the picture"]


# --- the model afterwards ---------------------------------------------------------------------------------------


def test_an_error_while_searching_leaves_the_model_as_it_was(exact, picture):
    own, text = exact.backbone.model, exact.backbone.config.get_text_config()
    plain, kernel = exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids, text._attn_implementation
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in own.modules()]

    def stop(*_):
        if text._attn_implementation == MASKED:
            raise RuntimeError("halt")

    seen = shown(exact, picture)
    handle = exact.backbone.final_norm.register_forward_hook(stop)
    with pytest.raises(RuntimeError, match="halt"):
        ground(exact.backbone, seen, render(exact.backbone, CAPTION), SAID, Vocabulary(THINGS))
    handle.remove()
    assert text._attn_implementation == kernel
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in own.modules()] == hooks
    with exact.using(mgap.HalTrapper(length=4)):
        exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
        assert text._attn_implementation == kernel
    assert exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids == plain


def test_every_kernel_finds_the_same(exact, picture):
    text, told = exact.backbone.config.get_text_config(), []
    seen, asked = shown(exact, picture), render(exact.backbone, CAPTION)
    usual = text._attn_implementation
    for kernel in ("sdpa", "eager", "flash_attention_2"):  # the last is not even installed: grounding does without it
        text._attn_implementation = kernel
        try:
            told.append(ground(exact.backbone, seen, asked, SAID, Vocabulary(THINGS)))
            assert text._attn_implementation == kernel
        finally:
            text._attn_implementation = usual
    assert told[0] == told[1] == told[2]


def test_a_decoder_that_cannot_be_watched_is_refused(exact, picture):
    block, states = exact.backbone.layers[0].self_attn, torch.randn(3, 1, 4, 2, 16)
    with pytest.raises(ModelError, match="hand arguments on"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool())
    with pytest.raises(ModelError, match="softcap"):
        attend(block, *states, torch.ones(1, 1, 2, 2).bool(), **{ARGUMENT: ImageWeights([0], slice(0, 1), 2)}, softcap=50.0)
    seen, asked = shown(exact, picture), render(exact.backbone, CAPTION)
    usual, block.config = block.config, deepcopy(block.config)  # this block no longer follows the decoder's configuration
    try:
        with pytest.raises(ModelError, match="attention of its own"):
            ground(exact.backbone, seen, asked, SAID, Vocabulary(THINGS))
    finally:
        block.config = usual


# --- words, and what is refused ---------------------------------------------------------------------------------


def test_a_tokenizer_that_starts_words_by_itself_spells_them_one_by_one(checkpoints):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.train_from_iterator(
        ["a dog and a cat", "dog cat"], trainers.BpeTrainer(special_tokens=["<unk>"], show_progress=False)
    )
    backbone = Backbone(mgap.load(str(checkpoints["llava"])).backbone.model)
    backbone.processor = SimpleNamespace(tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    spelled = backbone.tokenizer.convert_ids_to_tokens(spell_words(backbone, ("dog", "cat")))
    assert spelled == ["\u2581dog", "\u2581cat"]


def test_what_cannot_be_built_is_refused(exact, picture):
    for method in (mgap.HalTrapper(length=4), mgap.HalTrapper(candidates="dog")):
        with exact.using(method), Count(exact.backbone.language) as runs:
            with pytest.raises(PromptError, match="leave haltrapper off"):
                exact.answer(None, "What?", max_new_tokens=2)
            with pytest.raises(PromptError, match="one picture a row"):
                list(exact.answers([picture, None], ["What?", "Who?"], batch_size=2, max_new_tokens=2))
            assert runs.runs == 0
        with pytest.raises(ModelError, match="processor"), mgap.attach(exact.backbone.model, method):
            pass
    with exact.using(mgap.HalTrapper(candidates=["dog"] * 2000)), pytest.raises(PromptError, match="shorten"):
        exact.answer(picture, "What?", max_new_tokens=2)
    name = exact.backbone.tokenizer.convert_ids_to_tokens(exact.backbone.image_token_id)
    with pytest.raises(SettingError, match="placeholder"), exact.using(mgap.HalTrapper(candidates=name)):
        pass
    assert not exact.backbone.model._forward_hooks


def test_a_tokenizer_without_places_is_refused(exact, picture):
    slow = deepcopy(exact.backbone)
    slow.processor.tokenizer = SimpleNamespace(is_fast=False)
    with pytest.raises(ModelError, match="fast"):
        slow.spans("a dog")


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"beta": 2}, "beta"), ({"tau_ig": 2}, "tau_ig"), ({"tau_ee": -1}, "tau_ee"), ({"n": -1}, "n="),
     ({"n": 2.5}, "n="), ({"length": 0}, "length"), ({"seed": -1}, "seed"), ({"repeats": 0}, "repeats"),
     ({"form": "sum"}, "form"), ({"preset": "paper"}, "preset"),
     ({"candidates": ()}, "candidates"), ({"candidates": ["dog", ""]}, "candidates"),
     ({"candidates": ["dog"], "n": 3}, "n belongs to the search"), ({"candidates": ["dog"], "seed": 3}, "seed belongs"),
     ({"candidates": ["dog"], "preset": "reference-code-5"}, "preset belongs"), ({"vocabulary": "no/such/file"}, "vocabulary"),
     ({"vocabulary": []}, "vocabulary"), ({"vocabulary": [1]}, "vocabulary"), ({"vocabulary": 5}, "vocabulary"),
     ({"vocabulary": {"dog": 3}}, "vocabulary"), ({"candidates": 5}, "candidates"), ({"candidates": {"dog": 1}}, "candidates")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.HalTrapper(**settings)


def test_with_candidates_of_ones_own_nothing_is_searched(exact, picture):
    method = mgap.HalTrapper(candidates=("dog",))
    with exact.using(method), Count(exact.backbone.model) as model, Count(exact.backbone.vision) as tower:
        exact.answer(picture, QUESTIONS[0], max_new_tokens=1)
    assert (model.runs, tower.runs) == (1, 1)
    with pytest.raises(SettingError, match="nothing to search"):
        method.search(exact, picture)
