"""vLLM's OpenAI server in a process of its own, on a free port of this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from engines import SETTINGS, environment

READY = b"Application startup complete."  # the line after which it soon listens
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # the model in the engine's process: one less to import all of vLLM


class Server:
    """A running server. `client()` is the real OpenAI client."""

    def __init__(
        self,
        folder: Path,
        number: int,
        model: str | Path,
        flags: list[str],
        env: dict[str, str],
        serve: list[str] | None = None,
    ) -> None:
        """`serve` are words of `mgap serve`, which starts it then, and has flags of vLLM behind --."""
        self.model, self.path = str(model), folder / f"server-{number}.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        if serve is None:
            words = ["vllm.entrypoints.openai.api_server", "--model", self.model, *where, *flags]
        else:
            words = ["mgap.cli.main", "serve", self.model, *serve, *where, "--", *flags]
        command = [sys.executable, "-m", *words]
        self._told = SimpleQueue[bool]()
        self.process = subprocess.Popen(
            command,
            env=environment(folder, **env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.path.open("wb", buffering=0) as log, self.process.stdout as printed:
            for line in printed:
                log.write(line)
                if READY in line:
                    self._told.put(True)
        self._told.put(False)

    def wait(self, seconds: float = 400) -> "Server":
        """Until it listens; raises with its log if it ends, or takes too long."""
        try:
            is_ready = self._told.get(timeout=seconds)
        except Empty:
            is_ready = False
        while is_ready and self.process.poll() is None:
            if self._listens():
                return self
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"the server has ended, or did not start within {seconds:.0f} s\n{self.log[-6000:]}")

    def _listens(self) -> bool:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def client(self, **options: Any) -> Any:
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)

    def stop(self, seconds: float = 60) -> int:
        """Ask it to end, as Ctrl-C does; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """End it and the engine that it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: its group is the server and its engine
        self.process.wait()
        self._reading.join()


class Servers:
    """Starts servers of the same settings as engines.py's engines, and stops what is still running at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, list[Server]()

    def __call__(
        self,
        model: str | Path,
        *flags: str,
        env: dict[str, str] | None = None,
        wait: bool = True,
        serve: list[str] | None = None,
        **settings: Any,
    ) -> Server:
        """`settings` are those of an engine; `flags` come after them; with `wait=False`, call `.wait()` later.

        Without `serve` it is started as quickly as can be (`IN_PROCESS`), with it as a user does.
        """
        env = {**({} if serve else IN_PROCESS), **(env or {})}
        given = [*_flags({**SETTINGS, **settings}), *flags]
        server = Server(self.folder, len(self.started) + 1, model, given, env, serve)
        self.started.append(server)
        return server.wait() if wait else server

    def close(self) -> None:
        for server in self.started:
            server.stop()


def _flags(settings: dict[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return words
