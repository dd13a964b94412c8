"""What happens when a bounded method is called? It is let through, or its call gets a future of ours and an alarm."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

import tinker

from tinker_deadlines.calls import SAMPLING_KINDS, Call, TinkerCallKind, Work, board
from tinker_deadlines.errors import DeadlineExpiry, FencedClientError, ForkedProcessError
from tinker_deadlines.limits import CLOSE_LIMIT_S
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.policy import Limit, limit_for
from tinker_deadlines.recovery.runs import recovery_is_wanted
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.facts import known_of, name_of, note_maker, work_with
from tinker_deadlines.sdk.futures import (
    MethodJob,
    SDKFuture,
    future_in_type,
    future_type_named,
    in_type_of,
    is_future,
    wait_for_either,
)
from tinker_deadlines.sdk.hedge import SecondAttempt, allowance
from tinker_deadlines.sdk.remaking import Making, remaking
from tinker_deadlines.sdk.saves import SAVES
from tinker_deadlines.sdk.surface import Argument, Method
from tinker_deadlines.sdk.traffic import call_in_context
from tinker_deadlines.waiting.aio import until_any
from tinker_deadlines.waiting.lanes import Lane
from tinker_deadlines.waiting.limit import budget_for
from tinker_deadlines.waiting.workers import workers

__all__ = ["Bounder", "bounded", "scope"]

log = logging.getLogger("tinker_deadlines")

# Calls of these kinds make clients.
_MAKERS: frozenset[TinkerCallKind] = frozenset({"connect", "load_state", "save_weights_for_sampler"})


class Scope:
    """Whose calls are bounded: everybody's, or those of single clients."""

    def __init__(self) -> None:
        self.everything = False
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, client: Any) -> None:
        """Bounds the calls of one client."""
        self._clients.add(client)

    def clear(self) -> None:
        """Bounds nobody."""
        self.everything = False
        self._clients.clear()

    def covers(self, client: Any) -> bool:
        """Whether the calls of this client are bounded."""
        return self.everything or client in self._clients


scope = Scope()

_lanes: weakref.WeakKeyDictionary[Any, Lane] = weakref.WeakKeyDictionary()
# Reentrant: a signal handler may make a call while this thread makes one.
_lanes_lock = threading.RLock()

_forked = False


def _after_fork() -> None:
    global _forked, _lanes_lock
    _lanes_lock = threading.RLock()
    _forked = _forked or private.sdk_loop() is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _lane_of(client: Any) -> Lane:
    with _lanes_lock:
        lane = _lanes.get(client)
        if lane is None:
            lane = _lanes[client] = Lane()
        return lane


def _client_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The client that a method was called on; somebody may pass `self` by its name."""
    return args[0] if args else kwargs.get("self")


def _passes_through(client: Any) -> bool:
    """Whether a call goes straight to the SDK: not in scope, part of a call that is bounded, or on the SDK's loop."""
    if not scope.covers(client) or call_in_context.get() is not None:
        return True
    loop = asyncio._get_running_loop()
    return loop is not None and loop is private.sdk_loop()


class Bounder:
    """One public method of the SDK, with what is needed to bound a call of it."""

    def __init__(self, label: str, row: Method, original: Callable[..., Any], version: tuple[int, ...]) -> None:
        assert row.kind is not None, f"{label} makes no call"
        self.label = label
        self._name = label.rpartition(".")[2]
        self.row = row
        self.kind = row.kind
        self.original = original
        self.blocks = row.blocks_in(version)
        self.async_form = row.async_form_in(version)
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(original))
        signature = inspect.signature(original)
        self._positions = {name: place for place, name in enumerate(signature.parameters)}
        self._defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
        self._future_type = future_type_named(signature.return_annotation)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SDKFuture[Any]:
        """Makes the future of a call and starts its clock, or has it wait for its turn.

        Raises:
            ForkedProcessError: this is a forked child in which the SDK cannot work.
            FencedClientError: it is not known what this training client has executed.
            BudgetExhaustedError: nothing is left of an enclosing budget.
            ValueError: the environment variable of the kind holds rubbish.
        """
        if _forked:
            raise ForkedProcessError(self.label)
        client = _client_of(args, kwargs)
        arguments = self._arguments(args, kwargs)
        known = known_of(client)
        budget = None if self.row.closes else budget_for(self.kind, self.label)
        work = work_with(known, self.kind, self._work(arguments))
        model = known.model if known is not None else None
        if self.kind in _MAKERS and model is None:
            named = arguments("base_model")
            model = name_of(named) if isinstance(named, str) else None
        limit = limit_for(self.kind, work, model)
        if self.row.closes and not limit.fixed:
            limit = Limit(CLOSE_LIMIT_S, "the default")
        call = Call(
            self.kind, limit.seconds, limit.owner, self.label, work, limit=limit, model=model,
            session=known.session if known is not None else None,
        )  # fmt: skip
        if self.row.work is not None or self._name in SAVES:
            call.args, call.kwargs = args, kwargs or None
        lane = _lane_of(client) if self.row.ordered else None
        if lane is not None and lane.fence is not None:
            self._refuse(call, lane.fence)
        if self.kind in SAMPLING_KINDS:
            allowance.call()
            return SDKFuture(call, budget, lane, None, self if not self.is_async else None)
        return SDKFuture(call, budget, lane, self._arrived(client, arguments))

    def _refuse(self, call: Call, unknown: Any) -> NoReturn:
        """Refuses a call of a client of which it is not known what it has executed."""
        error = FencedClientError(self.label, unknown.exception())
        board.begin(call)
        board.end(call, "refused", error)
        raise error

    def _arrived(self, client: Any, arguments: Argument) -> Callable[[Any], Any] | None:
        """What is done with a client that this call makes: its facts are noted, and it is guarded if its maker is.

        Returns:
            Is given the client, and gives back the one to use.
        """
        if self.kind not in _MAKERS:
            return None
        guard = None if scope.everything else scope.add
        makes = recovery_is_wanted() and isinstance(client, tinker.ServiceClient) and not remaking()
        making = Making(self._name, self._given(arguments)) if makes else None

        def arrived(made: Any) -> Any:
            if guard is not None:
                guard(made)
            note_maker(client, arguments, made)
            if making is None or not isinstance(made, tinker.TrainingClient):
                return made
            from tinker_deadlines.sdk.recoverable import wrapped  # it needs packages of the extra

            return wrapped(made, making)

        return arrived

    def _given(self, arguments: Argument) -> dict[str, Any]:
        """The arguments of a call by name, as far as they are set."""
        given = {name: arguments(name) for name in list(self._positions)[1:]}
        return {name: value for name, value in given.items() if value is not None}

    def second_attempt(self, future: SDKFuture[Any]) -> SecondAttempt | None:
        """Makes ready to make a sampling call a second time; `None` where that cannot be done."""
        call = future.call
        session = sessions.get(call.session)
        if not call.args:
            return None
        client, *others = call.args
        kwargs = call.kwargs or {}
        origin = session.way.origin if session is not None and session.way is not None else None
        return SecondAttempt(
            lambda other: self.original(other, *others, **kwargs), client, origin, future.second_answer
        )

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Argument:
        """Gives the arguments of a call by name."""

        def argument(name: str) -> Any:
            if name in kwargs:
                return kwargs[name]
            place = self._positions.get(name, len(args))
            if place < len(args):
                return args[place]
            default = self._defaults.get(name)
            return None if default is inspect.Parameter.empty else default

        return argument

    def _work(self, arguments: Argument) -> Work | None:
        if self.row.work is None:
            return None
        try:
            return self.row.work(arguments)
        except Exception:
            return None  # an argument that cannot be looked at: the SDK has its own words for it

    # The sync form -------------------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a bounded call of a plain method."""
        future = self.begin(args, kwargs)
        if self.blocks:
            return self._call_blocking(future, args, kwargs)
        token = call_in_context.set(future.call)
        try:
            value = self.original(*args, **kwargs)
        except BaseException as error:
            future.fail(error)
            raise
        finally:
            call_in_context.reset(token)
        return self._hand_back(future, value)

    def _hand_back(self, future: SDKFuture[Any], value: Any) -> Any:
        if is_future(value):
            return future.follow_sdk(value)
        future.finish(value)
        return value

    def _call_blocking(self, future: SDKFuture[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a method that blocks its caller on a worker.

        On a running event loop its future is handed out at once, so that the loop is not stalled; elsewhere the
        caller waits, as in the SDK, for the method to return, and gets its errors where it called it.
        """
        returned = self._start(future, functools.partial(self.original, *args, **kwargs))
        if self._future_type is not None and asyncio._get_running_loop() is not None:
            return future_in_type(self._future_type, future)
        try:
            wait_for_either(returned, future)
        except BaseException:
            future.cancel()
            raise
        return self._outcome(future, returned)

    def _start(self, future: SDKFuture[Any], run: Callable[[], Any]) -> Future[Any]:
        """Starts the SDK's method on a worker, inside the context of its call."""
        token = call_in_context.set(future.call)
        job = MethodJob(functools.partial(contextvars.copy_context().run, run))
        call_in_context.reset(token)
        job.returned.add_done_callback(future.settle)
        future.runs_on(job)
        try:
            workers.start(job)
        except BaseException as error:
            future.fail(error)
            raise
        return job.returned

    def _outcome(self, future: SDKFuture[Any], returned: Future[Any]) -> Any:
        if not returned.done():
            return future.result()  # it is over, and not by the method's own doing: this raises
        value = returned.result()
        return in_type_of(value, future) if is_future(value) else future.result()

    # The async form ------------------------------------------------------------------------------------------------

    async def call_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a bounded call of a coroutine method, without a way for a cancellation to reach a training call."""
        future = self.begin(args, kwargs)
        if self.async_form == "worker":
            returned = self._start(future, lambda: asyncio.run(self.original(*args, **kwargs)))
        else:
            returned = self._start_task(future, args, kwargs)
        try:
            await until_any(returned, future)
        except asyncio.CancelledError:
            future.cancel()
            raise
        return self._outcome(future, returned)

    def _start_task(self, future: SDKFuture[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        returned: Future[Any] = Future()
        returned.add_done_callback(future.settle)
        token = call_in_context.set(future.call)
        try:
            task = asyncio.ensure_future(self.original(*args, **kwargs))
        finally:
            call_in_context.reset(token)

        def copy(ended: asyncio.Future[Any]) -> None:
            if ended.cancelled():
                returned.set_exception(asyncio.CancelledError())
            elif (error := ended.exception()) is not None:
                returned.set_exception(error)
            else:
                returned.set_result(ended.result())

        task.add_done_callback(copy)
        return returned


def bounded(bounder: Bounder) -> Callable[..., Any]:
    """What takes the method's place on its class."""
    original = bounder.original
    if bounder.is_async:

        @functools.wraps(original)
        async def bounded_async(*args: Any, **kwargs: Any) -> Any:
            if _passes_through(_client_of(args, kwargs)):
                return await original(*args, **kwargs)
            return await bounder.call_async(args, kwargs)

        return bounded_async
    if bounder.label.endswith(".__exit__"):
        return _bounded_exit(bounder)

    @functools.wraps(original)
    def bounded_call(*args: Any, **kwargs: Any) -> Any:
        if _passes_through(_client_of(args, kwargs)):
            return original(*args, **kwargs)
        return bounder.call(args, kwargs)

    return bounded_call


def _bounded_exit(bounder: Bounder) -> Callable[..., Any]:
    original = bounder.original

    @functools.wraps(original)
    def bounded_exit(self: Any, kind: Any = None, error: Any = None, trace: Any = None) -> Any:
        if _passes_through(self):
            return original(self, kind, error, trace)
        try:
            return bounder.call((self, kind, error, trace), {})
        except DeadlineExpiry as expiry:
            if error is None:
                raise
            # The exception on its way out of the block is what the person must see.
            log.warning("%s", expiry)
            return None

    return bounded_exit
