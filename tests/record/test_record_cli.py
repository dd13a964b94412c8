"""Does `tinker-deadlines record` tell of the runs, and say in one sentence what is wrong with how it is asked?"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from recording import begin_call, count, end_call, rows, traffic_of

from tinker_deadlines import cli
from tinker_deadlines.calls import Work, board
from tinker_deadlines.errors import TinkerDeadlineError
from tinker_deadlines.record import Recorder
from tinker_deadlines.testing import FakeClock

Start = Callable[..., Recorder]
Said = pytest.CaptureFixture[str]


def tell(said: Said, *arguments: str) -> str:
    """What the command says where all is well."""
    assert cli.main(["record", *arguments]) == 0
    out, err = said.readouterr()
    assert err == ""
    return out


def refuse(said: Said, *arguments: str) -> str:
    """The one sentence that it says where something is wrong."""
    assert cli.main(["record", *arguments]) == 2
    out, err = said.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.fixture
def said(capsys: Said) -> Said:
    """What the command says."""
    return capsys


@pytest.fixture
def run(start: Start, clock: FakeClock) -> str:
    """A recorded run of 12 seconds: three good calls, one that failed, one that expired, one cut, one in flight."""
    recorder = start(command="train.py lr=1")
    for took_s in (1, 2, 6):
        call = begin_call(work=Work(prompt_tokens=10 * took_s), model="Qwen/Qwen3-8B", session="s1", in_flight=2)
        clock.advance(took_s)
        board.end(call, "completed")
    waited = begin_call("optim_step")
    clock.advance(1)
    waited.started_at = waited.submitted_at + 1
    clock.advance(2)
    board.end(waited, "completed")
    end_call("failed", ValueError("x"))
    stuck = begin_call()
    stuck.traffic = traffic_of("retrieve_future 408")
    evidence = stuck.evidence(stuck.submitted_at)
    board.end(stuck, "expired", TinkerDeadlineError("sample", elapsed_s=9, deadline_s=9, evidence=evidence))
    end_call("cancelled")
    end_call("out_of_budget")
    recorder.event("overdue", {"call": 3})
    begin_call("connect")
    recorder.close()
    return recorder.run


def test_it_lists_the_runs(run: str, said: Said, path: Path) -> None:
    """Each run has a line: id, begin, how long it lasted, what was run, and its calls by outcome."""
    first, second, *rest = tell(said).splitlines()
    assert first.split() == ["run", "began", "(UTC)", "lasted", "command", "calls"]
    assert second.startswith(run)
    assert "  train.py  4 completed, 1 cancelled, 1 expired, 1 failed, 1 in flight, 1 out of budget" in second
    assert rest[-1].startswith(f"1 run in {path}, 0.1 MB")
    (listed,) = json.loads(tell(said, "--json"))
    assert (listed["id"], listed["outcomes"]["completed"], listed["outcomes"]["in_flight"]) == (run, 4, 1)


def test_a_run_that_did_not_end_is_shown_so(run: str, said: Said, path: Path) -> None:
    """A process that died, or is still running, leaves a run without an end."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET ended_at = NULL, dropped = 3")
    assert ", not ended  " in tell(said)
    assert "3 not recorded" in tell(said)
    told = tell(said, "--run", run)
    assert "not ended, last seen" in told
    assert "3 calls found no room in memory" in told


def test_it_tells_of_one_run(run: str, said: Said) -> None:
    """Calls by kind with their times, expiries with their evidence, events; the beginning of an id will do."""
    told = tell(said, "--run", run[:6])
    assert told.startswith(f"run {run}  train.py  began ")
    assert "  sample: 3 completed, 1 failed, 1 expired, 1 cancelled, 1 out of budget" in told
    assert "; took 2 s at the median, 6 s at most" in told
    assert "SamplingClient.sample given up after 0.0 s (expired)" in told
    assert "    It had 1 HTTP exchange; the last, retrieve_future 408, ended" in told
    assert "overdue" in told


def test_it_tells_of_one_run_as_json(run: str, said: Said) -> None:
    """The same as one JSON document."""
    told = json.loads(tell(said, "--run", run, "--json"))
    assert told["calls"]["sample"]["completed"] == 3
    assert told["calls"]["sample"]["longest_s"] == 6
    assert [expiry["outcome"] for expiry in told["expiries"]] == ["expired", "out_of_budget"]
    assert [(event["name"], event["facts"]) for event in told["events"]] == [("overdue", {"call": 3})]


def test_it_writes_a_run_as_replay_reads_it(run: str, said: Said) -> None:
    """One object a call, in order of submission; what others cut, and what the end of the run cut, is left out."""
    trace = [json.loads(line) for line in tell(said, "--export", run).splitlines()]
    t = trace[0]["t"]
    shown = [(round(call["t"] - t), call["kind"], call["work"], call["latency_s"]) for call in trace]
    assert shown == [
        (0, "sample", {"prompt_tokens": 10}, 1),
        (1, "sample", {"prompt_tokens": 20}, 2),
        (3, "sample", {"prompt_tokens": 60}, 6),
        (9, "optim_step", {}, 2),
        (12, "sample", {}, 0),
        (12, "sample", {}, None),
    ]
    wanted = ["t", "kind", "model", "work", "latency_s", "session", "in_flight"]
    assert list(trace[0]) == wanted
    assert (trace[0]["model"], trace[0]["session"], trace[0]["in_flight"]) == ("Qwen/Qwen3-8B", "s1", 2)
    assert list(trace[3]) == [*wanted, "waited_s"], "time before its turn is told apart"
    assert list(trace[4]) == [*wanted, "failed"]


def test_old_runs_are_deleted_and_what_was_learned_stays(run: str, said: Said, path: Path, start: Start) -> None:
    """Runs that wrote nothing for longer go, with all of their rows; the file gets smaller."""
    filled = start()
    filled.merge_state({"k": {"n": 1}}, lambda old, new: new)
    for _ in range(2000):
        end_call()
    filled.close()
    assert tell(said, "--prune").startswith("0 runs deleted")
    before = size(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET last_at = '2020-01-01T00:00:00.000Z' WHERE id != ?", [run])
    assert tell(said, "--prune", "--keep-days", "400").startswith("1 run deleted")
    assert rows(path, "SELECT id FROM runs") == [(run,)]
    assert rows(path, "SELECT DISTINCT run FROM calls") == [(run,)]
    assert count(path, "learned") == 1
    assert size(path) < before / 2


def size(path: Path) -> int:
    """What the record takes on the disk: what is not in its file yet stands in a log beside it."""
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def test_nothing_recorded_yet_is_no_error(home: Path, said: Said) -> None:
    """Without a record it says so, and makes none."""
    assert tell(said).startswith("nothing is recorded yet in ")
    assert tell(said, "--json") == "[]\n"
    assert not home.exists()
    assert "nothing is recorded yet" in refuse(said, "--run", "x")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--run", "zzz"], "no run is called 'zzz'"),
        (["--export", "%"], "no run is called '%'"),
        (["--run", ""], "several runs begin with ''"),
        (["--run", "a", "--prune"], "are different things to do"),
        (["--run", "a", "--export", "b"], "are different things to do"),
        (["--keep-days", "3"], "--keep-days says what --prune keeps"),
        (["--prune", "--keep-days", "soon"], "--keep-days is 'soon', which is not a finite number of days"),
        (["--prune", "--keep-days", "-1"], "--keep-days is '-1'"),
        (["--prune", "--keep-days", "inf"], "--keep-days is 'inf'"),
        (["--prnue"], "no such option"),
    ],
    ids=" ".join,
)
def test_bad_input_gets_one_sentence(arguments: list[str], sentence: str, run: str, start: Start, said: Said) -> None:
    """Exit status 2 and one line on standard error."""
    start().close()
    assert sentence in refuse(said, *arguments)


def test_a_record_that_is_none_is_said(path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no database, a switch that is off, a wrong URL: one sentence each, and nothing is renamed."""
    path.parent.mkdir()
    path.write_bytes(b"this was a database once " * 100)
    assert f"the record {path} cannot be used: file is not a database" in refuse(said)
    assert path.exists()
    monkeypatch.setenv("TINKER_DEADLINES_RECORD", "off")
    assert "TINKER_DEADLINES_RECORD is off" in refuse(said)
    monkeypatch.setenv("TINKER_DEADLINES_RECORD", "mysql://h")
    assert "must be off, sqlite:///PATH or postgresql" in refuse(said)


def test_whoever_has_read_enough_gets_no_complaint(run: str, home: Path) -> None:
    """A pipe that is closed after the first line, as by `head`, ends the export quietly."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m tinker_deadlines record --export {run} | head -1"],
        env={**os.environ, "TINKER_DEADLINES_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


def test_the_help_has_examples(said: Said) -> None:
    """`--help` shows how it is called."""
    assert "tinker-deadlines record --export" in " ".join(tell(said, "--help").split())
