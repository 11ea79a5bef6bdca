"""Contact sheets: every drawing in every style, to be looked at."""

from __future__ import annotations

from collections.abc import Mapping

from PIL import Image, ImageDraw

from mgap.pocket.drawing import SPRITE, STYLES, Object


def contact_sheet(objects: Mapping[str, Object], scale: int = 1) -> Image.Image:
    """A row an object: its name, then one drawing a style, each in the object's commonest colour."""
    cell, label = SPRITE * scale + 8, 110
    sheet = Image.new("RGB", (label + cell * len(STYLES), cell * len(objects)), (206, 214, 196))
    pencil = ImageDraw.Draw(sheet)
    for row, (name, thing) in enumerate(objects.items()):
        pencil.text((6, row * cell + cell // 2 - 6), name, fill=(0, 0, 0))
        for column, style in enumerate(STYLES):
            sprite = thing.sprite(style, thing.usual_colour).resize((SPRITE * scale, SPRITE * scale), Image.Resampling.BICUBIC)
            sheet.paste(sprite, (label + column * cell + 4, row * cell + 4), sprite)
    return sheet
