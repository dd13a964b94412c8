"""Where does recovery do its work? On threads that nobody waits for: neither its callers nor the SDK's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tinker_deadlines.budgets import run_within
from tinker_deadlines.errors import AbandonedCallsError
from tinker_deadlines.waiting.workers import Job, workers

__all__ = ["on_thread", "on_worker"]


def on_thread(run: Callable[[], None]) -> None:
    """Runs what may take long, outside of every budget."""
    thread = threading.Thread(target=run, name="tinker-deadlines-recovery", daemon=True)
    run_within(None, thread.start)


def on_worker(run: Callable[[], None]) -> None:
    """Runs what is short; on a thread of its own where there are no workers left."""
    try:
        workers.start(_Errand(run))
    except AbandonedCallsError:
        on_thread(run)


class _Errand(Job):
    __slots__ = ("_run",)

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run

    def run(self) -> None:
        self._run()

    def tell(self) -> None:
        pass
