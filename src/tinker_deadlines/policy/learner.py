"""What has been learned of one kind of call on one model? The law of its ratio, a guard, and a right to be strict.

What a killed call teaches depends on the verdict on it:

- It was *slow*: it would have taken longer than it was given, which the law can use. A policy that forgets such calls
  kills what would have taught it patience, and kills more and more.
- It was *wedged*: it would never have ended. That says nothing on how long calls take, and is forgotten.

A verdict takes a while. Until then the guard doubles the limits at once, so that a policy that is wrong is not wrong
many times; a wedge takes the doubling back. A call that is repeated is two samples, the one that was cut and the one
that ended, never their sum (Karn's rule).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.limits import (
    GUARD_DECAY,
    GUARD_FACTOR,
    GUARD_MOST,
    KILL_SHARE,
    KILL_WINDOW,
    LEAST_COMPLETED,
    MIN_LIMIT_S,
    REFIT_EVERY,
)
from tinker_deadlines.policy.merging import VERSION, Delta, merge, sparse
from tinker_deadlines.policy.protocol import Sample
from tinker_deadlines.policy.tail import Fit, Law, bin_of
from tinker_deadlines.policy.work_model import Predictor

__all__ = ["Learner"]

log = logging.getLogger("tinker_deadlines")

_COLD = Law().fit()


def _bin_of(elapsed_s: float, predicted_s: float) -> int:
    return bin_of(elapsed_s / max(predicted_s, MIN_LIMIT_S))


class Learner:
    """One kind and model. What a limit needs are single attributes, read without a lock; `learn` has one.

    Args:
        kind: The kind of call.
        model: The model, where it is known.
        predictor: What its work should take.
        alpha: The share of living calls that its limits may cut.
    """

    def __init__(self, kind: TinkerCallKind, model: str | None, predictor: Predictor, alpha: float) -> None:
        self.kind = kind
        self.model = model
        self.predictor = predictor
        self.alpha = alpha
        self.factor = 0.0
        """A limit is so many times the prediction."""
        self.fit: Fit = _COLD
        self.completed = 0
        self.false_kills = 0
        self.limits: dict[Work | None, Any] = {}
        """Limits that follow from what is known now. A new one whenever more is learned: what somebody still reckons
        from what was known before lands in the old one."""
        self.law = Law()
        self._cold = _COLD.ratio_for(alpha)
        self._ratio = self._cold
        self._boost = 1.0
        self._open = 0  # kills without a verdict
        self._shapes: set[int] = set()
        self._calls = 0
        self._kills: deque[int] = deque()  # each by how many calls there had been
        self._said = False
        self._unfitted = 0
        self._delta = Delta()
        # Reentrant: a signal handler, or a future that is collected, may end a call while this thread learns of one.
        self._lock = threading.RLock()
        self._set_factor()

    def is_fresh(self, work: Work | None, shape: int) -> bool:
        """Whether a call has to be given time to get ready: its caller says so, or none of its shape has completed."""
        fresh = None if work is None else work.fresh
        return shape not in self._shapes if fresh is None else fresh

    # Learning -------------------------------------------------------------------------------------------------------

    def forked(self) -> None:
        """A fork copies the lock in whatever state another thread held it."""
        self._lock = threading.RLock()

    def learn(self, sample: Sample) -> None:
        """Takes in how a call ended, or the verdict on one."""
        with self._lock:
            match sample.ended:
                case "completed":
                    self._completed(sample)
                case "killed":
                    self._killed()
                case "wedged":
                    self._wedged()
                case "slow":
                    self._slow(sample)
                case "late":
                    self._late(sample)
            self._set_factor()

    def _completed(self, sample: Sample) -> None:
        self._count_call()
        if self._boost > 1.0:
            boost = min(self._boost, GUARD_MOST)
            self._boost = boost if self._is_frozen() else max(1.0, boost * GUARD_DECAY)
        predicted_s, shape = self.predictor.measure(sample.work)
        if self._met(sample.work, shape):
            return  # what it took to get ready is no work
        self._count(_bin_of(sample.elapsed_s, predicted_s))
        self.completed += 1
        self._delta.completed += 1
        self._unfitted += 1
        if self._unfitted >= REFIT_EVERY:
            self._refit()

    def _killed(self) -> None:
        self._count_call()
        self._kills.append(self._calls)
        self._open += 1
        self._boost *= GUARD_FACTOR

    def _wedged(self) -> None:
        if not self._open:
            return  # nothing of it was taken in
        self._open -= 1
        self._boost = max(1.0, self._boost / GUARD_FACTOR)
        self._calls -= 1
        if self._kills:
            self._kills.pop()

    def _slow(self, sample: Sample) -> None:
        self._open = max(0, self._open - 1)
        self._warn()
        predicted_s, shape = self.predictor.measure(sample.work)
        if not self.is_fresh(sample.work, shape):
            self._count(_bin_of(sample.elapsed_s, predicted_s), censored=True)
            self._refit(narrower=False)

    def _late(self, sample: Sample) -> None:
        self.false_kills += 1
        self._delta.false_kills += 1
        predicted_s, shape = self.predictor.measure(sample.work)
        cut_at = None if sample.limit_s is None else _bin_of(sample.limit_s, predicted_s)
        if cut_at is not None and self.law.censored[cut_at] > 0:
            self._count(cut_at, -1.0, censored=True)
        elif self._open:
            self._open -= 1
        else:
            self._boost *= GUARD_FACTOR  # it had passed for wedged, which took the doubling back
        if not self._met(sample.work, shape):
            self._count(_bin_of(sample.elapsed_s, predicted_s))
            self._refit(narrower=False)

    def _met(self, work: Work | None, shape: int) -> bool:
        """Takes in the shape of a call that completed; whether it was fresh."""
        fresh = self.is_fresh(work, shape)
        self._shapes.add(shape)
        return fresh

    def _count(self, index: int, count: float = 1.0, *, censored: bool = False) -> None:
        self._delta.add(index, count, censored=censored)
        if self.law.add(index, count, censored=censored):
            self._delta.halve()

    def _count_call(self) -> None:
        self._calls += 1
        while self._kills and self._kills[0] <= self._calls - KILL_WINDOW:
            self._kills.popleft()

    def _is_frozen(self) -> bool:
        """Whether so many were killed that the policy has lost the right to be strict."""
        return len(self._kills) > KILL_SHARE * KILL_WINDOW

    def _warn(self) -> None:
        """Says once that too many were killed: after a verdict, because dead calls may be cut by the dozen."""
        if self._said or not self._is_frozen():
            return
        self._said = True
        log.warning(
            "more than %g %% of the last %d calls of %s%s were cut at their limits: these limits are not tightened "
            "until fewer are; if such calls are slow rather than stuck, set more seconds for them",
            100 * KILL_SHARE,
            KILL_WINDOW,
            self.kind,
            f" on {self.model}" if self.model else "",
        )

    # What follows from it -------------------------------------------------------------------------------------------

    def _refit(self, *, narrower: bool = True) -> None:
        self.fit = self.law.fit()
        self._unfitted = 0
        ratio = self.fit.ratio_for(self.alpha)
        if self.completed < LEAST_COMPLETED:
            ratio = max(ratio, self._cold)
        self._ratio = ratio if narrower and not self._is_frozen() else max(ratio, self._ratio)

    def _set_factor(self) -> None:
        self.limits = {}
        self.factor = self._ratio * min(self._boost, GUARD_MOST)

    # Keeping --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that is known, as JSON can hold it."""
        with self._lock:
            return {
                "version": VERSION,
                "epoch": self.law.epoch,
                "ended": sparse(enumerate(self.law.ended)),
                "censored": sparse(enumerate(self.law.censored)),
                "completed": self.completed,
                "false_kills": self.false_kills,
                "boost": min(self._boost, GUARD_MOST),
            }

    def delta(self, *, take: bool = False) -> dict[str, Any]:
        """What this process learned itself; `take` hands it over, so that it is not handed over again."""
        with self._lock:
            delta = self._delta.state(self.law.epoch)
            if take:
                self._delta = Delta()
            return delta

    def load(self, state: Mapping[str, Any]) -> None:
        """Puts what others learned under what this process has learned itself.

        Raises:
            ValueError: the state is not one that this version can read.
        """
        with self._lock:
            merged = merge(state, self._delta.state(self.law.epoch))
            law = Law(merged["epoch"])
            for name in ("ended", "censored"):
                for index, count in merged[name].items():
                    law.add(int(index), count, censored=name == "censored")
            self._delta.halve(law.epoch - self.law.epoch)
            self.law = law
            self.completed = merged["completed"]
            self.false_kills = merged["false_kills"]
            self._boost = max(self._boost, float(state.get("boost", 1.0)))
            self._ratio = 0.0
            self._refit()
            self._set_factor()
