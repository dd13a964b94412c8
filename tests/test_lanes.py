"""Whose turn it is on a training client: clocks start in the order of submission, each once."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import BudgetExhaustedError, TinkerDeadlineError, budgets, episode
from tinker_deadlines.calls import Call
from tinker_deadlines.testing import FakeClock
from tinker_deadlines.waiting.futures import BoundedFuture
from tinker_deadlines.waiting.lanes import Lane


class Runner:
    def __init__(self, number: int, started: list[int]) -> None:
        self.number = number
        self.started = started

    def start_clock(self) -> None:
        self.started.append(self.number)


@given(st.lists(st.integers(0, 19) | st.none(), max_size=80))
def test_clocks_start_in_order_each_once(steps: list[int | None]) -> None:
    """Whoever enters and leaves when: the clock that runs is that of the oldest who is still there."""
    lane, started = Lane(), list[int]()
    runners: list[Runner] = []
    there: list[Runner] = []
    for step in steps:
        if step is None:
            runners.append(Runner(len(runners), started))
            there.append(runners[-1])
            lane.enter(runners[-1])
        elif runners:
            runner = runners[step % len(runners)]
            lane.leave(runner)
            if runner in there:
                there.remove(runner)
        assert len(lane) == len(there)
        assert [lane.ahead_of(runner) for runner in there] == list(range(len(there)))
        assert not there or started[-1] == there[0].number
    assert started == sorted(set(started))


def test_a_thousand_runners_of_racing_threads_start_once_each() -> None:
    """Every one that entered gets its turn, and nobody twice."""
    lane, lock = Lane(), threading.Lock()
    started: list[int] = []

    class Racer(Runner):
        def start_clock(self) -> None:
            with lock:
                self.started.append(self.number)
            self.turn.set()

    racers = [Racer(number, started) for number in range(1000)]
    for racer in racers:
        racer.turn = threading.Event()

    def run(mine: list[Racer]) -> None:
        for racer in mine:
            lane.enter(racer)
            assert racer.turn.wait(10)
            lane.leave(racer)

    threads = [threading.Thread(target=run, args=(racers[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == list(range(1000)) and len(lane) == 0


def training(lane: Lane, limit_s: float = 10) -> tuple[BoundedFuture[int], Future[int]]:
    bounded: BoundedFuture[int] = BoundedFuture(Call("optim_step", limit_s, "the default"), budgets.current(), lane)
    theirs: Future[int] = Future()
    bounded.follow(theirs)
    return bounded, theirs


def test_a_training_call_is_not_charged_for_its_predecessor() -> None:
    """Its clock starts when the one before it has ended, and runs for its whole limit from there."""
    lane = Lane()
    with FakeClock() as clock:
        (first, ends_first), (second, _) = training(lane), training(lane)
        clock.advance(9)
        ends_first.set_result(1)
        assert first.result(timeout=5) == 1
        clock.advance(9)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.02)
        clock.advance(1)
        with pytest.raises(TinkerDeadlineError) as expired:
            second.result(timeout=5)
    assert expired.value.elapsed_s == pytest.approx(10)
    assert len(lane) == 0


def test_the_expiry_of_the_predecessor_starts_the_next_clock() -> None:
    """One after the other they expire, each after its own limit, even when a callback of the first blocks for ever."""
    lane, gate = Lane(), threading.Event()
    with FakeClock() as clock:
        (first, _), (second, _), (third, _) = (training(lane) for _ in range(3))
        first.add_done_callback(lambda _: gate.wait(20))
        for future in (first, second, third):
            clock.advance(10)
            assert isinstance(future.exception(timeout=5), TinkerDeadlineError)
            while future in (lane._running, *lane._queue):
                pass
    gate.set()


def test_a_budget_cuts_a_call_that_waits_for_its_turn() -> None:
    """The wall does not wait for a predecessor; the call leaves the queue and never gets a turn."""
    lane = Lane()
    with FakeClock() as clock, episode(5, name="wall"):
        (first, ends_first), (second, _), (third, _) = training(lane, 100), training(lane, 100), training(lane, 100)
        second.add_done_callback(lambda _: None)
        clock.advance(5)
        error = second.exception(timeout=5)
        assert isinstance(error, BudgetExhaustedError) and error.owner == "wall"
        assert isinstance(third.exception(timeout=5), BudgetExhaustedError)
        assert isinstance(first.exception(timeout=5), BudgetExhaustedError)
        ends_first.set_result(1)
    assert len(lane) == 0


def test_a_call_that_ends_before_its_turn_leaves_the_queue() -> None:
    """Out of order, whichever ends first; the clock goes to the oldest that is left."""
    lane = Lane()
    pairs = [training(lane, 100) for _ in range(20)]
    order = list(range(20))
    random.Random(7).shuffle(order)
    for number in order:
        pairs[number][1].set_result(number)
        assert pairs[number][0].result(timeout=0) == number
        left = [bounded for bounded, theirs in pairs if not theirs.done()]
        assert lane._running is (left[0] if left else None)
        assert all(bounded._call.started_at is None for bounded in left[1:])


def test_a_lane_is_reentrant() -> None:
    """A signal handler that submits a call while its thread submits one does not wait for itself."""
    lane = Lane()
    with lane._lock:
        lane.enter(Runner(1, []))
    assert len(lane) == 1
