"""What do the calls of this process teach? Each that ends is handed to the policy, with the verdict on it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from tinker_deadlines.calls import Call, Ended, TinkerCallKind, Verdict, board
from tinker_deadlines.limits import LEARN_BACKLOG, POLICY_ENV
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.policy import FlatPolicy, LearnedPolicy, Sample, policy_in_use, policy_named, use_policy
from tinker_deadlines.sdk.patterns import patterns

__all__ = ["arrived_late", "ceiling_s", "law", "settle", "start", "stop"]

# What ended by one of these says nothing on how long calls take.
_TEACHES_NOTHING: frozenset[Verdict | None] = frozenset(
    {
        "session wedged",
        "outage",
        "paused",
        "loop blocked",
        "local",
        "result lost",
        "adapter unavailable",
        "input-dependent failure",
    }
)

law = LearnedPolicy()
"""What this process has learned, whichever policy sets its limits."""

_backlog: deque[Ended] = deque(maxlen=LEARN_BACKLOG)
_stop: Callable[[], None] | None = None


def start() -> None:
    """Starts to learn, and has the policy named in the environment, or the learned one, set limits.

    A policy that a person chose with `use_policy` stays.

    Raises:
        ValueError: the environment names a policy that does not exist.
    """
    global _stop
    if _stop is not None:
        return
    name = os.environ.get(POLICY_ENV)
    if name:
        policy = policy_named(name)
        use_policy(law if isinstance(policy, LearnedPolicy) and policy.name == law.name else policy)
    elif isinstance(policy_in_use(), FlatPolicy):
        use_policy(law)
    _stop = board.observe(_ended)
    watcher.on_dead = patterns.failed
    watcher.on_look = settle


def stop() -> None:
    """Stops to learn; limits are the flat ones again where they were ours."""
    global _stop
    if _stop is not None:
        _stop()
        _stop = None
        settle()
        if policy_in_use() is law:
            use_policy(FlatPolicy())


def forked() -> None:
    """A forked child learns from its own calls alone; what its parent's taught by then, it knows."""
    _backlog.clear()
    patterns.forked()
    for policy in {id(each): each for each in (law, policy_in_use())}.values():
        start_afresh = getattr(policy, "forked", None)  # of those that have locks
        if start_afresh is not None:
            start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)


def _ended(ended: Ended) -> None:
    # On the thread that ended the call, which is the SDK's loop most of the time: what there is to learn waits.
    _backlog.append(ended)


def settle() -> None:
    """Learns from the calls that have ended by now. The watcher does it once a second, for all of them together."""
    while _backlog:
        try:
            ended = _backlog.popleft()
        except IndexError:
            return  # another thread was faster
        _learn_from(ended)


def _learn_from(ended: Ended) -> None:
    call = ended.call
    if ended.outcome == "completed":
        patterns.completed(call)
    elif ended.outcome == "failed" or (ended.outcome == "expired" and call.verdict in (None, "result lost")):
        patterns.failed(call)
    else:
        call.args = call.kwargs = None
    if ended.outcome == "completed" and call.verdict not in ("result lost", "paused"):
        _learn(Sample(call.kind, call.work, call.model, ended.elapsed_s, "completed"))
        session = sessions.get(call.session)
        if session is not None:
            predicted_s = getattr(call.limit, "predicted_s", None) or law.predicted_s(call.kind, call.work, call.model)
            # What it takes to get new weights ready says nothing on the load.
            fresh = call.work is not None and bool(call.work.fresh)
            session.completed(None if fresh else ended.elapsed_s / predicted_s)
    elif ended.outcome == "expired" and call.verdict not in _TEACHES_NOTHING:
        # Cut by our limit, and nothing was found that says it was dead: it would have taken longer.
        sample = Sample(call.kind, call.work, call.model, ended.elapsed_s, "killed", ended.elapsed_s)
        _learn(sample)
        _learn(sample._replace(ended="slow"))


def ceiling_s(kind: TinkerCallKind) -> float:
    """Seconds after which a call of this kind is over whatever life it shows."""
    return law.bounds(kind)[1]


def arrived_late(call: Call, killed_after_s: float, elapsed_s: float) -> None:
    """Notes that a call which had been given up did end: the kill was false."""
    _learn(Sample(call.kind, call.work, call.model, elapsed_s, "late", killed_after_s))


def _learn(sample: Sample) -> None:
    law.learn(sample)
    policy = policy_in_use()
    if policy is not law:
        policy.learn(sample)
