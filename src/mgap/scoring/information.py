"""How much an answer tells about the picture: a way to judge a step without labels.

Who answers from a prior says the same to one question whatever the picture; so does, the other way round, a step that is too
large. Of every question that is asked about several pictures: the entropy of its mean answer less the mean entropy of its
answers, which is the information between picture and answer, in nats. It is highest where answers are sure and differ between
pictures; where nearly all pictures truly have the same answer, it says little.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mgap.errors import BenchmarkError
from mgap.scoring.stats import Counts
from mgap.types import Sample


def repeated(samples: Sequence[Sample]) -> list[int]:
    """The places of the samples whose question is asked about more than one picture; refuses none at all."""
    shown: dict[str, set[str]] = {}
    for sample in samples:
        shown.setdefault(sample.prompt, set()).add(sample.image)
    places = [place for place, sample in enumerate(samples) if len(shown[sample.prompt]) > 1]
    if not places:
        raise BenchmarkError(
            "rule information: no question is asked about two pictures, so answers cannot be held against each other; "
            "ask the same ones of several pictures, or take the rule departure"
        )
    return places


def information_values(samples: Sequence[Sample], shares: Counts) -> dict[int, float]:
    """From the probability of each verdict, shares [points, samples, verdicts], by point; give `repeated` samples, each once.

    No interval goes with it: pictures that are drawn twice agree with themselves, so a bootstrap would sit too low.
    """
    prompts = _numbers([sample.prompt for sample in samples])
    asks = np.eye(len(prompts))[[prompts[sample.prompt] for sample in samples]].T  # [prompts, samples]
    return {place: _information(asks @ _columns(each)) for place, each in enumerate(shares)}


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def _columns(shares: Counts) -> Counts:
    """What a sample adds to its question: one, its answer's probabilities, and their entropy."""
    columns: Counts = np.column_stack([np.ones(len(shares)), shares, _entropy(shares)])
    return columns


def _information(sums: Counts) -> float:
    """From the sums of these columns over each question, [prompts, 1 + verdicts + 1]."""
    of = sums[:, 0]
    told = of * _entropy(sums[:, 1:-1] / of[:, None]) - sums[:, -1]
    return float(told.sum() / of.sum())


def _entropy(shares: Counts) -> Counts:
    entropy: Counts = -(shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(-1)
    return entropy
