"""The kernels in which a few decoding steps spend their time, and the CPU time to launch them."""

from __future__ import annotations

from typing import Any

import torch
from measure import synchronize, table
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule
from transformers import StoppingCriteria, StoppingCriteriaList

from mgap.backbones.base import Backbone
from mgap.decoding.generate import generate
from mgap.types import Decoding

BEFORE, WARM, STEPS = 3, 2, 8  # steps to skip, to warm up the profiler, and to count
TOP = 10


class Steps(StoppingCriteria):
    """Advances the profiler at every token; never stops generation."""

    def __init__(self, watch: profile) -> None:
        self.watch = watch

    def __call__(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        self.watch.step()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def kernels(backbone: Backbone, inputs: dict[str, Tensor], title: str) -> str:
    """A heading and a table of steps under plain `generate`, with the attached method if there is one."""
    on_gpu = backbone.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    decoding = Decoding(max_new_tokens=BEFORE + WARM + STEPS + 2)
    plan = schedule(wait=BEFORE, warmup=WARM, active=STEPS, repeat=1)
    with profile(activities=activities, schedule=plan) as watch:
        generate(backbone, inputs, decoding, stopping_criteria=StoppingCriteriaList([Steps(watch)]))
        synchronize(backbone.device)
    return _report(title, watch.key_averages(), on_gpu)


def _report(title: str, events: Any, on_gpu: bool) -> str:
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    named = [event for event in events if not event.key.startswith("ProfilerStep")]
    shown = [event for event in named if event.device_type == kind and not event.is_user_annotation]

    def spent(event: Any) -> float:
        return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total) / STEPS  # microseconds a step

    launches, busy = sum(event.count for event in shown) / STEPS, sum(map(spent, shown)) / 1000
    cpu = sum(event.self_cpu_time_total for event in named if event.device_type == DeviceType.CPU) / STEPS / 1000
    where = (
        f"GPU busy {busy:.2f} ms a step in {launches:.0f} kernels, CPU" if on_gpu else f"{launches:.0f} operators a step, CPU"
    )
    heading = f"{title}: {where} {cpu:.2f} ms a step (more than usual: the profiler needs it too)"
    rows = [[_short(event.key), f"{event.count / STEPS:g}", f"{spent(event):.0f}", f"{spent(event) / busy / 10:.1f}"]
            for event in sorted(shown, key=spent, reverse=True)[:TOP]]  # fmt: skip
    return heading + "\n\n" + table(["kernel" if on_gpu else "operator", "calls a step", "us a step", "percent"], rows)


def _short(name: str) -> str:
    name = name.replace("|", "/").removeprefix("void ")
    return name if len(name) <= 70 else f"{name[:67]}..."
