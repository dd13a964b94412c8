"""When a session last showed life, how loaded it is, and which sessions are remembered."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines.limits import LOAD_WINDOW, SESSIONS_KEPT
from tinker_deadlines.liveness.signs import Session, Sessions
from tinker_deadlines.liveness.verdict import Answers
from tinker_deadlines.testing import FakeClock


class Way:
    """How to ask a session something."""


def test_a_new_session_has_just_shown_life() -> None:
    """Its silence counts from when it was first heard of."""
    with FakeClock(100.0) as clock:
        session = Session("one")
        clock.advance(7)
        assert session.last_at == 100.0 and session.suspicion == 0.0


def test_a_sign_of_life_ends_the_silence_and_the_suspicion() -> None:
    """Both start again from nothing."""
    with FakeClock(100.0) as clock:
        session = Session("one")
        session.suspicion = 9.0
        clock.advance(7)
        session.seen()
        assert session.last_at == 107.0 and session.suspicion == 0.0


def test_a_completed_call_is_a_sign_of_life() -> None:
    """And its ratio counts for the load."""
    with FakeClock(100.0) as clock:
        session = Session("one")
        clock.advance(3)
        session.completed(4.0)
        assert session.last_at == 103.0 and session.load(1.0) == 4.0


def test_without_completed_calls_the_load_is_the_usual_one() -> None:
    """Nothing is known: neither slow nor fast."""
    assert Session("one").load(1.0) == 1.0


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60), st.floats(1e-3, 1e3))
def test_the_load_is_the_median_of_the_last_calls(ratios: list[float], usual: float) -> None:
    """Over what is usual, of the last twenty only, and never below 1: a fast service is not to be suspected sooner."""
    session = Session("one")
    for ratio in ratios:
        session.completed(ratio)
    last = sorted(ratios[-LOAD_WINDOW:])
    middle = (last[(len(last) - 1) // 2] + last[len(last) // 2]) / 2
    assert session.load(usual) == pytest.approx(max(1.0, middle / usual))


def test_the_load_since_an_instant_is_that_of_what_completed_later() -> None:
    """Nothing where nothing did."""
    with FakeClock(100.0) as clock:
        session = Session("one")
        session.completed(1.0)
        clock.advance(10)
        assert session.load_since(105.0, 1.0) is None
        session.completed(6.0)
        assert session.load_since(105.0, 1.0) == 6.0 and session.load(1.0) == 3.5


def test_a_law_without_a_median_gives_no_load() -> None:
    """Division by nothing is no error."""
    session = Session("one")
    session.completed(5.0)
    assert session.load(0.0) == 1.0


def test_what_a_probe_found_holds_until_the_next_sign_of_life() -> None:
    """And not longer than it is asked for."""
    with FakeClock(100.0) as clock:
        session, answers = Session("one"), Answers(True, False, True)
        assert session.known(100.0, 15.0) is None
        clock.advance(5)
        session.answers, session.answered_at = answers, 105.0
        assert session.known(105.0, 15.0) is answers
        assert session.known(120.0, 15.0) is answers
        assert session.known(120.1, 15.0) is None
        clock.advance(1)
        session.seen()
        assert session.known(106.0, 15.0) is None


def test_a_session_is_made_once() -> None:
    """By its name; one that nobody has made is not known."""
    known = Sessions()
    assert known.get("one") is None and known.get(None) is None
    one = known.of("one")
    assert known.of("one") is one and known.get("one") is one and known.all() == [one]
    known.clear()
    assert known.all() == []


def test_the_most_silent_sessions_are_forgotten() -> None:
    """A process that makes sessions for ever holds a thousand of them, and among them those in use, however old."""
    with FakeClock(100.0) as clock:
        known = Sessions()
        used = known.of("used")
        for number in range(SESSIONS_KEPT + 50):
            clock.advance(1)
            used.seen()
            known.of(str(number))
        assert len(known.all()) == SESSIONS_KEPT
        assert known.get("used") is used
        assert known.get("50") is None and known.get("51") is not None


def test_a_forgotten_session_is_held_by_nobody() -> None:
    """What is forgotten is gone, with how to ask it."""
    known, way = Sessions(), Way()
    known.of("first").way = way
    gone = weakref.ref(way)
    del way
    for number in range(SESSIONS_KEPT):
        known.of(str(number))
    gc.collect()
    assert gone() is None


def test_threads_that_ask_for_a_session_at_once_get_the_same_one() -> None:
    """A thousand times over: two calls of one session must not count apart."""
    known = Sessions()
    for number in range(1000):
        barrier, found = threading.Barrier(2), []

        def ask(name: str = str(number % 900), barrier: threading.Barrier = barrier, found: list = found) -> None:
            barrier.wait()
            found.append(known.of(name))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] is found[1]
