"""`mgap fit`: learn from a model what a method needs, and save it."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import Device, Dtype, ModelName, Revision, Template, TrustRemoteCode, load_model
from mgap.errors import PromptError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mgap.decoding.model import Model
    from mgap.io.progress import Progress
    from mgap.priors.subspace import Subspace


def fit(
    model: ModelName,
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write to.")],
    for_: Annotated[
        str,
        typer.Option("--for", autocompletion=completion.method, help="Learn what this method needs (`mgap ls methods`)."),
    ] = "mgap",
    prompts: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.prompts,
            help="A set of prompts (`mgap ls prompt-sets`), or a file with one prompt per line.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(help="Number of prompts, the first ones; default: 50, or all of a file.")] = None,
    rank: Annotated[
        str | None, typer.Option(help="Rank of the subspace, or auto; default: 5. Of a null space: default 4.")
    ] = None,
    null_image: Annotated[
        str | None, typer.Option(help="black336 (default), black_same_size, mean_colour, noise or no_image.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="With black_same_size or mean_colour: WIDTHxHEIGHT of the pictures.")] = None,
    svd: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.words("exact", "lanczos", "randomized"), help="exact (default), lanczos or randomized."
        ),
    ] = None,
    questions: Annotated[
        str | None, typer.Option(help="For a bank or prior map: a JSONL or CSV file with image and question.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help="For a null space: a JSONL or CSV file with image, true, false and perhaps prompt.")
    ] = None,
    images: Annotated[str | None, typer.Option(help="Folder with the pictures; default: the folder of that file.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Prompts per batch; default: 64 on a GPU, 16 on a CPU.")] = None,
    push: Annotated[str | None, typer.Option(help="Also upload the prior to this hub repository.")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Learn a model's language prior from prompts about a null image, or whatever else a method needs.

    Example: mgap fit --model Qwen/Qwen3-VL-8B-Instruct --out priors/qwen3-vl
    """
    from mgap.io.progress import bars
    from mgap.run.learning import describe, learn

    kinds = _kinds(for_)
    if batch_size is not None and batch_size < 1:
        raise SettingError(f"batch_size={batch_size} must be at least 1")
    given: dict[str, Any] = {
        "prompts": prompts, "count": count, "rank": rank, "null_image": null_image, "size": size, "svd": svd
    }  # fmt: skip
    if "subspace" not in kinds.values():
        others = {**given, "push": push} if "null_space" not in kinds.values() else {**given, "push": push, "rank": None}
        _refuse(others, f"are of a prior, and {for_} needs none")
    build = _Prior(model, **given)  # refuses mistakes before the weights are loaded
    options = {kind: _options(kind, batch_size, rank) for kind in kinds.values()}
    rows = _rows(for_, kinds, model, {"questions": questions, "pairs": pairs}, images)
    loaded = load_model(model, device, dtype, revision, trust_remote_code, template)
    for kind in dict.fromkeys(kinds.values()):
        with bars() as progress:
            if kind == "subspace":
                learnt: Any = build(loaded, batch_size, progress)
            else:
                learnt = learn(kind, loaded, rows=rows.get(kind), progress=progress, **options[kind])
        learnt.save(out)
        print(f"{out}: {build.describe(learnt) if kind == 'subspace' else describe(kind, learnt)}")
    if push:
        print(build.subspace.push(push))


def _kinds(method: str) -> dict[str, str]:
    """The kinds that the method needs with its default settings, by setting."""
    from mgap.registry import METHODS

    if method == "vanilla":
        raise SettingError("--for vanilla: plain decoding needs nothing that is learnt")
    needs = METHODS.get(method).learnt_settings({})
    if not needs:
        raise SettingError(f"--for {method}: it needs nothing that is learnt, and can be used at once")
    return {name: need.kind for name, need in needs.items()}


def _refuse(given: Mapping[str, Any], why: str) -> None:
    if named := [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]:
        raise SettingError(f"{', '.join(named)} {why}: leave {'it' if len(named) == 1 else 'them'} out")


def _options(kind: str, batch_size: int | None, rank: str | None) -> dict[str, Any]:
    """What is given of the options that this kind is learnt with; of a prior, `_Prior` has the others."""
    if kind != "null_space":
        return {} if batch_size is None else {"batch_size": batch_size}
    _refuse({"batch_size": batch_size}, "has nothing to do here, where captions are read one by one")
    if rank == "auto":
        raise SettingError("rank=auto is for a prior: a null space takes a whole number")
    return {} if rank is None else {"rank": _parse_rank(rank)}


def _rows(
    method: str, kinds: Mapping[str, str], model: str, files: Mapping[str, str | None], images: str | None
) -> dict[str, Any]:
    """What the user's own files hold, by the kind that is learnt from it; nothing if it is drawn, or not needed."""
    from mgap.run.learning import FROM_ROWS, refuse_unlearnt

    wanted: dict[str, str] = {}  # kind -> option
    for name, kind in kinds.items():
        if kind in FROM_ROWS:
            wanted[kind] = FROM_ROWS[kind].option
        if kind != "subspace" and (kind not in wanted or files[wanted[kind]] is None):
            refuse_unlearnt(method, name, kind, model)
    unneeded = {option: path for option, path in files.items() if option not in wanted.values()}
    _refuse(unneeded if wanted else {**unneeded, "images": images}, f"are not needed for what {method} needs")
    rows: dict[str, Any] = {}
    for kind, option in wanted.items():
        if (path := files[option]) is not None:
            rows[kind], notes = FROM_ROWS[kind].read(path, images)
            for note in notes:
                print(f"note: {note}", file=sys.stderr)
    if wanted and not rows:
        named = " or ".join(f"--{option}" for option in dict.fromkeys(wanted.values()))
        _refuse({"images": images}, f"come with {named}, which are not given")
    return rows


class _Prior:
    """The subspace that the options describe: checked on creation, fitted when called."""

    subspace: Subspace

    def __init__(
        self,
        model: str,
        *,
        prompts: str | None,
        count: int | None,
        rank: str | None,
        null_image: str | None,
        size: str | None,
        svd: str | None,
    ) -> None:
        from mgap.backbones.null_images import check_null_image
        from mgap.priors.prior_plan import Prior, set_name
        from mgap.priors.spectrum import check_solver
        from mgap.registry import POCKET_MODELS, PROMPTS

        self.null_image, self.svd = null_image or Prior().null_image, svd or "exact"
        self.size = _parse_size(size)
        check_null_image(self.null_image, self.size)
        check_solver(self.svd)
        if count is not None and count < 1:
            raise SettingError(f"count={count} must be at least 1")
        self.rank = Prior().rank if rank is None else _parse_rank(rank)
        self.prompts = set_name(prompts or Prior().prompts, pocket=model in POCKET_MODELS)
        self.count = Prior().count if count is None and self.prompts in PROMPTS else count
        self.total = sum(1 for _ in self.read())  # reads a file once, to refuse mistakes early
        if self.count is not None and self.total < self.count:
            raise PromptError(f"{self.prompts} has {self.total} prompts, not {self.count}: lower --count, or give a file")

    def read(self) -> Iterable[str]:
        from mgap.io.prompt_files import read_prompts
        from mgap.registry import PROMPTS

        return islice(PROMPTS.get(self.prompts)() if self.prompts in PROMPTS else read_prompts(self.prompts), self.count)

    def __call__(self, model: Model, batch_size: int | None, progress: Progress) -> Subspace:
        from dataclasses import replace

        from mgap.priors.subspace import Subspace

        how: dict[str, Any] = {"null_image": self.null_image, "size": self.size, "svd": self.svd, "batch_size": batch_size}
        report = lambda done: progress("fitting the prior", done, self.total)  # noqa: E731
        fitted = Subspace.fit(model, self.read(), self.rank, progress=report, **how)
        self.subspace = replace(fitted, origin={**fitted.origin, "prompts": self.prompts})
        return self.subspace

    def describe(self, subspace: Subspace) -> str:
        share = 100 * subspace.explained_variance
        named = f"{subspace.count} prompts of {self.prompts!r}, {self.null_image}"
        return f"rank {subspace.rank} of {subspace.hidden_size}, {named}, {share:.1f}% of their variance"


def _parse_rank(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise SettingError(f"rank={text:.40} must be a whole number of at least 1, or auto")
    return int(text)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    from mgap.io.images import check_size

    if text is None:
        return None
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and len(text) < 20):
        raise SettingError(f"size={text:.40} must be WIDTHxHEIGHT, such as 640x480")
    size = int(width), int(height)
    check_size("--size", size)
    return size
