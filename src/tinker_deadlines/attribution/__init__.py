"""What does the end of an episode say about the agent, and what about everything else?

`outcomes` names how an episode ended and whose fault that was, `groups` keeps what says nothing about the agent out of
a group's advantages, `rates` puts a score and what is missing from it side by side, `lengths` asks whether limits cut
what is long. All of it is pure: no threads, no I/O, no clock.
"""

from tinker_deadlines.attribution.groups import GroupAdvantages, OutcomePolicy, group_advantages
from tinker_deadlines.attribution.lengths import LengthBin, LengthTrend, expiry_by_length
from tinker_deadlines.attribution.outcomes import OUTCOMES, EpisodeOutcome, blame_of, episode_outcome, trainable
from tinker_deadlines.attribution.rates import Score, score_episodes

__all__ = [
    "OUTCOMES",
    "EpisodeOutcome",
    "GroupAdvantages",
    "LengthBin",
    "LengthTrend",
    "OutcomePolicy",
    "Score",
    "blame_of",
    "episode_outcome",
    "expiry_by_length",
    "group_advantages",
    "score_episodes",
    "trainable",
]
