"""All objects of the pocket world, by COCO name."""

from __future__ import annotations

from mgap.pocket.animals import ANIMALS
from mgap.pocket.drawing import Object
from mgap.pocket.food import FOOD
from mgap.pocket.indoors import INDOORS
from mgap.pocket.kitchen import KITCHEN
from mgap.pocket.outdoors import OUTDOORS
from mgap.pocket.vehicles import VEHICLES

OBJECTS: dict[str, Object] = {**ANIMALS, **VEHICLES, **OUTDOORS, **INDOORS, **KITCHEN, **FOOD}
NAMES: tuple[str, ...] = tuple(OBJECTS)

PLURALS = {
    "person": "people", "knife": "knives", "wine glass": "wine glasses", "couch": "couches", "bus": "buses", "bench": "benches",
    "sheep": "sheep", "skis": "skis", "toothbrush": "toothbrushes",
}  # fmt: skip


def plural(name: str) -> str:
    return PLURALS.get(name, f"{name}s")


def with_article(name: str) -> str:
    """ "a dog", "an apple", "skis"."""
    if name == "skis":
        return "skis"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
