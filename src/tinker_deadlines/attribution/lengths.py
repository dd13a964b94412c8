"""Do limits cut what is long? The rate of expiry by length, and a warning when it rises.

Where it does, the episodes that are left are the short ones, and a score or a gradient made of them is biased.

The test is that of Cochran and Armitage for a trend in proportions, one-sided, over bins of equal size with their
number as the score. It puts its power into the one alternative that is asked about, where a comparison of all bins with
each other spreads it, and one of the top with the bottom uses a fifth of the data. The scores are numbers of bins, not
lengths: lengths have long tails, and a single episode would decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from tinker_deadlines.limits import LEAST_EXPECTED, LENGTH_BINS, LENGTH_TREND_Z

__all__ = ["LengthBin", "LengthTrend", "expiry_by_length"]


class LengthBin(NamedTuple):
    """A tenth of the episodes, by length; episodes of one length stand in one bin."""

    number: int
    """From 1, the shortest, to 10."""
    shortest: int
    longest: int
    episodes: int
    expired: int

    @property
    def rate(self) -> float:
        """The share of its episodes that expired."""
        return self.expired / self.episodes


class LengthTrend(NamedTuple):
    """The rate of expiry by length; `str()` is a table, and the warning if there is one."""

    bins: tuple[LengthBin, ...]
    """The deciles from the shortest to the longest, without those that are empty because many lengths are equal."""
    z: float | None
    """How many standard deviations the trend is from none, above 0 when it rises; `None` where too little is there."""
    warning: str | None
    """What to say when the rate rises with length; `None` when nothing shows that."""

    def __str__(self) -> str:
        lines = ["decile      tokens  episodes  expired    rate"]
        for one in self.bins:
            tokens = f"{one.shortest}-{one.longest}"
            lines.append(f"{one.number:6}{tokens:>12}{one.episodes:10}{one.expired:9}{100 * one.rate:6.1f} %")
        trend = "too few to tell a trend" if self.z is None else f"no rise with length shown (z = {self.z:.1f})"
        return "\n".join([*lines, self.warning or trend])


def expiry_by_length(episodes: Iterable[tuple[int, bool]]) -> LengthTrend:
    """Tells whether the longer episodes, or calls, are the ones that expire.

    Args:
        episodes: Of each the length in tokens, and whether it expired. Give a length that was known beforehand, such as
            the tokens of the prompt and the most to generate: the length that was reached is cut with the episode.

    Raises:
        ValueError: a length is negative or no number.
    """
    bins = _bins(sorted((length, bool(expired)) for length, expired in map(_checked, episodes)))
    z = _trend(bins)
    if z is None or z < LENGTH_TREND_Z:
        return LengthTrend(bins, z, None)
    first, last = bins[0], bins[-1]
    warning = (
        f"The rate of expiry rises with length (z = {z:.1f}): {100 * first.rate:.1f} % at {first.shortest} to "
        f"{first.longest} tokens, {100 * last.rate:.1f} % at {last.shortest} to {last.longest}. What is left is "
        "biased towards short episodes: give long calls longer limits (a policy that follows the work, or the variable "
        "that the errors name) before a score or a gradient is made of it."
    )
    return LengthTrend(bins, z, warning)


def _checked(episode: tuple[int, bool]) -> tuple[int, bool]:
    length, _ = episode
    if not 0 <= length < math.inf:
        raise ValueError(f"{length!r} is not the length of an episode in tokens")
    return episode


def _bins(ordered: list[tuple[int, bool]]) -> tuple[LengthBin, ...]:
    """Puts episodes, ordered by length, into bins by the middle of the places that their length takes."""
    binned: dict[int, list[tuple[int, bool]]] = {}
    place = 0
    for _, same in groupby(ordered, key=lambda episode: episode[0]):
        equal = list(same)
        number = LENGTH_BINS * (2 * place + len(equal)) // (2 * len(ordered)) + 1
        binned.setdefault(number, []).extend(equal)
        place += len(equal)
    return tuple(
        LengthBin(number, held[0][0], held[-1][0], len(held), sum(expired for _, expired in held))
        for number, held in binned.items()
    )


def _trend(bins: tuple[LengthBin, ...]) -> float | None:
    """The statistic of Cochran and Armitage, given how many expired in all; `None` where it rests on too few."""
    total = sum(one.episodes for one in bins)
    expired = sum(one.expired for one in bins)
    short = sum(one.episodes for one in bins if one.number <= LENGTH_BINS // 2)
    if min(short, total - short) * min(expired, total - expired) < LEAST_EXPECTED * total or not total:
        return None
    weighted = sum(one.number * one.episodes for one in bins)
    spread = sum(one.number**2 * one.episodes for one in bins) - weighted**2 / total
    variance = expired * (total - expired) / (total * (total - 1)) * spread
    return (sum(one.number * one.expired for one in bins) - expired * weighted / total) / math.sqrt(variance)
