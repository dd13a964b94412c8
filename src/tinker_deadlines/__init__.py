"""Deadlines for every call of a Tinker training run: slow is not dead, and nothing hangs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinker_deadlines.attribution import (
    EpisodeOutcome,
    OutcomePolicy,
    blame_of,
    episode_outcome,
    expiry_by_length,
    group_advantages,
    score_episodes,
    trainable,
)
from tinker_deadlines.budgets import Budget, episode, remaining_s
from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.classification import is_capacity_error, outcome_for
from tinker_deadlines.errors import (
    AbandonedCallsError,
    BudgetExhaustedError,
    DeadlineExpiry,
    DivergedError,
    FencedClientError,
    ForkedProcessError,
    RecoveryFailedError,
    TinkerDeadlineError,
    UntrainableGroupError,
)
from tinker_deadlines.limits import DEADLINE_ENV_PREFIX, DEFAULT_DEADLINES_S, env_var_for
from tinker_deadlines.policy import Limit, Policy, Sample, deadline_for, explain, policy_named, use_policy
from tinker_deadlines.waiting import DeadlineFuture, call_with_deadline, wait_with_deadline

if TYPE_CHECKING:
    from tinker_deadlines.recovery.runs import last_confirmed
    from tinker_deadlines.remember import install, uninstall
    from tinker_deadlines.sdk.install import guard
    from tinker_deadlines.sdk.recoverable import recoverable
    from tinker_deadlines.sdk.stuck import StuckCallError
    from tinker_deadlines.waiting.aio import await_with_deadline

__version__ = "0.1.0"

__all__ = [
    "DEADLINE_ENV_PREFIX",
    "DEFAULT_DEADLINES_S",
    "AbandonedCallsError",
    "Budget",
    "BudgetExhaustedError",
    "DeadlineExpiry",
    "DeadlineFuture",
    "DivergedError",
    "EpisodeOutcome",
    "FencedClientError",
    "ForkedProcessError",
    "Limit",
    "OutcomePolicy",
    "Policy",
    "RecoveryFailedError",
    "Sample",
    "StuckCallError",
    "TinkerCallKind",
    "TinkerDeadlineError",
    "UntrainableGroupError",
    "Work",
    "await_with_deadline",
    "blame_of",
    "call_with_deadline",
    "deadline_for",
    "env_var_for",
    "episode",
    "episode_outcome",
    "expiry_by_length",
    "explain",
    "group_advantages",
    "guard",
    "install",
    "is_capacity_error",
    "last_confirmed",
    "outcome_for",
    "policy_named",
    "recoverable",
    "remaining_s",
    "score_episodes",
    "trainable",
    "uninstall",
    "use_policy",
    "wait_with_deadline",
]


# These need asyncio or the SDK, which take a while to import: only when they are asked for.
_LATER = {
    "StuckCallError": "tinker_deadlines.sdk.stuck",
    "await_with_deadline": "tinker_deadlines.waiting.aio",
    "guard": "tinker_deadlines.sdk.install",
    "install": "tinker_deadlines.remember",
    "last_confirmed": "tinker_deadlines.recovery.runs",
    "recoverable": "tinker_deadlines.sdk.recoverable",
    "uninstall": "tinker_deadlines.remember",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if ".sdk." in _LATER[name]:
        importlib.import_module("tinker_deadlines.sdk.hook").tinker_first()
    found = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return found
