"""What one bounded call is, and the board of those in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tinker_deadlines import BudgetExhaustedError, TinkerDeadlineError, Work, episode
from tinker_deadlines.calls import KINDS, SAMPLING_KINDS, TRAINING_KINDS, Board, Call, Ended, Traffic
from tinker_deadlines.testing import FakeClock
from tinker_deadlines.waiting.limit import expiry_of


def test_kinds_are_sorted_into_what_may_be_cancelled() -> None:
    """Training kinds never, sampling kinds always; no kind is both."""
    assert TRAINING_KINDS | SAMPLING_KINDS == set(KINDS) - {"connect", "rest"}
    assert not TRAINING_KINDS & SAMPLING_KINDS


def test_work_is_made_of_what_is_known() -> None:
    """Unknown keys are left out on the way in, unknown sizes on the way out; a size of nothing is known."""
    work = Work.of({"prompt_tokens": 0, "max_tokens": 5, "colour": 3, "rank": None})
    assert work == Work(prompt_tokens=0, max_tokens=5)
    assert work.sizes() == {"prompt_tokens": 0, "max_tokens": 5}


def test_a_call_knows_its_age_and_its_time_on_the_clock() -> None:
    """The age counts from submission; the time on the limit's clock from its start, 0 while it waits for its turn."""
    with FakeClock(start=100) as clock:
        call = Call("optim_step", 600, "the default", "TrainingClient.optim_step")
        clock.advance(3)
        assert (call.age_s(), call.elapsed_s()) == (3, 3)
        call.started_at = None
        assert (call.age_s(), call.elapsed_s()) == (3, 0)
        call.started_at = 102
        assert call.elapsed_s() == 1
        assert "TrainingClient.optim_step, 3.0 s old, limit 600.0 s" in repr(call)


def test_a_call_tells_its_traffic() -> None:
    """Nothing where it was not watched; else when it left, and what came back last."""
    with FakeClock(start=0) as clock:
        call = Call("sample", 300, "the default")
        assert call.evidence(clock.monotonic()) == ()
        call.traffic = Traffic()
        clock.advance(2)
        assert call.evidence(clock.monotonic()) == ("It was sent 2.0 s ago and no HTTP answer came.",)
        call.traffic.ended("asample 200")
        clock.advance(5)
        assert call.evidence(clock.monotonic()) == ("It had 1 HTTP exchange; the last, asample 200, ended 5.0 s ago.",)


def test_a_call_tells_how_long_nothing_was_heard_of_it() -> None:
    """Since it left, or since it was last answered; not where its session is polled for it, which says nothing here."""
    with FakeClock(start=0) as clock:
        traffic = Traffic()
        clock.advance(2)
        assert traffic.silent_s(clock.monotonic()) == 2
        traffic.ended("asample 200")
        clock.advance(5)
        assert traffic.silent_s(clock.monotonic()) is None
        traffic.ended("retrieve_future 408", poll=True)
        clock.advance(7)
        traffic.ended("retrieve_future 503", good=False, poll=True)
        assert traffic.silent_s(clock.monotonic()) == 7


@pytest.mark.parametrize(
    "paused, verdict, wait_s, blame",
    [
        ("", None, 99, "budget"),
        ("", None, 101, "call"),
        ("capacity", None, 1, "service"),
        ("", "outage", 1, "service"),
        ("", "slow", 99, "budget"),
    ],
)
def test_a_wall_is_told_what_is_known_of_its_call(paused: str, verdict: Any, wait_s: float, blame: str) -> None:
    """The verdict, or that it is paused, and for how long it has been silent: all that decides whose time it was."""
    with FakeClock(start=0) as clock, episode(wait_s - 0.5, name="wall") as wall:
        call = Call("sample", 300, "the default")
        call.traffic, call.verdict = Traffic(), verdict
        call.traffic.pause(paused)
        clock.advance(wait_s)
        error = expiry_of(call, wall, TinkerDeadlineError, late=None)
    assert isinstance(error, BudgetExhaustedError)
    assert (error.silent_s, error.verdict) == (wait_s, verdict or ("paused" if paused else None))
    assert error.blame == blame


def test_calls_have_numbers_in_the_order_of_their_making() -> None:
    """No two calls share a number."""
    numbers = [Call("rest", 1, "").id for _ in range(100)]
    assert numbers == sorted(set(numbers))


def test_the_board_counts_each_call_once() -> None:
    """However often and however differently it ends, the first ending counts."""
    board = Board()
    call = Call("sample", 1, "")
    board.begin(call)
    assert board.pending() == [call]
    board.end(call, "completed")
    board.end(call, "failed", ValueError())
    assert board.pending() == []
    assert (board.tallies["sample"].completed, board.tallies["sample"].failed) == (1, 0)


def test_pending_calls_are_told_oldest_first() -> None:
    """Whatever the order in which a set gives them."""
    board = Board()
    with FakeClock(start=0) as clock:
        calls = []
        for _ in range(50):
            calls.append(Call("rest", 1, ""))
            clock.advance(1)
        for call in reversed(calls):
            board.begin(call)
    assert board.pending() == calls


def test_observers_are_told_until_they_stop() -> None:
    """Each is given the call, its outcome, its time and its error."""
    board = Board()
    seen: list[Ended] = []
    stop = board.observe(seen.append)
    error = ValueError("x")
    with FakeClock(start=0) as clock:
        call = Call("rest", 1, "")
        board.begin(call)
        clock.advance(2)
        board.end(call, "failed", error)
    assert seen == [Ended(call, "failed", 2, error)]
    stop()
    board.begin(call)
    board.end(call, "completed")
    assert len(seen) == 1


def test_an_observer_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged; the call has ended and the other observers are told."""
    board = Board()
    seen: list[Ended] = []

    def fail(_: Ended) -> None:
        raise ValueError("mine")

    board.observe(fail)
    board.observe(seen.append)
    call = Call("rest", 1, "")
    board.begin(call)
    board.end(call, "completed")
    assert len(seen) == 1 and "an observer of calls failed" in caplog.text


def test_an_observer_may_end_a_call_itself() -> None:
    """Nothing is locked while observers are told."""
    board = Board()
    first, second = Call("rest", 1, ""), Call("rest", 1, "")
    stop: Callable[[], None] = board.observe(lambda _: board.end(second, "cancelled"))
    board.begin(first)
    board.begin(second)
    board.end(first, "completed")
    stop()
    assert (board.tallies["rest"].completed, board.tallies["rest"].cancelled) == (1, 1)


def test_no_call_is_lost_or_counted_twice_by_racing_threads() -> None:
    """A thousand calls, each ended by four threads at once, are a thousand endings."""
    board = Board()
    calls = [Call("rest", 1, "") for _ in range(1000)]
    for call in calls:
        board.begin(call)

    def end() -> None:
        for call in calls:
            board.end(call, "completed")
            board.pending()

    threads = [threading.Thread(target=end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.tallies["rest"].completed == 1000 and not board.in_flight


def test_the_board_is_reentrant() -> None:
    """A signal handler that ends a call while its thread is ending another does not wait for itself."""
    board = Board()
    call = Call("rest", 1, "")
    board.begin(call)
    with board._lock:
        board.end(call, "cancelled")
    assert board.tallies["rest"].cancelled == 1


def test_the_board_forgets_everything() -> None:
    """For a forked child."""
    board = Board()
    for _ in range(2):
        board.begin(call := Call("sample", 0.0, "wall"))
        board.end(call, "refused")
    assert board.tallies["sample"].refused == 2 and not board.in_flight
    board.clear()
    assert board.tallies == {}
