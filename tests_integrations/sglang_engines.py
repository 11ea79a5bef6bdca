"""Whole engines of SGLang, with their scheduler in a process of its own; called by name from the tests."""

import json

from sglang import Engine
from sglang_parts import CPU

running = []  # one at a time


def start(model, settings=None, **more):
    """Start an engine; says what it is refused with, and nothing if it is there."""
    override = {} if settings is None else {"json_model_override_args": json.dumps({"mgap": settings})}
    try:
        running.append(Engine(model_path=model, **{**CPU, "skip_server_warmup": True, **override, **more}))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def generate(prompts, params):
    """The tokens of requests that are sent together; or what they are refused with."""
    greedy = {"temperature": 0, "ignore_eos": True}
    try:
        made = running[0].generate(input_ids=prompts, sampling_params=[{**greedy, **each} for each in params])
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return [each["output_ids"] for each in made]


def update_weights(folder):
    """What new weights for the engine are answered with."""
    return list(running[0].update_weights_from_disk(folder))[:2]


def close():
    running.pop().shutdown()
