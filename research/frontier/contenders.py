"""The families of methods that are compared, each with the settings to choose from.

A method is built from a `Kit` just before it runs. To add a family, add a `Contender` to FAMILIES; the first of its settings
wins a tie. A family whose authors published a setting is reported with that one too, whatever the rule chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from mgap.errors import SettingError
from mgap.methods.asd import ASD
from mgap.methods.avisc import AvisC
from mgap.methods.base import Method
from mgap.methods.bias import Bias
from mgap.methods.blind import NULLS as BLIND_NULLS
from mgap.methods.blind import Blind
from mgap.methods.code import CODE
from mgap.methods.deco import DeCo
from mgap.methods.dola import DoLa
from mgap.methods.ed import ED, FastED
from mgap.methods.given.brings import Pictured
from mgap.methods.given.given import Given
from mgap.methods.haltrapper.haltrapper import HalTrapper
from mgap.methods.icd import ICD
from mgap.methods.kinds.corner_crops import SHARE
from mgap.methods.m3id import M3ID
from mgap.methods.mod import MoD
from mgap.methods.nullu import Nullu
from mgap.methods.opera.opera import OPERA
from mgap.methods.pai import PAI
from mgap.methods.predicted_prior import PredictedPrior
from mgap.methods.prompt_prior import PromptPrior
from mgap.methods.ritual import RITUAL
from mgap.methods.sid import SID
from mgap.methods.tether import Tether
from mgap.methods.vaf import VAF
from mgap.methods.vcd import VCD
from mgap.methods.vista import VISTA
from mgap.methods.yes_if_close import YesIfClose
from mgap.pocket.figures import ALPHAS, NULLS, SHIFTS, mgap_at
from mgap.pocket.fit_bank import MAX_ANSWER_TOKENS
from mgap.pocket.stand_ins import Redrawn
from research.frontier.kit import Kit

PLAIN = "vanilla"  # the baseline
QUESTIONS, CAPTIONS, NEAR, BOTH = "questions", "captions", "captions-near", "both"  # purposes that a setting is chosen for
PUBLISHED = "published"  # not chosen: its authors' own
AS_PUBLISHED = "as published"
RANKS = (1, 5)
RHOS = (0.25, 0.5, 1.0, 2.0, 4.0)
CONTRASTS = (0.25, 0.5, 1.0, 2.0)  # strengths of contrasts whose authors take 1
MGAP_NULLS = (*NULLS, "noise")
PRIOR_NULLS = {
    "black_same_size": "black336",
    "no_image": "no_image",
    "noise": "noise",
}  # null image of a branch -> of its prior


@dataclass(frozen=True)
class Setting:
    """One setting of a method; None is plain decoding."""

    label: str
    make: Callable[[Kit], Method | None]


@dataclass(frozen=True)
class Contender:
    """A family of methods and the purposes of its settings: questions only, if it leaves captions alone."""

    family: str
    settings: tuple[Setting, ...]
    chosen_for: tuple[str, ...] = (QUESTIONS, CAPTIONS, NEAR, BOTH)
    published: str = ""  # the label of its authors' setting

    def __post_init__(self) -> None:
        labels = [setting.label for setting in self.settings]
        if not labels or len(set(labels)) < len(labels):
            raise SettingError(f"{self.family} has the settings {labels}: give at least one, each under a label of its own")
        if self.published and self.published not in labels:
            raise SettingError(f"{self.family} has no setting {self.published!r}, which is to be the published one")

    def setting(self, label: str) -> Setting:
        for setting in self.settings:
            if setting.label == label:
                return setting
        raise SettingError(f"{self.family} has no setting {label!r} any more: choose again")


def _mgap(alpha: float, null_image: str, rank: int) -> Setting:
    return Setting(f"alpha {alpha:g}, {null_image}, rank {rank}", lambda kit: mgap_at(kit.prior(null_image, rank), alpha))


def _blind(rho: float, null_image: str) -> Setting:
    return Setting(f"rho {rho:g}, {null_image}", lambda _: Blind(rho=rho, null_image=null_image))


def _along(name: str, values: Iterable[float], method: Callable[..., Method]) -> tuple[Setting, ...]:
    """A method at several values of one setting, the others as they are by default."""

    def at(value: float) -> Setting:
        return Setting(f"{name} {value:g}", lambda _: method(**{name: value}))

    return tuple(at(value) for value in values)


def _vcd(alpha: float, step: int) -> Setting:
    at = "" if step == VCD.noise_step else f", step {step}"
    return Setting(f"alpha {alpha:g}{at}", lambda _: VCD(alpha=alpha, noise_step=step))


def _asd(alpha: float) -> Setting:
    return Setting(f"alpha {alpha:g}", lambda kit: ASD(steering=kit.steering(), alpha=alpha))


def _haltrapper(alpha: float) -> Setting:
    # miniatures garble the replies that it prompts for: longer ones give no more candidates
    return Setting(f"alpha {alpha:g}", lambda _: HalTrapper(alpha=alpha, length=MAX_ANSWER_TOKENS))


def _given(alpha: float) -> Setting:
    """ConVis, with a stand-in that draws captions; nothing of a scene but its picture is used."""

    def make(kit: Kit) -> Method:
        evidence = kit.keep("redrawn", lambda: Pictured(kit.model, Redrawn(), length=MAX_ANSWER_TOKENS))
        return Given(evidence=evidence, preset="convis", alpha=alpha)

    return Setting(f"convis, alpha {alpha:g}", make)


def _pai(alpha: float, gamma: float) -> Setting:
    return Setting(f"alpha {alpha:g}, gamma {gamma:g}", lambda _: PAI(alpha=alpha, gamma=gamma))


def _mod(strength: float) -> Setting:
    label = AS_PUBLISHED if strength == 1 else f"a1 and a2 times {strength:g}"
    return Setting(label, lambda _: MoD(a1=strength * MoD.a1, a2=strength * MoD.a2))


def _if_close(preset: str, margin: float) -> Setting:
    return Setting(f"{preset}, margin {margin:g}", lambda _: YesIfClose(preset=preset, margin=margin))


def _nullu(rank: int, strength: float) -> Setting:
    label = f"rank {rank}, strength {strength:g}"
    return Setting(label, lambda kit: Nullu(space=kit.null_space(rank), strength=strength))


def _cropped(method: type[ED] | type[FastED], alpha: float) -> Setting:
    """With crops of a share of the picture: one of the model's input side may be the whole picture."""
    return Setting(f"alpha {alpha:g}, crops of {SHARE:g}", lambda _: method(alpha=alpha, crop_share=SHARE))


def _as_published(make: Callable[[], Method]) -> Setting:
    return Setting(AS_PUBLISHED, lambda _: make())


def _prompt_prior(rho: float, null_image: str, rank: int, form: str) -> Setting:
    shape = {"centre": form != "uncentred", "gate": form == "gated", "protect": form == "gated"}
    return Setting(
        f"{form}, rho {rho:g}, {null_image}, rank {rank}",
        lambda kit: PromptPrior(
            prior=kit.prior(PRIOR_NULLS[null_image], rank), rho=rho, null_image=null_image, branch_mode="cached", **shape
        ),
    )


def _caption_prior(rho: float, rank: int, unsure: float) -> Setting:
    return Setting(
        f"of captions, rho {rho:g}, rank {rank}, unsure {unsure:g}",
        lambda kit: PromptPrior(prior=kit.caption_prior("black_same_size", rank), rho=rho, unsure=unsure, branch_mode="cached"),
    )


def _predicted(rho: float, null_image: str, rank: int, form: str) -> Setting:
    is_gated = form == "gated"
    return Setting(
        f"{form}, rho {rho:g}, {null_image}, rank {rank}",
        lambda kit: PredictedPrior(kit.prior_map(null_image, rank), rho=rho, gate=is_gated, protect=is_gated),
    )


def _tether(rho: float, unsure: float, alpha: float, delta: float) -> Setting:
    return Setting(
        f"rho {rho:g}, unsure {unsure:g}, alpha {alpha:g}, delta {delta:g}",
        lambda kit: Tether(
            bank=kit.bank(),
            rho=rho,
            unsure=unsure,
            branch_mode="cached",
            prior=kit.prior("mean_colour", 1),
            alpha=alpha,
            delta=delta,
        ),
    )


def _limited(rho: float) -> Setting:
    """The largest step of the contrast whose state does not depart."""
    return Setting(
        f"rho {rho:g}, unsure 1.5",
        lambda kit: Tether(bank=kit.bank(), rho=rho, unsure=1.5, towards="plain", branch_mode="cached"),
    )


FAMILIES: tuple[Contender, ...] = (
    Contender(PLAIN, (Setting("plain", lambda _: None),)),
    Contender("bias", _along("shift", sorted(SHIFTS, key=abs), Bias), (QUESTIONS,)),
    Contender(
        "mgap",
        tuple(_mgap(*one) for one in product(ALPHAS, MGAP_NULLS, RANKS)),
        published=f"alpha 0.75, {NULLS[0]}, rank 5",
    ),
    Contender("blind", tuple(_blind(rho, null) for rho in RHOS for null in BLIND_NULLS)),
    Contender("vcd", tuple(_vcd(*one) for one in product(CONTRASTS, (500, 999))), published="alpha 1"),
    Contender(
        "prompt-prior",
        (
            *(_prompt_prior(*one) for one in product((0.5, 1.0, 2.0, 4.0), PRIOR_NULLS, RANKS, ("centred", "uncentred"))),
            *(_prompt_prior(rho, "black_same_size", 5, "gated") for rho in (1.0, 2.0, 4.0, 8.0)),
            *(_caption_prior(*one) for one in product((0.25, 0.5, 1.0), (5, 32), (0.0, 1.5))),
        ),
    ),
    Contender(
        "predicted-prior",
        tuple(
            _predicted(*one) for one in product((0.5, 1.0, 2.0, 4.0), ("black336", "mean_colour"), RANKS, ("plain", "gated"))
        ),
    ),
    Contender(
        "tether",
        tuple(_tether(*one) for one in product((1.0, 2.0, 3.0, 4.0), (1.0, 1.5), (0.0, 4.0), (0.05, 0.02, 0.01))),
    ),
    Contender("limited", tuple(_limited(rho) for rho in (1.0, 2.0))),
    Contender("icd", _along("alpha", CONTRASTS, ICD), published="alpha 1"),
    Contender(
        "code",
        (_as_published(CODE), Setting("as HalTrapper's authors have it", lambda _: CODE(preset="haltrapper"))),
        published=AS_PUBLISHED,
    ),
    Contender("given", tuple(_given(alpha) for alpha in (0.1, 0.5, 1.0)), published="convis, alpha 1"),
    Contender("m3id", _along("lam", (0.005, 0.01, 0.02, 0.05, 0.1), M3ID), published="lam 0.02"),
    Contender("deco", _along("alpha", (0.1, 0.3, 0.6), DeCo), published="alpha 0.6"),
    Contender("dola", (_as_published(DoLa), Setting("later layers", lambda _: DoLa(layers="high"))), published=AS_PUBLISHED),
    Contender("pai", tuple(_pai(*one) for one in product((0.2, 0.5), (1.1, 1.5, 2.0))), published="alpha 0.5, gamma 1.1"),
    Contender("mod", tuple(_mod(strength) for strength in (0.25, 0.5, 1.0)), published=AS_PUBLISHED),
    Contender("sid", _along("alpha", CONTRASTS, SID), published="alpha 1"),
    Contender("avisc", _along("alpha", (0.5, 1.0, 2.5), AvisC), published="alpha 1"),
    Contender("vaf", _along("enhance", (1.15, 1.3, 1.6), VAF), published="enhance 1.15"),
    Contender("ed", (_as_published(ED), *(_cropped(ED, alpha) for alpha in (0.25, 0.5, 0.75))), published=AS_PUBLISHED),
    Contender(
        "fast-ed",
        (_as_published(FastED), *(_cropped(FastED, alpha) for alpha in (0.25, 0.5, 0.75))),
        published=AS_PUBLISHED,
    ),
    Contender("asd", tuple(_asd(alpha) for alpha in CONTRASTS), published="alpha 1"),
    Contender("vista", _along("lam", (0.01, 0.05, 0.1, 0.17), VISTA), published="lam 0.17"),
    Contender("nullu", tuple(_nullu(*one) for one in product((4, 8, 16), (0.5, 1.0))), published="rank 4, strength 1"),
    Contender("haltrapper", tuple(_haltrapper(alpha) for alpha in CONTRASTS[:3]), published="alpha 1"),
    Contender("ritual", _along("alpha", (0.5, 1.0, 3.0), RITUAL), published="alpha 3"),
    Contender("opera", (_as_published(OPERA),)),
    Contender(
        "yes-if-close",
        tuple(_if_close(*one) for one in product(("yes-if-close", "no-if-close"), (0.25, 0.5, 0.75))),
        (QUESTIONS,),
        published="yes-if-close, margin 0.5",
    ),
)


def take(names: Iterable[str] | None = None, families: Sequence[Contender] = FAMILIES) -> list[Contender]:
    """The families of these names and always plain decoding, in the order of `families`; None: all."""
    wanted = {contender.family for contender in families} if names is None else {PLAIN, *names}
    if unknown := sorted(wanted - {contender.family for contender in families}):
        known = ", ".join(contender.family for contender in families)
        raise SettingError(f"unknown family {unknown[0]!r}: choose from {known}")
    return [contender for contender in families if contender.family in wanted]


def in_order(families: Iterable[str]) -> list[str]:
    """Names of families in the order of FAMILIES; others last."""
    known = [contender.family for contender in FAMILIES]
    return sorted(families, key=lambda family: known.index(family) if family in known else len(known))
