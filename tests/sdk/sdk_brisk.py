"""A policy and thresholds for tests that cannot wait for a minute of silence.

Most durations of the watcher are scaled to a fiftieth, and calls are predicted to take 20 ms.
"""

from __future__ import annotations

import math

from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.liveness.thresholds import Thresholds
from tinker_deadlines.policy import Limit, Sample
from tinker_deadlines.sdk import learning

SCALE = 1 / 50
# What a busy machine can make wait is not scaled down as far, and the proxy answers polls once a second.
THRESHOLDS = (
    Thresholds().scaled(SCALE)._replace(ask_from_s=1.3, silence_s=1.5, probe_limit_s=1.0, ask_every_s=2.5, stall_s=5.0)
)
PREDICTED_S = 0.02
LIMIT_S = 1.0
CEILING_S = 6.0


class Brisk:
    """A policy with one limit, and a law by which calls take about 20 ms."""

    name = "brisk"

    def __init__(self) -> None:
        self._learned: list[Sample] = []
        self.limit_s = LIMIT_S

    @property
    def samples(self) -> list[Sample]:
        learning.settle()
        return self._learned

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        limit_s = self.limit_s if kind not in ("connect", "rest") else 10.0
        return Limit(limit_s, "the policy 'brisk'", "learned", PREDICTED_S)

    def learn(self, sample: Sample) -> None:
        self._learned.append(sample)

    def predicted_s(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> float:
        return PREDICTED_S

    def survival(self, kind: TinkerCallKind, model: str | None, ratio: float) -> float:
        return math.exp(-ratio)

    def median_ratio(self, kind: TinkerCallKind, model: str | None) -> float:
        # High, or a machine that is busy for a second looks like a service under load.
        return 20 * math.log(2)
