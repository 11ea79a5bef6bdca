"""ED and FastED, written out: no cache; the picture and its crops read from the start for every token, all weights kept."""

import math

import torch
from PIL import Image

from mgap.decoding.generate import end_ids
from tests.reference.attention import eager
from tests.reference.contrast import cut, probabilities


def crops(picture, side=None, share=None):
    """The four corners, in the order of reading; black where a crop leaves the picture."""
    if share is None and max(picture.size) > 2 * side:
        picture = picture.resize((int(side * 4 / 3), int(side * 4 / 3)), Image.Resampling.BICUBIC)
    w, h = (side, side) if share is None else (round(share * picture.width), round(share * picture.height))
    made = []
    for top in (0, picture.height - h):
        for left in (0, picture.width - w):
            crop = Image.new("RGB", (w, h))
            crop.paste(picture, (-left, -top))
            made.append(crop)
    return made


def grid(inputs, count):
    """Rows and columns of a picture of so many tokens."""
    if "image_grid_thw" in inputs:
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        return rows // 2, columns // 2  # two by two patches are a token
    return math.isqrt(count), math.isqrt(count)


def largest(values, count=3):
    return sorted(values, reverse=True)[:count]


def mean(values):
    return sum(values) / len(values)


def quarter_sums(attentions, places, rows, columns):
    """S: of the last query's weights, block by block [1, heads, T, T], at the picture's places in the prompt."""
    weights = [block[0, :, -1].tolist() for block in attentions]  # block, head, key
    sums = [0.0, 0.0, 0.0, 0.0]
    for number, j in enumerate(places):
        at_heads = [mean(largest([block[h][j] for block in weights])) for h in range(len(weights[0]))]
        row, column = divmod(number, columns)
        quarter = (2 if row >= rows // 2 else 0) + (1 if column >= columns // 2 else 0)
        sums[quarter] += mean(largest(at_heads))
    return sums


def decode(model, picture, question, settings, new):
    """Greedy tokens of one row, and S at each of them; `settings` has tau, or None for FastED."""
    backbone, own = model.backbone, model.backbone.model
    shape = {name: settings[name] for name in ("side", "share") if settings.get(name)}
    every = [backbone.encode([shown], [question]) for shown in (picture, *crops(picture, **shape))]
    places = (every[0]["input_ids"][0] == backbone.image_token_id).nonzero()[:, 0].tolist()
    tokens, read, best = [], [], None
    for _ in range(new):
        with torch.no_grad():
            with eager(backbone):
                out = own(**every[0], use_cache=False, output_attentions=True)
            logits = [own(**inputs, use_cache=False).logits[0, -1].double().tolist() for inputs in every[1:]]
        main = out.logits[0, -1].double().tolist()
        read.append(quarter_sums(out.attentions, places, *grid(every[0], len(places))))
        if best is None:
            best = read[0].index(max(read[0]))
        if settings["tau"] is None:
            ensemble = logits[best]
        else:
            w = probabilities([s / 10 ** -settings["tau"] for s in read[-1]])
            ensemble = [
                sum(weight * value for weight, value in zip(w, values, strict=True)) for values in zip(*logits, strict=True)
            ]
        a = settings["alpha"]
        scores = cut([(1 - a) * x + a * e for x, e in zip(main, ensemble, strict=True)], ensemble, settings["beta"])
        chosen = max(range(len(scores)), key=lambda token: scores[token])
        tokens.append(chosen)
        if chosen in {*end_ids(backbone), backbone.image_token_id}:
            break
        for inputs in every:
            token = torch.tensor([[chosen]])
            inputs["input_ids"] = torch.cat([inputs["input_ids"], token], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if "mm_token_type_ids" in inputs:
                inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(token)], dim=1)
    return tuple(tokens), read
