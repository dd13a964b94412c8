"""What of several processes, a process that is killed, and one that forks? Real ones, on one file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from recording import all_at_once, child, count, end_call, ended, rows, until

from tinker_deadlines.record import Recorder

Start = Callable[..., Recorder]


def test_a_killed_process_loses_the_last_second_at_most(home: Path, path: Path) -> None:
    """Of a process that ends with SIGKILL, every call that ended a second before is kept."""
    process = child(
        """
        recorder = record.start()
        while True:
            print(end_call(), time.monotonic(), flush=True)
            time.sleep(0.001)
        """,
        home,
    )
    assert process.stdout is not None
    lines = []
    while len(lines) < 200 or not count(path):
        lines.append(process.stdout.readline())
    lines += [process.stdout.readline() for _ in range(1000)]  # and a while longer, into the middle of something
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    calls = [line.split() for line in [*lines, *rest.splitlines()] if len(line.split()) == 2]
    last_s = float(calls[-1][1])
    safe = {int(number) for number, at_s in calls if float(at_s) < last_s - 1}
    kept = {number for (number,) in rows(path, "SELECT number FROM calls")}
    assert len(safe) > 100
    assert safe - kept == set()
    assert rows(path, "SELECT ended_at FROM runs") == [(None,)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_two_processes_write_into_one_record(home: Path, path: Path) -> None:
    """Runs that begin and end at the same time have a row each, with all of their calls, none of the other's."""
    code = """
    recorder = record.start(command=sys.argv[1])
    ---
    end = time.monotonic() + 1.2
    made = 0
    while time.monotonic() < end:
        end_call()
        made += 1
        time.sleep(0.0005)
    recorder.close()
    print(made)
    """
    (made_a, err_a), (made_b, err_b) = all_at_once(code, home, ["a.py", "b.py"])
    sql = "SELECT runs.command, count(*) FROM calls JOIN runs ON runs.id = calls.run GROUP BY runs.command"
    assert dict(rows(path, sql)) == {"a.py": int(made_a), "b.py": int(made_b)}
    assert (err_a, err_b) == ("", "")


def test_what_eight_processes_learn_at_once_is_merged(home: Path, start: Start) -> None:
    """Eight processes that add to one key five times each leave forty additions, and each its own key."""
    code = """
    recorder = record.start()
    ---
    def add(kept, new):
        return {"n": kept["n"] + new["n"], "who": kept["who"] + new["who"]}
    for turn in range(5):
        own = {"n": 1, "who": [f"{sys.argv[1]}.{turn}"]}
        assert recorder.merge_state({"shared": own, sys.argv[1]: own}, add)
    recorder.close()
    """
    assert set(all_at_once(code, home, [f"p{number}" for number in range(8)])) == {("", "")}
    state = start().load_state()
    assert state["shared"]["n"] == 40
    assert len(set(state["shared"]["who"])) == 40
    assert {key: value["n"] for key, value in state.items() if key != "shared"} == {f"p{n}": 5 for n in range(8)}


def test_processes_that_open_a_new_record_at_once_all_get_it(home: Path, path: Path) -> None:
    """Four processes that find no file make one together, and all are in it; nobody sees an error."""
    code = """
    import tinker_deadlines.record.store
    ---
    recorder = record.start()
    end_call()
    recorder.close()
    """
    assert set(all_at_once(code, home, "abcd")) == {("", "")}
    assert (count(path, "runs"), count(path)) == (4, 4)


def test_processes_that_find_a_damaged_record_set_it_aside_once(home: Path, path: Path) -> None:
    """Four processes that find the file damaged leave one damaged file and one good one, with all of their calls."""
    home.mkdir()
    path.write_bytes(b"this was a database once " * 500)
    code = """
    import tinker_deadlines.record.store
    ---
    recorder = record.start()
    end_call()
    recorder.close()
    """
    said = "".join(err for _, err in all_at_once(code, home, "abcd"))
    assert said.count("was damaged") == 1
    assert len(list(home.glob("record.sqlite.damaged-*"))) == 1
    assert (count(path, "runs"), count(path)) == (4, 4)


def test_a_forked_child_does_not_write_into_its_parent_s_record(start: Start, path: Path) -> None:
    """The calls of a forked child are not its parent's; it ends at once, and the parent's record goes on."""
    recorder = start()
    end_call()
    until(lambda: count(path))
    process = os.fork()
    if process == 0:
        end_call()
        recorder.event("x", {})
        recorder.close()
        os._exit(len(recorder._queue))
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    end_call()
    recorder.close()
    assert (count(path), count(path, "events"), count(path, "runs")) == (2, 0, 1)


def test_a_script_that_forgets_to_close_is_kept(home: Path, path: Path) -> None:
    """The end of the interpreter closes the record."""
    ended(child("recorder = record.start(command='train.py')\nend_call()", home))
    assert rows(path, "SELECT command, ended_at IS NOT NULL FROM runs") == [("train.py", 1)]
    assert count(path) == 1


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel does not list the locks on files here")
def test_a_second_use_of_the_file_leaves_the_locks_of_the_first(start: Start, path: Path) -> None:
    """Reading what was learned does not end the writer's locks, without which another process takes the log away."""

    def locks() -> int:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        return sum(f" {os.getpid()} " in line and f":{path.stat().st_ino} " in line for line in lines)

    recorder = start()
    until(lambda: recorder._store is not None and count(path, "runs"))
    before = locks()
    recorder.load_state()
    assert before > 0
    assert locks() == before
