"""How is a training client made once more? As it was made first, or from a checkpoint, in a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import tinker

from tinker_deadlines.budgets import run_within
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.recovery.digest import digest_of
from tinker_deadlines.sdk import hedge, private
from tinker_deadlines.sdk.facts import facts_of

__all__ = ["Making", "Place", "finish", "place_of", "remade", "remaking"]

# Clients that recovery makes are not made recoverable once more.
_remaking: ContextVar[bool] = ContextVar("tinker_deadlines_remaking", default=False)


def remaking() -> bool:
    """Whether the client that is being made here is one that recovery makes."""
    return _remaking.get()


@contextmanager
def _by_recovery() -> Iterator[None]:
    token = _remaking.set(True)
    try:
        yield
    finally:
        _remaking.reset(token)


class Making(NamedTuple):
    """The call that made a training client."""

    method: str
    arguments: Mapping[str, Any]

    @property
    def repeatable(self) -> bool:
        """Whether the same call gives the same weights again: from a checkpoint, or with the seed it was made with."""
        return "from_state" in self.method or self.arguments.get("seed") is not None

    @property
    def digest(self) -> str:
        """Tells two makings apart; without what a key may be in."""
        shown = {name: each for name, each in self.arguments.items() if name != "weights_access_token"}
        return digest_of([self.method, shown])


class Place(NamedTuple):
    """Where a client's session is, so that another can be begun there."""

    base_url: str | None
    api_key: str | None
    options: tuple[tuple[str, Any], ...]

    def service(self) -> Any:
        """A service client there."""
        return tinker.ServiceClient(base_url=self.base_url, api_key=self.api_key, **dict(self.options))


def place_of(client: Any) -> Place:
    """Where the session of a training client is."""
    holder, session = private.holder_of(client), sessions.get(private.session_of(client))
    way = session.way if session is not None else None
    origin = way.origin if way is not None else None
    return Place(private.address_of(holder) or origin, private.key_of(holder), facts_of(client).options)


def remade(place: Place, making: Making | None, path: str) -> tuple[Any, Any]:
    """A training client in a session of its own: from a checkpoint with its optimizer, or as it was made first.

    Returns:
        The service client, to be closed by whoever asked, and the training client.

    Raises:
        BaseException: whatever the SDK raises; the session is closed then.
    """
    from tinker_deadlines.sdk.install import guard  # it lies above this

    with _by_recovery():
        service = guard(place.service())
        try:
            if path:
                extra = _for_restoring(making)
                made = service.create_training_client_from_state_with_optimizer(path, **extra)
            else:
                assert making is not None, "there is nothing to make it from"
                made = getattr(service, making.method)(**making.arguments)
            return service, made.result() if hasattr(made, "result") else made
        except BaseException:
            finish(service)
            raise


def _for_restoring(making: Making | None) -> dict[str, Any]:
    names: tuple[str, ...] = ("user_metadata", "optimizer")
    if making is not None and "from_state" in making.method:
        names = (*names, "weights_access_token", "base_model")
    given = making.arguments if making is not None else {}
    return {name: given[name] for name in names if given.get(name) is not None}


def finish(service: Any) -> None:
    """Ends the session of a service client without waiting for it.

    On a thread of its own: to close a client blocks for as long as it is still connecting.
    """
    thread = threading.Thread(target=hedge.finish, args=(service,), name="tinker-deadlines-finish", daemon=True)
    run_within(None, thread.start)
