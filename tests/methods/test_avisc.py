"""AvisC: against itself written out; which blocks and tokens it chooses, once; and what its branch reads."""

import pytest
import torch

import mgap
from mgap.errors import NonFiniteScores, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.avisc import find_blind
from mgap.methods.kinds.attention_weights import least_attended
from tests.methods.following import REFUSED, check_beams, encode_two
from tests.reference import avisc as reference
from tests.reference.mod import zeroed

QUESTIONS = ("Is there a dog in the image?", "What?", "How many people are there?")
NEW = 8
DEFAULTS = {"alpha": 1.0, "beta": 0.1, "gamma": 0.5, "lam": 1.0}
STRONG = {"alpha": 20.0, "beta": 0.0, "gamma": 0.9, "lam": 0.5}


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


@pytest.mark.both_families
@pytest.mark.parametrize("settings", [DEFAULTS, STRONG], ids=["defaults", "strong"])
def test_it_is_what_its_equations_say(exact, picture, settings):
    lengths = []
    for question in QUESTIONS[:2]:
        main = exact.backbone.encode([picture], [question])
        expected = reference.decode(exact, main, settings, NEW)
        _, kept, layers, threshold = reference.chosen(exact.backbone, main, settings["gamma"], settings["lam"])
        for mode in ("batched", "sequential"):
            with exact.using(mgap.AvisC(**settings, branch_mode=mode)):
                answer = exact.answer(picture, question, max_new_tokens=NEW, trace=True)
            assert answer.token_ids[: len(expected)] == expected, (question, mode)
            for step in answer.trace:  # chosen once
                assert (step.values["layers"], step.values["blind"]) == (layers, len(kept))
                assert step.values["threshold"] == pytest.approx(threshold, rel=1e-4)
        lengths.append(len(expected))
    assert max(lengths) == NEW, lengths


def test_at_alpha_0_the_plain_logits_are_returned_to_the_bit_and_greedy_decoding_is_plain(exact, picture):
    main, branch = torch.randn(2, 3, 50)
    assert torch.equal(mgap.AvisC(alpha=0.0, beta=0.0).combine(main, branch, 1)[0], main)
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.AvisC(alpha=0.0, beta=0.5)):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain


def test_a_threshold_below_everything_is_plain_and_one_above_it_zeroes_the_whole_picture(exact, picture):
    plain = [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS]
    with exact.using(mgap.AvisC(alpha=20.0, lam=-1e9)):
        assert [exact.answer(picture, question, max_new_tokens=NEW).token_ids for question in QUESTIONS] == plain
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    images = [j for j, token in enumerate(inputs["input_ids"][0].tolist()) if token == exact.backbone.image_token_id]
    with torch.no_grad():
        main = exact.backbone.model(**inputs).logits[0, -1]
        with zeroed(exact.backbone, images):
            blank = exact.backbone.model(**inputs).logits[0, -1]
        options = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
        with exact.using(mgap.AvisC(alpha=2.0, beta=0.0, lam=1e9)):
            (scores,) = exact.backbone.model.generate(**inputs, **options).logits
    torch.testing.assert_close(scores[0], 3 * main - 2 * blank, rtol=1e-4, atol=1e-4)


@pytest.mark.both_families
def test_the_branch_reads_zeros_for_all_but_the_blind_tokens_at_every_depth(exact, picture):
    backbone, calls = exact.backbone, []
    images, kept, _, _ = reference.chosen(backbone, backbone.encode([picture], ["What?"]), 0.5, 1.0)
    handle = backbone.language.register_forward_pre_hook(lambda _l, _args, kwargs: calls.append(kwargs), with_kwargs=True)
    with exact.using(mgap.AvisC()):
        exact.answer(picture, "What?", max_new_tokens=2)
    handle.remove()
    own, branch, _ = calls
    assert [len(call["inputs_embeds"]) for call in calls] == [1, 1, 2]
    gone = (branch["inputs_embeds"][0] == 0).all(-1)
    assert gone.nonzero()[:, 0].tolist() == [j for j in images if j not in kept]
    assert torch.equal(branch["inputs_embeds"][0, ~gone], own["inputs_embeds"][0, ~gone])
    assert torch.equal(branch["position_ids"], own["position_ids"])
    for level in branch.get("deepstack_visual_embeds") or ():
        assert torch.equal((level == 0).all(-1), gone[images])


@pytest.mark.both_families
def test_a_batch_of_two_says_what_one_and_one_say(exact, picture):
    pictures = [picture, picture.rotate(90, expand=True)]
    for mode in ("batched", "sequential"):
        with exact.using(mgap.AvisC(**STRONG, branch_mode=mode)):
            alone = [exact.answer(p, q, max_new_tokens=NEW).token_ids for p, q in zip(pictures, QUESTIONS, strict=False)]
            together = [answer.token_ids for answer in exact.answers(pictures, QUESTIONS[:2], max_new_tokens=NEW)]
        assert together == alone


def test_beams_score_as_a_forced_answer_does(exact, picture):
    check_beams(exact, picture, mgap.AvisC(alpha=5.0, beta=0.0))


def test_several_pictures_of_a_row_have_one_threshold(exact, picture):
    backbone, inputs = exact.backbone, encode_two(exact.backbone, picture)
    expected = reference.decode(exact, inputs, STRONG, 4)
    for mode in ("batched", "sequential"):
        with exact.using(mgap.AvisC(**STRONG, branch_mode=mode)):
            made = backbone.model.generate(**inputs, max_new_tokens=4, do_sample=False)
        assert tuple(made[0, inputs["input_ids"].shape[1] :].tolist())[: len(expected)] == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_answers_in_half_precision(family, checkpoints, picture, dtype):
    half = mgap.load(str(checkpoints[family]), dtype=dtype)
    plain = half.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids
    with half.using(mgap.AvisC(**STRONG)):
        assert half.answer(picture, QUESTIONS[0], max_new_tokens=NEW).token_ids != plain


# --- the pure parts ---------------------------------------------------------------------------------------------------


def drawn(blocks, rows, keys, seed=0):
    return torch.rand(blocks, rows, keys, generator=torch.Generator().manual_seed(seed)).softmax(-1)


@pytest.mark.parametrize(("gamma", "layers"), [(0.0, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.8, 3), (1.0, 4)])
def test_the_fewest_blocks_that_cover_gamma_are_chosen_largest_first(gamma, layers):
    """Of equal shares, the lowest block."""
    shares = torch.tensor([0.25, 0.125, 0.5, 0.125])
    weights = torch.cat([torch.ones(4, 1, 2), shares[:, None, None] * torch.tensor([0.5, 0.25, 0.25])], -1)  # text, picture
    found = find_blind(weights, torch.tensor([[0, 0, 1, 1, 1]]).bool(), gamma, 1.0)
    assert torch.equal(found.share[:, 0], shares)
    assert found.chosen[:, 0].nonzero()[:, 0].tolist() == sorted([2, 0, 1, 3][:layers])
    assert found.hidden.tolist() == [[False, False, False, True, True]]


def test_all_blocks_are_chosen_where_rounding_does_not_reach_1():
    weights, images = torch.rand(7, 50, 12, generator=torch.Generator().manual_seed(0)), torch.ones(50, 12).bool()
    found = find_blind(weights, images, 1.0, 1.0)
    assert (found.share.sort(0, descending=True).values.cumsum(0)[-1] < 1).any()
    torch.testing.assert_close(found.attention, weights.mean(0))


def test_equal_weights_and_a_single_token_are_all_blind():
    """However their mean is rounded."""
    for n in (1, 3, 7, 49, 100, 576):
        weights = torch.tensor([0.1, 0.3])[:, None] / torch.tensor([3.0, 7.0, 11.0])[:, None, None] * torch.ones(n + 4)
        images = torch.arange(n + 4).expand(2, -1) >= 4
        for lam in (-5.0, 0.0, 1.0, 100.0):
            found = find_blind(weights, images, 0.7, lam)
            assert not found.hidden.any(), (n, lam)
            assert found.threshold.isfinite().all()


def test_a_picture_that_no_block_attends_to_is_left_alone():
    images = torch.tensor([[0, 1, 1, 0]]).bool()
    found = find_blind(torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(2, 1, 4), images, 0.5, 1.0)
    assert not found.hidden.any()


def test_rows_are_chosen_for_one_by_one():
    weights, images = drawn(5, 3, 20), torch.arange(20).expand(3, -1) < torch.tensor([[5], [12], [20]])
    together = find_blind(weights, images, 0.5, 0.5)
    for row in range(3):
        alone = find_blind(weights[:, [row]], images[[row]], 0.5, 0.5)
        assert torch.equal(together.hidden[row], alone.hidden[0])
        assert torch.equal(together.chosen[:, row], alone.chosen[:, 0])


def test_in_one_block_it_hides_what_mod_hides_at_the_same_count():
    weights, images = drawn(1, 4, 30), torch.arange(30).expand(4, -1) >= 6
    hidden, numbers = mgap.AvisC(gamma=0.0, lam=0.7).hide(weights, images)
    assert (numbers["blind"] > 0).all()
    assert torch.equal(least_attended(weights.sum(0), images, images.sum(-1) - numbers["blind"]), hidden)
    for row, blind in enumerate(numbers["blind"].tolist()):
        mod, _ = mgap.MoD(rho=blind / 24).hide(weights[:, [row]], images[[row]])
        assert torch.equal(mod[0], hidden[row])


def test_presets_set_the_strength():
    assert [mgap.AvisC(preset=name).strength for name in mgap.AvisC.presets] == [1.0, 2.5]
    assert mgap.AvisC(preset="captions", alpha=3.0).strength == 3.0


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_a_row_without_a_picture_is_refused(exact, picture):
    with exact.using(mgap.AvisC()):
        with pytest.raises(PromptError, match="leave avisc off"):
            exact.answer(None, "What?", max_new_tokens=2)
        with pytest.raises(PromptError, match="in every row"):
            list(exact.answers([picture, None], ["What?", "Who?"], batch_size=2, max_new_tokens=2))


def test_logits_that_are_no_numbers_are_refused():
    broken = torch.zeros(2, 5).index_fill(0, torch.tensor([1]), torch.nan)
    with pytest.raises(NonFiniteScores, match="NaN"):
        mgap.AvisC().combine(torch.randn(2, 5), broken, 1)


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_your_own_generate_in_a_refused_mode_is_refused(exact, picture, options):
    inputs = exact.backbone.encode([picture], [QUESTIONS[0]])
    with exact.using(mgap.AvisC()), pytest.raises(UnsupportedDecoding):
        exact.backbone.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"alpha": -1}, "alpha"), ({"beta": 2}, "beta"), ({"gamma": 1.1}, "gamma"), ({"lam": float("inf")}, "lam"),
     ({"preset": "paper"}, "preset"), ({"branch_mode": "both"}, "branch_mode")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError, match=word):
        mgap.AvisC(**settings)
