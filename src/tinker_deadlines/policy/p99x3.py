"""What does one line do as well? Three times the work-scaled 99th percentile of what completed.

The control beside the learned policy: it forgets the calls that it killed, has no knob that means anything, and is
nearly as good where nothing goes wrong.
"""

from __future__ import annotations

import threading

from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.limits import DEFAULT_DEADLINES_S, LEAST_COMPLETED, P99_FACTOR, REFIT_EVERY
from tinker_deadlines.policy.bounds import Bounds, name_with
from tinker_deadlines.policy.protocol import Limit, Sample
from tinker_deadlines.policy.tail import Law, bin_of
from tinker_deadlines.policy.work_model import Predicts, WorkModel

__all__ = ["P99x3Policy"]


class P99x3Policy:
    """Three times the work-scaled 99th percentile; the default until 30 calls of the kind and model have completed.

    Args:
        ceiling_sampling_s: See `Bounds`.
        ceiling_training_s: See `Bounds`.
        work_model: Another than the shipped one.
    """

    def __init__(
        self,
        *,
        ceiling_sampling_s: float | None = None,
        ceiling_training_s: float | None = None,
        work_model: Predicts | None = None,
    ) -> None:
        self.name = name_with("p99x3", ceiling_sampling=ceiling_sampling_s, ceiling_training=ceiling_training_s)
        self._bounds = Bounds(ceiling_sampling_s, ceiling_training_s)
        self._work_model = work_model or WorkModel()
        self._lock = threading.RLock()
        self._percentiles: dict[tuple[TinkerCallKind, str | None], _Percentile] = {}

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        """Three times the percentile; the default of the kind before there is one."""
        seen = self._percentiles.get((kind, model))
        if seen is None or seen.ratio is None:
            return Limit(DEFAULT_DEADLINES_S[kind], f"the policy '{self.name}'")
        predicted_s = seen.predictor(work)
        seconds = self._bounds.within(kind, predicted_s * seen.ratio * P99_FACTOR)
        return Limit(seconds, f"the policy '{self.name}'", "learned", predicted_s, None, seen.completed)

    def learn(self, sample: Sample) -> None:
        """Counts a completed call; of killed ones it knows nothing."""
        if sample.ended != "completed":
            return
        key = (sample.kind, sample.model)
        with self._lock:
            seen = self._percentiles.get(key)
            if seen is None:
                seen = self._percentiles[key] = _Percentile(self._work_model, *key)
            seen.count(sample)

    def forked(self) -> None:
        """Goes on in a forked child: a fork copies the lock in whatever state another thread held it."""
        self._lock = threading.RLock()

    def bounds(self, kind: TinkerCallKind) -> tuple[float, float]:
        """The floor and the ceiling of a kind, in seconds."""
        return self._bounds.of(kind)


class _Percentile:
    """The 99th percentile of elapsed / predicted in one kind and model."""

    def __init__(self, work_model: Predicts, kind: TinkerCallKind, model: str | None) -> None:
        self.predictor = work_model.predictor(kind, model)
        self.law = Law()
        self.completed = 0
        self.ratio: float | None = None

    def count(self, sample: Sample) -> None:
        self.law.add(bin_of(sample.elapsed_s / self.predictor(sample.work)))
        self.completed += 1
        if self.completed >= LEAST_COMPLETED and self.completed % REFIT_EVERY == 0:
            self.ratio = self.law.quantile(0.99)
