"""Whether an engine's requests have become unlike those it began with: the strength was chosen for these."""

from __future__ import annotations

import math
from collections.abc import Sequence

NAMES = ("entropy", "cosine")  # what beta is made of
LEAST_ROWS = 400  # of a window
FAR = 0.5  # distance between two windows' means, in standard deviations of the first window's rows


class Drift:
    """Compares windows of sampled rows with the first one, by the mean entropy and the mean cosine."""

    def __init__(self) -> None:
        self.before: list[float] = [0.0] * (1 + 2 * len(NAMES))  # the sums at the end of the last window
        self.first: list[tuple[float, float]] = []  # mean and standard deviation, by name

    def look(self, rows: float, moments: Sequence[float]) -> str:
        """The warning, or "". `moments` are sums since the start: of each name's values, then of their squares."""
        totals = [rows, *moments]
        since = [now - then for now, then in zip(totals, self.before, strict=True)]
        if since[0] < LEAST_ROWS:
            return ""  # the window goes on
        self.before = totals
        means = [value / since[0] for value in since[1:]]
        if not self.first:
            pairs = zip(means[: len(NAMES)], means[len(NAMES) :], strict=True)
            self.first = [(mean, math.sqrt(max(square - mean**2, 0.0))) for mean, square in pairs]
            return ""
        far = [
            f"mean {name} {now:.3g} now and {mean:.3g} at first, where rows differ by {deviation:.2g}"
            for name, now, (mean, deviation) in zip(NAMES, means, self.first, strict=False)
            if abs(now - mean) > FAR * deviation
        ]
        return f"requests are unlike the first ones: {'; '.join(far)}. Tune the strength on such as come now" if far else ""
