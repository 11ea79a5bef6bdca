"""`mgap tune`: choose MGAP's alpha, lambda and rank for a model, and save them with its prior."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import Device, Dtype, ModelName, Revision, SavedPrior, Template, TrustRemoteCode, load_model
from mgap.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgap.decoding.model import Model
    from mgap.io.progress import Progress
    from mgap.priors.subspace import Subspace
    from mgap.tuning.development import Development
    from mgap.tuning.sweep import Grid
    from mgap.tuning.tune import Tuned

_MAX_VALUES = 10_000  # of one setting
_SHOWN = 8  # rows of the table


def tune(
    model: ModelName,
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write the prior and its tuning to.")],
    rule: Annotated[str, typer.Option(help="departure (reads no labels), or labels.")] = "departure",
    objective: Annotated[str | None, typer.Option(help="With rule labels: f1 (default) or accuracy.")] = None,
    prior: SavedPrior = None,
    prompts: Annotated[str | None, typer.Option(help="Prompts to fit on: a set (`mgap ls prompt-sets`), or a file.")] = None,
    null_image: Annotated[str | None, typer.Option(help="Null image to fit with: black336 (default), mean_colour, ...")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="Values of alpha, lam, rank, gate or protect: alpha=0:8:0.25, rank=1,3,5; repeatable."),
    ] = None,
    questions: Annotated[
        str | None, typer.Option(help="JSONL or CSV file with image and question; with rule labels also label.")
    ] = None,
    images: Annotated[str | None, typer.Option(help="Folder with the pictures; default: the folder of the questions.")] = None,
    scenes: Annotated[int | None, typer.Option(help="Pocket world: number of development scenes; default: 300.")] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            "--split", autocompletion=completion.split, help="Pocket-POPE: random, popular or adversarial; repeatable."
        ),
    ] = None,
    bank: Annotated[float, typer.Option(help="Share of the pictures that form the bank of plain states.")] = 0.5,
    delta: Annotated[float, typer.Option(help="Share of the bank's own states that counts as departed.")] = 0.05,
    k: Annotated[int, typer.Option(help="Number of nearest states that a distance averages over.")] = 10,
    metric: Annotated[str, typer.Option(help="Distance: euclidean or cosine.")] = "euclidean",
    batch_size: Annotated[int, typer.Option(help="Questions per batch.")] = 32,
    device: Device = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: TrustRemoteCode = False,
    template: Template = None,
) -> None:
    """Choose alpha, lambda and K on development questions, with labels or without, in one pass through the model.

    Example: mgap tune --model pocket/llava --out priors/llava-tuned
    """
    from mgap.tuning.choice import OBJECTIVES, RULES

    if rule not in RULES:
        raise SettingError(f"unknown rule {rule!r}: choose from {', '.join(RULES)}")
    if objective is not None and (rule != "labels" or objective not in OBJECTIVES):
        allowed = f"choose from {', '.join(OBJECTIVES)}" if rule == "labels" else f"rule {rule} has none: leave it out"
        raise SettingError(f"objective={objective!r}: {allowed}")
    values, development = _grid(grid or []), _development(model, rule, questions, images, scenes, split, bank)
    build = _prior(prior, prompts, null_image, max(values.rank), model)
    data = development.to_json()
    print(
        f"{data['name']}: {data['judged']['questions']} questions about {data['judged']['pictures']} pictures to judge, "
        f"{data['bank']['questions']} about {data['bank']['pictures']} others for the bank; "
        f"labels {'are used' if data['labels'] else 'are not read'}",
        file=sys.stderr,
    )
    for note in development.benchmark.notes:
        print(f"note: {note}", file=sys.stderr)
    loaded = load_model(model, device, dtype, revision, trust_remote_code, template)
    print("reading its states, then trying the settings on them", file=sys.stderr)  # bars of a log come at the end

    from mgap.io.progress import bars
    from mgap.priors.prior_plan import describe_prior
    from mgap.tuning.development import read_states
    from mgap.tuning.tune import tune as choose

    with bars() as progress:
        base = build(loaded, progress)
        states = read_states(loaded, development, batch_size=batch_size, progress=progress)
        tuned = choose(
            loaded, base, development, states, rule=rule, objective=objective or "f1", grid=values, k=k, delta=delta,
            metric=metric, progress=progress,
        )  # fmt: skip
    tuned.prior.save(out)
    print(f"prior: {describe_prior(base)}", file=sys.stderr)
    _print_choice(tuned, out)


def _grid(pairs: list[str]) -> Grid:
    from mgap.tuning.sweep import Grid

    values: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise SettingError(f"--grid {pair!r} is not of the form NAME=VALUES, such as alpha=0:8:0.25 or rank=1,3,5")
        if name in ("gate", "protect"):
            words = {"true": True, "false": False}
            if wrong := [word for word in text.split(",") if word not in words]:
                raise SettingError(f"--grid {pair!r}: {wrong[0]!r} is neither true nor false")
            values[name] = [words[word] for word in text.split(",")]
        else:
            numbers = _numbers(pair, text)
            values[name] = [int(n) if name == "rank" and n.is_integer() else n for n in numbers]
    return Grid.of(values)


def _numbers(pair: str, text: str) -> list[float]:
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        first, last, step = map(float, text.split(":"))
    except ValueError:
        raise SettingError(f"--grid {pair!r}: write numbers as 0,1,2.5 or as FIRST:LAST:STEP, such as 0:8:0.25") from None
    if not (math.isfinite(first) and math.isfinite(last) and step > 0 and first <= last):
        raise SettingError(f"--grid {pair!r}: FIRST:LAST:STEP needs a first that is not above the last, and a step above 0")
    if (last - first) / step > _MAX_VALUES:
        raise SettingError(f"--grid {pair!r}: more than {_MAX_VALUES:,} values; take larger steps")
    return [round(first + number * step, 12) for number in range(math.floor((last - first) / step + 1e-9) + 1)]


def _development(
    model: str,
    rule: str,
    questions: str | None,
    images: str | None,
    scenes: int | None,
    splits: list[str] | None,
    share: float,
) -> Development:
    """The questions to choose settings on. Checked before the model is loaded."""
    from mgap.registry import POCKET_MODELS
    from mgap.tuning.development import own_questions, pocket_questions

    if questions is not None:
        if scenes is not None or splits:
            raise SettingError("--scenes and --split are of the pocket world: leave them out, or leave out --questions")
        return own_questions(questions, images, share, has_labels=rule == "labels")
    if model not in POCKET_MODELS:
        raise SettingError(f"{model}: give --questions, a JSONL or CSV file with image and question, and --images")
    if images is not None:
        raise SettingError("the pocket world draws its own pictures: leave out --images, or give --questions too")
    if scenes is not None and scenes < 2:
        raise SettingError(f"scenes={scenes} must be at least 2: some for the bank, others to judge")
    return pocket_questions(scenes or 300, splits, share, has_labels=rule == "labels")


def _prior(
    folder: str | None, prompts: str | None, null_image: str | None, rank: int, name: str
) -> Callable[[Model, Progress], Subspace]:
    """Check all that needs no model. Returns a function that fits or returns the subspace once the model is loaded."""
    from mgap.priors.prior_plan import Prior, calibration
    from mgap.priors.subspace import Subspace

    if folder is not None:
        if prompts is not None or null_image is not None:
            raise SettingError("--prompts and --null-image are for fitting: leave them out, or leave out --prior")
        saved = Subspace.load(folder)
        saved.truncate(rank)  # refuses a rank that the prior does not have
        return lambda _model, _progress: saved

    from mgap.backbones.null_images import NULL_IMAGES

    chosen = Prior(rank=rank, prompts=prompts or "auto", null_image=null_image or "black336").of_model(name)
    if chosen.null_image not in NULL_IMAGES:
        raise SettingError(f"unknown null image {null_image!r}: choose from {', '.join(NULL_IMAGES)}")
    calibration(chosen, pocket=False)  # refuses a file with too few prompts
    return chosen.fitted


def _print_choice(tuned: Tuned, out: str) -> None:
    from mgap.pages.table_formats import markdown
    from mgap.tuning.tables import best_table, change_table, spell

    rule, picked, plain = tuned.about["rule"], tuned.picked, tuned.plain
    print(f"Rule {rule['name']}, {rule['stated']}.\n")
    leaders = [tuned.figures(place) for place in tuned.choice.leaders[:_SHOWN]]
    print(markdown(best_table(rule["name"], leaders, plain)))
    print(markdown(change_table(picked, plain)))
    print(f"Pick: {spell(picked.point)}.")
    if tuned.choice.alike:
        print(f"Settings of the grid that give the very same answers: {tuned.choice.alike} more.")
    if (other := tuned.runner_up) is not None:
        print(f"Runner-up: {spell(other.point)}.")
    if picked.point.alpha == 0:
        print("No setting of the grid is better than plain decoding by this rule.")
    if tuned.is_at_cap:
        print("This is the largest alpha of the grid: a larger one might be taken too.")
    print(f'{out}: use it with mgap.MGAP(prior, preset="tuned") or --prior {out} --set preset=tuned')
