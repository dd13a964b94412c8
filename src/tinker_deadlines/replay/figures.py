"""How did a policy do? The figures of a replay, and the table that compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Figures", "Tallies", "pooled", "table"]


class Figures(NamedTuple):
    """What a policy did on a trace. Seconds are `None` where there was nothing to measure."""

    policy: str
    calls: int
    false_kills: int
    """Tries that were cut although they would have ended."""
    dead: int
    """Calls that would never have ended, and were cut."""
    lost: int
    """Calls without a result after their tries: three, or one where a call may not be repeated and was alive."""
    limit_median_s: float | None
    limit_p90_s: float | None
    noticed_median_s: float | None
    """How long after its submission a dead call was cut."""
    noticed_p90_s: float | None
    waited_h: float
    """Hours waited on the dead, in all."""

    @property
    def false_kills_per_10k(self) -> float:
        """False kills per 10,000 calls."""
        return 10_000 * self.false_kills / self.calls if self.calls else 0.0


class Tallies:
    """The counts of a replay while it goes on."""

    def __init__(self) -> None:
        self.limits_s: list[float] = []
        self.noticed_s: list[float] = []
        self.false_kills = 0
        self.lost = 0
        self.waited_s = 0.0

    def submitted(self, limit_s: float) -> None:
        """Notes the limit of a call's first try."""
        self.limits_s.append(limit_s)

    def cut(self, limit_s: float, *, alive: bool) -> None:
        """Notes that a try was cut at its limit."""
        if alive:
            self.false_kills += 1
        else:
            self.noticed_s.append(limit_s)
            self.waited_s += limit_s

    def figures(self, policy: str) -> Figures:
        """The figures as of now."""
        limit_median_s, limit_p90_s = _median_and_p90(self.limits_s)
        noticed_median_s, noticed_p90_s = _median_and_p90(self.noticed_s)
        return Figures(
            policy=policy,
            calls=len(self.limits_s),
            false_kills=self.false_kills,
            dead=len(self.noticed_s),
            lost=self.lost,
            limit_median_s=limit_median_s,
            limit_p90_s=limit_p90_s,
            noticed_median_s=noticed_median_s,
            noticed_p90_s=noticed_p90_s,
            waited_h=self.waited_s / 3600,
        )


def _median_and_p90(seconds: list[float]) -> tuple[float, float] | tuple[None, None]:
    if not seconds:
        return None, None
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 2], ordered[math.ceil(0.9 * len(ordered)) - 1]


def pooled(figures: Sequence[Figures]) -> Figures:
    """One policy over several traces: counts and hours added up, and the means of medians and percentiles."""
    return Figures(
        policy=figures[0].policy,
        calls=sum(each.calls for each in figures),
        false_kills=sum(each.false_kills for each in figures),
        dead=sum(each.dead for each in figures),
        lost=sum(each.lost for each in figures),
        limit_median_s=_mean([each.limit_median_s for each in figures]),
        limit_p90_s=_mean([each.limit_p90_s for each in figures]),
        noticed_median_s=_mean([each.noticed_median_s for each in figures]),
        noticed_p90_s=_mean([each.noticed_p90_s for each in figures]),
        waited_h=sum(each.waited_h for each in figures),
    )


def _mean(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) / len(known) if known else None


_COLUMNS = (
    "policy",
    "false kills per 10,000",
    "calls lost",
    "limit median s",
    "p90 s",
    "dead",
    "noticed after s, median",
    "p90",
    "hours waited on the dead",
)


def table(figures: Sequence[Figures]) -> str:
    """The figures side by side, one policy a row, as a table in Markdown."""
    rows = [
        (
            each.policy,
            f"{each.false_kills_per_10k:.1f}",
            str(each.lost),
            *map(_seconds, (each.limit_median_s, each.limit_p90_s)),
            str(each.dead),
            *map(_seconds, (each.noticed_median_s, each.noticed_p90_s)),
            f"{each.waited_h:.2f}",
        )
        for each in figures
    ]
    widths = [max(len(row[place]) for row in (_COLUMNS, *rows)) for place in range(len(_COLUMNS))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join("| " + " | ".join(_padded(row, widths)) + " |" for row in (_COLUMNS, rule, *rows))


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"
