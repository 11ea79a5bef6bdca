"""The analysis of a prior subspace as one value, to and from JSON: its spectrum, its words, its comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from mgap.diagnosis.principal_angles import Overlap, SubspaceComparison
from mgap.diagnosis.subspace_words import AverageStep, Direction, DirectionReadout, MovedOdds, Word
from mgap.errors import CorruptFile, DegenerateSubspace
from mgap.priors.spectrum import auto_rank, beyond_rounding
from mgap.priors.subspace import Subspace

FORMAT = 1


@dataclass(frozen=True)
class Variation:
    """How the blind states vary along every direction, not only the first K."""

    singular_values: tuple[float, ...]  # descending
    share: tuple[float, ...]  # of the states' variance, 0..1
    cumulative: tuple[float, ...]
    auto_rank: int | None  # directions above noise (Gavish and Donoho, 2014); None: there are none, or the spectrum is partial

    @classmethod
    def of(cls, prior: Subspace) -> Variation:
        values = beyond_rounding(prior.singular_values, prior.count, prior.mean)
        share = values.square() / prior.total_variance
        rank = None
        if float(share.sum()) > 1 - 1e-6:  # the rule needs the median, and a partial solver returns only the first few
            try:
                rank = auto_rank(values, prior.count, prior.hidden_size)
            except DegenerateSubspace:
                rank = None
        return cls(tuple(values.tolist()), tuple(share.tolist()), tuple(share.cumsum(0).tolist()), rank)


@dataclass(frozen=True)
class Halves:
    """Two priors of one rank from disjoint halves of a set of prompts: how much depends on the choice of prompts."""

    rank: int
    count: int  # N of each half
    degrees: tuple[float, ...]
    largest: float
    shared: float
    chance: float

    @classmethod
    def of(cls, one: Tensor, other: Tensor, count: int) -> Halves:
        return cls(one.shape[1], count, **asdict(Overlap.of(one, other)))


@dataclass(frozen=True)
class SubspaceAnalysis:
    """The analysis of one model's prior subspace. `to_json` writes, and figures and tables read:

    format          1
    model           the model's name;  hidden_size  d;  rank  K;  count  N
    prior           how the subspace was specified: rank, count, prompts, null_image; or folder
    spectrum        singular_values, share, cumulative: lists over directions;  auto_rank  a number or null
    directions      [{number, spread, mean, readout, up, down}]  up, down: [{token, text, change}], per unit of length;
                    change * spread is that for a standard deviation of the blind states;  readout: cosine or null
    readout         {up, down, tokens, share, chance} or null
    steps           [{states, count, held, up, down, answers}], beta 1;  answers: {mean, spread, slope, intercept, fit} or null
    comparisons     [{name, labels, counts, rank, first, largest, shared, chance, readout}]  prompts, counts or null_images;
                    first (degrees between the first directions), largest (degrees) and shared (mean cos^2, 0..1)
                    are square matrices in the order of labels;  readout: share of the answers' line in each, or null
    halves          [{rank, count, degrees, largest, shared, chance}], by rank
    notes           sentences: what was left out and why
    """

    model: str
    hidden_size: int
    rank: int
    count: int
    prior: dict[str, Any]
    spectrum: Variation
    directions: tuple[Direction, ...]
    readout: DirectionReadout | None
    steps: tuple[AverageStep, ...]
    comparisons: tuple[SubspaceComparison, ...]
    halves: tuple[Halves, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SubspaceAnalysis:
        """Read what `to_json` wrote."""
        try:
            if data["format"] > FORMAT:
                raise CorruptFile(f"a subspace analysis of format {data['format']} is newer than this mgap reads: upgrade mgap")
            readout = data["readout"]
            return cls(
                **{name: data[name] for name in ("model", "hidden_size", "rank", "count")},
                prior=dict(data["prior"]),
                spectrum=Variation(**_frozen(data["spectrum"])),
                directions=tuple(Direction(**_with_words(entry)) for entry in data["directions"]),
                readout=None if readout is None else DirectionReadout(**_frozen(readout)),
                steps=tuple(_step(entry) for entry in data["steps"]),
                comparisons=tuple(SubspaceComparison(**_frozen(entry)) for entry in data["comparisons"]),
                halves=tuple(Halves(**_frozen(entry)) for entry in data["halves"]),
                notes=tuple(data["notes"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(f"not a subspace analysis ({error!r}); analyse the subspace again") from error


@dataclass(frozen=True)
class ModelComparison:
    """Two models' priors, compared by their effect on the tokens of both. JSON has the same names."""

    models: tuple[str, str]
    ranks: tuple[int, int]
    tokens: int  # that both vocabularies spell alike
    degrees: tuple[float, ...]  # principal angles between the spans of W V, centred over these tokens
    largest: float
    shared: float
    chance: float  # `shared` of random subspaces of that space: max(K) / (tokens - 1)
    heads: float  # mean `shared` of random directions, each through its model's head: what the heads have in common
    heads_spread: float  # its standard deviation over the draws
    heads_smallest: float  # the mean smallest angle of the draws, in degrees
    cosines: tuple[tuple[float, ...], ...]  # [K1][K2] between directions, each oriented to its model's mean blind state
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelComparison:
        try:
            return cls(**{name: value for name, value in _frozen(data).items() if name != "format"})
        except (TypeError, AttributeError) as error:
            raise CorruptFile(f"not a comparison of models ({error!r}); compare them again") from error


def _with_words(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, **{key: tuple(Word(**word) for word in entry[key]) for key in ("up", "down")}}


def _step(entry: Mapping[str, Any]) -> AverageStep:
    answers = entry["answers"]
    return AverageStep(**{**_with_words(entry), "answers": None if answers is None else MovedOdds(**answers)})


def _frozen(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _tuples(value) for key, value in entry.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
