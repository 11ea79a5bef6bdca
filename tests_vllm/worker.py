"""The engines' side of engines.py: reads a plan a line, builds the engine that it names, runs its steps, answers in a line."""

import gc
import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

from PIL import Image


def picture(name: str) -> Image.Image:
    """A picture by its file, or a scene of the pocket world by its name."""
    from mgap.pocket.samples import SceneRenderer

    return Image.open(name) if os.path.exists(name) else SceneRenderer()(name)


def generate(llm: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    prompts, sampling, adapters = [], [], []
    for request in requests:
        prompt = {"prompt_token_ids": request["tokens"]} if "tokens" in request else {"prompt": request["text"]}
        if request.get("picture"):
            prompt["multi_modal_data"] = {"image": picture(request["picture"])}
        prompts.append(prompt)
        adapters.append(LoRARequest("adapter", 1, request["adapter"]) if request.get("adapter") else None)
        sampling.append(SamplingParams(**{"temperature": 0.0, **request.get("sampling", {})}))
    made = []
    with_adapters = {"lora_request": adapters} if any(adapters) else {}
    for output in llm.generate(prompts, sampling, use_tqdm=False, **with_adapters):
        first = output.outputs[0]
        made.append(
            {
                "tokens": list(first.token_ids),
                "text": first.text,
                "stop": first.finish_reason,
                "prompt": list(output.prompt_token_ids),  # with the picture's placeholders
                "cached": output.num_cached_tokens,
                "logprobs": first.logprobs and [plain(each) for each in first.logprobs],
                "prompt_logprobs": output.prompt_logprobs and [each and plain(each) for each in output.prompt_logprobs],
            }
        )
    return made


def plain(by_token: Any) -> dict[str, float]:
    return {str(token): found.logprob for token, found in by_token.items()}


def do(llm: Any, step: dict[str, Any]) -> Any:
    if step["do"] == "generate":
        return generate(llm, step["requests"])
    if step["do"] == "rpc":
        return llm.collective_rpc(step["method"], args=tuple(step["args"]))
    module, _, name = step["function"].partition(":")
    return getattr(importlib.import_module(module), name)(llm, **step["given"])


class Last:
    """The engine that was built last, for the next plan that asks for the same one."""

    key, llm = "", None

    def get(self, plan: dict[str, Any]) -> Any:
        key = json.dumps([plan["model"], plan["settings"]], sort_keys=True)
        if self.llm is None or key != self.key or plan["fresh"]:
            self.drop()
            from vllm import LLM

            self.llm, self.key = LLM(plan["model"], **plan["settings"]), key
        return self.llm

    def drop(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm = None
        gc.collect()
        cleanup_dist_env_and_memory()


def answer(last: Last, plan: dict[str, Any]) -> dict[str, Any]:
    try:
        llm = last.get(plan)
        return {"steps": [do(llm, step) for step in plan["steps"]]}
    except Exception as error:
        traceback.print_exc()
        return {"refused": str(error), "kind": type(error).__name__}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM and its workers print goes into the log
    warnings.filterwarnings("error", module=r"mgap(\.|$)")
    import vllm  # noqa: F401  while nobody waits yet

    last = Last()
    for line in sys.stdin:
        found = answer(last, json.loads(line))
        if last.llm is not None and last.llm.llm_engine.has_unfinished_requests():
            last.drop()  # a refused request may leave the others of its batch behind
        print(json.dumps(found), file=answers, flush=True)
    last.drop()
    os._exit(0)  # Python's own way out takes seconds with so much imported


if __name__ == "__main__":
    main()
