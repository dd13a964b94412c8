"""When does each pending call run out? One thread and one heap for all of them.

An alarm that is taken back lets go of its target at once, so that nothing of its call is kept alive. What is left of
it leaves the heap when it comes up, or together with all others when they are the larger half.

Targets are never told on the timer's own thread: what hangs on a future may be a person's callback that takes for
ever. Another thread tells them; when one of them holds it up, a further thread goes on with the rest.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from tinker_deadlines import clock
from tinker_deadlines.budgets import run_within
from tinker_deadlines.clock import SystemClock
from tinker_deadlines.limits import COALESCE_S, TELLER_STALL_S, TIDY_FROM, WORKER_IDLE_S

__all__ = ["Alarm", "Timer", "timer"]

log = logging.getLogger("tinker_deadlines")


class Target(Protocol):
    """What an alarm is set for."""

    def expire(self) -> None:
        """The instant has come: tells whoever waits."""

    def expired(self) -> None:
        """Everybody whose instant had come has been told: time to clean up."""


Alarm = list[Any]
"""`[instant, ordinal, target or None]`: a list, because lists are compared in C and can be emptied in place."""


class Timer:
    """Alarms for any number of targets, on one daemon thread that starts with the first alarm."""

    def __init__(self) -> None:
        # Reentrant: a signal handler, or a future that is collected, may set an alarm while this thread sets one. Taken
        # directly, without the condition around it, where every call passes.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._heap: list[Alarm] = []
        self._taken_back = 0
        self._ordinals = itertools.count()
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")
        self._teller = _Teller()

    def __len__(self) -> int:
        with self._condition:
            return sum(alarm[2] is not None for alarm in self._heap)

    def set(self, when: float, target: Target) -> Alarm:
        """Sets an alarm for an instant of the monotonic clock; returns what takes it back."""
        alarm: Alarm = [when, next(self._ordinals), target]
        with self._lock:
            heapq.heappush(self._heap, alarm)
            if when < self._wakes_at:
                if self._thread is None:
                    self._thread = _started(self._run, "tinker-deadlines-timer")
                self._wakes_at = when  # only now: where no thread could be started, the next alarm tries again
                self._condition.notify()
        return alarm

    def wake(self) -> None:
        """Makes the thread look at the clock again: it is another one."""
        with self._condition:
            self._condition.notify()

    def take_back(self, alarm: Alarm) -> None:
        """Takes an alarm back; one that went off already is left alone."""
        if alarm[2] is None:
            return
        alarm[2] = None
        self._taken_back += 1  # racing threads may lose one: it only decides when to tidy up
        if self._taken_back > len(self._heap) // 2 + TIDY_FROM:
            self._tidy_up()

    def _tidy_up(self) -> None:
        with self._condition:
            self._taken_back = 0
            full, self._heap = self._heap, []
            kept = [alarm for alarm in full if alarm[2] is not None]
            heapq.heapify(kept)
            # What a signal handler has set meanwhile, in the middle of this.
            further, self._heap = self._heap, kept
            for alarm in further:
                heapq.heappush(self._heap, alarm)

    def _run(self) -> None:
        while True:
            with self._condition:
                due = self._pop_due(clock.monotonic())
                if not due:
                    self._sleep()
                    due = self._pop_due(clock.monotonic())
            if due:
                self._teller.tell(due)
                # A session that wedges expires its calls one shortly after the other: tell them in handfuls.
                time.sleep(COALESCE_S)
            self._teller.watch()

    def _sleep(self) -> None:
        """Waits, with the condition held, for the next alarm, an earlier one, or a look at the teller."""
        self._wakes_at = self._heap[0][0] if self._heap else float("inf")
        wait_s = max(0.0, self._wakes_at - clock.monotonic()) if self._heap else None
        if self._teller.busy():
            wait_s = TELLER_STALL_S if wait_s is None else min(wait_s, TELLER_STALL_S)
        clock.wait(self._condition, wait_s)
        # Alarms set from here on until the next sleep are seen by it and need to wake nobody.
        self._wakes_at = float("-inf")

    def _pop_due(self, now: float) -> list[Target]:
        due = []
        while self._heap and self._heap[0][0] <= now:
            alarm = heapq.heappop(self._heap)
            target, alarm[2] = alarm[2], None
            if target is not None:
                due.append(target)
            else:
                self._taken_back -= 1
        return due

    def forked(self) -> None:
        """Starts afresh in a forked child: the thread stayed with the parent, and so did its alarms."""
        Timer.__init__(self)


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread outside of any budget: it serves everybody, not only who needed it first."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    run_within(None, thread.start)
    return thread


class _Teller:
    """Tells targets that their instant has come, one after the other, on a thread that stays for a while.

    When one of them holds it up, another thread goes on with the rest. These threads are not among the counted
    workers: a person's callback that never returns must not use up the places of calls.
    """

    def __init__(self) -> None:
        self._due: deque[Target] = deque()
        self._told: deque[Target] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._moved_at = 0.0

    # Real time throughout, on purpose: a callback that blocks, blocks under a fake clock too.

    def tell(self, due: list[Target]) -> None:
        """Adds targets, and sees to it that a thread is there for them."""
        if not self.busy():
            self._moved_at = SystemClock.monotonic()
        self._due.extend(due)
        self._bell.put(None)
        with self._lock:
            if not self._threads:
                self._start()

    def busy(self) -> bool:
        """Whether targets wait."""
        return bool(self._due or self._told)

    def watch(self) -> None:
        """Starts another thread when targets wait while one of them has held up the last for too long."""
        if self.busy() and SystemClock.monotonic() - self._moved_at > TELLER_STALL_S:
            with self._lock:
                self._moved_at = SystemClock.monotonic()
                self._start()

    def _start(self) -> None:
        try:
            _started(self._work, "tinker-deadlines-expiry")
        except RuntimeError:
            # The platform has no further thread, or the interpreter ends. The timer tries again while targets wait.
            return
        self._threads += 1

    def _work(self) -> None:
        while True:
            self._tell_all()
            self._clean_up()
            try:
                self._bell.get(timeout=WORKER_IDLE_S)
            except Empty:
                if self._leave():
                    return

    def _tell_all(self) -> None:
        while self._due:
            try:
                target = self._due.popleft()
            except IndexError:
                return  # another thread was faster
            self._moved_at = SystemClock.monotonic()
            self._guarded(target.expire)
            self._told.append(target)

    def _clean_up(self) -> None:
        """Cleaning up costs as much as telling, and nobody waits for it: it comes when everybody has been told."""
        while self._told and not self._due:
            try:
                target = self._told.popleft()
            except IndexError:
                return
            self._moved_at = SystemClock.monotonic()
            self._guarded(target.expired)

    def _leave(self) -> bool:
        with self._lock:
            if self.busy():
                return False
            self._threads -= 1
            return True

    @staticmethod
    def _guarded(step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            # A target tells its own errors to whoever waits for it; one that cannot must not stop the others.
            log.exception("an expiry could not be delivered")


timer = Timer()
clock.on_change(timer.wake)
