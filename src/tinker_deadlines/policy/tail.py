"""By which law are calls slower than predicted? A histogram of the ratio elapsed / predicted, with a tail fitted to it.

The body is the Kaplan-Meier estimate on logarithmic bins, which is honest about calls that were cut before they ended:
such a call says that its ratio is *at least* so much. Beyond the last five per cent it is a Pareto law, whose exponent
is Hill's estimate with the same honesty and a prior. A law with nothing in it is the prior of both.

Counts are halved now and then, so that the law follows the present. A halving raises the law's `epoch`; a count of
epoch *e* is worth 2^-*e* of one that was learned before any halving. So laws that were learned side by side by several
processes add up exactly, in whatever order: bring both to the later epoch, add, halve while it is too much.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tinker_deadlines.limits import (
    HALVE_EVERY,
    PRIOR_CALLS,
    PRIOR_SIGMA,
    TAIL_PRIOR_CALLS,
    TAIL_PRIOR_SLOPE,
    TAIL_SHARE,
)

__all__ = ["BINS", "MOST_WEIGHT", "Fit", "Law", "bin_of"]

# Bins of 5 % from 1e-3 to 1e4: finer than any tail is known, and wider than predictions are wrong.
_WIDTH = math.log(1.05)
_START = -7.0
BINS = 330
_LEAST_RATIO = math.exp(_START)

# Halved whenever there is more: in the long run every HALVE_EVERY calls, from twice as many to as many.
MOST_WEIGHT = 2.0 * HALVE_EVERY

# What is left of a share where none is left; suspicion takes logarithms of shares.
_LEAST_SHARE = 1e-300


def bin_of(ratio: float) -> int:
    """The number of the bin that a ratio falls into; ratios beyond the ends fall into the last ones."""
    if not ratio > _LEAST_RATIO:
        return 0
    return min(BINS - 1, int((math.log(min(ratio, 1e9)) - _START) / _WIDTH))


def _upper_edge(index: int) -> float:
    return math.exp(_START + (index + 1) * _WIDTH)


def _middle(index: int) -> float:
    return math.exp(_START + (index + 0.5) * _WIDTH)


def _prior() -> tuple[tuple[int, float], ...]:
    """Pseudo-calls of a log-normal ratio around 1, as (bin, weight)."""
    points = [-2.6 + 5.2 * step / (PRIOR_CALLS - 1) for step in range(PRIOR_CALLS)]
    density = [math.exp(-z * z / 2) for z in points]
    bins: dict[int, float] = {}
    for z, weight in zip(points, density, strict=True):
        index = bin_of(math.exp(PRIOR_SIGMA * z))
        bins[index] = bins.get(index, 0.0) + weight / sum(density) * PRIOR_CALLS
    return tuple(sorted(bins.items()))


_PRIOR = _prior()


class Fit(NamedTuple):
    """A law worked out: what can be read from it without looking at the counts again."""

    first: int
    """The bin of the first entry of `curve`."""
    curve: tuple[float, ...]
    """The share of calls that take longer, at the upper edge of each bin, up to the tail."""
    edge: float
    """The ratio at which the tail starts."""
    share: float
    """The share of calls in the tail."""
    slope: float
    """The exponent of the tail: the larger, the heavier."""

    def ratio_for(self, alpha: float) -> float:
        """The ratio that a share `alpha` of calls exceeds; at least where the tail starts."""
        return self.edge * (self.share / alpha) ** self.slope if alpha < self.share else self.edge

    def survival(self, ratio: float) -> float:
        """The share of calls whose ratio is larger: never rising, never quite 0."""
        if ratio > self.edge:
            return max(_LEAST_SHARE, self.share * math.pow(ratio / self.edge, -1.0 / self.slope))
        place = bin_of(ratio) - self.first
        return 1.0 if place < 0 or ratio <= 0 else max(self.curve[min(place, len(self.curve) - 1)], self.share)

    def median(self) -> float:
        """The ratio that half of the calls exceed."""
        for place, share in enumerate(self.curve):
            if share <= 0.5:
                return _middle(self.first + place)
        return self.edge


class Law:
    """The counts behind a law. Not safe across threads: its learner's lock is around it."""

    __slots__ = ("_highest", "_lowest", "censored", "ended", "epoch", "weight")

    def __init__(self, epoch: int = 0) -> None:
        self.ended = [0.0] * BINS
        self.censored = [0.0] * BINS
        self.weight = 0.0
        self.epoch = epoch
        self._lowest, self._highest = _PRIOR[0][0], _PRIOR[-1][0]

    def add(self, index: int, count: float = 1.0, *, censored: bool = False) -> bool:
        """Counts calls in a bin, cut there where `censored`; a negative number takes back. True where it halved."""
        counts = self.censored if censored else self.ended
        count = max(count, -counts[index])
        counts[index] += count
        self.weight += count
        if index < self._lowest:
            self._lowest = index
        elif index > self._highest:
            self._highest = index
        if self.weight <= MOST_WEIGHT:
            return False
        self.halve()
        return True

    def halve(self) -> None:
        """Lets what is learned from here on count twice as much as what was learned before."""
        self.ended = [count / 2 for count in self.ended]
        self.censored = [count / 2 for count in self.censored]
        self.weight /= 2
        self.epoch += 1

    def fit(self) -> Fit:
        """Works the law out, in about as many microseconds as a tenth of the bins in use."""
        scale = 0.5**self.epoch
        counts = self.ended[: self._highest + 1]
        for index, weight in _PRIOR:
            counts[index] += scale * weight
        curve, last = self._body(counts)
        # Where all calls take the same time the curve falls from 1 to next to nothing within one bin: the last five
        # per cent lie in that bin, and of the tail beyond it nothing is known but the prior.
        share = max(curve[-1], TAIL_SHARE)
        # Sums over the tail: the logarithms by which calls exceed its edge, and how many of them ended there.
        excess = ended = 0.0
        for index in range(last + 1, self._highest + 1):
            here = counts[index] + self.censored[index]
            if here:
                excess += (index - last - 0.5) * _WIDTH * here
                ended += counts[index]
        slope = (excess + TAIL_PRIOR_CALLS * TAIL_PRIOR_SLOPE) / (ended + TAIL_PRIOR_CALLS)
        return Fit(self._lowest, tuple(curve), _upper_edge(last), share, slope)

    def _body(self, counts: list[float]) -> tuple[list[float], int]:
        """The Kaplan-Meier estimate up to the tail, and the bin after which the tail starts."""
        censored = self.censored
        at_risk = self.weight + PRIOR_CALLS * 0.5**self.epoch
        share, last_ended = 1.0, self._lowest
        curve: list[float] = []
        for index in range(self._lowest, self._highest + 1):
            here = counts[index]
            if here > 0:
                share = share * (1 - here / at_risk) if at_risk > here else 0.0
                last_ended = index
            at_risk -= here + censored[index]
            curve.append(share)
            if share <= TAIL_SHARE:
                return curve, index
        # So many were cut that the last five per cent were not reached: the tail starts after the last that ended.
        del curve[last_ended - self._lowest + 1 :]
        return curve, last_ended

    def quantile(self, share: float) -> float | None:
        """The ratio within which this share of the completed calls ended, prior aside; `None` if there are none."""
        total = math.fsum(self.ended)
        if total < 1:
            return None
        so_far = 0.0
        for index in range(self._lowest, self._highest + 1):
            so_far += self.ended[index]
            if so_far >= share * total:
                return _upper_edge(index)
        return _upper_edge(self._highest)
