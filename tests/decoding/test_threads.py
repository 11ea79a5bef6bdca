"""Threads that share a model: every answer is wholly under one set of methods, or refused; nothing is mixed."""

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import mgap
from mgap.decoding.attach import attached
from mgap.errors import SettingError
from tests.methods.builders import build

MANY, NEW = 200, 4
QUESTION = "Is there a dog?"


@pytest.fixture
def eager():
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(count, call):
    """What each of so many threads gets that begin at one moment: a value, or the error's class."""
    start = threading.Barrier(count)

    def one(number):
        start.wait()
        try:
            return call(number)
        except SettingError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.usefixtures("eager")
def test_two_hundred_threads_that_enter_at_once_are_applied_or_refused(model, prior, picture):
    methods = [build(name, prior) for name in ("mgap", "vcd", "deco", "pai")]

    def ask(number=None, **how):
        with model.using(methods[number % len(methods)]):
            return model.answer(picture, QUESTION, max_new_tokens=NEW, **how).token_ids

    alone = [ask(number) for number in range(len(methods))]
    got = together(MANY, ask)
    answers = [(number, each) for number, each in enumerate(got) if not isinstance(each, SettingError)]
    assert answers, "at least the first one is answered"
    assert all(each == alone[number % len(methods)] for number, each in answers)
    refused = Counter(str(each).split(":")[0] for each in got if isinstance(each, SettingError))
    assert all("is on this model in another thread" in why for why in refused)
    assert attached(model.backbone.model) == []
    assert [ask(number) for number in range(len(methods))] == alone


@pytest.mark.usefixtures("eager")
def test_methods_of_two_threads_do_not_stack(model, prior, picture):
    """One thread alone may put a method at the head on top of one with a second branch."""
    branch, head = build("vcd", prior), build("mgap", prior)
    with model.using(branch, head):
        assert len(attached(model.backbone.model)) == 2
    with model.using(branch), ThreadPoolExecutor(1) as pool:
        with pytest.raises(SettingError, match="vcd is on this model in another thread, and mgap would be mixed with it"):
            pool.submit(mgap.attach, model, head).result()
        assert [each.method for each in attached(model.backbone.model)] == [branch]


@pytest.mark.usefixtures("eager")
def test_a_plain_answer_is_wholly_plain_while_others_switch_methods(model, prior, picture):
    """Who asks while a method is on gets it, as the method is the model's; nobody gets half of one."""
    method = build("mgap", prior)
    plain = model.answer(picture, QUESTION, max_new_tokens=NEW).token_ids
    with model.using(method):
        cut = model.answer(picture, QUESTION, max_new_tokens=NEW).token_ids
    assert plain != cut

    def ask(number):
        if number % 4:
            return model.answer(picture, QUESTION, max_new_tokens=NEW, static_cache=number % 2 == 0).token_ids
        with model.using(method):
            return model.answer(picture, QUESTION, max_new_tokens=NEW).token_ids

    got = together(40, ask)
    said = {each for each in got if not isinstance(each, SettingError)}
    assert said <= {plain, cut}
    assert all(isinstance(each, SettingError) or each == cut for number, each in enumerate(got) if number % 4 == 0), (
        "inside a block, the block's method"
    )


@pytest.mark.usefixtures("eager")
def test_threads_inside_one_block_have_its_method_and_their_own_traces(model, prior, picture):
    """Attach once, answer from many threads: one after the other, and no trace hears another's tokens."""
    with model.using(build("vcd", prior)):
        alone = model.answer(picture, QUESTION, max_new_tokens=NEW, trace=True)
        got = together(24, lambda number: model.answer(picture, QUESTION, max_new_tokens=NEW, trace=number % 2 == 0))
        streamed = together(8, lambda _: "".join(model.stream(picture, QUESTION, max_new_tokens=NEW)).strip())
    assert all(each.token_ids == alone.token_ids for each in got)
    assert all(each.trace == (alone.trace if number % 2 == 0 else None) for number, each in enumerate(got))
    assert streamed == [alone.text] * 8


def test_answers_that_are_read_after_their_method_was_left_are_refused(model, prior, picture):
    with model.using(build("mgap", prior)):
        rest = model.answers([picture] * 3, [QUESTION] * 3, batch_size=1, max_new_tokens=NEW)
        next(rest)
    with pytest.raises(SettingError, match="with mgap on and no method now: ask inside the `with` block"):
        next(rest)


def test_a_stream_that_goes_on_while_a_method_is_switched_on_stays_plain(model, prior, picture):
    plain = "".join(model.stream(picture, QUESTION, max_new_tokens=24))
    said = model.stream(picture, QUESTION, max_new_tokens=24)
    first = next(said)
    with model.using(build("mgap", prior)):  # waits until the stream has been made
        assert first + "".join(said) == plain
