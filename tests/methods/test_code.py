"""CODE: its description is the model's own, made once a picture; the rest is what the equations say."""

import pytest
import torch

import mgap
from mgap.backbones.token_rows import find_block
from mgap.errors import ModelError, PromptError, SettingError
from mgap.methods.code import PRESETS, PROMPTS, _before_question, _in_place, divergence
from mgap.methods.kinds.description import Descriptions
from tests.methods.following import NEW, QUESTIONS, follow, rows_read
from tests.reference import description as reference

LENGTH = 6


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def pair(picture):
    return [picture, picture.rotate(90, expand=True)]


class Count:
    """How often a module runs while this is entered."""

    def __init__(self, module):
        self.module, self.runs = module, 0

    def __enter__(self):
        self.handle = self.module.register_forward_hook(self)
        return self

    def __call__(self, *_):
        self.runs += 1

    def __exit__(self, *_):
        self.handle.remove()


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_what_its_equations_say(exact, picture, preset):
    method = mgap.CODE(preset=preset, length=LENGTH)
    text = reference.describe(exact, picture, PROMPTS[method.prompt], LENGTH)
    assert text

    def branch(_main, question):
        return reference.told(exact.backbone, picture, question, text, method.place)

    follow(exact, picture, method, branch, reference.countering(method.k))


@pytest.mark.parametrize("place", ["in_place_of_image", "before_question"])
def test_rows_of_any_length_read_what_they_would_read_alone(exact, picture, place):
    pictures = [*pair(picture), picture]
    main = exact.backbone.encode(pictures, QUESTIONS[:3])
    branch = mgap.CODE(place=place, length=LENGTH).branch(exact.backbone, main)
    assert "pixel_values" not in branch
    for row in range(3):
        text = reference.describe(exact, pictures[row], PROMPTS["thorough"], LENGTH)
        alone = reference.told(exact.backbone, pictures[row], QUESTIONS[row], text, place)
        length = alone["input_ids"].shape[1]
        assert torch.equal(branch["input_ids"][row, -length:], alone["input_ids"][0])
        assert branch["attention_mask"][row].tolist() == [0] * (branch["input_ids"].shape[1] - length) + [1] * length
    if "mm_token_type_ids" in main:
        assert not branch["mm_token_type_ids"].any()


@pytest.mark.parametrize("mode", ["batched", "sequential"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"num_beams": 3}], ids=str)
def test_describing_inside_a_generation_does_not_disturb_it(exact, picture, mode, options):
    """The first answer, which waits for its description, is the second, which does not; together as alone; beams too."""
    method = mgap.CODE(k=2.0, length=LENGTH, branch_mode=mode)
    asked = {"max_new_tokens": NEW, **options}
    with exact.using(method):
        first = [a.token_ids for a in exact.answers(pair(picture), QUESTIONS[:2], batch_size=2, **asked)]
        again = [a.token_ids for a in exact.answers(pair(picture), QUESTIONS[:2], batch_size=2, **asked)]
    assert first == again
    with exact.using(method):
        assert [exact.answer(p, q, **asked).token_ids for p, q in zip(pair(picture), QUESTIONS, strict=False)] == first


def test_a_picture_is_described_once(exact, picture):
    with exact.using(mgap.CODE(length=LENGTH)):
        for expected in (2, 1, 1):  # the tower: for the answer, and once for the description
            with Count(exact.backbone.vision) as tower, Count(exact.backbone.model) as model:
                exact.answer(picture, QUESTIONS[expected], max_new_tokens=1)
            assert tower.runs == expected
            assert (model.runs > 1) == (expected == 2)
        with Count(exact.backbone.vision) as tower:
            list(exact.answers([picture, *pair(picture)], ["What?"] * 3, batch_size=3, max_new_tokens=1))
        assert tower.runs == 2
    with exact.using(mgap.CODE(length=LENGTH)), Count(exact.backbone.vision) as tower:
        exact.answer(picture, QUESTIONS[0], max_new_tokens=1)
        assert tower.runs == 2, "nothing is kept from one attachment to the next"


def test_descriptions_of_long_ago_are_forgotten(exact, picture):
    describe = Descriptions(exact.backbone, "What?", 2, keep=2)
    inputs = [exact.backbone.encode([picture.rotate(turn)], ["Who?"]) for turn in (0, 90, 180)]
    texts = [describe(each) for each in inputs[:2]]
    assert describe(inputs[0]) == texts[0]
    describe(inputs[2])
    with Count(exact.backbone.model) as model:
        assert describe(inputs[0]) == texts[0]
        assert model.runs == 0
        assert describe(inputs[1]) == texts[1]
        assert model.runs > 0
    assert len(describe.cache) == 2


def test_a_method_at_the_head_leaves_the_description_alone(exact, picture):
    """The branch holds what the plain model says of the picture, whatever stands on top."""
    prior = mgap.Subspace.fit(exact, mgap.default_prompts())
    method, shift = mgap.CODE(length=LENGTH), mgap.Bias(shift=90.0, up=("is",), down=("the",))
    seen = []
    for methods in ((method,), (method, mgap.MGAP(prior)), (method, shift)):
        rows = rows_read(exact, picture, *methods)
        seen.append(next(ids for ids in rows if len(ids) == 2).tolist())
    assert seen[0] == seen[1] == seen[2]


def test_an_error_while_describing_leaves_the_model_as_it_was(exact, picture):
    plain = exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids

    def stop(*_):
        raise RuntimeError("halt")

    with exact.using(mgap.CODE(length=LENGTH)) as attachment:
        handle = exact.backbone.final_norm.register_forward_hook(stop)
        with pytest.raises(RuntimeError, match="halt"):
            exact.answer(picture, QUESTIONS[0], max_new_tokens=4)
        handle.remove()
        assert not attachment._handle.is_idle
        changed = exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids
    with exact.using(mgap.CODE(length=LENGTH)):
        assert exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids == changed
    assert exact.answer(picture, QUESTIONS[0], max_new_tokens=4).token_ids == plain


def test_it_has_no_zero_but_towards_k_zero_greedy_says_what_the_model_says(exact, picture):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.CODE(k=1e-9, length=LENGTH)):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


def test_equal_branches_change_nothing_and_certain_ones_keep_the_favourite():
    logits = torch.randn(4, 30)
    same, traced = mgap.CODE().combine(logits, logits.clone(), 1)
    torch.testing.assert_close(same, logits)
    assert torch.equal(traced["weight"], torch.ones(4))
    one, other = torch.full((2, 30), -200.0), torch.full((2, 30), -200.0)
    one[:, 3], other[:, 4] = 200.0, 200.0
    scores, traced = mgap.CODE().combine(one, other, 1)
    assert torch.equal(traced["divergence"], torch.ones(2))
    assert torch.equal(scores, torch.full((2, 30), -torch.inf).index_fill(1, torch.tensor([3]), 200.0))


@pytest.mark.parametrize("k", [0.2, 0.7, 1.0, 3.0])
def test_the_divergence_is_bounded_and_symmetric_and_keeps_the_favourite(k):
    main, branch = torch.randn(200, 50) * 8, torch.randn(200, 50) * 8
    p, q = main.softmax(-1), branch.softmax(-1)
    D = divergence(p, q, k)
    assert ((D >= 0) & (D <= 1)).all()
    torch.testing.assert_close(D, divergence(q, p, k))
    scores, _ = mgap.CODE(k=k).combine(main, branch, 1)
    assert scores.gather(1, main.argmax(-1, keepdim=True)).isfinite().all()


@pytest.mark.parametrize("write", [_in_place, _before_question])
def test_an_empty_description_leaves_the_question_alone(exact, picture, write):
    backbone = exact.backbone
    main = backbone.encode([picture], ["What?"])
    (row,) = backbone.rewrite(main, lambda *place: write(backbone, "", *place))["input_ids"].tolist()
    expected = backbone.without_image(main)["input_ids"][0]
    assert backbone.tokenizer.decode(row, skip_special_tokens=True) == backbone.tokenizer.decode(
        expected, skip_special_tokens=True
    )


@pytest.mark.parametrize("write", [_in_place, _before_question])
def test_a_description_that_names_the_placeholder_shows_no_picture(exact, picture, write):
    backbone = exact.backbone
    main = backbone.encode([picture], ["What?"])
    name = backbone.tokenizer.convert_ids_to_tokens(backbone.image_token_id)
    rows = backbone.rewrite(main, lambda *place: write(backbone, f"a {name} dog", *place))
    assert backbone.image_token_id not in rows["input_ids"]
    assert "dog" in backbone.tokenizer.decode(rows["input_ids"][0])


def test_a_prompt_that_no_tokenizer_would_write_keeps_its_tokens(exact, picture):
    backbone, tokenizer = exact.backbone, exact.backbone.tokenizer
    main = backbone.encode([picture], ["Is there a dog?"])
    tokens = tokenizer.convert_ids_to_tokens(main["input_ids"][0].tolist())
    spelled = [letter for token in tokens for letter in ([token] if token in tokenizer.all_special_tokens else token)]
    ids = tokenizer.convert_tokens_to_ids(spelled)
    start, end = find_block(ids, backbone.image_token_id, backbone.image_block_ids)
    row = _before_question(backbone, "a cat", ids, start, end)
    assert row[:start] == ids[:start]
    assert row[len(row) - len(ids[end:]) :] == ids[end:]
    assert tokenizer.decode(row[start : len(row) - len(ids[end:])]).strip() == "a cat"


def test_what_cannot_be_built_is_refused(exact, picture):
    with exact.using(mgap.CODE(length=LENGTH)):
        with pytest.raises(PromptError, match="leave code off"):
            exact.answer(None, "What?", max_new_tokens=2)
        with pytest.raises(PromptError, match="one picture a row"):
            list(exact.answers([picture, None], ["What?", "Who?"], batch_size=2, max_new_tokens=2))
    with pytest.raises(ModelError, match="processor"), mgap.attach(exact.backbone.model, mgap.CODE()):
        pass
    assert not exact.backbone.model._forward_hooks


def test_a_template_that_writes_no_placeholder_is_refused_on_attaching(checkpoints):
    model = mgap.load(str(checkpoints["llava"]))
    model.backbone.processor.chat_template = "USER: {{ messages[0]['content'][-1]['text'] }} ASSISTANT:"
    with pytest.raises(ModelError, match="<image>"), model.using(mgap.CODE()):
        pass


def test_the_trace_shows_divergence_and_weight(exact, picture):
    with exact.using(mgap.CODE(length=LENGTH)):
        steps = exact.answer(picture, QUESTIONS[0], max_new_tokens=4, trace=True).trace
    assert all(step.values["divergence"] + step.values["weight"] == pytest.approx(1) for step in steps)
    assert all(0 < step.values["divergence"] < 1 for step in steps)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"k": 0}, "k=0"), ({"k": -1}, "k="), ({"place": "after"}, "place"), ({"prompt": " "}, "prompt"),
     ({"length": 0}, "length"), ({"length": 1.5}, "length"), ({"preset": "paper"}, "preset")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.CODE(**settings)
