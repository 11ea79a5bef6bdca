"""Time fitting a prior: the three solvers against the bounds of the paper's appendix, and the whole fit, in one run.

    python bench/fitting.py                        # on a card at LLaVA-1.5-7B's size, else with a tiny model
    python bench/fitting.py --model qwen3-vl-8b

Solvers: random states (64 directions of falling variance, noise in all, a mean far from the origin) are centred and moved to
the device; only the solver is timed. The bounds, in multiplications, for K + 1 directions, T products of ARPACK and q power
iterations of K + 1 + p columns:

    exact min(N d^2, N^2 d)        lanczos T N d        randomized (1 + q) N d (K + 1 + p)

Where a bound predicts the time, picoseconds per multiplication are the same in every line of a solver. "off" is the sine of the
largest principal angle between a solver's top K directions and those of LAPACK's singular value decomposition (above 1000
states: those of the exact solver). "gathering" precedes all of them: centring on the CPU, the transfer to the device, and from
4 d states on the QR decompositions that bound memory.

Fitting: prompts with a null image as Subspace.fit runs them (packed behind the picture's prefill), and with one picture per
prompt, one by one and in batches. "off" is the distance of states from those of prompts run alone, over the distance of states
from their mean. It compares the rounding errors of batching and of packing.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations

import torch
from measure import (
    about,
    column,
    in_turns,
    median_seconds,
    peak_gib,
    ratios,
    reset_peak,
    say,
    seconds,
    spread,
    synchronize,
    table,
)
from shapes import SHAPES, build
from torch import Tensor

import mgap
from mgap.backbones.null_images import null_image
from mgap.backbones.packed_prompts import pack
from mgap.backbones.shared_prefill import SharedPrefill
from mgap.diagnosis.principal_angles import principal_angles
from mgap.priors.collect_states import SHARED_BATCH, blind_states, last_states
from mgap.priors.object_words import Vocabulary
from mgap.priors.prompts import EXISTENCE
from mgap.priors.spectrum import OVERSAMPLING, POWER_ITERATIONS, SOLVERS, CentredRows, lanczos, solve

K = 5


def draw(count: int, width: int) -> Tensor:
    """States [count, width] float32."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(64, width, generator=generator) * torch.arange(1, 65).unsqueeze(1) ** -0.5
    low = torch.randn(count, 64, generator=generator) @ mix
    return low + 0.1 * torch.randn(count, width, generator=generator) + 1


def first_call(solver: str, matrix: Tensor) -> tuple[float, Tensor, float]:
    """Run a solver once: seconds, the top directions [d, K] on the CPU, and the appendix's bound in multiplications."""
    n, d = matrix.shape
    bound = {"exact": min(n * d * d, n * n * d), "randomized": (1 + POWER_ITERATIONS) * n * d * (K + 1 + OVERSAMPLING)}
    synchronize(matrix.device)
    started = time.perf_counter()
    if solver == "lanczos":
        _, vectors, products = lanczos(matrix, K + 1)
        bound[solver] = products * n * d
    else:
        _, vectors = solve(matrix, K, solver)
    synchronize(matrix.device)
    return time.perf_counter() - started, vectors[:, :K].cpu(), float(bound[solver])


def time_solvers(args: argparse.Namespace, device: str) -> list[list[str]]:
    lines = []
    for solver in SOLVERS:
        first_call(solver, draw(50, 64).double().to(device))  # warm up
    for width in args.widths:
        for count in args.counts:
            say(f"{device}: {count} states of width {width}")
            rows, states = CentredRows(width, device), draw(count, width)
            gathering = seconds(lambda rows=rows, states=states: rows.add(states) or rows.matrix.to(device), device)
            matrix = (states.double() - rows.mean).to(device)  # all rows, even if gathering reduces them
            first = {solver: first_call(solver, matrix) for solver in SOLVERS}
            rounds = [{solver: first[solver][0] for solver in SOLVERS}]
            if device != "cpu" or sum(rounds[0].values()) < args.patience:  # else once is enough
                ways = {solver: partial(solve, matrix, K, solver) for solver in SOLVERS}
                clock = partial(seconds, device=device)
                rounds = in_turns(ways, args.rounds, clock=clock, limit_s=args.patience)
            right = torch.linalg.svd(matrix.cpu(), full_matrices=False).Vh[:K].T if count <= 1000 else first["exact"][1]
            for solver, (_, directions, bound) in first.items():
                taken, against = spread(column(rounds, solver)), spread(ratios(rounds, solver, "exact"))
                sine = float(torch.deg2rad(principal_angles(directions, right)[-1]).sin())
                cells = [count, width, solver, f"{1000 * taken.middle:.1f}", f"{against.middle:.3f}"]
                cells += ["-" if right is directions else f"{sine:.0e}", f"{bound:.2g}", f"{1e12 * taken.middle / bound:.3g}"]
                lines.append([*map(str, cells), f"{1000 * gathering:.1f}"])
    say("")
    return lines


def many_prompts(count: int) -> list[str]:
    """Distinct questions about two objects each, long and short ones mixed."""
    pairs = permutations(Vocabulary.of("coco").names, 2)
    questions = [wording.format(f"a {one} or a {other}") for one, other in pairs for wording in EXISTENCE]
    random.Random(0).shuffle(questions)
    if count > len(questions):
        raise SystemExit(f"--prompts {count}: there are {len(questions)}")
    return questions[:count]


def with_pictures(model: mgap.Model, prompts: Sequence[str], size: int) -> Iterator[Tensor]:
    """States of prompts with a picture each, without a shared prefill."""
    for start in range(0, len(prompts), size):
        yield last_states(model.backbone, model.backbone.blind(prompts[start : start + size]))


def gather(chunks: Callable[[], Iterator[Tensor]], states: dict[str, Tensor], name: str) -> None:
    states[name] = torch.cat(list(chunks()))


def time_few(model: mgap.Model, prompts: list[str], rounds: int, patience: float) -> list[list[str]]:
    """Time N prompts in every way, and how far their states are from those of prompts run alone."""
    ways: dict[str, Callable[[], Iterator[Tensor]]] = {
        "a picture each, one by one": partial(with_pictures, model, prompts, 1),
        "a picture each, batches of 8": partial(with_pictures, model, prompts, 8),
        f"a picture each, {len(prompts)} at once": partial(with_pictures, model, prompts, len(prompts)),
        "packed behind one picture": partial(blind_states, model.backbone, prompts),
    }
    states: dict[str, Tensor] = {}
    calls = {name: partial(gather, way, states, name) for name, way in ways.items()}
    for call in calls.values():
        call()
    device = model.backbone.device
    clock = partial(seconds, device=device)
    timings = in_turns(calls, rounds, clock=clock, limit_s=patience, label=f"{len(prompts)} prompts")
    base = next(iter(ways))
    around = (states[base] - states[base].mean(0)).norm()
    lines = []
    for name in ways:
        taken = spread([one[name] for one in timings])
        faster = spread([one[base] / one[name] for one in timings])
        off = float((states[name] - states[base]).norm() / around)
        cells = [name, f"{1000 * taken.middle:.0f} ({1000 * taken.low:.0f} to {1000 * taken.high:.0f})"]
        lines.append([*cells, faster.text(1, "x"), f"{len(prompts) / taken.middle:.0f}", f"{off:.1e}"])
    return lines


def time_size(model: mgap.Model, prompts: list[str], size: int, least: int) -> list[str]:
    """Time packed prompts, `size` per forward: preparation on the host, the forward, and both in a row."""
    backbone, device = model.backbone, model.backbone.device
    batch, shared = prompts[:size], SharedPrefill(backbone)
    picture = null_image("black336", backbone.processor)
    tokens = pack(shared, picture, batch).inputs["input_ids"].shape[1]
    weights = sum(p.numel() for p in backbone.language.parameters()) - backbone.model.get_input_embeddings().weight.numel()

    def forward() -> None:
        packed = pack(shared, picture, batch)
        backbone.model(**packed.inputs, past_key_values=packed.cache, use_cache=True)

    say(f"batches of {size}")
    reset_peak(device)
    with torch.no_grad():
        both = median_seconds(forward, device, 5)
        prepared = median_seconds(lambda: pack(shared, picture, batch), device, 5)
    subset = prompts[: max(4 * size, least)]
    taken = seconds(lambda: list(blind_states(backbone, subset, batch_size=size)), device)
    rate = 2 * weights * tokens / (both - prepared) / 1e12
    cells = [
        size,
        tokens,
        f"{1000 * prepared:.1f}",
        f"{1000 * (both - prepared):.1f}",
        f"{rate:.3g}",
        f"{peak_gib(device):.1f}",
    ]
    return [*map(str, cells), f"{len(subset) / taken:.0f}"]


def time_many(model: mgap.Model, prompts: list[str]) -> list[list[str]]:
    """Time forwards of many prompts, gathering and spectrum by each solver, and one whole fit."""
    device = model.backbone.device
    solver_device, chunks = device if device.type == "cuda" else "cpu", list[Tensor]()

    def report(done: int) -> None:
        if done % 500 == 0:
            say(f"{done} of {len(prompts)} prompts")

    def line(what: str, taken: float) -> list[str]:
        return [what, f"{taken:.2f}", f"{len(prompts) / taken:.0f}"]

    lines = [line("forwards", seconds(lambda: chunks.extend(blind_states(model.backbone, prompts)), device))]
    for svd in SOLVERS:
        call = partial(mgap.Subspace.from_states, chunks, K, svd=svd, device=solver_device)
        lines.append(line(f"gathering and spectrum, {svd}", seconds(call, device)))
    total = seconds(lambda: mgap.Subspace.fit(model, iter(prompts), K, progress=report), device)
    say("")
    return [*lines, line("Subspace.fit, exact", total)]


def gemm_rate(device: torch.device, dtype: torch.dtype) -> float:
    """TFLOP/s of a large matrix product: an upper limit for a forward."""
    size = 8192 if device.type == "cuda" else 1024
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: one @ other, device) / 1e12


def main(arguments: Sequence[str] | None = None) -> None:
    card = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava-1.5-7b" if card else "tiny-llava", choices=list(SHAPES))
    parser.add_argument("--device", default="cuda" if card else "cpu")
    parser.add_argument("--devices", nargs="*", default=["cuda", "cpu"] if card else ["cpu"], help="of the solvers")
    parser.add_argument("--counts", nargs="*", type=int, default=[50, 200, 1000, 10_000])
    parser.add_argument("--widths", nargs="*", type=int, default=[1024, 4096])
    parser.add_argument("--few", type=int, default=50, help="prompts to fit on in every way")
    parser.add_argument("--prompts", type=int, default=10_000 if card else 1000, help="prompts to fit on, packed")
    parser.add_argument("--sizes", nargs="*", type=int, default=[8, 16, 32, 64, 128, 256], help="prompts a forward")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=4, help="seconds after which a comparison begins no new round")
    args = parser.parse_args(arguments)
    print(about(args.device), flush=True)
    for device in args.devices if args.counts and args.widths else ():
        heads = ["N", "d", "solver", "ms", "of exact", "off", "bound", "ps each", "gathering, ms"]
        print(f"\nSolvers on {device}, K = {K}, float64\n\n{table(heads, time_solvers(args, device))}", flush=True)
    fit(args)


def fit(args: argparse.Namespace) -> None:
    model = build(args.model, args.device, torch.bfloat16 if args.device.startswith("cuda") else torch.float32)
    backbone, prompts = model.backbone, many_prompts(max(args.prompts, args.few, 4 * max(args.sizes, default=0), 256))
    kind, normal = str(backbone.model.dtype).removeprefix("torch."), SHARED_BATCH[backbone.device.type]
    few = time_few(model, prompts[: args.few], args.rounds, 3 * args.patience)
    print(f"\n{args.model} in {kind}: states of {args.few} prompts\n")
    print(table(["way", "ms", "times as fast", "prompts a second", "off"], few), flush=True)
    rate = gemm_rate(backbone.device, backbone.model.dtype)
    sizes = [time_size(model, prompts, size, min(256, args.prompts)) for size in args.sizes]
    say("")
    print(f"\nPacked prompts by batch size (default {normal}); a large product of matrices makes {rate:.3g} TFLOP/s\n")
    heads = ["prompts a forward", "tokens", "preparing, ms", "forward, ms", "TFLOP/s", "peak, GiB", "prompts a second"]
    print(table(heads, sizes), flush=True)
    if args.prompts:
        many = time_many(model, prompts[: args.prompts])
        print(f"\nFitting on {args.prompts} prompts\n\n{table(['what', 's', 'prompts a second'], many)}", flush=True)


if __name__ == "__main__":
    main()
