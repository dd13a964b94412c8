"""How does what one run learned reach the next? It is read from the record at the start and added to it at the end.

The calls of the run, its probes and its expiries are recorded as well, unless `TINKER_DEADLINES_RECORD` is "off".
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Any

from tinker_deadlines.budgets import run_within
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.policy import merge
from tinker_deadlines.record import Recorder, RecordError, start
from tinker_deadlines.record.place import RECORD_VARIABLE
from tinker_deadlines.sdk.hook import tinker_first
from tinker_deadlines.sdk.host import host, when_reached

__all__ = ["Memory", "install", "remember", "uninstall"]

log = logging.getLogger("tinker_deadlines")

_memory: Memory | None = None
_lock = threading.RLock()


class Memory:
    """The record of this process, and the link between it and what is learned, which is kept for each service apart.

    Args:
        recorder: The record, begun.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._pid = os.getpid()
        self._closed = False
        watcher.listeners = (*watcher.listeners, self._listen)
        when_reached(self._begin_to_load)
        # After the recorder's own, so that it runs before it.
        atexit.register(self.close)

    def _begin_to_load(self, host: str) -> None:
        # Reading may take seconds on a slow disk, and a call that comes before it just has a colder limit.
        thread = threading.Thread(target=self._load, args=(host,), name="tinker-deadlines-remember", daemon=True)
        run_within(None, thread.start)

    def _load(self, host: str) -> None:
        from tinker_deadlines.sdk import learning  # it imports the SDK, which a script may never do

        prefix = f"{host} "
        try:
            kept = self.recorder.load_state()
            learning.law.load({key.removeprefix(prefix): kept[key] for key in kept if key.startswith(prefix)})
        except Exception:
            log.exception("what earlier runs learned is left out")

    def _listen(self, name: str, facts: dict[str, Any]) -> None:
        if name == "probe":
            self.recorder.probe(facts)
        else:
            self.recorder.event(name, facts)

    def close(self) -> None:
        """Adds what was learned to what is kept, and ends the record; bounded. May be called twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        watcher.listeners = tuple(each for each in watcher.listeners if each != self._listen)
        try:
            from tinker_deadlines.sdk import learning

            learning.settle()
            learned = learning.law.delta(take=True)
            delta = {f"{host()} {key}": part for key, part in learned.items() if part["completed"]}
            if delta:
                self.recorder.merge_state(delta, merge)
        except Exception:
            log.exception("what this run learned could not be kept")
        self.recorder.close()


def remember(*, command: str = "") -> Memory | None:
    """Begins to record this process and to go on from what earlier runs learned; once, however often it is called.

    Args:
        command: What is run. Only the script's own name is kept.

    Returns:
        What ends it; `None` where the record is off, or cannot be had and nobody asked for one.

    Raises:
        RecordError: `TINKER_DEADLINES_RECORD` asks for a record that cannot be had.
    """
    global _memory
    with _lock:
        if _memory is None:
            try:
                recorder = start(command=command)
            except RecordError as error:
                if os.environ.get(RECORD_VARIABLE):
                    raise
                log.info("nothing is recorded: %s", error)
                return None
            if recorder.place is None:
                return None
            _memory = Memory(recorder)
        return _memory


def install() -> None:
    """Bounds every call of every Tinker client in this process, those made before included.

    Calls that run into their limit raise `StuckCallError`. Limits fit the work and learn from this run and from the
    earlier ones in the record, see `TINKER_DEADLINES_POLICY` and `TINKER_DEADLINES_RECORD`. Installing twice does
    nothing more.

    Raises:
        RecordError: `TINKER_DEADLINES_RECORD` asks for a record that cannot be had.
        ValueError: `TINKER_DEADLINES_POLICY` names no policy.
    """
    tinker_first()
    from tinker_deadlines.sdk import install as sdk

    sdk.install()
    remember()


def uninstall() -> None:
    """Puts every method back exactly as it was; calls in flight stay bounded. Guarded clients are let go as well.

    What was learned is kept, and the record ends. Where somebody patched a method after us, ours stays below theirs
    and passes everything on.
    """
    tinker_first()
    from tinker_deadlines.sdk import install as sdk

    global _memory
    sdk.uninstall()
    with _lock:
        memory, _memory = _memory, None
    if memory is not None:
        memory.close()
