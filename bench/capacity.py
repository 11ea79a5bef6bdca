"""How many GPUs a day of image questions needs, how fast they answer, and what MGAP adds: simulated continuous batching.

    python bench/capacity.py                                  # a million questions a day, both models, half a minute or more
    python bench/capacity.py --questions 5000000 --peak 2     # another day

An estimate, not a measurement of vLLM: step times were measured on an H200 in this package's own decoding loop
(docs/performance.md) and are combined here with vLLM's scheduling. The model:

- Questions arrive at random. The rate follows exp(k cos) over the day, with the given ratio of peak to mean. Some answers are
  short (yes or no), the others are descriptions of gamma-distributed length.
- Cards take questions in turn. A card works in steps. A step prefills waiting prompts, up to a limit and while seats are free,
  and decodes one more token of every running answer:

      ms = a + b * running answers + c * prompts, and no less than a fixed time if there are prompts
      MGAP adds a share of a + b * tokens chosen

- A question's first token arrives at the end of the step that prefills it; every further token takes one step.

The result is the fewest cards with which, in the busiest hour, 95 of 100 questions get their first token within --first-ms.
"""

from __future__ import annotations

import argparse
import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from measure import say, table
from numpy.typing import NDArray

DAY, HOUR = 86_400.0, 3_600.0  # seconds
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Card:
    """One card with one copy of a model; times in milliseconds."""

    step_ms: float  # a: reading the weights
    row_ms: float  # b: reading an answer's cache
    prompt_ms: float  # c: prefill of a picture and its question
    least_ms: float  # minimum of a step with prefill
    seats: int = 64  # max_num_seqs
    prompts: int = 13  # per step, at most: max_num_batched_tokens over the tokens of a prompt
    mgap: float = 0.0  # share of a step that MGAP adds

    def decode_ms(self, rows: int) -> float:
        return self.step_ms + self.row_ms * rows if rows else 0.0

    def ms(self, rows: int, prompts: int) -> float:
        """The time of one step."""
        plain = self.decode_ms(rows)
        if prompts:
            plain = max(self.least_ms, plain + self.prompt_ms * prompts)
        return plain + self.mgap * self.decode_ms(rows + prompts)

    def max_rate(self, lengths: Ints) -> float:
        """Questions per second at full load: every seat is taken and every prefill is full."""
        prefill = self.ms(0, self.prompts) / self.prompts
        return 1000 / (prefill + (lengths.mean() - 1) * self.ms(self.seats, 0) / self.seats)


CARDS = {  # one H200, bfloat16, captured steps and first tokens against batch (docs/performance.md, How cost grows)
    "LLaVA-1.5-7B": Card(7.0, 0.11, 18.0, 50.0, prompts=13),  # 8192 tokens a step, prompts of 619
    "Qwen3-VL-8B": Card(9.2, 0.065, 16.0, 107.0, prompts=24),  # prompts of 341
}


@dataclass(frozen=True)
class Load:
    """The questions of a day."""

    questions: int = 1_000_000
    peak: float = 3.0  # highest rate over the mean
    short: float = 0.6  # share of yes/no questions
    short_tokens: int = 3  # of their answers, the end included
    tokens: float = 110.0  # of a description, on average
    most_tokens: int = 512


class Day(NamedTuple):
    """Questions in order of arrival."""

    arrivals: Floats  # [n] seconds
    lengths: Ints  # [n] tokens of the answers


class Served(NamedTuple):
    """When each question got its first and its last token, and how long each card worked."""

    first: Floats  # [n] seconds
    last: Floats  # [n]
    busy: Floats  # [cards] seconds


def curve(peak: float, minutes: int = 1440) -> Floats:
    """The rate in every minute of a day over its mean; highest at noon."""
    low, high = 0.0, 1.0
    while np.exp(high) / np.i0(high) < peak:  # the mean of exp(k cos) is I0(k)
        high *= 2
    for _ in range(60):
        k = (low + high) / 2
        low, high = (k, high) if np.exp(k) / np.i0(k) < peak else (low, k)
    rate = np.exp(high * np.cos(2 * np.pi * ((np.arange(minutes) + 0.5) / minutes - 0.5)))
    return np.asarray(rate / rate.mean())


def draw(load: Load, seed: int = 0) -> Day:
    """A Poisson process with a fixed number of questions."""
    random = np.random.default_rng(seed)
    passed = np.concatenate([[0.0], np.cumsum(curve(load.peak))])
    arrivals = np.interp(random.random(load.questions) * passed[-1], passed, np.linspace(0, DAY, len(passed)))
    long = np.ceil(random.gamma(4.0, load.tokens / 4, load.questions)).clip(1, load.most_tokens)
    lengths = np.where(random.random(load.questions) < load.short, load.short_tokens, long)
    return Day(np.sort(arrivals), lengths.astype(np.int64))


def serve_one(card: Card, day: Day) -> tuple[list[float], list[float], float]:
    """Times of the first and last token of one card's questions, and the seconds that it worked."""
    arrivals, lengths = day.arrivals.tolist(), day.lengths.tolist()
    count, first, last = len(arrivals), [0.0] * len(arrivals), [0.0] * len(arrivals)
    ends: list[tuple[int, int]] = []  # running answers: the step of their last token, and the question
    now = busy = 0.0
    step = taken = 0  # steps so far, and questions that were prefilled
    while taken < count or ends:
        if not ends:
            now = max(now, arrivals[taken])
        read = 0
        while taken + read < count and read < min(card.prompts, card.seats - len(ends)) and arrivals[taken + read] <= now:
            read += 1
        each, steps = card.ms(len(ends), read) / 1000, 1
        if not read:  # skip ahead to the next end of an answer, or arrival with a free seat
            steps = ends[0][0] - step
            if taken < count and len(ends) < card.seats:
                steps = min(steps, max(1, math.ceil((arrivals[taken] - now) / each)))
        now, busy, step = now + steps * each, busy + steps * each, step + steps
        for question in range(taken, taken + read):
            first[question] = now
            heapq.heappush(ends, (step + lengths[question] - 1, question))
        taken += read
        while ends and ends[0][0] <= step:
            last[heapq.heappop(ends)[1]] = now
    return first, last, busy


def serve(card: Card, cards: int, day: Day) -> Served:
    """Simulate all cards: question number i goes to card i modulo cards."""
    first, last, busy = np.empty_like(day.arrivals), np.empty_like(day.arrivals), np.empty(cards)
    for number in range(cards):
        own = slice(number, None, cards)
        first[own], last[own], busy[number] = serve_one(card, Day(day.arrivals[own], day.lengths[own]))
    return Served(first, last, busy)


class Latency(NamedTuple):
    """Latencies of the questions from some part of a day."""

    first_ms: tuple[float, float]  # to the first token: median and 95th percentile
    answer_ms: tuple[float, float]
    mean_ms: float  # of whole answers


def latency(day: Day, served: Served, since: float, until: float) -> Latency:
    among = (day.arrivals >= since) & (day.arrivals < until)
    waits = [1000 * (times[among] - day.arrivals[among]) for times in (served.first, served.last)]
    first, answer = (tuple(np.percentile(wait, [50, 95]).tolist()) for wait in waits)
    return Latency(first, answer, float(waits[1].mean()))


BUSIEST = (DAY / 2 - HOUR / 2, DAY / 2 + HOUR / 2)
SIMULATED = (BUSIEST[0] - HOUR / 2, BUSIEST[1])  # the busiest hour and the half hour before it


def between(day: Day, since: float, until: float) -> Day:
    among = (day.arrivals >= since) & (day.arrivals < until)
    return Day(day.arrivals[among], day.lengths[among])


def busiest_hour(card: Card, cards: int, day: Day) -> Latency:
    """Latencies in the busiest hour; the half hour before it is simulated too."""
    busy_hours = between(day, *SIMULATED)
    return latency(busy_hours, serve(card, cards, busy_hours), *BUSIEST)


def fewest_cards(card: Card, day: Day, first_ms: float) -> tuple[int, Latency]:
    """The fewest cards that meet the limit, and their latencies. The search starts at what the load needs."""
    if first_ms <= card.ms(0, 1):
        raise SystemExit(f"--first-ms {first_ms:g}: reading one prompt takes {card.ms(0, 1):.0f} ms already; allow more")
    busy_hours = between(day, *BUSIEST)
    cards = max(1, math.floor(len(busy_hours.arrivals) / HOUR / card.max_rate(day.lengths)))
    while (latencies := busiest_hour(card, cards, day)).first_ms[1] > first_ms:
        cards += 1
    return cards, latencies


# --- tables ----------------------------------------------------------------------------------------------------------


def ms(pair: tuple[float, float]) -> str:
    return " / ".join(f"{value:,.0f}" for value in pair)


def main_rows(name: str, card: Card, cards: int, day: Day, mgap: float) -> Iterator[list[object]]:
    """The same day on enough cards, plain and with MGAP, and on one card more."""
    plain: tuple[float, float] | None = None
    for count, share in ((cards, 0.0), (cards, mgap), (cards + 1, mgap)):
        say(f"{name}: a day on {count} cards")
        served = serve(replace(card, mgap=share), count, day)
        all_day, peak = latency(day, served, 0, DAY), latency(day, served, *BUSIEST)
        work = float(served.busy.sum())
        now, plain = (work, all_day.mean_ms), plain or (work, all_day.mean_ms)
        pairs = zip(now, plain, strict=True)
        more = " / ".join(f"{100 * (a / b - 1):+.2f}%" for a, b in pairs) if share and count == cards else "-"
        label = f"MGAP, {share:.1%} a step" if share else "plain"
        cells = [name, count, label, f"{work / count / DAY:.0%}", ms(all_day.first_ms), ms(all_day.answer_ms)]
        yield [*cells, ms(peak.first_ms), ms(peak.answer_ms), more]


def variations(card: Card, load: Load) -> Iterator[tuple[str, Card, Load]]:
    """The load and the card with one assumption changed at a time."""
    yield "as above", card, load
    for name, factor in (("30% slower", 1.3), ("30% faster", 0.7)):
        times = {field: getattr(card, field) * factor for field in ("step_ms", "row_ms", "prompt_ms", "least_ms")}
        yield f"all times {name}", replace(card, **times), load
    for peak in (2.0, 4.0):
        yield f"peak {peak:g} times the mean", card, replace(load, peak=peak)
    doubled = replace(load, tokens=2 * load.tokens, short_tokens=2 * load.short_tokens)
    yield "answers twice as long", card, doubled
    yield "descriptions only", card, replace(load, short=0.0)
    yield "prompts cost flops only", replace(card, least_ms=0.0), load


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    started = time.perf_counter()
    load = Load(args.questions, args.peak, args.short, args.short_tokens, args.tokens)
    day = draw(load, args.seed)
    own = {"step_ms": args.step_ms, "row_ms": args.row_ms, "prompt_ms": args.prompt_ms, "least_ms": args.least_ms}
    own = {key: value for key, value in own.items() if value is not None}
    promise = f"first token within {args.first_ms:g} ms for 95 of 100 in the busiest hour"
    print(f"{load.questions:,} questions a day, {load.peak:g} times the mean at the busiest, {load.short:.0%} short, ", end="")
    print(f"{day.lengths.mean():.0f} tokens an answer, {promise}\n")
    rows: list[list[object]] = []
    changed: list[list[object]] = []
    for name in args.models:
        card = replace(CARDS[name], seats=args.seats, **own)
        cards, _ = fewest_cards(replace(card, mgap=args.mgap), day, args.first_ms)
        rows += main_rows(name, card, cards, day, args.mgap)
        for what, new_card, new_load in variations(replace(card, mgap=args.mgap), load):
            say(f"{name}: {what}")
            new_day = day if new_load == load else draw(new_load, args.seed)
            count, latencies = fewest_cards(new_card, new_day, args.first_ms)
            rate = f"{new_card.max_rate(new_day.lengths):.1f}"
            changed.append([name, what, count, rate, ms(latencies.first_ms), ms(latencies.answer_ms)])
    say("")
    heads = ["model", "cards", "decoding", "busy", "first token, ms: p50 / p95", "answer, ms: p50 / p95"]
    print(table([*heads, "first token, busiest hour", "answer, busiest hour", "MGAP: work / mean answer"], rows))
    heads = ["model", "with MGAP, if", "cards", "a card can, questions/s", "first token, busiest hour", "answer, busiest hour"]
    print(f"\n{table(heads, changed)}\n\n{time.perf_counter() - started:.0f} s")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    usual = Load()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(CARDS), default=list(CARDS))
    parser.add_argument("--questions", type=at_least(1000, int), default=usual.questions, help="a day")
    parser.add_argument("--peak", type=at_least(1.0), default=usual.peak, help="the busiest rate over the mean")
    parser.add_argument("--short", type=at_least(0.0, most=1.0), default=usual.short, help="share of yes/no questions")
    parser.add_argument("--short-tokens", type=at_least(1, int), default=usual.short_tokens, help="of their answers")
    parser.add_argument("--tokens", type=at_least(1.0), default=usual.tokens, help="of a description, on average")
    parser.add_argument(
        "--first-ms", type=at_least(1.0), default=1000.0, help="limit for the first token of 95 of 100 questions"
    )
    parser.add_argument("--seats", type=at_least(1, int), default=64, help="max_num_seqs")
    parser.add_argument("--mgap", type=at_least(0.0), default=0.006, help="share of a step that MGAP adds")
    for field, what in (
        ("step", "a decoding step"),
        ("row", "each answer in it"),
        ("prompt", "reading a prompt"),
        ("least", "a step that reads any, at least"),
    ):
        parser.add_argument(f"--{field}-ms", type=at_least(0.0), help=f"{what}; default: as measured for the model")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def at_least(least: float, kind: type = float, most: float = math.inf) -> Callable[[str], float]:
    """A parser of command-line numbers within a range."""

    def read(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return read


if __name__ == "__main__":
    main()
