"""Answer a benchmark under many methods in one process, in memory, and score it by the scorer that `mgap run` uses.

A run keeps records on disk and resumes. This is for trying many settings at once: yes/no questions share forwards between
methods (`first_words`), whole answers are decoded method by method. Decoding is greedy, except by methods that search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mgap.backbones.asked_rows import Asked
from mgap.benchmarks.base import Benchmark, distinct_questions
from mgap.benchmarks.tally import Scorer, Tally
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.decoding.model import Model
from mgap.io.images import open_in_turn
from mgap.io.progress import Progress, report_progress
from mgap.registry import SCORERS
from mgap.run.first_words import Encode, Methods, encode_rows, first_words, refuse_attached, using


@dataclass(frozen=True)
class Evaluation:
    """The answers to a benchmark's samples, by method."""

    benchmark: Benchmark
    texts: Mapping[str, Mapping[str, str]]  # by method, then by sample id

    def tallies(self, method: str) -> dict[str, Tally]:
        """By group, as a run would be scored with default settings."""
        scorer: Scorer = SCORERS.get(self.benchmark.task).of(self.benchmark.lexicon)
        return scorer.tally(self.benchmark.samples, self.texts[method])

    def verdicts(self, method: str) -> dict[str, str | None]:
        """By sample id: yes, no, or None if the answer says neither."""
        return {name: yes_or_no(text) for name, text in self.texts[method].items()}


def answer_first_words(
    model: Model,
    benchmark: Benchmark,
    methods: Methods,
    *,
    batch_size: int = 64,
    encode: Encode = encode_rows,
    progress: Progress | None = None,
) -> Evaluation:
    """The first word of every answer: what decides a yes/no question. A question of several groups is asked once."""
    rows = [(sample.image, sample.prompt) for sample in distinct_questions(benchmark.samples)]
    words = first_words(model, rows, methods, benchmark.picture, batch_size=batch_size, encode=encode, progress=progress)
    by_row = {name: dict(zip(rows, of, strict=True)) for name, of in words.items()}
    return Evaluation(
        benchmark, {name: {s.id: of[s.image, s.prompt] for s in benchmark.samples} for name, of in by_row.items()}
    )


def answer_in_full(
    model: Model,
    benchmark: Benchmark,
    methods: Methods,
    *,
    max_new_tokens: int,
    batch_size: int = 64,
    label: str = "answers",
    progress: Progress | None = None,
) -> Evaluation:
    """Whole answers to every sample."""
    refuse_attached(model)
    samples, texts = benchmark.samples, dict[str, dict[str, str]]()
    prompts = [sample.prompt for sample in samples]
    asked = [Asked.by_name(sample.image, sample.prompt, benchmark.picture) for sample in samples]
    for name, method in methods.items():
        texts[name] = {}
        pictures = open_in_turn((sample.image for sample in samples), benchmark.picture)
        with using(model, method):
            answers = model.answers(list(pictures), prompts, asked=asked, batch_size=batch_size, max_new_tokens=max_new_tokens)
            for sample, answer in zip(samples, answers, strict=True):
                texts[name][sample.id] = answer.text
                report_progress(progress, f"{label}, {name}", len(texts[name]), len(samples))
    return Evaluation(benchmark, texts)
