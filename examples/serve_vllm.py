"""Serve a model with MGAP in vLLM, and ask it about a picture over the OpenAI API, each request at its own strength.

    python examples/serve_vllm.py                                    # starts a server of pocket/llava, asks, and stops it
    python examples/serve_vllm.py --model Qwen/Qwen3-VL-8B-Instruct --prior priors/qwen3-vl -- --tensor-parallel-size 4
    python examples/serve_vllm.py --url http://127.0.0.1:8000 --image street.jpg --question "Is there a dog in the image?"
    python examples/serve_vllm.py --offline                          # no server: vLLM's engine in this process

Words after -- go to `vllm serve`. With --url nothing is started: that server must run with MGAP (`mgap serve`), and the
standard library is enough to ask it. The other modes need `pip install "mgap[vllm]"`; without a GPU, vLLM's CPU build.

It prints one answer per strength; 0 is the model without MGAP. The requests are sent together and may share a batch.
"""

import argparse
import base64
import json
import mimetypes
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import mgap
from mgap.errors import ModelError
from mgap.serving.installed import require_vllm

SMALL = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "kv_cache_memory_bytes": 64 << 20}  # pocket models


def with_picture(image: Path, question: str) -> list[dict]:
    """A user message; the picture is a data URL, so the server needs none of our files."""
    kind = mimetypes.guess_type(image.name)[0] or "image/jpeg"
    url = f"data:{kind};base64,{base64.b64encode(image.read_bytes()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    return [{"role": "user", "content": content}]


def call(url: str, body: dict | None = None) -> dict:
    """GET, or POST a JSON body; a refusal raises with the server's own message."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ModelError(f"{url} refused it: {error.read().decode(errors='replace')[:300]}") from None
    except urllib.error.URLError as error:
        raise ModelError(
            f"{url} does not answer ({error.reason}): start a server with `mgap serve`, or leave out --url"
        ) from None


def ask(url: str, messages: list[dict], alphas: list[float]) -> list[str]:
    """One request per strength, all at once; "vllm_xargs" sets it, and without it the server's applies."""
    model = call(f"{url}/v1/models")["data"][0]["id"]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 64}
    bodies = [{**body, "vllm_xargs": {"mgap_alpha": alpha}} for alpha in alphas]
    with ThreadPoolExecutor(len(bodies)) as pool:
        replies = pool.map(lambda each: call(f"{url}/v1/chat/completions", each), bodies)
        return [reply["choices"][0]["message"]["content"].strip() for reply in replies]


def ask_offline(model: str, prior: str, messages: list[dict], alphas: list[float]) -> list[str]:
    """The same without a server: extra_args replace vllm_xargs."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # before the import, else it logs to stdout
    from vllm import LLM, SamplingParams

    from mgap.serving.checkpoint import servable  # a copy that vLLM can read, if it cannot read the original

    small = SMALL if model.startswith("pocket/") else {}
    llm = LLM(str(servable(model)), additional_config={"mgap": {"prior": prior}}, limit_mm_per_prompt={"image": 1}, **small)
    sampling = [SamplingParams(temperature=0, max_tokens=64, extra_args={"mgap_alpha": alpha}) for alpha in alphas]
    return [each.outputs[0].text.strip() for each in llm.chat([messages] * len(alphas), sampling, use_tqdm=False)]


@contextmanager
def serving(model: str, prior: str, flags: list[str]) -> Iterator[str]:
    """The URL of a server on a free port that runs inside the block; it logs to serve_vllm.log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    small = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items() if value is not True]
    flags = [*small, "--enforce-eager", *flags] if model.startswith("pocket/") else flags
    command = [sys.executable, "-m", "mgap.cli.main", "serve", model, "--prior", prior, "--port", port, "--", *flags]
    log, url = Path("serve_vllm.log"), f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        print(f"starting a server, which takes half a minute or more; see {log}", file=sys.stderr, flush=True)
        while not is_up(url):
            if process.poll() is not None:
                raise ModelError(
                    f"the server ended with status {process.returncode}; {log} ends with\n{log.read_text()[-800:]}"
                )
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()  # not SIGINT, which a shell's background jobs ignore
        try:
            process.wait(60)
        finally:
            process.kill()


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2):
            return True
    except OSError:  # nobody listens yet
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava", help="a hub id, a folder, or pocket/llava, pocket/qwen3-vl")
    parser.add_argument("--prior", help="a folder that `mgap fit` wrote; default: one is fitted, with transformers")
    parser.add_argument("--image", type=Path, help="a picture; default: a drawn bathroom, without a cup")
    parser.add_argument("--question", default="Is there a cup in the image?")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0, 0.75, 4], help="strengths to ask at")
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--offline", action="store_true", help="vLLM's engine in this process, and no server")
    parser.add_argument("flags", nargs="*", help="after --: of `vllm serve`")
    args = parser.parse_args()

    image = args.image
    if image is None:
        from mgap.pocket.scenes import make_scene, render

        image = Path("serve_vllm.png")
        render(make_scene(200_000)).save(image)
    messages = with_picture(image, args.question)
    if args.url:
        answers = ask(args.url.rstrip("/"), messages, args.alpha)
    else:
        require_vllm("this example")
        prior = args.prior or "priors/serve_vllm"
        if args.prior is None:
            mgap.Subspace.fit(mgap.load(args.model), mgap.default_prompts()).save(prior)
        if args.offline:
            answers = ask_offline(args.model, str(Path(prior).resolve()), messages, args.alpha)
        else:
            with serving(args.model, prior, args.flags) as url:
                answers = ask(url, messages, args.alpha)
    print(args.question)
    for alpha, answer in zip(args.alpha, answers, strict=True):
        print(f"alpha {alpha:<5g} {answer}")


if __name__ == "__main__":
    try:
        main()
    except mgap.MgapError as error:
        raise SystemExit(f"serve_vllm: {error}") from None
