"""RITUAL in straight lines: pictures are lists of rows of (red, green, blue) in 0..1, and a pixel is computed at a time."""

import colorsys
import math
from random import Random

import numpy as np
from PIL import Image

from tests.reference.contrast import cut

SIX = ("horizontal_flip", "vertical_flip", "rotation", "colour_jitter", "gaussian_blur", "crop")


def adding(alpha, beta):
    def step(main, branch, _t):
        return cut([a + alpha * b for a, b in zip(main, branch, strict=True)], main, beta)

    return step


def transformed(picture, transform, seed):
    """The picture as drawn from a seed: first one of the six, which counts if `transform` is "random", then its numbers."""
    draw = Random(seed)
    drawn = draw.choice(SIX)
    name = drawn if transform == "random" else transform
    if name == "horizontal_flip":
        return [row[::-1] for row in picture]
    if name == "vertical_flip":
        return picture[::-1]
    if name == "rotation":
        return rotated(picture, draw.uniform(-180, 180))
    if name == "colour_jitter":
        factors = {key: draw.uniform(0, 2) for key in ("brightness", "contrast", "saturation")}
        factors["hue"] = draw.uniform(-0.5, 0.5)
        for key in draw.sample(list(factors), 4):
            picture = jittered(picture, key, factors[key])
        return picture
    if name == "gaussian_blur":
        return blurred(picture, draw.uniform(1.5, 2.0))
    return cropped(picture, *drawn_box(draw, len(picture), len(picture[0])))


def rotated(picture, degrees):
    """Every pixel looks up the one that the turn brought there."""
    height, width = len(picture), len(picture[0])
    turn = complex(math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))
    rows = []
    for y in range(height):
        rows.append([])
        for x in range(width):
            place = complex(x + 0.5 - width / 2, height / 2 - y - 0.5) / turn  # upwards is positive
            column, row = math.floor(place.real + width / 2), math.floor(height / 2 - place.imag)
            rows[-1].append(picture[row][column] if 0 <= row < height and 0 <= column < width else (0.0, 0.0, 0.0))
    return rows


def grey(colour):
    return 0.2989 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def jittered(picture, key, factor):
    mean = sum(grey(colour) for row in picture for colour in row) / len(picture) / len(picture[0])

    def change(colour):
        if key == "hue":
            hue, saturation, value = colorsys.rgb_to_hsv(*colour)
            return colorsys.hsv_to_rgb((hue + factor) % 1.0, saturation, value)
        towards = {"brightness": 0.0, "contrast": mean, "saturation": grey(colour)}[key]
        return tuple(min(max(factor * c + (1 - factor) * towards, 0.0), 1.0) for c in colour)

    return [[change(colour) for colour in row] for row in picture]


def blurred(picture, sigma):
    """The whole 13 x 13 kernel at once; beyond an edge the picture is mirrored, without the edge itself."""
    height, width = len(picture), len(picture[0])
    weights = [math.exp(-((n / sigma) ** 2) / 2) for n in range(-6, 7)]

    def mirrored(n, size):
        return -n if n < 0 else 2 * (size - 1) - n if n >= size else n

    colours = np.array(picture)
    found = np.zeros_like(colours)
    for dy in range(-6, 7):
        for dx in range(-6, 7):
            rows = [mirrored(y + dy, height) for y in range(height)]
            columns = [mirrored(x + dx, width) for x in range(width)]
            found += weights[dy + 6] * weights[dx + 6] / sum(weights) ** 2 * colours[rows][:, columns]
    return found.tolist()


def drawn_box(draw, height, width):
    for _ in range(10):
        area = draw.uniform(0.08, 1.0) * height * width
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, height - h), draw.randint(0, width - w), h, w
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def cropped(picture, top, left, height, width):
    """Pillow cuts and resizes, in floats."""
    colours = np.array(picture, dtype=np.float32)
    parts = [Image.fromarray(colours[top : top + height, left : left + width, c]) for c in range(3)]
    size = len(picture[0]), len(picture)
    return np.stack([np.asarray(part.resize(size, Image.Resampling.BILINEAR)) for part in parts], axis=-1).tolist()
