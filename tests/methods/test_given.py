"""Decoding with given evidence: against itself written out, with any number of pictures a row, and refused by name."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mgap
from mgap.backbones.asked_rows import Asked, asking
from mgap.decoding.attach import attached
from mgap.errors import CorruptFile, ImageError, PromptError, SettingError, UnsupportedDecoding
from mgap.methods.given.brings import Fields, Listed, Other, Pictured, crop, nested_boxes
from mgap.methods.given.evidence import Box, Evidence, EvidenceLine, EvidenceTable, write_objects
from mgap.methods.given.given import PRESETS, Given, choose_pair, divergence, mean_logits
from mgap.methods.kinds.paired_forward import COUNT
from mgap.run.first_words import first_words
from tests.methods.following import QUESTIONS, check_beams
from tests.reference import contrast
from tests.reference import given as reference

QUESTION, SHORT = QUESTIONS[0], 6
TEXT = "Describe this picture of two dogs."


def drawn(seed, width, height):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


OTHERS = (drawn(1, 50, 60), drawn(2, 80, 60), drawn(3, 60, 90))  # other sizes: other grids and lengths


@pytest.fixture(scope="module")
def exact(family, checkpoints):
    """In float32: two ways to compute the same logits choose the same tokens."""
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def brings(*pictures, text=None):
    return lambda asked: [Evidence(pictures, text) for _ in asked]


def told(model, pictures, method, **options):
    with model.using(method):
        return [model.answer(each, QUESTION, max_new_tokens=SHORT, **options).token_ids for each in pictures]


# --- the formulas ----------------------------------------------------------------------------------------------------

FORMS = {
    "contrast gated": ({"alpha": 3.0, "beta": 0.1, "gate": 0.3}, reference.contrast(3.0, 0.1, 0.3)),
    "agree gated": ({"combine": "agree", "alpha": 3.0, "beta": 0.1, "gate": 0.3}, reference.agree(3.0, 0.1, 0.3)),
    "contrast": ({"alpha": 3.0, "beta": 0.1}, reference.contrast(3.0, 0.1)),
    "agree": ({"combine": "agree", "alpha": 2.0, "beta": 0.5}, reference.agree(2.0, 0.5)),
    "guide": ({"combine": "guide", "alpha": 0.7}, reference.guide(0.7)),
    "pair": ({"combine": "pair", "weight": 0.8}, reference.pair(0.8)),
}


def encoded(model, *pictures):
    """The branches of a question, by hand."""
    return lambda _main, question: [model.backbone.encode([picture], [question]) for picture in pictures]


@pytest.mark.both_families
def test_contrasting_is_what_its_equation_says(exact, picture):
    settings, step = FORMS["contrast"]
    main = exact.backbone.encode([picture], [QUESTION])
    expected = contrast.decode(exact, main, encoded(exact, *OTHERS[:2])(main, QUESTION), step, SHORT)
    for mode in ("batched", "sequential"):
        assert told(exact, [picture], Given(evidence=brings(*OTHERS[:2]), **settings, branch_mode=mode)) == [expected]


def test_another_prompt_is_asked_about_the_same_picture(exact, picture):
    settings, step = FORMS["contrast"]
    branch = exact.backbone.encode([picture], [TEXT])
    expected = contrast.decode(exact, exact.backbone.encode([picture], [QUESTION]), branch, step, SHORT)
    assert told(exact, [picture], Given(evidence=brings(text=TEXT), **settings)) == [expected]


def test_a_pair_is_of_the_branches_that_differ_most(exact, picture):
    settings, step = FORMS["pair"]
    main = exact.backbone.encode([picture], [QUESTION])
    expected = contrast.decode(exact, main, encoded(exact, *OTHERS)(main, QUESTION), step, SHORT)
    assert told(exact, [picture], Given(evidence=brings(*OTHERS), **settings)) == [expected]


@pytest.mark.parametrize("name", FORMS)
def test_every_way_to_combine_is_what_its_equation_says(logits, name):
    settings, step = FORMS[name]
    main, *branches = (part.double() for part in logits)
    scores = weigh(main, branches, **settings)
    expected = [step(*row, 1) for row in zip(main.tolist(), *(branch.tolist() for branch in branches), strict=True)]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64))


def test_the_gate_leaves_tokens_alone_where_both_predict_alike(exact, picture):
    method = Given(evidence=brings(*OTHERS[:2]), alpha=3.0, beta=0.0, gate=1e-9)
    with exact.using(method):
        seen = sorted(step.values["js"] for step in exact.answer(picture, QUESTION, max_new_tokens=4, trace=True).trace)
    with exact.using(replace(method, gate=(seen[1] + seen[2]) / 2)) as attachment:
        steps = exact.answer(picture, QUESTION, max_new_tokens=SHORT, trace=True).trace
    assert {step.values["open"] for step in steps} == {0.0, 1.0}
    for step in steps:
        assert step.values["open"] == (step.values["js"] >= attachment.method.gate)
        assert (step.before == step.after) != bool(step.values["open"])


@pytest.fixture
def logits():
    return torch.randn(6, 5, 40, generator=torch.Generator().manual_seed(0)).unbind(0)  # one of the main rows, five branches


def weigh(main, branches, kept=None, **settings):
    return Given(evidence=brings(*OTHERS), **settings).weigh(main, branches, 1, kept or {})[0]


def test_at_its_zero_the_logits_are_the_plain_ones_to_the_bit(logits):
    main, *branches = logits
    for combine in ("contrast", "agree"):
        method = Given(evidence=brings(*OTHERS), combine=combine, alpha=0.0, beta=0.0)
        assert method.is_zero
        assert torch.equal(method.weigh(main, branches, 1, {})[0], main)
    guided = weigh(main, branches, combine="guide", alpha=0.0)
    torch.testing.assert_close(guided, main.log_softmax(-1))
    assert torch.equal(guided.argmax(-1), main.argmax(-1))
    assert not Given(evidence=brings(*OTHERS), combine="pair").is_zero


def test_its_own_picture_as_evidence_changes_nothing_but_the_temperature(exact, picture):
    inputs = exact.backbone.encode([picture], [QUESTION])
    options = {"max_new_tokens": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    plain = exact.backbone.model.generate(**inputs, **options).logits[0]
    for combine, times in (("contrast", 1.0), ("agree", 3.0), ("guide", 1.0)):
        settings = {"alpha": 2.0} if combine == "guide" else {"alpha": 2.0, "beta": 0.0}
        method = Given(evidence=brings(picture), combine=combine, **settings)
        with exact.using(method), asking(exact.backbone.model, [Asked(picture, QUESTION)]):
            made = exact.backbone.model.generate(**inputs, **options).logits[0]
        expected = plain.log_softmax(-1) if combine == "guide" else times * plain
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("combine", ["contrast", "agree", "guide", "pair"])
def test_equal_pictures_are_one_and_their_order_matters_to_a_pair_only(logits, combine):
    main, one, *others = logits
    if combine != "pair":
        torch.testing.assert_close(weigh(main, [one] * 4, combine=combine), weigh(main, [one], combine=combine))
    there, back = (weigh(main, branches, combine=combine) for branches in (others, others[::-1]))
    assert torch.allclose(there, back, atol=1e-5) == (combine != "pair")


@pytest.mark.parametrize("combine", ["contrast", "agree", "guide", "pair"])
def test_branches_that_only_fill_up_do_not_count(logits, combine):
    main, *branches = logits
    counts = torch.tensor([2, 5, 3, 2, 4])
    together = weigh(main, branches, {COUNT: counts}, combine=combine)
    for row, count in enumerate(counts.tolist()):
        alone = weigh(main[[row]], [branch[[row]] for branch in branches[:count]], combine=combine)
        torch.testing.assert_close(together[[row]], alone)


def test_of_equal_pairs_the_first_is_taken(logits):
    one = logits[0]
    smaller, larger = choose_pair([one] * 3, torch.full((5,), 3))
    assert (smaller.tolist(), larger.tolist()) == ([0] * 5, [1] * 5)


def test_the_divergences_are_those_of_probabilities(logits):
    one, other, *_ = logits
    expected = [reference.js(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    torch.testing.assert_close(divergence(one, other), torch.tensor(expected))
    masked = one.clone().index_fill(-1, torch.tensor([3]), -torch.inf)
    assert divergence(masked, masked).abs().max() < 1e-6
    assert torch.equal(mean_logits([one, other], torch.ones(5)), one)


def test_boxes_are_nested_as_written_out():
    for box in ((0.3, 0.35, 0.55, 0.7), (0.0, 0.0, 1.0, 1.0), (0.9, 0.9, 0.95, 0.99)):
        for count, ratio in ((2, 0.6), (5, 0.3), (4, 1.0)):
            torch.testing.assert_close(
                torch.tensor(nested_boxes(box, count, ratio)), torch.tensor(reference.fields(box, count, ratio))
            )


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(picture):
    """Two pictures for one, three for another, another prompt about a third, and nothing about the fourth."""
    turned, flipped = picture.rotate(90, expand=True), picture.rotate(180)
    lines = (
        EvidenceLine("two", None, OTHERS[:2], source=picture),
        EvidenceLine("three", None, OTHERS, source=turned),
        EvidenceLine("text", None, text=TEXT, source=flipped),
    )
    return [picture, turned, flipped, OTHERS[0]], EvidenceTable(lines)


@pytest.mark.both_families
@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_rows_with_any_number_of_branches_stand_in_one_batch(exact, table, mode):
    pictures, evidence = table
    method = Given(evidence=evidence, alpha=3.0, missing="plain", branch_mode=mode)
    alone = told(exact, pictures, method)
    with exact.using(method):
        together = list(exact.answers(pictures, [QUESTION] * 4, max_new_tokens=SHORT, trace=True))
        backwards = list(exact.answers(pictures[::-1], [QUESTION] * 4, max_new_tokens=SHORT))[::-1]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in backwards] == alone
    assert alone[3] == exact.answer(pictures[3], QUESTION, max_new_tokens=SHORT).token_ids, "no evidence: plain decoding"
    assert [answer.trace[0].values["branches"] for answer in together] == [2, 3, 1, 0]
    assert [answer.trace[0].values["alone"] for answer in together] == [0, 0, 0, 1]
    assert len(set(alone)) == 4


@pytest.mark.parametrize("combine", ["contrast", "pair"])
def test_beams_search_the_combined_scores(exact, table, combine):
    pictures, evidence = table
    settings = {"weight": 0.8} if combine == "pair" else {"alpha": 3.0}
    check_beams(exact, pictures[1], Given(evidence=evidence, combine=combine, **settings))


def test_several_answers_and_static_steps_are_those_of_each_row(exact, table):
    pictures, evidence = table
    method = Given(evidence=evidence, alpha=3.0, missing="plain")
    greedy = told(exact, pictures, method)
    assert told(exact, pictures, method, static_cache=True) == greedy
    with exact.using(method):
        sampled = [
            list(exact.answers(pictures, [QUESTION] * 4, max_new_tokens=4, sample=True, num_return_sequences=2, **how))
            for how in ({}, {"static_cache": True})
        ]
    assert [a.alternatives[0].token_ids for a in sampled[0]] == [a.alternatives[0].token_ids for a in sampled[1]]


@pytest.mark.parametrize(("evidence", "runs"), [((), 1), (OTHERS[:1], 2), (OTHERS, 4)], ids=["a text", "a picture", "three"])
def test_the_vision_tower_runs_for_new_pictures_only(exact, picture, evidence, runs):
    calls = []
    handle = exact.backbone.vision.register_forward_hook(lambda *_: calls.append(1))
    told(exact, [picture], Given(evidence=brings(*evidence, text=None if evidence else TEXT), alpha=1.0))
    handle.remove()
    assert len(calls) == runs


def test_no_more_pictures_are_shown_than_most(exact, picture):
    assert told(exact, [picture], Given(evidence=brings(*OTHERS), alpha=3.0, most=2)) == told(
        exact, [picture], Given(evidence=brings(*OTHERS[:2]), alpha=3.0)
    )


def test_methods_that_differ_in_alpha_share_their_branches(exact, table):
    pictures, evidence = table
    methods = {str(alpha): Given(evidence=evidence, alpha=alpha, gate=0.01, missing="plain") for alpha in (0.5, 3.0)}
    rows = [(number, QUESTION) for number in range(4)]
    together = first_words(exact, rows, methods, lambda number: pictures[number])
    for name, method in methods.items():
        assert together[name] == first_words(exact, rows, {name: method}, lambda number: pictures[number])[name]
    assert together["0.5"] != together["3.0"]


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, picture):
    """A folder with the pictures that evidence files name."""
    (tmp_path / "drawn").mkdir()
    for number, other in enumerate(OTHERS):
        other.save(tmp_path / "drawn" / f"{number}.png")
    picture.save(tmp_path / "street.png")
    return tmp_path


def write(folder, *lines, name="evidence.jsonl"):
    (folder / name).write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return folder / name


ANY = {"image": "street.png", "pictures": ["drawn/0.png", "drawn/1.png"]}
ASKED = {"image": "street.png", "prompt": QUESTION, "text": TEXT}


def test_a_file_is_read_with_its_pictures_and_its_sum(folder):
    path = write(folder, ANY, "\n", {**ASKED, "pictures": None}, {"image": "elsewhere/2.jpg", "objects": []})
    table = EvidenceTable.load(path)
    assert [line.image for line in table.lines] == ["street.png", "street.png", "elsewhere/2.jpg"]
    assert [bool(line.source) for line in table.lines] == [True, True, False]
    assert table.find("street.png", "What?").pictures == (f"{folder}/drawn/0.png", f"{folder}/drawn/1.png")
    assert table.find("street.png", QUESTION).text == TEXT
    assert table.find("elsewhere/2.jpg", None).objects == ()
    assert table.find("2.jpg", None) is None
    assert table.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert Given(evidence=str(folder)).evidence == table, "a folder's own file"
    assert Given.files_named({"evidence": str(path)}) == {str(path): table.sha256}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{'image'}\n", "no JSON"),
        ("[]\n", "no JSON object"),
        ({**ANY, "picture": 1}, "no such key as 'picture'"),
        ({"image": "b.png"}, "none of pictures, text, objects"),
        ({**ANY, "text": "What?", "image": "b.png"}, "pictures and text of"),
        ({**ANY, "image": ""}, "image is ''"),
        ({**ANY, "image": 3}, "image is 3"),
        ({**ANY, "prompt": " "}, "prompt is ' '"),
        ({**ANY, "image": "b.png", "pictures": []}, "write a list of texts"),
        ({**ANY, "image": "b.png", "pictures": "drawn/0.png"}, "write a list of texts"),
        ({**ANY, "image": "b.png", "pictures": ["drawn/9.png"]}, "there is no picture 'drawn/9.png'"),
        ({**ANY, "image": "b.png", "pictures": ["../secret.png"]}, "is not inside"),
        ({**ANY, "image": "b.png", "pictures": ["/etc/hostname"]}, "is not inside"),
        ({**ANY, "image": "b.png", "pictures": ["link.png"]}, "is not inside"),
        ({**ANY, "image": "b.png", "pictures": ["a\0b"]}, "is no file's name"),
        ({**ANY, "image": "../b.png"}, "is not inside"),
        ({"image": "b.png", "text": " "}, "text is ' '"),
        ({"image": "b.png", "objects": ["dog", 3]}, "objects is"),
        (ANY, "the same picture and prompt as in line 1"),
    ],
    ids=str,
)
def test_a_line_that_is_wrong_is_refused_with_its_number(folder, line, why):
    (folder / "link.png").symlink_to("/etc/hostname")
    with pytest.raises(CorruptFile, match=r"evidence\.jsonl line 3: .*") as caught:
        Given(evidence=write(folder, ANY, ASKED, line))
    assert why in str(caught.value)


def test_a_file_that_is_missing_or_empty_is_refused(folder):
    with pytest.raises(SettingError, match="no such file"):
        Given(evidence=folder / "none.jsonl")
    with pytest.raises(SettingError, match=r"drawn/evidence\.jsonl': no such file"):
        Given(evidence=folder / "drawn")
    with pytest.raises(CorruptFile, match="no evidence in it"):
        Given(evidence=write(folder, "\n"))
    (folder / "evidence.jsonl").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(CorruptFile, match="UTF-8"):
        Given(evidence=folder)


def test_rows_are_found_by_name_then_by_pixels_and_for_exactly_their_prompt_first(exact, folder, picture):
    method = Given(evidence=write(folder, ANY, ASKED), alpha=3.0)
    by_text, by_pictures = (
        Given(evidence=brings(*OTHERS[:number], text=text), alpha=3.0) for number, text in ((0, TEXT), (2, None))
    )
    for question, direct in ((QUESTION, by_text), ("What?", by_pictures)):
        with exact.using(direct):
            expected = exact.answer(picture, question, max_new_tokens=SHORT).token_ids
        with exact.using(method):
            for shown in (folder / "street.png", picture, picture.convert("RGBA")):
                assert exact.answer(shown, question, max_new_tokens=SHORT).token_ids == expected
            inputs = exact.backbone.encode([picture], [question])
            made = exact.backbone.model.generate(**inputs, max_new_tokens=SHORT, do_sample=False)
        assert tuple(made[0, inputs["input_ids"].shape[1] :].tolist()) == expected, "a generate of one's own"


def test_pixels_are_recognised_in_sixteen_bits(family, checkpoints, picture, folder):
    model = mgap.load(str(checkpoints[family]), dtype=torch.bfloat16)
    inputs = model.backbone.encode([picture], ["What?"])
    cast = {**inputs, "pixel_values": inputs["pixel_values"].bfloat16()}
    plain = model.backbone.model.generate(**cast, max_new_tokens=SHORT, do_sample=False)
    with model.using(Given(evidence=write(folder, ANY), alpha=4.0)):
        made = model.backbone.model.generate(**cast, max_new_tokens=SHORT, do_sample=False)
    assert made.tolist() != plain.tolist()


def test_evidence_in_memory_is_by_name_or_by_name_and_prompt(exact, folder):
    evidence = {"street.png": Evidence(OTHERS[:2]), ("street.png", QUESTION): Evidence(text=TEXT)}
    from_file = Given(evidence=write(folder, ANY, ASKED), alpha=3.0)
    for question in (QUESTION, "What?"):
        answers = []
        for method in (Given(evidence=evidence, alpha=3.0), from_file):
            with exact.using(method):
                answers.append(exact.answer(folder / "street.png", question, max_new_tokens=SHORT).token_ids)
        assert answers[0] == answers[1]


def test_objects_become_a_prompt(exact, folder, picture):
    assert write_objects(["cat"], "Is it?", "{objects}: {prompt}") == "cat: is it?"
    assert write_objects(["cat", "dog"], "Is it?") == "This image contains cat and dog. Based on this, is it?"
    assert write_objects("abc", "Is it?") == "This image contains a, b, and c. Based on this, is it?"
    assert write_objects([], "Is it?") == "Is it?"
    path = write(folder, {"image": "street.png", "objects": ["cat", "dog"]})
    template = "With {objects}, {prompt}"
    method = Given(evidence=path, combine="guide", template=template)
    with exact.using(Given(evidence=brings(text=write_objects(["cat", "dog"], QUESTION, template)), combine="guide")):
        expected = exact.answer(picture, QUESTION, max_new_tokens=SHORT).token_ids
    with exact.using(method):
        assert exact.answer(picture, QUESTION, max_new_tokens=SHORT).token_ids == expected
        with pytest.raises(PromptError, match=r"which is not known here: call model\.answer"):
            exact.backbone.model.generate(**exact.backbone.encode([picture], [QUESTION]), max_new_tokens=2)


def test_a_sample_without_evidence_is_refused_by_its_name_or_decoded_plainly(exact, folder, picture_file):
    evidence = write(folder, {**ANY, "image": "other.png"})
    with exact.using(Given(evidence=evidence)):
        with pytest.raises(PromptError, match=r"no evidence for street\.png with 'Is there a dog in the image\?': add it"):
            exact.answer(picture_file, QUESTION, max_new_tokens=2)
        with pytest.raises(PromptError, match=r"no evidence for a picture without a name \(looked up by its pixels\): add it"):
            exact.backbone.model.generate(**exact.backbone.encode([picture_file], [QUESTION]), max_new_tokens=2)
    plain = exact.answer(picture_file, QUESTION, max_new_tokens=SHORT).token_ids
    assert told(exact, [picture_file], Given(evidence=evidence, missing="plain", alpha=9.0)) == [plain]
    for combine in ("contrast", "pair"):
        nothing = Given(evidence=lambda asked: [None] * len(asked), missing="plain", combine=combine)
        assert told(exact, [picture_file], nothing) == [plain]


# --- callables -------------------------------------------------------------------------------------------------------


class Counting:
    """Brings the same pictures for every sample, and keeps what it was asked."""

    def __init__(self, *pictures):
        self.pictures, self.calls = pictures, []

    def __call__(self, asked):
        self.calls.append([(row.name, row.prompt, row.picture.size) for row in asked])
        return [Evidence(self.pictures) for _ in asked]


def test_a_callable_is_told_what_is_asked_once_a_sample(exact, picture, picture_file):
    source, heard = Counting(OTHERS[0]), []
    with exact.using(Given(evidence=source)) as attachment, attachment.hear(heard.append):
        rows = [picture_file, picture, OTHERS[1]]
        list(exact.answers(rows, [QUESTION] * 3, max_new_tokens=2))
        exact.answer(picture, QUESTION, max_new_tokens=2, num_beams=2)
        exact.answer(picture, "What?", max_new_tokens=2)
    size = picture.size
    assert source.calls == [
        [("street.png", QUESTION, size), (None, QUESTION, OTHERS[1].size)],
        [(None, "What?", size)],
    ]
    assert heard == ["bringing evidence for 2 samples", "bringing evidence"]
    with exact.using(Given(evidence=source)):
        exact.answer(picture, QUESTION, max_new_tokens=2)
    assert len(source.calls) == 3, "another attachment begins anew"


def test_a_callable_may_ask_the_very_model_that_answers(exact, picture):
    plain = exact.answer(picture, "What?", max_new_tokens=4).token_ids
    seen = []

    def ask(asked):
        seen.append(exact.answer(asked[0].picture, "What?", max_new_tokens=4).token_ids)
        return [Evidence(OTHERS[:1])]

    direct = told(exact, [picture], Given(evidence=brings(OTHERS[0]), alpha=3.0))
    assert told(exact, [picture], Given(evidence=ask, alpha=3.0)) == direct
    assert seen == [plain]


def raising(asked):
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("source", "error", "why"),
    [
        (raising, SettingError, "ZeroDivisionError: division by zero"),
        (lambda _asked: [], SettingError, "0 came for 1 samples"),
        (lambda _asked: None, SettingError, "TypeError"),
        (lambda _asked: [OTHERS[0]], SettingError, "it is of the kind Image"),
        (lambda _asked: [Evidence(("nowhere.png",))], ImageError, "nowhere.png: no such image file"),
        (lambda _asked: [Evidence((Image.new("RGB", (2, 2)),))], ImageError, "2 x 2 pixels"),
    ],
    ids=["raises", "too few", "nothing", "no evidence", "no file", "too small"],
)
def test_a_callable_that_fails_is_an_error_that_names_the_sample(exact, picture_file, source, error, why):
    plain = exact.answer(picture_file, QUESTION, max_new_tokens=3).token_ids
    with pytest.raises(error, match=r"evidence for street\.png with 'Is there a dog in the image\?'") as caught:
        told(exact, [picture_file], Given(evidence=source))
    assert why in str(caught.value)
    assert attached(exact.backbone.model) == []
    assert not exact.backbone.model._forward_hooks
    assert not exact.backbone.model._forward_pre_hooks
    assert exact.answer(picture_file, QUESTION, max_new_tokens=3).token_ids == plain


def test_a_callable_that_runs_out_of_memory_says_so(exact, picture):
    def heavy(_asked):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):  # a run halves its batch
        told(exact, [picture], Given(evidence=heavy))


def test_a_callable_needs_to_know_what_is_asked(exact, picture):
    with exact.using(Given(evidence=brings(*OTHERS))), pytest.raises(UnsupportedDecoding, match=r"call model\.answer"):
        exact.backbone.model.generate(**exact.backbone.encode([picture], [QUESTION]), max_new_tokens=2)


# --- what brings evidence ----------------------------------------------------------------------------------------------


def asked_about(*rows):
    return [Asked(picture, prompt) for picture, prompt in rows]


def test_pictured_draws_the_plain_models_own_caption(exact, picture):
    texts = []

    def draws(captions, count, seed):
        texts.extend(captions)
        return [[OTHERS[(seed + number) % 3] for number in range(count)] for _ in captions]

    made = Pictured(exact, draws, prompt="What?", length=5, count=2, seed=1)
    found = made(asked_about((picture, "One?"), (OTHERS[0], "Two?"), (picture, "Three?")))
    assert found == [Evidence((OTHERS[1], OTHERS[2]))] * 3
    assert texts == [exact.answer(one, "What?", max_new_tokens=5).text for one in (picture, OTHERS[0])]
    assert told(exact, [picture], Given(evidence=made, preset="convis")) == told(
        exact, [picture], Given(evidence=brings(OTHERS[1], OTHERS[2]), beta=0.0)
    )


def test_fields_are_crops_around_the_smallest_of_the_surest_boxes(exact, picture):
    seen = []

    def detects(pictures, words):
        seen.extend(words)
        small, sure, unsure = ((0.4, 0.4, 0.6, 0.6), (0.1, 0.1, 0.9, 0.9), (0.0, 0.0, 0.1, 0.1))
        boxes = [Box("dog", 0.8, *small), Box("dog", 0.9, *sure), Box("dog", 0.1, *unsure)]
        return [boxes if "dog" in asked else [] for asked in words]

    fields = Fields(exact, detects, fields=3, most_boxes=2, length=4)
    found, middle = fields(asked_about((picture, "Is there a dog beside the puppy?"), (picture, "Describe it.")))
    assert seen == [["dog"], []]
    width, height = picture.size
    for evidence, box in ((found, (0.4, 0.4, 0.6, 0.6)), (middle, (0.2, 0.2, 0.8, 0.8))):
        sizes = [(round(w * width), round(h * height)) for w, h in (side(b) for b in reference.fields(box, 3, 0.6))]
        for crop_, (w, h) in zip(evidence.pictures, sizes, strict=True):
            assert abs(crop_.width - max(w, 8)) <= 2
            assert abs(crop_.height - max(h, 8)) <= 2
    assert crop(picture, (0.0, 0.0, 1.0, 1.0)) == picture
    assert crop(picture, (0.99, 0.5, 1.0, 0.5)).size == (8, 8)
    with pytest.raises(SettingError, match="fields=1"):
        Fields(exact, detects, fields=1)


def side(box):
    return box[2] - box[0], box[3] - box[1]


def test_listed_writes_what_is_found_surely_enough_into_the_prompt(picture):
    def detects(pictures, words):
        assert words == [["dog", "cat", "cow"]] * len(pictures)
        return [
            [
                Box("dog", 0.96, 0, 0, 1, 1),
                Box("cat", 0.99, 0, 0, 1, 1),
                Box("dog", 0.97, 0, 0, 1, 1),
                Box("cow", 0.9, 0, 0, 1, 1),
            ]
        ]

    (found,) = Listed(detects, ("dog", "cat", "cow"))(asked_about((picture, "Is it a dog?")))
    assert found == Evidence(text="This image contains cat and dog. Based on this, is it a dog?")
    (none,) = Listed(detects, ["dog", "cat", "cow"], threshold=1.0)(asked_about((picture, "Is it a dog?")))
    assert none == Evidence(text="Is it a dog?")
    for wrong in ({"words": "dog"}, {"words": ()}, {"template": "{objects}"}, {"threshold": 2}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Listed(detects, **{"words": ["dog"], **wrong})


def test_other_takes_a_picture_of_another_sample_and_always_the_same(picture):
    others = Other([picture, *OTHERS], seed=3)
    rows = asked_about((picture, "One?"), (OTHERS[0], "Two?"), (picture, "Three?"))
    found = others(rows)
    assert others(rows[::-1])[::-1] == found
    for row, evidence in zip(rows, found, strict=True):
        assert evidence.pictures[0] != row.picture
    assert found[0] == found[2]
    assert len({Other([picture, *OTHERS], seed=seed)(rows)[0].pictures[0].tobytes() for seed in range(9)}) > 1
    assert Other([picture])(rows[:1]) == [None]


# --- settings --------------------------------------------------------------------------------------------------------


def test_presets_are_the_published_settings():
    filled = {name: Given(evidence=brings(*OTHERS), preset=name) for name in PRESETS}
    told_ = {name: (one.combine, one.alpha, one.beta, one.weight, one.gate, one.most) for name, one in filled.items()}
    assert told_ == {
        "convis": ("contrast", 1.0, 0.0, None, 0.0, 4),
        "agla": ("agree", 2.0, 0.5, None, 0.0, 1),
        "halc": ("pair", None, None, 0.05, None, 4),
        "marine": ("guide", 0.7, None, None, None, 4),
        "cicd": ("contrast", 1.0, 0.1, None, 0.0, 1),
    }
    own = Given(evidence=brings(*OTHERS), preset="convis", alpha=0.1)
    assert (own.alpha, own.beta) == (0.1, 0.0)
    for method in filled.values():
        assert replace(method, branch_mode="sequential").combine == method.combine
    plain = Given(evidence=brings(*OTHERS))
    assert (plain.combine, plain.alpha, plain.beta, plain.gate, plain.most) == ("contrast", 1.0, 0.1, 0.0, 4)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"evidence": 3}, "evidence=3"),
        ({"evidence": {}}, "evidence is empty"),
        ({"evidence": {"a.png": OTHERS[0]}}, "evidence holds Image"),
        ({"evidence": {3: Evidence(text="x")}}, "under 3"),
        ({"combine": "add"}, "combine='add'"),
        ({"alpha": -1}, "alpha=-1"),
        ({"beta": 2}, "beta=2"),
        ({"gate": "x"}, "gate"),
        ({"most": 0}, "most=0"),
        ({"combine": "pair", "most": 1}, "most=1"),
        ({"combine": "pair", "alpha": 1.0}, "alpha has no use in combine=pair"),
        ({"combine": "guide", "beta": 0.1}, "beta has no use"),
        ({"combine": "guide", "gate": 0.1}, "gate has no use"),
        ({"weight": 1.0}, "weight has no use in combine=contrast"),
        ({"missing": "skip"}, "missing='skip'"),
        ({"preset": "vcd"}, "preset='vcd'"),
        ({"template": "{objects} {prompt}"}, "template"),
        ({"branch_mode": "cached"}, "branch_mode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # no addresses of pictures: processes must agree
)
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(SettingError) as caught:
        Given(**{"evidence": brings(*OTHERS), **settings})
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "given", [{}, {"pictures": OTHERS, "text": "x"}, {"text": " "}, {"pictures": "a.png"}, {"pictures": [3]}]
)
def test_evidence_is_pictures_or_a_text(given):
    with pytest.raises(SettingError, match=r"pictures|text"):
        Evidence(**given)


def test_without_a_picture_or_with_too_few_it_is_refused(exact, picture):
    with exact.using(Given(evidence=brings(*OTHERS))), pytest.raises(PromptError, match="leave given off"):
        exact.answer(None, "What?", max_new_tokens=2)
    for evidence, number in ((brings(OTHERS[0]), 1), (brings(text=TEXT), 0)):
        with (
            exact.using(Given(evidence=evidence, combine="pair")),
            pytest.raises(PromptError, match=f"has {number}: bring more"),
        ):
            exact.answer(picture, "What?", max_new_tokens=2)


def test_a_text_that_is_too_long_is_refused_by_the_methods_name(exact, picture):
    with (
        exact.using(Given(evidence=brings(text="word " * 4000))),
        pytest.raises(PromptError, match=r"given's branch|prompt has"),
    ):
        exact.answer(picture, "What?", max_new_tokens=2)


@pytest.mark.parametrize("combine", ["guide", "pair"])
def test_a_guide_and_a_pair_decode_from_no_one_state(combine):
    method = Given(evidence=brings(*OTHERS), combine=combine)
    assert not method.has_state
    with pytest.raises(SettingError, match=r"^given decodes from no one state"):
        method.require_state()
    assert Given(evidence=brings(*OTHERS)).has_state


def test_a_run_notes_the_evidences_sum_and_is_not_resumed_with_another(answer, folder, tmp_path):
    from mgap.pocket.samples import pope_samples

    names = dict.fromkeys(sample.image for sample in pope_samples(count=1).samples)
    path = write(folder, *({"image": name, "pictures": ["drawn/0.png"]} for name in names))
    keys = {"methods": [{"method": "given", "evidence": str(path)}], "scenes": 1}
    run, summary = answer(tmp_path / "run", **keys)
    assert summary.answered["given"] == len(run.samples)
    assert run.methods[0].files == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    path.write_text(path.read_text() + "\n")
    with pytest.raises(mgap.errors.RunError, match=r"given were made with given\.files"):
        answer(tmp_path / "run", **keys)


def test_ask_takes_a_file(run, tiny_model, tiny, folder):
    path = write(folder, ANY)
    with tiny_model.using(Given(evidence=path, alpha=3.0)):
        expected = tiny_model.answer(folder / "street.png", QUESTION, max_new_tokens=4)
    words = ["ask", folder / "street.png", QUESTION, "-m", tiny, "--method", "given", "--max-new-tokens", 4]
    assert run(*words, "--set", f"evidence={path}", "--alpha", 3)[:2] == (0, f"{expected}\n")
    status, _, err = run(*words)
    assert status == 2
    assert "given needs a setting 'evidence'" in err
