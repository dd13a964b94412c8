"""How is a call bounded? The hot path: a timer for futures, workers for blocking calls, a handle for awaitables."""

from tinker_deadlines.waiting import forks as _forks  # noqa: F401  (registers what happens in a forked child)
from tinker_deadlines.waiting.blocking import call_with_deadline
from tinker_deadlines.waiting.futures import DeadlineFuture, wait_with_deadline

__all__ = ["DeadlineFuture", "call_with_deadline", "wait_with_deadline"]
