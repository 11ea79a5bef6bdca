"""The demo's page: results of `pocket.demo` as text, tables and figures for `demo.html.j2`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mgap.benchmarks.pope.scorer import PopeScore
from mgap.benchmarks.statistics import Rate
from mgap.pages.html_page import Cell, PagePicture, PageToken, RowGroup, Table, TableRow, render_page
from mgap.pages.plots import SYMBOLS, Plot, plot_rates
from mgap.pocket.demo import Demo, DemoAnswer, Exhibit
from mgap.pocket.scenes import WORLD, render
from mgap.pocket.showcase import CAPTION, describe, listed

RATES: dict[str, Callable[[PopeScore], Rate]] = {
    "Accuracy": lambda score: score.accuracy,
    "Precision": lambda score: score.precision,
    "Recall": lambda score: score.recall,
    "F1": lambda score: score.f1,
    "Says yes": lambda score: score.yes_ratio,
}
PLOTTED = ("Precision", "Recall", "F1")
HARDEST, SHOWN = "adversarial", 4  # the split whose changed answers are shown, and how many per effect
EFFECTS = {"corrected": "right", "spoilt": "wrong", "wrong either way": "unclear"}  # effect -> the verdict that sets its colour
_VERDICTS = {"right": "\u2713 right", "wrong": "\u2717 wrong", "unclear": "? unclear"}


def demo_page(demo: Demo, out: str) -> str:
    """One self-contained HTML file."""
    labels = {name: demo.label(name) for name in demo.pope[HARDEST]}
    return render_page(
        "demo.html.j2",
        title="MGAP on the pocket world",
        model=demo.model["name"],
        labels=list(labels.values()),
        symbols=SYMBOLS,
        cases=[_card(exhibit, demo, labels) for exhibit in demo.exhibits],
        pope_about=_pope_about(demo),
        pope_table=pope_table(demo),
        plots=_plots(demo, labels),
        change_about=_change_about(demo, labels),
        changes=_changes(demo),
        caption_about=_caption_about(demo),
        caption_table=caption_table(demo),
        command=command(demo, out),
        facts=_facts(demo, labels),
    )


def command(demo: Demo, out: str) -> str:
    """The command that makes this page, with every default spelled out."""
    plan = demo.plan
    words = ["mgap", "demo", "--model", plan.model, "--out", out, "--questions", str(plan.questions)]
    words += ["--captions", str(plan.captions)]
    return shlex.join(words + ([] if plan.alpha is None else ["--alpha", f"{plan.alpha:g}"]))


def pope_table(demo: Demo) -> Table:
    groups = [
        RowGroup(
            split.capitalize(),
            tuple(
                TableRow(
                    demo.label(name),
                    (*(Cell.of(of(score)) for of in RATES.values()), Cell(str(score.unparsed)), Cell(str(score.questions))),
                )
                for name, score in scores.items()
            ),
        )
        for split, scores in demo.pope.items()
    ]
    return Table(
        "Percent; below each, its 95% interval from a bootstrap over pictures.",
        ("Method", *RATES, "Unclear", "Questions"),
        groups,
    )


def caption_table(demo: Demo) -> Table:
    rows = tuple(
        TableRow(
            demo.label(name),
            (
                Cell.of(captions.score.chair_s),
                Cell.of(captions.score.chair_i),
                Cell.of(captions.score.recall),
                Cell(f"{captions.score.words:.1f}"),
                Cell(str(captions.score.captions)),
            ),
        )
        for name, captions in demo.captions.items()
    )
    return Table(
        "Percent; below each, its 95% interval. Lower is better for CHAIRs and CHAIRi, higher for recall.",
        ("Method", "CHAIRs", "CHAIRi", "Recall", "Words", "Captions"),
        [RowGroup("", rows)],
    )


def _plots(demo: Demo, labels: dict[str, str]) -> list[Plot]:
    """Plots on one common scale."""
    rates = {
        title: {split: {labels[name]: RATES[title](score) for name, score in of.items()} for split, of in demo.pope.items()}
        for title in PLOTTED
    }
    lowest = min(rate.low for groups in rates.values() for of in groups.values() for rate in of.values())
    return [plot_rates(title, groups, lowest=lowest) for title, groups in rates.items()]


def _card(exhibit: Exhibit, demo: Demo, labels: dict[str, str]) -> dict[str, Any]:
    case = exhibit.case
    drawn = describe(case.scene)
    is_caption = case.truth == CAPTION
    return {
        "title": case.title,
        "why": case.why,
        "picture": PagePicture.of(render(case.scene), drawn),
        "drawn": listed(case.scene),
        "question": case.question,
        "truth_label": "Drawn:" if is_caption else "True answer:",
        "truth": ", ".join(case.scene.names) if is_caption else case.truth,
        "answers": [
            _answer(answer, labels[name], _strength(demo, name), is_caption) for name, answer in exhibit.answers.items()
        ],
    }


def _answer(result: DemoAnswer, name: str, alpha: float, is_caption: bool) -> dict[str, Any]:
    note = ""
    if is_caption:
        note = f"Named but not drawn: {', '.join(result.invented)}." if result.invented else "Names nothing that is not drawn."
    if result.answer.stop == "length":
        note += f" Cut off after {len(result.answer.token_ids)} tokens."
    return {
        "label": name,
        "text": result.answer.text,
        "verdict": result.verdict,
        "verdict_label": _VERDICTS.get(result.verdict or "", ""),
        "tokens": [PageToken.of(step, "beta", alpha) for step in result.answer.trace or ()],
        "note": note.strip(),
    }


def _seed_range(seeds: tuple[int, int]) -> str:
    return f"{seeds[0]} to {seeds[1]}"


def _strength(demo: Demo, name: str) -> float:
    method = demo.methods[name]
    return 0.0 if method is None else method.settings.alpha


def _pope_about(demo: Demo) -> tuple[str, str]:
    scores = demo.pope[HARDEST]
    precisions = "; ".join(f"{demo.label(name)} {100 * score.precision.value:.1f}" for name, score in scores.items())
    return (
        "Half of the questions ask about what is drawn. The other half ask about what is not: anything (random), what is "
        "common in this world (popular), or what is usually seen together with what is drawn (adversarial). The first word of "
        "the answer counts.",
        f"Adversarial precision, in percent: {precisions}.",
    )


def _shown_method(demo: Demo) -> str:
    """The method whose changes are shown: the last one."""
    return list(demo.methods)[-1]


def _change_about(demo: Demo, labels: dict[str, str]) -> str:
    name = _shown_method(demo)
    changes = demo.changes(HARDEST, name)
    effects = Counter(change.effect for change in changes)
    counts = ", ".join(f"{count} {effect}" for effect, count in effects.most_common()) or "none"
    total = demo.pope[HARDEST][name].questions
    return (
        f"Of {total} {HARDEST} questions, {labels[name]} answers {len(changes)} otherwise than plain decoding: {counts}. "
        f"Below, the first {SHOWN} of each kind, in the order of asking."
    )


def _changes(demo: Demo) -> list[dict[str, Any]]:
    """The first few changes of each effect, corrected ones first."""
    changes = demo.changes(HARDEST, _shown_method(demo))
    shown = [change for effect in EFFECTS for change in [c for c in changes if c.effect == effect][:SHOWN]]
    return [
        {
            "picture": PagePicture.of(render(change.scene), describe(change.scene)),
            "question": change.question.prompt,
            "truth": change.question.truth,
            "before": change.before or "unclear",
            "after": change.after or "unclear",
            "effect": change.effect,
            "verdict": EFFECTS[change.effect],
        }
        for change in shown
    ]


def _caption_about(demo: Demo) -> str:
    return (
        f"{demo.plan.captions} test scenes, described in words. CHAIRs: share of descriptions that name something which is not "
        "drawn. CHAIRi: share of all mentions that are of such things. Recall: share of what is drawn that is named."
    )


def _facts(demo: Demo, labels: dict[str, str]) -> list[tuple[str, str]]:
    model = demo.model
    facts = [
        (
            "Model",
            f"{model['name']}: {model['architecture']} of {model['parameters']:,} parameters, "
            f"{model['dtype']} on {model['device']}",
        )
    ]
    for name, method in demo.methods.items():
        if method is None:
            facts.append((labels[name], "greedy decoding, nothing attached"))
            continue
        prior, settings = method.prior, ", ".join(f"{key}={value}" for key, value in asdict(method.settings).items())
        facts.append(
            (
                labels[name],
                f"greedy decoding with {settings}; a prior of rank {prior.rank} of {prior.hidden_size}, from {prior.count} "
                f"questions with the null image {prior.origin['null_image']}, none of them a test question; it holds "
                f"{100 * prior.explained_variance:.1f}% of their states' variance",
            )
        )
    if demo.bias is not None:
        facts.append(
            (
                labels[demo.bias.name],
                "a constant shift of the log-odds of yes against no, which sees neither picture nor question, picked in the "
                "same way; on yes/no questions, whatever does not beat it has shown nothing",
            )
        )
    strongest = max(_strength(demo, name) for name in demo.methods)
    above = " Above 1, the prior's part can change its sign where the model hesitates." if strongest > 1 else ""
    return [
        *facts,
        ("Settings", f"{demo.picked_how}.{above}"),
        (
            "Scenes",
            f"world {WORLD}; seeds {_seed_range(demo.seeds['pope'])} for pocket-POPE, "
            f"{_seed_range(demo.seeds['captions'])} for captions; the pictures above are drawn by hand",
        ),
        ("Right or wrong", "by the first word of its kind in the answer: yes or no, a color, a number"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in demo.versions.items())),
        ("Made", f"{demo.made}, in {demo.seconds:.0f} s"),
    ]
