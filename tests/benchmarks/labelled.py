"""POPE's score of bare labels and verdicts, for tests."""

from mgap.benchmarks.pope.scorer import PopeScore, tally_verdicts
from mgap.types import Sample


def score_labels(labels, verdicts, pictures):
    rows = enumerate(zip(labels, pictures, strict=True))
    samples = [Sample(str(number), str(picture), "", "", label) for number, (label, picture) in rows]
    return PopeScore.of(tally_verdicts(samples, verdicts, [""] * len(samples)))
