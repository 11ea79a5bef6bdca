"""What Prometheus reads of MGAP at vLLM's `/metrics`.

Gauges are sums since the start: the `delta` of two of them over some minutes has these minutes' mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

REQUESTS = Counter("mgap_requests", "Requests accepted, by the strength that they ask for", ["strength"])
ON = Gauge("mgap_on", "1 for the prior that MGAP works with", ["prior"], multiprocess_mode="mostrecent")
ROWS = Gauge("mgap_rows", "Rows looked at, in one step of sixteen", multiprocess_mode="mostrecent")
SUMS = {
    "beta": Gauge("mgap_beta_sum", "Sum over these rows of the share taken out", multiprocess_mode="mostrecent"),
    "changed": Gauge("mgap_changed_rows", "Of these rows, those with another likeliest token", multiprocess_mode="mostrecent"),
    "entropy": Gauge("mgap_entropy_nats_sum", "Sum over these rows of the entropy", multiprocess_mode="mostrecent"),
    "cosine": Gauge("mgap_cosine_sum", "Sum over these rows of the cosine with the prior", multiprocess_mode="mostrecent"),
}


def strength_label(alpha: float | None) -> str:
    """A request's strength, in few enough words for a label."""
    if alpha is None:
        return "server"
    return "0" if alpha == 0 else "up to 1" if alpha <= 1 else "above 1"


def count_request(alpha: float | None) -> None:
    REQUESTS.labels(strength_label(alpha)).inc()


def set_counts(counts: Mapping[str, float]) -> None:
    """`counts.CountSummary` as JSON: means over rows."""
    ROWS.set(counts["rows"])
    for name, gauge in SUMS.items():
        gauge.set(counts[name] * counts["rows"])


def set_prior(place: str) -> None:
    ON.clear()
    ON.labels(place).set(1)
