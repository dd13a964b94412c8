"""Does a fault apply to this request, now? It depends on counts, windows, and what earlier faults still hold.

Pure: time comes in as seconds since the proxy started, randomness is a function of seed, rule and ordinal. The same
requests in the same order at the same times give the same faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tinker_deadlines.lab.attribution import Facts
from tinker_deadlines.lab.faults import (
    AcceptsSilent,
    AuthBlackhole,
    Faults,
    FutureNeverCompletes,
    RefuseHeartbeat,
    Rule,
    SilenceSession,
    Stage,
    TryAgain,
    near_name,
)

CONNECTION = Facts(method="-", path="-")
"""What is known of a connection before anything was read of it."""


@dataclass(slots=True)
class _State:
    """What one rule has seen and done."""

    seen: int = 0
    fired: int = 0
    latched: bool = False
    healed: bool = False
    polled: set[str] = field(default_factory=set)


class Matcher:
    """Decides, request by request, which rule applies; the first in the order of the file does.

    Every rule counts every request that it selects, whether or not an earlier rule took it. A request that an earlier
    fault still holds (its session is silent, its future never completes) is not counted again. Not thread-safe.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._stages: dict[Stage, list[Rule]] = {"connection": [], "head": [], "request": []}
        for rule in faults.rules:
            self._stages[rule.stage].append(rule)
        self.reset()

    def reset(self) -> None:
        """Forgets every count, every held session and future, and every healing."""
        self._states = {rule.name: _State() for rule in self.faults.rules}
        self._silent: dict[str, Rule] = {}
        self._held: dict[str, tuple[Rule, float]] = {}

    def heal(self, name: str | None = None) -> list[str]:
        """Ends the fault `name`, or all of them; returns the names of those that were in force until now.

        Requests already swallowed stay swallowed: a network that recovers does not bring back what it lost.

        Raises:
            ValueError: no rule has that name.
        """
        if name is not None and name not in self._states:
            near = near_name(name, tuple(self._states))
            known = ", ".join(self._states) or "none, as there are no rules"
            raise ValueError(
                f"no rule is named {name!r}; {f'did you mean {near!r}? ' if near else ''}known are {known}"
            )
        chosen = [name] if name is not None else list(self._states)
        ended = [one for one in chosen if not self._states[one].healed]
        for one in chosen:
            self._states[one].healed = True
        return ended

    def decide(self, facts: Facts, now_s: float, stage: Stage = "request") -> Rule | None:
        """The rule that applies to this request, if any; counts the request."""
        if stage == "request":
            holder = self.holder(facts, now_s)
            if holder is not None:
                return holder
        return self._first(self._stages[stage], facts, now_s)

    def decide_future(self, facts: Facts, now_s: float) -> Rule | None:
        """The rule that keeps a future, which a batch poll reports as complete, from being so."""
        holder = self.holder(facts, now_s)
        if holder is not None:
            return holder
        waiting = [rule for rule in self.faults.rules if isinstance(rule.action, TryAgain)]
        return self._first(waiting, facts, now_s)

    def hold_future(self, request_id: str, rule: Rule) -> None:
        """Keeps the future of a submission that `rule` took from ever completing."""
        self._held[request_id] = (rule, rule.until_s)

    def holder(self, facts: Facts, now_s: float) -> Rule | None:
        """The rule that took this request's session or future earlier and has not let go of it."""
        silent = self._silent.get(facts.session or "")
        if silent is not None and self._in_force(silent, now_s):
            return silent
        if facts.phase == "poll" and facts.request_id in self._held:
            rule, until_s = self._held[facts.request_id]
            if now_s < until_s and self._in_force(rule, now_s):
                return rule
        return None

    def _in_force(self, rule: Rule, now_s: float) -> bool:
        return now_s < rule.until_s and not self._states[rule.name].healed

    def _first(self, rules: list[Rule], facts: Facts, now_s: float) -> Rule | None:
        chosen: Rule | None = None
        for rule in rules:
            if not selects(rule, facts):
                continue
            state = self._states[rule.name]
            if isinstance(rule.action, TryAgain) and facts.request_id is not None:
                if facts.request_id in state.polled:
                    continue  # a future is counted once, at its first poll
                state.polled.add(facts.request_id)
            state.seen += 1
            if chosen is None and self._fires(rule, state, now_s):
                chosen = rule
        if chosen is not None:
            self._fire(chosen, facts, now_s)
        return chosen

    def _fires(self, rule: Rule, state: _State, now_s: float) -> bool:
        if state.healed or not rule.from_s <= now_s < rule.until_s:
            return False
        if state.latched:
            return True
        if state.seen <= rule.after or (rule.nth is not None and state.seen not in rule.nth):
            return False
        if rule.times is not None and state.fired >= rule.times:
            return False
        return drawn(rule, state.seen)

    def _fire(self, rule: Rule, facts: Facts, now_s: float) -> None:
        state = self._states[rule.name]
        state.fired += 1
        state.latched = rule.until_healed
        if isinstance(rule.action, SilenceSession) and facts.session is not None:
            self._silent[facts.session] = rule
        if isinstance(rule.action, TryAgain) and facts.request_id is not None:
            self._held[facts.request_id] = (rule, now_s + rule.action.for_s)


def drawn(rule: Rule, ordinal: int) -> bool:
    """Whether chance picks the rule's `ordinal`-th request: a function of seed, name and ordinal alone."""
    if rule.probability >= 1:
        return True
    return random.Random(f"{rule.seed}/{rule.name}/{ordinal}").random() < rule.probability


def selects(rule: Rule, facts: Facts) -> bool:
    """Whether the request is one of those the rule is about, counts and times aside."""
    return (
        (rule.path is None or _path_matches(rule.path, facts.path))
        and (rule.kind is None or rule.kind == facts.kind)
        and (rule.phase is None or rule.phase == facts.phase)
        and (rule.session is None or _session_matches(rule.session, facts))
        and (rule.model is None or _model_matches(rule.model, facts))
        and _concerns(rule, facts)
    )


def _concerns(rule: Rule, facts: Facts) -> bool:
    """Whether the action can be done to such a request at all."""
    match rule.action:
        case TryAgain():
            return facts.phase == "poll" and facts.endpoint == "retrieve_future"
        case FutureNeverCompletes():
            return facts.phase == "submit"
        case AuthBlackhole():
            return facts.endpoint == "auth/token"
        case RefuseHeartbeat():
            return facts.endpoint == "session_heartbeat"
        case SilenceSession():
            return facts.session is not None
        case AcceptsSilent():
            return True
        case _:
            return True


def _path_matches(pattern: str, path: str) -> bool:
    """A suffix of whole segments, or a glob over the whole path or over such a suffix."""
    if any(letter in pattern for letter in "*?["):
        return fnmatchcase(path, pattern) or fnmatchcase(path, "*/" + pattern.lstrip("/"))
    return path == pattern or path.endswith("/" + pattern.lstrip("/"))


def _session_matches(wanted: str | int, facts: Facts) -> bool:
    if isinstance(wanted, int):
        return facts.session_ordinal == wanted
    return facts.session is not None and (facts.session == wanted or fnmatchcase(facts.session, wanted))


def _model_matches(wanted: str, facts: Facts) -> bool:
    known = [name for name in (facts.model, facts.base_model) if name is not None]
    return any(name == wanted or fnmatchcase(name, wanted) for name in known)
