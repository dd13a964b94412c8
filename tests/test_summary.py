"""What is said at the end of a run? The same facts as text, as JSON, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from running import RUN, STUCK_SAMPLE, WITHIN_S, environment, run, write
from tinker_deadlines.calls import Board, Call
from tinker_deadlines.errors import BudgetExhaustedError, TinkerDeadlineError
from tinker_deadlines.recovery.sessions import Counts
from tinker_deadlines.show.story import KEPT_CUTS, Story
from tinker_deadlines.show.summary import calls_in_flight, sessions_lines, summary_json, summary_text

SAMPLE_SOON = ("--limit", "sample=0.05")


def expire(board: Board, method: str = "SamplingClient.sample") -> None:
    """Has one call of the board run into its limit."""
    call = Call("sample", 3.0, "the default", method)
    board.begin(call)
    board.end(call, "expired", TinkerDeadlineError("sample", elapsed_s=3.0, deadline_s=3.0))


def told(board: Board) -> Story:
    """A story that looks at a board."""
    story = Story(board)
    story.begin(lambda: None)
    return story


def test_a_call_that_was_cut_is_named_with_its_facts() -> None:
    """Method, time, limit, who set it and what is known of the work stand in the text."""
    board = Board()
    story = told(board)
    expire(board)
    text = summary_text(story, width=100, colour=False)
    assert "1 Tinker call, 1 expired" in text
    assert "SamplingClient.sample given up after" in text
    assert "(limit 3 s, the default): it may be tried again" in text


def test_sessions_are_told_where_there_is_something_to_tell() -> None:
    """Not of the one that was finished; of several, how many of how many; of those that may be left, their ids."""
    assert sessions_lines(Counts(0, 0, (), 0), 200) == sessions_lines(Counts(1, 1, (), 0), 200) == []
    assert sessions_lines(Counts(3, 3, (), 0), 200) == ["  sessions: 3 created, 3 finished (at most 200 may be open)"]
    assert sessions_lines(Counts(4, 1, ("session_a", "session_b"), 1), 5) == [
        "  sessions: 4 created, 1 finished (at most 5 may be open)",
        "    may be left on the service: session_a, session_b, 1 whose creation was not answered",
    ]


def test_an_exhausted_budget_is_no_expiry() -> None:
    """What an episode's wall cut is counted and listed apart, under the wall's name and size."""
    board = Board()
    story = told(board)
    call = Call("optim_step", 600.0, "the default", "TrainingClient.optim_step")
    board.begin(call)
    error = BudgetExhaustedError(
        "optim_step", owner="episode 7", budget_s=30.0, elapsed_s=4.0, submission="indeterminate"
    )
    board.end(call, "out_of_budget", error)
    text = summary_text(story, width=120, colour=False)
    assert "0 expired, 1 out of budget" in text
    assert "given up:" not in text
    assert "out of budget:" in text
    assert "was cut after 4.0 s by the budget 'episode 7' of 30 s: indeterminate, it may have been executed" in text


def test_every_outcome_is_counted_and_columns_of_zeros_are_left_out() -> None:
    """A column stands there when it has something to say; completed and expired always do."""
    board = Board()
    story = told(board)
    board.begin(refused := Call("connect", 0.0, "wall"))
    board.end(refused, "refused")
    board.begin(call := Call("rest", 60.0, "the default"))
    board.end(call, "completed")
    text = summary_text(story, width=100, colour=False)
    assert [word for word in ("completed", "expired", "refused", "failed", "cancelled") if word in text] == [
        "completed",
        "expired",
        "refused",
    ]


def test_a_long_run_s_memory_is_bounded() -> None:
    """Only the last cuts are kept in full; all are counted, and the text says how many are not shown."""
    board = Board()
    story = told(board)
    for number in range(KEPT_CUTS + 50):
        expire(board, f"method {number}")
    assert len(story.cuts) == KEPT_CUTS
    assert story.cuts[-1].method == f"method {KEPT_CUTS + 49}"
    assert "and 130 earlier ones" in summary_text(story, width=100, colour=False)
    assert json.loads(summary_json(story))["cuts_in_all"] == KEPT_CUTS + 50


def test_calls_in_flight_are_listed_oldest_first() -> None:
    """A person who asks sees each call with its age, its clock, its limit and what was heard of it."""
    calls = [Call("sample", 3.0, "the default", f"method {number}") for number in range(30)]
    calls[1].started_at = None
    lines = calls_in_flight(calls, width=120).splitlines()
    assert "30 Tinker calls in flight, oldest first" in lines[0]
    assert "method 0" in lines[2]
    assert "waits its turn" in lines[3]
    assert lines[-1] == "and 10 younger ones"
    assert calls_in_flight([], width=80) == "tinker-deadlines: no Tinker call is in flight"


def test_the_summary_stands_on_standard_error(tmp_path: Path) -> None:
    """Standard output is the script's alone."""
    write(tmp_path, "s.py", STUCK_SAMPLE)
    done = run(*RUN, *SAMPLE_SOON, "s.py", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("expired\n", 0)
    assert "1 Tinker call, 1 expired" in done.stderr
    assert "sample given up after 0.1 s (limit 0.05 s, WMO_TINKER_DEADLINE_SAMPLE)" in done.stderr


def test_json_is_the_last_line(tmp_path: Path) -> None:
    """`--json` says the same as one document on the last line of standard error."""
    write(tmp_path, "s.py", STUCK_SAMPLE + "import sys; sys.stderr.write('of the script\\n'); sys.exit(3)\n")
    done = run(*RUN, *SAMPLE_SOON, "--json", "s.py", cwd=tmp_path)
    document = json.loads(done.stderr.splitlines()[-1])
    assert document["calls"]["sample"]["expired"] == 1
    (cut,) = document["cuts"]
    assert (cut["kind"], cut["limit_s"], cut["submission"]) == ("sample", 0.05, "sent")
    assert done.returncode == 3


@pytest.mark.parametrize("script", ["", STUCK_SAMPLE], ids=["nothing was cut", "a call was cut"])
def test_quiet_speaks_only_of_what_was_cut(script: str, tmp_path: Path) -> None:
    """`--quiet` says nothing unless there is something to say."""
    write(tmp_path, "s.py", script)
    done = run(*RUN, *SAMPLE_SOON, "--quiet", "s.py", cwd=tmp_path)
    assert ("1 expired" in done.stderr) == bool(script)
    assert bool(done.stderr) == bool(script)


def test_a_summary_is_said_once_where_the_script_forks(tmp_path: Path) -> None:
    """A child that runs to the end of the script does not speak for its parent."""
    write(tmp_path, "s.py", "import os\nif os.fork(): os.wait()\n")
    assert run(*RUN, "s.py", cwd=tmp_path).stderr.count("tinker-deadlines") == 1


@pytest.mark.parametrize("how", ["2>&-", "2>/dev/full", "2>&1 >/dev/null | true"])
def test_a_broken_standard_error_does_not_break_the_script(how: str, tmp_path: Path) -> None:
    """Closed, full, or a pipe that nobody reads: the script ends as it would."""
    write(tmp_path, "s.py", STUCK_SAMPLE + "open('done', 'w').close()\nimport sys; sys.exit(3)\n")
    ours = f"{sys.executable} -m tinker_deadlines run --limit sample=0.05 s.py"
    command = f"exec 3>status; {{ {ours}; echo $? >&3; }} {how}"

    run("/bin/bash", "-c", command, cwd=tmp_path)
    assert (tmp_path / "done").exists()
    assert (tmp_path / "status").read_text() == "3\n"


def test_a_standard_error_that_nobody_empties_does_not_hold_the_end(tmp_path: Path) -> None:
    """A full pipe blocks our last words; after the grace the process is ended all the same."""
    write(tmp_path, "s.py", "import os\nopen('done', 'w').close()\n")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    command = [*RUN, "--exit-grace", "0.5", "s.py"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=writing)
    try:
        assert process.wait(WITHIN_S) == 0
    finally:
        os.close(reading)
        os.close(writing)
        process.kill()
    assert (tmp_path / "done").exists()
