"""What do `tinker-deadlines replay` and `explain` do? They argue about limits: of recorded calls, and of one."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Annotated, Any

import typer

from tinker_deadlines import policy as policies
from tinker_deadlines.calls import KINDS, TinkerCallKind, Work
from tinker_deadlines.cli import refuse
from tinker_deadlines.limits import POLICY_ENV
from tinker_deadlines.record import RecordError, place_of
from tinker_deadlines.recovery.rules import worst_case
from tinker_deadlines.replay import EXAMPLES, Trace, TraceError, load, parse, run, table

__all__ = ["EXPLAIN_EXAMPLES", "REPLAY_EXAMPLES", "explain", "replay"]

REPLAY_EXAMPLES = (
    "Examples:  tinker-deadlines replay slow-spell stragglers  ·  tinker-deadlines record --export 5335 | "
    "tinker-deadlines replay -  ·  tinker-deadlines replay record:5335 --policy flat,fixed:120,learned --json"
)
EXPLAIN_EXAMPLES = (
    "Examples:  tinker-deadlines explain  ·  tinker-deadlines explain sample --model Qwen/Qwen3-4B "
    "--work prompt_tokens=8192,max_tokens=1024"
)

_DEFAULT = "flat,scaled,p99x3,learned"
_RECORD = "record:"


def replay(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE...",
            help="JSON Lines with one call a line (also .gz; - is standard input), record:ID for a recorded run, or a "
            f"built-in example: {', '.join(EXAMPLES)}.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Policies, with commas between them: flat, fixed:SECONDS, scaled, p99x3, "
                     "learned, learned:alpha=1e-4."),
    ] = _DEFAULT,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="For the simulated examples: which of many.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Say the figures as JSON.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the built-in examples and end.")] = False,
) -> int:  # fmt: skip
    """See what other limits would have done on calls that were recorded: what they kill, and when they notice the dead.

    A policy sees a call's work before it and its latency only after its end. False kills are calls that it cut
    although they would have ended; a call is lost when its tries were cut three times.
    """
    if list_them:
        print("\n".join(f"{name:16} {about}" for name, about in EXAMPLES.items()))
        return 0
    if not traces:
        return refuse(f"say which calls to replay: a file, record:ID, or one of {', '.join(EXAMPLES)}")
    # What a policy warns of here are its own false kills, which the table has.
    logging.getLogger("tinker_deadlines").setLevel(logging.ERROR)
    names = _split(policy)
    said: list[dict[str, Any]] = []
    try:
        for name in names:
            policies.policy_named(name)
        for name in traces:
            figures = _watched(_trace(name, seed), names)
            if as_json:
                facts = [each._asdict() | {"false_kills_per_10k": each.false_kills_per_10k} for each in figures]
                said.append({"trace": name, "calls": figures[0].calls, "policies": facts})
            else:
                print(f"\n{name}: {figures[0].calls:,} calls\n\n{table(figures)}", flush=True)
    except (RecordError, TraceError, ValueError) as error:
        return refuse(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if as_json:
        print(json.dumps(said, indent=2))
    return 0


def _split(text: str) -> list[str]:
    """Names between commas, of which fixed:sample=60,connect=10 is one."""
    names: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        if names and ":" in names[-1] and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    if not names:
        raise typer.BadParameter("--policy names no policy")
    return names


def _watched(trace: Trace, names: list[str]) -> list[Any]:
    """Runs one policy after the other, and says on a terminal which one is at work."""
    from rich.console import Console

    console, figures = Console(stderr=True), []
    for name in names:
        if console.is_terminal:
            with console.status(f"{trace.name}: {name} on {len(trace.calls):,} calls"):
                figures += run(trace, [name])
        else:
            figures += run(trace, [name])
    return figures


def _trace(name: str, seed: int) -> Trace:
    if name == "-":
        try:
            return parse(sys.stdin, "standard input")
        except UnicodeDecodeError as error:
            raise TraceError(f"standard input cannot be read: {error}") from error
    return _recorded(name.removeprefix(_RECORD)) if name.startswith(_RECORD) else load(name, seed=seed)


def _recorded(run_id: str) -> Trace:
    from sqlalchemy.exc import SQLAlchemyError

    from tinker_deadlines.record import reading
    from tinker_deadlines.record.store import Store, reason_of

    place = place_of()
    if place is None:
        raise RecordError("the record is off, so there is no run to replay")
    if place.path is not None and not place.path.exists():
        raise RecordError(f"nothing is recorded yet in {place.shown}")
    store = Store(place)
    try:
        with store.reading() as connection:
            named = reading.run_named(connection, run_id)
            lines = [json.dumps(call) for call in reading.trace(connection, named)]
    except (OSError, SQLAlchemyError) as error:
        raise RecordError(f"the record {place.shown} cannot be used: {reason_of(error)}") from error
    finally:
        store.close()
    return parse(lines, f"{_RECORD}{run_id}")


def explain(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help=f"{', '.join(KINDS)}; all of them without it.")] = "",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model, such as Qwen/Qwen3-8B.")] = None,
    work: Annotated[
        str, typer.Option(metavar="SIZES", help=f"The work: {', '.join(f'{each}=N' for each in Work._fields[:6])}.")
    ] = "",
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="Which policy; without it TINKER_DEADLINES_POLICY, or learned.")
    ] = "",
) -> int:
    """Say how long a call may take and why, and what it can cost at worst: seconds, and how often it is made.

    It tells of limits that know nothing of earlier runs; what a run learned is in its own errors and its record.
    """
    try:
        policies.use_policy(policies.policy_named(policy or os.environ.get(POLICY_ENV) or "learned"))
        sizes = _sizes(work)
        for each in KINDS if not kind else (_kind(kind),):
            found = policies.explain(each, sizes, model)
            limit = found.limit
            print(found, worst_case(each, limit.seconds, found.ceiling_s, fixed=limit.fixed))
    except ValueError as error:
        return refuse(str(error))
    return 0


def _kind(text: str) -> TinkerCallKind:
    for each in KINDS:
        if each == text.replace("-", "_"):
            return each
    raise ValueError(f"{text!r} is not a kind of Tinker call; the kinds are {', '.join(KINDS)}")


def _sizes(text: str) -> Work | None:
    sizes: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in Work._fields[:6] or not value.isdecimal():
            known = ", ".join(Work._fields[:6])
            raise ValueError(f"--work is {part!r}, but must be SIZE=NUMBER with one of {known}")
        sizes[name] = int(value)
    return Work.of(sizes) if sizes else None
