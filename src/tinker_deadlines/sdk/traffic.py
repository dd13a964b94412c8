"""Which call does an HTTP exchange belong to? The one whose context it runs in.

The SDK runs each call in a task that copies its caller's context, and httpx runs inside that task: a context variable
set around the public method is seen by every request the call makes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import httpx

from tinker_deadlines import clock
from tinker_deadlines.calls import Call, Traffic, board
from tinker_deadlines.liveness.signs import Session, sessions
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.sdk.host import host, reached

__all__ = ["call_in_context", "start", "stop", "watching"]

call_in_context: ContextVar[Call | None] = ContextVar("tinker_deadlines_call", default=None)

# Loops that outlive the call they were started in and inherit its context: their traffic is the session's.
_SESSION_PATHS = ("/session_heartbeat", "/retrieve_futures", "/telemetry", "/client/dynamic_config", "/cancel_future")

# What the service says that it has paused a call for: by status, and by the state of its queue.
_PAUSES = {"402": "billing", "paused_capacity": "capacity", "paused_rate_limit": "rate limit"}
# An answer from here on says that the service fails; one that is overloaded lives.
_FAILURE = 500
_OVERLOADED = 529
# What the service answers to the heartbeat of a session that has ended.
_GONE = 410
# Longer answers are results.
_LONGEST_STATE = 4096

_original: Callable[..., Any] | None = None


def watching() -> bool:
    """Whether traffic is watched now, so that a call without any is known not to have been sent."""
    return _original is not None


def start() -> None:
    """Watches every request of every `httpx.AsyncClient` of this process that a call of ours makes."""
    global _original
    if _original is not None:
        return
    original = httpx.AsyncClient.send

    @functools.wraps(original)
    async def send(self: httpx.AsyncClient, request: httpx.Request, *args: Any, **kwargs: Any) -> httpx.Response:
        call, path = call_in_context.get(), request.url.path
        if path.endswith(_SESSION_PATHS):
            response = await original(self, request, *args, **kwargs)
            _note_session(call, path, request, response.status_code)
            return response
        # What is sent for a call that is over is no evidence on how it ended.
        if call is None or call.id not in board.in_flight:
            return await original(self, request, *args, **kwargs)
        return await _send_for(call, path, original, self, request, *args, **kwargs)

    send._tinker_deadlines = True  # type: ignore[attr-defined]
    _original = original
    httpx.AsyncClient.send = send  # type: ignore[method-assign]


async def _send_for(
    call: Call,
    path: str,
    send: Callable[..., Any],
    client: httpx.AsyncClient,
    request: httpx.Request,
    *args: Any,
    **kwargs: Any,
) -> httpx.Response:
    traffic = call.traffic
    if traffic is None:
        traffic = call.traffic = Traffic()
    if host() is None:
        reached(request.url.host)
    answer, good, queue = "no answer", False, None
    try:
        response: httpx.Response = await send(client, request, *args, **kwargs)
        status = response.status_code
        answer, good, queue = str(status), status < 500 or status == _OVERLOADED, _queue_of(response)
        return response
    except BaseException as error:
        answer = type(error).__name__
        raise
    finally:
        if call.id in board.in_flight:
            name = path.rpartition("/")[2]
            if answer == "409" and traffic.failures:
                # The name is taken, and an earlier answer of this very call is missing.
                look_up = getattr(call.owner, "look_up", None)
                if look_up is not None:
                    look_up()
            traffic.ended(f"{name} {answer}", good=good, poll=name == "retrieve_future")
            _note_pause(call, traffic, answer, queue)
            session = sessions.get(call.session)
            if good and session is not None:
                session.seen()
                _note_way(session, request)


def _queue_of(response: httpx.Response) -> str | None:
    """The queue state that an answer reports; `None` where it reports none.

    It comes with 408, and in some versions with 200 and a short JSON text of type "try_again".
    """
    if response.status_code not in (200, 408) or not response.is_stream_consumed:
        return None
    content = response.content
    if len(content) > _LONGEST_STATE or b"queue_state" not in content:
        return None
    try:
        state = response.json().get("queue_state")
    except (AttributeError, ValueError):
        return None
    return state if isinstance(state, str) else None


def _note_pause(call: Call, traffic: Traffic, answer: str, queue: str | None) -> None:
    if queue is not None:
        traffic.queue_state = queue
    reason = _PAUSES.get(answer) or _PAUSES.get(queue or "", "")
    if reason or traffic.paused:
        traffic.pause(reason)
        if reason:
            watcher.paused(call)


def _note_session(call: Call | None, path: str, request: httpx.Request, status: int) -> None:
    """Notes what the SDK asks for all calls of a session together: polls are signs of life, heartbeats are noted."""
    if status >= _FAILURE:
        return
    if path.endswith("/retrieve_futures"):
        session = sessions.get(call.session if call is not None else None)
        if session is not None:
            session.seen()
    elif path.endswith("/session_heartbeat"):
        try:
            session = sessions.get(json.loads(request.content).get("session_id"))
        except (AttributeError, TypeError, ValueError, httpx.RequestNotRead):
            return
        if session is not None:
            session.heartbeat_at = clock.monotonic()
            session.gone = session.gone or status == _GONE


def _note_way(session: Session, request: httpx.Request) -> None:
    way = session.way
    if way is not None and way.origin is None:
        way.origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"


def stop() -> None:
    """Stops watching; where somebody patched on top meanwhile, what is below theirs only passes on."""
    global _original
    if _original is None:
        return
    if getattr(httpx.AsyncClient.send, "_tinker_deadlines", False):
        httpx.AsyncClient.send = _original  # type: ignore[method-assign]
    _original = None
