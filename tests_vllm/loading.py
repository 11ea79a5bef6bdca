"""What tests have engines do with the model that they have loaded; called by name (engines.py's `call`)."""

import json
from typing import Any

import torch

from mgap.errors import SettingError
from mgap.serving.attaching import MODEL_ATTRIBUTE, identity_of, refuse_engine


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def reload(llm: Any, requests: list[dict[str, Any]], folder: str) -> str:
    """Load other weights into the live model: how much larger the table is at the next token, and what is said."""
    from worker import generate

    held = runner_of(llm).get_model().__dict__[MODEL_ATTRIBUTE]
    before = held.correction.table.clone()
    llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
    made = generate(llm, requests)
    return json.dumps({"ratio": float((held.correction.table / before).mean()), "tokens": [each["tokens"] for each in made]})


def identity(llm: Any) -> str:
    """Which model this engine has, as JSON."""
    runner = runner_of(llm)
    return json.dumps(identity_of(runner.get_model(), runner.model_config).to_json())


def states(llm: Any, requests: list[dict[str, Any]]) -> str:
    """The state behind each prompt, as the head reads it."""
    from worker import generate

    held = runner_of(llm).get_model().__dict__[MODEL_ATTRIBUTE]
    compute, seen = held.compute, []
    held.compute = lambda h: seen.append(h.clone()) or compute(h)
    try:
        for request in requests:
            generate(llm, [request])  # alone, and one token: one row each
    finally:
        held.compute = compute
    return json.dumps([rows.tolist() for (rows,) in seen])


def refused_request(llm: Any, request: dict[str, Any]) -> str:
    """What a request is refused with; empty if it is answered."""
    from vllm.exceptions import VLLMValidationError
    from worker import generate

    try:
        generate(llm, [request])
    except VLLMValidationError as error:
        return str(error)
    return ""


def refusal(llm: Any, **settings: Any) -> str:
    """What an engine of the same model with other settings is refused with, by its configuration alone; no process starts."""
    from vllm.engine.arg_utils import EngineArgs

    mine = llm.llm_engine.vllm_config
    config = EngineArgs(mine.model_config.model, additional_config=mine.additional_config, **settings).create_engine_config()
    try:
        refuse_engine(config, config.model_config, runner_of(llm).get_model())
    except SettingError as error:
        return str(error)
    return ""


def about(llm: Any) -> dict[str, Any]:
    """Which of vLLM's model runners this engine has, how often it has compiled, and how many drafted tokens it took so far."""
    from vllm.compilation.counter import compilation_counter as compiled

    config = llm.llm_engine.vllm_config
    found: dict[str, Any] = {"runner": "V2" if config.use_v2_model_runner else "V1"}
    found["compiled"] = compiled.num_aot_compiles + compiled.num_aot_artifacts_loaded + compiled.num_graphs_seen
    found["graphs"] = compiled.num_cudagraph_captured
    if config.speculative_config is not None:
        counted = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
        found |= {name: int(counted[f"vllm:spec_decode_num_{name}_tokens"]) for name in ("accepted", "draft")}
    return found


def head_products(llm: Any) -> str:
    """A 16-bit head's own logits and those that MGAP corrects: their dtypes, and how far they and W V are from float64."""
    model = runner_of(llm).get_model()
    held = model.__dict__[MODEL_ATTRIBUTE]
    (processor,) = held.exact.processors
    (head,) = (part for part in model.modules() if type(part).__name__ == "ParallelLMHead")
    weight = head.weight[: processor.org_vocab_size]
    h = torch.randn(4, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        own, exact = held.compute(h), held.exact(h)
    expected, table = h.double() @ weight.double().T, held.correction.basis.double().T @ weight.double().T
    pairs = ((own, expected), (exact, expected), (held.correction.table, table))
    errors = [float((found.double() - wanted).norm() / wanted.norm()) for found, wanted in pairs]
    return json.dumps([str(own.dtype), str(exact.dtype), *errors])
