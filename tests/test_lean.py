"""The lean condition means the same as `threading.Condition`, as far as futures use it."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future

import pytest

from tinker_deadlines.waiting.lean import LeanCondition

BOTH = pytest.mark.parametrize("make", [LeanCondition, threading.Condition])


@BOTH
@pytest.mark.parametrize("timeout", [0, -1, 0.001, 0.0])
def test_a_wait_that_nobody_ends_gives_up(make: type, timeout: float) -> None:
    """It says false, and the lock is held again."""
    condition = make()
    with condition:
        assert condition.wait(timeout) is False
    assert condition.acquire(blocking=False)
    condition.release()


@BOTH
def test_everybody_who_waits_is_woken_once(make: type) -> None:
    """A thousand rounds of four threads: no wake-up is lost, none comes twice."""
    condition = make()
    rounds, people = 1000, 4
    here = woken = turn = 0

    def wait() -> None:
        nonlocal here, woken
        for number in range(rounds):
            with condition:
                here += 1
                while turn <= number:
                    assert condition.wait(20)
                woken += 1

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(people)]
    for thread in threads:
        thread.start()
    for number in range(rounds):
        while here < people * (number + 1):
            time.sleep(0)
        with condition:
            turn = number + 1
            condition.notify_all()
    for thread in threads:
        thread.join(20)
    assert woken == rounds * people


@BOTH
def test_a_wait_that_gives_up_while_it_is_notified_says_one_or_the_other(make: type) -> None:
    """A thousand times: the answer and the state agree, and nobody is left behind in the list."""
    condition = make()

    def end(done: list[int]) -> None:
        with condition:
            done.append(1)
            condition.notify_all()

    for _ in range(1000):
        done: list[int] = []
        thread = threading.Thread(target=end, args=(done,))
        with condition:
            thread.start()
            while not done:
                condition.wait(0.00001)
        thread.join()
    assert not getattr(condition, "_waiters", None)


@BOTH
def test_a_wait_lets_go_of_a_lock_that_is_held_twice(make: type) -> None:
    """As deep as it was held, it is held again."""
    condition = make()

    def notify() -> None:
        with condition:
            condition.notify_all()

    with condition, condition:
        threading.Thread(target=notify).start()
        assert condition.wait(5)
    assert condition.acquire(blocking=False)
    condition.release()


@BOTH
def test_only_who_holds_the_lock_may_wait(make: type) -> None:
    """Anybody else gets a `RuntimeError`, and the lock is as it was."""
    condition = make()
    with pytest.raises(RuntimeError):
        condition.wait(0)
    with condition:
        pass


@BOTH
def test_notifying_nobody_is_nothing(make: type) -> None:
    """A notification is not kept for later."""
    condition = make()
    with condition:
        condition.notify_all()
        assert not condition.wait(0)


def test_waiting_for_ages_is_no_error() -> None:
    """A timeout beyond the platform's longest counts as that; a plain condition raises OverflowError."""
    condition = LeanCondition()

    def notify() -> None:
        with condition:
            condition.notify_all()

    with condition:
        threading.Thread(target=notify).start()
        assert condition.wait(1e300)


def test_it_is_small() -> None:
    """What it is for: a small part of what a plain future's condition takes."""
    plain = Future()._condition
    taken = sum(map(sys.getsizeof, [plain, vars(plain), *vars(plain).values()]))
    assert sys.getsizeof(LeanCondition()) < taken / 4
