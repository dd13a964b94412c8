"""What does `tinker-deadlines record` do? It lists the runs of the record, tells of one, writes it out, or forgets."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinker_deadlines.cli import refuse
from tinker_deadlines.limits import RECORD_KEEP_DAYS
from tinker_deadlines.record.place import RECORD_VARIABLE, Place, RecordError, place_of

if TYPE_CHECKING:
    from tinker_deadlines.record.reading import Run
    from tinker_deadlines.record.store import Store

__all__ = ["EXAMPLES", "tell"]

EXAMPLES = (
    "Examples:  tinker-deadlines record  ·  tinker-deadlines record --run 53350f61 --json"
    "  ·  tinker-deadlines record --export 53350f61 > run.jsonl  ·  tinker-deadlines record --prune --keep-days 7"
)

# As many expiries are written out in the text; the JSON document has all. More push the counts off the screen.
SHOWN_EXPIRIES = 20


def tell(
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="Tell of one run: the beginning of its id will do.")
    ] = None,
    export: Annotated[
        str | None, typer.Option(metavar="ID", help="Write the calls of a run as JSON Lines, as replay reads them.")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Delete old runs; what was learned of them stays.")] = False,
    keep_days: Annotated[
        str | None,
        typer.Option(metavar="DAYS", help=f"With --prune: keep runs younger than this; default {RECORD_KEEP_DAYS:g}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say it as JSON.")] = False,
) -> int:
    """Look at the record of past runs: their calls, what expired and why. Nothing but sizes and numbers is in it."""
    if sum((run is not None, export is not None, prune)) > 1:
        return refuse("--run, --export and --prune are different things to do: give one of them")
    if keep_days is not None and not prune:
        return refuse("--keep-days says what --prune keeps: give both, or neither")
    try:
        keep = RECORD_KEEP_DAYS if keep_days is None else _days(keep_days)
        place = place_of()
        if place is None:
            return refuse(f"{RECORD_VARIABLE} is off, so there is no record to look at")
        return _tell(place, run=run, export=export, keep_days=keep if prune else None, as_json=as_json)
    except RecordError as error:
        return refuse(str(error))
    except BrokenPipeError:
        # Whoever read has enough, as `head` does. The interpreter would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _tell(place: Place, *, run: str | None, export: str | None, keep_days: float | None, as_json: bool) -> int:
    from sqlalchemy.exc import SQLAlchemyError

    from tinker_deadlines.record import reading
    from tinker_deadlines.record.store import Store, reason_of

    if place.path is not None and not place.path.exists():
        if run is not None or export is not None:
            return refuse(f"nothing is recorded yet in {place.shown}")
        print("[]" if as_json else f"nothing is recorded yet in {place.shown}")
        return 0
    store = Store(place)
    try:
        if keep_days is not None:
            count = reading.forget(store, keep_days=keep_days)
            print(f"{_plural(count, 'run')} deleted of the record {place.shown}")
            return 0
        with store.reading() as connection:
            if export is not None:
                for call in reading.trace(connection, reading.run_named(connection, export)):
                    print(json.dumps(call))
            elif run is not None:
                told = reading.tell(connection, reading.run_named(connection, run))
                print(json.dumps(told) if as_json else "\n".join(_lines_of_one(told)))
            else:
                found = reading.list_runs(connection)
                print(json.dumps([each._asdict() for each in found]) if as_json else _listed(found, store))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, SQLAlchemyError) as error:
        return refuse(f"the record {place.shown} cannot be used: {reason_of(error)}")
    finally:
        store.close()
    return 0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not (math.isfinite(days) and days >= 0):
        raise RecordError(
            f"--keep-days is {text!r}, which is not a finite number of days; such as {RECORD_KEEP_DAYS:g}"
        )
    return days


def _listed(found: list[Run], store: Store) -> str:
    path = store.place.path
    size = "" if path is None else f", {path.stat().st_size / 1e6:,.1f} MB"
    if not found:
        return f"no run is in the record {store.place.shown}{size}"
    rows = [("run", "began (UTC)", "lasted", "command", "calls")]
    rows += [(each.id, _when(each.started_at), _lasted(each), each.command, _outcomes(each)) for each in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows]
    return "\n".join([*lines, "", f"{_plural(len(found), 'run')} in {store.place.shown}{size}"])


def _lasted(run: Run) -> str:
    seconds = _seconds_between(run.started_at, run.ended_at or run.last_at)
    return _duration(seconds) if run.ended_at else f"{_duration(seconds)}, not ended"


def _outcomes(run: Run) -> str:
    facts = [f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in _by_number(run.outcomes)]
    facts += [f"{run.dropped:,} not recorded"] if run.dropped else []
    return ", ".join(facts) or "none"


def _lines_of_one(told: dict[str, Any]) -> Iterable[str]:
    ended = f"ended {_when(told['ended_at'])}" if told["ended_at"] else f"not ended, last seen {_when(told['last_at'])}"
    yield f"run {told['id']}  {told['command']}  began {_when(told['started_at'])} UTC, {ended}"
    for kind, facts in told["calls"].items():
        counted = ", ".join(
            f"{value:,} {name.replace('_', ' ')}" for name, value in facts.items() if not name.endswith("_s")
        )
        if "median_s" in facts:
            counted += f"; took {facts['median_s']:g} s at the median, {facts['longest_s']:g} s at most"
        yield f"  {kind}: {counted}"
    if told["dropped"]:
        yield f"  {told['dropped']:,} calls found no room in memory while the record could not be written"
    for expiry in told["expiries"][-SHOWN_EXPIRIES:]:
        name = expiry.get("method") or expiry["kind"]
        yield f"  {expiry['ended_s']:.1f} s: {name} given up after {expiry['elapsed_s']:.1f} s ({expiry['outcome']})"
        yield from (f"    {sentence}" for sentence in expiry.get("evidence") or [])
    for event in told["events"][-SHOWN_EXPIRIES:]:
        yield f"  {event['at_s']:.1f} s: {event['name']}"


def _by_number(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _when(stamp: str) -> str:
    return stamp[:19].replace("T", " ")


def _seconds_between(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
