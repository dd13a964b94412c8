"""What if only the work is known? The work model's prediction, times what its ignorance asks for."""

from __future__ import annotations

from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.policy.bounds import Bounds, false_kills_for, name_with
from tinker_deadlines.policy.protocol import Limit, Sample
from tinker_deadlines.policy.tail import Law
from tinker_deadlines.policy.work_model import Predictor, Predicts, WorkModel

__all__ = ["ScaledPolicy"]


class ScaledPolicy:
    """Limits by work and model size, without learning: where the learned policy starts.

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
            "scaled", alpha=alpha, ceiling_sampling=ceiling_sampling_s, ceiling_training=ceiling_training_s
        )
        self._alpha = alpha
        self._bounds = Bounds(ceiling_sampling_s, ceiling_training_s)
        self._work_model = work_model or WorkModel()
        self._prior = Law().fit()
        self._predictors: dict[tuple[TinkerCallKind, str | None], Predictor] = {}

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        """The prediction times the ratio that a share alpha of calls is thought to exceed before any was seen."""
        predictor = self._predictors.get((kind, model))
        if predictor is None:
            predictor = self._predictors[kind, model] = self._work_model.predictor(kind, model)
        alpha = self._alpha or false_kills_for(kind)
        predicted_s = predictor(work)
        seconds = self._bounds.within(
            kind, predicted_s * self._prior.ratio_for(alpha), fresh=work is not None and bool(work.fresh),
            knows_little=predictor.says_little(work),
        )  # fmt: skip
        return Limit(seconds, f"the policy '{self.name}'", "scaled", predicted_s, 1 - alpha)

    def learn(self, sample: Sample) -> None:
        """Leaves it alone: only the work counts."""

    def bounds(self, kind: TinkerCallKind) -> tuple[float, float]:
        """The floor and the ceiling of a kind, in seconds."""
        return self._bounds.of(kind)
