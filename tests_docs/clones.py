"""What commands of the pages find around them: a hub with models, a cache with published files, and a folder like a clone.

Everything is drawn or comes with the package, but for files that others have published: those are taken from ../shared where it
exists, and commands that name one are only parsed where it does not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from parsing import ROOT
from reading import Command, Snippet

from mgap.pocket.benchmark import DEVELOPMENT, pope
from mgap.pocket.scenes import render
from mgap.serving.checkpoint import servable

FRONT = "README.md"
WARM = Path(__file__).with_name("warm.py")
SHARED = ROOT.parent / "shared"

# A trained miniature of the same architecture under each name that the pages load from the hub.
HUB = {
    "llava-hf/llava-1.5-7b-hf": "pocket/llava",
    "Qwen/Qwen3-VL-8B-Instruct": "pocket/qwen3-vl",
    "Qwen/Qwen3-VL-32B-Instruct": "pocket/qwen3-vl",
}
REVISION = "0" * 40

# Files that the pages name and do not make: where they lie in a reader's folder, and below ../shared.
FILES = {
    "POPE": "data/pope",
    "CHAIR": "data",
    "AMBER": "data/amber",
    "CD_RETHINK": "data/real",
    "coco_pope_adversarial.json": "data/pope/coco/coco_pope_adversarial.json",
    "answers.jsonl": "fixtures/benchmarks/pope/real_llava15_7b_coco_adversarial.answers.jsonl",
    "captions.jsonl": "fixtures/benchmarks/chair/opera_llava-1.5_greedy.captions.jsonl",
    "baseline.jsonl": "fixtures/benchmarks/chair/opera_minigpt4_greedy.captions.jsonl",
    "method.jsonl": "fixtures/benchmarks/chair/opera_minigpt4_ours.captions.jsonl",
    "opera-llava-1.5-greedy.jsonl": "fixtures/benchmarks/chair/opera_llava-1.5_greedy.captions.jsonl",
    "opera-llava-1.5-ours.jsonl": "fixtures/benchmarks/chair/opera_llava-1.5_ours.captions.jsonl",
    "opera-minigpt4-greedy.jsonl": "fixtures/benchmarks/chair/opera_minigpt4_greedy.captions.jsonl",
    "opera-minigpt4-ours.jsonl": "fixtures/benchmarks/chair/opera_minigpt4_ours.captions.jsonl",
    "mme-answers.jsonl": "fixtures/benchmarks/mme/real_llava15_13b.answers.jsonl",
    "hallusion-answers.jsonl": "fixtures/benchmarks/hallusionbench/real_gpt4v_sample.answers.jsonl",
    "answers.json": "fixtures/benchmarks/amber/real_llava15_7b_generative_1_83.responses.json",
    "llava-1.5-7b-1-83.json": "fixtures/benchmarks/amber/real_llava15_7b_generative_1_83.responses.json",
    "vectors": "fixtures/methods",
}
BESIDE = {"amber": "data/amber", "chair": "data/chair"}  # the published scorers' language is looked for beside AMBER
# Benchmarks whose files `mgap fetch` finds complete; CHAIR's are an archive of 250 MB.
CACHED = ("pope", "repope", "amber", "hallusionbench")
TABLES = ("tagger", "lemma_table.json")  # of the published scorers' language
CLONE = ("bench", "examples", "experiments", "src", "tests_vllm", "Makefile", "README.md", "constraints.txt", "pyproject.toml")
PHOTOS = 12


class Shelf:
    """A worker's own hub and caches, and a folder for every page; all of it is made when it is first needed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.server: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Of commands: no network, and nothing of the user's own caches."""
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HF_HUB_CACHE": str(self.home / "hub"),
            "HF_HUB_OFFLINE": "1",
            "MGAP_CACHE": str(self.home / "published"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def environment_of(self, page: str) -> dict[str, str]:
        """The same with a quick `mgap` and `python` first on the PATH; the front page has a user's own, and an empty home."""
        known = self.environment
        if page == FRONT:
            return {**known, "HOME": str(self.empty)}
        return {**known, "PATH": os.pathsep.join([str(self.programs), known["PATH"]])}

    @cached_property
    def empty(self) -> Path:
        """A home in which nobody has left anything."""
        place = self.home / "home"
        place.mkdir(parents=True)
        return place

    @cached_property
    def programs(self) -> Path:
        """A folder with `mgap`, and `python` for scripts of this repository, as warm.py starts them."""
        place, told = self.home / "bin", {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"}
        place.mkdir(parents=True)
        socket = place / "socket"
        python = f'exec "{sys.executable}"'
        call = f'{python} -SE "{WARM}" call "{socket}"'
        scripts = {
            "mgap": f'{call} mgap "$@"',
            "python": f'case "$1" in bench/*|examples/*) [ ! -f "$1" ] || {call} python "$@";; esac\n{python} "$@"',
        }
        for name, text in scripts.items():
            (place / name).write_text(f"#!/bin/sh\n{text}\n")
            (place / name).chmod(0o755)
        command, pipe = [sys.executable, str(WARM), "serve", str(socket)], subprocess.PIPE
        self.server = subprocess.Popen(command, env=told, stdin=pipe, stdout=pipe, start_new_session=True)
        if self.server.stdout.readline() != b"ready\n":
            raise RuntimeError("warm.py did not start")
        return place

    def folder(self, page: str) -> Path:
        """Where what is in a page is run."""
        if not (self.home / "hub").exists():
            build_hub(self.home / "hub")
            build_cache(self.home / "published")
            build_pictures(self.home / "pictures")
        place = self.home / "pages" / page.replace("/", "-")
        if not place.exists():
            make_clone(place, self.home / "pictures")
        return place

    def close(self) -> None:
        if self.server is not None:
            self.server.communicate()  # its standard input ends, and so does it
            self.server = None
        shutil.rmtree(self.home, ignore_errors=True)


def build_hub(folder: Path) -> None:
    """The hub's own layout on disk, so that its names load through the code that loads any checkpoint."""
    for name, embedded in HUB.items():
        place = folder / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(REVISION)
        servable(embedded, place / "snapshots" / REVISION)


def build_cache(folder: Path) -> None:
    """What `mgap fetch` has left behind, byte by byte as published."""
    tables = folder / "chair"
    tables.mkdir(parents=True)
    if SHARED.is_dir():
        for name in CACHED:
            (folder / name).symlink_to(SHARED / "data" / name)
        (folder / "mme").mkdir()  # not a link: what is needed is unpacked beside the archive
        (folder / "mme" / "eval_tool.zip").symlink_to(SHARED / "data" / "mme" / "eval_tool.zip")
        for name in TABLES:
            (tables / name).symlink_to(SHARED / "data" / "chair" / name)


def build_pictures(folder: Path) -> None:
    """Drawn scenes as photos, questions about them, and the same scenes under the names of COCO's and AMBER's pictures."""
    photos = folder / "photos"
    photos.mkdir(parents=True)
    asked = list(pope("adversarial", DEVELOPMENT, PHOTOS))
    names = {question.scene.seed: f"{question.scene.seed}.jpg" for question in asked}
    for question in asked:
        if not (photos / names[question.scene.seed]).exists():
            render(question.scene).save(photos / names[question.scene.seed])
    shutil.copyfile(photos / min(names.values()), folder / "street.jpg")
    lines = (
        {"image": names[question.scene.seed], "question": question.text, "label": question.record(number)["label"]}
        for number, question in enumerate(asked, start=1)
    )
    (folder / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = [photos / name for name in sorted(names.values())]
    _name(drawn, folder / "coco" / "val2014", coco_names())
    _name(drawn, folder / "amber" / "image", [f"AMBER_{number}.jpg" for number in range(1, 1005)])
    _name(drawn, folder / "hallusion_bench", hallusion_names())


def coco_names() -> list[str]:
    """The pictures that POPE asks about and CHAIR has described; without the published files, a few."""
    if not SHARED.is_dir():
        return [f"COCO_val2014_{number:012}.jpg" for number in range(PHOTOS)]
    files = (SHARED / "data" / "pope" / "coco").glob("*.json")
    asked = {json.loads(line)["image"] for file in files for line in file.read_text().splitlines()}
    sets = json.loads((SHARED / "data" / "chair" / "image_sets.json").read_text())
    described = {f"COCO_val2014_{int(number):012}.jpg" for numbers in sets.values() for number in numbers}
    return sorted(asked | described)


def hallusion_names() -> list[str]:
    """The pictures that HallusionBench asks about; none without the published file."""
    file = SHARED / "data" / "hallusionbench" / "HallusionBench.json"
    rows = json.loads(file.read_text()) if file.is_file() else []
    return sorted({row["filename"] for row in rows if row["filename"]})


def _name(drawn: list[Path], folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).hardlink_to(drawn[number % len(drawn)])


def make_clone(folder: Path, pictures: Path) -> None:
    """A page's own folder: the repository's files, and those that the reader brings along."""
    folder.mkdir(parents=True)
    for name in CLONE:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.png", "*.pdf", "*.svg"))
    for name in ("photos", "coco", "hallusion_bench", "street.jpg", "mine.jsonl"):
        (folder / name).symlink_to(pictures / name)
    if not SHARED.is_dir():
        return
    for name, where in {**FILES, **BESIDE}.items():
        if name != "AMBER":
            (folder / name).symlink_to(SHARED / where)
    (folder / "AMBER").mkdir()  # not a link: its pictures are put into it
    for path in (SHARED / FILES["AMBER"]).iterdir():
        (folder / "AMBER" / path.name).symlink_to(path)
    (folder / "AMBER" / "image").symlink_to(pictures / "amber" / "image")


def is_published(block: Command | Snippet) -> bool:
    """Whether it reads files that others have published."""
    if isinstance(block, Snippet):
        words = set(re.findall(r"[\"']([^\"']*)[\"']", block.text))
    else:
        words = {word for simple in block.simple for word in simple}
    names = {word.partition("/")[0] for word in words}
    asks = bool({"coco/val2014", "hallusion_bench"} & words) and "--questions" not in words
    return asks or bool(names & set(FILES)) or "fetch" in words
