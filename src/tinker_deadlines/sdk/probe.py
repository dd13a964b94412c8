"""Is it the SDK's loop, the session, or the service? Three questions, asked side by side, each with its own bound."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import httpx

from tinker_deadlines.budgets import run_within
from tinker_deadlines.calls import SAMPLING_KINDS, TRAINING_KINDS, TinkerCallKind, board
from tinker_deadlines.liveness.stacks import stack_of
from tinker_deadlines.liveness.verdict import Answers
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.traffic import call_in_context

__all__ = ["Way", "anybody_at", "ask", "pools"]

_HTTP_PAUSED = 402


class Way:
    """How to ask one session something."""

    def __init__(self, holder: Any, session: str) -> None:
        self._holder = weakref.ref(holder)
        self.session = session
        # The service's address, as its own requests have it.
        self.origin: str | None = None

    @property
    def holder(self) -> Any:
        """What the session's requests go through; `None` when it is gone."""
        return self._holder()


def ask(way: Way, limit_s: float) -> Answers:
    """Asks whether the SDK's loop runs, the session answers, and a fresh connection is answered.

    Args:
        way: How to ask the session.
        limit_s: Seconds for each question, asked side by side: it blocks little longer.
    """
    fresh: Future[tuple[bool, str]] = Future()
    thread = threading.Thread(target=_ask_afresh, args=(way.origin, limit_s, fresh), daemon=True)
    thread.name = "tinker-deadlines-probe"
    run_within(None, thread.start)
    loop = private.sdk_loop()
    if loop is None:
        return Answers(fresh=_waited(fresh, limit_s)[0])
    runs: Future[None] = Future()
    loop.call_soon_threadsafe(_set, runs)
    asked = _ask_session(way, loop, limit_s)
    try:
        runs.result(limit_s)
    except TimeoutError:
        for each in asked:
            each.cancel()  # when the loop runs again, nobody wants to know any more
        return Answers(loop=False, fresh=_waited(fresh, 0.1)[0], stack=stack_of(private.sdk_thread()))
    session, paused = _outcome(asked, limit_s)
    answered, paused_too = _waited(fresh, limit_s)
    return Answers(loop=True, session=session, fresh=answered, paused=paused or paused_too)


def _set(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def pools(session: str, in_use: frozenset[str]) -> frozenset[str]:
    """Which connections of a session to ask over: those that its calls wait for now.

    Each purpose has connections of its own, which die by themselves: a heartbeat over its own is answered while
    nothing that matters is.

    Args:
        session: The session's name.
        in_use: The purposes for which it has connections.
    """
    found = set()
    for call in list(board.in_flight.copy().values()):
        traffic = call.traffic
        if call.session != session or traffic is None or call.kind not in _POOLS:
            continue
        submits, polls = _POOLS[call.kind]
        together = call.kind in SAMPLING_KINDS and not traffic.polls and "retrieve_futures" in in_use
        found.add(submits if traffic.alive_at is None else "retrieve_futures" if together else polls)
    return frozenset(found) & in_use or frozenset({"session"})


_POOLS: dict[TinkerCallKind, tuple[str, str]] = {
    **dict.fromkeys(SAMPLING_KINDS, ("sample", "retrieve_promise")),
    **dict.fromkeys(TRAINING_KINDS, ("train", "retrieve_promise")),
}


def _ask_session(way: Way, loop: asyncio.AbstractEventLoop, limit_s: float) -> list[Future[None]]:
    holder = way.holder
    if holder is None:
        return []
    token = call_in_context.set(None)
    try:
        return [
            asyncio.run_coroutine_threadsafe(private.heartbeat(holder, way.session, pool, limit_s), loop)
            for pool in sorted(pools(way.session, private.pools_of(holder)))
        ]
    finally:
        call_in_context.reset(token)


def _outcome(asked: list[Future[None]], limit_s: float) -> tuple[bool | None, str]:
    """Whether the session answered over any of its connections: ending its calls ends those over all of them."""
    if not asked:
        return None, ""
    wait(asked, limit_s)
    outcomes = [_answer(each) for each in asked]
    return any(answered for answered, _ in outcomes), next((paused for _, paused in outcomes if paused), "")


def _answer(asked: Future[None]) -> tuple[bool, str]:
    """Whether a question was answered, in whatever words; a failure of the service is no answer."""
    try:
        asked.result(0)
    except (TimeoutError, CancelledError):
        asked.cancel()
        return False, ""
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            return False, ""
        return status < 500, "billing" if status == _HTTP_PAUSED else ""
    return True, ""


def anybody_at(origin: str | None, limit_s: float) -> tuple[bool, str]:
    """Asks over a connection that nothing else uses. Without credentials: any answer shows that somebody is there.

    Args:
        origin: The service's address; `None` while it is not known: nobody answers.
        limit_s: Seconds for each part of the exchange.

    Returns:
        Whether somebody answered, and what the service says that it is paused for.
    """
    if origin is None:
        return False, ""
    try:
        status = httpx.get(f"{origin}/api/v1/healthz", timeout=limit_s).status_code
    except Exception:
        return False, ""
    return status < 500, "billing" if status == _HTTP_PAUSED else ""


def _ask_afresh(origin: str | None, limit_s: float, answer: Future[tuple[bool, str]]) -> None:
    answer.set_result(anybody_at(origin, limit_s))


def _waited(future: Future[tuple[bool, str]], limit_s: float) -> tuple[bool | None, str]:
    try:
        return future.result(limit_s)
    except TimeoutError:
        return None, ""
