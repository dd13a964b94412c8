"""Who runs the demo? It starts a lab with faults before it, and the scripts under `tinker-deadlines run`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import IO, Any, NamedTuple

from tinker_deadlines.demo.faults import DISTILLATION, EPISODES, FINETUNING, Fault, rules
from tinker_deadlines.limits import DEADLINE_ENV_PREFIX

__all__ = ["run"]

# The lab answers in milliseconds: limits of seconds are far above what is slow. `connect` includes the import of the
# tokenizer library, which takes two or three seconds on a small machine.
LIMITS_S = {"connect": 6, "sample": 3, "compute_logprobs": 3}

# The demo says that it ends within 90 s; half of it is used.
WITHIN_S = 85.0

# How long a script that was interrupted has to end by itself.
INTERRUPTED_ENDS_WITHIN_S = 5.0

BAR_CELLS = 30
FEW_STEPS = 3

# What recovery says of itself, on standard error.
_RECOVERY = re.compile(r"(training goes on: .*)")

_STEP = re.compile(r"step (\d+/\d+) kl=(\S+) reward=(\S+) seconds=(\S+)")

# How `tinker-deadlines run` says that it has cut a call; its lines on the state of the run do not look so.
_CUT = re.compile(r"tinker-deadlines \S+  .*(?:given up|was cut) after ")


class Failed(Exception):
    """The demo did not show what it is there to show; the text is one sentence."""


class Act(NamedTuple):
    """One script of the demo."""

    title: str
    script: str
    faults: tuple[Fault, ...]
    options: tuple[str, ...] = ()


ACTS = (
    Act(
        "On-policy distillation by a script that knows nothing of this library",
        "distill.py",
        DISTILLATION,
        tuple(part for kind, seconds in LIMITS_S.items() for part in ("--limit", f"{kind}={seconds}")),
    ),
    Act("Two episodes, each with a wall of 2 s around it", "episodes.py", EPISODES),
)

# A restore includes a new session; steps take milliseconds.
TRAINING_LIMITS_S = {"connect": 8, "forward_backward": 3, "optim_step": 3, "save_state": 3, "load_state": 8}
QUIET = Act("Finetuning, nothing wrong", "finetune.py", ())
RECOVERED = Act(
    "The same script, recovered while the server fails",
    "finetune.py",
    FINETUNING,
    ("--recover", *(part for kind, seconds in TRAINING_LIMITS_S.items() for part in ("--limit", f"{kind}={seconds}"))),
)


class Shown(NamedTuple):
    """One fault as it came: what was cut, and how."""

    fault: Fault
    cut: dict[str, Any]


def run() -> int:
    """Runs the demo and returns its exit status: 0, or 1 with a sentence when it did not go as it says."""
    began_at = time.monotonic()
    stage = _Stage(began_at + WITHIN_S)
    try:
        shown = stage.play()
    except Failed as failure:
        print(f"tinker-deadlines demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tinker-deadlines demo: interrupted", file=sys.stderr)
        return 130
    stage.say_end(shown, time.monotonic() - began_at)
    return 0


class _Stage:
    """What is shown, and the processes behind it."""

    def __init__(self, ends_at: float) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, soft_wrap=True)
        self._ends_at = ends_at
        self._losses: list[float] = []
        # Of the run that goes on now: each step's loss, with all its digits.
        self._exact: dict[str, str] = {}
        self._equal = ""

    def play(self) -> list[Shown]:
        """Plays the acts and returns what hung in them.

        Raises:
            Failed: a script failed, a fault did not come, or the loss did not fall.
        """
        # It says at its import that there is no PyTorch; only its tokenizers are used.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from tinker_deadlines.lab import Lab

        with tempfile.TemporaryDirectory() as self._home, Lab() as lab:
            self._say(f"[bold]A lab server[/] at {lab.url}: a Tinker server with a small real model, on this machine")
            shown = [one for act in ACTS for one in self._play(act, lab.url, lab.base_model)]
            self._compare(lab.url, lab.base_model)
        first, last = self._first_and_last()
        if not last < first:
            raise Failed(f"the loss did not fall: {', '.join(f'{loss:.3f}' for loss in self._losses) or 'no step ran'}")
        return shown

    def _compare(self, upstream: str, model: str) -> None:
        """Plays a run without faults and the same one recovered, and says whether their losses are equal.

        Raises:
            Failed: they are not.
        """
        self._play(QUIET, upstream, model, paired=False)
        expected, self._exact = self._exact, {}
        self._play(RECOVERED, upstream, model, paired=False)
        steps = sum(self._exact.get(step) == loss for step, loss in expected.items())
        if not expected or steps != len(expected) or len(self._exact) != len(expected):
            raise Failed(f"losses equal: no, of {len(expected)} steps {steps} are, to the last digit")
        self._equal = f"losses equal: yes ({steps} steps, to the last digit, with {len(FINETUNING)} faults healed)"

    def _first_and_last(self) -> tuple[float, float]:
        """The loss at the begin and at the end, each the mean of a few steps: a step samples few answers."""
        few = self._losses[:FEW_STEPS], self._losses[-FEW_STEPS:]
        return (mean(few[0]), mean(few[1])) if all(few) else (math.nan, math.nan)

    def _play(self, act: Act, upstream: str, model: str, *, paired: bool = True) -> list[Shown]:
        from tinker_deadlines.lab.faults import Faults
        from tinker_deadlines.lab.proxy import FaultProxy

        came: queue.Queue[str] = queue.Queue()
        command = " ".join(["tinker-deadlines run", *act.options, act.script])
        self._say(f"\n[bold]{act.title}[/]\n[dim]$ {command}[/]")
        proxy = FaultProxy(
            upstream, Faults.from_toml(rules(act.faults)), on_fault=lambda record: came.put(str(record.rule))
        )
        with proxy, self._started(act, proxy.url, model) as script:
            summary = self._follow(script, act, came)
        return self._pair(act, summary["cuts"]) if paired else []

    @contextlib.contextmanager
    def _started(self, act: Act, url: str, model: str) -> Iterator[subprocess.Popen[str]]:
        script = Path(__file__).with_name(act.script)
        run = ["-m", "tinker_deadlines", "run", "--json", "--exit-grace", "5", *act.options, str(script)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(DEADLINE_ENV_PREFIX)}
        process = subprocess.Popen(
            [sys.executable, *run, "--base-url", url, "--model", model],
            env={**kept, "TINKER_API_KEY": "tml-lab", "HF_HUB_OFFLINE": "1", **self._kept()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        try:
            yield process
        except KeyboardInterrupt:
            # The terminal's Ctrl-C reached the script as well.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(INTERRUPTED_ENDS_WITHIN_S)
            raise
        finally:
            process.kill()
            process.wait()

    def _kept(self) -> dict[str, str]:
        return {"TINKER_DEADLINES_RECORD": "off", "TINKER_DEADLINES_HOME": self._home}

    def _follow(self, script: subprocess.Popen[str], act: Act, came: queue.Queue[str]) -> dict[str, Any]:
        """Shows what the script says until it has ended, and returns its summary."""
        waiting = {fault.name: fault for fault in act.faults}
        errors: list[str] = []
        for stream, line in self._lines(script):
            for name in _drained(came):
                if name in waiting:
                    self._say(f"  [yellow]fault[/]   {waiting.pop(name).title}")
            if stream == "out":
                self._say_output(line)
            else:
                errors.append(line)
                if _CUT.match(line):
                    self._say(f"  [red]cut[/]     {_escaped(line.split('  ', 1)[-1])}")
                elif found := _RECOVERY.search(line):
                    self._say(f"  [green]healed[/]  {_escaped(found[1])}")
        if script.wait() != 0:
            raise Failed(f"{act.script} ended with status {script.returncode}: {' / '.join(errors[-4:])}")
        summary: dict[str, Any] = json.loads(errors[-1])
        return summary

    def _lines(self, script: subprocess.Popen[str]) -> Iterator[tuple[str, str]]:
        """The lines of both outputs as they come; ("", "") now and then while there are none."""
        lines: queue.Queue[tuple[str, str] | None] = queue.Queue()
        assert script.stdout is not None
        assert script.stderr is not None
        for name, stream in (("out", script.stdout), ("err", script.stderr)):
            threading.Thread(target=_read, args=(name, stream, lines), daemon=True).start()
        left = 2
        while left:
            try:
                line = lines.get(timeout=max(0.0, self._ends_at - time.monotonic()))
            except queue.Empty:
                raise Failed(f"it took longer than {WITHIN_S:.0f} s; this machine may be too busy") from None
            if line is None:
                left -= 1
            else:
                yield line

    def _say_output(self, line: str) -> None:
        if line.startswith("loss "):
            _, number, loss_text = line.split()
            self._exact[number] = loss_text
            return
        step = _STEP.match(line)
        if step is None:
            self._say(f"  [dim]script[/]  {_escaped(line)}")
            return
        loss = float(step[2])
        self._losses.append(loss)
        bar = "█" * max(1, round(BAR_CELLS * loss / max(self._losses)))
        self._say(f"  [dim]step[/] {step[1]:>5}  loss (KL) {loss:6.3f}  reward {step[3]:>7}  [cyan]{bar}[/]")

    def _pair(self, act: Act, cuts: list[dict[str, Any]]) -> list[Shown]:
        """Each fault with the call that it held up: both come in the same order."""
        if len(cuts) != len(act.faults):
            raise Failed(f"{act.script}: {len(act.faults)} faults, but {len(cuts)} calls were cut: {cuts}")
        return [Shown(fault, cut) for fault, cut in zip(act.faults, cuts, strict=True)]

    def say_end(self, shown: list[Shown], duration_s: float) -> None:
        """Says what hung, for how long it would have, and what was done."""
        self._say("\n[bold]What hung[/]")
        for fault, cut in shown:
            if cut["outcome"] == "expired":
                self._say_one(fault, f"{cut['method']} after {cut['elapsed_s']:.1f} s", "red")
        self._say("[bold]What ran out of its own time[/]  (the episode's fact, not an error of the service)")
        for fault, cut in shown:
            if cut["outcome"] == "out_of_budget":
                after = f"{cut['method']} after {cut['elapsed_s']:.1f} s"
                self._say_one(fault, f"{after}, by the wall of {cut['limit_owner']!r}", "yellow")
        first, last = self._first_and_last()
        fell = f"[bold green]The loss fell from {first:.3f} to {last:.3f}[/]"
        means = f"means of the first and of the last {FEW_STEPS} of {len(self._losses)} steps"
        self._say(f"\n{fell} ({means}); the whole demo took {duration_s:.0f} s.")
        self._say(f"[bold green]{self._equal}[/]")

    def _say_one(self, fault: Fault, cut: str, colour: str) -> None:
        self._say(f"  [{colour}]{fault.title}[/]")
        for name, text in (("would have hung", fault.would_hang), ("was cut", cut), ("then", fault.remedy)):
            self._say(f"    [dim]{name:<15}[/]  {text}")

    def _say(self, text: str) -> None:
        self._console.print(text)


def _read(name: str, stream: IO[str], lines: queue.Queue[tuple[str, str] | None]) -> None:
    for line in stream:
        lines.put((name, line.rstrip("\n")))
    lines.put(None)


def _drained(names: queue.Queue[str]) -> Iterator[str]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield names.get_nowait()


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
