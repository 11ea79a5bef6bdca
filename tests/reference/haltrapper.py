"""HalTrapper, written out: full forwards without a cache, whole attention matrices, strings cut by hand, one word at a time."""

import math
import random

import torch

from mgap.decoding.generate import end_ids
from tests.reference.attention import eager
from tests.reference.contrast import cut
from tests.reference.description import describe

CAPTION = "Please help me describe the image in detail."
IMAGINE = """Based on this image, please imagine what object might be in the {} outside the frame, and explain why. \
Specifically, your response should follow the following format:

Imagination: <one imaginary object here>
Reason: The image features <briefly describe this image, be careful to mention all objects related to your imagination>, \
which suggests that <your imagination here>."""
WHERE = ["top", "bottom", "left side", "right side",
         "top left corner", "top right corner", "bottom left corner", "bottom right corner"]  # fmt: skip
CUES = ["suggests that", "might be", "likely that", "indicates that"]


def named(text, words):
    """Words of the list in the text, in its order, with the character where each comes first. One-word names only."""
    found, start = {}, 0
    for raw in text.split(" "):
        word = raw.lower().strip(".,;:!?\n")
        for form in (word, word.removesuffix("s")):
            if form in words and form not in found:
                found[form] = start
        start += len(raw) + 1
    return found


def parse(reply):
    lines = reply.split("\n")
    if len(lines) < 2 or not lines[0].startswith("Imagination: ") or not lines[1].startswith("Reason: "):
        return None
    imagined, reason = lines[0].removeprefix("Imagination: "), lines[1].removeprefix("Reason: ")
    if not any(cue in reason for cue in CUES):
        return imagined, reason
    place, cue = min((reason.find(cue), cue) for cue in CUES if cue in reason)
    return f"{imagined} {reason[place + len(cue) :].strip()}", reason[:place].strip()


def expansion(replies, words):
    score = {}
    for reply in replies:
        fields = parse(reply)
        if fields is None:
            continue
        for sign, text in zip((-1, 1), fields, strict=True):
            for word in named(text, words):
                score[word] = score.get(word, 0) + sign
    return score


def grounding(model, picture, caption, words):
    """IG of the words of a caption, with the attention of every layer to every position in hand."""
    backbone, tokenizer = model.backbone, model.backbone.tokenizer
    rendered = backbone.render(CAPTION)
    gap = " " if rendered.endswith("ASSISTANT:") else ""
    inputs = dict(backbone.encode_rendered([picture], [f"{rendered}{gap}{caption} There is also"]))
    attentions = []
    with eager(backbone), torch.no_grad():
        for _ in range(2):
            out = backbone.model(**inputs, output_attentions=True, use_cache=False)
            attentions.append(torch.stack(out.attentions)[:, 0].double())  # [layers, heads, T, T]
            best = out.logits[0, -1].argmax().view(1, 1)
            if len(attentions) == 1 and int(best) in end_ids(model.backbone):
                return {}
            inputs["input_ids"] = torch.cat([inputs["input_ids"], best], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if "mm_token_type_ids" in inputs:
                inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(best)], dim=1)
    ids = inputs["input_ids"][0, :-2].tolist()
    images = [n for n, token in enumerate(ids) if token == backbone.image_token_id]
    before, after = attentions
    looking = [float(x) for x in after[:, :, -1, images].flatten()]  # the first new token's
    tail, scores = len(tokenizer.decode(ids)) - len(f"{caption} There is also"), {}
    for word, place in named(caption, words).items():
        j = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[: n + 1])) > tail + place)
        row = [float(x) for x in before[:, :, j - 1, images].flatten()]
        dot = sum(a * b for a, b in zip(row, looking, strict=True))
        scores[word] = dot / math.sqrt(sum(a * a for a in row) * sum(b * b for b in looking))
    return scores


def choose(caption, ee, ig, vocabulary, tau_ig, tau_ee, n, seed):
    """`vocabulary` maps each name to other words for it."""
    ranked = [(score, word) for word, score in ig.items() if score > tau_ig]
    ranked += [(-1, word) for word, score in ee.items() if score < -tau_ee and word not in [w for _, w in ranked]]
    ranked.sort(key=lambda pair: pair[0], reverse=True)  # keeps the order of equal ones
    words = [word for _, word in ranked]
    if n >= 1 and len(words) > n:
        words = words[:n]
    elif n >= 1:
        seen = set(caption) | set(ee) | set(ig)
        for word in list(seen):
            seen |= set(vocabulary.get(word, ()))
        others = [word for word in sorted(vocabulary) if word not in seen]
        words += random.Random(seed).sample(others, min(n - len(words), len(others)))
    return sorted(words)


def betray(model, picture, words, length):
    """Caption, EE and IG of one picture."""
    caption = describe(model, picture, CAPTION, length)
    replies = [describe(model, picture, IMAGINE.format(where), length) for where in WHERE]
    return caption, expansion(replies, words), grounding(model, picture, caption, words)


def behind_the_picture(backbone, picture, question, words):
    """One row: the words as one string directly behind the picture's last token."""
    inputs = dict(backbone.encode([picture], [question]))
    ids, new = inputs["input_ids"][0].tolist(), []
    for n, token in enumerate(ids):
        new.append(token)
        if token == backbone.image_token_id and ids[n + 1] != token:
            new += backbone.tokenizer("".join(f" {word}" for word in words), add_special_tokens=False)["input_ids"]
    inputs["input_ids"] = torch.tensor([new])
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.tensor([[int(token == backbone.image_token_id) for token in new]])
    return inputs


def augmenting(alpha, beta):
    def step(main, branch, _t):
        return cut([a + alpha * b for a, b in zip(main, branch, strict=True)], main, beta)

    return step
