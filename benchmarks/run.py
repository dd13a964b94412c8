"""Runs every benchmark, prints the tables and writes them to docs/benchmarks.md.

python -m benchmarks.run [--rounds N] [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks import installed, pending, record, single

PEERS = ("tinker", "func-timeout", "pebble", "stopit", "tenacity", "stamina", "anyio")


def _header(load: float, took_s: float) -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in PEERS)
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "What bounding a call costs, side by side in one run with what a user would pick instead. `make bench`",
            "(that is `python -m benchmarks.run`) made this page. Medians of shuffled rounds; compare rows of one",
            "table, not seconds with another machine. Each bar names the ratio or figure that must hold.",
            "",
            f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()};",
            f"{peers}. Load average at the start {load:.2f}; the run took {took_s:.0f} s.",
            "",
        ]
    )


def main() -> int:
    """Runs everything; returns 1 when a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help="rounds of each comparison (default 31)")
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks.md"), help="where the page goes")
    options = parser.parse_args()
    started, load = time.monotonic(), os.getloadavg()[0]
    parts, bars = [], []
    for table in single.tables(options.rounds):
        print(table.markdown(), flush=True)
        parts.append(table.markdown())
        bars += table.bars
    for measure in (
        pending.markdown,
        lambda: installed.markdown(max(5, options.rounds // 3)),
        lambda: record.markdown(options.rounds),
    ):
        text, more = measure()
        print(text, flush=True)
        parts.append(text)
        bars += more
    options.output.write_text("\n".join([_header(load, time.monotonic() - started), *parts]))
    missed = [bar for bar in bars if not bar.met]
    for bar in missed:
        print(bar.line(), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
