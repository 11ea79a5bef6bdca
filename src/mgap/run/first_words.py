"""The first word of the greedy answer to many questions, under many methods.

A method at the head needs no forward of its own: the state before the head is kept and goes through the head again, with the
method's hook on. Methods that differ only in strength have the same branch: they share its forward, and each combines the two
logits or moves the state. Any other method decodes by itself. A picture shared by questions of a batch is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace

import torch
from torch import Tensor

from mgap.backbones.asked_rows import Asked, asking
from mgap.backbones.checked_generate import likeliest
from mgap.backbones.head import Head
from mgap.backbones.head_states import catch_states
from mgap.backbones.prepared_pictures import Preparer
from mgap.backbones.shared_vision import shared_pictures
from mgap.decoding.attach import acting, attached
from mgap.decoding.effective_states import StepStates, first_states
from mgap.decoding.generate import generate
from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.io.images import Opener, open_image
from mgap.io.progress import Progress, report_progress
from mgap.methods.base import Method, Seam
from mgap.methods.kinds.blind_branch import BlindMethod
from mgap.methods.kinds.blind_states import OPEN
from mgap.methods.kinds.branch import LogitsMethod
from mgap.methods.kinds.paired_forward import ALONE
from mgap.types import Decoding

Methods = Mapping[str, Method | None]
Row = tuple[Hashable, str]  # a picture's name, or whatever `picture` opens, and the question
Batch = tuple[dict[str, Tensor], int]  # model inputs, and the number of rows so far
Encode = Callable[[Model, Sequence[Row], Opener, int], Iterable[Batch]]  # of rows, in batches of a size
AskedBatch = tuple[dict[str, Tensor], int, list[Asked]]  # and what its rows ask

_ONE = Decoding(max_new_tokens=1)


def encode_rows(model: Model, rows: Sequence[Row], picture: Opener, batch_size: int) -> Iterator[Batch]:
    """Open pictures and encode rows lazily, in batches. A picture is prepared once per batch."""
    prepare = Preparer(model.backbone)
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        pictures = {name: prepare(open_image(picture(name))) for name in {name for name, _ in batch}}
        inputs = model.backbone.encode([pictures[name] for name, _ in batch], [text for _, text in batch])
        yield inputs, start + len(batch)


class CachingEncoder:
    """Encodes as `encode_rows`, and keeps one model's batches for the next method with the same rows: 0.1 MB per row."""

    def __init__(self) -> None:
        self.batches: dict[Hashable, list[Batch]] = {}

    def __call__(self, model: Model, rows: Sequence[Row], picture: Opener, batch_size: int) -> list[Batch]:
        key = picture, tuple(rows), batch_size
        if key not in self.batches:
            self.batches[key] = list(encode_rows(model, rows, picture, batch_size))
        return self.batches[key]


def asked_in(rows: Sequence[Row], picture: Opener, inputs: Mapping[str, Tensor], done: int) -> list[Asked]:
    """What a batch asks, for `asking`: the last of the rows that are done with it."""
    return [Asked.by_name(name, text, picture) for name, text in rows[done - len(inputs["input_ids"]) : done]]


def first_words(
    model: Model,
    questions: Sequence[Row],
    methods: Methods,
    picture: Opener,
    *,
    batch_size: int = 64,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> dict[str, list[str]]:
    """By method, one word per question. Repeated rows are answered once. Order rows by picture, so that each is opened once."""
    refuse_attached(model)
    rows = list(dict.fromkeys(questions))
    at_head = {name: method for name, method in methods.items() if _needs_only_the_state(method)}

    def batches() -> Iterator[AskedBatch]:
        for inputs, done in encode(model, rows, picture, batch_size):
            yield inputs, done, asked_in(rows, picture, inputs, done)

    words = dict(_at_the_head(model, batches(), at_head, len(rows), progress)) if at_head else {}
    for group in _by_branch({name: method for name, method in methods.items() if name not in at_head}):
        if len(group) > 1:
            words.update(_from_one_branch(model, batches(), group, len(rows), progress))
        else:
            ((name, method),) = group.items()
            words[name] = _by_itself(model, batches(), method, len(rows), progress, name)
    answers = {}
    for name in methods:
        by_row = dict(zip(rows, words[name], strict=True))
        answers[name] = [by_row[row] for row in questions]
    return answers


def refuse_attached(model: Model) -> None:
    if active := attached(model.backbone.model):
        raise SettingError(f"{active[0].method.name} is attached to this model: detach it, and name it among the methods")


def using(model: Model, method: Method | None) -> AbstractContextManager[object]:
    """Switch the method on; None does nothing."""
    return nullcontext() if method is None else model.using(method)


def _at_the_head(
    model: Model, batches: Iterable[AskedBatch], methods: Methods, total: int, progress: Progress | None
) -> Iterator[tuple[str, list[str]]]:
    """One forward per row, for all methods."""
    backbone, states = model.backbone, list[Tensor]()
    for inputs, done, _ in batches:
        with catch_states(backbone) as caught, shared_pictures(backbone):
            generate(backbone, inputs, _ONE)  # bit-equal to decoding
        states += caught
        report_progress(progress, "questions", done, total)
    head = backbone.probe_head()
    for name, method in methods.items():
        with using(model, method):
            yield name, _spell(model, [token for state in states for token in _next_tokens(model, head, state)])


def _needs_only_the_state(method: Method | None) -> bool:
    """Whether a method at the head needs nothing but the state; one that looks at the prompt has to decode."""
    return method is None or (method.seam is Seam.HEAD and method.shares_prefill)


def _by_branch(methods: Methods) -> list[dict[str, Method | None]]:
    """Group methods with the same branch; every other method is alone in its group."""
    groups: dict[Hashable, dict[str, Method | None]] = {}
    for name, method in methods.items():
        key: Hashable = name
        if isinstance(method, BlindMethod):  # its first blind state depends on the null image alone
            key = BlindMethod, method.null_image
        elif isinstance(method, LogitsMethod) and method.has_state and method.is_set_by_strength:
            others = ((f.name, getattr(method, f.name)) for f in fields(method) if f.name != method.moved_by)
            key = (
                type(method),
                *((label, value if isinstance(value, str | int | float) else id(value)) for label, value in others),
            )
        groups.setdefault(key, {})[name] = method
    return list(groups.values())


def _from_one_branch(
    model: Model, batches: Iterable[AskedBatch], methods: Methods, total: int, progress: Progress | None
) -> dict[str, list[str]]:
    """One forward of the rows and one of the branch, for all methods."""
    tokens: dict[str, list[int]] = {name: [] for name in methods}
    first, *_ = methods
    representative = methods[first]
    if isinstance(representative, BlindMethod):  # its own settings may skip what the others need
        representative = replace(representative, unsure=0.0, branch_mode="batched")
    with first_states(model, representative) as read:
        for inputs, done, asked in batches:
            with asking(model.backbone.model, asked):
                states = read(inputs)
            for name, method in methods.items():
                tokens[name] += _combine(states, method)
            report_progress(progress, f"questions, {first} and {len(methods) - 1} more", done, total)
    return {name: _spell(model, ids) for name, ids in tokens.items()}


def _combine(step: StepStates, method: Method | None) -> list[int]:
    """The likeliest tokens of a method, from the states of the rows and of a branch that methods share."""
    if isinstance(method, BlindMethod):
        with torch.no_grad():
            is_open = method.is_open(step.head.post(step.head.product(step.h))).to(step.h)
            opened = replace(step.inputs, values={**step.inputs.values, OPEN: is_open})
            moved = method.effective_states(step.head, opened, method.rho)
            moved_tokens: list[int] = likeliest(step.head.post(step.head.product(moved)), method.name).tolist()
        return moved_tokens
    states = torch.cat([step.h, *step.branches]).unsqueeze(1)  # [rows, 1, d], as decoding hands them to the head
    with torch.no_grad():
        logits = step.head.post(step.head.product(states))[:, -1]  # [rows, vocab]
    main, *branches = logits.chunk(1 + len(step.branches))
    kept = dict(step.inputs.values)  # a method traces what it needs of a row
    scores, _ = method.weigh(main, branches, 1, kept)  # type: ignore[union-attr]  # of branch methods only
    if ALONE in step.inputs.values:
        scores = torch.where(step.inputs.values[ALONE].bool().unsqueeze(-1), main, scores)
    tokens: list[int] = likeliest(scores, method.name).tolist()  # type: ignore[union-attr]
    return tokens


def _by_itself(
    model: Model, batches: Iterable[AskedBatch], method: Method | None, total: int, progress: Progress | None, name: str
) -> list[str]:
    tokens: list[int] = []
    with using(model, method), shared_pictures(model.backbone):
        for inputs, done, asked in batches:
            with asking(model.backbone.model, asked):
                tokens += generate(model.backbone, inputs, _ONE).tokens[:, 0].tolist()
            report_progress(progress, f"questions, {name}", done, total)
    return _spell(model, tokens)


def _next_tokens(model: Model, head: Head, states: Tensor) -> Iterator[int]:
    """The likeliest token after each state [B, d]. Calls the head as decoding does, with its hooks."""
    with torch.no_grad():
        logits = head.post(head.module(states.unsqueeze(1)))  # [B, 1, vocab]
    yield from likeliest(logits[:, -1].float(), acting(model.backbone.model), model=model.backbone.model).tolist()


def _spell(model: Model, tokens: list[int]) -> list[str]:
    return [model.backbone.tokenizer.decode([token], skip_special_tokens=True).strip() for token in tokens]
