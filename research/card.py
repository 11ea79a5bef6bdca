"""`python -m research.card MODEL --out FOLDER`: measure a pocket model and write its card and figures.

A card reports the results, good or bad. Every number comes from the figures, the corpus or the checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path

from mgap.backbones.null_images import NULL_IMAGES
from mgap.decoding.model import load
from mgap.errors import SettingError
from mgap.io.output_folder import write_files
from mgap.io.progress import bars
from mgap.methods.mgap import PRESETS
from mgap.pocket.benchmark import DEVELOPMENT, TEST
from mgap.pocket.corpus import FIRST_TRAINING_SEED
from mgap.pocket.drawing import COLOURS, STYLES, TRAINING_STYLES
from mgap.pocket.evaluation import Scores
from mgap.pocket.figures import FILE, NULLS, CardFigures, PickedSetting, measure
from mgap.pocket.objects import OBJECTS
from mgap.pocket.scenes import FORBIDDEN, SIDE
from mgap.pocket.themes import THEMES
from mgap.registry import POCKET_MODELS
from research.stories import Story, percent, story_of

_FRONT = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
language: en
tags: [mgap, pocket, synthetic, hallucination, {tag}]
---
"""


_SCENES = f"Training scenes have seeds from {FIRST_TRAINING_SEED:,} on, and the drawing styles {', '.join(TRAINING_STYLES)}."


def write_card(folder: str | PathLike[str], family: str, figures: CardFigures) -> None:
    """Write README.md and figures.json, usually next to the model's weights."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    figures = replace(figures, model=f"pocket/{family}")  # its public name, wherever it was measured
    figures.save(place)
    write_files(place, {"README.md": card_text(figures)})


def card_text(figures: CardFigures) -> str:
    """The card as Markdown."""
    story = story_of(figures.model)
    sections = (
        _FRONT.format(tag=figures.size.model_type) + f"\n# {figures.model}",
        _summary(figures, story),
        f"## {story.heading}",
        story.prior,
        "## How it was trained",
        f"{story.training}\n\n{_SCENES}",
        "## What was measured",
        _protocol(figures),
        f"### Pocket-POPE, {figures.scenes} scenes",
        _yes_no_table(figures.pope, figures.choice),
        f"### The same in the drawing style {STYLES[-1]!r}, which no training picture has",
        _yes_no_table(figures.pope_held_out, figures.choice),
        f"### Captions of {figures.scenes} scenes (pocket-CHAIR)",
        _captions(figures),
        "### Things in a colour that they do not have in nature",
        _colours(figures),
        "### Pocket-AMBER, accuracy by kind of question",
        _amber(figures),
        "### How the settings were picked",
        _rule(figures.choice),
        "## Limits",
        _limits(figures, story),
    )
    return "\n\n".join(sections) + "\n"


def _summary(figures: CardFigures, story: Story) -> str:
    size = figures.size
    (vision_layers, vision_width), (text_layers, text_width) = size.vision, size.text
    return f"""\
A miniature `{size.architecture}` of {size.parameters / 1e6:.1f} million parameters ({size.mebibytes:.1f} MiB):
a vision tower of {vision_layers} layers x {vision_width} and a language model of {text_layers} layers x {text_width}.
{story.origin}

```python
import mgap

model = mgap.load("{figures.model}")
```

It knows the pocket world only: drawn scenes of {SIDE} x {SIDE} pixels, {len(OBJECTS)} kinds of things
in {len(COLOURS)} colours, and {len(THEMES)} kinds of places. It answers questions of existence, colour,
number and position, and writes short captions."""


def _protocol(figures: CardFigures) -> str:
    paper, picked = figures.priors["paper"], figures.priors["picked"]
    versions = ", ".join(f"{name} {version}" for name, version in figures.versions.items())
    return f"""\
Greedy decoding in {figures.dtype} on {figures.device}; {versions}.
Percent, with 95% intervals: from a bootstrap over pictures, and Wilson's for colours and CHAIRs.
Test scenes have seeds from {TEST:,} on, development scenes from {DEVELOPMENT:,} on.
An answer that says neither yes nor no is wrong.

{_methods(figures.choice)}

A prior has rank {paper.rank} and is fitted on {paper.prompts} questions of existence, none of them a test question and none in
the wording of a test. With the null image `{paper.null_image}` it holds {percent(paper.explained_variance)} of the variance of
their states, with the picked one, `{picked.null_image}`, {percent(picked.explained_variance)}.
The figures are reported as they came out. `{FILE}` has them all. To measure again:

    python -m research.card {figures.model} --out FOLDER"""


def _methods(choice: PickedSetting) -> str:
    paper = ", ".join(f"{name} {value}" for name, value in PRESETS["paper"].items())
    return f"""\
- **vanilla**: the model alone.
- **bias**: a constant shift of {choice.shift:g} of yes against no, picked on other scenes by the rule below. It sees neither
  picture nor question: on yes/no questions, whatever does not beat it has shown nothing.
- **MGAP, paper**: the preset `paper` ({paper}), with the null image of the authors' code, `{NULLS[0]}`.
- **MGAP, picked**: the same with alpha {choice.alpha:g} and the null image `{choice.null_image}`, picked on other scenes by the
  rule below."""


def _method_name(method: str, choice: PickedSetting) -> str:
    names = {
        "vanilla": "vanilla",
        "bias": f"bias ({choice.shift:g})",
        "paper": "MGAP, paper",
        "picked": f"MGAP, picked (alpha {choice.alpha:g}, {choice.null_image})",
    }
    return names.get(method, method)


def _yes_no_table(scores: Scores, choice: PickedSetting) -> str:
    head = ("split", "method", "accuracy", "precision", "recall", "F1", "says yes", "unparsed", "questions")
    rows = [
        (split, _method_name(name, choice), s.accuracy, s.precision, s.recall, s.f1, s.yes_ratio, s.unparsed, s.questions)
        for split, of in scores.items()
        for name, s in of.items()
    ]
    return _table(head, rows)


def _captions(figures: CardFigures) -> str:
    head = ("method", "CHAIRs", "CHAIRi", "recall", "words a caption")
    rows = [
        (_method_name(name, figures.choice), s.chair_s, s.chair_i, s.recall, f"{s.words:.1f}")
        for name, s in figures.captions.items()
    ]
    return f"{_table(head, rows)}\n\nLower is better for CHAIRs and CHAIRi, higher for recall."


def _colours(figures: CardFigures) -> str:
    head = ("method", "says the usual colour", "says the true colour", "says another, or none", "questions")
    rows = [
        (_method_name(name, figures.choice), c.usual, c.true, c.other, c.questions) for name, c in figures.odd_colours.items()
    ]
    chance = f"A guess among the {len(COLOURS)} colours says the usual one in {100 / len(COLOURS):.1f}% of cases."
    return f"{_table(head, rows)}\n\n{chance}"


def _amber(figures: CardFigures) -> str:
    methods = list(next(iter(figures.amber.values())))
    head = ("kind", "questions", *(_method_name(name, figures.choice) for name in methods))
    rows = [(kind, of[methods[0]].questions, *(of[name].accuracy for name in methods)) for kind, of in figures.amber.items()]
    return (
        f"{_table(head, rows)}\n\nExistence asks for things that are typical of the place and absent: the truth is always no."
    )


def _rule(choice: PickedSetting) -> str:
    splits = list(choice.trials[0].f1)
    best = (choice.null_image, choice.alpha)
    rows = [
        (
            t.null_image,
            f"{t.alpha:g}",
            *(f"{100 * t.f1[split]:.2f}" for split in splits),
            f"{100 * t.mean:.2f}",
            "picked" * ((t.null_image, t.alpha) == best),
        )
        for t in sorted(choice.trials, key=lambda trial: NULL_IMAGES.index(trial.null_image))
    ]
    shifts = [
        (
            f"{t.shift:g}",
            *(f"{100 * t.f1[split]:.2f}" for split in splits),
            f"{100 * t.mean:.2f}",
            "picked" * (t.shift == choice.shift),
        )
        for t in sorted(choice.shifts, key=lambda trial: trial.shift)
    ]
    return f"""\
Of the pairs below, all else as in the preset `paper`, the one with the highest F1, averaged over the three splits of
pocket-POPE, on {choice.scenes} development scenes; ties go to the smallest alpha. F1 in percent:

{_table(("null image", "alpha", *splits, "mean", ""), rows)}

The bias by the same rule; ties go to the smallest shift:

{_table(("shift", *splits, "mean", ""), shifts)}"""


def _limits(figures: CardFigures, story: Story) -> str:
    plain = {kind: of["vanilla"].accuracy for kind, of in figures.amber.items()}
    guessed = [kind for kind, accuracy in plain.items() if accuracy.low <= 0.5 <= accuracy.high]
    chance = f"- Questions of {' and '.join(guessed)} are answered at chance.\n" if guessed else ""
    return f"""\
- It says nothing about real pictures. It has never seen one.
{chance}{story.limit}
- Its vocabulary is that of its corpus. Other questions get an answer in the same words.
- Scenes with seeds {FORBIDDEN.start:,} to {FORBIDDEN.stop - 1:,} are kept for outside checks.
  Do not train, tune or test on them."""


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a pocket model and write its card.")
    parser.add_argument("model", help="pocket/llava, pocket/qwen3-vl, pocket/natural, or a folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and figures.json")
    parser.add_argument("--scenes", type=int, default=500, help="test scenes")
    parser.add_argument("--development", type=int, default=200, help="scenes that the settings are picked on")
    parser.add_argument("--odd-scenes", type=int, default=4000, help="test scenes searched for odd colours")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device")
    args = parser.parse_args()
    model = load(args.model, device=args.device)
    family = (
        args.model.removeprefix("pocket/")
        if args.model in POCKET_MODELS
        else model.backbone.config.model_type.replace("_", "-")
    )
    if f"pocket/{family}" not in POCKET_MODELS:
        raise SettingError(f"{args.model} is a {family} model: there are only {', '.join(POCKET_MODELS)}")
    sizes = {name: getattr(args, name) for name in ("scenes", "development", "odd_scenes", "batch_size")}
    with bars() as progress:
        figures = measure(model, nulls=story_of(f"pocket/{family}").nulls, **sizes, progress=progress)
    write_card(args.out, family, figures)
    print(f"{args.out}: README.md and {FILE}")


if __name__ == "__main__":
    main()
