"""Which clock ran out, whose fault is it, and what is known of the work?

The error model, before the classes:

1. **An error of the call is never relabelled.** What the call raised comes through as it is, a `TimeoutError`
   included. Only our own clocks raise the classes below.
2. **A call's own limit** ran out: `TinkerDeadlineError` from the functions of this library, a `TimeoutError`; and
   `StuckCallError` inside a script that does not know us, a `tinker.APIConnectionError` and on purpose not a
   `TimeoutError`, which scripts take for an episode that ended or score as a reward of 0. Both are
   `DeadlineExpiry`, carry the same facts, and read as transient: the infrastructure's fault, `blame` is "call".
3. **An enclosing budget** ran out: `BudgetExhaustedError`. It is the episode's own fact, `blame` is "budget", but where
   the call that it cut was dead or held up by the service; it is no `TimeoutError`, does not say the words that retry
   loops look for, and is never retried.
4. **We refuse** before anything is sent: `AbandonedCallsError` when too many threads are stuck already,
   `ForkedProcessError` in a forked child where the SDK cannot work, `SessionBudgetError` when this process holds as
   many sessions as it may, `FencedClientError` on a training client of which it is not known what it has executed,
   `DivergedError` in a script that goes on with a run and does something else.
5. **Recovery ended**: `RecoveryFailedError`, with what is needed to go on in another process.

`submission` says what is known of the work: "not sent", "sent", or "indeterminate" for a call that may have been
executed and must not be repeated blindly. Every class pickles with all its facts but `late`, a handle of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from tinker_deadlines.calls import TRAINING_KINDS, TinkerCallKind, Verdict
from tinker_deadlines.limits import ALIVE_S, SESSION_BUDGET_ENV, env_var_for

__all__ = [
    "AbandonedCallsError",
    "Blame",
    "BudgetExhaustedError",
    "DeadlineExpiry",
    "DivergedError",
    "FencedClientError",
    "ForkedProcessError",
    "Late",
    "RecoveryFailedError",
    "SessionBudgetError",
    "Submission",
    "TinkerDeadlineError",
    "UntrainableGroupError",
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

# A wall that cuts a call of which nothing is known, or which is only slow, is the episode's own.
_OWN_WALL: frozenset[Verdict | None] = frozenset({None, "slow", "behind earlier calls", "input-dependent failure"})

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


class FactsError(Exception):
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


def _rebuild(cls: type[FactsError], facts: dict[str, Any], notes: Sequence[str] = ()) -> FactsError:
    error = cls(**facts)
    for note in notes:
        error.add_note(note)
    return error


_CONSEQUENCE: dict[Submission, str] = {
    "not sent": "It had not been sent: it is safe to try again.",
    "sent": "It was given up, not answered: it is safe to try again.",
    "indeterminate": "The service may have executed it: do not repeat it on the same client before that is known.",
}


class DeadlineExpiry(FactsError):
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


class BudgetExhaustedError(FactsError):
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
        verdict: What was found out about the call by then, such as "outage"; `None` where nothing was.
        silent_s: Seconds since the service last showed that it worked on the call; `None` where that is not known.
        late: Where a late result may still be collected; `None` where it cannot.
    """

    _facts = (
        "kind", "owner", "budget_s", "elapsed_s", "method", "submission", "evidence", "verdict", "silent_s", "late",
    )  # fmt: skip

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
        verdict: Verdict | None = None,
        silent_s: float | None = None,
        late: Late | None = None,
    ) -> None:
        self.kind = kind
        self.owner = owner
        self.budget_s = budget_s
        self.elapsed_s = elapsed_s
        self.method = method
        self.submission: Submission = submission
        self.evidence = evidence
        self.verdict = verdict
        self.silent_s = silent_s
        self.late = late

    @property
    def indeterminate(self) -> bool:
        """True when the service may have executed the call, so that repeating it may execute it twice."""
        return self.submission == "indeterminate"

    @property
    def blame(self) -> Blame:
        """Whose fault it is: the "budget"'s, unless the call that it cut was dead or held up by the service."""
        if self.verdict not in _OWN_WALL:
            return _BLAME.get(self.verdict, "call")
        return "call" if self.silent_s is not None and self.silent_s > ALIVE_S else "budget"

    def _message(self) -> str:
        name = f" ({self.method})" if self.method else ""
        whose = ", not a failure of the service" if self.blame == "budget" else ""
        what = "was not sent" if self.submission == "not sent" else f"was cut after {self.elapsed_s:.1f} s"
        evidence = "".join(f"{sentence} " for sentence in self.evidence)
        return (
            f"The budget {self.owner!r} of {self.budget_s:.1f} s is spent: the Tinker call {self.kind}{name} {what}. "
            f"{evidence}This is the wall around the call{whose}; trying again inside it cannot succeed."
        )


class AbandonedCallsError(FactsError):
    """Too many blocking calls were given up and still hold a thread each, so a further one is refused.

    Cause: that many calls never returned. Consequence: this call was not started. Remedy: find out what they are
    stuck in (`py-spy dump`, or SIGQUIT under `tinker-deadlines run`) and restart the process.

    Attributes:
        abandoned: Threads that were given up and still run.
        most: The most that are allowed.
    """

    blame: Blame = "call"
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


class ForkedProcessError(FactsError):
    """A Tinker call was made in a forked child, where the SDK's event loop does not exist.

    Cause: the process was forked after the SDK had started its event loop; a thread does not survive a fork.
    Consequence: the call could never finish, so it was refused at once. Remedy: start worker processes with the
    start method "spawn" or "forkserver".

    Attributes:
        what: The call that was refused.
    """

    blame: Blame = "caller"
    _facts = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def _message(self) -> str:
        return (
            f"{self.what} was called in a process that was forked after the Tinker SDK had started: the SDK's event "
            "loop is a thread of the parent and does not exist here, so the call could never finish. Start worker "
            'processes with multiprocessing.get_context("spawn") or "forkserver".'
        )


class FencedClientError(FactsError):
    """A training client may not be used, because a call of it may or may not have been executed.

    Cause: an earlier training call on this client was given up, and its outcome is unknown. Consequence: this call was
    not sent: after a gradient or a step that may be missing or doubled, nothing that is trained can be trusted.
    Remedy: go on from the last checkpoint with a new client, which `tinker_deadlines.recoverable(client)` and
    `tinker-deadlines run --recover` do by themselves. When the call's late result arrives, the client is used again.

    Attributes:
        method: The SDK's method that was refused.
        cause: The error of the call whose outcome is unknown; it is `__cause__` as well.
    """

    _facts = ("method", "cause")

    def __init__(self, method: str, cause: BaseException) -> None:
        self.method = method
        self.cause = cause
        self.__cause__ = cause

    @property
    def blame(self) -> Blame:
        """Whose fault it is: that of the call whose outcome is unknown."""
        found: Blame = getattr(self.cause, "blame", "call")
        return found

    def _message(self) -> str:
        return (
            f"{self.method} was not sent: this training client is fenced, because an earlier call may or may not have "
            f"been executed ({self.cause}). Make a new client from the last checkpoint, or have it made for you: "
            "tinker_deadlines.recoverable(client), or tinker-deadlines run --recover. If the late result of that call "
            "still arrives, this client may be used again."
        )


class RecoveryFailedError(FactsError):
    """Training could not be recovered in this process; it can be gone on with in another.

    Cause: the client was given up for `cause`, and no new one could be brought to where it stood. Consequence: no call
    that raised this is applied; everything up to the checkpoint is. Remedy: when the cause is gone, the command in
    `command`, or a client of your own from `path`.

    Attributes:
        cause: What the last attempt failed with; it is `__cause__` as well.
        attempts: How many attempts were made.
        run: The run's name; "" where nothing of it is kept.
        step: Optimizer steps that the last confirmed checkpoint contains.
        path: That checkpoint; "" where there is none.
    """

    _facts = ("cause", "attempts", "run", "step", "path")

    def __init__(self, cause: BaseException | None, attempts: int, run: str, step: int, path: str) -> None:
        self.cause = cause
        self.attempts = attempts
        self.run = run
        self.step = step
        self.path = path
        self.__cause__ = cause

    blame: Blame = "service"

    @property
    def command(self) -> str:
        """What goes on with the run; "" where nothing of it is kept."""
        return f"tinker-deadlines run --resume {self.run} SCRIPT ..." if self.run else ""

    def _message(self) -> str:
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        state = f"the checkpoint {self.path} of step {self.step}" if self.path else "no checkpoint yet"
        remedy = f" Go on with: {self.command}" if self.command else " Make a new client from it to go on."
        return f"Training could not be recovered after {tries}: {self.cause}. There is {state}.{remedy}"


class DivergedError(FactsError):
    """A script that goes on with a run does not make the calls that it made before.

    Cause: a call differs from the one that was made in its place, such as for another batch or another order.
    Consequence: it was not sent: what follows would be trained on top of something else, or twice. Remedy: run the
    script as it was, or begin a run of its own from `last_confirmed(run)`.

    Attributes:
        run: The run's name.
        step: The optimizer step of the first call that differs, counted from 1.
        call: The number of that call on its client, counted from 1; 0 for the making of the client.
        was: What was called before.
        now: What is called instead.
    """

    _facts = ("run", "step", "call", "was", "now")
    blame: Blame = "caller"

    def __init__(self, run: str, step: int, call: int, was: str, now: str) -> None:
        self.run = run
        self.step = step
        self.call = call
        self.was = was
        self.now = now

    def _message(self) -> str:
        where = f"step {self.step} (call {self.call})" if self.call else "the making of the training client"
        return (
            f"This script is not the one that made the run {self.run!r}: the first difference is at {where}, where it "
            f"called {self.was} and now calls {self.now}. Nothing was sent. Run it with the arguments, data and order "
            f"that it had, or begin another run from tinker_deadlines.last_confirmed({self.run!r})."
        )


class SessionBudgetError(FactsError):
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


class UntrainableGroupError(FactsError):
    """Episodes of a group were cut or failed, and the outcome policy "error" makes no advantages of such a group.

    Cause: the outcomes that the message counts. Consequence: the group has no advantages, those of its episodes that
    ended well neither. Remedy: play the group again with fresh environments, or choose the policy "mask" or "truncate".

    Attributes:
        outcomes: How the episodes of the group ended, in their order.
    """

    blame: Blame = "caller"
    _facts = ("outcomes",)

    def __init__(self, outcomes: Sequence[str]) -> None:
        self.outcomes = tuple(outcomes)

    def _message(self) -> str:
        counts = ", ".join(f"{self.outcomes.count(one)} {one}" for one in sorted(set(self.outcomes)))
        return (
            f"A group of {len(self.outcomes)} episodes ended as {counts}, and the outcome policy 'error' makes no "
            "advantages of a group with episodes that were cut or failed. Play the group again with fresh "
            "environments, or choose the policy 'mask' or 'truncate'."
        )


for _error in (
    TinkerDeadlineError, BudgetExhaustedError, AbandonedCallsError, ForkedProcessError, DeadlineExpiry,
    FencedClientError, RecoveryFailedError, DivergedError, SessionBudgetError,
    UntrainableGroupError,
):  # fmt: skip
    _error.__module__ = "tinker_deadlines"
