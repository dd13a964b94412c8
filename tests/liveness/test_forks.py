"""A forked child: none of its parent's threads are in it, and it looks on by the same law once it has a session."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from calls_made import in_flight

from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.verdict import Answers
from tinker_deadlines.liveness.watcher import watcher

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Quick:
    """A law by which calls take a millisecond."""

    def predicted_s(self, *_: Any) -> float:
        return 1e-3

    def survival(self, kind: Any, model: Any, ratio: float) -> float:
        return float(max(1e-300, 2.0 ** -min(ratio, 900.0)))

    def median_ratio(self, *_: Any) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    scaled = watcher.thresholds.scaled(1 / 500)
    monkeypatch.setattr(watcher, "thresholds", scaled._replace(stall_s=60.0, look_every_s=0.002))
    sessions.clear()
    yield
    watcher.stop()
    watcher._law = watcher._prober = watcher._ceiling = None
    sessions.clear()


def in_child(check: Callable[[], bool]) -> bool:
    """What a check comes to in a forked child; false if it does not come back."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, b"1" if check() else b"0")
        finally:
            os._exit(0)
    os.close(write)
    try:
        return os.read(read, 1) == b"1"
    finally:
        os.waitpid(child, 0)
        os.close(read)


def convicts() -> bool:
    sessions.of("childs").way = object()
    _, owner = in_flight("childs")
    watcher.go_on()
    until = time.monotonic() + 10
    while not owner.convicted and time.monotonic() < until:
        time.sleep(0.002)
    return [verdict for verdict, _ in owner.convicted] == ["session wedged"]


def test_it_looks_on_by_the_same_law() -> None:
    """A dead session of the child's own is convicted there, as the parent would."""
    watcher.start(Quick(), lambda way, limit_s: Answers(True, False, True), lambda kind: 1800.0)
    assert in_child(convicts)
    assert convicts()


def test_it_has_none_of_its_parents_sessions_and_no_thread_before_it_needs_one() -> None:
    """Nothing is started for a child that only wants to run another program."""
    sessions.of("parents")
    watcher.start(Quick(), lambda way, limit_s: Answers(), lambda kind: 1800.0)
    assert in_child(lambda: sessions.all() == [] and watcher._thread is None and threading.active_count() == 1)
    assert sessions.get("parents") is not None


def test_a_watcher_that_is_stopped_stays_so() -> None:
    """Where nothing is installed, going on starts nothing."""
    watcher.stop()

    def stays() -> bool:
        watcher.go_on()
        return watcher._thread is None

    assert in_child(stays)


def test_a_lock_that_another_thread_held_is_free() -> None:
    """The fork comes while somebody looks."""
    watcher.start(Quick(), lambda way, limit_s: Answers(), lambda kind: 1800.0)
    with watcher._condition:
        assert in_child(wakes_and_goes_on)


def wakes_and_goes_on() -> bool:
    done = threading.Event()

    def wakes() -> None:
        watcher.wake()
        watcher.go_on()
        done.set()

    threading.Thread(target=wakes, daemon=True).start()
    return done.wait(5) and watcher._thread is not None
