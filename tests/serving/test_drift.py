"""The warning that an engine's requests are unlike the first ones."""

import torch

from mgap.serving.drift import FAR, LEAST_ROWS, Drift


def window(drift, entropy, cosine, sums):
    """What is said of rows with these values, after those whose sums are in `sums`."""
    sums[0] += len(entropy)
    for place, values in enumerate((entropy, cosine, entropy.square(), cosine.square())):
        sums[1 + place] += float(values.sum())
    return drift.look(sums[0], sums[1:])


def rows(mean, deviation, seed, count=LEAST_ROWS):
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return mean + deviation * (values - values.mean()) / values.std(correction=0)


def test_rows_like_the_first_ones_are_passed_by():
    drift, sums = Drift(), [0.0] * 5
    for seed in range(4):
        near = 0.9 * FAR if seed else 0.0
        assert window(drift, rows(1.0 + 0.2 * near, 0.2, seed), rows(0.5 - 0.1 * near, 0.1, seed + 9), sums) == ""


def test_the_mean_that_went_far_is_named_with_both_values():
    drift, sums = Drift(), [0.0] * 5
    assert window(drift, rows(1.0, 0.2, 0), rows(0.5, 0.1, 1), sums) == ""
    said = window(drift, rows(1.0, 0.2, 2), rows(0.5 + 0.1 * 1.1 * FAR, 0.1, 3), sums)
    assert said.startswith(
        "requests are unlike the first ones: mean cosine 0.555 now and 0.5 at first, where rows differ by 0.1."
    )
    assert "entropy" not in said
    assert "entropy 2 now" in window(drift, rows(2.0, 0.2, 4), rows(0.5, 0.1, 5), sums)
    assert window(drift, rows(1.0, 0.2, 6), rows(0.5, 0.1, 7), sums) == "", "a window has no memory of the last one"


def test_a_few_rows_make_no_window():
    drift, sums = Drift(), [0.0] * 5
    window(drift, rows(1.0, 0.2, 0), rows(0.5, 0.1, 1), sums)
    few = LEAST_ROWS // 2
    assert window(drift, rows(9.0, 0.2, 2, few), rows(0.5, 0.1, 3, few), sums) == ""
    assert "entropy 9 now" in window(drift, rows(9.0, 0.2, 4, few), rows(0.5, 0.1, 5, few), sums), "together they do"
