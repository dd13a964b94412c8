"""How do the laws that several processes learned become one? They add up, whoever comes first.

A state is what is known of one kind and model, a delta what one process added to it; both are plain JSON. Counts of
different epochs (see `tail`) are brought to the later one before they are added, and halved while they are too much:
the result is the same in every order, and what is old counts for less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinker_deadlines.policy.tail import BINS, MOST_WEIGHT

__all__ = ["VERSION", "Delta", "merge", "sparse"]

VERSION = 1


def sparse(counts: Iterable[tuple[int, float]]) -> dict[str, float]:
    """Counts by the number of their bin, without the empty ones; JSON has no other keys than text."""
    return {str(index): count for index, count in counts if count}


def merge(state: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what a process learned to what is known of the same kind and model; neither is changed.

    Args:
        state: What is known; empty where that is nothing.
        delta: What the process learned.

    Returns:
        The new state. A guard that was up is not part of it: it belongs to the process that put it up.

    Raises:
        ValueError: one of the two was not made by this version.
    """
    parts = [_checked(part) for part in (state, delta) if part]
    epoch = max((part["epoch"] for part in parts), default=0)
    sums: dict[str, dict[int, float]] = {"ended": {}, "censored": {}}
    for part in parts:
        scale = 0.5 ** (epoch - part["epoch"])
        for name, counts in sums.items():
            for index, count in part[name].items():
                counts[index] = counts.get(index, 0.0) + scale * count
    weight = sum(sum(counts.values()) for counts in sums.values())
    halvings = 0
    while weight > MOST_WEIGHT:
        weight /= 2
        halvings += 1
    return {
        "version": VERSION,
        "epoch": epoch + halvings,
        **{name: sparse((at, n * 0.5**halvings) for at, n in sorted(counts.items())) for name, counts in sums.items()},
        "completed": sum(part["completed"] for part in parts),
        "false_kills": sum(part["false_kills"] for part in parts),
    }


def _checked(part: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if part["version"] != VERSION:
            raise ValueError(f"it is of version {part['version']!r}, and {VERSION} is known here")
        read: dict[str, Any] = {name: int(part[name]) for name in ("epoch", "completed", "false_kills")}
        for name in ("ended", "censored"):
            read[name] = {int(index): float(count) for index, count in part[name].items()}
            if any(not 0 <= index < BINS for index in read[name]):
                raise ValueError(f"it has bins that do not exist, among {sorted(read[name])}")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"this is not a learned state: {error!r}") from error
    return read


class Delta:
    """What one process learned of one kind and model and has not handed over, at the epoch of its law."""

    __slots__ = ("censored", "completed", "ended", "false_kills")

    def __init__(self) -> None:
        self.ended: dict[int, float] = {}
        self.censored: dict[int, float] = {}
        self.completed = 0
        self.false_kills = 0

    def add(self, index: int, count: float, *, censored: bool) -> None:
        """Counts calls in a bin."""
        counts = self.censored if censored else self.ended
        counts[index] = counts.get(index, 0.0) + count

    def halve(self, times: int = 1) -> None:
        """Goes along with so many halvings of the law."""
        scale = 0.5**times
        self.ended = {index: count * scale for index, count in self.ended.items()}
        self.censored = {index: count * scale for index, count in self.censored.items()}

    def state(self, epoch: int) -> dict[str, Any]:
        """It as JSON can hold it."""
        return {
            "version": VERSION,
            "epoch": epoch,
            "ended": sparse(sorted(self.ended.items())),
            "censored": sparse(sorted(self.censored.items())),
            "completed": self.completed,
            "false_kills": self.false_kills,
        }
