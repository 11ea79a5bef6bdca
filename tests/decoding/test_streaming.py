"""A call that blocks as a loop: who leaves the loop ends the call, and an error of the call is raised in the loop."""

import threading

import pytest

from mgap.decoding.streaming import StopFlag, from_thread

BOUND = 100_000_000  # looks at the flag: seconds, where nobody sets it


def test_leaving_the_loop_asks_the_call_to_stop_and_waits_for_it():
    stop, ended = StopFlag(), []

    def work(say):
        say("first")
        ended.append(any(stop.is_set for _ in range(BOUND)))

    loop = from_thread(work, stop)
    assert next(loop) == "first"
    loop.close()
    assert ended == [True]


def test_what_was_said_before_an_error_comes_first_and_the_thread_is_gone():
    def work(say):
        say(1)
        raise ValueError("gave way")

    before, found = threading.active_count(), []
    with pytest.raises(ValueError, match="gave way"):
        found.extend(from_thread(work, StopFlag()))
    assert threading.active_count() == before
    for heard in from_thread(lambda say: say(2), StopFlag()):
        found.append(heard)
    assert found == [1, 2]
