"""Does the learned policy keep its promise? Policies over six simulated worlds, 10,000 calls and several seeds each.

python -m benchmarks.replay [--seeds N] [--policies flat,learned,…]
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import NamedTuple

from tinker_deadlines.replay import WORLDS, Figures, pooled, run, table, world

POLICIES = ("flat", "fixed:120", "scaled", "p99x3", "learned", "learned:alpha=0.0001")


class Bar(NamedTuple):
    """What the policy `learned` may do at most in one world."""

    false_kills_per_10k: float
    limit_median_s: float | None = None


# In the last world, whose model is up to sixty times slower than thought, the ceiling alone kills hundreds: no bar.
BARS = {
    "steady": Bar(1, limit_median_s=80),
    "growing-context": Bar(1),
    "slow-spell": Bar(3),
    "stragglers": Bar(7),
    "bigger-model": Bar(1),
}


def missed(name: str, learned: Figures) -> list[str]:
    """The bars of a world that its figures do not meet, in words."""
    bar = BARS.get(name)
    if bar is None:
        return []
    said = []
    if learned.false_kills_per_10k > bar.false_kills_per_10k:
        said.append(f"{learned.false_kills_per_10k:.2f} false kills per 10,000, at most {bar.false_kills_per_10k:g}")
    if learned.lost:
        said.append(f"{learned.lost} calls lost after three tries, at most 0")
    if bar.limit_median_s is not None and (learned.limit_median_s or 0) >= bar.limit_median_s:
        said.append(f"a median limit of {learned.limit_median_s:.0f} s, less than {bar.limit_median_s:g} s")
    return [f"{name}: {what}: missed" for what in said]


def main() -> int:
    """Prints a table for each world; returns 1 when a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="how often each world is simulated (default 8)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="without options, separated by commas")
    options = parser.parse_args()
    policies = options.policies.split(",")
    # That a policy kills too much is what the tables show.
    logging.getLogger("tinker_deadlines").setLevel(logging.ERROR)
    complaints, started = [], time.monotonic()
    for name, here in WORLDS.items():
        by_seed = [run(world(name, seed), policies) for seed in range(options.seeds)]
        figures = [pooled(each) for each in zip(*by_seed, strict=True)]
        print(f"\n## {name}: {here.about}\n\n{table(figures)}", flush=True)
        complaints += [line for each in figures if each.policy == "learned" for line in missed(name, each)]
    print(f"\n{options.seeds} seeds of 10,000 calls in each world; the run took {time.monotonic() - started:.0f} s.")
    for line in complaints:
        print(line, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
