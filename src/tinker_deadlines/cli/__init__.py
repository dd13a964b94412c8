"""What does `tinker-deadlines` do? It reads its arguments, and says in one sentence what is wrong with them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["BAD_INPUT", "main", "needs_extra"]

BAD_INPUT = 2  # the exit status of everything that a person can put right at the prompt


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the entry point of `tinker-deadlines`.

    Returns:
        The exit status. What a script raises under `run` leaves through here, for the interpreter to print.
    """
    missing = needs_extra("cli", "typer", "rich")
    if missing:
        return refuse(missing)
    from tinker_deadlines.cli import commands

    outcome = commands.read(sys.argv[1:] if arguments is None else list(arguments))
    if isinstance(outcome, int):
        return outcome
    from tinker_deadlines.launch import launch

    # Here and not inside a command: typer would take the script's Ctrl-C and errors for its own.
    launch(outcome)
    return 0


def needs_extra(extra: str, *modules: str) -> str | None:
    """A sentence that names the extra to install when one of these modules is missing; `None` when all are there."""
    for module in modules:
        if importlib.util.find_spec(module) is None:  # not imported: some take seconds, and talk
            return f'this needs {module}, which is not installed: pip install "tinker-deadlines[{extra}]"'
    return None


def refuse(sentence: str) -> int:
    """Says what is wrong and returns the exit status for it."""
    print(f"tinker-deadlines: {sentence}", file=sys.stderr)
    return BAD_INPUT
