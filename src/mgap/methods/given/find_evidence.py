"""Find each row's evidence: by the name of its picture, by the picture's pixels, or by calling for it.

`Model.answer` and its like, and runs, say what is asked (backbones/asked_rows.py): then a line of the table is found by name
and prompt. A picture without a name, or a `generate` of one's own, is found by its pixels, which are those of a line's picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mgap.backbones.asked_rows import Asked, asked_rows
from mgap.backbones.base import Backbone
from mgap.backbones.picture_seeds import picture_seed
from mgap.backbones.prepared_pictures import picture_digest, picture_key
from mgap.backbones.token_rows import Ids, split_rows
from mgap.errors import ImageError, PromptError, SettingError, UnsupportedDecoding, one_line
from mgap.io.images import open_image
from mgap.methods.base import Tap
from mgap.methods.given.evidence import Brings, Evidence, EvidenceLine, EvidenceTable
from mgap.methods.kinds.last_used import LastUsed
from mgap.methods.kinds.paired_forward import Inputs
from mgap.methods.kinds.per_picture import EncodedPicture, pictures_of, pixels_of, reword

UNNAMED = "a picture without a name (looked up by its pixels)"
ASK = "call model.answer or its like, which say what is asked"


class EvidenceFinder:
    """Bound to one model while the method is attached; remembers what a callable brought for the last `keep` samples."""

    def __init__(
        self, backbone: Backbone, tap: Tap, source: EvidenceTable | Brings, template: str, most: int, *, keep: int = 256
    ) -> None:
        self.backbone, self.tap, self.source, self.template, self.most = backbone, tap, source, template, most
        self.brought = LastUsed[tuple[bytes, str], Evidence | None](keep)  # by picture and prompt
        self.by_pixels: dict[int, list[EvidenceLine]] | None = None  # made when first needed

    def __call__(self, main: Inputs) -> list[tuple[str, Evidence | None]]:
        """What the sample of each row is called, and its evidence with opened pictures; rows may share it."""
        count = len(main["input_ids"])
        asked = asked_rows(self.backbone.model, count)
        source = self.source
        found = self._look_up(source, main, asked) if isinstance(source, EvidenceTable) else self._call(source, asked)
        names = [call_sample(row) for row in asked] or [UNNAMED] * count
        opened: dict[int, Evidence | None] = {}
        for name, evidence in zip(names, found, strict=True):
            if id(evidence) not in opened:
                opened[id(evidence)] = self._open(evidence, name)
        return [(name, opened[id(evidence)]) for name, evidence in zip(names, found, strict=True)]

    def _look_up(self, table: EvidenceTable, main: Inputs, asked: Sequence[Asked]) -> list[Evidence | None]:
        rows = split_rows(main)
        known: Sequence[Asked | None] = asked or [None] * len(rows)
        pictures, times = list[EncodedPicture](), 1
        if any(row is None or row.name is None for row in known):
            pictures, times = pictures_of(self.backbone, main)
        written: dict[tuple[int, str | None], Evidence] = {}
        found: list[Evidence | None] = []
        for number, (row, ids) in enumerate(zip(known, rows, strict=True)):
            prompt = None if row is None else row.prompt
            if row is not None and row.name is not None:
                line = table.find(row.name, prompt)
            else:
                line = self._by_pixels(table, pictures[number // times], ids, prompt)
            found.append(None if line is None else written.setdefault((id(line), prompt), self._write(line, prompt)))
        return found

    def _write(self, line: EvidenceLine, prompt: str | None) -> Evidence:
        evidence = line.evidence(prompt, self.template)
        if evidence is None:
            raise PromptError(f"the objects in {line.image} are written into the prompt, which is not known here: {ASK}")
        return evidence

    def _by_pixels(self, table: EvidenceTable, picture: EncodedPicture, ids: Ids, prompt: str | None) -> EvidenceLine | None:
        if self.by_pixels is None:
            self.by_pixels = self._table_of_pixels(table, picture)
        lines = self.by_pixels.get(picture_seed(self.backbone, picture.pixels), ())
        exact = (line for line in lines if line.prompt is not None and self._asks(line.prompt, prompt, ids))
        return next(exact, None) or next((line for line in lines if line.prompt is None), None)

    def _asks(self, line: str, prompt: str | None, ids: Ids) -> bool:
        """Whether a row asks what a line is for: by its prompt, or else by its tokens."""
        return line == prompt if prompt is not None else reword(self.backbone, line, ids) == ids

    def _table_of_pixels(self, table: EvidenceTable, like: EncodedPicture) -> dict[int, list[EvidenceLine]]:
        """Lines by the pixels of their pictures, as the model reads them; encodes every picture that is at hand once."""
        lines: dict[int, list[EvidenceLine]] = {}
        with_picture = [line for line in table.lines if line.source is not None]
        self.tap.report(f"recognising {len(with_picture)} pictures")
        for line in with_picture:
            encoded = self.backbone.encode([line.source], ["?"])
            (part,) = self.backbone.pictures(encoded)
            pixels = {key: pixels_of(self.backbone, encoded, key, 0, part) for key in like.pixels}
            lines.setdefault(picture_seed(self.backbone, pixels), []).append(line)
        return lines

    def _call(self, brings: Brings, asked: Sequence[Asked]) -> list[Evidence | None]:
        if not asked:
            raise UnsupportedDecoding(f"evidence is a callable, which must know what is asked: {ASK}, or give a file")
        keys = [(picture_key(row.picture.size, picture_digest(row.picture)), row.prompt) for row in asked]
        known = {key: self.brought[key] for key in keys if key in self.brought}
        new: dict[tuple[bytes, str], Asked] = {}
        for key, row in zip(keys, asked, strict=True):
            if key not in known:
                new.setdefault(key, row)  # each sample once
        if new:
            known.update(zip(new, self._bring(brings, list(new.values())), strict=True))
        self.brought.update(known)
        return [known[key] for key in keys]

    def _bring(self, brings: Brings, asked: list[Asked]) -> list[Evidence | None]:
        self.tap.report(f"bringing evidence for {len(asked)} samples" if len(asked) > 1 else "bringing evidence")
        samples = call_sample(asked[0]) + (f" and {len(asked) - 1} more" if len(asked) > 1 else "")
        try:
            brought: list[Any] = list(brings(asked))
        except (MemoryError, torch.OutOfMemoryError):  # a run asks again with fewer samples
            raise
        except Exception as error:  # whatever a user's code raises
            raise SettingError(f"evidence for {samples}: {type(error).__name__}: {one_line(error)}") from error
        if len(brought) != len(asked):
            raise SettingError(f"evidence for {samples}: {len(brought)} came for {len(asked)} samples; bring one each, or None")
        for row, evidence in zip(asked, brought, strict=True):
            if evidence is not None and not isinstance(evidence, Evidence):
                kind = type(evidence).__name__
                raise SettingError(f"evidence for {call_sample(row)}: it is of the kind {kind}; bring Evidence(...), or None")
        return brought

    def _open(self, evidence: Evidence | None, name: str) -> Evidence | None:
        if evidence is None or not evidence.pictures:
            return evidence
        try:
            return replace(evidence, pictures=tuple(open_image(picture) for picture in evidence.pictures[: self.most]))
        except ImageError as error:
            raise ImageError(f"evidence for {name}: {error}") from error


def call_sample(asked: Asked) -> str:
    """What a sample is called in an error."""
    return f"{asked.name or UNNAMED} with {asked.prompt!r:.60}"
