"""Checks decoding with given evidence against reference vectors: the four ways to combine, the gate, and nested boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mgap.methods.given.brings import nested_boxes
from mgap.methods.given.evidence import Evidence
from mgap.methods.given.given import Given, choose_pair, divergence, mean_logits, pair_divergence
from mgap.verify.compare import VectorDifference, Vectors, differ, tensor


def check(vectors: Vectors) -> Iterator[VectorDifference]:
    """Section 2 of the specification, and the boxes of section 5."""
    main, branches = tensor(vectors, "logits"), list(tensor(vectors, "logits_given").unbind(1))
    count = torch.full(main.shape[:1], len(branches))
    mean = mean_logits(branches, count)
    yield differ("mean_given", mean, vectors["mean_given"])
    number = {name: float(vectors[name]) for name in SETTINGS}
    cut = {"alpha": number["alpha"], "beta": number["beta"]}
    forms: dict[str, dict[str, Any]] = {
        "out_contrast": cut,
        "out_contrast_uncut": {**cut, "beta": 0.0},
        "out_agree": {"combine": "agree", "alpha": number["agree_alpha"], "beta": number["agree_beta"]},
        "out_guide": {"combine": "guide", "alpha": number["guidance"]},
        "out_pair": {"combine": "pair", "weight": number["pair_weight"]},
        "out_gated": {**cut, "gate": number["gate"]},
    }
    for name, settings in forms.items():
        method = Given(evidence={"?": Evidence(text="?")}, **settings)
        yield differ(name, method.weigh(main, branches, 1, {})[0], vectors[name])
    matrix = [[pair_divergence(one, other) for other in branches] for one in branches]
    yield differ("divergence", torch.stack([torch.stack(row, -1) for row in matrix], 1), vectors["divergence"])
    yield differ("pair", torch.stack(choose_pair(branches, count), -1), vectors["pair"])
    yield differ("js", divergence(main, mean), vectors["js"])
    yield differ("is_open", divergence(main, mean) >= number["gate"], vectors["is_open"])
    fields, ratio = int(vectors["fields"]), float(vectors["ratio"])
    nested = [nested_boxes(tuple(box), fields, ratio) for box in vectors["boxes"].tolist()]
    yield differ("nested_boxes", torch.tensor(nested, dtype=torch.float64), vectors["nested_boxes"])


SETTINGS = ("alpha", "beta", "agree_alpha", "agree_beta", "guidance", "pair_weight", "gate")
