"""Which calls were made, and how long did they take? A trace, read from JSON Lines with one object a call.

    {"t": 12.5, "kind": "sample", "model": "Qwen/Qwen3-8B", "work": {"prompt_tokens": 4000, "max_tokens": 1024},
     "latency_s": 7.25, "session": "s0", "in_flight": 8}

`t` is when the call was submitted, in seconds; `latency_s` is `null` if it never ended. `retries`, if it is there, are
the latencies of a second and third try. Other keys are allowed and ignored. A file may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tinker_deadlines.calls import KINDS, TinkerCallKind, Work
from tinker_deadlines.policy.work_model import Predicts

__all__ = ["Recorded", "Trace", "TraceError", "parse", "read"]


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file, the line and what is wrong with it."""


class Recorded(NamedTuple):
    """One call of a trace."""

    t: float
    """When it was submitted, in seconds from any origin."""
    kind: TinkerCallKind
    model: str | None
    work: Work | None
    latency_s: float | None
    """How long it took to end; `None` if it never did."""
    session: str | None = None
    in_flight: int | None = None
    retries: tuple[float, ...] = ()
    """What a second and a third try took, or would have taken."""


class Trace(NamedTuple):
    """The calls of a run, by their submission."""

    name: str
    calls: tuple[Recorded, ...]
    work_model: Predicts | None = None
    """What predicts seconds from work in it; `None` is the shipped work model."""


def read(path: Path) -> Trace:
    """Reads a trace from a file.

    Raises:
        TraceError: the file cannot be read, or a line of it is not a call.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            return parse(lines, str(path))
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def parse(lines: Iterable[str], name: str) -> Trace:
    """Makes a trace of lines of JSON; empty ones are left out.

    Raises:
        TraceError: a line is not a call, or there is none.
    """
    calls = sorted(_calls(lines, name), key=lambda call: call.t)
    if not calls:
        raise TraceError(f"{name} has no calls in it")
    return Trace(name, tuple(calls))


def _calls(lines: Iterable[str], name: str) -> Iterator[Recorded]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _recorded(json.loads(line))
        except json.JSONDecodeError as error:
            raise TraceError(f"{name}, line {number}: not JSON: {error.msg} at column {error.colno}") from None
        except _Bad as error:
            raise TraceError(f"{name}, line {number}: {error}") from None


class _Bad(Exception):
    """What is wrong with a line."""


def _recorded(entry: Any) -> Recorded:
    if not isinstance(entry, dict):
        raise _Bad("a call is an object with the keys t, kind, work and latency_s")
    for key in ("t", "kind", "latency_s"):
        if key not in entry:
            raise _Bad(f"{key} is missing")
    kind = entry["kind"]
    if kind not in KINDS:
        raise _Bad(f"{kind!r} is not a kind of call; the kinds are {', '.join(KINDS)}")
    latency_s = entry["latency_s"]
    retries = entry.get("retries") or []
    if not isinstance(retries, list):
        raise _Bad(f"retries is a list of seconds, not {retries!r}")
    return Recorded(
        _number(entry["t"], "t"),
        kind,
        _text(entry, "model"),
        _work(entry.get("work")),
        None if latency_s is None else _seconds(latency_s, "latency_s"),
        _text(entry, "session"),
        entry.get("in_flight"),
        tuple(_seconds(retry, "retries") for retry in retries),
    )


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _Bad(f"{key} is a finite number of seconds, not {value!r}")
    return float(value)


def _seconds(value: Any, key: str) -> float:
    seconds = _number(value, key)
    if seconds < 0:
        raise _Bad(f"{key} is {value!r}, less than no time")
    return seconds


def _text(entry: dict[str, Any], key: str) -> str | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise _Bad(f"{key} is a text, not {value!r}")
    return value


def _work(sizes: Any) -> Work | None:
    if sizes is None:
        return None
    if not isinstance(sizes, dict):
        raise _Bad(f"work is an object of sizes, not {sizes!r}")
    for key in Work._fields[:-1]:
        size = sizes.get(key)
        if size is not None and (isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 <= size < 1e15):
            raise _Bad(f"{key} in work is a number of at least 0, not {size!r}")
    if not isinstance(sizes.get("fresh"), (bool, type(None))):
        raise _Bad(f"fresh in work is true, false or null, not {sizes['fresh']!r}")
    return Work.of(sizes)
