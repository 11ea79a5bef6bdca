"""A server of vLLM on a free port, with MGAP or without, and the memory of all its processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
from soak import PAGE

from mgap.serving.checkpoint import servable


class Server:
    """`mgap serve`, or plain vLLM where there is no prior."""

    def __init__(self, model: str, prior: Path | None, log: Path, flags: Sequence[str], own: Sequence[str] = ()) -> None:
        """`flags` are vLLM's, `own` those of `mgap serve`."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        port = ["--port", str(self.port)]
        if prior is None:
            where = ["--model", str(servable(model)), "--limit-mm-per-prompt", '{"image": 1}', *port]
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *where, *flags]
        else:
            words = ["serve", model, "--prior", str(prior), *own, *port]
            command = [sys.executable, "-m", "mgap.cli.main", *words, "--", *flags]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        self.url, self.is_plain, self.log = f"http://127.0.0.1:{self.port}", prior is None, log

    def wait(self) -> None:
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"the server has ended; {self.log} says why")
            try:
                if httpx.get(f"{self.url}/{'health' if self.is_plain else 'mgap/ready'}", timeout=10).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(1)

    def resources(self) -> dict[str, float]:
        """Of all processes of its session, and each one's memory by its name, such as "VLLM::Worker MiB"."""
        resident, files, threads = Counter[str](), 0, 0
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    if os.getsid(int(path.name)) == self.process.pid:
                        name = (path / "comm").read_text().strip()
                        resident[f"{name} MiB"] += int((path / "statm").read_text().split()[1]) * PAGE / 2**20
                        files += len(os.listdir(path / "fd"))
                        threads += len(os.listdir(path / "task"))
                except (FileNotFoundError, ProcessLookupError):
                    continue
        return {"resident_mib": sum(resident.values()), "files": files, "threads": threads, **resident}

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(120)
