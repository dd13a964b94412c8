"""Who shares a session? Service clients that were made alike, and equal sampling clients on it are one.

The SDK makes a session for each service client when it connects. Here the second of two that were made alike, with the
same address, key and options, is given the first one's. They stay objects of their own: closing one takes the session
away from that one, and only the last ends it on the service. A client that was dropped without being closed counts as
one that uses it, because without us its session would have gone on as well; it ends with the process.

A session that was found dead is given to nobody who comes later, and is finished once nobody holds a client of it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import hashlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextvars import ContextVar
from typing import Any, Literal

import httpx

from tinker_deadlines import clock
from tinker_deadlines.calls import Call, board
from tinker_deadlines.limits import EXIT_PAUSE_S, LAST_WORDS_S, sessions_allowed, sharing_wanted
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.policy import limit_for
from tinker_deadlines.recovery.sessions import session_budget
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.facts import doubt_client, is_in_use
from tinker_deadlines.sdk.outages import outages
from tinker_deadlines.sdk.samplers import Samplers, weights_of
from tinker_deadlines.sdk.traffic import call_in_context

__all__ = ["Shared", "Slot", "Status", "apart", "close_at_exit", "finish", "shared"]

log = logging.getLogger("tinker_deadlines")

Status = Literal["success", "errored", "interrupted"]
"""How a session ended, in the SDK's words."""

_GONE = 410
# Errors before a connection is there: what was to be sent was not.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

# Whether sessions that are made here are ours alone: those of second attempts and of recovered clients.
_apart: ContextVar[bool] = ContextVar("tinker_deadlines_apart", default=False)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within it, a service client gets a session of its own, which nobody else is given."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


class Slot:
    """A session of this process: who may be given it, and how many have it."""

    __slots__ = ("address", "elsewhere", "holder", "key", "made", "ours", "samplers", "session", "since", "users")

    def __init__(self, key: bytes | None, address: str, *, ours: bool) -> None:
        self.key = key
        self.address = address
        # Made for a purpose of this library.
        self.ours = ours
        self.since = clock.monotonic()
        self.made: Future[None] = Future()
        # What the session's requests go through, and its name; from when it is made.
        self.holder: Any = None
        self.session = ""
        # Service clients that have it and were not closed.
        self.users = 0
        # Whether a sampling client of it went to another process, where it may outlive this one.
        self.elsewhere = False
        self.samplers = Samplers()


class Shared:
    """The sessions of this process. Safe from any thread."""

    def __init__(self) -> None:
        self.active = False
        self.sharing = False
        self._everybody = False
        # Reentrant: a signal handler may make a client while this thread makes one.
        self._lock = threading.RLock()
        self._slots: dict[bytes, Slot] = {}
        self._open: dict[str, Slot] = {}
        # Given to nobody any more, and waiting for those who have them to let go.
        self._retired: list[Slot] = []

    def start(self, *, everybody: bool = True, share: bool | None = None) -> None:
        """Begins to count the sessions that are made, and to share them.

        Args:
            everybody: Whether this is for every client, and not for single ones that are guarded.
            share: Whether clients that were made alike share a session; by default what the environment says.

        Raises:
            ValueError: the environment says neither "on" nor "off".
        """
        if everybody and (share is not None or not self._everybody):
            self.sharing = share if share is not None else sharing_wanted()
        self._everybody = self._everybody or everybody
        if not self.active:
            self.active = True
            watcher.listeners = (*watcher.listeners, self._listen)
            atexit.register(close_at_exit)

    def stop(self) -> None:
        """Leaves the sessions to those who have them."""
        if self.active:
            self.active = self.sharing = self._everybody = False
            watcher.listeners = tuple(each for each in watcher.listeners if each != self._listen)
            atexit.unregister(close_at_exit)
        self._sweep()
        with self._lock:
            for slot in self._open.values():
                slot.samplers.clear()
            self._slots.clear()
            self._open.clear()
            self._retired.clear()
            session_budget.clear()
        outages.clear()

    def _listen(self, name: str, facts: Mapping[str, Any]) -> None:
        """Takes in what the watcher tells of probes."""
        session = sessions.get(facts.get("session")) if name == "probe" else None
        origin = getattr(getattr(session, "way", None), "origin", None)
        if session is not None and origin is not None:
            slot = self._open.get(session.id)
            address = slot.address if slot is not None else origin
            outages.probed(address, origin, facts.get("verdict"), answered=bool(facts.get("fresh")))

    def forked(self) -> None:
        """A forked child has no use for its parent's sessions, nor may it finish them."""
        _inherited.append((self._slots, self._open))  # kept, because the SDK's finalizers reckon with its loop
        self._lock = threading.RLock()
        self._slots, self._open, self._retired = {}, {}, []
        session_budget.clear()
        outages.forked()

    # Making -----------------------------------------------------------------------------------------------------------

    def session_for(self, make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Gives a service client what its requests go through, with a session that was made like its own.

        Raises:
            SessionBudgetError: it would be one too many.
            StuckCallError: the service has been down for as long as the call may take.
        """
        ours = _apart.get()
        address = str(arguments.get("base_url") or os.environ.get("TINKER_BASE_URL") or "").rstrip("/")
        if _on_sdk_loop():
            return make(**arguments)  # it refuses in its own words
        key = _key_of(arguments) if self.sharing and not ours else None
        while True:
            slot, is_new = self._slot_for(key, address, ours=ours)
            if is_new:
                return self._make(slot, make, arguments)
            if not _is_made(slot):
                self._unlist(slot)
                continue
            with self._lock:
                if self._slots.get(slot.key or b"") is slot:
                    slot.users += 1
                    if slot.users == 2:
                        private.known_losses_may_come_again(slot.holder)
                    return slot.holder

    def _slot_for(self, key: bytes | None, address: str, *, ours: bool) -> tuple[Slot, bool]:
        with self._lock:
            slot = self._slots.get(key) if key is not None else None
            why = "" if slot is None else _why_not(slot)
            if slot is not None and why:
                self._retire(slot, why)
                slot = None
            if slot is not None:
                return slot, False
            slot = Slot(key, address, ours=ours)
            if key is not None:
                self._slots[key] = slot
            return slot, True

    def _make(self, slot: Slot, make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        try:
            self._sweep()
            if self._everybody or slot.ours:
                outages.wait_out(slot.address)
            number = self._begin()
            try:
                holder = make(**arguments)
            except BaseException as error:
                with self._lock:
                    (session_budget.refused if _made_nothing(error) else session_budget.lost)(number)
                raise
        except BaseException as error:
            self._unlist(slot)
            if isinstance(error, Exception):
                slot.made.set_exception(error)
            else:
                slot.made.cancel()  # it is this thread's own end: those who wait make their own
            raise
        with self._lock:
            slot.holder, slot.session, slot.users = holder, private.session_held_by(holder) or "", 1
            session_budget.made(number, slot.session)
            self._open[slot.session] = slot
        slot.made.set_result(None)
        return holder

    def _begin(self) -> int:
        most = sessions_allowed() if self._everybody else sys.maxsize
        with self._lock:
            number = session_budget.begin(most)
            warning = session_budget.warning(most)
        if warning:
            log.warning("%s", warning)
        return number

    async def sampler_for(self, make: Callable[..., Any], holder: Any, arguments: Mapping[str, Any]) -> Any:
        """Gives a session's sampling client of some weights, the one that there is or another."""
        slot = self.slot_of(holder)
        key = weights_of(arguments) if self.sharing else None
        try:
            if slot is None or key is None:
                return await make(holder, **arguments)
            return await slot.samplers.get(key, functools.partial(make, holder, **arguments), _limit_s())
        except Exception as error:
            if slot is not None and getattr(error, "status_code", None) == _GONE:
                sessions.of(slot.session).gone = True
            raise

    # Letting go -------------------------------------------------------------------------------------------------------

    def slot_of(self, holder: Any) -> Slot | None:
        """The session that requests go through there, where it was made here; an unpickled client's was not."""
        slot = self._open.get(private.session_held_by(holder) or "")
        return slot if slot is not None and slot.holder is holder else None

    def evict(self, client: Any) -> bool:
        """Has a client that failed handed out no more: a sampling client, or a service client with its session.

        Returns:
            Whether it was the one to be handed out, rather than one that has taken its place since.
        """
        slot = self.slot_of(private.holder_of(client))
        if type(client).__name__ != "ServiceClient":
            doubt_client(client)
            return slot is not None and slot.samplers.drop(client)
        with self._lock:
            if slot is None or self._slots.get(slot.key or b"") is not slot:
                return False
            self._retire(slot, "a client of it failed")
            return True

    def saved(self, path: str) -> None:
        """Hands out no client of what lay under a path before something was saved there."""
        for slot in list(self._open.values()):
            slot.samplers.saved(path)

    def _unlist(self, slot: Slot) -> None:
        with self._lock:
            if slot.key is not None and self._slots.get(slot.key) is slot:
                del self._slots[slot.key]

    def _retire(self, slot: Slot, why: str) -> None:
        self._unlist(slot)
        slot.samplers.clear()
        if slot.session in self._open:
            self._retired.append(slot)
            log.warning("session %s is shared with no further client: %s", slot.session, why)

    def _sweep(self) -> None:
        """Finishes the sessions that were found dead and of which nobody holds a client any more."""
        with self._lock:
            free = [slot for slot in self._retired if not slot.elsewhere and not _is_busy(slot)]
            free = [slot for slot in free if not is_in_use(slot.session)]
            self._retired = [slot for slot in self._retired if slot not in free]
        for slot in free:
            if slot.session in self._open:
                self._finish(slot, "interrupted")

    def _finish(self, slot: Slot, status: Status) -> Future[Any] | None:
        """Finishes a session, whoever has it."""
        with self._lock:
            self._unlist(slot)
            slot.users = 1
        return finish(private.service_around(slot.holder), status)

    def is_last(self, service: Any) -> bool:
        """Whether closing this service client ends its session; where others have it, it is taken from this one."""
        slot = self.slot_of(private.holder_of(service))
        if slot is None:
            return True
        with self._lock:
            slot.users -= 1
            if slot.users > 0:
                private.detach(service)
                return False
            self._unlist(slot)
            return True

    def note_end(self, slot: Slot, closing: Any) -> None:
        """Notes how the end of a session went, when it is known."""

        def ended(future: Future[Any]) -> None:
            with self._lock:
                self._open.pop(slot.session, None)
                confirmed = not future.cancelled() and future.exception() is None
                (session_budget.finished if confirmed else session_budget.orphaned)(slot.session)

        future = closing.future() if hasattr(closing, "future") else closing
        if isinstance(future, Future):
            future.add_done_callback(ended)

    def close_all(self, status: Status, wait_s: float) -> None:
        """Finishes every session that nobody needs any more, those of clients that were not closed among them.

        One that has calls in flight is left to end by itself, and so is one that another process was given.

        Args:
            status: How the run ended.
            wait_s: Seconds to wait for the service to hear of it, in all.
        """
        with self._lock:
            slots = [slot for slot in self._open.values() if self._everybody or slot.ours]
        ending = {}
        for slot in slots:
            future = None if slot.elsewhere or _is_busy(slot) else _ending(slot, status, wait_s)
            if future is not None:
                self._unlist(slot)
                self.note_end(slot, future)
                ending[future] = slot
        for future in wait(ending, wait_s).not_done:
            session_budget.orphaned(ending[future].session)
        if ending:
            # Real time on purpose: this is about threads, not about calls.
            threading.Event().wait(EXIT_PAUSE_S)


shared = Shared()
_inherited: list[Any] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.forked)

# What is done on behalf of nobody in particular is not on the board.
_NOT_COUNTED = Call("rest", 0.0, "nobody", "the end of a session")


def finish(service: Any, status: Status = "success") -> Future[Any] | None:
    """Finishes the session of a service client, without waiting for it; versions without `close` let it run out."""
    close = getattr(service, "close", None)
    if close is None:
        return None
    token = call_in_context.set(_NOT_COUNTED)
    try:
        closing = close(status)
    except Exception as error:
        log.debug("a session could not be finished: %s", error)
        return None
    finally:
        call_in_context.reset(token)
    return closing.future() if hasattr(closing, "future") else None


def close_at_exit(status: Status | None = None) -> None:
    """Finishes the sessions of this process on its way out; bounded."""
    if status is None:
        error = getattr(sys, "last_value", None)  # what the interpreter has printed, if anything
        status = "success" if error is None else "errored" if isinstance(error, Exception) else "interrupted"
    shared.close_all(status, LAST_WORDS_S)


def _ending(slot: Slot, status: Status, limit_s: float) -> Future[None] | None:
    """Asks the service to end a session; `None` where this version of the SDK cannot."""
    loop = private.sdk_loop()
    request = None if loop is None else private.finish(slot.holder, slot.session, status, limit_s)
    if loop is None or request is None:
        return None
    token = call_in_context.set(_NOT_COUNTED)
    try:
        return asyncio.run_coroutine_threadsafe(request, loop)
    finally:
        call_in_context.reset(token)


def _limit_s() -> float:
    return limit_for("connect", None, None).seconds


def _on_sdk_loop() -> bool:
    loop = asyncio._get_running_loop()
    return loop is not None and loop is private.sdk_loop()


def _is_made(slot: Slot) -> bool:
    """Waits until a session is made; false when that takes too long, or its maker was stopped.

    Raises:
        Exception: what its making failed with.
    """
    try:
        slot.made.result(max(0.0, slot.since + _limit_s() - clock.monotonic()))
    except CancelledError:
        return False
    except TimeoutError:
        if not slot.made.done():
            return False
        slot.made.result(0)  # its own error, or it was made in this very moment
    return True


def _is_busy(slot: Slot) -> bool:
    return any(call.session == slot.session for call in board.pending())


def _why_not(slot: Slot) -> str:
    """Why a session is given to nobody any more; "" where it is."""
    if not slot.made.done():
        return "" if clock.monotonic() - slot.since < _limit_s() else "it takes too long to be made"
    if private.is_closed(slot.holder):
        return "it was closed"
    seen = sessions.get(slot.session)
    return "" if seen is None else seen.why_dead()


def _key_of(arguments: Mapping[str, Any]) -> bytes | None:
    """What service clients that were made alike have in common; `None` for one with options that cannot be compared.

    What the SDK reads of the environment when it connects belongs to it. A digest: it holds a key, and lives on.
    """
    prefixes = ("TINKER_", "CLOUDFLARE_ACCESS_")
    environment = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    try:
        text = repr((_plain(arguments), _plain(environment)))
    except TypeError:
        return None
    return hashlib.sha256(text.encode()).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((str(key), _plain(each)) for key, each in value.items() if each not in (None, {}))
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be compared")


def _made_nothing(error: BaseException) -> bool:
    """Whether a creation that failed so has certainly made no session: it was refused, or was never sent."""
    if getattr(error, "status_code", None) is not None or isinstance(error.__cause__, _NOT_SENT):
        return True
    try:
        path = str(getattr(error, "request").url.path)  # noqa: B009  (a property that may raise)
    except Exception:
        return isinstance(error, ValueError)
    return not path.endswith("/create_session")


# What takes the place of the SDK's own ------------------------------------------------------------------------------


def sharing_session(make: Callable[..., Any]) -> Callable[..., Any]:
    """What service clients connect with instead of the SDK's class."""

    @functools.wraps(make, updated=())
    def make_or_share(*args: Any, **arguments: Any) -> Any:
        if args or not shared.active or not private.is_session_made_by(arguments):
            return make(*args, **arguments)
        return shared.session_for(make, arguments)

    return make_or_share


def sharing_sampler(make: Callable[..., Any]) -> Callable[..., Any]:
    """What sampling clients are made with instead of the SDK's coroutine function."""

    @functools.wraps(make)
    async def make_or_share(holder: Any, **arguments: Any) -> Any:
        return await shared.sampler_for(make, holder, arguments)

    return make_or_share


def closing_the_last(close: Callable[..., Any]) -> Callable[..., Any]:
    """`ServiceClient.close`, which ends a session when no other service client has it."""
    signature = inspect.signature(close)

    @functools.wraps(close)
    def close_or_let_go(self: Any, *args: Any, **kwargs: Any) -> Any:
        signature.bind(self, *args, **kwargs)  # a call that is wrong closes nothing
        slot = shared.slot_of(private.holder_of(self))
        if not shared.is_last(self) or slot is None:
            return close(self, *args, **kwargs)
        closing = close(self, *args, **kwargs)
        shared.note_end(slot, closing)
        return closing

    return close_or_let_go


def handing_out(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that makes a sampling client usable in another process, where its session goes on."""

    @functools.wraps(method)
    def hand_out(self: Any, *args: Any, **kwargs: Any) -> Any:
        slot = shared.slot_of(private.holder_of(self))
        if slot is not None:
            slot.elsewhere = True
        return method(self, *args, **kwargs)

    return hand_out
