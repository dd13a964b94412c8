"""How long do calls like this one take in fact? The work model's prediction times what its ratio was seen to reach.

    limit = prediction x (ratio that a share alpha of calls exceeds) x guard, between a floor and a ceiling

Each kind and model has a learner of its own. With nothing learned the limit is that of the policy `scaled`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from tinker_deadlines.calls import KINDS, TinkerCallKind, Work
from tinker_deadlines.limits import LEAST_COMPLETED, LIMITS_KEPT
from tinker_deadlines.policy.bounds import Bounds, false_kills_for, name_with
from tinker_deadlines.policy.learner import Learner
from tinker_deadlines.policy.protocol import Limit, Sample
from tinker_deadlines.policy.work_model import Predicts, WorkModel

__all__ = ["LearnedPolicy"]

log = logging.getLogger("tinker_deadlines")


class LearnedPolicy:
    """Limits that start where ignorance puts them and tighten with evidence.

    Args:
        alpha: The share of living calls that a limit may cut, for all kinds; by default 3e-4, and 1e-5 for kinds that
            may not be repeated.
        ceiling_sampling_s: See `Bounds`.
        ceiling_training_s: See `Bounds`.
        work_model: Another than the shipped one.
    """

    def __init__(
        self,
        *,
        alpha: float | None = None,
        ceiling_sampling_s: float | None = None,
        ceiling_training_s: float | None = None,
        work_model: Predicts | None = None,
    ) -> None:
        self.name = name_with(
            "learned", alpha=alpha, ceiling_sampling=ceiling_sampling_s, ceiling_training=ceiling_training_s
        )
        self._owner = f"the policy '{self.name}'"
        self._alpha = alpha
        self._bounds = Bounds(ceiling_sampling_s, ceiling_training_s)
        self._work_model = work_model or WorkModel()
        self._learners: dict[tuple[TinkerCallKind, str | None], Learner] = {}
        self._lock = threading.RLock()

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        """The limit as of now; "cold" until 30 calls of the kind and model have completed."""
        learner = self._learners.get((kind, model)) or self._learner(kind, model)
        # Calls come in groups of the same work, and what is learned in between is learned once a second.
        limits = learner.limits
        found: Limit | None = limits.get(work)
        if found is None:
            if len(limits) >= LIMITS_KEPT:
                limits.clear()
            found = limits[work] = self._limit(kind, work, learner)
        return found

    def _limit(self, kind: TinkerCallKind, work: Work | None, learner: Learner) -> Limit:
        predictor = learner.predictor
        predicted_s, shape = predictor.measure(work)
        completed = learner.completed
        return Limit(
            self._bounds.within(
                kind,
                predicted_s * learner.factor,
                fresh=learner.is_fresh(work, shape),
                knows_little=predictor.says_little(work),
            ),
            self._owner,
            "cold" if completed < LEAST_COMPLETED else "learned",
            predicted_s,
            1 - learner.alpha,
            completed,
        )

    def learn(self, sample: Sample) -> None:
        """Takes in how a call ended. Safe on any thread."""
        (self._learners.get((sample.kind, sample.model)) or self._learner(sample.kind, sample.model)).learn(sample)

    def _learner(self, kind: TinkerCallKind, model: str | None) -> Learner:
        if model is not None and "://" in model:
            model = None  # a checkpoint's path: there is a new one each time, and it names no model
        with self._lock:
            learner = self._learners.get((kind, model))
            if learner is None:
                alpha = self._alpha or false_kills_for(kind)
                learner = Learner(kind, model, self._work_model.predictor(kind, model), alpha)
                self._learners[kind, model] = learner
            return learner

    def forked(self) -> None:
        """Goes on in a forked child: a fork copies locks in whatever state another thread held them."""
        self._lock = threading.RLock()
        for learner in self._learners.values():
            learner.forked()

    # What else the law tells ------------------------------------------------------------------------------------------

    def bounds(self, kind: TinkerCallKind) -> tuple[float, float]:
        """The floor and the ceiling of a kind, in seconds."""
        return self._bounds.of(kind)

    def predicted_s(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> float:
        """What the work model predicts for a call, in seconds."""
        return self._learner(kind, model).predictor(work)

    def survival(self, kind: TinkerCallKind, model: str | None, ratio: float) -> float:
        """The share of living calls that take longer than `ratio` times the prediction: never rising, never quite 0."""
        return self._learner(kind, model).fit.survival(ratio)

    def median_ratio(self, kind: TinkerCallKind, model: str | None) -> float:
        """The ratio elapsed / predicted that half of the calls exceed."""
        return self._learner(kind, model).fit.median()

    def false_kills(self) -> int:
        """How many calls ended after all that had been killed at their limits: this policy's own errors."""
        return sum(learner.false_kills for learner in self._all().values())

    # Keeping ----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, dict[str, Any]]:
        """All that is known, by kind and model, as JSON can hold it."""
        return {key: learner.state() for key, learner in self._all().items()}

    def delta(self, *, take: bool = False) -> dict[str, dict[str, Any]]:
        """What this process learned itself, to be added to what others know with `merge`, key by key.

        Args:
            take: Hands it over for good: the next delta does not have it again.
        """
        return {key: learner.delta(take=take) for key, learner in self._all().items()}

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Starts from what is known, with full weight; what this process has learned by now is kept on top of it.

        An entry that cannot be read is left out, with a warning.
        """
        for key, entry in state.items():
            kind, separator, model = key.partition(" ")
            try:
                if kind not in KINDS:
                    raise ValueError(f"{kind!r} is not a kind of call")
                self._learner(kind, model if separator else None).load(entry)
            except ValueError as error:
                log.warning("what was learned earlier of %r is left out: %s", key, error)

    def _all(self) -> dict[str, Learner]:
        with self._lock:
            learners = list(self._learners.items())
        return {kind if model is None else f"{kind} {model}": learner for (kind, model), learner in learners}
