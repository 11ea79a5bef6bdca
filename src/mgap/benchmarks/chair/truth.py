"""What COCO's pictures show, for CHAIR: classes that were segmented, and those that only people's captions name.

Read from gt_val2014.json, where someone has put both together; or built from COCO's own instances_*.json and captions_*.json:
then people's captions are read by the same pipeline as the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.errors import BenchmarkError
from mgap.io.atomic_files import file_sha256
from mgap.io.record_files import FilePath, read_json

T = TypeVar("T")
Named = Callable[[str], Iterable[str]]  # from a text to the classes that it names
_NEEDED = "gt_val2014.json, or COCO's annotations: instances_*.json and captions_*.json"


@dataclass(frozen=True)
class GroundTruth:
    """By image id; the union is worked out for the pictures that are asked about."""

    pictures: Mapping[int, str]  # file names
    classes: Callable[[int], Iterable[str]]
    sources: Mapping[str, str]  # files that were read, with their SHA-256

    def of(self, ids: Sequence[int]) -> dict[int, list[str]]:
        """The classes in each picture; one that nothing is known of is refused: all that is said of it would be invented."""
        if absent := [name for name in dict.fromkeys(ids) if name not in self.pictures]:
            raise BenchmarkError(
                f"{len(absent)} of {len(set(ids))} image ids have no ground truth, first {absent[0]}; "
                f"there is one for {len(self.pictures):,} pictures of {', '.join(self.sources)}"
            )
        return {name: sorted(set(self.classes(name))) for name in dict.fromkeys(ids)}


def find_truth(folder: FilePath, lexicon: Lexicon, named: Named | None = None) -> GroundTruth:
    """From a folder, or its folders `chair` and `annotations`; `named` reads people's captions, for COCO's annotations."""
    places = [place for place in (Path(folder, "chair"), Path(folder)) if place.is_dir()]
    for place in places:
        if files := sorted(place.glob("gt_*2014.json"), reverse=True):  # val first
            return _cached(files, lexicon)
    for inner in (inner for place in places for inner in (place, place / "annotations")):
        instances, captions = sorted(inner.glob("instances_*.json")), sorted(inner.glob("captions_*.json"))
        if instances and captions:
            if named is None:
                raise BenchmarkError(f"{inner}: people's captions need a language pipeline to be read; give `named`")
            return _annotated(instances, captions, lexicon, named)
    raise BenchmarkError(f"{folder}: no ground truth of CHAIR in it; it needs {_NEEDED}")


def _cached(files: Sequence[Path], lexicon: Lexicon) -> GroundTruth:
    known: dict[int, list[str]] = {}
    pictures: dict[int, str] = {}
    for path in files:
        split = path.stem.removeprefix("gt_")
        try:
            for key, value in _read(path).items():
                names = [*value["segmentation"], *value["caption_only"]] if isinstance(value, dict) else list(value)
                if not all(isinstance(name, str) for name in names):
                    raise TypeError(f"{names!r:.60} are not all names")
                known[int(key)] = names
                pictures[int(key)] = f"COCO_{split}_{int(key):012d}.jpg"
        except (KeyError, TypeError, ValueError) as error:
            raise BenchmarkError(f"{path}: its entries are not of CHAIR's ground truth ({error!r}); fetch it again") from None
    _refuse_others({name for classes in known.values() for name in classes}, lexicon.synonyms, files[0])
    return GroundTruth(pictures, known.__getitem__, _sources(files))


def _annotated(instances: Sequence[Path], captions: Sequence[Path], lexicon: Lexicon, named: Named) -> GroundTruth:
    """Of the pictures that are in a file of each kind."""
    meanings = lexicon.meanings()
    shown: dict[int, set[str]] = {}
    told: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    try:
        for path in instances:
            data = _read(path)
            categories = {entry["id"]: entry["name"] for entry in data["categories"]}
            _refuse_others(set(categories.values()), meanings, path)
            shown.update({image["id"]: set() for image in data["images"] if image["id"] not in shown})
            for entry in data["annotations"]:
                shown[entry["image_id"]].add(meanings[categories[entry["category_id"]]])
        for path in captions:
            data = _read(path)
            names.update({_of(int, image["id"]): _of(str, image["file_name"]) for image in data["images"]})
            for entry in data["annotations"]:
                told.setdefault(entry["image_id"], []).append(_of(str, entry["caption"]))
    except (KeyError, TypeError) as error:
        raise BenchmarkError(f"{path}: not as COCO writes annotations ({error!r}); fetch it again") from None

    def classes(name: int) -> set[str]:
        return shown[name].union(*(named(caption) for caption in told.get(name, ())))

    both = {name: file for name, file in names.items() if name in shown}
    return GroundTruth(both, classes, _sources([*instances, *captions]))


def _of(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.40} where {kind.__name__} belongs")
    return value


def _refuse_others(found: set[str], known: Collection[str], path: Path) -> None:
    if others := sorted(found - set(known)):
        raise BenchmarkError(
            f"{path}: {others[0]!r} is none of the classes that are looked for; give the words that belong to it"
        )


def _sources(files: Iterable[Path]) -> dict[str, str]:
    return {str(path): file_sha256(path) for path in files}


def _read(path: Path) -> Any:
    data = read_json(path)
    if not isinstance(data, dict):
        raise BenchmarkError(f"{path}: no JSON object; it needs {_NEEDED}")
    return data
