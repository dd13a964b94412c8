"""What is seen while a script runs? A table at the foot of a terminal, lines elsewhere, and never a garbled script."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from running import RUN, STUCK, STUCK_SAMPLE, WITHIN_S, environment, run, write
from tinker_deadlines.calls import Board, Call
from tinker_deadlines.errors import TinkerDeadlineError
from tinker_deadlines.show import live as live_module
from tinker_deadlines.show import stderr
from tinker_deadlines.show.live import Live
from tinker_deadlines.show.story import Story

# A sample that is in flight for a while, seen by the display, and then ends.
FLYING = (
    STUCK
    + """
import sys, threading
future = Future()
threading.Timer(1.5, future.set_result, ["answer"]).start()
print("before", end="", flush=True)
print(wait_with_deadline("sample", future))
print("isatty", sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout is sys.__stdout__)
"""
)


class Terminal:
    """A pseudo-terminal with a command in it."""

    def __init__(self, *command: str, cwd: Path, rows: int = 30, **environ: str) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        values = {**environment(), "TERM": "xterm-256color", **environ}
        for name in [name for name in values if not values[name]]:
            del values[name]
        self.process = subprocess.Popen(
            command, cwd=cwd, env=values, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.text = ""

    def read(self, until: str | None = None) -> str:
        """Reads until a text comes, or to the end; returns all that came."""
        ends_at = time.monotonic() + WITHIN_S
        while until is None or until not in self.text:
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # nobody has the terminal open any more
                break
            if not piece:
                break
            self.text += piece.decode(errors="replace")
            assert time.monotonic() < ends_at, self.text
        return self.text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self._master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals to be closed at the end."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def without_drawing(text: str) -> str:
    """What is left of the output without what was drawn between saving and restoring the cursor, and other codes."""
    text = re.sub(r"\x1b7.*?\x1b8", "", text, flags=re.DOTALL)
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|D)", "", text).replace("\r\n", "\n")


def test_a_table_stands_at_the_foot_of_a_terminal(tmp_path: Path, terminals: list[Terminal]) -> None:
    """Calls in flight are shown with their age and limit below the region that scrolls."""
    write(tmp_path, "s.py", FLYING)
    terminals.append(terminal := Terminal(*RUN, "--limit", "sample=60", "s.py", cwd=tmp_path))
    text = terminal.read()
    drawn = re.findall(r"\x1b7\x1b\[1;(\d+)r(.*?)\x1b8", text, flags=re.DOTALL)
    assert drawn
    assert {int(region) for region, _ in drawn} == {30 - 3}
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn[0][1])
    assert re.search(r"in flight\s+oldest\s+of limit", shown)
    assert re.search(r"sample\s+1\s+\d s\s+60 s", shown)


def test_what_the_script_prints_is_untouched_by_the_table(tmp_path: Path, terminals: list[Terminal]) -> None:
    """Without our drawing, the terminal got exactly what the script printed, through its own streams."""
    write(tmp_path, "s.py", FLYING)
    terminals.append(terminal := Terminal(*RUN, "--quiet", "s.py", cwd=tmp_path))
    terminals.append(with_table := Terminal(*RUN, "s.py", cwd=tmp_path))
    plain = terminal.read()
    assert "\x1b" not in plain
    assert without_drawing(with_table.read()).startswith(plain.replace("\r\n", "\n"))
    assert "isatty True True True" in plain


def test_the_terminal_is_given_back_before_the_summary(tmp_path: Path, terminals: list[Terminal]) -> None:
    """The last thing that is drawn resets the scrolling region, and the summary is written after it."""
    write(tmp_path, "s.py", FLYING)
    terminals.append(terminal := Terminal(*RUN, "s.py", cwd=tmp_path))
    text = terminal.read()
    assert re.search(r"\x1b\[J\x1b\[r\x1b8(?!.*\x1b\[1;\d+r).*1 Tinker call", text, flags=re.DOTALL)


def test_ctrl_c_gives_the_terminal_back(tmp_path: Path, terminals: list[Terminal]) -> None:
    """An interrupted run leaves its terminal as it was."""
    write(tmp_path, "s.py", STUCK_SAMPLE)
    terminals.append(terminal := Terminal(*RUN, "s.py", cwd=tmp_path))
    terminal.read(until="in flight")
    os.killpg(terminal.process.pid, signal.SIGINT)
    text = terminal.read()
    assert text.rfind("\x1b[r") > text.rfind("\x1b[1;")
    assert terminal.process.wait(WITHIN_S) == -signal.SIGINT


def test_a_killed_run_gives_the_terminal_back(tmp_path: Path, terminals: list[Terminal]) -> None:
    """Even after SIGKILL the scrolling region is reset: a helper outside of the process does it."""
    write(tmp_path, "s.py", STUCK_SAMPLE)
    terminals.append(terminal := Terminal(*RUN, "s.py", cwd=tmp_path))
    terminal.read(until="in flight")
    terminal.process.kill()
    text = terminal.read()
    assert text.rfind("\x1b[r") > text.rfind("\x1b[1;")


def test_no_table_is_drawn_before_the_first_call(tmp_path: Path, terminals: list[Terminal]) -> None:
    """A script that never calls Tinker has its terminal for itself."""
    write(tmp_path, "s.py", "import time; time.sleep(0.6)\n")
    terminals.append(terminal := Terminal(*RUN, "s.py", cwd=tmp_path))
    assert "\x1b7" not in terminal.read()


@pytest.mark.parametrize("option", ["--quiet", "--no-live"])
def test_the_table_can_be_switched_off(option: str, tmp_path: Path, terminals: list[Terminal]) -> None:
    """Nothing is drawn with `--quiet` or `--no-live`."""
    write(tmp_path, "s.py", FLYING)
    terminals.append(terminal := Terminal(*RUN, option, "s.py", cwd=tmp_path))
    assert "\x1b7" not in terminal.read()


@pytest.mark.parametrize("odd", [{"rows": 6}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_without_room_gets_lines(odd: dict[str, Any], tmp_path: Path, terminals: list[Terminal]) -> None:
    """In a terminal that is too small or cannot be drawn on, a cut is said in a line."""
    write(tmp_path, "s.py", STUCK_SAMPLE)
    terminals.append(terminal := Terminal(*RUN, "--limit", "sample=0.1", "s.py", cwd=tmp_path, **odd))
    text = terminal.read()
    assert "\x1b7" not in text
    assert "sample given up after 0.1 s" in text


def test_a_piped_standard_output_is_the_script_s_alone(tmp_path: Path, terminals: list[Terminal]) -> None:
    """With the table on the terminal, what goes into a pipe is what the script printed."""
    write(tmp_path, "s.py", FLYING)
    command = f"{sys.executable} -m tinker_deadlines run s.py > out"
    terminals.append(terminal := Terminal("/bin/sh", "-c", command, cwd=tmp_path))
    assert "in flight" in terminal.read()
    assert (tmp_path / "out").read_text() == "beforeanswer\nisatty False True True\n"


def test_a_cut_is_said_as_it_happens_where_there_is_no_terminal(tmp_path: Path) -> None:
    """A line for each call that was cut, before the script's next word."""
    write(tmp_path, "s.py", STUCK_SAMPLE + "import time; time.sleep(0.3); import sys; sys.stderr.write('next\\n')\n")
    lines = run(*RUN, "--limit", "sample=0.1", "s.py", cwd=tmp_path).stderr.splitlines()
    assert re.match(r"tinker-deadlines 0:00:0\d  sample given up after 0.1 s", lines[0])
    assert lines[1] == "next"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the display said, and no waiting between lines."""
    lines: list[str] = []
    monkeypatch.setattr(stderr, "say", lines.append)
    monkeypatch.setattr(live_module, "LINE_EVERY_S", 0.0)
    return lines


def test_a_line_comes_only_when_something_changed(said: list[str]) -> None:
    """An idle run says nothing twice; a call in flight is a change, for its age grows."""
    board = Board()
    live = Live(Story(board), on_terminal=False)
    live._say_lines()
    assert said == []
    board.begin(call := Call("sample", 3.0, "the default"))
    live._say_lines()
    live._say_lines()
    assert len(said) == 2
    assert "1 in flight; oldest sample 0 s of 3 s" in said[0]
    board.end(call, "completed")
    live._say_lines()
    live._say_lines()
    assert len(said) == 3


def test_lines_come_at_most_so_often(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """However much changes, the state is said once in an interval."""
    monkeypatch.setattr(live_module, "LINE_EVERY_S", 30.0)
    board = Board()
    live = Live(Story(board), on_terminal=False)
    board.begin(Call("sample", 3.0, "the default"))
    for _ in range(10):
        live._say_lines()
    assert said == []


def test_a_storm_of_cuts_is_counted_not_listed(said: list[str]) -> None:
    """When more calls are cut at once than are kept, the rest is a number."""
    board = Board()
    story = Story(board)
    live = Live(story, on_terminal=False)
    story.begin(live.wake)
    for _ in range(1000):
        board.begin(call := Call("sample", 3.0, "the default"))
        board.end(call, "expired", TinkerDeadlineError("sample", elapsed_s=3.0, deadline_s=3.0))
    live._say_cuts()
    live._say_cuts()
    assert said[0] == "tinker-deadlines: 900 more calls were cut at the same time"
    assert len(said) == 101
