"""What does the record tell of the runs so far? A list of them, one in numbers, one as a trace; and which are to go."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, delete, func, select

from tinker_deadlines import clock
from tinker_deadlines.record.place import RecordError
from tinker_deadlines.record.rows import utc
from tinker_deadlines.record.schema import OF_A_RUN, calls, events, exchanges, expiries, probes, runs
from tinker_deadlines.record.store import Store

__all__ = ["Run", "forget", "list_runs", "run_named", "tell", "trace"]

# Outcomes after which nobody knows how long the call would have taken, because of something else than itself.
_CUT_BY_OTHERS = ("cancelled", "out_of_budget", "refused")


class Run(NamedTuple):
    """A run in one line."""

    id: str
    started_at: str
    ended_at: str | None
    """`None` while it runs, and for ever where its process died."""
    last_at: str
    command: str
    outcomes: dict[str, int]
    """Calls by outcome; "in_flight" are those that its end found so."""
    dropped: int
    """Notes on calls that found no room in memory while the database was lost."""


def list_runs(connection: Connection) -> list[Run]:
    """All runs, the latest first."""
    outcomes: defaultdict[str, dict[str, int]] = defaultdict(dict)
    counted = select(calls.c.run, calls.c.outcome, func.count()).group_by(calls.c.run, calls.c.outcome)
    for run, outcome, count in connection.execute(counted):
        outcomes[run][outcome or "in_flight"] = count
    rows = connection.execute(runs.select().order_by(runs.c.started_at.desc()))
    return [_run(row, outcomes[row.id]) for row in rows]


def run_named(connection: Connection, name: str) -> str:
    """The id of the run that a person means: the whole id, or enough of its beginning.

    Raises:
        RecordError: no run is called so, or several are.
    """
    found = list(connection.scalars(select(runs.c.id).where(runs.c.id.startswith(name, autoescape=True)).limit(9)))
    if len(found) == 1:
        return str(found[0])
    if name in found:
        return name
    what = f"several runs begin with {name!r}: {', '.join(sorted(found))}" if found else f"no run is called {name!r}"
    raise RecordError(f"{what}; tinker-deadlines record lists them")


def tell(connection: Connection, run: str) -> dict[str, Any]:
    """One run as JSON can say it: its calls by kind, what expired and with which evidence, probes and events."""
    row = connection.execute(runs.select().where(runs.c.id == run)).one()
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    took: defaultdict[str, list[float]] = defaultdict(list)
    for kind, outcome, elapsed_s in connection.execute(
        select(calls.c.kind, calls.c.outcome, calls.c.elapsed_s).where(calls.c.run == run).order_by(calls.c.number)
    ):
        kinds[kind][outcome or "in_flight"] += 1
        if outcome == "completed":
            took[kind].append(elapsed_s)
    of_run = (calls.c.run == run) & (expiries.c.run == run) & (calls.c.number == expiries.c.number)
    expired = select(calls, expiries.c.submission, expiries.c.evidence).where(of_run).order_by(calls.c.ended_s)
    return {
        **row._asdict(),
        "calls": {kind: {**outcomes, **_seconds(took[kind])} for kind, outcomes in kinds.items()},
        "exchanges": connection.scalar(select(func.sum(exchanges.c.exchanges)).where(exchanges.c.run == run)) or 0,
        "expiries": [_without(found, "run") for found in connection.execute(expired)],
        "probes": [
            _without(found, "run")
            for found in connection.execute(probes.select().where(probes.c.run == run).order_by(probes.c.at_s))
        ],
        "events": [
            _without(found, "run")
            for found in connection.execute(events.select().where(events.c.run == run).order_by(events.c.at_s))
        ],
    }


def trace(connection: Connection, run: str) -> Iterator[dict[str, Any]]:
    """The calls of a run in the form that replay reads, in the order of their submission.

    `latency_s` is time on the limit's clock: for a training call, from when its turn came; `waited_s` is what passed
    before, where that was anything. It is null for a call that expired: nobody saw it end. A call that ended with an
    error has `failed`. Calls that were cut by somebody else, or by the end of the run, tell nothing about how long they
    would have taken and are left out.
    """
    asked = calls.select().where(calls.c.run == run).order_by(calls.c.submitted_s, calls.c.number)
    for call in connection.execution_options(yield_per=1000).execute(asked):
        if call.outcome is None or call.outcome in _CUT_BY_OTHERS:
            continue
        waited_s = 0.0 if call.started_s is None else call.started_s - call.submitted_s
        yield {
            "t": round(call.submitted_s, 6),
            "kind": call.kind,
            "model": call.model,
            "work": call.work or {},
            "latency_s": None if call.outcome == "expired" else round(call.elapsed_s, 6),
            "session": call.session,
            "in_flight": call.in_flight,
            **({"waited_s": round(waited_s, 6)} if waited_s > 0 else {}),
            **({"failed": True} if call.outcome == "failed" else {}),
        }


def forget(store: Store, *, keep_days: float) -> int:
    """Deletes the runs that wrote nothing for so many days, gives their room back, and returns their number.

    What was learned of them stays.
    """
    before = utc(clock.wall() - keep_days * 24 * 60 * 60)
    with store.writing() as connection:
        old = list(connection.scalars(select(runs.c.id).where(runs.c.last_at < before)))
        chosen = select(runs.c.id).where(runs.c.last_at < before)
        for table in OF_A_RUN:
            connection.execute(delete(table).where(table.c.run.in_(chosen)))
        connection.execute(delete(runs).where(runs.c.last_at < before))
    if old:
        store.give_room_back()
    return len(old)


def _run(row: Row[Any], outcomes: dict[str, int]) -> Run:
    return Run(row.id, row.started_at, row.ended_at, row.last_at, row.command, outcomes, row.dropped)


def _without(row: Row[Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in row._asdict().items() if key not in names and value is not None}


def _seconds(took: list[float]) -> dict[str, float]:
    if not took:
        return {}
    ordered = sorted(took)
    return {
        "median_s": round(statistics.median(ordered), 3),
        "p99_s": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
        "longest_s": round(ordered[-1], 3),
    }
