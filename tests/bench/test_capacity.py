"""bench/capacity.py answers every question once, knows when a card is full, and counts what MGAP adds."""

from dataclasses import replace

import numpy as np
import pytest
from capacity import CARDS, DAY, Day, Load, busiest_hour, curve, draw, fewest_cards, latency, main, serve
from hypothesis import given, settings
from hypothesis import strategies as st

SMALL = Load(questions=20_000)
LLAVA = CARDS["LLaVA-1.5-7B"]


def steady(rate, seconds, seed=0):
    """Questions at one rate, as many tokens each as usual."""
    count = int(rate * seconds)
    lengths = draw(replace(SMALL, questions=count), seed).lengths
    return Day(np.sort(np.random.default_rng(seed).random(count) * seconds), lengths)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
)
@settings(max_examples=80, deadline=None)
def test_every_question_is_answered_once_and_no_token_is_free(asked, cards, seats, prompts):
    card = replace(LLAVA, seats=seats, prompts=prompts)
    arrivals, lengths = (np.array(column) for column in zip(*sorted(asked), strict=True))
    served = serve(card, cards, Day(arrivals, lengths))
    assert (served.first >= arrivals + card.ms(0, 1) / 1000 - 1e-9).all()
    assert (served.last >= served.first + (lengths - 1) * card.ms(1, 0) / 1000 - 1e-9).all()
    assert ((served.last == served.first) == (lengths == 1)).all()
    for number in range(cards):
        begun, ended = (times[number::cards] for times in (arrivals, served.last))
        inside = (served.first[number::cards, None] <= ended) & (ended < served.last[number::cards, None])
        assert inside.sum(0).max(initial=0) <= seats, "an answer has a seat from its first token to its last"
        if len(begun):
            assert served.busy[number] <= ended.max() - begun.min() + 1e-9, "a card does one thing at a time"


def test_steps_are_skipped_without_changing_what_they_take():
    """One answer alone is a prompt and a step for each further token."""
    served = serve(LLAVA, 1, Day(np.array([10.0]), np.array([101])))
    assert served.first[0] == pytest.approx(10 + 0.050)
    assert served.last[0] == pytest.approx(10 + 0.050 + 100 * 0.00711)


@pytest.mark.parametrize("peak", [1.0, 2.0, 4.0])
def test_a_day_has_its_questions_and_its_peak(peak):
    rate = curve(peak)
    assert rate.mean() == pytest.approx(1)
    assert rate.max() == pytest.approx(peak, rel=1e-3)
    day = draw(replace(SMALL, peak=peak))
    assert len(day.arrivals) == SMALL.questions
    assert (np.diff(day.arrivals) >= 0).all()
    assert 0 <= day.arrivals[0] < day.arrivals[-1] <= DAY
    noon = np.abs(day.arrivals - DAY / 2) < DAY / 48  # an hour of 24
    assert noon.mean() == pytest.approx(peak / 24, rel=0.08)


@pytest.mark.parametrize("name", CARDS)
def test_the_queue_grows_beyond_what_a_card_can_and_not_below(name):
    card = CARDS[name]
    most = card.max_rate(draw(SMALL).lengths)
    below, beyond = (steady(share * most, 400) for share in (0.3, 1.3))
    waits = [serve(card, 1, day).first - day.arrivals for day in (below, beyond)]
    halves = [(np.median(wait[: len(wait) // 2]), np.median(wait[len(wait) // 2 :])) for wait in waits]
    assert halves[0][1] < 1.2 * halves[0][0]
    assert halves[1][1] > 2 * halves[1][0]


def test_a_card_with_all_its_work_at_hand_comes_near_the_most_it_can():
    day = steady(4000, 1)
    served = serve(LLAVA, 1, day)
    assert 0.75 < len(day.arrivals) / served.last.max() / LLAVA.max_rate(day.lengths) <= 1


def test_more_cards_are_never_slower_in_the_mean():
    day = draw(replace(SMALL, questions=400_000))
    means = [busiest_hour(LLAVA, cards, day).mean_ms for cards in (1, 2, 3, 5, 8)]
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.9 * means[0]


def test_what_mgap_costs_goes_in_and_comes_out():
    """A tenth more for every step makes decoding a tenth longer, and nothing makes nothing."""
    alone = Day(np.arange(50) * 10.0, np.full(50, 200))
    plain, dear = (serve(replace(LLAVA, mgap=share), 1, alone) for share in (0.0, 0.1))
    assert (dear.last - dear.first) == pytest.approx(1.1 * (plain.last - plain.first))
    assert dear.busy[0] / plain.busy[0] == pytest.approx(1.1, abs=0.004), "prompts are not decoded"
    assert latency(alone, dear, 0, DAY).mean_ms > latency(alone, plain, 0, DAY).mean_ms
    assert np.array_equal(serve(replace(LLAVA, mgap=0.0), 1, alone).last, plain.last)


def test_enough_cards_are_the_fewest_that_keep_the_promise():
    day = draw(Load(questions=1_000_000))
    cards, seen = fewest_cards(LLAVA, day, 85.0)
    assert cards > 1
    assert seen.first_ms[1] <= 85 < busiest_hour(LLAVA, cards - 1, day).first_ms[1]
    with pytest.raises(SystemExit, match="reading one prompt takes 50 ms already"):
        fewest_cards(LLAVA, day, 50.0)


def test_the_whole_table(capsys):
    main(["--questions", "20000", "--models", "LLaVA-1.5-7B"])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| LLaVA")]
    assert [cells[2] for cells in lines[:3]] == ["plain", "MGAP, 0.6% a step", "MGAP, 0.6% a step"]
    work, answer = (float(between.strip(" |%+")) for between in lines[1][-1].split(" / "))
    assert 0 < work < 0.6
    assert 0 < answer < 0.6
    assert len(lines) == 3 + 8


@pytest.mark.parametrize("wrong", [["--questions", "5"], ["--peak", "0.5"], ["--short", "2"], ["--models", "GPT-2"]])
def test_what_is_out_of_range_is_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(wrong)
    assert wrong[0] in capsys.readouterr().err
