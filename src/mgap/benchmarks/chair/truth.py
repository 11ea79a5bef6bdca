"""CHAIR's ground truth for COCO's pictures: the segmented classes and those that only people's captions mention.

It is read from gt_val2014.json, which combines both, or built from COCO's own instances_*.json and captions_*.json; then the
pipeline that parses the model's captions parses people's captions too.
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
Named = Callable[[str], Iterable[str]]  # from a text to the classes that it mentions
_NEEDED = "gt_val2014.json, or COCO's annotations: instances_*.json and captions_*.json"


@dataclass(frozen=True)
class GroundTruth:
    """Classes by image id, computed for the requested pictures only."""

    pictures: Mapping[int, str]  # file names
    classes: Callable[[int], Iterable[str]]
    sources: Mapping[str, str]  # SHA-256 of the files read, by path

    def of(self, ids: Sequence[int]) -> dict[int, list[str]]:
        """The classes in each picture. Refuses a picture without ground truth: every mention would count as hallucinated."""
        if absent := [name for name in dict.fromkeys(ids) if name not in self.pictures]:
            raise BenchmarkError(
                f"{len(absent)} of {len(set(ids))} image ids have no ground truth, first {absent[0]}; "
                f"there is one for {len(self.pictures):,} pictures of {', '.join(self.sources)}"
            )
        return {name: sorted(set(self.classes(name))) for name in dict.fromkeys(ids)}


def find_truth(folder: FilePath, lexicon: Lexicon, named: Named | None = None) -> GroundTruth:
    """Search a folder and its subfolders `chair` and `annotations`; `named` parses people's captions of COCO's annotations."""
    roots = [root for root in (Path(folder, "chair"), Path(folder)) if root.is_dir()]
    for root in roots:
        if files := sorted(root.glob("gt_*2014.json"), reverse=True):  # val first
            return _from_cache(files, lexicon)
    for inner in (inner for root in roots for inner in (root, root / "annotations")):
        instances, captions = sorted(inner.glob("instances_*.json")), sorted(inner.glob("captions_*.json"))
        if instances and captions:
            if named is None:
                raise BenchmarkError(f"{inner}: people's captions need a language pipeline to be read; give `named`")
            return _from_annotations(instances, captions, lexicon, named)
    raise BenchmarkError(f"{folder}: no ground truth of CHAIR in it; it needs {_NEEDED}")


def _from_cache(files: Sequence[Path], lexicon: Lexicon) -> GroundTruth:
    classes: dict[int, list[str]] = {}
    pictures: dict[int, str] = {}
    for path in files:
        split = path.stem.removeprefix("gt_")
        try:
            for key, value in _read(path).items():
                names = [*value["segmentation"], *value["caption_only"]] if isinstance(value, dict) else list(value)
                if not all(isinstance(name, str) for name in names):
                    raise TypeError(f"{names!r:.60} are not all names")
                classes[int(key)] = names
                pictures[int(key)] = f"COCO_{split}_{int(key):012d}.jpg"
        except (KeyError, TypeError, ValueError) as error:
            raise BenchmarkError(f"{path}: its entries are not of CHAIR's ground truth ({error!r}); fetch it again") from None
    _refuse_unknown({name for names in classes.values() for name in names}, lexicon.synonyms, files[0])
    return GroundTruth(pictures, classes.__getitem__, _sources(files))


def _from_annotations(instances: Sequence[Path], captions: Sequence[Path], lexicon: Lexicon, named: Named) -> GroundTruth:
    """The ground truth of pictures that have instances and captions."""
    meanings = lexicon.meanings()
    segmented: dict[int, set[str]] = {}
    captioned: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    try:
        for path in instances:
            data = _read(path)
            categories = {entry["id"]: entry["name"] for entry in data["categories"]}
            _refuse_unknown(set(categories.values()), meanings, path)
            segmented.update({image["id"]: set() for image in data["images"] if image["id"] not in segmented})
            for entry in data["annotations"]:
                segmented[entry["image_id"]].add(meanings[categories[entry["category_id"]]])
        for path in captions:
            data = _read(path)
            names.update({_typed(int, image["id"]): _typed(str, image["file_name"]) for image in data["images"]})
            for entry in data["annotations"]:
                captioned.setdefault(entry["image_id"], []).append(_typed(str, entry["caption"]))
    except (KeyError, TypeError) as error:
        raise BenchmarkError(f"{path}: not as COCO writes annotations ({error!r}); fetch it again") from None

    def classes(name: int) -> set[str]:
        return segmented[name].union(*(named(caption) for caption in captioned.get(name, ())))

    both = {name: file for name, file in names.items() if name in segmented}
    return GroundTruth(both, classes, _sources([*instances, *captions]))


def _typed(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.40} where {kind.__name__} belongs")
    return value


def _refuse_unknown(names: set[str], classes: Collection[str], path: Path) -> None:
    if unknown := sorted(names - set(classes)):
        raise BenchmarkError(
            f"{path}: {unknown[0]!r} is none of the classes that are looked for; give the words that belong to it"
        )


def _sources(files: Iterable[Path]) -> dict[str, str]:
    return {str(path): file_sha256(path) for path in files}


def _read(path: Path) -> Any:
    data = read_json(path)
    if not isinstance(data, dict):
        raise BenchmarkError(f"{path}: no JSON object; it needs {_NEEDED}")
    return data
