"""What is known of a client beyond its calls? Its model, rank and weights, as the call said that made it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple

import tinker

from tinker_deadlines.calls import Call, Verdict, Work
from tinker_deadlines.classification import is_capacity_error
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.probe import Way

__all__ = [
    "Facts",
    "Known",
    "doubt",
    "doubt_client",
    "facts_of",
    "is_doubted",
    "is_in_use",
    "known_behind",
    "known_of",
    "name_of",
    "note_maker",
    "work_with",
]


class Facts(NamedTuple):
    """What the call that made a client said."""

    model: str | None = None
    """The base model's name."""
    rank: int | None = None
    """Rank of the LoRA adapter."""
    path: str | None = None
    """Where the weights are; kept in memory to make a second client of, and never recorded."""
    ephemeral: bool = False
    """Whether the weights have no name by which another session could find them."""
    elsewhere: bool = False
    """Whether another session would do its calls just the same: false unless the call was seen that named its weights,
    and where what it samples is kept in its own session for training."""
    options: tuple[tuple[str, Any], ...] = ()
    """How the service client was made that its session belongs to, beyond address and key."""

    @property
    def adapted(self) -> bool:
        """Whether the weights are those of a base model with something learned on top."""
        return self.ephemeral or self.path is not None


def name_of(model: str | None) -> str | None:
    """A model's name, and of a path its last part only: nothing of a person's machine is learned or recorded."""
    if model is not None and "://" in model:
        return None  # the last part of an address may be the name of somebody's checkpoint
    if model is None or not (PurePath(model).is_absolute() or model.startswith(("~", "."))):
        return model
    return PurePath(model).name or None


class Known:
    """A client's facts, and what its calls leave behind for the next ones."""

    __slots__ = ("datums", "doubted", "facts", "failed_at", "failures", "model", "session", "used")

    def __init__(self, facts: Facts, session: str | None) -> None:
        self.note(facts)
        self.session = session
        self.used = False
        # Whether a call through it failed for no fault of the call's: it is not handed out to others.
        self.doubted = False
        # Datums of the batches since the last optimizer step.
        self.datums = 0
        # Sampling calls in a row that failed, and when the first of them did.
        self.failures = 0
        self.failed_at = 0.0

    def note(self, facts: Facts) -> None:
        """Takes in what the call said that made the client."""
        self.facts = facts
        # For limits and the record.
        self.model = name_of(facts.model)


_known: weakref.WeakKeyDictionary[Any, Known] = weakref.WeakKeyDictionary()
# Reentrant: a signal handler may make a call while this thread makes one.
_lock = threading.RLock()


def forked() -> None:
    """A fork copies the lock in whatever state another thread held it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)


def known_of(client: Any) -> Known | None:
    """What is known of a client; `None` for what is no client that makes calls of a session."""
    try:
        found = _known.get(client)
    except TypeError:
        return None  # nothing that can be referred to weakly is a client
    if found is None:
        if not isinstance(client, (tinker.SamplingClient, tinker.TrainingClient, tinker.ServiceClient)):
            return None
        with _lock:
            found = _known.setdefault(client, Known(Facts(private.base_model_of(client)), None))
    if found.session is None:
        found.session = private.session_of(client)
        if found.session is not None:
            session = sessions.of(found.session)
            if session.way is None:
                session.way = Way(private.holder_of(client), found.session)
            watcher.go_on()
    return found


def is_in_use(session: str) -> bool:
    """Whether somebody holds a client whose calls go through this session."""
    clients = (each() for each in _known.keyrefs())
    return any(client is not None and private.session_of(client) == session for client in clients)


def is_doubted(client: Any) -> bool:
    """Whether a call through this sampling client failed for no fault of the call's."""
    found = known_of(client)
    return found is not None and found.doubted


def doubt_client(client: Any) -> None:
    """Notes that a client is not to be handed out to others any more."""
    found = known_of(client)
    if found is not None:
        found.doubted = True


def known_behind(call: Call) -> Known | None:
    """What is known of the client that a sampling call is made on, while the call has it."""
    args = call.args
    return known_of(args[0]) if args else None


def doubt(call: Call, known: Known | None, error: BaseException | None = None) -> None:
    """Notes of what a call went through that the call failed, unless that was its own fault or everybody's.

    Args:
        call: A call that is about to end so.
        known: What is known of its client.
        error: What it failed with; `None` where it ran into its limit.
    """
    if call.verdict in _NOT_ITS_FAULT:
        return
    if error is None:
        session = sessions.get(call.session)
        if session is not None and call.kind not in ("connect", "rest"):
            session.expiries += 1  # racing threads may lose one
    elif getattr(error, "status_code", None) not in _LOST and not is_capacity_error(error):
        return
    if known is not None:
        known.doubted = True


# The verdicts on calls that say nothing of what they went through; and what the service answers of a session or a
# sampler that it does not have any more.
_NOT_ITS_FAULT: frozenset[Verdict | None] = frozenset(
    {"outage", "paused", "loop blocked", "local", "behind earlier calls", "input-dependent failure"}
)
_LOST = (404, 410)


def facts_of(client: Any) -> Facts:
    """The facts of a client; empty ones of what is none."""
    found = known_of(client)
    return Facts() if found is None else found.facts


def note_maker(maker: Any, arguments: Callable[[str], Any], made: Any) -> None:
    """Notes of a client what the method said that made it, and what its maker was."""
    found = known_of(made)
    if found is None or made is maker:
        return
    path = arguments("model_path") or arguments("path")
    trained = isinstance(maker, tinker.TrainingClient)
    inherited = facts_of(maker) if trained else Facts()
    named = _text(path) is not None or (not trained and _text(arguments("base_model")) is not None)
    facts = Facts(
        model=_text(arguments("base_model")) or found.facts.model or inherited.model,
        rank=_number(arguments("rank")) or inherited.rank or found.facts.rank,
        path=_text(path),
        ephemeral=trained and path is None,
        elsewhere=named and not arguments("record_stability_info"),
        options=inherited.options or private.options_of(maker),
    )
    found.note(facts)


def work_with(found: Known | None, kind: str, work: Work | None) -> Work | None:
    """The work of a call with what its client knows: rank, datums since the last step, whether its weights are new."""
    if found is None:
        return work
    if kind == "optim_step":
        datums, found.datums = found.datums, 0
        return Work(datums=datums or None, rank=found.facts.rank)
    if kind == "forward_backward" and work is not None and work.datums:
        found.datums += work.datums
    fresh, found.used = not found.used, True
    if not fresh and found.facts.rank is None:
        return work
    return (work or Work())._replace(rank=found.facts.rank, fresh=True if fresh else None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
