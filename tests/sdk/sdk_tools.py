"""Small things that several tests of the SDK need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import tinker
from tinker import APIFuture

VERSION = tuple(int(number) for number in tinker.__version__.split(".")[:2])
SOURCE = Path(__file__).parents[2] / "src"


def eventually(condition: Callable[[], Any], within_s: float = 10.0, what: str = "") -> Any:
    """Returns what the condition returns once that is true; fails when it is not within `within_s`."""
    until = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < until, what or f"not true within {within_s} s"
        time.sleep(0.005)
    return value


def settled(value: Any, timeout: float = 20.0) -> Any:
    """What a call comes to, whether this SDK version returns it or a future of it."""
    return value.result(timeout) if isinstance(value, (APIFuture, Future)) else value


def run_script(text: str, *, within_s: float = 40.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
        env={**os.environ, **path_with_source(), **environment},
    )


def path_with_source() -> dict[str, str]:
    """`PYTHONPATH` with this library's sources, where they are tested in place rather than installed."""
    import tinker_deadlines

    home = str(Path(tinker_deadlines.__file__).parents[1])
    parts = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {"PYTHONPATH": os.pathsep.join([*parts, home])} if home not in parts else {}
