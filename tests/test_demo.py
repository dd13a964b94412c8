"""Does the demo show what it says? It ends by itself, in time, with what hung, what was done, and a loss that fell."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from running import environment
from tinker_deadlines.demo import director
from tinker_deadlines.demo.director import Failed, Shown
from tinker_deadlines.demo.faults import DISTILLATION, EPISODES, longest_request_s, rules
from tinker_deadlines.lab.faults import Faults

DEMO = (sys.executable, "-m", "tinker_deadlines", "demo")


@pytest.mark.timeout(150)
def test_the_demo_ends_by_itself_and_shows_what_it_says(tmp_path: Path) -> None:
    """Every fault comes, is cut, and is told with how long it would have hung; the wall is told apart."""
    began = time.monotonic()
    done = subprocess.run(
        DEMO, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=140, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 140  # 90 on an idle machine with two cores
    hung, out_of_time = done.stdout.split("What hung")[1].split("What ran out of its own time")
    assert all(fault.title in hung and fault.would_hang in hung for fault in DISTILLATION)
    assert "up to 23 min (11 tries of 120 s)" in hung
    assert "the wall of 'episode 2'" in out_of_time
    assert EPISODES[0].title in out_of_time
    losses = [float(loss) for loss in re.findall(r"loss \(KL\)\s+(\S+)", done.stdout)]
    first, last = sum(losses[:3]) / 3, sum(losses[-3:]) / 3
    assert last < first
    assert f"The loss fell from {first:.3f} to {last:.3f}" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_the_demo(tmp_path: Path) -> None:
    """One Ctrl-C, which the terminal sends to all of its processes, ends it with a word and no traceback."""
    process = subprocess.Popen(
        DEMO,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "fault" in line:
            break
    import os

    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "tinker-deadlines demo: interrupted\n")


def test_the_longest_request_is_computed_from_the_sdk_s_constants() -> None:
    """11 tries of 120 s and the pauses between them: 23 minutes."""
    assert longest_request_s() == 11 * 120 + 0.5 + 1 + 2 + 4 + 8 + 5 * 10
    assert round(longest_request_s() / 60) == 23


@pytest.mark.parametrize("faults", [DISTILLATION, EPISODES], ids=["distillation", "episodes"])
def test_the_faults_are_rules_of_the_lab(faults: tuple[object, ...]) -> None:
    """The lab reads the demo's fault file, one rule for each fault."""
    assert [rule.name for rule in Faults.from_toml(rules(faults)).rules] == [fault.name for fault in faults]  # type: ignore[arg-type,attr-defined]


def test_a_loss_that_does_not_fall_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo asserts what it shows: exit status 1 and a sentence."""

    def play(stage: director._Stage) -> list[Shown]:
        raise Failed("the loss did not fall: 1.000, 2.000")

    monkeypatch.setattr(director._Stage, "play", play)
    assert director.run() == 1
    assert capsys.readouterr().err == "tinker-deadlines demo: the loss did not fall: 1.000, 2.000\n"


def test_the_script_of_the_demo_does_not_know_us() -> None:
    """What is run is an ordinary Tinker script."""
    assert "tinker_deadlines" not in (Path(director.__file__).with_name("distill.py")).read_text(encoding="utf-8")
