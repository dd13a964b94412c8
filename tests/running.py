"""How are scripts run in tests: by us and by plain Python, so that the two can be compared?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

WITHIN_S = 50.0
PYTHON = (sys.executable,)
RUN = (sys.executable, "-m", "tinker_deadlines", "run")

# A call that this library bounds, without an SDK or a server: a future that nobody ever completes.
STUCK = "from tinker_deadlines import wait_with_deadline; from concurrent.futures import Future; "
STUCK_SAMPLE = STUCK + "\ntry: wait_with_deadline('sample', Future())\nexcept TimeoutError: print('expired')\n"


def environment() -> dict[str, str]:
    """This process's environment without what would change how a script runs."""
    unwanted = ("PYTHON", "WMO_TINKER", "TINKER_DEADLINES", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def run(*command: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command, cwd=cwd, input=stdin, env=environment(), capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def start(*command: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts a command."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write(directory: Path, name: str, source: str) -> Path:
    """Writes a script."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def without_numbers(text: str) -> str:
    """Text without what differs from run to run: addresses, and how deep a recursion came."""
    return re.sub(r"0x[0-9a-f]+|repeated \d+ more", "", text)


def without_machinery(traceback: str) -> str:
    """A traceback of `python -m` without the frames of runpy, which we leave out."""
    return re.sub(r'  File "<frozen runpy>", line \d+, in \w+\n', "", traceback)
