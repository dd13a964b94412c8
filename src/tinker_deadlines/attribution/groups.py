"""What are the episodes of one group worth, when some of them say nothing about the agent?

An episode that is left out is out of everything: of the loss, of the baseline, and of the deviation that advantages are
divided by. A row whose loss alone is masked still moves the baseline, and with it the advantages of its siblings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from tinker_deadlines.attribution.outcomes import EpisodeOutcome, trainable
from tinker_deadlines.errors import UntrainableGroupError
from tinker_deadlines.limits import ADVANTAGE_EPSILON

__all__ = ["GroupAdvantages", "OutcomePolicy", "group_advantages", "numbers_of"]

OutcomePolicy = Literal["error", "mask", "truncate"]
"""What becomes of episodes that did not come to their end by themselves.

`error`: the whole group is refused. `mask`: they are left out, those that ran into their own wall among them.
`truncate`: those that ran into their own wall count with the reward of what they had done by then; the rest is left
out. Whatever the policy, nothing that the infrastructure ended counts.
"""

_COUNTED: dict[OutcomePolicy, frozenset[EpisodeOutcome]] = {
    "error": frozenset({"ok", "agent_error"}),
    "mask": frozenset({"ok", "agent_error"}),
    "truncate": frozenset({"ok", "agent_error", "agent_timeout"}),
}


class GroupAdvantages(NamedTuple):
    """What the episodes of one group are worth, in the order in which they were given."""

    advantages: tuple[float, ...]
    """0.0 for an episode that is left out, and for all where fewer than two count: nothing is there to compare with."""
    weights: tuple[float, ...]
    """The weight of each episode in the loss: 1.0, or 0.0 for one that is left out."""
    mean: float | None
    """The baseline: the mean reward of those that count; `None` where none does."""
    std: float | None
    """The sample standard deviation of their rewards; `None` where fewer than two count."""


def group_advantages(
    rewards: Sequence[float | None],
    outcomes: Sequence[EpisodeOutcome],
    *,
    policy: OutcomePolicy,
    divide_by_std: bool = True,
) -> GroupAdvantages:
    """Makes advantages of a group's rewards, as GRPO does, from the episodes that count alone.

    Those that count get exactly the advantages that a group without the others would give them. The reward of one that
    does not count is not looked at: it may be `None`, and should be.

    Args:
        rewards: The reward of each episode.
        outcomes: How each episode ended.
        policy: What becomes of those that did not come to their end by themselves; see `OutcomePolicy`.
        divide_by_std: Whether advantages are divided by the deviation of the rewards, or are rewards less baseline.

    Raises:
        UntrainableGroupError: `policy` is "error", and an episode was cut or failed.
        ValueError: an outcome or policy does not exist, the sequences differ in length, or an episode that counts has
            no finite reward.
    """
    if policy not in _COUNTED:
        raise ValueError(f"{policy!r} is not an outcome policy; they are {', '.join(get_args(OutcomePolicy))}")
    usable = numbers_of(rewards, outcomes, _COUNTED[policy])
    if policy == "error" and None in usable:
        raise UntrainableGroupError(outcomes)
    counted = [reward for reward in usable if reward is not None]
    mean = math.fsum(counted) / len(counted) if counted else None
    std = None
    advantages = dict.fromkeys(counted, 0.0)
    if mean is not None and len(counted) > 1:
        # Not from rounded differences where there are none.
        same = min(counted) == max(counted)
        std = 0.0 if same else math.hypot(*(reward - mean for reward in counted)) / math.sqrt(len(counted) - 1)
        scale = std + ADVANTAGE_EPSILON if divide_by_std else 1.0
        if not same:
            advantages = {reward: (reward - mean) / scale for reward in counted}
    return GroupAdvantages(
        tuple(0.0 if reward is None else advantages[reward] for reward in usable),
        tuple(0.0 if reward is None else 1.0 for reward in usable),
        mean,
        std,
    )


def numbers_of(
    rewards: Sequence[float | None],
    outcomes: Sequence[EpisodeOutcome],
    counted: frozenset[EpisodeOutcome] | None = None,
) -> list[float | None]:
    """The rewards of episodes whose outcome is counted (of all trainable ones, if it is not said), `None` for others.

    Raises:
        ValueError: an outcome does not exist, the sequences differ in length, or an episode that counts has no finite
            reward.
    """
    if len(rewards) != len(outcomes):
        raise ValueError(f"there are {len(rewards)} rewards and {len(outcomes)} outcomes; give one of each per episode")
    found: list[float | None] = []
    for number, (reward, outcome) in enumerate(zip(rewards, outcomes, strict=True)):
        if not trainable(outcome) or (counted is not None and outcome not in counted):
            found.append(None)
        elif reward is None or not math.isfinite(reward):
            raise ValueError(
                f"episode {number} of the group ended as {outcome!r} and counts, but its reward is {reward!r}: grade "
                "it, on what it had done by then if it was cut, or name the outcome that says why it has none"
            )
        else:
            found.append(float(reward))
    return found
