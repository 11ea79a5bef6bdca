"""The cost of a token besides arithmetic: operations, kernels and waits of one decoding step, for vanilla and every method.

    python bench/launches.py
    python bench/launches.py --model pocket/llava --methods vcd icd

Eager decoding of one row on a GPU is limited by the host's kernel launches, which can be counted anywhere: the models here are
narrow, but as deep as LLaVA-1.5-7B and Qwen3-VL-8B. Two answers of different length are generated. Their difference, divided by
the difference in tokens, is one step; the prompt cancels out.

    operations  everything that torch dispatches, including views
    kernels     operations that would launch work on a GPU: no views, no empty memory
    waits       where the host needs a number from the device: item, nonzero, a mask as an index, a copy to the CPU
    x kernels   relative to vanilla: the cost of a step if all kernels took equally long
    ms          of a step here, median over rounds in which all methods take turns; narrow models spend it on the host alone
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import torch
import transformers
from cases import bring_mirrored
from PIL import Image
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mgap
from mgap.errors import SettingError
from mgap.methods.base import Method
from mgap.methods.kinds.branch import PairedMethod
from mgap.pocket.architecture import Tower, build
from mgap.registry import METHODS
from mgap.types import Mode

DEPTHS = {"llava": 32, "qwen3-vl": 36}  # blocks of LLaVA-1.5-7B and Qwen3-VL-8B
GROUPS = {"llava": 1, "qwen3-vl": 4}  # query heads per key-value head, as in these models
QUESTION = "Is there a dog in the image?"
NO_TOKEN = 1 << 30  # an EOS id that never occurs: no answer ends early

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}  # names of operations
READING = {"tolist", "cpu", "numpy"}  # methods of a tensor; on the CPU they dispatch nothing
NO_KERNEL = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "_unsafe_view",
    "_reshape_alias",
    "detach",
    "lift_fresh",
    "promote_types",
}


@dataclass
class Count:
    """What torch dispatched."""

    operations: int = 0
    kernels: int = 0
    waits: int = 0


class DispatchCounter(TorchDispatchMode):
    """Counts below autograd, where composite operations are decomposed."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.count.operations += 1
        self.count.kernels += not (func.is_view or name in NO_KERNEL)
        self.count.waits += (
            name in WAITING or (name in ("index", "index_put_") and _has_mask(args[1])) or _is_copy_to_cpu(args, out)
        )
        return out


class FunctionCounter(TorchFunctionMode):
    """Counts reads of a tensor that dispatch no operation."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self.count = count

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.count.waits += getattr(func, "__name__", "") in READING
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)


def _is_copy_to_cpu(args: tuple[Any, ...], out: Any) -> bool:
    """Whether an operation copied from a GPU to the CPU."""
    ends = (args[1], args[0]) if len(args) > 1 and isinstance(args[1], torch.Tensor) else (args[0] if args else None, out)
    devices = [end.device.type for end in ends if isinstance(end, torch.Tensor)]
    return len(devices) == 2 and devices[0] != "cpu" and devices[1] == "cpu"


@contextmanager
def counting() -> Iterator[Count]:
    count = Count()
    with FunctionCounter(count), DispatchCounter(count):
        yield count


# --- models and methods -------------------------------------------------------------------------------------------------


def narrow(family: str, layers: int) -> mgap.Model:
    """A narrow model with random weights and so many layers."""
    text = Tower(width=64, layers=layers, heads=4, key_value_heads=4 // GROUPS[family], inner=128, spread=0.15)
    side, patch = (28, 7) if family == "llava" else (64, 8)
    vision = Tower(width=32, layers=2, heads=4, inner=64, side=side, patch=patch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor = build(family, mgap.default_prompts(), 384, text, vision)
    return mgap.wrap(model.eval(), processor, name=family)


def steering(model: mgap.Model) -> mgap.Steering:
    shape = (2, 4, len(model.backbone.layers), model.backbone.identity.hidden_size)
    return mgap.Steering.from_states(*torch.randn(shape, generator=torch.Generator().manual_seed(0)))


def null_space(model: mgap.Model) -> mgap.NullSpace:
    shape = (2, 8, len(model.backbone.layers), model.backbone.identity.hidden_size)
    return mgap.NullSpace.from_states(*torch.randn(shape, generator=torch.Generator().manual_seed(0)))


def identity_map(prior: mgap.Subspace) -> mgap.PriorMap:
    """A prior map that returns a state's own coordinates; all maps cost the same."""
    return mgap.PriorMap(prior.basis.T.contiguous(), torch.zeros(prior.rank, dtype=torch.float64), prior, 0, 0.0, 0.0)


def bank(model: mgap.Model) -> mgap.Bank:
    return mgap.Bank.of(torch.randn(64, model.backbone.identity.hidden_size, generator=torch.Generator().manual_seed(0)))


# methods that cannot be built from their name alone, and variants with another cost
WAYS: dict[str, Callable[[mgap.Model], Method]] = {
    "mgap": lambda model: mgap.MGAP(mgap.Subspace.fit(model, mgap.default_prompts()), alpha=0.5),
    "predicted-prior": lambda model: mgap.PredictedPrior(identity_map(mgap.Subspace.fit(model, mgap.default_prompts()))),
    "prompt-prior": lambda model: mgap.PromptPrior(prior=mgap.Subspace.fit(model, mgap.default_prompts())),
    "tether": lambda model: mgap.Tether(bank=bank(model)),
    "asd": lambda model: mgap.ASD(steering=steering(model)),
    "nullu": lambda model: mgap.Nullu(space=null_space(model)),
    "bias": lambda _model: mgap.Bias(shift=1.0, up=("is",), down=("the",)),
    "yes-if-close": lambda _model: mgap.YesIfClose(up=("is",), down=("the",)),
    "code": lambda _model: mgap.CODE(length=4),
    "blind no_image": lambda _model: mgap.Blind(null_image="no_image"),
    "given": lambda _model: mgap.Given(evidence=bring_mirrored),
    "haltrapper": lambda _model: mgap.HalTrapper(candidates=("dog", "tree")),
    "icd with_vcd": lambda _model: mgap.ICD(with_vcd=True),
}


def methods(model: mgap.Model, names: Sequence[str]) -> dict[str, Method]:
    """The methods by label; a branch runs both as extra rows and as a separate forward."""
    variants: dict[str, Method] = {}
    for name in names:
        method = WAYS[name](model) if name in WAYS else METHODS.get(name).of()
        if isinstance(method, PairedMethod):
            for mode in ("batched", "sequential"):
                variants[f"{name}, {mode}"] = replace(method, branch_mode=mode)
        elif Mode.GREEDY in method.modes:
            variants[name] = method
    return variants


def all_names() -> list[str]:
    registered = set(METHODS.names())
    return sorted({*registered, *(name for name in WAYS if name.split()[0] in registered)})


# --- measuring ----------------------------------------------------------------------------------------------------------


class Steps:
    """Differences of answers of two lengths, without or with a method."""

    def __init__(self, model: mgap.Model, short: int, more: int) -> None:
        self.model, self.short, self.more = model, short, more
        pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        self.picture = Image.fromarray(pixels)
        model.backbone.model.generation_config.eos_token_id = NO_TOKEN

    def count(self, method: Method | None) -> Count:
        """Counts of one step, rounded."""
        few, many = (self._counted(method, new) for new in (self.short, self.short + self.more))
        return Count(*(round((b - a) / self.more) for a, b in zip(astuple(few), astuple(many), strict=True)))

    def milliseconds(self, method: Method | None) -> float:
        spent = []
        for new in (self.short, self.short + self.more):
            with self._using(method):
                started = time.perf_counter()
                self._answer(new)
                spent.append(time.perf_counter() - started)
        return 1000 * (spent[1] - spent[0]) / self.more

    def _counted(self, method: Method | None, new: int) -> Count:
        with self._using(method), counting() as count:
            self._answer(new)
        return count

    def _using(self, method: Method | None) -> Any:
        return nullcontext() if method is None else self.model.using(method)

    def _answer(self, new: int) -> None:
        self.model.answer(self.picture, QUESTION, max_new_tokens=new)


def table(model: mgap.Model, names: Sequence[str], args: argparse.Namespace) -> list[str]:
    steps = Steps(model, args.short, args.more)
    ways: dict[str, Method | None] = {"vanilla": None, **methods(model, names)}
    counts = {}
    for name, method in ways.items():
        counts[name] = steps.count(method)
        print(f"\rcounting: {len(counts)} of {len(ways)} ways   ", end="", file=sys.stderr, flush=True)
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.rounds):
        for name, method in ways.items():
            spent[name].append(steps.milliseconds(method))
        print(f"\rtiming: {number + 1} of {args.rounds} rounds   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    lines = [
        "| method | operations | kernels | more kernels than vanilla | waits | x kernels | ms a step | x vanilla |",
        "|---" * 8 + "|",
    ]
    plain = counts["vanilla"]
    for name, count in counts.items():
        more = count.kernels - plain.kernels
        times = "| - | - |"
        if args.rounds:
            middle = statistics.median(spent[name])
            ratio = statistics.median(a / b for a, b in zip(spent[name], spent["vanilla"], strict=True))
            times = f"| {middle:.1f} | {ratio:.2f}x |"
        counted = f"{count.operations} | {count.kernels} | {more:+d} | {count.waits} | {count.kernels / plain.kernels:.2f}x"
        lines.append(f"| {name} | {counted} {times}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(DEPTHS), help=f"{', '.join(DEPTHS)}, or what mgap.load reads")
    parser.add_argument("--layers", type=int, help="blocks of the narrow models, if not those of the real ones")
    parser.add_argument("--methods", nargs="+", default=all_names(), choices=all_names(), metavar="METHOD")
    parser.add_argument("--short", type=int, default=4, help="tokens of the shorter answer")
    parser.add_argument("--more", type=int, default=8, help="tokens that the longer one has more")
    parser.add_argument("--rounds", type=int, default=5, help="of timing; 0: counts only")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    args = parser.parse_args(arguments)
    if args.short < 2 or args.more < 1:
        raise SettingError(f"short={args.short}, more={args.more}: give at least 2 and 1, the prompt is no step")
    print(
        f"one row on {args.device} in {args.dtype}; torch {torch.__version__}, transformers {transformers.__version__}, ",
        end="",
    )
    print(f"Python {platform.python_version()}")
    for name in args.model:
        if name in DEPTHS:
            model = narrow(name, args.layers or DEPTHS[name])
            model.backbone.model.to(args.device, getattr(torch, args.dtype))
        else:
            model = mgap.load(name, device=args.device, dtype=args.dtype)
        rows = table(model, args.methods, args)
        print(f"\n{name}, {len(model.backbone.layers)} blocks\n\n" + "\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
