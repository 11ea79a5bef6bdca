"""What an evaluation harness says of a model and its method, checked before weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mgap.decoding.model import Model, load
from mgap.priors.prior_plan import Priors
from mgap.run.method_plans import MethodPlan, build_method

if TYPE_CHECKING:
    from mgap.methods.base import Method


@dataclass(frozen=True)
class ModelArguments:
    """A model under one method, as a harness's command line or table of models names it."""

    pretrained: str
    method: str = "mgap"
    prior: str | None = None  # folder or hub repository of what the method needs; None: learnt now, where it can be
    device: str | None = None
    dtype: str = "auto"
    revision: str | None = None
    attention: str | None = None
    device_map: Any = None
    trust_remote_code: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # of the method

    @classmethod
    def of(cls, pretrained: str, given: dict[str, Any]) -> ModelArguments:
        """What is no argument of `mgap.load` is a setting of the method. Raises if the method does not have it."""
        own = {f.name for f in fields(cls)} - {"pretrained", "settings"}
        settings = {key: value for key, value in given.items() if key not in own}
        arguments = cls(pretrained, settings=settings, **{key: value for key, value in given.items() if key in own})
        arguments.plan().refuse_unlearnt(pretrained)
        return arguments

    def plan(self) -> MethodPlan:
        return MethodPlan(self.method, self.method, self.settings).with_settings({"prior": self.prior} if self.prior else {})

    def load(self) -> tuple[Model, Method | None]:
        """The model and its method; None is plain decoding. Raises if they do not suit each other."""
        names = ("device", "dtype", "revision", "attention", "device_map", "trust_remote_code")
        model = load(self.pretrained, **{name: getattr(self, name) for name in names})
        method = build_method(self.plan(), model, Priors())
        if method is not None:
            with model.using(method):
                pass
        return model, method
