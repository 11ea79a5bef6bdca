"""RePOPE's questions (Neuhaus and Hein, 2025): those of POPE on COCO that were kept, with the labels made anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mgap.benchmarks.base import Benchmark, RunKeys
from mgap.benchmarks.pope.questions import PopeSource, read_pope
from mgap.benchmarks.repope.new_labels import read_new_labels
from mgap.io.record_files import FilePath


def read_repope(
    source: FilePath | None,
    images: FilePath,
    *,
    splits: Sequence[str] | None = None,
    prompt: str = "question",
    missing: str = "refuse",
) -> Benchmark:
    """Read the splits from a folder of RePOPE's files, or from the cache; ids, prompts and pictures are POPE's."""
    labels = read_new_labels(source)
    pope = read_pope(labels.folder, images, splits=splits, prompt=prompt, missing=missing)
    kept, changes = labels.relabel(pope.samples, labels.folder)
    notes = (*pope.notes, *(f"{split}: {change}" for split, change in changes.items()))
    return replace(pope, name="repope coco", samples=tuple(kept), sources=labels.sources, notes=notes)


class RepopeSource:
    """`mgap run repope`."""

    keys = PopeSource.keys
    datasets = ("coco",)
    max_new_tokens = PopeSource.max_new_tokens

    @staticmethod
    def read(keys: RunKeys) -> Benchmark:
        return read_repope(
            keys.data, str(keys.images), splits=keys.splits, prompt=keys.prompt or "question", missing=keys.missing
        )
