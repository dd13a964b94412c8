"""How are calls made for the record, and how is it looked at without the code that is tested?"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from running import environment
from tinker_deadlines.calls import Call, Outcome, TinkerCallKind, Traffic, Work, board

WITHIN_S = 50.0

# For child processes: the same, without pytest.
END_CALLS = """
import logging, os, sys, time
from tinker_deadlines import limits
# How long a process waits for its turn on a machine that is busy with other things is not what these tests are about.
limits.RECORD_BUSY_S = limits.RECORD_CLOSE_S = limits.RECORD_STATE_S = 60.0
from tinker_deadlines import record
from tinker_deadlines.calls import Call, board
logging.basicConfig(format="%(message)s")

def end_call():
    call = Call("sample", 300.0, "the default")
    board.begin(call)
    board.end(call, "completed")
    return call.id
"""


def begin_call(kind: TinkerCallKind = "sample", work: Work | None = None, **facts: Any) -> Call:
    """Puts a call on the board; `facts` are attributes of it."""
    method = "SamplingClient.sample" if kind == "sample" else ""
    call = Call(kind, 300.0, "the default", method, work)
    board.begin(call)
    for name, value in facts.items():
        setattr(call, name, value)
    return call


def end_call(outcome: Outcome = "completed", error: BaseException | None = None, **facts: Any) -> Call:
    """A call that begins and ends."""
    call = begin_call(**facts)
    board.end(call, outcome, error)
    return call


def traffic_of(*ended: str) -> Traffic:
    """Traffic in which these exchanges ended."""
    traffic = Traffic()
    for what in ended:
        traffic.ended(what)
    return traffic


def rows(path: Path, sql: str) -> list[Any]:
    """Asks a SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def count(path: Path, table: str = "calls") -> int:
    """How many rows a table has; none where there is no table."""
    try:
        return int(rows(path, f"SELECT count(*) FROM {table}")[0][0])
    except sqlite3.OperationalError:
        return 0


def until(true: Callable[[], object]) -> None:
    """Waits until something is so."""
    end = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def child(code: str, home: Path, *arguments: str, url: str = "") -> subprocess.Popen[str]:
    """Starts a process that records, in `home` or where the URL says."""
    return subprocess.Popen(
        [sys.executable, "-c", END_CALLS + textwrap.dedent(code), *arguments],
        env={**environment(), "TINKER_DEADLINES_HOME": str(home), "TINKER_DEADLINES_RECORD": url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process said until it ended well."""
    out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, err
    return out, err


def all_at_once(code: str, home: Path, names: Sequence[str], url: str = "") -> list[tuple[str, str]]:
    """Starts a process for each name, has them all begin together, and returns what each said until it ended well.

    The code is in two parts, with a line `---` between: what each does before, and after all are ready.
    """
    before, after = textwrap.dedent(code).split("---\n")
    waits = "print('ready', flush=True)\nsys.stdin.readline()\n"
    processes = [child(before + waits + after, home, name, url=url) for name in names]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [ended(process) for process in processes]
    finally:
        for process in processes:
            process.kill()  # those that are left where one failed
            process.communicate()
