"""A process with SGLang in it: calls the functions that it is told, and gives back what they return, as lines of JSON.

`Child` is the tests' side. SGLang sets up its process for itself (its configuration, torch's process group, patches of
transformers), so it is not imported beside other tests.
"""

import json
import os
import subprocess
import sys
import traceback
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tests import processes

HERE = Path(__file__).parent
MARK = "sglang-child "  # before what is meant for the tests, among what SGLang prints


class Child:
    def __init__(self, process, log):
        self.process, self.log = process, log

    def __call__(self, function, **given):
        """What `module:function` of this folder gives for these arguments; AssertionError with its traceback if it raises."""
        self.process.stdin.write(json.dumps({"function": function, "given": given}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(MARK):
                answer = json.loads(line.removeprefix(MARK))
                assert "error" not in answer, answer["error"] + self.log.read_text()[-3000:]
                return answer["result"]
        raise AssertionError(f"the process has ended:\n{self.log.read_text()[-6000:]}")


@contextmanager
def child(folder, **more):
    """A process with SGLang; it and what it started are gone at the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [HERE / "sglang_shim", HERE, HERE.parent, HERE.parent / "src"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": str(folder),
        **more,
    }
    with (folder / "log.txt").open("w") as errors:
        command = [sys.executable, "-u", str(HERE / "sglang_child.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        with processes.started(command, env=environment, cwd=folder, **pipes) as process:
            yield Child(process, folder / "log.txt")


def serve():
    for line in sys.stdin:
        asked = json.loads(line)
        module, function = asked["function"].split(":")
        try:
            answer = {"result": getattr(import_module(module), function)(**asked["given"])}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
