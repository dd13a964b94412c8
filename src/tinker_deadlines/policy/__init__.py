"""How long may a call take? A policy says; a number that a person set outranks every policy."""

from __future__ import annotations

from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.limits import env_var_for, override_for
from tinker_deadlines.policy.explain import Explanation
from tinker_deadlines.policy.fixed import FixedPolicy
from tinker_deadlines.policy.flat import FlatPolicy
from tinker_deadlines.policy.learned import LearnedPolicy
from tinker_deadlines.policy.merging import merge
from tinker_deadlines.policy.named import policy_named
from tinker_deadlines.policy.p99x3 import P99x3Policy
from tinker_deadlines.policy.protocol import Basis, Ending, Limit, Policy, Sample
from tinker_deadlines.policy.scaled import ScaledPolicy
from tinker_deadlines.policy.work_model import ModelSize, WorkModel, model_size

__all__ = [
    "Basis",
    "Ending",
    "Explanation",
    "FixedPolicy",
    "FlatPolicy",
    "LearnedPolicy",
    "Limit",
    "ModelSize",
    "P99x3Policy",
    "Policy",
    "Sample",
    "ScaledPolicy",
    "WorkModel",
    "deadline_for",
    "explain",
    "limit_for",
    "merge",
    "model_size",
    "policy_in_use",
    "policy_named",
    "use_policy",
]

_policy: Policy = FlatPolicy()


def use_policy(policy: Policy) -> Policy:
    """Makes `policy` this process's, for calls that start from now on; returns the one it replaces."""
    global _policy
    previous, _policy = _policy, policy
    return previous


def policy_in_use() -> Policy:
    """The policy of this process."""
    return _policy


def limit_for(kind: TinkerCallKind, work: Work | None = None, model: str | None = None) -> Limit:
    """The limit of a call, who set it and what it rests on: a person's number in the environment, else the policy's.

    Raises:
        ValueError: `kind` is not a kind of call, or its environment variable holds rubbish.
    """
    seconds = override_for(kind)
    if seconds is not None:
        return Limit(seconds, env_var_for(kind), "fixed")
    return _policy.limit(kind, work, model)


def deadline_for(kind: TinkerCallKind, work: Work | None = None, model: str | None = None) -> float:
    """Seconds that a call of this kind may take now.

    Args:
        kind: The kind of call.
        work: Its size, where it is known.
        model: The model that does the work, where it is known.

    Returns:
        The number in the kind's environment variable, obeyed exactly, else what the policy says.

    Raises:
        ValueError: `kind` is not a kind of call, or its environment variable holds anything but a positive finite
            number of seconds.
    """
    return limit_for(kind, work, model).seconds


def explain(kind: TinkerCallKind, work: Work | None = None, model: str | None = None) -> Explanation:
    """Says how the limit of a call comes to be: `print(explain("sample", Work(prompt_tokens=8192), "Qwen/Qwen3-4B"))`.

    Raises:
        ValueError: `kind` is not a kind of call, or its environment variable holds rubbish.
    """
    limit = limit_for(kind, work, model)
    bounds = getattr(_policy, "bounds", None)
    if limit.fixed or bounds is None:
        return Explanation(kind, limit)
    return Explanation(kind, limit, *bounds(kind))
