"""How good was the agent, and of how many episodes can that be said? Two rates, always side by side.

A score without the second rate hides what is missing from it; a score that counts what is missing as zeros measures
the infrastructure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tinker_deadlines.attribution.groups import numbers_of
from tinker_deadlines.attribution.outcomes import INFRASTRUCTURE, EpisodeOutcome, trainable
from tinker_deadlines.limits import LEAST_VALID

__all__ = ["Score", "score_episodes"]


class Score(NamedTuple):
    """A score, what is missing from it, and whether it is accepted; `str()` says all three."""

    score: float | None
    """The mean reward over the valid episodes; `None` where there are none."""
    attrition: float
    """The share of all episodes that the infrastructure ended."""
    valid: int
    """Episodes whose number says something about the agent, those that ran into their own wall among them."""
    total: int
    passed: bool
    """Whether enough episodes are valid."""
    reason: str
    """Why it passed or not."""

    def __str__(self) -> str:
        score = "none" if self.score is None else f"{self.score:.4g}"
        rates = f"score {score} over {self.valid} of {self.total} episodes, infrastructure attrition"
        return f"{rates} {_percent(self.attrition)}; {'passed' if self.passed else 'not passed'}: {self.reason}"


def score_episodes(
    rewards: Sequence[float | None], outcomes: Sequence[EpisodeOutcome], *, least_valid: float = LEAST_VALID
) -> Score:
    """Scores episodes over those that are valid, and says how many the infrastructure took away.

    Args:
        rewards: The reward of each episode; that of one that is not valid is not looked at.
        outcomes: How each episode ended.
        least_valid: The share of valid episodes from which on the score is accepted.

    Raises:
        ValueError: an outcome does not exist, the sequences differ in length, a valid episode has no finite reward, or
            `least_valid` is no share.
    """
    if not 0 <= least_valid <= 1:
        raise ValueError(f"least_valid is {least_valid!r}, which is not a share; set it to a number from 0 to 1")
    numbers = [number for number in numbers_of(rewards, outcomes) if number is not None]
    total, valid = len(outcomes), len(numbers)
    if not total:
        return Score(None, 0.0, 0, 0, False, "there are no episodes")
    passed = valid > 0 and valid / total >= least_valid
    reason = f"{_percent(valid / total)} are valid, at least {_percent(least_valid)} must be"
    lost = Counter(outcome for outcome in outcomes if not trainable(outcome))
    if lost:
        reason += "; the others: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(lost.items()))
    return Score(
        math.fsum(numbers) / valid if valid else None,
        sum(outcome in INFRASTRUCTURE for outcome in outcomes) / total,
        valid,
        total,
        passed,
        reason,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
