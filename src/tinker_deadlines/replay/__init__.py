"""What would another policy have done? Policies are run over calls that were recorded, or over built-in examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinker_deadlines.policy import Policy, policy_named
from tinker_deadlines.replay.engine import replay
from tinker_deadlines.replay.figures import Figures, pooled, table
from tinker_deadlines.replay.trace import Recorded, Trace, TraceError, parse, read
from tinker_deadlines.replay.worlds import WORLDS, world

__all__ = [
    "EXAMPLES",
    "WORLDS",
    "Figures",
    "Recorded",
    "Trace",
    "TraceError",
    "load",
    "parse",
    "pooled",
    "read",
    "replay",
    "run",
    "table",
    "world",
]

_FILES = {
    "skyrl": (
        "skyrl-0.4.0-sdk-0.38.0.jsonl.gz",
        "964 calls of the SDK 0.38.0 to SkyRL 0.4.0 on two CPU cores, measured, each shape compiled at its first call",
    )
}

EXAMPLES: dict[str, str] = {**{name: here.about for name, here in WORLDS.items()}, "skyrl": _FILES["skyrl"][1]}
"""The built-in traces by name, and what is special in each."""


def load(name: str, *, seed: int = 0) -> Trace:
    """A built-in trace by its name, or one from a file.

    Args:
        name: A name in `EXAMPLES`, or the path of a file of JSON Lines, which may be compressed with gzip.
        seed: For the simulated worlds: which of the many that they could be.

    Raises:
        TraceError: it is no example, and no file that can be read as a trace.
    """
    if name in WORLDS:
        return world(name, seed)
    if name in _FILES:
        return read(Path(__file__).with_name(_FILES[name][0]))._replace(name=name)
    path = Path(name)
    if not path.exists():
        raise TraceError(f"{name!r} is neither a file nor a built-in trace; those are {', '.join(EXAMPLES)}")
    return read(path)


def run(trace: Trace, policies: Sequence[str | Policy]) -> list[Figures]:
    """Runs policies over a trace, each on its own.

    Args:
        trace: The calls.
        policies: Names as `policy_named` reads them, of which a new policy is made with the trace's own work model; or
            policies, which go on from what they have learned.

    Returns:
        The figures, in the order of the policies.

    Raises:
        ValueError: a name means no policy.
    """
    made = [policy_named(each, work_model=trace.work_model) if isinstance(each, str) else each for each in policies]
    return [replay(trace, policy) for policy in made]
