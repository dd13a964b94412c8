"""What is there of one training call on its way? What its caller waits for, its arguments by name, and how it ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import tinker

from tinker_deadlines import clock, limits
from tinker_deadlines.budgets import Budget
from tinker_deadlines.classification import is_capacity_error
from tinker_deadlines.errors import DeadlineExpiry, FencedClientError
from tinker_deadlines.sdk.saves import SAVES
from tinker_deadlines.waiting.timer import timer

__all__ = [
    "Arguments", "Promise", "Submitted", "error_of", "is_about_the_client", "lasts", "named", "said",
    "saved_name", "standard",
]  # fmt: skip

Arguments = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method's name, and what it is called with."""

# The service does not know the session, the model or the request any more.
_GONE = (404, 409, 410)


class Promise(Future[Any]):
    """The future of a training call. It cannot be cancelled, as no training call can."""

    def cancel(self) -> bool:
        """Is refused: what is trained would depend on when it came."""
        return False


class Submitted:
    """A call that is open."""

    __slots__ = ("_overdrawn", "alarm", "blamed", "budget", "number", "promise", "sent_at")

    def __init__(self, number: int, budget: Budget | None, overdrawn: Callable[[Submitted], None]) -> None:
        self.number = number
        self.promise = Promise()
        self.sent_at = clock.monotonic()
        # How often in a row it had the client given up.
        self.blamed = 0
        self.budget = budget
        self._overdrawn = overdrawn
        self.alarm = None if budget is None else timer.set(budget.deadline, self)

    def expire(self) -> None:
        """The budget around whoever made it is spent."""
        self._overdrawn(self)

    def expired(self) -> None:
        """There is nothing else to let go of."""


def standard(value: Any) -> Future[Any]:
    """The standard future underneath what the SDK returned; done where it returned no future."""
    inner = getattr(value, "future", None)
    if callable(inner):
        found: Future[Any] = inner()
        return found
    if isinstance(value, Future):
        return value
    done: Future[Any] = Future()
    done.set_result(value)
    return done


def error_of(future: Future[Any]) -> BaseException | None:
    """What a future that is done ended with."""
    return CancelledError() if future.cancelled() else future.exception()


def said(error: BaseException) -> str:
    """An error in one line that is not too long."""
    return f"{type(error).__name__}: {error}"[:500]


def named(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, so that it is the same call however they are passed."""
    try:
        bound = inspect.signature(getattr(tinker.TrainingClient, method)).bind(None, *args, **kwargs)
    except (TypeError, ValueError):
        return {"args": args, **kwargs}
    return dict(list(bound.arguments.items())[1:])


def lasts(call: Arguments) -> bool:
    """Whether what a person saves can be counted on: it is neither overwritten nor gone within a day or so."""
    given = named(*call)
    ttl_s = given.get("ttl_seconds")
    return not given.get("overwrite") and (ttl_s is None or ttl_s >= limits.CHECKPOINT_TTL_S)


def saved_name(call: Arguments) -> str:
    """The name that a call saves under; "" where it saves nothing."""
    return str(named(*call).get("name") or "") if call[0] in SAVES else ""


def is_about_the_client(error: BaseException, blamed: int = 0) -> bool:
    """Whether an error says something of the service or of the client rather than of the call.

    Args:
        error: What the call ended with.
        blamed: How often in a row it had its client given up before.
    """
    if blamed + 1 >= limits.RECOVERIES_FOR_ONE:
        return False  # whatever it says: each time it was sent, it took the client with it
    if isinstance(error, (DeadlineExpiry, FencedClientError, CancelledError)) or is_capacity_error(error):
        return True
    if getattr(error, "status_code", None) in _GONE:
        return True
    # What the SDK says of a client of which an earlier call failed, and of a poll that was refused again and again.
    words: dict[type[BaseException], str] = {RuntimeError: "poisoned", ValueError: "Error retrieving result"}
    return type(error) in words and words[type(error)] in str(error)
