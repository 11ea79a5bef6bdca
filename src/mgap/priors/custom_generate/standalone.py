"""MGAP inside `model.generate(custom_generate=..., trust_remote_code=True)`, for machines without the package mgap.

At every token the head's input h loses part of what lies in the prior subspace V (arXiv 2606.09859, section 4.2):

    h_cut = h - beta V V'h,   beta = alpha tanh(lam H) (1 - cos(h, V V'h)),   H: entropy of the plain prediction

The head is linear, so its logits are corrected: W h - beta (W V)(V'h), in float32, also for a model in 16 bits. `prior_data.py`
beside this file holds V and the description of the model it was fitted on; another model is refused.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional as F

from .prior_data import MODEL, TENSORS  # type: ignore[import-not-found,unused-ignore]

ROWS = 8192  # weight rows that are widened to float32 at a time
CLOSE = 2**-6  # two loadings of one weight differ by less: bfloat16 rounds by up to 2**-9
WRAPPERS = {"model", "language_model", "vision_model", "_orig_mod"}  # parts of names that some versions add


def generate(
    model: Any,
    *,
    alpha: float = 0.75,
    lam: float = 0.5,
    rank: int | None = None,
    gate: bool = True,
    protect: bool = True,
    revision: str | None = None,  # noqa: ARG001
    **kwargs: Any,
) -> Any:
    """`model.generate(**kwargs)` with MGAP at the head: every decoding mode, one forward a token.

    `rank` takes the first directions only; `gate=False` and `protect=False` leave tanh(lam H) and 1 - cos out. `revision` is
    read by transformers, where it loads this file.
    """
    for name, value in (("alpha", alpha), ("lam", lam)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{name}={value!r} must be a number of at least 0")
    for name, value in (("gate", gate), ("protect", protect)):
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r} must be True or False")
    refuse_other_model(model)
    head, basis = linear_head(model), load(base64.b64decode(TENSORS))["basis"]
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= basis.shape[1]):
        raise ValueError(f"rank={rank!r} is not between 1 and {basis.shape[1]}, the rank of this prior")
    if alpha == 0:
        return model.generate(**kwargs)
    wide = torch.promote_types(head.weight.dtype, torch.float32)
    basis = basis[:, :rank].to(head.weight.device, wide)  # [d, K]
    table = exact_product(head.weight, None, basis.T.contiguous())  # [K, vocab]
    latest: list[Tensor] = []

    def correct(_head: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> Tensor:
        h = args[0].to(head.weight.device)
        logits, h = exact_product(head.weight, head.bias, h), h.to(wide)  # [B, T, vocab], [B, T, d]
        coeff, norm = h @ basis, torch.linalg.vector_norm(h, dim=-1)
        cosine = torch.where(norm > 0, torch.linalg.vector_norm(coeff, dim=-1) / norm, 0.0).clamp(max=1.0)
        beta = alpha * (1 - cosine) if protect else torch.full_like(cosine, alpha)  # [B, T]
        if gate:
            beta = beta * torch.tanh(lam * torch.special.entr(logits.softmax(-1)).sum(-1))
        latest[:] = [logits - (beta.unsqueeze(-1) * coeff) @ table]
        return latest[0]

    def refuse_changed_logits(_model: nn.Module, _args: Any, out: Any) -> None:
        watch.remove()  # the first forward tells
        if latest and not torch.equal(out.logits.to(wide), latest[0].to(out.logits.device)):
            raise ValueError(
                f"{type(model).__name__} changes its logits after the head (a scale or a soft cap), which this file does not "
                "follow: use the package mgap, which does"
            )

    handle, watch = head.register_forward_hook(correct), model.register_forward_hook(refuse_changed_logits)
    try:
        with torch.compiler.set_stance("force_eager"):  # a graph compiled before would run without the hook, and say nothing
            return model.generate(**kwargs)
    finally:
        handle.remove()
        watch.remove()


def linear_head(model: Any) -> Any:
    """The output head; refuses one that is not a plain linear layer with its weights in place."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or not is_plain(head.weight):
        raise ValueError(
            f"the head of this model is {type(head).__name__}, with weights that are packed, adapted or elsewhere: use the "
            "package mgap, which measures such heads, or load the model without quantising its head"
        )
    return head


def exact_product(weight: Tensor, bias: Tensor | None, h: Tensor) -> Tensor:
    """h W' + b in float32, of 16-bit weights as they are: otherwise small corrections would be rounded away."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    if weight.dtype == wide:
        return F.linear(h.to(weight), weight, bias)
    if weight.is_cuda and h.dtype == weight.dtype:
        rows = h.reshape(-1, h.shape[-1])  # [n, d]
        product = torch.mm(rows, weight.T, out_dtype=wide).view(*h.shape[:-1], len(weight))
    else:
        product = torch.cat([h.to(wide) @ part.to(wide).T for part in weight.split(ROWS)], dim=-1)
    return product if bias is None else product + bias.to(wide)


def refuse_other_model(model: Any) -> None:
    """Raise unless class, sizes and a few numbers of every weight are those of the model that the prior was fitted on."""
    embedding = model.get_input_embeddings().weight
    facts = {
        "architecture": type(model).__name__,
        "hidden_size": model.config.get_text_config().hidden_size,
        "vocab_size": len(embedding),
    }
    differs = [f"{name} is {MODEL[name]} there and {value} here" for name, value in facts.items() if MODEL[name] != value]
    if not differs:
        weights, is_partial = named_weights(model)
        is_partial = is_partial or MODEL["is_partial"]
        there, here = MODEL["tensors"], describe(weights)
        differs = [name for name in {**there, **here} if not is_same(there.get(name), here.get(name), is_partial)]
        differs = [f"the weights differ, such as {name}" for name in differs[:1]]
    if differs:
        raise ValueError(f"this prior was fitted on {MODEL['name']}, not on the model at hand: {differs[0]}; fit one for it")


def named_weights(model: Any) -> tuple[dict[str, Tensor], bool]:
    """The weights that hold plain numbers, by a name that no version changes; and whether the model has others."""
    weights: dict[str, Tensor] = {}
    has_others = getattr(model.config, "quantization_config", None) is not None
    for name, weight in model.named_parameters():
        if is_plain(weight):
            short = ".".join(part for part in name.split(".") if part not in WRAPPERS)
            weights[name if short in weights else short] = weight.detach()
        else:
            has_others = True
    return weights, has_others


def is_plain(weight: Tensor) -> bool:
    """Whether a tensor's elements are the weights themselves: neither packed nor elsewhere."""
    is_float = type(weight) is nn.Parameter and weight.is_floating_point() and weight.element_size() > 1
    return is_float and not weight.is_meta and weight.numel() > 0


def describe(weights: dict[str, Tensor]) -> dict[str, tuple[str, list[float]]]:
    """Of each weight its shape, the root mean square of 64 of its values, and the means of 16 of them each."""
    described = {}
    for name, weight in weights.items():
        places = torch.arange(64) * (weight.numel() - 1) // 63
        values = torch.take(weight, places.to(weight.device)).double().cpu()
        rms, means = values.square().mean().sqrt(), values.view(4, 16).mean(-1)
        described[name] = ("x".join(map(str, weight.shape)) or "1", [float(rms), *means.tolist()])
    return described


def is_same(there: str | None, here: tuple[str, list[float]] | None, is_partial: bool) -> bool:
    """Whether a description in `prior_data.py` is of this weight; a model with packed weights may lack some."""
    if there is None or here is None or there.split()[0] != here[0]:
        return is_partial
    numbers, own = [float(number) for number in there.split()[1:]], here[1]
    allowed = CLOSE * max(numbers[0], own[0]) + 1e-6
    return all(abs(a - b) <= allowed for a, b in zip(numbers, own, strict=True)) and math.isfinite(allowed)
