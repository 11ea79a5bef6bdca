"""OPERA, written out for one sample: no cache, a full forward for every beam and every candidate, products one by one."""

from collections import Counter, defaultdict
from contextlib import contextmanager

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from mgap.decoding.generate import end_ids
from tests.reference.contrast import probabilities


@contextmanager
def watched(backbone):
    """Inside: attention of the text decoder in float64; yields a list whose last entry is the last block's weights."""
    seen, last = [], len(backbone.layers) - 1

    def attention(module, query, key, value, mask, scaling, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1).double(), value.repeat_interleave(groups, 1).double()
        weights = (query.double() @ key.transpose(-1, -2) * scaling + mask.double()).softmax(-1)  # [1, heads, T, T]
        if module.layer_idx == last:
            seen.append(weights[0])
        return (weights @ value).transpose(1, 2).to(query.dtype), None

    AttentionInterface.register("reference_opera", attention)
    AttentionMaskInterface.register("reference_opera", eager_mask)
    config = backbone.language.config
    before, config._attn_implementation = config._attn_implementation, "reference_opera"
    try:
        yield seen
    finally:
        config._attn_implementation = before


def forward(model, inputs, tokens):
    """Logits after prompt and tokens, and the last block's weights: the largest over the heads, rows that sum to 1."""
    said = torch.tensor([tokens], dtype=torch.long)
    rows = {**inputs, "input_ids": torch.cat([inputs["input_ids"], said], dim=1)}
    rows["attention_mask"] = torch.ones_like(rows["input_ids"])
    if "mm_token_type_ids" in inputs:
        rows["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(said)], dim=1)
    with torch.no_grad(), watched(model.backbone) as seen:
        logits = model.backbone.model(**rows, use_cache=False).logits[0, -1].double().tolist()
    largest = seen[-1].max(0).values
    return logits, (largest / largest.sum(-1, keepdim=True)).tolist()


def weigh(model, inputs, tokens, settings):
    """Of one beam: logits, the scores of all tokens, and the column that its candidates collapse onto."""
    prompt = inputs["input_ids"][0].tolist()
    images = [j for j, token in enumerate(prompt) if token == model.backbone.image_token_id]
    logits, _ = forward(model, inputs, tokens)
    ranked = sorted(range(len(logits)), key=lambda token: -logits[token])[: settings["candidates"]]
    scores, columns = [-999.0] * len(logits), []
    for candidate in ranked:
        _, w = forward(model, inputs, (*tokens, candidate))
        start, end = len(prompt), len(w)
        phi = []
        for j in range(start, end):
            product = 1e-7
            for i in range(j, end):
                product *= settings["sigma"] * w[i][j]
            phi.append(product)
        columns.append(phi.index(max(phi)))
        rho = -sum(w[-1][j] for j in images) if end - start <= 10 else max(phi)
        scores[candidate] = logits[candidate] - settings["alpha"] * rho
    return logits, scores, mode(columns)


def mode(values):
    counts = Counter(values)
    return min(value for value in counts if counts[value] == max(counts.values()))


def decode(model, inputs, new, *, beams, r, **settings):
    """The best answer's tokens, and how often the search went back."""
    ends, often = end_ids(model.backbone), settings["candidates"]
    running, finished, t, again = [(0.0, (), ())], [], 0, False
    kept, returns, banned = {}, Counter(), defaultdict(set)
    while True:
        kept[t] = (running, finished)
        told = [weigh(model, inputs, tokens, settings) for _, tokens, _ in running]
        running = [(score, tokens, (*past, own[2])) for (score, tokens, past), own in zip(running, told, strict=True)]
        place = None if again else where_to(running, returns, often, r)
        if place is not None and place < t:
            banned[place] |= {tokens[place] for _, tokens, _ in running}
            returns[place] += 1
            (running, finished), t, again = kept[place], place, True
            continue
        continued = []
        for (score, tokens, past), (logits, scores, _) in zip(running, told, strict=True):
            if again:
                scores = [-999 + logit - min(logits) for logit in logits]
                scores = [-999.0 if token in banned[t] else s for token, s in enumerate(scores)]
            logp = torch.tensor(probabilities(scores), dtype=torch.float64).log().tolist()
            continued += [(score + step, (*tokens, token), past) for token, step in enumerate(logp)]
        continued = sorted(continued, key=lambda one: -one[0])[: 2 * beams]
        again, t = False, t + 1
        has_ended = [tokens[-1] in ends or t == new for _, tokens, _ in continued]
        for (score, tokens, _), over in zip(continued[:beams], has_ended, strict=False):
            if over:
                finished = sorted([*finished, (score / t, tokens)], key=lambda one: -one[0])[:beams]
        running = [one for one, over in zip(continued, has_ended, strict=True) if not over][:beams]
        if not running or (len(finished) == beams and running[0][0] / t <= finished[-1][0]):
            return finished[0][1], sum(returns.values())


def where_to(running, returns, often, r):
    """The position to go back to, or None."""
    word = mode([past[-1] for _, _, past in running])
    if word < 10 or min(past.count(word) for _, _, past in running) <= r:
        return None
    return next((place for place in (word + 1, word) if returns[place] < often), None)
