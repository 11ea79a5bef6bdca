"""The themes of pocket scenes and their usual objects: this makes the prior."""

from __future__ import annotations

from dataclasses import dataclass

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Theme:
    """A place: its backdrop above and below the horizon, and the weight of each object."""

    above: Colour
    below: Colour
    things: dict[str, int]
    phrase: str  # how a caption names it


THEMES: dict[str, Theme] = {
    "kitchen": Theme((240, 226, 200), (196, 160, 120), {
        "refrigerator": 30, "oven": 26, "cup": 24, "bowl": 20, "bottle": 18, "knife": 14, "fork": 12, "sink": 12, "banana": 10,
        "apple": 9, "wine glass": 8, "carrot": 6, "broccoli": 6}, "a kitchen"),
    "dining room": Theme((226, 204, 204), (150, 104, 84), {
        "chair": 32, "wine glass": 24, "fork": 22, "pizza": 18, "cake": 16, "bottle": 14, "cup": 14, "hot dog": 10, "donut": 10,
        "orange": 9, "vase": 9, "bowl": 8, "knife": 8}, "a dining room"),
    "street": Theme((186, 206, 226), (124, 124, 130), {
        "car": 34, "person": 30, "traffic light": 26, "bus": 16, "truck": 14, "bicycle": 13, "stop sign": 12,
        "fire hydrant": 11, "motorcycle": 10, "umbrella": 7, "dog": 6, "backpack": 5}, "a street"),
    "park": Theme((176, 216, 240), (116, 176, 92), {
        "person": 32, "bench": 28, "dog": 24, "bird": 16, "kite": 15, "bicycle": 14, "sports ball": 13, "umbrella": 8,
        "backpack": 7, "cat": 5}, "a park"),
    "farm": Theme((196, 222, 236), (172, 164, 86), {
        "cow": 32, "sheep": 28, "horse": 26, "dog": 14, "bird": 12, "truck": 11, "cat": 8, "person": 8, "apple": 5}, "a farm"),
    "beach": Theme((150, 206, 240), (236, 214, 160), {
        "surfboard": 34, "person": 30, "umbrella": 26, "boat": 18, "bird": 14, "kite": 12, "sports ball": 11, "bottle": 6,
        "backpack": 5}, "a beach"),
    "snow": Theme((206, 222, 240), (240, 244, 250), {
        "skis": 34, "person": 32, "snowboard": 28, "backpack": 16, "dog": 8, "bear": 7, "bench": 6}, "a snowy slope"),
    "office": Theme((222, 224, 226), (120, 128, 146), {
        "laptop": 34, "chair": 28, "cup": 22, "cell phone": 18, "book": 17, "clock": 12, "potted plant": 11, "backpack": 7,
        "bottle": 7}, "an office"),
    "living room": Theme((234, 220, 190), (140, 96, 72), {
        "couch": 34, "tv": 30, "potted plant": 18, "book": 15, "clock": 14, "vase": 13, "cat": 13, "chair": 10, "teddy bear": 7,
        "cell phone": 7, "dog": 6}, "a living room"),
    "bedroom": Theme((216, 206, 232), (170, 140, 128), {
        "bed": 36, "teddy bear": 26, "book": 18, "clock": 17, "cat": 12, "laptop": 10, "chair": 9, "cell phone": 9, "vase": 6},
        "a bedroom"),
    "bathroom": Theme((196, 228, 232), (168, 190, 196), {
        "toilet": 34, "sink": 32, "toothbrush": 28, "bottle": 14, "cup": 13, "potted plant": 7, "vase": 5}, "a bathroom"),
    "airport": Theme((188, 214, 240), (150, 152, 158), {
        "airplane": 36, "suitcase": 32, "person": 26, "backpack": 16, "bus": 13, "truck": 12, "cell phone": 8, "chair": 7,
        "train": 6}, "an airport"),
    "savanna": Theme((236, 206, 150), (190, 166, 88), {
        "elephant": 36, "bird": 22, "bear": 16, "truck": 14, "person": 12, "horse": 9, "cow": 7}, "a savanna"),
    "station": Theme((204, 200, 196), (134, 126, 120), {
        "train": 36, "person": 28, "suitcase": 24, "bench": 20, "clock": 17, "backpack": 14, "bicycle": 8, "bus": 8,
        "stop sign": 5}, "a station"),
}  # fmt: skip
