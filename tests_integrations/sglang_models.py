"""A tiny language model, a prior of it, and what transformers does with both: the reference for SGLang. Imports no SGLang."""

from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mgap
from mgap.backbones.head import Head
from mgap.backbones.identity import Identity, describe_tensors, named_weights, sample_embedding
from mgap.methods.base import Tap
from mgap.methods.mgap import Correction

WIDTH, VOCAB = 64, 320


def write_model(folder, *, seed=0, tied=False):
    """A model of random weights, large enough that its tokens are not all alike."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, eos_token_id=1, bos_token_id=0,
        tie_word_embeddings=tied,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0 if weight.dim() > 1 else 1.0)
    model.save_pretrained(folder)


def load(folder):
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def write_prior(folder, model_folder, rank=5):
    """A subspace of states that the model has itself, with the model's identity."""
    model = load(model_folder)
    tokens = torch.randint(2, VOCAB, (40, 6), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        states = model.model(tokens).last_hidden_state[:, -1]
    weights, _ = named_weights(model)
    identity = Identity(
        str(model_folder), None, "LlamaForCausalLM", WIDTH, VOCAB, sample_embedding(model.get_input_embeddings()),
        describe_tensors(weights),
    )  # fmt: skip
    replace(mgap.Subspace.from_states(states, rank), identity=identity).save(folder)


def correction(module, prior, **settings):
    """MGAP as transformers models get it, on a head."""
    method = mgap.MGAP(mgap.Subspace.load(prior), **settings)
    head = Head.measure(module, torch.zeros(1, WIDTH, dtype=module.weight.dtype))
    return Correction(method.subspace.basis, head, method.settings, Tap())


@torch.no_grad()
def generate(folder, prompt, length, prior=None, **settings):
    """Greedy tokens of transformers, with MGAP on the head if a prior is given."""
    model = load(folder)
    if prior is not None:
        model.lm_head.register_forward_hook(correction(model.lm_head, prior, **settings))
    tokens = torch.tensor([prompt])
    made = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=length, do_sample=False, eos_token_id=None
    )
    return made[0, len(prompt) :].tolist()
