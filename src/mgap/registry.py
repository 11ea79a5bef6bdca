"""Tables from names to "module:attribute" strings, so that listing the names imports nothing heavy.

Other packages add entries through the entry points `mgap.methods`, `mgap.backbones`, `mgap.benchmarks`, `mgap.scorers`,
`mgap.prompts`, `mgap.worlds`, `mgap.learnt` and `mgap.engines`. Inner packages look outer ones up here instead of importing
them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mgap.errors import ModelError, SettingError


class Registry:
    """A read-only table of names; an entry is imported when it is first used."""

    def __init__(self, kind: str, group: str, entries: Mapping[str, str]) -> None:
        self.kind, self.group, self._entries = kind, group, dict(entries)

    def _all(self) -> dict[str, str]:
        installed = {point.name: point.value for point in entry_points(group=self.group)}
        return {**installed, **self._entries}  # an installed package cannot replace a built-in name

    def names(self) -> list[str]:
        return sorted(self._all())

    def __iter__(self) -> Iterator[str]:
        """The built-in names in their order, then those of other packages."""
        yield from {**self._entries, **self._all()}

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self._all()

    def get(self, name: str) -> Any:
        entries = self._entries if name in self._entries else self._all()  # scanning all installed packages takes time
        if name not in entries:
            close = difflib.get_close_matches(name, entries, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SettingError(f"unknown {self.kind} {name!r}: choose from {', '.join(sorted(entries))}{hint}")
        module, _, attribute = entries[name].partition(":")
        return getattr(import_module(module), attribute)


METHODS = Registry(
    "method",
    "mgap.methods",
    {
        "mgap": "mgap.methods.mgap:MGAP",
        "predicted-prior": "mgap.methods.predicted_prior:PredictedPrior",
        "asd": "mgap.methods.asd:ASD",
        "bias": "mgap.methods.bias:Bias",
        "blind": "mgap.methods.blind:Blind",
        "code": "mgap.methods.code:CODE",
        "haltrapper": "mgap.methods.haltrapper.haltrapper:HalTrapper",
        "icd": "mgap.methods.icd:ICD",
        "m3id": "mgap.methods.m3id:M3ID",
        "mod": "mgap.methods.mod:MoD",
        "opera": "mgap.methods.opera.opera:OPERA",
        "pai": "mgap.methods.pai:PAI",
        "prompt-prior": "mgap.methods.prompt_prior:PromptPrior",
        "tether": "mgap.methods.tether:Tether",
        "vcd": "mgap.methods.vcd:VCD",
        "deco": "mgap.methods.deco:DeCo",
        "dola": "mgap.methods.dola:DoLa",
    },
)

# By transformers' `config.model_type`; others get the generic Backbone.
BACKBONES = Registry(
    "backbone",
    "mgap.backbones",
    {
        "llava": "mgap.backbones.llava:Llava",
        "llava_next": "mgap.backbones.llava:Llava",
        "llava_onevision": "mgap.backbones.llava:LlavaOneVision",
        "qwen2_vl": "mgap.backbones.qwen_vl:QwenVL",
        "qwen2_5_vl": "mgap.backbones.qwen_vl:QwenVL",
        "qwen3_vl": "mgap.backbones.qwen_vl:QwenVL",
        "qwen3_vl_moe": "mgap.backbones.qwen_vl:QwenVLMoe",
        "gemma3": "mgap.backbones.gemma:Gemma3",
        "idefics3": "mgap.backbones.idefics:Idefics3",
        "smolvlm": "mgap.backbones.idefics:SmolVLM",
        "internvl": "mgap.backbones.internvl:InternVL",
    },
)

# Benchmarks for `mgap run NAME`: each a `BenchmarkSource` (benchmarks/base.py).
BENCHMARKS = Registry(
    "benchmark",
    "mgap.benchmarks",
    {
        "pope": "mgap.benchmarks.pope.questions:PopeSource",
        "chair": "mgap.benchmarks.chair.questions:ChairSource",
        "amber": "mgap.benchmarks.amber.questions:AmberSource",
        "own": "mgap.benchmarks.own:OwnSource",
    },
)

# Worlds that draw their own pictures and ask several benchmarks' questions about them: each a `DrawnWorld`.
WORLDS = Registry("drawn world", "mgap.worlds", {"pocket": "mgap.pocket.samples:PocketWorld"})

# Calibration prompts: each a function that returns them in order.
PROMPTS = Registry(
    "set of prompts",
    "mgap.prompts",
    {
        "default": "mgap.priors.prompts:default_prompts",
        "questions": "mgap.priors.prompts:existence_prompts",
        "captions": "mgap.priors.prompts:caption_prompts",
        "colours": "mgap.priors.prompts:colour_prompts",
        "pocket": "mgap.pocket.benchmark:every_calibration_prompt",
    },
)

# What a method may need to have learnt from a model first, by its kind: it lies in a folder as `KIND.json` and its tensors.
LEARNT = Registry(
    "kind of learnt thing",
    "mgap.learnt",
    {
        "subspace": "mgap.priors.subspace:Subspace",
        "prior_map": "mgap.priors.prior_map:PriorMap",
        "steering": "mgap.priors.steering:Steering",
        "bank": "mgap.priors.bank:Bank",
    },
)

# What learns these for an embedded model, from scenes of its world that no test shows: a function of a model each.
POCKET_LEARNERS = Registry(
    "thing to learn in the pocket world",
    "mgap.pocket_learners",
    {
        "prior_map": "mgap.pocket.fit_map:fit_pocket_map",
        "steering": "mgap.pocket.fit_steering:fit_steering",
        "bank": "mgap.pocket.fit_bank:fit_bank",
    },
)

# Engines that generate the answers of a run: each a `RunEngine` (run/worker.py).
ENGINES = Registry(
    "engine",
    "mgap.engines",
    {"transformers": "mgap.run.worker:TransformersEngine", "vllm": "mgap.serving.vllm_run:VllmEngine"},
)

# Scorers, by the task that a benchmark names: each turns answers into figures.
SCORERS = Registry(
    "task",
    "mgap.scorers",
    {
        "yesno": "mgap.benchmarks.pope.scorer:PopeScorer",
        "captions": "mgap.benchmarks.chair.scorer:ChairScorer",
        "amber": "mgap.benchmarks.amber.scorer:AmberScorer",
    },
)

# Trained checkpoints that ship with the package, by the name that `mgap.load` accepts.
EMBEDDED = {f"pocket/{family}": Path(__file__).parent / "pocket" / "models" / family for family in ("llava", "qwen3-vl")}

# The paper's tables and figures as run configurations, by the name that `mgap run` accepts.
EXPERIMENTS = {path.stem: path for path in sorted((Path(__file__).parent / "experiments").glob("*.yaml"))}


def locate(name: str, revision: str | None = None) -> str:
    """The folder of an embedded model; any other name (a hub id or a folder) is returned as it is."""
    if name not in EMBEDDED:
        if name.startswith("pocket/") and not Path(name).is_dir():
            raise ModelError(f"no embedded model {name!r}: choose from {', '.join(EMBEDDED)}")
        return name
    if revision is not None:
        raise SettingError(f"{name} comes with the package and has no revisions: leave out revision={revision!r}")
    if not (EMBEDDED[name] / "config.json").is_file():
        raise ModelError(f"{name}: its weights are missing from this installation; install the package again, or retrain it")
    return str(EMBEDDED[name])
