"""Text models of random weights, for what the pocket models do not have: a draft model, and logits under a soft cap."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import mgap
from mgap.backbones.head import Head
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction

ASKED = 10  # prompts
TOKENS = 24  # of an answer; nothing ends one earlier
VOCAB = 392
LAM = 0.5
KINDS = ("llama", "gemma2")
SETTINGS: dict[str, Any] = {"skip_tokenizer_init": True, "limit_mm_per_prompt": {}}  # of an engine: tokens in, tokens out
DRAFTS = 3  # tokens drafted at a time
ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")  # of every layer, by an adapter
ADAPTER_RANK = 4


class Text:
    """One text model in transformers, a prior of its width, prompts, and its answers at any strength; as `worlds.World`."""

    def __init__(self, family: str, work: Path) -> None:
        self.family = family
        torch.manual_seed(0)
        self.model = _model(family).eval()
        self.folder, self.prior = work / f"text-{family}", work / f"prior-{family}"
        self.model.save_pretrained(self.folder)
        draw = torch.Generator().manual_seed(1)
        self.subspace = mgap.Subspace.from_states(torch.randn(50, self.model.config.hidden_size, generator=draw))
        self.subspace.save(self.prior)
        self.asked = [torch.randint(3, VOCAB, (12 + number,), generator=draw).tolist() for number in range(ASKED)]
        self.answers = cache(self._answers)

    def requests(self, **sampling: Any) -> list[dict[str, Any]]:
        """The prompts as engines.py's `generate` takes them."""
        options = {"max_tokens": TOKENS, "ignore_eos": True, "detokenize": False, **sampling}
        return [{"tokens": tokens, "sampling": options} for tokens in self.asked]

    def drafted(self) -> dict[str, Any]:
        """Settings of an engine in which the model drafts for itself."""
        return {"speculative_config": {"method": "draft_model", "model": str(self.folder), "num_speculative_tokens": DRAFTS}}

    def adapted(self) -> tuple[str, "Text"]:
        """A folder with a random adapter (LoRA), and this text model with it merged into the weights."""
        merged, folder = copy.copy(self), self.folder.parent / f"adapter-{self.family}"
        merged.model, merged.answers = copy.deepcopy(self.model), cache(merged._answers)
        draw, weights = torch.Generator().manual_seed(2), {}
        with torch.no_grad():
            for name, module in merged.model.named_modules():
                if name.endswith(ADAPTED):
                    rows, columns = module.weight.shape
                    first = 0.3 * torch.randn(ADAPTER_RANK, columns, generator=draw)  # A
                    second = 0.3 * torch.randn(rows, ADAPTER_RANK, generator=draw)  # B
                    module.weight += second @ first
                    weights |= {f"{name}.lora_A.weight": first, f"{name}.lora_B.weight": second}
        folder.mkdir(exist_ok=True)
        save_file({f"base_model.model.{name}": each for name, each in weights.items()}, folder / "adapter_model.safetensors")
        about = {"peft_type": "LORA", "r": ADAPTER_RANK, "lora_alpha": ADAPTER_RANK, "task_type": "CAUSAL_LM", "bias": "none"}
        names = [name.rpartition(".")[2] for name in ADAPTED]
        (folder / "adapter_config.json").write_text(json.dumps({**about, "target_modules": names}))
        return str(folder), merged

    def _answers(self, alpha: float | None = None) -> list[list[int]]:
        """Tokens of transformers' greedy answers: plain (None), or with MGAP as the head's hook."""
        if alpha is None:
            return [self._answer(tokens) for tokens in self.asked]
        head = Head.probe(self.model)
        settings = mgap.MGAP(self.subspace, alpha=alpha, lam=LAM).settings
        handle = head.module.register_forward_hook(Correction(self.subspace.basis, head, settings, Tap()))
        try:
            return self._answers()
        finally:
            handle.remove()

    def _answer(self, tokens: list[int]) -> list[int]:
        asked = torch.tensor([tokens])
        made = self.model.generate(
            asked, attention_mask=torch.ones_like(asked), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
        return list(made[0, len(tokens) :].tolist())


def _model(family: str) -> Any:
    import transformers

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,  # wide enough for answers that are not one token over and over
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if family == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    capped = {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 32}
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**shape, **capped))
    model.set_attn_implementation("eager")  # transformers' fused attention passes by the cap of the scores; vLLM's does not
    with torch.no_grad():  # its embedding is its head: where layers add little, it repeats what it reads
        for name, weight in model.named_parameters():
            if "layers" in name and "post_" in name:
                weight.fill_(4.0)
    return model
