"""Which clock ran out, whose fault is it, and what is known of the work?

The error model, before the classes:

1. **An error of the call is never relabelled.** What the call raised comes through as it is, a `TimeoutError`
   included. Only our own clocks raise the classes below.
2. **A call's own limit** ran out: `TinkerDeadlineError` from the functions of this library, a `TimeoutError`; and
   `StuckCallError` inside a script that does not know us, a `tinker.APIConnectionError` and on purpose not a
   `TimeoutError`, which scripts take for an episode that ended or score as a reward of 0. Both are
   `DeadlineExpiry`, carry the same facts, and read as transient: the infrastructure's fault, `blame` is "call".
3. **An enclosing budget** ran out: `BudgetExhaustedError`. It is the episode's own fact, `blame` is "budget"; it is
   no `TimeoutError`, does not say the words that retry loops look for, and is never retried.
4. **We refuse** before anything is sent: `AbandonedCallsError` when too many threads are stuck already,
   `ForkedProcessError` in a forked child where the SDK cannot work, `SessionBudgetError` when this process holds as
   many sessions as it may.

`submission` says what is known of the work: "not sent", "sent", or "indeterminate" for a call that may have been
executed and must not be repeated blindly. Every class pickles with all its facts but `late`, a handle of this process.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from tinker_deadlines.calls import TRAINING_KINDS, TinkerCallKind, Verdict
from tinker_deadlines.limits import SESSION_BUDGET_ENV, env_var_for

__all__ = [
    "AbandonedCallsError",
    "Blame",
    "BudgetExhaustedError",
    "DeadlineExpiry",
    "ForkedProcessError",
    "Late",
    "SessionBudgetError",
    "Submission",
    "TinkerDeadlineError",
    "is_capacity_error",
    "outcome_for",
]

Blame = Literal["call", "session", "service", "loop", "budget", "caller"]
"""Whose fault an outcome is."""

_BLAME: dict[Verdict | None, Blame] = {
    "session wedged": "session",
    "outage": "service",
    "paused": "service",
    "adapter unavailable": "service",
    "loop blocked": "loop",
    "local": "loop",
    "input-dependent failure": "caller",
}

Submission = Literal["not sent", "sent", "indeterminate"]


class Late(Protocol):
    """What is left of a call that was given up: its result may still arrive."""

    def result(self, timeout: float | None = None) -> Any:
        """Waits up to `timeout` seconds for the late result; raises `TimeoutError` when there is none yet."""


def submission_of(kind: TinkerCallKind, sent: bool | None) -> Submission:
    """What is known of a call that was given up, from its kind and whether it was seen to leave (`None`: not seen)."""
    if sent is False:
        return "not sent"
    harmless = kind not in TRAINING_KINDS and kind != "connect"
    return "sent" if harmless else "indeterminate"


class _FactsError(Exception):
    """An error whose attributes carry its facts, that pickles with them, and that words itself when it is read.

    A session that wedges expires thousands of calls at once, and nobody reads most of those errors.
    """

    _facts: tuple[str, ...]

    def _message(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._message()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._message()!r})"

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The message, where other exceptions have it."""
        return (self._message(),)

    def facts(self) -> dict[str, Any]:
        """The facts by name, as the constructor takes them."""
        return {name: getattr(self, name) for name in self._facts}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        facts = self.facts()
        facts.pop("late", None)  # a handle of this process
        return _rebuild, (type(self), facts, getattr(self, "__notes__", ()))


def _rebuild(cls: type[_FactsError], facts: dict[str, Any], notes: Sequence[str] = ()) -> _FactsError:
    error = cls(**facts)
    for note in notes:
        error.add_note(note)
    return error


_CONSEQUENCE: dict[Submission, str] = {
    "not sent": "It had not been sent: it is safe to try again.",
    "sent": "It was given up, not answered: it is safe to try again.",
    "indeterminate": "The service may have executed it: do not repeat it on the same client before that is known.",
}


class DeadlineExpiry(_FactsError):
    """A call ran into its limit and was given up. The base of `TinkerDeadlineError` and `StuckCallError`.

    Attributes:
        kind: The kind of call.
        elapsed_s: Seconds that the call had on its limit's clock.
        deadline_s: Its limit in seconds.
        limit_owner: Who set that limit: "the default" or an environment variable.
        method: The SDK's method, such as "SamplingClient.sample", where it is known.
        submission: What is known of the work: "not sent", "sent" or "indeterminate".
        evidence: Sentences on what was seen of the call, such as its last HTTP answer, and on what a probe found.
        verdict: What was found out, such as "session wedged" or "result lost"; `None` where nothing was.
        limit: How the policy came to the limit (a `Limit`); `None` where no policy was asked.
        late: Where a late result may still be collected with `late.result(timeout)`; `None` where it cannot.
    """

    _facts = (
        "kind", "elapsed_s", "deadline_s", "limit_owner", "method", "submission", "evidence", "verdict", "limit",
        "late",
    )  # fmt: skip

    def __init__(
        self,
        kind: TinkerCallKind,
        *,
        elapsed_s: float,
        deadline_s: float,
        limit_owner: str = "the default",
        method: str = "",
        submission: Submission | None = None,
        evidence: tuple[str, ...] = (),
        verdict: Verdict | None = None,
        limit: Any = None,
        late: Late | None = None,
    ) -> None:
        self.kind = kind
        self.elapsed_s = elapsed_s
        self.deadline_s = deadline_s
        self.verdict = verdict
        self.limit = limit
        self.limit_owner = limit_owner
        self.method = method
        self.submission: Submission = submission if submission is not None else submission_of(kind, None)
        self.evidence = evidence
        self.late = late

    @property
    def indeterminate(self) -> bool:
        """True when the service may have executed the call, so that repeating it may execute it twice."""
        return self.submission == "indeterminate"

    @property
    def blame(self) -> Blame:
        """Whose fault it is, as far as the verdict tells: of the "call" itself, or of more than it."""
        return _BLAME.get(self.verdict, "call")

    def _message(self) -> str:
        """Cause, consequence, remedy."""
        variable = env_var_for(self.kind)
        by = "" if self.limit_owner == variable else f" ({self.limit_owner}{_basis_of(self.limit)})"
        name = f" ({self.method})" if self.method else ""
        elapsed = f"{self.elapsed_s:.1f} s elapsed"
        parts = [
            f"Tinker call {self.kind}{name} timed out: {elapsed}, its limit is {self.deadline_s:.1f} s{by}.",
            *self.evidence,
            _CONSEQUENCE[self.submission],
            f"If calls like this are slow rather than stuck, set {variable} to more seconds.",
        ]
        return " ".join(parts)


def _basis_of(limit: Any) -> str:
    """What a policy's limit rests on, as far as it tells."""
    predicted_s, quantile = getattr(limit, "predicted_s", None), getattr(limit, "quantile", None)
    if predicted_s is None:
        return ""
    said = f", {limit.basis}: predicted {predicted_s:.1f} s"
    if quantile is not None:
        said += f", the {100 * quantile:.5g} % quantile after {limit.completed} completed calls"
    return said


class TinkerDeadlineError(DeadlineExpiry, TimeoutError):
    """A call that this library bounded ran into its limit.

    Cause: no answer within the limit, which its message and attributes tell with the time elapsed. Consequence: the
    call was given up; `submission` says whether it may have been executed. Remedy: try again where that is safe, or
    set the environment variable that the message names when calls like it are slow rather than stuck.
    """


class BudgetExhaustedError(_FactsError):
    """An enclosing budget, such as an episode's wall, ran out while a call was in flight or before it was sent.

    Cause: the budget that `owner` names is spent. Consequence: the call was given up, or was never sent when
    `submission` is "not sent". Remedy: none by trying again: the budget stays spent; give it more seconds.

    Attributes:
        kind: The kind of the call that was cut.
        owner: The name of the budget that ran out, the smallest around the call.
        budget_s: The seconds that the budget had in all.
        elapsed_s: Seconds that the call itself had.
        method: The SDK's method, where it is known.
        submission: What is known of the work: "not sent", "sent" or "indeterminate".
        evidence: Sentences on what was seen of the call.
        blame: "budget".
        late: Where a late result may still be collected; `None` where it cannot.
    """

    blame: Blame = "budget"
    _facts = ("kind", "owner", "budget_s", "elapsed_s", "method", "submission", "evidence", "late")

    def __init__(
        self,
        kind: TinkerCallKind,
        *,
        owner: str,
        budget_s: float,
        elapsed_s: float = 0.0,
        method: str = "",
        submission: Submission = "not sent",
        evidence: tuple[str, ...] = (),
        late: Late | None = None,
    ) -> None:
        self.kind = kind
        self.owner = owner
        self.budget_s = budget_s
        self.elapsed_s = elapsed_s
        self.method = method
        self.submission: Submission = submission
        self.evidence = evidence
        self.late = late

    @property
    def indeterminate(self) -> bool:
        """True when the service may have executed the call, so that repeating it may execute it twice."""
        return self.submission == "indeterminate"

    def _message(self) -> str:
        name = f" ({self.method})" if self.method else ""
        what = "was not sent" if self.submission == "not sent" else f"was cut after {self.elapsed_s:.1f} s"
        evidence = "".join(f"{sentence} " for sentence in self.evidence)
        return (
            f"The budget {self.owner!r} of {self.budget_s:.1f} s is spent: the Tinker call {self.kind}{name} {what}. "
            f"{evidence}This is the wall around the call, not a failure of the service; trying again inside it cannot "
            "succeed."
        )


class AbandonedCallsError(_FactsError):
    """Too many blocking calls were given up and still hold a thread each, so a further one is refused.

    Cause: that many calls never returned. Consequence: this call was not started. Remedy: find out what they are
    stuck in (`py-spy dump`, or SIGQUIT under `tinker-deadlines run`) and restart the process.

    Attributes:
        abandoned: Threads that were given up and still run.
        most: The most that are allowed.
    """

    _facts = ("abandoned", "most")

    def __init__(self, abandoned: int, most: int) -> None:
        self.abandoned = abandoned
        self.most = most

    def _message(self) -> str:
        return (
            f"{self.abandoned} blocking Tinker calls were given up and still hold a thread each (at most {self.most} "
            "may): this call was not started. They are stuck below the SDK; look at their stacks, then restart the "
            "process."
        )


class ForkedProcessError(_FactsError):
    """A Tinker call was made in a forked child, where the SDK's event loop does not exist.

    Cause: the process was forked after the SDK had started its event loop; a thread does not survive a fork.
    Consequence: the call could never finish, so it was refused at once. Remedy: start worker processes with the
    start method "spawn" or "forkserver".

    Attributes:
        what: The call that was refused.
    """

    _facts = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def _message(self) -> str:
        return (
            f"{self.what} was called in a process that was forked after the Tinker SDK had started: the SDK's event "
            "loop is a thread of the parent and does not exist here, so the call could never finish. Start worker "
            'processes with multiprocessing.get_context("spawn") or "forkserver".'
        )


class SessionBudgetError(_FactsError):
    """This process holds as many sessions of the service as it may, so another one is refused.

    Cause: so many clients connected and were not closed. Consequence: nothing was sent; clients that are connected
    work on. Remedy: share one service client, or close each when it is done; `TINKER_DEADLINES_SESSIONS` sets the
    number, and the service itself was seen to refuse at about 240.

    Attributes:
        open: Sessions that are open, those among them whose creation was never answered.
        most: The most that may be.
        created: Sessions that this process has created in all.
    """

    _facts = ("open", "most", "created")

    def __init__(self, open: int, most: int, created: int) -> None:
        self.open = open
        self.most = most
        self.created = created

    def _message(self) -> str:
        return (
            f"{self.open} Tinker sessions of this process are open (at most {self.most} may be; it has created "
            f"{self.created}): no further one was created. The service refuses all new ones from about 240 on. Share "
            f"one ServiceClient among your workers, or close() each when it is done; {SESSION_BUDGET_ENV} allows more."
        )


for _error in (TinkerDeadlineError, BudgetExhaustedError, AbandonedCallsError, ForkedProcessError, DeadlineExpiry):
    _error.__module__ = "tinker_deadlines"
SessionBudgetError.__module__ = "tinker_deadlines"

# Classification ---------------------------------------------------------------------------------------------------

# 408 and 429 are the service asking for patience, 529 is "overloaded" in the field's usage.
_TRANSIENT_STATUSES = frozenset({408, 429, 529})

# Classes of the SDK, of its transports and of its sampling subprocess, by name: none of them needs to be importable.
_TRANSIENT_CLASSES = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ClientConnectionError",
        "ConnectionError",
        "InternalServerError",
        "NetworkError",
        "RateLimitError",
        "RemoteProtocolError",
        "SidecarError",
        "StreamingError",
        "Timeout",
        "TimeoutError",
        "TimeoutException",
        "TransportError",
        "gaierror",
    }
)

# Codes that are words: gRPC's canonical ones. A code that is not among them decides nothing.
_TRANSIENT_CODES = frozenset(
    {"aborted", "deadline_exceeded", "internal", "resource_exhausted", "unavailable", "unknown"}
)
_CLIENT_CODES = frozenset(
    {
        "already_exists",
        "failed_precondition",
        "invalid_argument",
        "not_found",
        "out_of_range",
        "permission_denied",
        "unauthenticated",
        "unimplemented",
    }
)

_TRANSIENT_PHRASES = re.compile(
    r"timed[ -]?out|time-?out|too many requests|rate.?limit|throttl|overloaded|capacity|temporarily unavailable"
    r"|service unavailable|bad gateway|gateway time|internal server error|connection (?:error|reset|refused|aborted)"
    r"|server disconnected|broken pipe|sidecar|requests appear to be stuck",
    re.IGNORECASE,
)


def is_capacity_error(exc: BaseException) -> bool:
    """Tells whether an error is transient: the infrastructure's, not the caller's.

    Throttling, 408, 429, 529 and every 5xx, connection and transport failures, failures of the SDK's subprocess,
    failed requests that are not of the category *user*, and this library's own expiries are. Everything else,
    `BudgetExhaustedError` among it, is the caller's. A structured code or status always outranks a phrase in the
    message. A group is transient when every error in it is. Never raises, and needs no SDK to be importable.
    """
    try:
        return _is_transient(exc)
    except Exception:
        # An error object that raises when it is looked at says nothing that could be classified.
        return False


def outcome_for(exc: BaseException) -> Literal["capacity_error", "client_error"]:
    """Names the class of an error: "capacity_error" where `is_capacity_error` holds, else "client_error"."""
    return "capacity_error" if is_capacity_error(exc) else "client_error"


def _is_transient(exc: BaseException) -> bool:
    if isinstance(exc, DeadlineExpiry):
        return True
    if isinstance(exc, _FactsError) or not isinstance(exc, Exception):
        return False
    if isinstance(exc, ExceptionGroup):
        return all(_is_transient(one) for one in exc.exceptions)
    category = _word_in(_look_at(exc, "category"))
    if category in ("user", "server", "unknown"):
        return category != "user"
    code = _code_of(exc)
    if isinstance(code, int):
        return code in _TRANSIENT_STATUSES or code >= 500
    if code is not None:
        return code in _TRANSIENT_CODES
    if any(cls.__name__ in _TRANSIENT_CLASSES or cls.__name__.startswith("Sidecar") for cls in type(exc).__mro__):
        return True
    return bool(_TRANSIENT_PHRASES.search(str(exc)))


def _look_at(holder: object, name: str) -> object:
    """An attribute, or `None`: some errors have properties that raise, such as a request that was never set."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _called(method: Callable[[], object]) -> object:
    try:
        return method()
    except Exception:
        return None


def _word_in(value: object) -> str:
    """The lower-case word that an enum member or a string stands for; "" for anything else."""
    for word in (_look_at(value, "value"), _look_at(value, "name"), value):
        if isinstance(word, str):
            return word.lower()
    return ""


def _code_of(exc: BaseException) -> int | str | None:
    """The HTTP status that an error carries, wherever the common clients keep it, else gRPC's word for it.

    Only a status that says failure: one of 200, around an answer that could not be read, decides nothing.
    """
    found = None
    for holder in (exc, _look_at(exc, "response")):
        for name in ("status_code", "status", "code", "http_status"):
            value = _look_at(holder, name)
            if callable(value):
                value = _called(value)  # gRPC: `code()`
            number = _look_at(value, "value") if isinstance(value, enum.Enum) else value
            if isinstance(number, str) and number.isdecimal():
                number = int(number)
            if isinstance(number, int) and not isinstance(number, bool) and 400 <= number <= 599:
                return int(number)
            word = _word_in(value)
            if found is None and (word in _TRANSIENT_CODES or word in _CLIENT_CODES):
                found = word
    return found
