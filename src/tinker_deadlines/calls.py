"""What is one bounded call? Its kind, its work, its facts while it runs, and how it ended."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from tinker_deadlines import clock

__all__ = [
    "KINDS",
    "SAMPLING_KINDS",
    "TRAINING_KINDS",
    "Board",
    "Call",
    "Ended",
    "Outcome",
    "Tally",
    "TinkerCallKind",
    "Traffic",
    "Verdict",
    "Work",
    "board",
]

log = logging.getLogger("tinker_deadlines")
T = TypeVar("T")

TinkerCallKind = Literal[
    "sample",
    "compute_logprobs",
    "forward_backward",
    "optim_step",
    "save_state",
    "load_state",
    "save_weights_for_sampler",
    "connect",
    "rest",
]

KINDS: tuple[TinkerCallKind, ...] = get_args(TinkerCallKind)

# Training calls are executed one after the other in the order of their submission, and the SDK gives each a
# numbered turn. One that is cancelled while it waits never passes its turn on, and its client is stuck for ever:
# nothing in this library cancels a call of these kinds.
TRAINING_KINDS: frozenset[TinkerCallKind] = frozenset(
    {"forward_backward", "optim_step", "save_state", "load_state", "save_weights_for_sampler"}
)

# Sampling calls hold no turn: an abandoned one is cancelled, so that it stops polling and frees its slot.
SAMPLING_KINDS: frozenset[TinkerCallKind] = frozenset({"sample", "compute_logprobs"})

Verdict = Literal[
    "slow",
    "session wedged",
    "outage",
    "paused",
    "loop blocked",
    "local",
    "behind earlier calls",
    "result lost",
    "input-dependent failure",
    "adapter unavailable",
]
"""What was found out about a call that takes long."""

Outcome = Literal["completed", "failed", "expired", "out_of_budget", "cancelled", "refused"]


class Work(NamedTuple):
    """The size of a call, as far as its arguments tell it; `None` is unknown."""

    prompt_tokens: int | None = None
    """Tokens of the prompt of a sampling call."""
    max_tokens: int | None = None
    """The most tokens that each sample may generate."""
    num_samples: int | None = None
    """Samples asked for with one prompt."""
    datums: int | None = None
    """Datums in the batch of a training call."""
    tokens: int | None = None
    """Tokens of all datums of the batch together."""
    rank: int | None = None
    """Rank of the LoRA adapter."""
    fresh: bool | None = None
    """Whether it is the first call on new weights or of a new shape, which the service has to get ready for."""

    @classmethod
    def of(cls, sizes: Mapping[str, Any]) -> Work:
        """Makes a `Work` from a mapping; keys that it does not know are left out."""
        return cls(**{key: sizes[key] for key in cls._fields if key in sizes})

    def sizes(self) -> dict[str, int]:
        """The sizes that are known."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class Traffic:
    """What was seen of a call's HTTP exchanges. Instants are of the monotonic clock."""

    __slots__ = (
        "alive_at",
        "exchanges",
        "failures",
        "last",
        "last_at",
        "paused",
        "paused_at",
        "paused_before_s",
        "polls",
        "queue_state",
        "sent_at",
    )

    def __init__(self) -> None:
        self.sent_at = clock.monotonic()
        self.exchanges = 0
        self.polls = 0
        # Exchanges in a row that ended without an answer or with one that says that the service fails.
        self.failures = 0
        self.last = ""
        self.last_at = self.sent_at
        # The last answer that says that the service knows of this call and works; `None` before the first.
        self.alive_at: float | None = None
        self.queue_state = ""
        # What the service has paused this call for: "capacity", "rate limit", "billing", or "" while it has not.
        self.paused = ""
        self.paused_at = 0.0
        self.paused_before_s = 0.0

    def ended(self, what: str, *, good: bool = True, poll: bool = False) -> None:
        """Notes the end of an exchange: the end of its path and its status or error, and whether the service works."""
        now = clock.monotonic()
        self.exchanges += 1
        self.polls += poll
        self.last = what
        self.last_at = now
        if good:
            self.failures = 0
            self.alive_at = now
        else:
            self.failures += 1

    def pause(self, reason: str) -> None:
        """Notes that the service says the call is paused, or with "" that it is not; paused time is counted."""
        now = clock.monotonic()
        if self.paused and not reason:
            self.paused_before_s += now - self.paused_at
        elif reason and not self.paused:
            self.paused_at = now
        self.paused = reason

    def paused_s(self, now: float) -> float:
        """Seconds for which the service has paused the call until `now`."""
        return self.paused_before_s + (now - self.paused_at if self.paused else 0.0)

    def silent_s(self, now: float) -> float | None:
        """Seconds until an instant without a sign that the service works on this very call; `None`: not to be told.

        A call that was submitted and is not polled for itself has its session's polls, of which nothing stands here.
        """
        if self.alive_at is None:
            return now - self.sent_at
        return now - self.alive_at if self.polls else None

    def evidence(self, now: float) -> tuple[str, ...]:
        """Sentences on the traffic, as of an instant."""
        age_s = now - self.last_at
        if not self.exchanges:
            return (f"It was sent {age_s:.1f} s ago and no HTTP answer came.",)
        exchanges = "1 HTTP exchange" if self.exchanges == 1 else f"{self.exchanges} HTTP exchanges"
        polls = f", {self.polls} of them polls for its result" if self.polls else ""
        said = [f"It had {exchanges}{polls}; the last, {self.last}, ended {age_s:.1f} s ago."]
        if self.failures > 1:
            said.append(f"The last {self.failures} of them failed.")
        if self.queue_state:
            said.append(f"The service's last word on its queue: {self.queue_state}.")
        paused_s = self.paused_s(now)
        if paused_s:
            said.append(f"The service had paused it for {paused_s:.1f} s, which do not count.")
        return tuple(said)


_next_call = itertools.count(1)


class Call:
    """One bounded call while it is in flight. Instants are of the monotonic clock."""

    # A hundred thousand wait at once, and the garbage collector looks at each of them, and at whatever hangs on it.
    __slots__ = (
        "args", "findings", "id", "in_flight", "kind", "kwargs", "limit", "limit_owner", "limit_s", "method", "model",
        "overdue", "owner", "session", "started_at", "submitted_at", "traffic", "verdict", "work",
    )  # fmt: skip

    def __init__(
        self,
        kind: TinkerCallKind,
        limit_s: float,
        limit_owner: str,
        method: str = "",
        work: Work | None = None,
        *,
        limit: Any = None,
        model: str | None = None,
        session: str | None = None,
    ) -> None:
        self.id = next(_next_call)
        self.kind = kind
        self.method = method
        self.work = work
        self.limit_s = limit_s
        self.limit_owner = limit_owner
        self.submitted_at = clock.monotonic()
        # When the limit's clock started: at submission, or for a training call when its predecessor ended.
        self.started_at: float | None = self.submitted_at
        # From the moment when its first request leaves, for calls whose traffic is watched.
        self.traffic: Traffic | None = None
        # What bounds it, and can end it before its limit; `None` where nothing can, and when it is over.
        self.owner: Any = None
        # The policy's `Limit`: how it came to the number; `None` where no policy was asked.
        self.limit = limit
        self.model = model
        # The SDK's session that the call goes through, where it is known.
        self.session = session
        # What it was made with, to make it again and to compare failures; `None` where nobody may, or when it is over.
        self.args: tuple[Any, ...] | None = None
        self.kwargs: dict[str, Any] | None = None
        # How many calls were in flight when this one came, itself among them; 0 where nobody counted.
        self.in_flight = 0
        # Past its limit and let go on, because it shows signs of life.
        self.overdue = False
        self.verdict: Verdict | None = None
        # Sentences on what was found out about it by others than itself.
        self.findings: tuple[str, ...] = ()

    def elapsed_s(self) -> float:
        """Seconds on the limit's clock, without those for which the service paused the call."""
        return self.elapsed_until(clock.monotonic())

    def elapsed_until(self, now: float) -> float:
        """Seconds on the limit's clock until an instant; 0 while the call waits for its predecessor."""
        if self.started_at is None:
            return 0.0
        return now - self.started_at - (0.0 if self.traffic is None else self.traffic.paused_s(now))

    def age_s(self) -> float:
        """Seconds since submission."""
        return clock.monotonic() - self.submitted_at

    def evidence(self, now: float) -> tuple[str, ...]:
        """Sentences on what was seen of the call's traffic, as of an instant, and on what was found out about it."""
        return (*(self.traffic.evidence(now) if self.traffic is not None else ()), *self.findings)

    def __repr__(self) -> str:
        return f"<Call {self.id} {self.method or self.kind}, {self.age_s():.1f} s old, limit {self.limit_s:.1f} s>"


class Ended(NamedTuple):
    """One call that ended: what an observer is given."""

    call: Call
    outcome: Outcome
    elapsed_s: float
    """Seconds on the limit's clock."""
    error: BaseException | None


class Tally:
    """How the calls of one kind ended so far."""

    __slots__ = ("cancelled", "completed", "expired", "failed", "out_of_budget", "refused")

    def __init__(self) -> None:
        self.completed = self.failed = self.expired = self.out_of_budget = self.cancelled = self.refused = 0


class Board:
    """The calls in flight in this process, and how many ended how. Safe from any thread."""

    def __init__(self) -> None:
        # By number: a set of a hundred thousand objects at neighbouring addresses takes longest to take one out.
        self.in_flight: dict[int, Call] = {}
        self.tallies: dict[TinkerCallKind, Tally] = {}
        self.observers: tuple[Callable[[Ended], None], ...] = ()
        # Reentrant: a signal handler, or a generator that is collected, may end a call while this thread ends one.
        self._lock = threading.RLock()

    def begin(self, call: Call) -> None:
        """Takes a call in."""
        self.in_flight[call.id] = call
        if call.limit is not None:
            call.in_flight = len(self.in_flight)

    def end(self, call: Call, outcome: Outcome, error: BaseException | None = None) -> None:
        """Takes a call out and counts it; a call that is out already is left alone."""
        if self.in_flight.pop(call.id, None) is None:  # atomic: of two who end a call, one goes on
            return
        with self._lock:
            tally = self.tallies.get(call.kind) or self._tally(call.kind)
            setattr(tally, outcome, getattr(tally, outcome) + 1)
        observers = self.observers
        if not observers:
            return
        ended = Ended(call, outcome, call.elapsed_s(), error)
        for observe in observers:
            try:
                observe(ended)
            except Exception:
                # Who looks on must not turn a result into an error.
                log.exception("an observer of calls failed")

    def _tally(self, kind: TinkerCallKind) -> Tally:
        tally = self.tallies.get(kind)
        if tally is None:
            tally = self.tallies[kind] = Tally()
        return tally

    def observe(self, observer: Callable[[Ended], None]) -> Callable[[], None]:
        """Calls `observer` for each call that ends, on whichever thread it ends; returns what stops that."""
        with self._lock:
            self.observers = (*self.observers, observer)

        def stop() -> None:
            with self._lock:
                self.observers = tuple(other for other in self.observers if other is not observer)

        return stop

    def pending(self) -> list[Call]:
        """The calls in flight now, oldest first."""
        return sorted(self.in_flight.copy().values(), key=lambda call: call.submitted_at)

    def clear(self) -> None:
        """Forgets everything: for a forked child, whose parent's calls are not its own, and for tests."""
        self._lock = threading.RLock()
        self.in_flight.clear()
        self.tallies.clear()


board = Board()
