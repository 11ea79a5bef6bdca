"""Greedy decoding without a cache: one full forward over prompt and answer for every token, all hidden states kept."""

import torch

from mgap.decoding.generate import end_ids


def decode(model, inputs, step, new):
    """Tokens of one row, up to the end or to a placeholder of a picture, which a random model may say but not read.

    `step(states, head, norm)` gives a list of scores from hs[0] .. hs[L] of the last position, in float64.
    """
    own, backbone = model.backbone.model, model.backbone
    weight = backbone.head_module.weight.detach().double()
    scale = backbone.final_norm.weight.detach().double()
    epsilon = backbone.final_norm.variance_epsilon

    def head(state):
        return weight @ state

    def norm(state):  # the root-mean-square norm of both families
        return scale * state / torch.sqrt((state * state).mean() + epsilon)

    inputs, tokens = dict(inputs), []
    for _ in range(new):
        with torch.no_grad():
            hidden = own(**inputs, output_hidden_states=True, use_cache=False).hidden_states
        scores = step([h[0, -1].double() for h in hidden], head, norm)
        best = max(range(len(scores)), key=lambda token: scores[token])
        tokens.append(best)
        if best in {*end_ids(model.backbone), backbone.image_token_id}:
            break
        chosen = torch.tensor([[best]], device=backbone.device)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], chosen], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(chosen)], dim=1)
    return tuple(tokens)


def assert_agrees(model, picture, method, answer, new=12):
    """A method decodes as its reference `answer(inputs, new)` does, over several questions, `new` tokens of one at least."""
    lengths = []
    for question in ("Is there a dog in the image?", "What?", "Describe it.", "How many people are there?", "Which colour?"):
        expected = answer(model.backbone.encode([picture], [question]), new)
        with model.using(method):
            tokens = model.answer(picture, question, max_new_tokens=new).token_ids
        assert tokens[: len(expected)] == expected, question
        lengths.append(len(expected))
    assert max(lengths) == new, f"no question was followed over {new} tokens: {lengths}"
