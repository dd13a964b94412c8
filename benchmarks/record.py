"""What does recording a call cost its caller, and its process? Beside a plain `queue.put`, and a write on the spot.

python -m benchmarks.record [--rounds N]

A caller may pay 10 µs a call. The ratio to `queue.put` is what other machines can be compared by.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import compare
from benchmarks.report import Bar, Table
from tinker_deadlines import record
from tinker_deadlines.calls import Call, Ended, Traffic, Work, board
from tinker_deadlines.record import Recorder, place_of

CALLS = 5_000
PER_SECOND = 1_000
"""Calls of which the whole is timed, and how fast they come: more than a busy run makes, less than a loop could."""

WORK = Work(prompt_tokens=8000, max_tokens=1000, num_samples=8)
NAMES = ("kind", "model", "work", "submitted", "ended", "outcome")


def markdown(rounds: int) -> tuple[str, list[Bar]]:
    """The tables, and their bars."""
    logging.getLogger("tinker_deadlines").setLevel(logging.ERROR)  # a loop that does nothing else outruns any writer
    with tempfile.TemporaryDirectory() as directory:
        table = _caller(Path(directory), rounds)
        figures, bars = _process(Path(directory))
    return f"{table.markdown()}\n{figures}", [*table.bars, *bars]


def _end_call() -> None:
    call = Call("sample", 300.0, "the default", "SamplingClient.sample", WORK, model="Qwen/Qwen3-8B", session="s")
    call.traffic = Traffic()
    board.begin(call)
    board.end(call, "completed")


def _facts(ended: Ended) -> tuple[object, ...]:
    call = ended.call
    return (call.kind, call.model, call.work, call.submitted_at, call.submitted_at + ended.elapsed_s, ended.outcome)


def _with(observer: Callable[[Ended], None] | None) -> Callable[[], None]:
    """Ends a call with one observer, or none."""
    observers = () if observer is None else (observer,)

    def way() -> None:
        board.observers = observers
        _end_call()

    return way


def _caller(directory: Path, rounds: int) -> Table:
    """What the end of a call costs its caller with somebody who keeps it."""
    waiting: queue.Queue[tuple[object, ...]] = queue.Queue()
    taker = threading.Thread(target=lambda: [None for _ in iter(waiting.get, ())], daemon=True)
    taker.start()
    database = sqlite3.connect(directory / "plain.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute(f"CREATE TABLE calls ({', '.join(NAMES)})")
    # Its writer does not run: it would be at work all the time here, where calls come faster than anything can be
    # written, and whose turn it is would be measured instead. Below, it does.
    recorder = Recorder(place_of(f"sqlite:///{directory / 'record.sqlite'}"))
    none, ours, put, direct = (
        "nobody keeps it",
        "tinker-deadlines",
        "queue.put, and a thread that takes",
        "sqlite3, at once",
    )

    def keep(ended: Ended) -> None:
        recorder._observe(ended)
        if len(recorder._queue) > PER_SECOND // 2:  # what comes between two writes; or the collector is measured
            recorder._queue.clear()

    def insert(ended: Ended) -> None:
        facts = _facts(ended)
        database.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?)", (*facts[:2], str(facts[2]), *facts[3:]))

    try:
        costs = compare(
            {
                none: _with(None),
                ours: _with(keep),
                put: _with(lambda ended: waiting.put(_facts(ended))),
                direct: _with(insert),
            },
            rounds=rounds,
        )
    finally:
        board.observers = ()
        waiting.put(())
        taker.join()
        database.close()
    base = costs[none].median_us
    added, plain = costs[ours].median_us - base, costs[put].median_us - base
    bars = [Bar("µs added to a call", added, 10.0), Bar("added ÷ added by queue.put", added / plain, 1.5)]
    return Table("The record: the end of a call, and who keeps it", costs, none, bars)


def _process(directory: Path) -> tuple[str, list[Bar]]:
    """What a run pays in all: CPU time of a call with its writing, and what its caller sees of it."""
    path = directory / "whole.sqlite"
    recorder = record.start(f"sqlite:///{path}")
    time.sleep(2)  # it is open by now, and everything imported
    kept = _paced(recorder.close)
    none = _paced(lambda: None)
    size = path.stat().st_size / CALLS
    database = sqlite3.connect(path)
    written = database.execute("SELECT count(*) FROM calls").fetchone()[0]
    database.close()
    rows = ["| calls | median µs | p99 | longest | CPU |", "| --- | ---: | ---: | ---: | ---: |"]
    rows += [
        f"| {name} | {' | '.join(f'{value:.3g}' for value in costs)} |"
        for name, costs in (("alone", none), ("recorded", kept))
    ]
    lines = [
        f"## The record: {PER_SECOND:,} calls a second",
        "",
        "What a call's caller sees of its end, and the CPU time of the whole process by call, waiting and writing",
        "included. The longest is where the interpreter was busy elsewhere: with the writer, or collecting garbage.",
        "",
        *rows,
        "",
        f"{size:.0f} bytes a call in the file.",
        "",
    ]
    bars = [
        Bar("µs of CPU that a recorded call costs in all, its writing included", kept.cpu_us - none.cpu_us, 400),
        Bar("calls that were not written", CALLS - written, 0),
    ]
    return "\n".join([*lines, *(bar.line() for bar in bars), ""]), bars


class Paced(NamedTuple):
    """Microseconds."""

    median_us: float
    p99_us: float
    longest_us: float
    cpu_us: float


def _paced(close: Callable[[], None]) -> Paced:
    """Ends calls at the pace of a run."""
    took: list[float] = []
    before_s, start = time.process_time(), time.perf_counter()
    for number in range(CALLS):
        time.sleep(max(0.0, start + number / PER_SECOND - time.perf_counter()))
        began = time.perf_counter()
        _end_call()
        took.append((time.perf_counter() - began) * 1e6)
    close()
    cpu_us = (time.process_time() - before_s) / CALLS * 1e6
    took.sort()
    return Paced(took[CALLS // 2], took[CALLS * 99 // 100], took[-1], cpu_us)


def main() -> int:
    """Prints the tables; returns 1 when a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help="rounds of each comparison (default 31)")
    text, bars = markdown(parser.parse_args().rounds)
    print(f"load average {os.getloadavg()[0]:.2f}\n\n{text}")
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
