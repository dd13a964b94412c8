"""What is kept of a call that ended? A few references while its caller waits; the rows are made of them later."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tinker_deadlines import clock
from tinker_deadlines.attribution import blame_of
from tinker_deadlines.calls import Call, Ended, Outcome, Work
from tinker_deadlines.errors import BudgetExhaustedError, DeadlineExpiry
from tinker_deadlines.record.privacy import clean, exchange_word, facts_of, model_word, number

__all__ = ["Noted", "Origin", "Reported", "Utc", "note", "note_pending", "rows_of", "utc"]


class Noted(NamedTuple):
    """A call that ended, or one that is in flight as the run ends. Never its error, which holds whole stacks alive."""

    call: Call
    outcome: Outcome | None
    elapsed_s: float
    ended_at: float
    error: str | None = None
    blame: str | None = None
    verdict: str | None = None
    submission: str | None = None
    evidence: tuple[str, ...] = ()


class Reported(NamedTuple):
    """What another part of the library reports: a probe's answers, or an event."""

    table: str
    name: str
    at: float
    facts: Mapping[str, Any]


class Origin(NamedTuple):
    """The run that rows belong to, and when it began on the monotonic clock."""

    run: str
    at: float


def note(ended: Ended) -> Noted:
    """Notes what is needed of a call that ended. On the caller's time: a microsecond."""
    call, outcome, elapsed_s, error = ended
    if error is None:
        return Noted(call, outcome, elapsed_s, clock.monotonic())
    kind = type(error).__name__
    if isinstance(error, (DeadlineExpiry, BudgetExhaustedError)):
        return Noted(
            call,
            outcome,
            elapsed_s,
            clock.monotonic(),
            kind,
            error.blame,
            getattr(error, "verdict", None),
            error.submission,
            getattr(error, "evidence", call.findings),
        )
    return Noted(call, outcome, elapsed_s, clock.monotonic(), kind, blame_of(error))


def note_pending(call: Call) -> Noted:
    """Notes a call that is in flight while the run ends."""
    return Noted(call, None, call.elapsed_s(), clock.monotonic())


def rows_of(item: Noted | Reported, count: int, origin: Origin, utc_of: Utc) -> list[tuple[str, dict[str, Any]]]:
    """Makes the rows of what was noted: the names of their tables with them."""
    if isinstance(item, Noted):
        rows = [("calls", _call(item, origin, utc_of))]
        if item.call.traffic is not None:
            rows.append(("exchanges", _exchanges(item, origin)))
        if item.outcome in ("expired", "out_of_budget"):
            rows.append(("expiries", _expiry(item, origin)))
        return rows
    row: dict[str, Any] = {"run": origin.run, "number": count, "at": utc_of(item.at), "at_s": item.at - origin.at}
    if item.table == "events":
        row["name"] = clean(item.name)
    return [(item.table, {**row, "facts": facts_of(item.facts)})]


class Utc:
    """Turns instants of the monotonic clock into the wall clock's, as the two stand to each other when it is made."""

    def __init__(self) -> None:
        self._offset_s = clock.wall() - clock.monotonic()

    def __call__(self, instant: float) -> str:
        """The instant as people read it."""
        return utc(self._offset_s + instant)


def utc(wall_s: float) -> str:
    """An instant of the wall clock as people read it and as texts sort, to the millisecond below."""
    second = math.floor(wall_s)
    return f"{_utc_second(second)}.{int((wall_s - second) * 1000):03d}Z"


@functools.lru_cache(maxsize=64)
def _utc_second(second: int) -> str:
    # Calls that end together share it.
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def _call(item: Noted, origin: Origin, utc_of: Utc) -> dict[str, Any]:
    call, ended = item.call, item.outcome is not None
    # The policy's own, which is not known here: what it rests on and what was predicted, where it says so.
    limit = call.limit
    basis, predicted_s = getattr(limit, "basis", None), getattr(limit, "predicted_s", None)
    return {
        "run": origin.run,
        "number": call.id,
        "kind": call.kind,
        "method": call.method or None,
        "model": model_word(call.model),
        "session": _word(call.session),
        "work": None if call.work is None else _sizes(call.work),
        "in_flight": call.in_flight,
        "submitted_at": utc_of(call.submitted_at),
        "submitted_s": call.submitted_at - origin.at,
        "started_s": None if call.started_at is None else call.started_at - origin.at,
        "ended_s": item.ended_at - origin.at if ended else None,
        "elapsed_s": number(item.elapsed_s),
        "limit_s": number(call.limit_s),
        "limit_owner": clean(call.limit_owner),
        "basis": _word(basis),
        "predicted_s": number(predicted_s),
        "outcome": item.outcome,
        "error": None if item.error is None else clean(item.error),
        "blame": _word(item.blame) or _BLAME.get(item.outcome),
        "verdict": _word(item.verdict or call.verdict),
        "overdue": int(call.overdue),
    }


# Whose doing it is where no error says so.
_BLAME: dict[Outcome | None, str] = {
    "expired": "call",
    "out_of_budget": "budget",
    "refused": "caller",
    "cancelled": "caller",
}


def _exchanges(item: Noted, origin: Origin) -> dict[str, Any]:
    call, traffic = item.call, item.call.traffic
    assert traffic is not None
    return {
        "run": origin.run,
        "number": call.id,
        "sent_s": traffic.sent_at - origin.at,
        "exchanges": traffic.exchanges,
        "polls": traffic.polls,
        "last": exchange_word(traffic.last) or None,
        "last_s": traffic.last_at - origin.at if traffic.exchanges else None,
        "queue_state": _word(traffic.queue_state or None),
        "paused_s": traffic.paused_s(item.ended_at),
    }


def _expiry(item: Noted, origin: Origin) -> dict[str, Any]:
    traffic = item.call.traffic
    sentences = item.evidence
    if traffic is not None and traffic.last:
        # The end of an address in it may be the name of somebody's checkpoint.
        sentences = tuple(text.replace(traffic.last, exchange_word(traffic.last)) for text in sentences)
    return {
        "run": origin.run,
        "number": item.call.id,
        "submission": item.submission,
        "evidence": [clean(text) for text in sentences],
    }


@functools.lru_cache(maxsize=1024)
def _sizes(work: Work) -> str:
    """The sizes of a call as JSON, which it stays until it is written."""
    sizes = work.sizes().items()
    return json.dumps({name: size for name, size in sizes if isinstance(size, (int, float)) and math.isfinite(size)})


def _word(value: object) -> str | None:
    return None if value is None else clean(str(value))
