"""What is shown of answers: every token a button, every number said, nothing unescaped."""

import re
from dataclasses import replace

import pytest

from mgap.inspector.answering import Knobs
from mgap.inspector.views import (
    COLOURINGS,
    answers_html,
    candidate_words,
    curves_plot,
    default_selection,
    default_words,
    figure_html,
    plain_choice,
    spots_plot,
    tau_of,
    token_html,
)
from mgap.run.method_plans import VANILLA


@pytest.fixture(scope="module")
def asked(ask, office):
    return ask(office, [VANILLA, "mgap", "vcd"])


@pytest.mark.parametrize("name", COLOURINGS)
def test_every_token_is_a_button_with_its_number(asked, name):
    html = answers_html(asked, name)
    buttons = re.findall(r"<button[^>]*>", html)
    assert len(buttons) == sum(len(column.tokens) for column in asked.columns)
    assert all("aria-label" in button for button in buttons)
    shades = [float(shade) for shade in re.findall(r"--shade: ([0-9.]+)", html)]
    assert all(0 <= shade <= 1 for shade in shades)
    assert any(shades)


def test_a_departure_is_told_by_a_word_and_a_line_not_by_colour_alone(asked):
    html = answers_html(asked, "departure")
    departed = sum(m.has_departed(tau_of(asked)) for column in asked.columns for m in column.tokens)
    assert departed > 0
    assert html.count(", departed") == departed


def test_a_token_at_which_the_method_did_nothing_has_not_departed(ask, yellow_banana):
    """Plain decoding's own states lie beyond tau here, and MGAP's beta is about 0."""
    asked = ask(yellow_banana, [VANILLA, "mgap", "vcd"])
    plain, ours, other = (column.tokens for column in asked.columns)
    beyond = [at for at, m in enumerate(plain) if m.after.is_departed]
    assert beyond, "of a state that nothing moved"
    assert [m.token.step.token_id for m in ours] == [m.token.step.token_id for m in plain]
    assert all(ours[at].beta < 0.005 and ours[at].after.is_departed for at in beyond)
    tau = tau_of(asked)
    assert not any(m.has_departed(tau) for m in (*plain, *ours))
    assert any(m.has_departed(tau) and m.before.is_departed for m in other), "VCD moves such a state farther"
    assert any(m.has_departed(tau) and not m.before.is_departed for m in other)
    html = answers_html(replace(asked, columns=asked.columns[:2]), "departure")
    assert ", departed" not in html
    assert "beyond it, as without the method" in token_html(asked, (0, beyond[0]))


def test_what_comes_from_outside_is_escaped(asked):
    strange = replace(asked, question="<script>alert(1)</script> {{value}} ${value}")
    html = answers_html(strange, "beta")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_the_card_has_the_numbers_that_the_method_used(asked):
    place, at = 1, 2
    m = asked.columns[place].tokens[at]
    html = token_html(asked, (place, at))
    for value in (m.entropy, m.cosine, m.beta, m.token.step.values["gamma"], m.token.step.values["delta"]):
        assert f">{value:.3f}<" in html
    assert html.count('class="bar"') == 10  # five before, five after


def test_the_first_look_is_at_a_token_that_was_changed(ask, office):
    asked = ask(office, [VANILLA, "vcd"])
    place, at = default_selection(asked)
    step = asked.columns[place].tokens[at].token.step
    assert place == 1
    assert plain_choice(step).token_id != step.token_id


def test_the_figure_shows_the_methods_whose_answers_are_alike_so_far(asked):
    plot = spots_plot(asked, (0, 0))
    assert plot.text.count("d\u2096") == 3
    assert "<svg" in plot.svg
    assert plot.file.startswith("<?xml")
    assert "#0102" not in plot.svg
    assert "#0102" not in plot.file


def test_without_a_bank_the_figure_is_a_sentence(asked):
    bare = replace(asked.loaded, manifold=None, bank=None, why_no_bank="There is no bank: give --bank DIR.")
    lone = replace(asked, loaded=bare)
    assert spots_plot(lone, (0, 0)) is None
    assert "give --bank DIR" in figure_html(None, lone, [], lone.loaded.why_no_bank)


def test_words_to_follow_are_those_that_were_likely(asked):
    words = candidate_words(asked, (1, 0))
    assert set(default_words(asked, (1, 0))) <= set(words)
    plot = curves_plot(asked, (1, 0), default_words(asked, (1, 0)))
    assert "MGAP" in plot.text
    assert "VCD" in plot.text
    assert curves_plot(asked, (1, 0), ["no such word"]) is None
    assert curves_plot(asked, (1, 0), []) is None


def test_plain_decoding_alone_has_no_sweep(ask, office):
    asked = ask(office, [VANILLA], length=2)
    assert curves_plot(asked, (0, 0), default_words(asked, (0, 0))) is None


@pytest.mark.filterwarnings("ignore:alpha=.* can flip the sign")
def test_switches_that_are_off_are_said(ask, office):
    html = answers_html(ask(office, ["mgap"], Knobs(alpha=2.0, gate=False, protect=False), length=2), "beta")
    assert "\u03b1 2, \u03bb 0.5, K 5, gate off, protection off" in html


def test_a_record_that_says_otherwise_is_shown(asked):
    recorded = replace(asked, recorded={"mgap": "Something else.", VANILLA: asked.columns[0].text})
    html = answers_html(recorded, "beta")
    assert html.count("record says otherwise") == 1
    assert "Something else." in html


def test_the_plain_choice_is_what_plain_decoding_took_also_where_two_are_equally_likely(ask, office, blue_banana):
    ties = 0
    for case in (office, blue_banana):
        for m in ask(case, [VANILLA]).columns[0].tokens:
            step = m.token.step
            assert plain_choice(step).token_id == step.token_id
            ties += step.before[0].probability == step.before[1].probability
    assert ties  # the pocket model's 16 bits have some
