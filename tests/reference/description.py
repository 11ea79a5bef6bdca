"""CODE, written out: description by full forwards without a cache, the branch's prompt by hand, scores in plain Python."""

import math

import torch

from tests.reference.contrast import decode, probabilities


def describe(model, picture, prompt, new):
    """What the model says to the prompt, greedily."""
    inputs = model.backbone.encode([picture], [prompt])
    tokens = decode(model, inputs, inputs, lambda main, _same, _t: main, new)
    return model.backbone.tokenizer.decode(tokens, skip_special_tokens=True).strip()


def told(backbone, picture, question, description, place):
    """One row: the prompt with the description instead of the picture."""
    if place == "before_question":
        gap = "\n" if "<image>\n" in backbone.render("?") else " "
        return backbone.encode([None], [f"{description}{gap}{question}"])
    shown, words = backbone.encode([picture], [question]), backbone.tokenizer(description)["input_ids"]
    ids = []
    for token in shown["input_ids"][0].tolist():
        if token != backbone.image_token_id:
            ids.append(token)
        elif words is not None:
            ids, words = ids + words, None
    rows = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if "mm_token_type_ids" in shown:
        rows["mm_token_type_ids"] = torch.zeros(1, len(ids), dtype=torch.long)
    return rows


def countering(k):
    def step(main, branch, _t):
        p, q = probabilities(main), probabilities(branch)
        D = sum((a + b) * math.log2(abs(a - b) ** k + 1) for a, b in zip(p, q, strict=True)) / 2
        scores = [(2 - D) * a - (1 - D) * b for a, b in zip(main, branch, strict=True)]
        return [score if a >= D * max(p) else -math.inf for score, a in zip(scores, p, strict=True)]

    return step
