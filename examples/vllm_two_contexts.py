"""A contrast of two contexts in vLLM: the answer to a picture against the answer to a black one, as two requests of one batch.

    python examples/vllm_two_contexts.py --model pocket/llava

A proof of what docs/serving.md says under "Two contexts", with its limits. Prints the plain answer and the contrast's.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from PIL import Image

from mgap.backbones.loading import load_weightless
from mgap.pocket.samples import SceneRenderer
from mgap.registry import locate
from mgap.serving.checkpoint import servable
from mgap.serving.engine_settings import PAIR, PAIR_SCHEDULER

SMALL: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "kv_cache_memory_bytes": 1 << 26}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket/llava")
    parser.add_argument("--picture", help="a file; without one, a scene of the pocket world")
    parser.add_argument("--question", default="Please describe this image in detail.")
    parser.add_argument("--alpha", type=float, default=1.0, help="weight of the contrast")
    parser.add_argument(
        "--beta", type=float, default=0.1, help="tokens less likely than this share of the likeliest are dropped"
    )
    given = parser.parse_args()
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    from vllm import LLM, SamplingParams  # late: it takes ten seconds

    picture = Image.open(given.picture).convert("RGB") if given.picture else SceneRenderer()("pocket_350002.png")
    backbone = load_weightless(locate(given.model), called=given.model)
    prompt = {"prompt_token_ids": backbone.tokenize(backbone.render(given.question))}
    small = SMALL if given.model.startswith("pocket/") else {}
    llm = LLM(
        str(servable(given.model)), scheduler_cls=PAIR_SCHEDULER, enable_prefix_caching=False, async_scheduling=False,
        limit_mm_per_prompt={"image": 1}, **small,
    )  # fmt: skip
    requests, sampling = [{**prompt, "multi_modal_data": {"image": picture}}], [SamplingParams(temperature=0, max_tokens=48)]
    for is_main, seen in ((True, picture), (False, Image.new("RGB", picture.size))):
        member = {"id": "1", "is_main": is_main, "alpha": given.alpha, "beta": given.beta}
        requests.append({**prompt, "multi_modal_data": {"image": seen}})
        sampling.append(SamplingParams(temperature=0, max_tokens=48, extra_args={PAIR: member}))
    plain, main_one, other = (each.outputs[0].text.strip() for each in llm.generate(requests, sampling, use_tqdm=False))
    assert main_one == other, "two contexts, one answer"
    print(f"plain: {plain}\ncontrast: {main_one}")


if __name__ == "__main__":
    main()
