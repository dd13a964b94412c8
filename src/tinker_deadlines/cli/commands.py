"""Which commands are there, and what does each of their options mean?"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tinker_deadlines.calls import KINDS, TinkerCallKind
from tinker_deadlines.cli import BAD_INPUT, needs_extra, record, refuse, replay
from tinker_deadlines.launch import Plan, Target, problem_with
from tinker_deadlines.limits import (
    DEFAULT_DEADLINES_S,
    EXIT_GRACE_S,
    POLICY_ENV,
    env_var_for,
    override_for,
    parse_seconds,
)
from tinker_deadlines.policy import policy_named
from tinker_deadlines.record.place import RECORD_VARIABLE, RecordError, place_of
from tinker_deadlines.recovery.runs import RECOVER_VARIABLE, RUN_VARIABLE, RunError, must_exist, new_name

__all__ = ["read"]

LAB_MODULES = ("tinker", "starlette", "uvicorn", "h11", "httpx", "numpy", "tokenizers", "transformers")

app = typer.Typer(
    name="tinker-deadlines",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_ExitGrace = Annotated[
    str,
    typer.Option(
        metavar="SECONDS",
        help="A process that goes on so long after its main code ended is ended, its stacks printed. 0: at once.",
    ),
]
_Recover = Annotated[
    bool, typer.Option("--recover", help="Have training go on by itself after a fault, and keep the run.")
]
_Resume = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Go on with a run that was kept: what is applied already is not sent again."),
]


def read(arguments: list[str]) -> Plan | int:
    """Carries a command out and returns its exit status; for `run`, returns what is to be run instead."""
    try:
        outcome = app(args=arguments, prog_name="tinker-deadlines", standalone_mode=False)
    except Exception as error:
        # typer brings its own copy of click or uses the installed one: both call their errors so.
        say = getattr(error, "format_message", None)
        if say is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(say(), file=sys.stderr)
            return BAD_INPUT
        return refuse(_one_sentence(say()))
    except KeyboardInterrupt:
        return 130
    return outcome if isinstance(outcome, (Plan, int)) else 0


def _one_sentence(message: str) -> str:
    text = " ".join(message.split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]} (see --help)"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tinker-deadlines {version('tinker-deadlines')}")
        raise typer.Exit


@app.callback(
    epilog="Examples:  tinker-deadlines run train.py lr=1e-4  ·  tinker-deadlines lab --latency 0.01"
    "  ·  tinker-deadlines demo"
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Deadlines for every call of a Tinker training run: slow is not dead, and nothing hangs."""


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog="Examples:  tinker-deadlines run train.py --lr 1e-4  ·  tinker-deadlines run -m recipes.rl.train model=8b"
    "  ·  tinker-deadlines run --limit sample=900 --wall 3600 eval.py",
)
def _run(
    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script, or with -m the module.")] = "",
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Its own arguments, as they are.", show_default=False),
    ] = None,
    *,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=SECONDS", help=f"How long a call may take; repeatable. Kinds: {', '.join(KINDS)}."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What sets limits: learned (the default), scaled, p99x3, flat, fixed:60."),
    ] = None,
    record_to: Annotated[
        str | None, typer.Option("--record", metavar="URL", help="Where the run is recorded: off, sqlite:///PATH, ...")
    ] = None,
    wall: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="How long all Tinker calls of the script may take together.")
    ] = None,
    recover: _Recover = False,
    resume: _Resume = None,
    exit_grace: _ExitGrace = f"{EXIT_GRACE_S:g}",
    json: Annotated[
        bool, typer.Option("--json", help="Say the summary as JSON, on the last line of standard error.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show nothing, except a summary at the end if a call was cut.")
    ] = False,
    no_live: Annotated[bool, typer.Option("--no-live", help="Show nothing while it runs.")] = False,
) -> Plan | int:
    r"""Run a Python script, unchanged, with every Tinker call bounded.

    It runs as Python would run it: its arguments, exit status, tracebacks and Ctrl-C are its own. On a terminal a table
    shows what is in flight, and a summary at the end what was cut. Ctrl-\\ prints all stacks and the calls in flight.
    """
    from tinker_deadlines.show.display import Display

    chosen = Target(target, tuple(arguments or ()), module)
    try:
        _must_open(chosen)
        _set_for_process(limit or [], policy, record_to)
        run = _kept_run(resume) if recover or resume is not None else None
        wall_s = None if wall is None else parse_seconds(wall, what="--wall", example=3600)
        grace_s = _grace(exit_grace)
    except (RecordError, RunError, ValueError) as error:
        return refuse(str(error))
    display = Display(live=not (quiet or no_live), summary="json" if json else "if cut" if quiet else "text")
    return Plan(chosen, display, wall_s, grace_s, run)


def _kept_run(resume: str | None) -> str:
    """Has every training client of this process recover; returns the name of the run that is kept.

    Raises:
        RunError: there is no run to go on with, or a package is missing.
    """
    missing = needs_extra("recovery", "tenacity", "platformdirs")
    if missing:
        raise RunError(missing)
    run = resume or os.environ.get(RUN_VARIABLE) or new_name()
    if resume is not None:
        must_exist(resume)
    os.environ[RECOVER_VARIABLE], os.environ[RUN_VARIABLE] = "1", run
    return run


def _must_open(target: Target) -> None:
    if not target.name:
        raise ValueError("say which script to run, or with -m which module, such as: tinker-deadlines run train.py")
    problem = problem_with(target)
    if problem is not None:
        raise ValueError(problem)


def _set_for_process(limits: list[str], policy: str | None, record_to: str | None) -> None:
    """Sets for this process and its children what their calls go by, and reads it once, so that rubbish is said now.

    Raises:
        RecordError: there can be no record in the place that was named.
        ValueError: something is no limit or no policy.
    """
    for text in limits:
        _set_limit(text)
    for kind in KINDS:
        override_for(kind)
    for variable, value in ((POLICY_ENV, policy), (RECORD_VARIABLE, record_to)):
        if value is not None:
            os.environ[variable] = value
    policy_named(os.environ.get(POLICY_ENV) or "learned")
    if os.environ.get(RECORD_VARIABLE):
        place_of()


def _set_limit(text: str) -> None:
    """Sets the limit of a kind for this process and its children."""
    name, equals, seconds = text.partition("=")
    if not equals:
        raise ValueError(f"--limit is {text!r}, but must be KIND=SECONDS, such as sample=300")
    kind = _kind_named(name.strip())
    value = parse_seconds(seconds.strip(), what=f"--limit {kind}", example=DEFAULT_DEADLINES_S[kind])
    os.environ[env_var_for(kind)] = f"{value:.12g}"


def _kind_named(name: str) -> TinkerCallKind:
    for kind in KINDS:
        if kind == name.replace("-", "_"):
            return kind
    near = difflib.get_close_matches(name, KINDS, n=1)
    meant = f", did you mean {near[0]!r}?" if near else ","
    raise ValueError(f"--limit: {name!r} is not a kind of Tinker call{meant} the kinds are {', '.join(KINDS)}")


def _grace(text: str) -> float:
    try:
        return 0.0 if float(text) == 0 else parse_seconds(text, what="--exit-grace", example=EXIT_GRACE_S)
    except ValueError:
        return parse_seconds(text, what="--exit-grace", example=EXIT_GRACE_S)


@app.command(
    "lab",
    epilog="Examples:  tinker-deadlines lab --port 8000 --state ./lab  ·  tinker-deadlines lab --faults wedge.toml"
    "  ·  tinker-deadlines lab --upstream https://tinker.example --faults wedge.toml",
)
def _lab(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where checkpoints are kept; without it they go when the lab stops."),
    ] = None,
    latency: Annotated[
        str, typer.Option(metavar="SPEC", help="How long calls take: a scale, or scale=,jitter=,seed=,load=.")
    ] = "0",
    faults: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="What goes wrong, by rule.")] = None,
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="Put the faults before this server instead of a lab.")
    ] = None,
    fault_log: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Write here what was done to whom.")
    ] = None,
) -> int:
    """Start a Tinker server to break, on this machine; its URL is the first line it prints. Ctrl-C ends it."""
    missing = needs_extra("lab", *LAB_MODULES)
    if missing:
        return refuse(missing)
    from tinker_deadlines.lab import serve

    settings: dict[str, Any] = {"faults": faults, "upstream": upstream, "fault_log": fault_log}
    return serve(host=host, port=port, state=state, latency=latency, **settings)


@app.command("demo", epilog="Example:  tinker-deadlines demo")
def _demo() -> int:
    """Watch an on-policy distillation go on while a lab server goes wrong around it. Ends by itself in under 90 s."""
    missing = needs_extra("lab", *LAB_MODULES)
    if missing:
        return refuse(missing)
    from tinker_deadlines.demo import run

    return run()


app.command("record", epilog=record.EXAMPLES)(record.tell)
app.command("replay", epilog=replay.REPLAY_EXAMPLES)(replay.replay)
app.command("explain", epilog=replay.EXPLAIN_EXAMPLES)(replay.explain)
