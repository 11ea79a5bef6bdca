"""The head's product in float32 where the model computes it in 16 bits, so that two tokens are not equal by rounding alone.

bfloat16 keeps 8 bits: logits near 20 are multiples of 1/8. A method's correction moves some of them by less than that, so which
answers change would depend on where rounding fell. Here the 16-bit weights are multiplied as they are and summed in float32.

On a CUDA device that is one product, which reads the weights once as the model does: a state in float32 becomes three rows
of 16 bits that add up to it. Elsewhere the weights are widened, a few thousand rows at a time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_ROWS = 8192  # weight rows widened at a time


def exact_product(weight: Tensor, bias: Tensor | None, h: Tensor) -> Tensor:
    """h W' + b [..., vocab] for states [..., d] and weights [vocab, d]: in float32, or the weights' dtype if that is wider."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    if weight.dtype == wide:
        return F.linear(h.to(weight), weight, bias)
    rows = h.to(weight.device).reshape(-1, h.shape[-1])  # [n, d]
    if weight.is_cuda and not _needs_grad(weight, rows):
        parts = rows.unsqueeze(0) if rows.dtype == weight.dtype else split_states(rows, weight.dtype)  # [1 or 3, n, d]
        product = torch.mm(parts.flatten(0, 1), weight.T, out_dtype=wide).unflatten(0, parts.shape[:2]).sum(0)
    else:
        product = torch.cat([rows.to(wide) @ part.to(wide).T for part in weight.split(_ROWS)], dim=-1)
    product = product if bias is None else product + bias.to(wide)
    logits: Tensor = product.view(*h.shape[:-1], len(weight))
    return logits


def split_states(h: Tensor, dtype: torch.dtype) -> Tensor:
    """States [n, d] as three 16-bit ones [3, n, d] that add up to them, to the last bit of float32."""
    parts, rest = [], h.float()
    for _ in range(3):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].float()
    return torch.stack(parts)


def _needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def storage_of(module: Any) -> str:
    """How a head's weights are stored: "float" for a plain linear layer, else the name of a quantised or adapter class."""
    if hasattr(module, "base_layer"):  # the convention of adapter libraries
        return f"{type(module).__name__} on {storage_of(module.base_layer)}"
    if type(module) is not nn.Linear:
        return type(module).__name__
    plain = type(module.weight) in (nn.Parameter, Tensor) and module.weight.is_floating_point()
    if plain and module.weight.is_meta:  # accelerate brings them for the length of a forward
        return "offloaded"
    return "float" if plain else type(module.weight).__name__


def why_rounded(module: Any) -> str:
    """Why a 16-bit head can only be used with its own rounding, in a few words; "" if its product can be exact, or is."""
    stored = storage_of(module)
    return "" if stored == "float" else f"its weights are {stored}"


def make_exact(module: nn.Module) -> None:
    """Let a 16-bit head return float32 from now on. Does nothing to another head, nor if it does so already.

    Sets `forward` on the object, inside whatever accelerate has put around it to move states between devices.
    """
    if why_rounded(module) or module.weight.dtype not in (torch.bfloat16, torch.float16) or is_exact(module):
        return
    name, inner = _place(module)
    module.__dict__[name] = ExactForward(module, inner)


def make_own(module: nn.Module) -> None:
    """Undo `make_exact`."""
    if is_exact(module):
        name, exact = _place(module)
        if exact.before is None:
            del module.__dict__[name]
        else:
            module.__dict__[name] = exact.before


def is_exact(module: nn.Module) -> bool:
    return isinstance(_place(module)[1], ExactForward)


def own_forward(module: nn.Module, h: Tensor) -> Tensor:
    """The head's own forward, rounded as the model rounds, also while `make_exact` is on."""
    if isinstance(module, nn.Linear) and is_exact(module):
        return nn.Linear.forward(module, h.to(module.weight.device))
    output: Tensor = module.forward(h)
    return output


class ExactForward(partial[Tensor]):
    """What `make_exact` puts in the place of a head's forward."""

    before: Any  # what was set on the object, or None

    def __new__(cls, module: Any, before: Any) -> ExactForward:
        self = super().__new__(cls, exact_forward, module)
        self.before = before
        return self


def exact_forward(module: Any, h: Tensor) -> Tensor:
    return exact_product(module.weight, module.bias, h)


def _place(module: nn.Module) -> tuple[str, Any]:
    """Where the head's forward is set on the object, and what is set there; None: the class's."""
    name = "_old_forward" if "_old_forward" in module.__dict__ else "forward"
    return name, module.__dict__.get(name)
