"""Daemon threads for blocking calls: reused, bounded, counted when they are given up."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tinker_deadlines import AbandonedCallsError, episode
from tinker_deadlines.waiting import workers as module
from tinker_deadlines.waiting.workers import Job, Workers


class Blocks(Job):
    """A job that runs until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.gate = threading.Event()
        self.told = threading.Event()
        self.thread: threading.Thread | None = None

    def run(self) -> None:
        self.thread = threading.current_thread()
        self.started.set()
        self.gate.wait(20)

    def tell(self) -> None:
        self.told.set()


class Quick(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.gate.set()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def started(pool: Workers, job: Blocks) -> Any:
    pool.start(job)
    assert job.started.wait(5)
    return job


def finish(*jobs: Blocks) -> None:
    for job in jobs:
        job.gate.set()
        assert job.told.wait(5)


def test_one_worker_serves_call_after_call() -> None:
    """In the steady state no thread is started."""
    pool = Workers()
    threads = set()
    for _ in range(200):
        job = Quick()
        pool.start(job)
        assert job.told.wait(5)
        threads.add(job.thread)
    assert len(threads) == 1


def test_a_worker_is_a_daemon_outside_of_budgets() -> None:
    """It serves later calls too, so it must not keep the first one's budget; it never holds the interpreter up."""
    with episode(5):
        job = started(Workers(), Blocks())
    assert job.thread.daemon and job.thread.name == "tinker-deadlines-worker"
    assert "run" not in vars(job.thread)
    finish(job)


def test_calls_past_the_most_wait_in_order() -> None:
    """Each starts when a worker becomes free, the first first."""
    pool = Workers(most=2)
    first, second = started(pool, Blocks()), started(pool, Blocks())
    third, fourth = Blocks(), Blocks()
    pool.start(third)
    pool.start(fourth)
    assert not third.started.wait(0.005)
    finish(first)
    assert third.started.wait(5) and not fourth.started.is_set()
    finish(second)
    assert fourth.started.wait(5)
    finish(third, fourth)


def test_a_call_that_is_given_up_while_it_waits_never_starts() -> None:
    """And does not count as abandoned: it holds no thread."""
    pool = Workers(most=1)
    first, second = started(pool, Blocks()), Quick()
    pool.start(second)
    pool.abandon(second)
    assert pool.abandoned == 0
    finish(first)
    assert not second.started.wait(0.005)


def test_a_call_that_is_given_up_before_it_starts_never_starts() -> None:
    """An expiry may be faster than the start."""
    pool, job = Workers(), Quick()
    pool.abandon(job)
    pool.start(job)
    assert not job.started.wait(0.005)
    assert pool.abandoned == 0


def test_abandoned_calls_are_counted_until_they_end() -> None:
    """Once each, however often they are given up; at the most, a further call is refused with both numbers."""
    pool = Workers(most_abandoned=3)
    jobs = [started(pool, Blocks()) for _ in range(3)]
    for number, job in enumerate(jobs, start=1):
        pool.abandon(job)
        pool.abandon(job)
        assert pool.abandoned == number
    for _ in range(5):
        with pytest.raises(AbandonedCallsError) as refused:
            pool.start(Quick())
        assert (refused.value.abandoned, refused.value.most) == (3, 3)
    finish(jobs[0])
    until(lambda: pool.abandoned == 2)
    quick = Quick()
    pool.start(quick)
    assert quick.told.wait(5)
    finish(*jobs)
    until(lambda: pool.abandoned == 0)


def test_an_abandoned_call_does_not_hold_a_place() -> None:
    """A new call, or the one that has waited longest, gets a thread instead of it."""
    pool = Workers(most=1)
    stuck = started(pool, Blocks())
    waiting = Quick()
    pool.start(waiting)
    assert not waiting.started.wait(0.005)
    pool.abandon(stuck)
    assert waiting.told.wait(5)
    further = Quick()
    pool.start(further)
    assert further.told.wait(5)
    finish(stuck)


def test_giving_up_what_has_ended_changes_nothing() -> None:
    """The count stays."""
    pool, job = Workers(), Quick()
    pool.start(job)
    assert job.told.wait(5)
    pool.abandon(job)
    assert pool.abandoned == 0


def test_idle_workers_retire(monkeypatch: pytest.MonkeyPatch) -> None:
    """After their time without work their threads end, and the next call gets a new one."""
    monkeypatch.setattr(module, "WORKER_IDLE_S", 0.005)
    pool = Workers()
    jobs = [started(pool, Blocks()) for _ in range(3)]
    finish(*jobs)
    until(lambda: not any(job.thread.is_alive() for job in jobs))
    assert pool._idle == [] and pool._threads == 0
    again = Quick()
    pool.start(again)
    assert again.told.wait(5)


def test_no_job_is_lost_to_a_worker_that_retires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand jobs, each in the moment when the worker's time is up."""
    monkeypatch.setattr(module, "WORKER_IDLE_S", 0.0001)
    pool = Workers()
    for number in range(1000):
        job = Quick()
        pool.start(job)
        assert job.told.wait(5)
        if number % 3 == 0:
            time.sleep(0.0001)
    until(lambda: pool._threads == 0)


def test_many_callers_share_the_workers() -> None:
    """A thousand jobs of eight threads on four workers: each runs once, and no more threads than allowed."""
    pool = Workers(most=4)
    seen: set[Any] = set()

    def work() -> None:
        for _ in range(125):
            job = Quick()
            pool.start(job)
            assert job.told.wait(5)
            seen.add(job.thread)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) <= 4 and pool._threads <= 4


def test_a_thread_that_cannot_start_is_an_error_and_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform's refusal reaches the caller; the next call is served."""
    pool, job = Workers(), Quick()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.start(job)
        pool.abandon(job)
    assert pool.abandoned == 0 and pool._threads == 0
    again = Quick()
    pool.start(again)
    assert again.told.wait(5)


EXIT = """
import os, threading, time
os.environ["WMO_TINKER_DEADLINE_CONNECT"] = "0.01"
from tinker_deadlines import TinkerDeadlineError, call_with_deadline
for _ in range(3):
    try:
        call_with_deadline("connect", threading.Event().wait)
    except TinkerDeadlineError:
        print("given up")
"""


def test_an_abandoned_call_never_holds_the_interpreter() -> None:
    """The process ends although three calls block for ever."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXIT], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout.split("\n")[:3], done.stderr) == (0, ["given up"] * 3, "")
