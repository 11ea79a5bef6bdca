"""CHAIR as projects run it (Rohrbach et al., 2018): descriptions of COCO pictures, scored by the objects they mention.

Projects differ in pictures, prompts and length limits, and each of these changes the figures more than most methods do. So
sets of pictures and prompts are named after their projects.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.chair.truth import GroundTruth, Named, find_truth
from mgap.benchmarks.picture_folder import PictureFolder, keep_pictured
from mgap.benchmarks.published_files import find_data
from mgap.errors import BenchmarkError, SettingError
from mgap.io.record_files import FilePath, identifier, read_json, read_rows, read_text
from mgap.types import Sample

_IN_DETAIL = "Please describe this image in detail."
_HELP_ME = "Please help me describe the image in detail."
PROMPTS = {  # by project
    "mgap": _HELP_ME,
    "haltrapper": _HELP_ME,
    "pai": _HELP_ME,
    "opera": _IN_DETAIL,
    "sid": _IN_DETAIL,
    "deco": _IN_DETAIL,
    "mod": _IN_DETAIL,
    "halc": _IN_DETAIL,
    "lmms_eval": _IN_DETAIL,
    "pope-brief": "Provide a brief description of the given image.",
    "pope-short": "Generate a short caption of the image.",
}
FIXED = "haltrapper_fixed_500"  # the list of HalTrapper and MGAP in image_sets.json
SAMPLE = 500  # pictures to draw by default
_DIGITS = 18  # most digits of an image id


def read_chair(
    data: FilePath,
    images: FilePath,
    *,
    image_set: str | None = None,
    seed: int = 0,
    prompt: str = "mgap",
    missing: str = "refuse",
    named: Named | None = None,
) -> Benchmark:
    """One description per picture; ids are COCO's. `images` is the folder of the pictures.

    `image_set` is the name of a list in image_sets.json, a file with one id per line, or a number of val2014 pictures to draw
    with `seed`. By default it is the 500 of HalTrapper and MGAP if that list exists, else 500 drawn ones, with a note. `named`
    finds classes in people's captions if the ground truth is built from COCO's annotations.
    """
    if prompt not in PROMPTS:
        raise SettingError(f"unknown prompt {prompt!r}: choose from {', '.join(PROMPTS)}")
    lexicon = read_lexicon(data)
    truth = find_truth(data, lexicon, named)
    name, ids, notes = _choose(Path(data), image_set, seed, truth)
    classes = truth.of(ids)
    samples = [Sample(str(i), truth.pictures[i], PROMPTS[prompt], "captions", classes[i]) for i in ids]
    folder = PictureFolder(images)
    kept, left_out = keep_pictured(samples, folder, missing)
    return Benchmark(f"chair {name}", "captions", kept, folder, lexicon.to_json(), truth.sources, (*notes, *left_out))


def read_captions(path: FilePath, id_key: str = "image_id", caption_key: str = "caption") -> list[tuple[int, str]]:
    """Image ids and captions from a file in the published format: JSON lines or an array. A picture may have several."""
    needed = f"a caption has {id_key} and {caption_key}"
    captions = []
    for row in read_rows(path):
        name, text = identifier(path, row, id_key, needed), row.data.get(caption_key)
        if not name.isdecimal() or len(name) > _DIGITS:
            raise BenchmarkError(f"{path} {row.where}: {id_key} {name!r:.40} is no image id; write COCO's, such as 108193")
        if not isinstance(text, str):
            raise BenchmarkError(f"{path} {row.where}: no {caption_key!r} among {', '.join(map(repr, row.data))}; {needed}")
        captions.append((int(name), text))
    if not captions:
        raise BenchmarkError(f"{path}: no caption in it; {needed}")
    return captions


def read_lexicon(data: FilePath) -> Lexicon:
    """The lexicon from the published files in a folder or its subfolder `chair`; the built-in one if there are none."""
    return Lexicon.read(_chair_folder(Path(data)))


def _choose(data: Path, image_set: str | None, seed: int, truth: GroundTruth) -> tuple[str, list[int], list[str]]:
    """The name of the set, its ids, and notes."""
    sets = _chair_folder(data) / "image_sets.json"
    lists = read_json(sets) if sets.exists() else {}
    if not isinstance(lists, dict):
        raise BenchmarkError(f"{sets}: not an object with a list of image ids for each name; fetch it again")
    if image_set is None and FIXED in lists:
        image_set = FIXED
    if image_set is None or (image_set.isdecimal() and len(image_set) <= _DIGITS):
        count = SAMPLE if image_set is None else int(image_set)
        note = f"{count} pictures drawn with seed {seed}: figures of other pictures differ by a point or two"
        return f"{count} drawn with seed {seed}", _draw(count, seed, truth), [note] if image_set is None else []
    if image_set in lists:
        return image_set, _listed(sets, image_set, lists[image_set]), []
    if not os.path.isfile(image_set):  # Path.is_file raises on a name that is too long
        choices = ", ".join(lists) or f"no published list, as there is no {sets}"
        raise SettingError(
            f"unknown image_set {image_set!r:.60}: choose from {choices}; or give a file with an id a line, or a number"
        )
    return Path(image_set).stem, _read_ids(Path(image_set)), []


def _listed(path: Path, name: str, ids: Any) -> list[int]:
    if not isinstance(ids, list) or not all(str(number).isdecimal() and len(str(number)) <= _DIGITS for number in ids):
        raise BenchmarkError(f"{path}: {name} is no list of image ids; fetch it again")
    return list(map(int, ids))


def _draw(count: int, seed: int, truth: GroundTruth) -> list[int]:
    """Sample ids, independent of the order of the files; from val2014 if there is any."""
    ids = sorted(i for i, name in truth.pictures.items() if "val2014" in name) or sorted(truth.pictures)
    if not 1 <= count <= len(ids):
        raise SettingError(f"{count} pictures to draw: there are {len(ids):,}")
    return random.Random(seed).sample(ids, count)


def _read_ids(path: Path) -> list[int]:
    """Read ids or names of COCO's files, one per line."""
    ids = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        match = re.fullmatch(rf"(?:.*_)?0*(\d{{1,{_DIGITS}}})(?:\.\w+)?", line.strip())
        if match is None:
            raise BenchmarkError(f"{path} line {number}: {line.strip()!r:.40} is no image id; write one a line, such as 108193")
        ids.append(int(match[1]))
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        raise BenchmarkError(f"{path}: {len(twice)} image ids stand there twice, {twice[0]} first; describe each once")
    return ids


def _chair_folder(data: Path) -> Path:
    if not data.is_dir():
        raise BenchmarkError(f"{data}: no such folder of CHAIR's files; name the one that holds the ground truth")
    return data / "chair" if (data / "chair").is_dir() else data


class ChairSource:
    """`mgap run chair`."""

    keys = frozenset({"image_set"})
    datasets = ("coco",)
    max_new_tokens = 512

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        from mgap.benchmarks.chair.scorer import ChairScorer

        return read_chair(
            find_data("chair", keys.data),
            str(keys.images),
            image_set=keys.image_set,
            prompt=keys.prompt or "mgap",
            missing=keys.missing,
            named=ChairScorer.of({}, **keys.scoring).finder.classes,  # people's captions are parsed like the model's
        )
