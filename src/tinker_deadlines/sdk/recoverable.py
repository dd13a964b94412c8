"""What does a training client look like that recovers? As the SDK's own: the same class, methods and futures."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import tinker

from tinker_deadlines.errors import DivergedError
from tinker_deadlines.limits import CHECKPOINT_TTL_S, CHECKPOINTS_KEPT
from tinker_deadlines.recovery.runs import RUN_VARIABLE, Run, new_name
from tinker_deadlines.recovery.spool import Spool
from tinker_deadlines.sdk.futures import future_in_type, future_type_named
from tinker_deadlines.sdk.kept import Kept
from tinker_deadlines.sdk.recovering import Recovering
from tinker_deadlines.sdk.remaking import Making
from tinker_deadlines.sdk.submitted import Promise, named
from tinker_deadlines.sdk.surface import SURFACE

__all__ = ["RecoverableTrainingClient", "recoverable", "wrapped"]

Client = TypeVar("Client")

# The runs that this process uses; a client whose run has no name belongs to the first.
_runs: dict[str, Run] = {}
_lock = threading.RLock()
_living: weakref.WeakSet[RecoverableTrainingClient] = weakref.WeakSet()


def recoverable(
    training_client: Client, checkpoint_every: int | None = None, keep: int = CHECKPOINTS_KEPT, run: str | None = None
) -> Client:
    """Makes a training client go on when the service, its session or a call of it dies; returns what to use instead.

    A call that returned is applied once; a call that raised is not applied at all. On a fault the caller sees a call
    that takes longer: meanwhile a new client is made, the last confirmed checkpoint is restored with its optimizer, and
    the calls since then are made again in their order. Gradients, losses and weights are those of a run without faults,
    as far as the service computes the same for the same.

    Args:
        training_client: The client, before its first call.
        checkpoint_every: Optimizer steps between two checkpoints; by default as many as lose least, from the measured
            time of a step and of a save.
        keep: How many checkpoints of ours are kept on the service; older ones are deleted.
        run: A run's name: one that was kept before is gone on with. By default what `tinker-deadlines run` says, else
            a new one.

    Returns:
        A client with the SDK's own interface; it is a `tinker.TrainingClient`.

    Raises:
        TypeError: it is no training client.
        RunError: the run cannot be kept, or another process uses it.
        DivergedError: the run made this client otherwise.
    """
    client = training_client.result() if isinstance(training_client, tinker.APIFuture) else training_client
    if isinstance(client, RecoverableTrainingClient):
        return cast("Client", client)
    if not isinstance(client, tinker.TrainingClient):
        raise TypeError(f"recoverable() takes a training client of the Tinker SDK, not {type(client).__name__}")
    from tinker_deadlines.sdk.install import guard  # it lies above this

    return cast("Client", wrapped(guard(client), None, checkpoint_every=checkpoint_every, keep=keep, run=run))


def wrapped(
    client: Any,
    making: Making | None,
    *,
    checkpoint_every: int | None = None,
    keep: int = CHECKPOINTS_KEPT,
    run: str | None = None,
) -> RecoverableTrainingClient:
    """A training client as a recoverable one.

    Args:
        client: The SDK's.
        making: The call that made it; `None` where that was not seen.
        checkpoint_every: As `recoverable` has it.
        keep: As `recoverable` has it.
        run: As `recoverable` has it.
    """
    with _lock:
        kept_run = _run_named(run)
        journal = kept_run.next_ledger()
    spool = Spool(kept_run.directory, _bytes_of)
    kept = Kept(kept_run.name, journal, spool, checkpoint_every, keep)
    _check_making(kept_run.name, kept, making)
    made = RecoverableTrainingClient.__new__(RecoverableTrainingClient)
    made.__dict__["_recovering"] = Recovering(client, making, kept)
    _living.add(made)
    return made


def _run_named(name: str | None) -> Run:
    if name is None and multiprocessing.parent_process() is None:
        name = os.environ.get(RUN_VARIABLE) or None  # a worker has it from the process that uses that run
    if name is None:
        name = next(iter(_runs), None) or new_name()
    run = _runs.get(name)
    if run is None:
        run = _runs[name] = Run(name)
    return run


def _check_making(run: str, kept: Kept, making: Making | None) -> None:
    digest = making.digest if making is not None else ""
    if not kept.ledger.made:
        kept.note(kept.ledger.opened(digest))
    elif kept.ledger.made != (digest or "unseen"):
        raise DivergedError(run, 1, 0, "with other arguments", "with these")


def close() -> None:
    """Ends the sessions that recovery began, and the runs. While the interpreter ends, the SDK's loop still runs."""
    with _lock:
        for each in list(_living):
            each.__dict__["_recovering"].close()
        _living.clear()
        for run in _runs.values():
            run.close()
        _runs.clear()


atexit.register(close)


def _bytes_of(call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> int:
    """What a call's arguments take in memory, roughly: tokens and targets, each as Python keeps them."""
    size = 256
    for value in (*call[1], *call[2].values()):
        if isinstance(value, (list, tuple)):
            for datum in value:
                length = getattr(getattr(datum, "model_input", None), "length", 64)
                size += 64 * (length if isinstance(length, int) else 64)
    return size


class RecoverableTrainingClient(tinker.TrainingClient):
    """A training client that recovers; see `recoverable`. Made by it, and not to be made otherwise."""

    _recovering: Recovering
    _samplers = 0

    def __getattr__(self, name: str) -> Any:
        # What the SDK's own has of itself, such as `model_id` and `holder`.
        if name == "_recovering":
            raise AttributeError(name)
        return getattr(self._recovering.client, name)

    def __repr__(self) -> str:
        return f"<RecoverableTrainingClient of {self._recovering.client!r}>"

    def save_weights_and_get_sampling_client(self, *args: Any, **kwargs: Any) -> Any:
        """As the SDK's own. The weights get a name, so that another session finds them when this one is dead."""
        given = named("save_weights_and_get_sampling_client", args, kwargs)
        if given.get("kind", "snapshot") != "snapshot":
            # Weights that go on changing have no name: this one is not recovered.
            return self._recovering.client.save_weights_and_get_sampling_client(*args, **kwargs)
        self._samplers += 1
        saved = self._recovering.submit(
            "save_weights_for_sampler", (f"deadlines-sampler-{self._samplers}",), {"ttl_seconds": CHECKPOINT_TTL_S}
        )
        promise = Promise()
        extra = {name: given[name] for name in ("retry_config", "record_stability_info") if given.get(name)}
        saved.add_done_callback(functools.partial(self._make_sampler, promise, extra))
        return _in_type("save_weights_and_get_sampling_client", promise)

    def _make_sampler(self, promise: Promise, extra: Mapping[str, Any], saved: Future[Any]) -> None:
        error = saved.exception()
        if error is not None:
            promise.set_exception(error)
            return

        def make() -> None:
            try:
                made = self._recovering.client.create_sampling_client(saved.result().path, **extra)
                promise.set_result(made.result() if hasattr(made, "result") else made)
            except BaseException as failure:
                promise.set_exception(failure)

        threading.Thread(target=make, name="tinker-deadlines-sampler", daemon=True).start()


_RECORDED = (
    "forward",
    "forward_backward",
    "forward_backward_custom",
    "optim_step",
    "save_state",
    "save_weights_external",
    "save_weights_for_sampler",
    "load_state",
    "load_state_with_optimizer",
)
_SPECIAL = ("__init__", "save_weights_and_get_sampling_client")


def _in_type(method: str, future: Future[Any]) -> Any:
    """A future in the type that the SDK's method returns; for one that blocks its caller, its result."""
    annotation = getattr(tinker.TrainingClient, method).__annotations__.get("return")
    kind = future_type_named(annotation)
    return future.result() if kind is None else future_in_type(kind, future)


def _recorded(method: str) -> Callable[..., Any]:
    original = getattr(tinker.TrainingClient, method)

    @functools.wraps(original)
    def call(self: RecoverableTrainingClient, *args: Any, **kwargs: Any) -> Any:
        return _in_type(method, self._recovering.submit(method, args, kwargs))

    return call


def _passed_on(method: str) -> Callable[..., Any]:
    original = getattr(tinker.TrainingClient, method)

    @functools.wraps(original)
    def call(self: RecoverableTrainingClient, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._recovering.client, method)(*args, **kwargs)

    return call


def _twin(method: str) -> Callable[..., Any]:
    original = getattr(tinker.TrainingClient, f"{method}_async")

    @functools.wraps(original)
    async def call(self: RecoverableTrainingClient, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self, method)(*args, **kwargs)
        # As in the SDK: twins of what trains return the future, those of what makes a client wait for it.
        return await found if method in ("save_weights_and_get_sampling_client", "create_sampling_client") else found

    return call


def _define() -> None:
    for method in SURFACE["TrainingClient"]:
        if not hasattr(tinker.TrainingClient, method) or method == "__init__":
            continue
        if method not in _SPECIAL:
            make = _recorded if method in _RECORDED else _passed_on
            setattr(RecoverableTrainingClient, method, make(method))
        if hasattr(tinker.TrainingClient, f"{method}_async"):
            setattr(RecoverableTrainingClient, f"{method}_async", _twin(method))


_define()
