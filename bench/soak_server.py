"""Whether vLLM's server with MGAP loses, mixes up or leaks anything while many clients ask for hours.

    python bench/soak_server.py --out runs/soak-server [--minutes 120] [--clients 50] [--plain] [-- flags of vLLM]

A real `mgap serve` runs on `pocket/llava` in processes of its own, on the CPU unless its flags say otherwise. Every client asks
one question after the other about a drawn picture: at the server's strength, at 0, at 0.75 or at 5. Of ten requests one is a
stream that its client leaves after the first words, and one is refused (an impossible strength, an unknown setting). Every
answer is held against the one that transformers gives alone, in float32. Once a minute the memory of all of the server's
processes is read from /proc, and twice, at a third and at two thirds, the server is given another prior and its own again.
Results are written every minute. `--plain` is the same without MGAP: what of the growth is vLLM's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import measure
from server import Server
from soak import fit_slope

import mgap
from mgap.pocket.benchmark import DEVELOPMENT
from mgap.pocket.language import DESCRIBE
from mgap.pocket.samples import SceneRenderer, pope_samples
from mgap.serving.remote.chat_bodies import chat_body, data_url

FIRST = DEVELOPMENT + 70_000
SCENES, TOKENS = 12, 24
STRENGTHS = (None, 0.0, 0.75, 5.0)  # None: the server's, which is 0.75
SMALL = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--kv-cache-memory-bytes", "134217728"]
WRONG: tuple[dict[str, Any], ...] = ({"vllm_xargs": {"mgap_alpha": -1}}, {"vllm_xargs": {"mgap_lam": 1}})
WRONG_PLAIN: tuple[dict[str, Any], ...] = ({"max_tokens": -1}, {"temperature": -1})
WARM = 10  # minutes that do not count


class Questions:
    """Pictures, questions, and what transformers answers alone at each strength."""

    def __init__(self, model: mgap.Model, prior: mgap.Subspace) -> None:
        samples = pope_samples(["adversarial"], SCENES, first=FIRST).samples[::3]
        asked = [(sample.image, sample.prompt) for sample in samples]
        asked += [(image, DESCRIBE[0]) for image in dict.fromkeys(image for image, _ in asked)]
        draw = SceneRenderer()
        self.bodies = [(data_url(draw(image)), prompt) for image, prompt in asked]
        self.expected: dict[float, list[str]] = {}
        for alpha in (0.0, 0.75, 5.0):
            with model.using(mgap.MGAP(prior, alpha=alpha)):
                self.expected[alpha] = [
                    str(model.answer(draw(image), prompt, max_new_tokens=TOKENS)) for image, prompt in asked
                ]

    def __len__(self) -> int:
        return len(self.bodies)

    def body(self, number: int, more: dict[str, Any], name: str) -> dict[str, Any]:
        url, prompt = self.bodies[number]
        asked = {**chat_body(prompt, url), "model": name, "temperature": 0, "max_tokens": TOKENS}
        return {**asked, **more}


async def ask(http: httpx.AsyncClient, questions: Questions, name: str, order: random.Random, is_plain: bool) -> str:
    """One request of a client; what came of it in a word."""
    kind, number = order.randrange(10), order.randrange(len(questions))
    if kind == 0:
        answer = await http.post(
            "/v1/chat/completions", json=questions.body(number, order.choice(WRONG_PLAIN if is_plain else WRONG), name)
        )
        return "refused" if answer.status_code == 400 else f"wrong request: HTTP {answer.status_code}"
    alpha = None if is_plain else order.choice(STRENGTHS)
    body = questions.body(number, {} if alpha is None else {"vllm_xargs": {"mgap_alpha": alpha}}, name)
    if kind == 1:
        async with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    return "left"
        return f"stream without words: HTTP {stream.status_code}"
    answer = await http.post("/v1/chat/completions", json=body)
    if answer.status_code != 200:
        return f"HTTP {answer.status_code}"
    said = answer.json()["choices"][0]["message"]["content"].strip()
    wanted = alpha if alpha is not None else 0.0 if is_plain else 0.75
    return "answered" if said == questions.expected[wanted][number] else "another answer"


async def soak(server: Server, questions: Questions, out: Path, minutes: float, clients: int) -> None:
    """Clients without a pause, and a look at the server every minute."""
    priors = [(out / name).resolve() for name in ("other", "own")]
    ended, snapshots, failures = Counter[str](), list[dict[str, float]](), list[str]()
    started = time.monotonic()
    until = started + 60 * minutes
    # vLLM closes a connection that was idle for 5 s, and httpx would use one up to then: now and again, at the same moment
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
        name = (await http.get("/v1/models")).json()["data"][0]["id"]

        async def client(seed: int) -> None:
            order = random.Random(seed)
            while time.monotonic() < until:
                try:
                    outcome = await ask(http, questions, name, order, server.is_plain)
                except httpx.HTTPError as error:
                    outcome = f"no answer: {type(error).__name__}"
                ended[outcome] += 1
                if outcome not in ("answered", "refused", "left"):
                    failures.append(f"{time.monotonic() - started:.0f} s: {outcome}")

        async def observer() -> None:
            changes = [started + 60 * minutes * part / 3 for part in (1, 2)]
            while True:
                minute = (time.monotonic() - started) / 60
                snapshots.append({"minute": minute, "requests": sum(ended.values()), **server.resources()})
                status = {"counts": None} if server.is_plain else (await http.get("/v1/mgap")).json()
                write(
                    out,
                    {"ended": ended, "snapshots": snapshots, "failures": failures[:100], "counts": status["counts"]},
                    clients,
                )
                measure.say(f"{minute:.0f} of {minutes:.0f} min: {dict(ended)}, {snapshots[-1]['resident_mib']:.0f} MiB")
                if changes and time.monotonic() > changes[0] and not server.is_plain:
                    changes.pop(0)
                    for prior in priors:  # the same directions in another folder, then the server's own
                        (await http.post("/v1/mgap/prior", json={"prior": str(prior)})).raise_for_status()
                        ended["prior changed"] += 1
                if (left := until - time.monotonic()) <= 0:
                    return
                await asyncio.sleep(min(60, left))

        await asyncio.gather(observer(), *(client(seed) for seed in range(clients)))
    measure.say("")


def write(out: Path, found: dict[str, Any], clients: int) -> None:
    found |= {"about": measure.about("cpu"), "clients": clients}
    temporary = out / "soak.json.part"
    temporary.write_text(json.dumps(found))
    temporary.replace(out / "soak.json")
    (out / "soak.md").write_text(format_table(found))


def format_table(found: dict[str, Any]) -> str:
    """Outcomes, and memory with its growth."""
    counted = [each for each in found["snapshots"] if each["minute"] >= WARM]
    about = f"{found['about']}: {found['clients']} clients, {found['snapshots'][-1]['minute']:.0f} minutes.\n\n"
    outcomes = measure.table(("outcome", "requests"), [(name, f"{n:,}") for name, n in sorted(found["ended"].items())])
    if len(counted) < 3:
        return f"{about}{outcomes}\n\nToo short to say anything of memory: the first {WARM} minutes warm up.\n"
    rows = []
    for name in (name for name in counted[0] if name not in ("minute", "requests")):
        growth = fit_slope([each["minute"] / 60 for each in counted], [each.get(name, 0.0) for each in counted])
        rows.append((name.replace("_", " "), f"{counted[0][name]:.0f}", f"{counted[-1].get(name, 0.0):.0f}", growth.text(1)))
    heads = ("", f"after {counted[0]['minute']:.0f} minutes", "at the end", "added an hour (95%)")
    return f"{about}{outcomes}\n\n{measure.table(heads, rows)}\n\nLooked at by MGAP: {found['counts']}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--plain", action="store_true", help="vLLM without MGAP, as a control")
    parser.add_argument("--out", type=Path, required=True, help="folder for soak.json, soak.md and the server's log")
    parser.add_argument("flags", nargs="*", default=SMALL, help="after --: flags of vLLM; default: %(default)s")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    model = mgap.load("pocket/llava", dtype="float32", device="cpu")
    prior = mgap.Subspace.fit(model, mgap.default_prompts())
    for name in ("own", "other"):
        prior.save(args.out / name)
    questions = Questions(model, prior)
    own = None if args.plain else args.out / "own"
    server = Server("pocket/llava", own, args.out / "server.log", args.flags, ["--alpha", "0.75", "--reload"])
    try:
        server.wait()
        asyncio.run(soak(server, questions, args.out, args.minutes, args.clients))
    finally:
        status = server.stop()
    sys.stdout.write((args.out / "soak.md").read_text() + f"\nThe server ended with status {status}.\n")


if __name__ == "__main__":
    main()
