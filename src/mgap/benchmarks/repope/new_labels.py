"""RePOPE's labels (Neuhaus and Hein, 2025): POPE's wrong labels on COCO turned round, questions nobody can decide dropped.

A question is found by its picture and its text. Ids do not do: copies of POPE number their questions differently, and a pair of
picture and text fares alike in all three splits. So answers to POPE, however old, can be scored on these labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mgap.benchmarks.pope.questions import SPLITS, correct_imange, read_questions, split_of
from mgap.benchmarks.published_files import cache, find_data, published
from mgap.benchmarks.yesno_questions import YesNoQuestion
from mgap.errors import BenchmarkError
from mgap.io.atomic_files import file_sha256
from mgap.io.record_files import FilePath
from mgap.types import Sample

NAME = "repope"


@dataclass(frozen=True)
class Relabelling:
    """What became of some questions."""

    kept: int
    dropped: int
    flipped_to_no: int
    flipped_to_yes: int

    @classmethod
    def of(cls, labels: Iterable[tuple[str, str | None]]) -> Relabelling:
        """From each question's old and new label; None: dropped."""
        changes = Counter(labels)
        dropped = changes["yes", None] + changes["no", None]
        return cls(changes.total() - dropped, dropped, changes["yes", "no"], changes["no", "yes"])

    def __str__(self) -> str:
        return (
            f"{self.kept:,} of {self.kept + self.dropped:,} questions, labelled by RePOPE: {self.dropped:,} dropped, "
            f"{self.flipped_to_no:,} turned to no, {self.flipped_to_yes:,} to yes"
        )


@dataclass(frozen=True)
class NewLabels:
    """RePOPE's label of every question of POPE on COCO."""

    folder: Path
    sources: Mapping[str, str]  # SHA-256 of the files read, by path
    labels: Mapping[str, Mapping[str, str | None]]  # by picture and text; None: dropped
    ids: Mapping[str, Mapping[tuple[str, str], str]]  # by split, and by picture and text

    def look_up(self, asked: Sequence[tuple[str, str]], where: FilePath) -> list[str | None]:
        """The label of each (picture, text), None if it was dropped; words may follow the question.

        Refuses questions that RePOPE did not look at.
        """
        found = [self._question(image, text) for image, text in asked]
        if unknown := [pair for pair, text in zip(asked, found, strict=True) if text is None]:
            image, text = unknown[0]
            raise BenchmarkError(
                f"{where}: {len(unknown)} of {len(asked)} questions are not among those that RePOPE labelled, first "
                f"{text!r:.80} about {image}; it has COCO's three splits only"
            )
        return [self.labels[image][str(text)] for (image, _), text in zip(asked, found, strict=True)]

    def relabel(self, samples: Sequence[Sample], where: FilePath) -> tuple[list[Sample], dict[str, Relabelling]]:
        """The samples that were kept, with their new truth, and what became of those of each split."""
        labels = self.look_up([(sample.image, sample.prompt) for sample in samples], where)
        kept, by_split = list[Sample](), dict[str, list[tuple[str, str | None]]]()
        for sample, label in zip(samples, labels, strict=True):
            by_split.setdefault(sample.group, []).append((sample.truth, label))
            kept += [] if label is None else [replace(sample, truth=label)]
        return kept, {split: Relabelling.of(labels) for split, labels in by_split.items()}

    def note_on_ids(self, path: FilePath, questions: Sequence[YesNoQuestion]) -> list[str]:
        """A note if a file with the name of a split numbers its questions differently."""
        ids = self.ids.get(split_of(path), {})
        other = sum(ids.get((question.image, question.text), question.id) != question.id for question in questions)
        note = (
            f"{path}: {other} of {len(questions)} questions have another id in {split_of(path)} as RePOPE has it; labels are "
            "found by picture and text, and answers by the ids of this file"
        )
        return [note] if other else []

    def _question(self, image: str, text: str) -> str | None:
        clean = correct_imange(text)
        return next((question for question in self.labels.get(image, ()) if clean.startswith(question)), None)


def read_new_labels(folder: FilePath | None = None) -> NewLabels:
    """From RePOPE's six files, in the folder or its subfolder `repope`; by default fetched into the cache."""
    given = find_data(NAME, folder)
    home = given / NAME if (given / NAME).is_dir() else given
    sources, labels, ids = dict[str, str](), dict[str, dict[str, str | None]](), {}
    for split in SPLITS:
        files = [home / f"coco_{name}_{split}.json" for name in ("pope", NAME)]
        asked, kept = ({(q.image, q.text): q for q in read_questions(path)[0]} for path in files)
        sources |= {str(path): file_sha256(path) for path in files}
        ids[split] = {pair: question.id for pair, question in asked.items()}
        fates = {pair: kept[pair].label if pair in kept else None for pair in asked}
        strange = [pair for pair in kept if pair not in asked]
        strange += [(image, text) for (image, text), fate in fates.items() if labels.get(image, {}).get(text, fate) != fate]
        if strange:
            raise BenchmarkError(
                f"{files[1]}: {len(strange)} questions are not in {files[0].name}, or are labelled otherwise in another split, "
                f"first {strange[0][1]!r:.80} about {strange[0][0]}; fetch the files again: mgap fetch {NAME} --to FOLDER"
            )
        for (image, text), fate in fates.items():
            labels.setdefault(image, {})[text] = fate
    return NewLabels(home, sources, labels, ids)


def labels_at_hand(pope_files: Iterable[FilePath]) -> Path | None:
    """Where RePOPE's published files lie: in the cache, or beside these files of POPE; None if they are in neither."""
    above = [folder for path in pope_files for folder in list(Path(path).parents)[:3]]  # such as DATA/pope/coco
    places = [cache(NAME), *(place for folder in dict.fromkeys(above) for place in (folder / NAME, folder))]
    files = {file.path: file.sha256 for file in published(NAME).files}
    complete = (place for place in places if all((place / name).is_file() for name in files))
    return next((place for place in complete if all(file_sha256(place / name) == files[name] for name in files)), None)
