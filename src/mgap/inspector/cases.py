"""What can be opened in the page that asks: a picture and a question, and how it is to be answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gradio as gr
from PIL import Image

from mgap.pocket.scenes import Scene
from mgap.priors.subspace import Subspace


@dataclass(frozen=True)
class AskCase:
    """One question about one picture, to be answered plainly and by one method."""

    question: str
    picture: Scene | Image.Image
    why: str = ""  # it is worth looking at
    model: str | None = None  # None: the one that is chosen in the page
    method: str = "mgap"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method
    prior: Subspace | None = None  # of the run that it comes from; None: the page's own
    prior_folder: str = ""  # where that lies
    name: str = ""  # of the picture's file, where it was not drawn
    told: Mapping[str, str] = field(default_factory=dict)  # by method, what the run's records have


class OpenedCase(NamedTuple):
    """Where another page of the inspector leaves a case, and the event after which it lies there."""

    case: gr.State  # a Case, or None
    event: Any  # gradio's Dependency: chain `.then` to it
