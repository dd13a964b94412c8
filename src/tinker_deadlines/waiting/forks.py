"""What survives a fork? Nothing of ours: a forked child has none of its parent's threads and starts afresh."""

from __future__ import annotations

import os

from tinker_deadlines import budgets
from tinker_deadlines.calls import board
from tinker_deadlines.waiting import futures
from tinker_deadlines.waiting.timer import timer
from tinker_deadlines.waiting.workers import workers

__all__: list[str] = []


def _start_afresh() -> None:
    futures.forked()
    timer.forked()
    workers.forked()
    board.clear()
    budgets.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
