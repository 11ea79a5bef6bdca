"""A method with a second branch against its reference, over several questions and in both ways of running."""

from dataclasses import replace

from tests.reference import contrast as reference

QUESTIONS = ("Is there a dog in the image?", "What?", "Describe it.", "How many people are there?", "Which colour?")
NEW = 20


def follow(model, picture, method, branch_of, step):
    """The method's tokens are the reference's, over several questions and over NEW tokens of one at least."""
    lengths = []
    for question in QUESTIONS:
        main = model.backbone.encode([picture], [question])
        expected = reference.decode(model, main, branch_of(main, question), step, NEW)
        for mode in ("batched", "sequential"):
            with model.using(replace(method, branch_mode=mode)):
                tokens = model.answer(picture, question, max_new_tokens=NEW).token_ids
            assert tokens[: len(expected)] == expected, (question, mode)
        lengths.append(len(expected))
    assert max(lengths) == NEW, lengths
