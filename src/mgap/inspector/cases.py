"""A case to open in the ask page: a picture, a question, and how to answer it."""

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
    """One question about one picture, answered by plain decoding and by one method."""

    question: str
    picture: Scene | Image.Image
    why: str = ""  # why it is worth a look
    model: str | None = None  # None: the one chosen in the page
    method: str = "mgap"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method
    prior: Subspace | None = None  # of the run it comes from; None: the page's own
    prior_folder: str = ""  # the folder of that prior
    name: str = ""  # of the picture's file, if it was not drawn
    recorded: Mapping[str, str] = field(default_factory=dict)  # the run's answers by method


class OpenedCase(NamedTuple):
    """Where another page of the inspector puts a case, and the event after which it is there."""

    case: gr.State  # an AskCase, or None
    event: Any  # Gradio's Dependency: chain `.then` to it
