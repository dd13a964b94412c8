"""Which requests are to go wrong, when, and how? Fault rules as values, and read from TOML.

A rule says three things: *which* call (`path`, `kind`, `phase`, `session`, `model`, then `nth` and `probability` among
those that match), *when* (`after`, `from_s`, `until_s`, `until`, `times`), and *what* is done to it (`do` and the keys
that belong to it). Nothing here does I/O beyond reading the file; `matcher` decides, `actions` does.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

from tinker_deadlines.calls import KINDS

Stage = Literal["connection", "head", "request"]
"""How much of a request has been read when a rule is decided on."""

PHASES = ("submit", "poll")
QUEUE_STATES = ("active", "paused_capacity", "paused_rate_limit")
HEALED = "healed"


# --- what is done -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NeverAnswers:
    """The request is read to its end; the connection stays open and nothing is ever said on it."""

    do: ClassVar[str] = "never_answers"


@dataclass(frozen=True, slots=True)
class AcceptsSilent:
    """The connection is accepted and not read: not at all, or, in a rule with `path`, not beyond the head."""

    do: ClassVar[str] = "accepts_silent"


@dataclass(frozen=True, slots=True)
class HeadersThenSilence:
    """The server's status and headers are passed on, its body never is."""

    do: ClassVar[str] = "headers_then_silence"


@dataclass(frozen=True, slots=True)
class Drip:
    """The body of the server's answer is passed on a byte at a time, one each `interval_s`."""

    interval_s: float = 1.0
    do: ClassVar[str] = "drip"


@dataclass(frozen=True, slots=True)
class Delay:
    """The server's answer is passed on whole, `delay_s` later than it came."""

    delay_s: float
    do: ClassVar[str] = "delay"


@dataclass(frozen=True, slots=True)
class Reset:
    """The request is read, the server never sees it, and the connection ends with a TCP reset."""

    do: ClassVar[str] = "reset"


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The server executes the request; its answer is thrown away and the connection ends as `then` says."""

    then: Literal["reset", "close", "silence"] = "reset"
    do: ClassVar[str] = "lose_answer"


@dataclass(frozen=True, slots=True)
class Status:
    """The proxy answers in the server's place."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    do: ClassVar[str] = "status"


@dataclass(frozen=True, slots=True)
class TryAgain:
    """For `for_s` from its first poll, every poll of a future is answered "try again" with this queue state."""

    for_s: float
    queue_state: str = "paused_capacity"
    queue_state_reason: str = ""
    interval_s: float = 1.0
    do: ClassVar[str] = "try_again"


@dataclass(frozen=True, slots=True)
class FutureNeverCompletes:
    """The matched submission succeeds; every poll of its future is answered "try again", for ever."""

    queue_state: str = "active"
    queue_state_reason: str = ""
    interval_s: float = 1.0
    do: ClassVar[str] = "future_never_completes"


@dataclass(frozen=True, slots=True)
class AuthBlackhole:
    """The exchange of a credential for a token never answers."""

    do: ClassVar[str] = "auth_blackhole"


@dataclass(frozen=True, slots=True)
class RefuseHeartbeat:
    """Heartbeats are refused; on 410 the SDK takes its session for finished and stops sending them."""

    status: int = 410
    do: ClassVar[str] = "refuse_heartbeat"


@dataclass(frozen=True, slots=True)
class SilenceSession:
    """The whole session that the matched request belongs to is never answered again; other sessions work."""

    do: ClassVar[str] = "silence_session"


Action = (
    NeverAnswers
    | AcceptsSilent
    | HeadersThenSilence
    | Drip
    | Delay
    | Reset
    | LoseAnswer
    | Status
    | TryAgain
    | FutureNeverCompletes
    | AuthBlackhole
    | RefuseHeartbeat
    | SilenceSession
)

ACTIONS: dict[str, type[Action]] = {
    action.do: action
    for action in (
        NeverAnswers,
        AcceptsSilent,
        HeadersThenSilence,
        Drip,
        Delay,
        Reset,
        LoseAnswer,
        Status,
        TryAgain,
        FutureNeverCompletes,
        AuthBlackhole,
        RefuseHeartbeat,
        SilenceSession,
    )
}


# --- which and when ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nth:
    """The ordinals, counted from 1, of the matching requests a rule applies to; `last` None is "and all later"."""

    ranges: tuple[tuple[int, int | None], ...]

    def __contains__(self, ordinal: int) -> bool:
        return any(first <= ordinal and (last is None or ordinal <= last) for first, last in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that goes wrong. Every condition left out is no condition."""

    name: str
    action: Action
    path: str | None = None
    kind: str | None = None
    phase: str | None = None
    session: str | int | None = None
    model: str | None = None
    nth: Nth | None = None
    probability: float = 1.0
    seed: int = 0
    after: int = 0
    from_s: float = 0.0
    until_s: float = math.inf
    until_healed: bool = False
    times: int | None = None

    @property
    def stage(self) -> Stage:
        """How much of the request must have been read before the rule can be decided on."""
        if not isinstance(self.action, AcceptsSilent):
            return "request"
        return "connection" if self.path is None else "head"


@dataclass(frozen=True, slots=True)
class Faults:
    """The rules of one proxy, in the order in which they are asked; the first that applies is done."""

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two fault rules are named {name!r}, but a name must be unique: it is what is healed")

    @classmethod
    def from_toml(cls, text: str, *, source: str = "fault file") -> Faults:
        """The rules written in `text`.

        Raises:
            ValueError: one sentence that names `source`, the rule, the key, its value and what is allowed.
        """
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{source}: not valid TOML: {error}") from None
        except RecursionError:
            raise ValueError(f"{source}: not readable as TOML: it is nested too deeply") from None
        try:
            return cls(tuple(_rules_of(document)))
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Faults:
        """The rules of the file at `path`.

        Raises:
            ValueError: the file cannot be read, or as `from_toml`, naming the file.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path}: cannot read the fault file: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not valid TOML: byte {error.start} is not UTF-8") from None
        return cls.from_toml(text, source=str(path))


# --- reading a file ---------------------------------------------------------------------------------------------------


class _NotAllowed(Exception):
    """A value is not what its key allows; the text says what would be."""


Check = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _NotAllowed("a text that is not empty")
    return value


def _any_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _NotAllowed("a text")
    return value


def _one_of(*allowed: str) -> Check:
    def check(value: Any) -> str:
        if value in allowed and isinstance(value, str):
            return value
        near = f" (did you mean {near_name(value, allowed)!r}?)" if near_name(value, allowed) else ""
        raise _NotAllowed("one of " + ", ".join(allowed) + near if len(allowed) > 1 else repr(allowed[0]))

    return check


def _whole(least: int, most: float = math.inf) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise _NotAllowed(
            f"a whole number, {least} or more" if most == math.inf else f"a number from {least} to {most}"
        )

    return check


def _number(least: float, what: str, most: float = math.inf) -> Check:
    def check(value: Any) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= min(most, 1e15):
            return float(value)
        raise _NotAllowed(what)

    return check


_seconds = _number(0, "a number of seconds, 0 or more")
_seconds_above_0 = _number(1e-6, "a number of seconds above 0")
_RANGE = re.compile(r"(\d{1,15})\.\.(\d{1,15})?")


def _nth(value: Any) -> Nth:
    ordinal = _whole(1)
    try:
        if isinstance(value, list) and value:
            return Nth(tuple((ordinal(one), ordinal(one)) for one in value))
        if isinstance(value, str):
            found = _RANGE.fullmatch(value)
            first, last = found.groups() if found else ("0", None)
            return Nth(((ordinal(int(first)), _whole(int(first))(int(last)) if last else None),))
        return Nth(((ordinal(value), ordinal(value)),))
    except _NotAllowed:
        raise _NotAllowed('a whole number from 1, a list of them, or a range such as "3.." or "3..5"') from None


def _session(value: Any) -> str | int:
    if isinstance(value, str) and value:
        return value
    try:
        ordinal: int = _whole(1)(value)
    except _NotAllowed:
        raise _NotAllowed("a session id, a glob of one, or its ordinal through this proxy, counted from 1") from None
    return ordinal


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = {"content-length", "transfer-encoding", "connection"}


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, dict) and all(
        _TOKEN.fullmatch(name) and name.lower() not in _FRAMING and _header_value(one) for name, one in value.items()
    ):
        return tuple((name, str(one)) for name, one in value.items())
    raise _NotAllowed(
        "a table of header names and values, without those that frame a message (" + _listed(_FRAMING) + ")"
    )


def _header_value(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return False
    text = str(value)
    return text == text.strip() and all(" " <= letter <= "~" or letter == "\t" for letter in text)


def _body(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, dict | list):
            return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        pass
    raise _NotAllowed("a text, or a table or array to be sent as JSON")


_COMMON: dict[str, Check] = {
    "name": _text,
    "do": _one_of(*ACTIONS),
    "path": _text,
    "kind": _one_of(*KINDS),
    "phase": _one_of(*PHASES),
    "session": _session,
    "model": _text,
    "nth": _nth,
    "probability": _number(0, "a number from 0 to 1", 1),
    "seed": _whole(0),
    "after": _whole(0),
    "from_s": _seconds,
    "until_s": _seconds_above_0,
    "until": _one_of(HEALED),
    "times": _whole(1),
}
_OF_ACTIONS: dict[str, Check] = {
    "interval_s": _seconds_above_0,
    "delay_s": _seconds,
    "for_s": _seconds_above_0,
    "then": _one_of("reset", "close", "silence"),
    "status": _whole(200, 599),
    "headers": _headers,
    "body": _body,
    "queue_state": _one_of(*QUEUE_STATES),
    "queue_state_reason": _any_text,
}


def _rules_of(document: Mapping[str, Any]) -> Iterator[Rule]:
    for key, value in document.items():
        if key != "fault":
            raise ValueError(f"unknown key {key!r} (value {_short(value)}); rules are written as [[fault]] tables")
    tables = document.get("fault", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"key 'fault' is {_short(tables)}, but rules are written as [[fault]] tables")
    for number, table in enumerate(tables, start=1):
        name = table.get("name")
        label = f"rule {name!r}" if isinstance(name, str) and name else f"rule {number}"
        try:
            yield _rule_of(table, default_name=f"fault-{number}")
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None


def _rule_of(table: Mapping[str, Any], default_name: str) -> Rule:
    if "do" not in table:
        raise ValueError("key 'do' is missing; it says what is done: " + ", ".join(ACTIONS))
    action = ACTIONS[_checked("do", table["do"], _COMMON["do"])]
    of_action = {field.name: field for field in fields(action)}
    common: dict[str, Any] = {"name": default_name}
    parameters: dict[str, Any] = {}
    for key, value in table.items():
        if key in of_action:
            parameters[key] = _checked(key, value, _OF_ACTIONS[key])
        elif key in _COMMON:
            common[key] = _checked(key, value, _COMMON[key])
        else:
            raise ValueError(_unknown_key(key, value, action.do, [*_COMMON, *of_action]))
    for name, field in of_action.items():
        if name not in parameters and field.default is MISSING:
            raise ValueError(f"key {name!r} is missing; do = {action.do!r} needs it")
    del common["do"]
    common["until_healed"] = common.pop("until", None) == HEALED
    rule = Rule(action=action(**parameters), **common)
    _refuse_contradictions(rule)
    return rule


def _checked(key: str, value: Any, check: Check) -> Any:
    try:
        return check(value)
    except _NotAllowed as allowed:
        raise ValueError(f"key {key!r} is {_short(value)}, but must be {allowed}") from None


def _unknown_key(key: str, value: Any, do: str, allowed: list[str]) -> str:
    if key in _OF_ACTIONS:
        owners = [name for name, action in ACTIONS.items() if key in {field.name for field in fields(action)}]
        return f"key {key!r} (value {_short(value)}) does not go with do = {do!r}; it goes with {', '.join(owners)}"
    near = near_name(key, allowed)
    hint = f"did you mean {near!r}? " if near else ""
    return f"unknown key {key!r} (value {_short(value)}); {hint}allowed here are {', '.join(allowed)}"


def _refuse_contradictions(rule: Rule) -> None:
    if rule.until_s <= rule.from_s:
        raise ValueError(
            f"key 'until_s' is {rule.until_s:g}, but must be later than 'from_s', which is {rule.from_s:g}"
        )
    if rule.until_healed and (rule.until_s < math.inf or rule.times is not None):
        other = "times" if rule.times is not None else "until_s"
        raise ValueError(f"key 'until' is {HEALED!r}, which excludes {other!r}; keep one of them")
    if isinstance(rule.action, AcceptsSilent):
        for key in ("kind", "phase", "session", "model"):
            if getattr(rule, key) is not None:
                raise ValueError(
                    f"key {key!r} is {_short(getattr(rule, key))}, but do = 'accepts_silent' reads no body to know it; "
                    "select with 'path', or use do = 'never_answers'"
                )


def near_name(name: object, allowed: Iterator[str] | list[str] | tuple[str, ...]) -> str | None:
    """The allowed name that `name` was probably meant to be, if any is near."""
    found = difflib.get_close_matches(name, list(allowed), n=1) if isinstance(name, str) else []
    return found[0] if found else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
