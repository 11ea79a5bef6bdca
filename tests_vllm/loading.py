"""What tests have engines do with the model that they have loaded; called by name (engines.py's `call`)."""

import json
from types import SimpleNamespace
from typing import Any

from mgap.serving.attaching import HELD, refuse_engine


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def attach_sharded(llm: Any, additional_config: dict[str, Any]) -> None:
    """As if this engine sampled shares of a batch on each rank, which needs several cards."""
    runner = runner_of(llm)
    parallel = SimpleNamespace(enable_batch_sharded_sampling=True)
    config = SimpleNamespace(parallel_config=parallel, additional_config=additional_config)
    refuse_engine(config, runner.model_config, runner.get_model())


def reload(llm: Any, requests: list[dict[str, Any]], folder: str) -> str:
    """Load other weights into the live model: how much larger the table is at the next token, and what is said."""
    from worker import generate

    held = runner_of(llm).get_model().__dict__[HELD]
    before = held.correction.table.clone()
    llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
    made = generate(llm, requests)
    return json.dumps({"ratio": float((held.correction.table / before).mean()), "tokens": [each["tokens"] for each in made]})


def about(llm: Any) -> dict[str, Any]:
    """Which of vLLM's model runners this engine has, how often it has compiled, and how many drafted tokens it took so far."""
    from vllm.compilation.counter import compilation_counter as compiled

    config = llm.llm_engine.vllm_config
    found: dict[str, Any] = {"runner": "V2" if config.use_v2_model_runner else "V1"}
    found["compiled"] = compiled.num_aot_compiles + compiled.num_aot_artifacts_loaded + compiled.num_graphs_seen
    if config.speculative_config is not None:
        counted = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
        found |= {name: int(counted[f"vllm:spec_decode_num_{name}_tokens"]) for name in ("accepted", "draft")}
    return found
