"""How is a run recorded without costing its calls anything? They leave a note in a queue; one thread writes the notes.

Whatever happens to the database, a call does not notice: the queue is bounded, and its oldest notes go when it is full.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import platform
import sys
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tinker_deadlines import clock
from tinker_deadlines.calls import Ended, board
from tinker_deadlines.limits import (
    RECORD_BACKLOG,
    RECORD_BATCH,
    RECORD_CLOSE_S,
    RECORD_FLUSH_S,
    RECORD_RETRY_S,
    RECORD_STATE_S,
)
from tinker_deadlines.record.place import Place, RecordError, place_of
from tinker_deadlines.record.privacy import command_word
from tinker_deadlines.record.rows import Noted, Origin, Reported, Utc, note, note_pending, rows_of

if TYPE_CHECKING:
    from tinker_deadlines.record.store import Store

__all__ = ["Recorder", "start"]

log = logging.getLogger("tinker_deadlines")
T = TypeVar("T")
State = dict[str, Any]
Batch = list[list[tuple[str, dict[str, Any]]]]  # of each note, its rows with the names of their tables


def start(url: str | None = None, *, command: str = "") -> Recorder:
    """Begins to record the calls of this process; returns what ends it.

    Args:
        url: Where: a URL for SQLAlchemy, or "off"; by default `TINKER_DEADLINES_RECORD`, and without it a file in the
            state directory.
        command: What is run. Only the script's own name is kept.

    Raises:
        RecordError: the URL is wrong, or a package is missing. A database that cannot be reached is no error: the
            record is kept in memory until it can.
    """
    recorder = Recorder(place_of(url), command=command)
    recorder.begin()
    return recorder


class Recorder:
    """The record of one run. Safe from any thread.

    Args:
        place: Where it is kept; `None` is nowhere: then nothing below does anything.
        command: What is run.

    Attributes:
        run: The run's id.
        place: Where it is kept.
    """

    def __init__(self, place: Place | None, *, command: str = "") -> None:
        self.place = place
        self.run = uuid.uuid4().hex[:12]
        self._command = command_word(command)
        self._origin = Origin(self.run, clock.monotonic())
        self._started_at = Utc()(self._origin.at)
        self._queue: deque[tuple[int, Noted | Reported]] = deque(maxlen=RECORD_BACKLOG)
        self._numbers = itertools.count(1)
        self._highest = self._taken = self._discarded = self._missing = 0
        self._held: list[Batch] = []  # taken from the queue, and not written yet
        self._said: set[str] = set()
        self._condition = threading.Condition()
        self._closing = False
        self._over = threading.Lock()  # held by the writer as long as it lives
        self._stop: Callable[[], None] = lambda: None
        self._store: Store | None = None
        self._refused = place is None

    def begin(self) -> None:
        """Starts to observe and to write."""
        if self.place is None:
            return
        self._over.acquire()
        threading.Thread(target=self._write_on, name="tinker-deadlines-record", daemon=True).start()
        self._stop = board.observe(self._observe)
        _recorders.add(self)
        atexit.register(self.close)

    # On others' time: nothing here waits, takes a lock or touches a disk ----------------------------------------------

    def _observe(self, ended: Ended) -> None:
        self._queue.append((next(self._numbers), note(ended)))

    def probe(self, facts: Mapping[str, Any]) -> None:
        """Keeps what a probe found."""
        self._report(Reported("probes", "", clock.monotonic(), dict(facts)))

    def event(self, name: str, facts: Mapping[str, Any]) -> None:
        """Keeps that something happened: its name, and numbers and words on it."""
        self._report(Reported("events", name, clock.monotonic(), dict(facts)))

    def _report(self, item: Reported) -> None:
        if not self._refused:
            self._queue.append((next(self._numbers), item))

    # What earlier runs learned ----------------------------------------------------------------------------------------

    def load_state(self) -> dict[str, State]:
        """What earlier runs learned, by key; nothing, and a warning, where it cannot be had within a few seconds."""

        def load() -> dict[str, State]:
            from tinker_deadlines.record import learned

            return self._with_store(learned.load)

        return self._within_bound(load, {}, "what earlier runs learned cannot be read")

    def merge_state(self, delta: dict[str, State], merge: Callable[[State, State], State]) -> bool:
        """Adds what this run learned to what is kept, key by key, after or before other runs but never over them.

        Args:
            delta: What was learned, as JSON can say it.
            merge: Makes one state of the one kept and the new one; not called for a key that is new.

        Returns:
            Whether it is kept now; where not, a warning was logged.

        Raises:
            ValueError: JSON cannot say what was learned. What `merge` raises comes through as well.
        """

        def add() -> bool:
            from tinker_deadlines.record import learned

            self._with_store(lambda store: learned.merge_into(store, delta, merge))
            return True

        return self._within_bound(add, False, "what this run learned cannot be kept")

    def _with_store(self, use: Callable[[Store], T]) -> T:
        from tinker_deadlines.record.store import Store, is_damage

        assert self.place is not None
        store = Store(self.place)
        try:
            try:
                return use(store)
            except Exception as error:
                if not is_damage(error):
                    raise
                self._set_aside(store)
                return use(store)
        finally:
            store.close()

    def _within_bound(self, work: Callable[[], T], otherwise: T, problem: str) -> T:
        """Runs `work` on a thread that may be left behind: a disk that hangs must not hold up a run."""
        if self._refused:
            return otherwise
        done, results, errors = threading.Lock(), list[T](), list[BaseException]()

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)
            finally:
                done.release()

        done.acquire()
        threading.Thread(target=run, name="tinker-deadlines-learned", daemon=True).start()
        if not clock.acquire(done, RECORD_STATE_S):
            self._say(problem, f"{problem}: {self._shown} did not answer within {RECORD_STATE_S:g} s")
            return otherwise
        if not errors:
            return results[0]
        from tinker_deadlines.record.store import is_lost, reason_of

        if isinstance(errors[0], RecordError):
            self._say("refused", str(errors[0]))
            return otherwise
        if is_lost(errors[0]):
            self._say(problem, f"{problem}: {self._shown}: {reason_of(errors[0])}")
            return otherwise
        raise errors.pop()

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the record: what is in flight is noted as such, and all is written, within a few seconds or not at all.

        May be called twice.
        """
        with self._condition:
            if self._closing or self.place is None:
                return
            self._stop()
            for call in board.pending():
                self._queue.append((next(self._numbers), note_pending(call)))
            self._closing = True
            self._condition.notify_all()
        atexit.unregister(self.close)
        _recorders.discard(self)
        in_time = clock.acquire(self._over, RECORD_CLOSE_S)
        unwritten = len(self._queue) + sum(map(len, self._held))
        if (not in_time or unwritten) and not self._refused:
            notes = "1 note on a call" if unwritten == 1 else f"{unwritten:,} notes on calls"
            self._say("close", f"{notes} could not be written to {self._shown}; what they tell is lost")

    def forked(self) -> None:
        """In a forked child: the run is its parent's, and so are its thread and its connection."""
        self._stop()
        self._refused = self._closing = True
        self._queue.clear()
        self._condition = threading.Condition()
        if self._store is not None:
            self._store.leave_to_parent()

    # The writer's thread ----------------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        try:
            due = clock.monotonic()
            while not self._refused:
                with self._condition:
                    if not self._closing:
                        clock.wait(self._condition, max(0.0, due - clock.monotonic()))
                    closing = self._closing
                if closing or clock.monotonic() >= due:
                    due = clock.monotonic() + (RECORD_FLUSH_S if self._flush(closing) else RECORD_RETRY_S)
                if closing:
                    break
        except Exception:
            log.exception("the record of this run ends here: its writer failed")
            self._refuse()
        finally:
            if self._store is not None:
                self._store.close()
            self._over.release()

    def _flush(self, closing: bool = False) -> bool:
        """Writes what there is; whether that worked."""
        from tinker_deadlines.record.store import Store

        assert self.place is not None
        utc_of, damaged = Utc(), False
        if self._store is None:
            self._store = Store(self.place)
            self._held.append([])  # the run itself is worth a row
        while (self._held or self._queue or closing) and not self._refused:
            if not self._held:
                self._held.append(self._take(utc_of))
            last = closing and len(self._held) == 1 and not self._queue
            try:
                self._store.write(self._run_row(utc_of, ended=last), _tables_of(self._held[0]))
            except Exception as error:
                self._store.close()
                if not self._put_right(error, again=damaged):
                    return False
                damaged = True
                continue
            del self._held[0]
            if last:
                break
        return True

    def _take(self, utc_of: Utc) -> Batch:
        batch: Batch = []
        while self._queue and len(batch) < RECORD_BATCH:
            count, item = self._queue.popleft()
            self._taken += 1
            self._highest = max(self._highest, count)
            batch.append(rows_of(item, count, self._origin, utc_of))
        self._notice_missing()
        return batch

    def _notice_missing(self) -> None:
        # A number may be missing because its note is just being put into the queue: not twice in a row.
        missing, self._missing = self._missing, self._highest - self._taken
        if min(missing, self._missing) > 0:
            self._say(
                "missing",
                f"the record of this run has gaps: more than {RECORD_BACKLOG:,} notes waited to be written to "
                f"{self._shown}, and the oldest were dropped",
            )

    def _put_right(self, error: Exception, *, again: bool) -> bool:
        """Does what can be done about an error of the database; whether the rest may be written at once."""
        from tinker_deadlines.record.store import is_damage, is_lost, reason_of

        if isinstance(error, RecordError):
            self._say("refused", str(error))
            self._refuse()
            return True
        if is_damage(error) and not again:
            assert self._store is not None
            return self._set_aside(self._store)
        if is_lost(error):
            self._lost(reason_of(error))
            return False
        # One that no database takes, whatever it is: what it came with is halved until it stands alone.
        batch = self._held.pop(0)
        if len(batch) > 1:
            middle = len(batch) // 2
            self._held[:0] = [batch[:middle], batch[middle:]]
        else:
            self._discarded += len(batch)
            self._say("culprit", f"a note on a call cannot be kept in the record: {reason_of(error)}")
        return True

    def _run_row(self, utc_of: Utc, *, ended: bool) -> dict[str, Any]:

        now = utc_of(clock.monotonic())
        return {
            "id": self.run,
            "started_at": self._started_at,
            "last_at": now,
            "ended_at": now if ended else None,
            "command": self._command,
            "pid": os.getpid(),
            "version": sys.modules["tinker_deadlines"].__version__,
            "python": platform.python_version(),
            "dropped": self.dropped,
        }

    def _set_aside(self, store: Store) -> bool:
        """Puts a damaged file out of the way; whether there is room for a new one."""
        try:
            aside = store.set_aside()
        except OSError as error:
            self._lost(f"it is damaged, and cannot be renamed: {error.strerror}")
            return False
        if aside is not None:
            log.warning("the record %s was damaged: it is %s now, and a new one was begun", self._shown, aside)
        return True

    def _lost(self, reason: str) -> None:
        if len(self._queue) == RECORD_BACKLOG:  # no more room: the oldest go first
            self._discarded += sum(map(len, self._held))
            self._held = []
        self._say(
            "lost",
            f"the record {self._shown} cannot be written now ({reason}). The run goes on; up to {RECORD_BACKLOG:,} "
            "calls are kept in memory and written when that is possible again",
        )

    def _refuse(self) -> None:
        self._refused = True
        self._stop()
        self._queue.clear()
        self._held = []

    @property
    def dropped(self) -> int:
        """Notes that were lost so far, as far as the writer has seen."""
        return max(0, self._missing) + self._discarded

    @property
    def _shown(self) -> str:
        return self.place.shown if self.place is not None else "nowhere"

    def _say(self, what: str, sentence: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("%s", sentence)


def _tables_of(batch: Batch) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = {}
    for name, row in itertools.chain.from_iterable(batch):
        tables.setdefault(name, []).append(row)
    return tables


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _forked() -> None:
    for recorder in list(_recorders):
        recorder.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
