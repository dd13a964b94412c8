"""Is a run gone on with that was killed at any moment? kill -9 at random instants, and `run --resume` until it is done.

usage: python -m benchmarks.killed [--trials 200] [--seed 1] [--steps 12]

Each trial is a run under `tinker-deadlines run --recover` against a lab, killed after a random time between its start
and its usual end, gone on with, and killed once more in one of three trials. At its end its losses have to be those of
a run that nobody killed, to the last digit, and the lab's own list has to show that the last process sent each step
that its checkpoint did not have, once and in order, and no other.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tinker_deadlines import last_confirmed
from tinker_deadlines.lab import Lab
from tinker_deadlines.recovery.runs import RunError

SCRIPT = Path(__file__).parent.parent / "tests" / "recovery" / "train.py"
LONGEST_S = 90.0


class Trial:
    """One run, however many processes it takes."""

    def __init__(self, lab: Lab, home: str, name: str, steps: int) -> None:
        self._lab = lab
        self._home = home
        self._name = name
        self._steps = steps

    def process(self, *options: str, kill_after_s: float | None = None) -> tuple[list[str], bool, float]:
        """Runs a process; returns the losses that it said, whether it came to its end, and its seconds."""
        began = time.monotonic()
        command = [sys.executable, "-m", "tinker_deadlines", "run", "--quiet", *options, str(SCRIPT), self._lab.url]
        with subprocess.Popen(
            [*command, self._lab.base_model, str(self._steps)],
            env={**os.environ, "TINKER_DEADLINES_HOME": self._home, "TINKER_DEADLINES_RECORD": "off",
                 "TINKER_TELEMETRY": "0", "PYTHONWARNINGS": "ignore", "TINKER_DEADLINES_RUN": self._name},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                said, errors = process.communicate(timeout=LONGEST_S if kill_after_s is None else kill_after_s)
            except subprocess.TimeoutExpired:
                process.kill()
                said, errors = process.communicate()
        if kill_after_s is None and process.returncode != 0:
            raise SystemExit(f"{self._name} failed: {errors[-2000:]}")
        return re.findall(r"^loss \d+ (\S+)$", said, re.MULTILINE), process.returncode == 0, time.monotonic() - began


def once_each(lab: Lab, since: int, missing: int) -> bool:
    """Whether the lab executed each step that was missing once, in order, and no other, for a process that began then.

    What it still executes of a process that was killed is that one's: each has sessions of its own.
    """
    executions = lab.executions()
    before = {each["session_id"] for each in executions[:since]}
    ran = [str(each["type"]) for each in executions[since:] if each["session_id"] not in before]
    trained = [each for each in ran if each in ("ForwardBackward", "OptimStep")]
    return trained == ["ForwardBackward", "OptimStep"] * missing


def confirmed(name: str) -> int:
    """The optimizer steps that the last checkpoint of a run has; 0 where there is none."""
    try:
        return next((client.step for client in last_confirmed(name)), 0)
    except RunError:
        return 0  # it was killed before it had a directory


def main() -> int:
    """Kills and goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    chance, different, doubled, killed = random.Random(options.seed), 0, 0, []
    with Lab() as lab, tempfile.TemporaryDirectory() as home:
        os.environ["TINKER_DEADLINES_HOME"] = home
        usual = [Trial(lab, home, "expected", options.steps).process() for _ in range(3)]
        expected, usual_s = usual[0][0], min(seconds for _, _, seconds in usual)
        for number in range(options.trials):
            trial = Trial(lab, home, f"trial-{number}", options.steps)
            kill_after_s = chance.uniform(0.2, usual_s)
            losses, ended, _ = trial.process("--recover", kill_after_s=kill_after_s)
            killed += [] if ended else [kill_after_s]
            if not ended and chance.random() < 1 / 3:
                trial.process(*how(home, number), kill_after_s=chance.uniform(0.2, usual_s))
            since, missing = len(lab.executions()), options.steps - confirmed(f"trial-{number}")
            losses, _, _ = trial.process(*how(home, number))
            different += losses != expected
            doubled += not once_each(lab, since, missing)
            print(f"{number + 1}: killed after {kill_after_s:.2f} s, losses equal: {losses == expected}", flush=True)
    print(
        f"{options.trials} trials, {len(killed)} killed before their end, at {statistics.median(killed):.2f} s at the "
        f"median of a usual {usual_s:.2f} s: {different} with other losses, {doubled} with a step doubled or missing"
    )
    return 1 if different or doubled else 0


def how(home: str, number: int) -> tuple[str, str]:
    """The option that goes on with a trial; one that was killed before it had a directory begins anew."""
    kept = (Path(home) / "runs" / f"trial-{number}").is_dir()
    return ("--resume", f"trial-{number}") if kept else ("--recover", "--no-live")


if __name__ == "__main__":
    sys.exit(main())
