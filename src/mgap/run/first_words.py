"""The first word of greedy answers to many questions, under many methods.

A method at the head costs no forward of its own: the head's input is kept and goes through the head again under the method's
hook. Methods that differ only in strength have the same branch and share one forward of it; each combines the logits of both,
or moves the state by both. Any other method decodes by itself. A picture with several questions in a batch is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from mgap.backbones.head import Head
from mgap.backbones.head_states import catch_states
from mgap.backbones.prepared_pictures import Preparer
from mgap.backbones.shared_vision import shared_pictures
from mgap.decoding.attach import attached
from mgap.decoding.effective_states import StepStates, first_states
from mgap.decoding.generate import generate
from mgap.decoding.model import Model
from mgap.errors import SettingError
from mgap.io.images import ImageSource, open_image
from mgap.io.progress import Progress, report_progress
from mgap.methods.base import Method, Seam
from mgap.methods.kinds.blind_branch import BlindMethod
from mgap.methods.kinds.blind_states import OPEN
from mgap.methods.kinds.branch import BranchMethod
from mgap.methods.kinds.paired_forward import ALONE
from mgap.types import Decoding

Methods = Mapping[str, Method | None]
Row = tuple[Any, str]  # a picture's name, or what else `Encoder.picture` opens, and the question about it
Batch = tuple[dict[str, Tensor], int]  # encoded rows, and how many rows are done after them

_ONE_TOKEN = Decoding(max_new_tokens=1)


@dataclass(frozen=True)
class Encoder:
    """Opens pictures and encodes rows in batches, lazily. A picture is prepared once for all its rows in a batch."""

    picture: Callable[[Any], ImageSource]  # maps the first part of a row to its picture

    def __call__(self, model: Model, rows: Sequence[Row], batch_size: int) -> Iterable[Batch]:
        prepare = Preparer(model.backbone)
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            pictures = {name: prepare(open_image(self.picture(name))) for name in {name for name, _ in batch}}
            inputs = model.backbone.encode([pictures[name] for name, _ in batch], [text for _, text in batch])
            yield inputs, start + len(batch)


@dataclass(frozen=True)
class CachingEncoder(Encoder):
    """Keeps one model's batches for other methods that ask the same rows: about a tenth of a megabyte per row."""

    batches: dict[Hashable, list[Batch]] = field(default_factory=dict)

    def __call__(self, model: Model, rows: Sequence[Row], batch_size: int) -> list[Batch]:
        key = tuple(rows), batch_size
        if key not in self.batches:
            self.batches[key] = list(super().__call__(model, rows, batch_size))
        return self.batches[key]


def first_words(
    model: Model,
    questions: Sequence[Row],
    methods: Methods,
    encode: Encoder,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> dict[str, list[str]]:
    """One word per question, by method. Duplicate rows are answered once; sort by picture to open each once."""
    refuse_attached(model)
    rows = list(dict.fromkeys(questions))
    at_head = {name: method for name, method in methods.items() if _needs_only_the_state(method)}

    def batches() -> Iterable[Batch]:
        return encode(model, rows, batch_size)

    words = dict(_at_head(model, batches(), at_head, len(rows), progress)) if at_head else {}
    for group in _group_by_branch({name: method for name, method in methods.items() if name not in at_head}):
        if len(group) > 1:
            words.update(_from_one_branch(model, batches(), group, len(rows), progress))
        else:
            ((name, method),) = group.items()
            words[name] = _decode(model, batches(), method, len(rows), progress, name)
    by_row = {name: dict(zip(rows, words[name], strict=True)) for name in methods}
    return {name: [word_of[row] for row in questions] for name, word_of in by_row.items()}


def refuse_attached(model: Model) -> None:
    if active := attached(model.backbone.model):
        raise SettingError(f"{active[0].method.name} is attached to this model: detach it, and name it among the methods")


def using(model: Model, method: Method | None) -> AbstractContextManager[object]:
    """Attach the method inside the block; None attaches nothing."""
    return nullcontext() if method is None else model.using(method)


def _at_head(
    model: Model, batches: Iterable[Batch], methods: Methods, total: int, progress: Progress | None
) -> Iterator[tuple[str, list[str]]]:
    """One forward per row for all methods."""
    backbone, states = model.backbone, list[Tensor]()
    for inputs, done in batches:
        with catch_states(backbone) as caught, shared_pictures(backbone):
            generate(backbone, inputs, _ONE_TOKEN)  # bit-equal to decoding
        states += caught
        report_progress(progress, "questions", done, total)
    head = backbone.probe_head()
    for name, method in methods.items():
        with using(model, method):
            yield name, _spell(model, [token for state in states for token in _next_tokens(head, state)])


def _needs_only_the_state(method: Method | None) -> bool:
    """Whether it acts at the head alone; a method that looks at the prompt has to decode."""
    return method is None or (method.seam is Seam.HEAD and method.shares_prefill)


def _group_by_branch(methods: Methods) -> list[dict[str, Method | None]]:
    """Groups of methods with the same branch; every other method is a group of one."""
    groups: dict[Hashable, dict[str, Method | None]] = {}
    for name, method in methods.items():
        key: Hashable = name
        if isinstance(method, BlindMethod):  # its first blind state depends on the null image alone
            key = BlindMethod, method.null_image
        elif isinstance(method, BranchMethod) and method.has_state and method.is_set_by_strength:
            others = ((f.name, getattr(method, f.name)) for f in fields(method) if f.name != method.moved_by)
            key = (
                type(method),
                *((label, value if isinstance(value, str | int | float) else id(value)) for label, value in others),
            )
        groups.setdefault(key, {})[name] = method
    return list(groups.values())


def _from_one_branch(
    model: Model, batches: Iterable[Batch], methods: Methods, total: int, progress: Progress | None
) -> dict[str, list[str]]:
    """One forward of the rows and one of the branch for all methods."""
    tokens: dict[str, list[int]] = {name: [] for name in methods}
    first, *_ = methods
    reader = methods[first]
    if isinstance(reader, BlindMethod):  # read the branch of every row: other methods may need it where this one does not
        reader = replace(reader, unsure=0.0, branch_mode="batched")
    with first_states(model, reader) as read:
        for inputs, done in batches:
            states = read(inputs)
            for name, method in methods.items():
                tokens[name] += _combine(states, method)
            report_progress(progress, f"questions, {first} and {len(methods) - 1} more", done, total)
    return {name: _spell(model, ids) for name, ids in tokens.items()}


def _combine(read: StepStates, method: Method | None) -> list[int]:
    """A method's likeliest tokens, from the head inputs of the rows and of a branch read at another strength."""
    if isinstance(method, BlindMethod):
        with torch.no_grad():
            is_open = method.is_open(read.head.post(read.head.product(read.h)).float()).to(read.h)
            inputs = replace(read.inputs, values={**read.inputs.values, OPEN: is_open})
            moved = method.effective_states(read.head, inputs, method.rho)
            blind_tokens: list[int] = read.head.post(read.head.product(moved)).float().argmax(-1).tolist()
        return blind_tokens
    states = torch.cat([read.h, *read.branches]).unsqueeze(1)  # [rows, 1, d], as in decoding
    with torch.no_grad():
        logits = read.head.post(read.head.product(states))[:, -1].float()  # [rows, vocab]
    main, *branches = logits.chunk(1 + len(read.branches))
    scores, _ = method.weigh(main, branches, 1, {})  # type: ignore[union-attr]  # branch methods only
    if ALONE in read.inputs.values:
        scores = torch.where(read.inputs.values[ALONE].bool().unsqueeze(-1), main, scores)
    tokens: list[int] = scores.argmax(-1).tolist()
    return tokens


def _decode(
    model: Model, batches: Iterable[Batch], method: Method | None, total: int, progress: Progress | None, name: str
) -> list[str]:
    tokens: list[int] = []
    with using(model, method), shared_pictures(model.backbone):
        for inputs, done in batches:
            tokens += generate(model.backbone, inputs, _ONE_TOKEN).tokens[:, 0].tolist()
            report_progress(progress, f"questions, {name}", done, total)
    return _spell(model, tokens)


def _next_tokens(head: Head, states: Tensor) -> Iterator[int]:
    """The likeliest token after each state [B, d]; the head runs as in decoding, with its hooks."""
    with torch.no_grad():
        logits = head.post(head.module(states.unsqueeze(1)))  # [B, 1, vocab]
    yield from logits[:, -1].float().argmax(-1).tolist()


def _spell(model: Model, tokens: list[int]) -> list[str]:
    return [model.backbone.tokenizer.decode([token], skip_special_tokens=True).strip() for token in tokens]
