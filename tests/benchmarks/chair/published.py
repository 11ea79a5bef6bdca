"""The published CHAIR fixtures, read once: captions with what the projects' own scorer found in them."""

import json
from dataclasses import dataclass
from pathlib import Path

from mgap.types import Sample


@dataclass(frozen=True)
class Fixture:
    name: str
    captions: list[dict]
    sentences: list[dict]  # what was found in each
    expected: dict

    def samples(self) -> list[Sample]:
        return [
            Sample(str(number), str(found["image_id"]), "", "captions", found["gt"])
            for number, found in enumerate(self.sentences)
        ]


def read_fixtures(shared: Path) -> list[Fixture]:
    found = []
    for path in sorted((shared / "fixtures" / "benchmarks" / "chair").glob("*.captions.jsonl")):
        name = path.name.removesuffix(".captions.jsonl")
        sentences = path.with_name(f"{name}.sentences.jsonl")
        expected = json.loads(path.with_name(f"{name}.expected.json").read_text())
        found.append(Fixture(name, _lines(path), _lines(sentences), expected))
    return found


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
