"""What tests have engines do with the model that they have loaded; called by name (engines.py's `call`)."""

import json
from typing import Any

from mgap.serving.attaching import HELD


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def reload(llm: Any, requests: list[dict[str, Any]], folder: str) -> str:
    """Load other weights into the live model: how much larger the table is at the next token, and what is said."""
    from worker import generate

    held = runner_of(llm).get_model().__dict__[HELD]
    before = held.correction.table.clone()
    llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
    made = generate(llm, requests)
    return json.dumps({"ratio": float((held.correction.table / before).mean()), "tokens": [each["tokens"] for each in made]})


def states(llm: Any, requests: list[dict[str, Any]]) -> str:
    """The state behind each prompt, as the head reads it."""
    from worker import generate

    held = runner_of(llm).get_model().__dict__[HELD]
    compute, seen = held.compute, []
    held.compute = lambda h: seen.append(h.clone()) or compute(h)
    try:
        for request in requests:
            generate(llm, [request])  # alone, and one token: one row each
    finally:
        held.compute = compute
    return json.dumps([rows.tolist() for (rows,) in seen])
