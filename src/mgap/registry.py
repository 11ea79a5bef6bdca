"""Tables from names to "module:attribute" strings, so that listing the names imports nothing heavy.

Other packages add entries through the entry points `mgap.methods`, `mgap.backbones`, `mgap.benchmarks`, `mgap.scorers`,
`mgap.prompts`, `mgap.worlds`, `mgap.learnt` and `mgap.engines`. Inner packages look outer ones up here instead of importing
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Any

from mgap.errors import ModelError, PluginError, SettingError, did_you_mean, one_line


class Registry:
    """A read-only table of names; an entry is imported when it is first used.

    An entry of another package that cannot be imported, or lacks an attribute that `has` names, is a PluginError; `loaded`
    leaves it out, and `plugins` says why.
    """

    def __init__(self, kind: str, group: str, entries: Mapping[str, str], has: tuple[str, ...] = ()) -> None:
        self.kind, self.group, self._entries, self._has = kind, group, dict(entries), has

    def _installed(self) -> dict[str, EntryPoint]:
        """The entry points of other packages; they cannot replace a built-in name."""
        return {point.name: point for point in _entry_points(self.group) if point.name not in self._entries}

    def names(self) -> list[str]:
        return sorted({*self._entries, *self._installed()})

    def __iter__(self) -> Iterator[str]:
        """The built-in names in their order, then those of other packages."""
        yield from self._entries
        yield from self._installed()

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self._installed()

    def get(self, name: str) -> Any:
        if name in self._entries:  # scanning all installed packages takes time
            module, _, attribute = self._entries[name].partition(":")
            return getattr(import_module(module), attribute)
        installed = self._installed()
        if name not in installed:
            names = sorted({*self._entries, *installed})
            raise SettingError(f"unknown {self.kind} {name!r}: choose from {', '.join(names)}{did_you_mean(name, names)}")
        return self._load(installed[name])

    def loaded(self) -> dict[str, Any]:
        """Every entry that can be used, by name: the built-in ones in their order, then those of other packages."""
        found = {name: self.get(name) for name in self._entries}
        for name, point in self._installed().items():
            with suppress(PluginError):
                found[name] = self._load(point)
        return found

    def plugins(self) -> dict[str, str]:
        """The entries of other packages, by name, each with the reason why it cannot be used, or "" if it can."""
        reasons = {}
        for name, point in sorted(self._installed().items()):
            try:
                self._load(point)
                reasons[name] = ""
            except PluginError as error:
                reasons[name] = str(error)
        return reasons

    def _load(self, point: EntryPoint) -> Any:
        try:
            found = point.load()
            missing = [name for name in self._has if not hasattr(found, name)]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a stranger's module raises, SystemExit too
            if isinstance(error, SystemExit) and type(error) is not SystemExit:  # a signal: this process is to end
                raise
            reason = f"cannot be imported ({type(error).__name__}: {one_line(error)})"
            raise PluginError(f"{self._describe(point)} {reason}; mend, update or uninstall that package") from error
        if missing:
            raise PluginError(
                f"{self._describe(point)} has no {missing[0]!r}, which a {self.kind} has; mend or update that package"
            )
        return found

    def _describe(self, point: EntryPoint) -> str:
        package = "an installed package"
        with suppress(Exception):  # its metadata may be broken too
            package = f"{point.dist.name} {point.dist.version}"  # type: ignore[union-attr]
        return f"the {self.kind} {point.name!r} ({point.value}) of {package}"


def _entry_points(group: str) -> list[EntryPoint]:
    """Those of every installed package whose list of entry points can be read."""
    try:
        return list(entry_points(group=group))
    except Exception:  # somebody's entry_points.txt is damaged
        found: dict[str, list[EntryPoint]] = {}
        for package in distributions():
            with suppress(Exception):  # a package found earlier on the path hides later ones of its name
                found.setdefault(package.name, [point for point in package.entry_points if point.group == group])
        return [point for points in found.values() for point in points]


METHODS = Registry(
    "method",
    "mgap.methods",
    {
        "mgap": "mgap.methods.mgap:MGAP",
        "predicted-prior": "mgap.methods.predicted_prior:PredictedPrior",
        "asd": "mgap.methods.asd:ASD",
        "avisc": "mgap.methods.avisc:AvisC",
        "bias": "mgap.methods.bias:Bias",
        "blind": "mgap.methods.blind:Blind",
        "code": "mgap.methods.code:CODE",
        "ed": "mgap.methods.ed:ED",
        "fast-ed": "mgap.methods.ed:FastED",
        "given": "mgap.methods.given.given:Given",
        "haltrapper": "mgap.methods.haltrapper.haltrapper:HalTrapper",
        "icd": "mgap.methods.icd:ICD",
        "m3id": "mgap.methods.m3id:M3ID",
        "mod": "mgap.methods.mod:MoD",
        "nullu": "mgap.methods.nullu:Nullu",
        "opera": "mgap.methods.opera.opera:OPERA",
        "pai": "mgap.methods.pai:PAI",
        "prompt-prior": "mgap.methods.prompt_prior:PromptPrior",
        "ritual": "mgap.methods.ritual:RITUAL",
        "sid": "mgap.methods.sid:SID",
        "tether": "mgap.methods.tether:Tether",
        "vaf": "mgap.methods.vaf:VAF",
        "vcd": "mgap.methods.vcd:VCD",
        "vista": "mgap.methods.vista:VISTA",
        "deco": "mgap.methods.deco:DeCo",
        "dola": "mgap.methods.dola:DoLa",
        "yes-if-close": "mgap.methods.yes_if_close:YesIfClose",
    },
    has=("seam", "modes", "forwards", "summary", "presets", "learnt_settings", "of"),
)

# By transformers' `config.model_type`; others get the generic Backbone.
BACKBONES = Registry(
    "backbone",
    "mgap.backbones",
    {
        "llava": "mgap.backbones.llava:Llava",
        "llava_next": "mgap.backbones.llava:LlavaNext",
        "llava_onevision": "mgap.backbones.llava:LlavaOneVision",
        "qwen2_vl": "mgap.backbones.qwen_vl:QwenVL",
        "qwen2_5_vl": "mgap.backbones.qwen_vl:QwenVL",
        "qwen3_vl": "mgap.backbones.qwen_vl:QwenVL",
        "qwen3_vl_moe": "mgap.backbones.qwen_vl:QwenVLMoe",
        "gemma3": "mgap.backbones.gemma:Gemma3",
        "idefics3": "mgap.backbones.idefics:Idefics3",
        "smolvlm": "mgap.backbones.idefics:SmolVLM",
        "internvl": "mgap.backbones.internvl:InternVL",
        "instructblip": "mgap.backbones.instructblip:InstructBlip",
    },
    has=("encode", "shares_prefill"),
)

# Benchmarks for `mgap run NAME`: each a `BenchmarkSource` (benchmarks/base.py).
BENCHMARKS = Registry(
    "benchmark",
    "mgap.benchmarks",
    {
        "pope": "mgap.benchmarks.pope.questions:PopeSource",
        "repope": "mgap.benchmarks.repope.questions:RepopeSource",
        "chair": "mgap.benchmarks.chair.questions:ChairSource",
        "amber": "mgap.benchmarks.amber.questions:AmberSource",
        "mme": "mgap.benchmarks.mme.questions:MmeSource",
        "hallusionbench": "mgap.benchmarks.hallusionbench.questions:HallusionBenchSource",
        "own": "mgap.benchmarks.own:OwnSource",
    },
    has=("keys", "datasets", "max_new_tokens", "read"),
)

# Worlds that draw their own pictures and ask several benchmarks' questions about them: each a `DrawnWorld`.
WORLDS = Registry("drawn world", "mgap.worlds", {"pocket": "mgap.pocket.samples:PocketWorld"}, has=("read",))

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
    has=("__call__",),
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
        "null_space": "mgap.priors.null_space:NullSpace",
    },
    has=("load",),
)

# What learns these for an embedded model, from scenes of its world that no test shows: a function of a model each.
POCKET_LEARNERS = Registry(
    "thing to learn in the pocket world",
    "mgap.pocket_learners",
    {
        "prior_map": "mgap.pocket.fit_map:fit_pocket_map",
        "steering": "mgap.pocket.fit_steering:fit_steering",
        "bank": "mgap.pocket.fit_bank:fit_bank",
        "null_space": "mgap.pocket.fit_null_space:fit_null_space",
    },
    has=("__call__",),
)

# Engines that generate the answers of a run: each a `RunEngine` (run/worker.py).
ENGINES = Registry(
    "engine",
    "mgap.engines",
    {
        "transformers": "mgap.run.worker:TransformersEngine",
        "vllm": "mgap.serving.vllm_run:VllmEngine",
        "server": "mgap.serving.remote.remote_run:RemoteEngine",
    },
    has=("refuse", "require", "begin"),
)

# Scorers, by the task that a benchmark names: each turns answers into figures.
SCORERS = Registry(
    "task",
    "mgap.scorers",
    {
        "yesno": "mgap.benchmarks.pope.scorer:PopeScorer",
        "captions": "mgap.benchmarks.chair.scorer:ChairScorer",
        "amber": "mgap.benchmarks.amber.scorer:AmberScorer",
        "mme": "mgap.benchmarks.mme.scorer:MmeScorer",
        "hallusionbench": "mgap.benchmarks.hallusionbench.scorer:HallusionBenchScorer",
    },
    has=("of",),
)

REGISTRIES = (METHODS, BACKBONES, BENCHMARKS, WORLDS, PROMPTS, LEARNT, POCKET_LEARNERS, ENGINES, SCORERS)

# Models of the pocket world by the name that `mgap.load` accepts, with the folder that ships with the package.
POCKET_MODELS = {
    f"pocket/{name}": Path(__file__).parent / "pocket" / "models" / name for name in ("llava", "qwen3-vl", "natural")
}
# Of these, the ones that are put together on first use, since a part of them is fetched; the others are whole checkpoints.
ASSEMBLED = {"pocket/natural": "mgap.pocket.natural:assemble"}
EMBEDDED = {name: folder for name, folder in POCKET_MODELS.items() if name not in ASSEMBLED}

# The paper's tables and figures as run configurations, by the name that `mgap run` accepts.
EXPERIMENTS = {path.stem: path for path in sorted((Path(__file__).parent / "experiments").glob("*.yaml"))}


def check_pocket_name(name: str) -> str:
    """The name itself; refuses one of a pocket model that there is not, which costs nothing: nothing is imported for it."""
    if name.startswith("pocket/") and name not in POCKET_MODELS and not Path(name).is_dir():
        raise ModelError(
            f"no embedded model {name!r}: choose from {', '.join(POCKET_MODELS)}{did_you_mean(name, POCKET_MODELS)}"
        )
    return name


def locate(name: str, revision: str | None = None) -> str:
    """The folder of a pocket model's checkpoint; any other name (a hub id or a folder) is returned as it is."""
    if check_pocket_name(name) not in POCKET_MODELS:
        return name
    if revision is not None:
        raise SettingError(f"{name} comes with the package and has no revisions: leave out revision={revision!r}")
    if name in ASSEMBLED:
        module, function = ASSEMBLED[name].split(":")
        return str(getattr(import_module(module), function)())
    if not (EMBEDDED[name] / "config.json").is_file():
        raise ModelError(f"{name}: its weights are missing from this installation; install the package again, or retrain it")
    return str(EMBEDDED[name])
