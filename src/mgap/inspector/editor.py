"""An editor for pocket scenes. The browser holds the scene; the server checks it and draws the picture."""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Any

import gradio as gr
from gradio.components.base import server

from mgap.errors import MgapError
from mgap.inspector import theme
from mgap.inspector.component import NoStubMeta
from mgap.inspector.scene_json import plain, scene_of
from mgap.pages.html_page import PagePicture
from mgap.pocket.benchmark import DEVELOPMENT, TEST
from mgap.pocket.drawing import COLOURS
from mgap.pocket.objects import NAMES, OBJECTS
from mgap.pocket.scenes import MOST, Scene, make_scene, render, sprite
from mgap.pocket.showcase import STYLE, compose, describe
from mgap.pocket.themes import THEMES


class SceneEditor(gr.HTML, metaclass=NoStubMeta):
    """Draw a scene: pick a thing and click it into the picture, recolour it, move it, remove it.

    Python sets its value to a Scene (None: an empty kitchen); a handler gets the scene as plain JSON, which `scene_of` checks
    and reads. `change` fires after every change, `input` only after the user's.
    """

    def __init__(self, value: Scene | None = None, *, label: str = "Draw a scene", elem_id: str | None = None) -> None:
        usual = {name: OBJECTS[name].usual_colour for name in sorted(NAMES)}
        super().__init__(
            value,
            label=label,
            elem_id=elem_id,
            html_template=theme.render("editor.html.j2", label=label, places=tuple(THEMES), things=usual, colours=COLOURS),
            js_on_load=theme.static("editor.js"),
            apply_default_css=False,
            sprites=_sprites(),
            places=_places(),
            most=MOST,
        )

    def preprocess(self, payload: Any) -> Any:
        """The scene that the browser sent, unchecked."""
        return payload.get("scene") if isinstance(payload, dict) else payload

    def postprocess(self, value: Scene | dict[str, Any] | None) -> dict[str, Any]:
        if value is None:
            value = compose(0, "kitchen")
        return drawn(value if isinstance(value, Scene) else scene_of(value))

    @server  # type: ignore[untyped-decorator]
    def draw(self, data: object) -> dict[str, Any]:
        """Check and draw a scene that the browser changed; an error message if it is refused."""
        try:
            return drawn(scene_of(data))
        except MgapError as error:
            return {"error": str(error)}

    @server  # type: ignore[untyped-decorator]
    def surprise(self, _data: object) -> dict[str, Any]:
        """A random development scene."""
        return drawn(make_scene(DEVELOPMENT + secrets.randbelow(TEST - DEVELOPMENT)))


def drawn(scene: Scene) -> dict[str, Any]:
    """A scene for the browser: plain JSON, picture, and a description in words."""
    picture = PagePicture.of(render(scene), describe(scene))
    return {"scene": plain(scene), "picture": picture.source, "alt": picture.alt}


@lru_cache(maxsize=1)
def _sprites() -> dict[str, str]:
    """Every thing in its usual colour, by name, as a data: URL."""
    return {name: PagePicture.of(sprite(name, STYLE, OBJECTS[name].usual_colour), name).source for name in NAMES}


def _places() -> dict[str, dict[str, Any]]:
    """For each place, its phrase in a sentence, and the things usual there, commonest first."""
    return {
        name: {"phrase": theme.phrase, "things": sorted(theme.things, key=lambda thing: -theme.things[thing])}
        for name, theme in THEMES.items()
    }
