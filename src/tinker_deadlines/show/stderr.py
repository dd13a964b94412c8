"""How is something said on standard error without ever breaking the script? Written to its descriptor, errors dropped.

The script's own `sys.stderr` is not used: it may have been replaced, closed, or be in the middle of a write.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile

__all__ = ["dump_stacks", "fileno", "is_terminal", "say", "write"]


def fileno() -> int:
    """The descriptor of the standard error that the process was started with.

    Raises:
        OSError: it has none, or closed it.
    """
    stream = sys.__stderr__
    if stream is None:
        raise OSError("this process has no standard error")
    try:
        return stream.fileno()
    except ValueError as error:
        raise OSError(str(error)) from None


def is_terminal() -> bool:
    """Whether somebody looks at standard error as it is written."""
    try:
        return os.isatty(fileno())
    except OSError:
        return False


def say(text: str) -> None:
    """Writes lines."""
    write(text.rstrip("\n") + "\n")


def write(text: str) -> None:
    """Writes text as it is, in one go where the system lets us, so that nothing of the script's comes in between."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
    left = text.encode(encoding, errors="replace")
    try:
        descriptor = fileno()
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        return  # closed, a pipe without a reader, or full and not to be waited for


def dump_stacks() -> None:
    """Writes the stack of every thread.

    By way of a file: faulthandler holds the interpreter while it writes, and a pipe that nobody reads would stop every
    thread of the process.
    """
    try:
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            stacks = file.read()
    except OSError as error:
        stacks = f"no stacks: {error}\n".encode()
    write(stacks.decode(errors="replace"))
