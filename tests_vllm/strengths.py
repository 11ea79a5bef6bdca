"""Strengths at which vLLM and transformers are compared: the server's, a request's own, and how each is asked for."""

from typing import Any

SERVER = 0.75
OWN = {0: None, 1: 0.0, 2: 5.0}  # what every third request asks for; None: nothing
LENGTHS = (4, 24, 11, 17)  # tokens of answers: rows leave and move


def with_mgap(world: Any, alpha: float, **more: Any) -> dict[str, Any]:
    """Settings of an engine or a server with MGAP on, for the prior of a world."""
    return {"additional_config": {"mgap": {"prior": str(world.prior), "alpha": alpha, "lam": 0.5, **more}}}


def with_alpha(requests: list[dict[str, Any]], alpha: float) -> list[dict[str, Any]]:
    """The requests with a strength of their own."""
    return [{**each, "sampling": {**each["sampling"], "extra_args": {"mgap_alpha": alpha}}} for each in requests]


def tokens(made: list[dict[str, Any]]) -> list[list[int]]:
    """What an engine answered, as tokens."""
    return [each["tokens"] for each in made]


def mixed(world: Any) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Requests of several strengths and lengths, and what transformers answers to each alone."""
    requests, expected = [], []
    for number, each in enumerate(world.requests()):
        own, most = OWN[number % 3], LENGTHS[number % 4]
        asked = each if own is None else with_alpha([each], own)[0]
        requests.append({**asked, "sampling": {**asked["sampling"], "max_tokens": most}})
        expected.append(world.answers(SERVER if own is None else own)[number][:most])
    return requests, expected
