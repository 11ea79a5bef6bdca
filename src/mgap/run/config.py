"""The config of a run: the same keys in YAML, on the command line and in Python. Checked before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from mgap.backbones.template_rendering import check_stated
from mgap.errors import SettingError, did_you_mean
from mgap.io.regular_files import NotRegular, read_regular
from mgap.io.strict_json import unwritable
from mgap.io.typed_json import typed
from mgap.io.yaml_text import parse_yaml
from mgap.priors.prior_plan import Prior
from mgap.registry import BENCHMARKS, ENGINES, EXPERIMENTS, METHODS, POCKET_MODELS, WORLDS, check_pocket_name
from mgap.run.control_rows import with_controls
from mgap.run.learning import called, kinds_in
from mgap.run.method_plans import VANILLA, MethodPlan
from mgap.types import Decoding

DEPARTURE = "departure"  # measured on the questions of POPE, or along the descriptions of CHAIR
PREFILLS = ("auto", "shared", "own")
ALONG = ("first", "answers")  # where departures are measured: at the first token, or at every token of a description
SELECTIVE = ("splits", "kinds", "tasks", "image_set", "questions", "pictures", "departure")  # keys that only some read


def benchmarks() -> list[str]:
    """The names that `mgap run` accepts as benchmarks."""
    return [*BENCHMARKS, DEPARTURE]


def datasets() -> list[str]:
    """The sources of pictures."""
    published = (dataset for source in BENCHMARKS.loaded().values() for dataset in source.datasets)
    return list(dict.fromkeys([*WORLDS, *published]))


def measured_on(along: str, dataset: str | None, questions: str | None = None) -> str:
    """The benchmark that departures are measured on: CHAIR along answers; else that of the data set, POPE if none has it."""
    if questions is not None:
        return "own"
    if along == "answers":
        return "chair"
    return next((name for name, source in BENCHMARKS.loaded().items() if dataset in source.datasets), "pope")


def _keys_of(benchmark: str) -> frozenset[str]:
    """The SELECTIVE keys that a benchmark reads."""
    if benchmark == DEPARTURE:
        return frozenset({"splits", "tasks", "image_set", "questions", "departure"})
    keys: frozenset[str] = BENCHMARKS.get(benchmark).keys
    return keys


@dataclass(frozen=True)
class Config:
    """One run: a benchmark, a model, and the methods to compare."""

    benchmark: str
    model: str
    methods: tuple[MethodPlan, ...]
    dataset: str | None = None  # default: pocket for an embedded model without `images`, else the benchmark's first
    images: str | None = None  # folder of the pictures
    data: str | None = None  # folder of the benchmark's published files; default: the cache
    questions: str | None = None  # own, departure: JSONL or CSV with image, question, label
    splits: tuple[str, ...] = ("random", "popular", "adversarial")
    kinds: str = "a"  # of AMBER: a, g, d, de, da or dr
    tasks: str = "hallucination"  # of MME: hallucination, perception, cognition, all, or names with commas
    image_set: str | None = None  # of CHAIR: a published list of pictures, or a file with one id per line
    pictures: str = "all"  # of HallusionBench: all its questions, or only those with a picture
    prompt: str | None = None  # a published wording of the question; default: the paper's
    scenes: int = 500  # number of pictures in the pocket world
    held_out: bool = False  # pocket: drawing styles not seen in training
    difficulty: Mapping[str, Any] = field(default_factory=dict)  # pocket: knobs such as noise, docs/pocket.md
    limit: int | None = None  # only this many pictures, the first ones
    missing: str = "refuse"  # pictures that cannot be found: refuse, or skip
    decoding: Mapping[str, Any] = field(default_factory=dict)
    scoring: Mapping[str, Any] = field(default_factory=dict)  # settings of the scorer: parser, language, ...
    controls: bool = False  # yes/no questions: add the rows that methods are held against
    departure: Mapping[str, Any] = field(default_factory=dict)  # along, k, delta, metric, search, bank, strengths
    pocket: Mapping[str, Any] = field(default_factory=dict)  # settings by method, for the pocket world only
    engine: str = "transformers"  # or vllm, or server, or one of another package
    engine_options: Mapping[str, Any] = field(default_factory=dict)  # of vllm: arguments of vllm.LLM; of server: url and others
    batch_size: int = 32  # engines vllm and server have 256
    warm_up: bool = False  # answer each method's first batch once before timing starts
    prefill: str = "auto"  # auto: shared where that changes nothing, else own
    workers: int | str = "auto"  # processes that open and prepare pictures; 0: none but this one
    profile: bool = False  # measure the time of each stage
    device: str | None = None
    dtype: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    template: str | None = None  # how prompts are written, for a model without a chat template: with {question} and {image}
    title: str = ""  # of an experiment
    axis: str = ""  # what the methods' `x` is, such as alpha
    published: Mapping[str, Any] = field(default_factory=dict)  # published figures to show beside ours

    def __post_init__(self) -> None:
        self._refuse_types()
        _choose("benchmark", self.benchmark, benchmarks())
        _choose("dataset", self.data_set, datasets())
        _choose("prefill", self.prefill, PREFILLS)
        _choose("engine", self.engine, ENGINES.names())
        _choose("missing", self.missing, ("refuse", "skip"))
        if not self.methods:
            raise SettingError("a run without methods answers nothing: name at least one, such as vanilla")
        labels = [plan.label for plan in self.methods]
        if len({plan.folder for plan in self.methods}) < len(labels):
            raise SettingError(
                f"methods of this run have the same name, or nearly so: {', '.join(labels)}; give each its own label"
            )
        for name in ("batch_size", "scenes", "limit"):
            value = getattr(self, name)
            is_unset = value is None and name == "limit"
            if not is_unset and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SettingError(f"{name}={value!r} must be a whole number of at least 1")
        is_count = isinstance(self.workers, int) and not isinstance(self.workers, bool) and self.workers >= 0
        if not is_count and self.workers != "auto":
            raise SettingError(f"workers={self.workers!r} must be auto, or a whole number of at least 0")
        if self.benchmark == "departure" and (self.profile or self.workers not in ("auto", 0)):
            raise SettingError("departures are measured in one process, without stages: leave out workers and profile")
        if self.data_set != "pocket" and self.images is None:
            raise SettingError(
                f"{self.model} on {self.benchmark}: give images, the folder of pictures, or dataset: pocket for drawn scenes"
            )
        for name in ("images", "data", "image_set"):
            if self.data_set == "pocket" and getattr(self, name) is not None:
                raise SettingError(f"the pocket world draws its own pictures: leave out {name}, or name another dataset")
        if self.data_set == "pocket" and self.questions is not None:
            raise SettingError("the pocket world asks its own questions: leave out questions, or give images")
        if self.data_set != "pocket" and self.held_out:
            raise SettingError("held_out is of the pocket world's drawing styles: leave it out")
        if self.data_set != "pocket" and self.difficulty:
            raise SettingError("difficulty is of the pocket world's pictures: leave it out")
        if self.benchmark == "own" and self.questions is None:
            raise SettingError("benchmark own: give questions, a JSONL or CSV file with image, question and label")
        for key in self.departure:
            _choose("key of departure", key, ("along", "k", "delta", "metric", "search", "bank", "strengths"))
        _choose("along of departure", self.along, ALONG)
        if "search" in self.departure:
            from mgap.priors.manifold import check_search

            check_search(self.departure["search"])
        if self.benchmark == "departure" and self.along == "answers":
            for key in self.decoding:
                _choose("decoding key along answers, which are greedy", key, ("max_new_tokens",))
        if self.template is not None:
            check_stated(self.template)
        check_pocket_name(self.model)
        ENGINES.get(self.engine).refuse(self)
        self._refuse_modes()
        for plan in self.methods:
            plan.refuse_unlearnt(self.model)

    def _refuse_types(self) -> None:
        hints = get_type_hints(Config)
        for f in fields(self):
            if f.name not in ("methods", "batch_size", "scenes", "limit", "workers"):  # which have their own messages
                try:
                    typed(hints[f.name], getattr(self, f.name), f.name)
                except TypeError as error:
                    raise SettingError(str(error)) from None
            if f.name != "methods":
                _refuse_unwritable(f.name, getattr(self, f.name))
        for plan in self.methods:
            _refuse_unwritable(plan.label, [plan.label, plan.method, plan.settings, plan.prior and plan.prior.to_json()])
        for name, settings in self.pocket.items():
            if not isinstance(settings, Mapping):
                raise SettingError(f"pocket: {name!r} must hold settings, not {settings!r:.60}")

    def _refuse_modes(self) -> None:
        """Refuse a method that does not support this decoding before the others have answered."""
        from mgap.decoding.attach import refuse_modes

        for plan in self.methods:
            modes = self.decode(plan).modes(rows=self.batch_size)
            if plan.method != VANILLA:
                refuse_modes(METHODS.get(plan.method), modes)

    @property
    def data_set(self) -> str:
        """The source of the pictures."""
        if self.dataset is not None:
            return self.dataset
        if self.images is None and self.model in POCKET_MODELS and self.benchmark != "own":
            return "pocket"
        first: str = BENCHMARKS.get(self.asks).datasets[0]
        return first

    @property
    def is_drawn(self) -> bool:
        """Whether the pictures are drawn by a world."""
        return self.data_set in WORLDS

    @property
    def along(self) -> str:
        """Where departures are measured: at the first token, or along answers."""
        return str(self.departure.get("along", "first"))

    @property
    def asks(self) -> str:
        """The benchmark that provides the samples."""
        return measured_on(self.along, self.dataset) if self.benchmark == DEPARTURE else self.benchmark

    def decode(self, plan: MethodPlan | None = None) -> Decoding:
        """The decoding settings, of the run or of one method's row in it.

        The default length depends on the benchmark: short for questions, long for descriptions.
        """
        longest: int = BENCHMARKS.get(self.asks).max_new_tokens
        if self.is_drawn:
            longest = min(longest, 96)
        if self.benchmark == "departure" and self.along == "first":
            longest = 1
        return Decoding.of(**{"max_new_tokens": longest, **self.decoding, **({} if plan is None else plan.decoding)})

    @classmethod
    def of(
        cls,
        data: Mapping[str, Any],
        where: str = "the run",
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        prior: str | None = None,
    ) -> Config:
        """From plain keys. Unknown and missing keys are refused by name. `settings` adds settings by method name or label.

        `prior` is a folder or hub repository with something learnt, for every method that needs its kind.
        """
        known = [f.name for f in fields(cls)]
        for key in data:
            if key not in known:
                hint = did_you_mean(key, known)
                raise SettingError(f"{where}: unknown key {key!r:.60}: choose from {', '.join(known)}{hint}")
        if data.get("benchmark") in benchmarks():
            for key in SELECTIVE:
                if key in data and key not in _keys_of(data["benchmark"]):
                    owners = " and ".join(name for name in (*BENCHMARKS.loaded(), DEPARTURE) if key in _keys_of(name))
                    raise SettingError(f"{where}: {key} is a key of {owners}, not of {data['benchmark']}: leave it out")
        departure = data.get("departure")
        if data.get("benchmark") == "departure":
            along = str(departure.get("along", "first")) if isinstance(departure, Mapping) else "first"
            asked = measured_on(along, data.get("dataset"), data.get("questions"))
            for other in ("splits", "tasks", "image_set"):
                if other in data and other not in _keys_of(asked):
                    subject = {"chair": "descriptions", "own": "your own questions"}.get(asked, f"{asked.upper()}'s questions")
                    raise SettingError(f"{where}: these departures are of {subject}, which have no {other}: leave it out")
        for f in fields(cls):
            if f.name not in data and f.default is MISSING and f.default_factory is MISSING:
                raise SettingError(f"{where}: {f.name} is missing, and has no default")
        values = dict(data)
        engine = ENGINES.get(name) if (name := values.get("engine", cls.engine)) in ENGINES.names() else None
        entries, more = _sequence("methods", data["methods"], where), settings or {}
        plans = [MethodPlan.of(entry) for entry in _with_more(entries, more)]
        plans = plans if prior is None else _with_saved(plans, prior)
        if (held := getattr(engine, "prior", None)) is not None:
            plans = [plan.with_settings({"prior": held}) if plan.prior == Prior() else plan for plan in plans]
        values["methods"] = tuple(plans)
        if "splits" in values:
            values["splits"] = tuple(map(str, _sequence("splits", values["splits"], where)))
        if (at_once := getattr(engine, "batch_size", None)) is not None:
            values.setdefault("batch_size", at_once)
        for key in ("difficulty", "decoding", "scoring", "departure", "pocket", "published", "engine_options"):
            if not isinstance(values.get(key, {}), Mapping):
                raise SettingError(f"{where}: {key} must hold keys and values, not {values[key]!r:.60}")
        config = cls(**values)
        if config.controls:
            config = replace(config, methods=tuple(with_controls(config.methods, config.decode(), config.engine)))
        names = {name for plan in config.methods for name in (plan.method, plan.label)}
        pocket = {
            name: {key: value for key, value in own.items() if key not in more.get(name, {})}
            for name, own in config.pocket.items()
            if name in names
        }
        return config.with_settings(pocket) if config.data_set == "pocket" else config

    @classmethod
    def read(cls, path: str, **given: Any) -> Config:
        """From a YAML file or an experiment of the package. Given keys replace the file's."""
        return cls.of({**read_yaml(path), **given}, path)

    def with_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> Config:
        """A copy with more settings, by method name or label."""
        plans, used = [], set()
        for plan in self.methods:
            more: dict[str, Any] = {}
            for key in (plan.method, plan.label):
                if key in settings:
                    used.add(key)
                    more.update(settings[key])
            plans.append(plan.with_settings(more) if more else plan)
        _refuse_unused(settings, used, [plan.label for plan in plans])
        return replace(self, methods=tuple(plans))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _with_more(entries: Iterable[Any], settings: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Add settings to method entries before they are checked: a method may need one of them."""
    merged, used = list[Any](), set[str]()
    for entry in entries:
        keys: Any = {"method": entry} if isinstance(entry, str) else entry
        if isinstance(keys, Mapping):
            called = [name for name in (keys.get("method"), keys.get("label")) if isinstance(name, str)]
            names = [name for name in dict.fromkeys(called) if name in settings]
            used |= set(names)
            keys = {**keys, **{key: value for name in names for key, value in settings[name].items()}}
        merged.append(keys)
    _refuse_unused(settings, used, [str(e.get("label", e.get("method"))) for e in merged if isinstance(e, Mapping)])
    return merged


def _with_saved(plans: Sequence[MethodPlan], place: str) -> list[MethodPlan]:
    """Give a saved folder to every method that needs its kind. Refused if no method does."""
    if not any(plan.takes(place) for plan in plans):
        inside = " and ".join(called(kind) for kind in kinds_in(place) or ("subspace",))
        raise SettingError(f"--prior {place}: no method of this run needs {inside}: {', '.join(p.label for p in plans)}")
    return [plan.with_settings({"prior": place}) if plan.takes(place) else plan for plan in plans]


def _refuse_unused(settings: Mapping[str, Any], used: set[str], labels: list[str]) -> None:
    if unused := sorted(set(settings) - used):
        raise SettingError(f"settings for {unused[0]!r}, which is no method of this run: {', '.join(labels)}")


def read_yaml(path: str) -> dict[str, Any]:
    """The keys of a YAML file. `experiments/NAME.yaml` and `NAME` also find the package's experiments."""
    named = EXPERIMENTS.get(Path(path).stem, "")
    file = next(
        (Path(place) for place in (path, named) if os.path.exists(place) and not os.path.isdir(place)), None
    )  # unlike Path.is_file, accepts a name of any length
    if file is None:
        raise SettingError(f"{path}: no such file, nor an experiment or a benchmark of that name; see `mgap ls experiments`")
    try:
        data = parse_yaml(read_regular(file).decode())
    except NotRegular as error:
        raise SettingError(str(error)) from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except ValueError as error:
        raise SettingError(f"{path}: {error}; mend it") from None
    if not isinstance(data, dict):
        raise SettingError(f"{path}: must hold keys and values, such as `benchmark: pope`")
    return data


def _refuse_unwritable(name: str, value: Any) -> None:
    if why := unwritable(value):
        raise SettingError(f"{name!r:.60}: {why}; a run could not write it down")


def _choose(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise SettingError(f"unknown {name} {value!r:.60}: choose from {', '.join(choices)}{hint}")


def _sequence(name: str, value: Any, where: str) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise SettingError(f"{where}: {name} must be a list, not {value!r:.60}")
    return list(value)
