"""How do the calls look as a table? One row a kind, and only the columns that have something to say."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from tinker_deadlines.calls import Call, Outcome
from tinker_deadlines.show.story import COUNTED, Row

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["calls_table", "counts_table", "lines_of", "plural"]

# Shown although they are 0: their 0 is what people look for.
_ALWAYS: tuple[Outcome, ...] = ("completed", "expired")

# From this share of its limit on, a call in flight is shown in yellow, from the next in red. Arbitrary.
_OLD, _VERY_OLD = 0.5, 0.9

_STYLES: dict[Outcome, str] = {"expired": "bold red", "failed": "red", "out_of_budget": "yellow", "refused": "yellow"}


def counts_table(rows: list[Row], *, in_flight: bool) -> Table:
    """The kinds that were called: how many calls ended how, and with `in_flight` what is in flight and how old."""
    table = _table("kind")
    outcomes = [name for name in COUNTED if name in _ALWAYS or any(row.counts[name] for row in rows)]
    headers = ["in flight", "oldest", "of limit"] if in_flight else []
    for header in [*headers, *(name.replace("_", " ") for name in outcomes)]:
        table.add_column(header, justify="right")
    for row in rows:
        cells: list[str] = [row.kind]
        if in_flight:
            cells += [str(row.in_flight or "-"), *_oldest(row)]
        table.add_row(*cells, *(_number(row.counts[name], _STYLES.get(name, "")) for name in outcomes))
    return table


def calls_table(calls: list[Call]) -> Table:
    """Calls in flight, one row each."""
    table = _table("call", "method", "age", "on its clock", "limit", "last answer")
    for call in calls:
        clock = "waits its turn" if call.started_at is None else f"{call.elapsed_s():.1f} s"
        table.add_row(
            str(call.id),
            call.method or call.kind,
            f"{call.age_s():.1f} s",
            clock,
            f"{call.limit_s:g} s",
            _last_answer(call),
        )
    return table


def _last_answer(call: Call) -> str:
    if call.traffic is None:
        return "none seen"
    return call.traffic.last or "sent, none yet"


def lines_of(renderable: Any, *, width: int, colour: bool) -> list[str]:
    """A table or text of rich as lines of at most `width` cells."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="auto" if colour else None, highlight=False
    )
    with console.capture() as capture:
        console.print(renderable, no_wrap=True, overflow="ellipsis")
    return [line.rstrip() for line in capture.get().splitlines()]


def plural(count: int, noun: str) -> str:
    """A count with its noun: "1 call", "2 calls"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _table(*headers: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for header in headers:
        table.add_column(header, no_wrap=True)
    return table


def _oldest(row: Row) -> tuple[str, str]:
    if not row.in_flight:
        return "-", "-"
    share = row.oldest_s / row.limit_s
    style = "bold red" if share >= _VERY_OLD else "yellow" if share >= _OLD else ""
    return _styled(f"{row.oldest_s:.0f} s", style), f"{row.limit_s:g} s"


def _number(count: int, style: str) -> str:
    return _styled(f"{count:,}", style if count else "dim")


def _styled(text: str, style: str) -> str:
    return f"[{style}]{text}[/]" if style else text
