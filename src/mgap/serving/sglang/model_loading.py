"""Attach MGAP to a model that SGLang has loaded, before its CUDA graphs are captured."""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from torch import nn

from mgap.backbones.identity import Identity
from mgap.errors import UnsupportedHead
from mgap.serving.engine_settings import Serving
from mgap.serving.prior_check import checked_method, loaded_identity
from mgap.serving.sglang.batch_strengths import STRENGTHS_ATTRIBUTE, BatchStrengths
from mgap.serving.sglang.corrected_processor import CorrectedProcessor
from mgap.serving.sglang.server_settings import refuse_server, serving_of

logger = logging.getLogger("sglang.mgap")


def attach_to_runner(runner: Any) -> None:
    """SGLang's model runner has loaded its model: correct its logits, if the server's arguments ask for it."""
    serving = serving_of(runner.server_args)
    if serving is None:
        return
    refuse_server(runner.server_args, None)
    attach_to_model(runner.model, serving, runner.model_config)


def attach_to_model(model: nn.Module, serving: Serving, config: Any) -> list[CorrectedProcessor]:
    """Check the prior against the model and correct its logits from now on. Raises on every rank if this cannot be done."""
    processors, head = find_processors(model), find_lm_head(model)
    method = checked_method(serving, lambda: identity_in_sglang(model, config), logger)
    device = next(model.parameters()).device
    like = torch.zeros(1, method.subspace.hidden_size, dtype=config.dtype, device=device)
    rows = BatchStrengths(method.settings.alpha, device)

    def warn(text: str) -> None:
        logger.warning("MGAP: %s", text)

    made = [CorrectedProcessor(each, head, method, rows, like=like, log=warn) for each in processors]
    for each in made:
        found, wanted = each.corrected.correction.head.vocab_size, each.processor.vocab_size
        if found != wanted:
            raise UnsupportedHead(f"a rank has logits of {found} of {wanted} tokens: MGAP needs all of them, leave mgap out")
    model.__dict__[STRENGTHS_ATTRIBUTE] = rows
    s = method.settings
    logger.warning(  # an offline engine shows warnings only, and this line is how one sees that MGAP is on
        "MGAP on %s: K=%d of %s, alpha=%g, lambda=%g, by %s",
        type(model).__name__, method.subspace.rank, serving.prior, s.alpha, s.lam, made[0].corrected.way,
    )  # fmt: skip
    return made


def find_processors(model: nn.Module) -> list[LogitsProcessor]:
    """The processors of logits in a model; a multimodal model may have one for its language model as well."""
    found = [part for part in model.modules() if isinstance(part, LogitsProcessor)]
    if not found:
        raise UnsupportedHead(f"{type(model).__name__} has no LogitsProcessor: MGAP cannot act on it, leave mgap out")
    for each in found:
        if type(each)._get_logits is not LogitsProcessor._get_logits or each.return_full_logits:
            raise UnsupportedHead(
                f"{type(model).__name__} makes its logits in its own way: MGAP cannot act on it, leave mgap out"
            )
    return found


def find_lm_head(model: nn.Module) -> nn.Module:
    """The one module called `lm_head`; a tied head is the input embedding under that name."""
    named = model.named_modules(remove_duplicate=False)
    found = {id(part): part for name, part in named if name.rpartition(".")[2] == "lm_head"}
    if len(found) != 1:
        raise UnsupportedHead(f"{type(model).__name__} has {len(found)} modules called lm_head, not one: leave mgap out")
    head: nn.Module = next(iter(found.values()))
    return head


def identity_in_sglang(model: nn.Module, config: Any) -> Identity:
    """As `Backbone.identity`."""
    return loaded_identity(
        model,
        VocabParallelEmbedding,
        ParallelLMHead,
        name=config.model_path,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        config=config,
    )
