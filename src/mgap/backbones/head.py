"""The output head, measured rather than read from the configuration.

What a model does between the head's input and its logits differs by class and by version: a bias, a scale, a soft cap, an
adapter, quantised weights or activations. `Head.probe` feeds in known values and looks at what comes out. It assumes nothing,
and it notices a head that is never called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from mgap.backbones.exact_product import exact_product, own_forward, split_states, storage_of
from mgap.errors import UnsupportedHead

_UNITS = 64  # unit vectors multiplied with the whole vocabulary at a time


@dataclass(frozen=True)
class Head:
    """logits = post(module(h)), with post(z) = cap * tanh(scale * z / cap), or scale * z without a cap."""

    module: nn.Module
    hidden_size: int
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    bias: Tensor | None  # [vocab] in `wide`, or None
    linear: bool  # module(a + b) = module(a) + module(b) up to rounding (and bias)
    scale: float
    cap: float | None
    tied: bool  # shares its weight with the input embedding
    weights: str  # how they are stored: "float", or the name of a quantised or adapter class

    @property
    def wide(self) -> torch.dtype:
        """The dtype to compute in: float32, or the model's dtype if that is wider."""
        return torch.promote_types(self.dtype, torch.float32)

    def post(self, z: Tensor) -> Tensor:
        """Apply the model's scale and soft cap to the head's output [..., vocab]; gives the logits."""
        z = z if self.scale == 1.0 else z * self.scale
        return z if self.cap is None else self.cap * torch.tanh(z / self.cap)

    def unpost(self, logits: Tensor) -> Tensor:
        """The inverse of `post`, for methods that set logits at the head instead of changing its input."""
        if self.cap is not None:
            raise UnsupportedHead(
                f"the model caps its logits at {self.cap:g} after the head, so logits cannot be set there: "
                "use a method that changes the head's input, such as mgap"
            )
        return logits if self.scale == 1.0 else logits / self.scale

    def product(self, h: Tensor) -> Tensor:
        """The head's product [..., d] -> [..., vocab] in `wide`, without its hooks: what methods combine.

        Plain float weights are multiplied without the model's rounding; of any other head, this is the head's own output.
        """
        if self.weights != "float":
            return self.own_product(h).to(self.wide)
        return exact_product(cast(Tensor, self.module.weight), cast("Tensor | None", self.module.bias), h)

    def own_product(self, h: Tensor) -> Tensor:
        """The same as the model computes it for plain decoding, in its dtype."""
        return own_forward(self.module, h.to(self.dtype))

    def table(self, basis: Tensor) -> Tensor:
        """W V as [K, vocab] in `wide`, for a basis [d, K]; packed weights and adapters compute it by their module."""
        rows = basis.T.to(self.device, self.wide).contiguous()  # [K, d]
        is_rounded = self.weights != "float" and self.dtype != self.wide
        parts = split_states(rows, self.dtype) if is_rounded else rows.unsqueeze(0)  # [3 or 1, K, d]
        with torch.no_grad():
            products = self.product(parts)  # [3 or 1, K, vocab]
        return (products if self.bias is None else products - self.bias).sum(0)

    def rows(self, tokens: Sequence[int]) -> Tensor:
        """W[tokens] as [n, d] in `wide`; packed weights are recovered with unit vectors, a few at a time."""
        if self.weights == "float":
            return cast(Tensor, self.module.weight)[list(tokens)].detach().to(self.wide)
        units = torch.eye(self.hidden_size).split(_UNITS, dim=1)
        return torch.cat([self.table(part)[:, list(tokens)] for part in units]).T

    @classmethod
    def probe(cls, model: nn.Module) -> Head:
        """Measure the head of a transformers model: one forward of one token and four products."""
        module = find_head(model)
        state, scale, cap = _probe_post(model, module)
        embedding = getattr(model, "get_input_embeddings", lambda: None)()
        weight = getattr(module, "weight", None)
        tied = weight is not None and weight is getattr(embedding, "weight", None)
        return cls.measure(module, state, scale=scale, cap=cap, tied=tied)

    @classmethod
    def measure(
        cls, module: nn.Module, state: Tensor, *, scale: float = 1.0, cap: float | None = None, tied: bool = False
    ) -> Head:
        """Measure a bare head module, given any state [..., d] that it can read."""
        with torch.no_grad():
            bias = module.forward(torch.zeros_like(state.flatten(0, -2)[:1]))[0]  # [vocab]: the output for a zero state
        bias = bias.to(torch.promote_types(bias.dtype, torch.float32))
        if not bias.isfinite().any():
            raise UnsupportedHead(
                "the model's head gives nothing but NaN and infinite logits, so no token is likelier than another: "
                "load the model with dtype float32, or fetch its checkpoint again"
            )
        return cls(
            module=module,
            hidden_size=state.shape[-1],
            vocab_size=len(bias),
            dtype=state.dtype,
            device=bias.device,
            bias=bias if bool(bias.any()) else None,
            linear=_is_linear(module, state, bias),
            scale=scale,
            cap=cap,
            tied=tied,
            weights=storage_of(module),
        )


def find_head(model: nn.Module) -> nn.Module:
    getter = getattr(model, "get_output_embeddings", None)
    module = getter() if getter is not None else None
    if not isinstance(module, nn.Module):
        raise UnsupportedHead(
            f"{type(model).__name__} has no output head (get_output_embeddings() gives {module!r}): "
            "pass the model class that generates text"
        )
    return module


def _probe_post(model: nn.Module, module: nn.Module) -> tuple[Tensor, float, float | None]:
    """Replace the head's output by a known ramp and fit scale and cap to the model's logits."""
    states: list[Tensor] = []
    ramps: list[Tensor] = []

    def replace(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        states.append(args[0])
        ramps.append(ramp(output.shape[-1]).to(output).expand_as(output).clone())
        return ramps[-1].clone()  # some models mask tokens in place

    handle = module.register_forward_hook(replace)
    try:
        with torch.no_grad():
            logits = model(**_one_token(model), use_cache=False).logits
    finally:
        handle.remove()
    if len(states) != 1:
        raise UnsupportedHead(
            f"{type(model).__name__} called its head {len(states)} times for one token instead of once: "
            "its logits cannot be corrected there"
        )
    eps = torch.finfo(states[0].dtype).eps
    return states[0], *measure_post(ramps[0], logits, eps, type(model).__name__)


def ramp(width: int) -> Tensor:
    """Known values [width] to put in place of a head's output, which show what is done to it afterwards."""
    steps = 2.0 ** torch.arange(-6, 14)  # 1/64 .. 8192: small slope and saturation
    steps = torch.cat([steps, -steps])
    return steps.repeat(width // len(steps) + 1)[:width]


def measure_post(ramp: Tensor, logits: Tensor, eps: float, model: str) -> tuple[float, float | None]:
    """Scale and soft cap that turn a ramp in place of the head's output into these logits; refuses anything else."""
    z, out = ramp.double().flatten(), logits.double().flatten()
    scale, cap = _fit_post(z, out, eps)
    model_of_post = scale * z if cap is None else cap * torch.tanh(scale * z / cap)
    if out.shape != z.shape or not torch.allclose(out, model_of_post, rtol=4 * eps, atol=0):
        raise UnsupportedHead(f"{model} changes its logits after the head in a way that is neither a scale nor a soft cap")
    return scale, cap


def _fit_post(z: Tensor, out: Tensor, eps: float) -> tuple[float, float | None]:
    if out.shape != z.shape or len(z) < 20:
        return 1.0, None  # the caller compares and refuses
    scale = float(out[0] / z[0])  # slope at 1/64
    top = float(out[19])  # at 8192
    cap = top if abs(top) < 0.5 * abs(scale * float(z[19])) else None
    if cap is not None:
        scale = float(cap * torch.atanh(out[0] / cap) / z[0])  # the slope at 0: tanh bends at 1/64 already
    return (1.0 if abs(scale - 1) < 2 * eps else scale), cap


def _one_token(model: nn.Module) -> dict[str, Tensor]:
    config: Any = getattr(model, "config", None)
    text = config.get_text_config()
    images = {getattr(config, name, None) for name in ("image_token_id", "image_token_index", "video_token_id")}
    candidates = [getattr(text, "eos_token_id", None), getattr(text, "bos_token_id", None), 0, 1, 2, 3, 4]  # ids may be None
    flat = [i for entry in candidates for i in (entry if isinstance(entry, list) else [entry])]
    token = next(i for i in flat if i is not None and i not in images)
    device = next(model.parameters()).device
    ids = torch.tensor([[token]], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _is_linear(module: nn.Module, state: Tensor, bias: Tensor) -> bool:
    """Test additivity on vectors with disjoint supports, whose sum is exact in any dtype: only outputs are rounded.

    Rounding alone leaves a root-mean-square error well under one eps; quantised activations leave about one percent.
    """
    total = torch.randn(8, state.shape[-1], generator=torch.Generator().manual_seed(0)).to(state)
    even = total.clone()
    even[:, 1::2] = 0
    with torch.no_grad():
        f_total, f_even, f_odd = (module.forward(x).double() - bias for x in (total, even, total - even))
    error = (f_total - f_even - f_odd).square().mean().sqrt()
    return bool(error <= max(torch.finfo(state.dtype).eps, 1e-5) * f_total.square().mean().sqrt())
