"""Is what happened to a call kept as it was, and the call not held up?"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from recording import begin_call, count, end_call, rows, traffic_of, until

from tinker_deadlines.calls import Work, board
from tinker_deadlines.errors import BudgetExhaustedError, TinkerDeadlineError
from tinker_deadlines.limits import RECORD_BACKLOG, RECORD_FLUSH_S
from tinker_deadlines.policy import Limit
from tinker_deadlines.record import Recorder, schema
from tinker_deadlines.record import store as store_module
from tinker_deadlines.testing import FakeClock

Start = Callable[..., Recorder]


def test_a_call_is_kept_with_its_facts(start: Start, path: Path, clock: FakeClock) -> None:
    """Kind, work, instants, limit and outcome of a call are in its row."""
    recorder = start()
    clock.advance(2)
    call = begin_call(work=Work(prompt_tokens=7, max_tokens=64))
    clock.advance(5)
    board.end(call, "completed")
    recorder.close()
    (row,) = rows(
        path,
        "SELECT run, number, kind, method, work, round(submitted_s, 3), round(started_s, 3), round(ended_s, 3), "
        "round(elapsed_s, 3), limit_s, limit_owner, outcome, error, blame FROM calls",
    )
    work = json.dumps({"prompt_tokens": 7, "max_tokens": 64})
    assert row == (
        *(recorder.run, call.id, "sample", "SamplingClient.sample", work),
        *(2, 2, 7, 5, 300, "the default", "completed", None, None),
    )


def test_instants_for_people_are_utc(start: Start, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall-clock time of a call is the time in UTC, whatever the machine's zone."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = datetime.now(UTC)
    recorder = start()
    end_call()
    recorder.close()
    after = datetime.now(UTC)
    stamps = [*rows(path, "SELECT submitted_at FROM calls"), *rows(path, "SELECT started_at FROM runs")]
    for (stamp,) in stamps:
        assert stamp.endswith("Z")
        assert (before.timestamp() - 0.01) < datetime.fromisoformat(stamp).timestamp() < (after.timestamp() + 0.01)


def test_durations_do_not_follow_the_wall_clock(
    start: Start, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wall clock that is set back two hours during a call changes its instant for people and no duration."""
    recorder = start()
    call = begin_call()
    clock.advance(1)
    now = store_module.clock.wall()
    monkeypatch.setattr("tinker_deadlines.clock.wall", lambda: now - 7200)
    board.end(call, "completed")
    recorder.close()
    ((elapsed_s, lasted_s),) = rows(path, "SELECT elapsed_s, ended_s - submitted_s FROM calls")
    assert (round(elapsed_s, 3), round(lasted_s, 3)) == (1, 1)


def test_what_is_known_beyond_its_size_is_kept(start: Start, path: Path, clock: FakeClock) -> None:
    """Model, session, load, what the limit rests on, verdict, queue state and paused time are kept where known."""
    recorder = start()
    end_call(in_flight=1)
    limit = Limit(300.0, "the default", basis="learned", predicted_s=1.5)
    call = begin_call(
        model="Qwen/Qwen3-8B",
        session="s1",
        in_flight=3,
        limit=limit,
        verdict="slow",
        overdue=True,
    )
    call.traffic = traffic_of("retrieve_future 408")
    call.traffic.queue_state = "paused_capacity"
    call.traffic.pause("capacity")
    clock.advance(7)
    board.end(call, "completed")
    recorder.close()
    sql = "SELECT model, session, in_flight, basis, predicted_s, verdict, overdue FROM calls ORDER BY number"
    assert rows(path, sql) == [
        (None, None, 1, None, None, None, 0),
        ("Qwen/Qwen3-8B", "s1", 3, "learned", 1.5, "slow", 1),
    ]
    assert rows(path, "SELECT queue_state, polls, round(paused_s, 3) FROM exchanges") == [("paused_capacity", 0, 7)]


def test_exchanges_are_summed_up(start: Start, path: Path, clock: FakeClock) -> None:
    """Of a call's HTTP exchanges their number and the last are kept; a call without any has no row."""
    recorder = start()
    end_call()
    call = begin_call()
    call.traffic = traffic_of("asample 200", "retrieve_future 408", "retrieve_future ReadTimeout")
    clock.advance(3)
    board.end(call, "completed")
    recorder.close()
    sql = "SELECT number, exchanges, last, round(last_s, 3) FROM exchanges"
    assert rows(path, sql) == [(call.id, 3, "retrieve_future ReadTimeout", 0)]


def test_an_expiry_is_kept_with_its_evidence(start: Start, path: Path) -> None:
    """What an expired call's error says on its traffic and its work is kept, and whose fault it was."""
    recorder = start()
    said = ("It had 2 HTTP exchanges; the last, retrieve_future 408, ended 9.0 s ago.",)
    error = TinkerDeadlineError("optim_step", elapsed_s=600, deadline_s=600, evidence=said)
    call = end_call("expired", error, kind="optim_step")
    recorder.close()
    assert rows(path, "SELECT number, submission, evidence FROM expiries") == [
        (call.id, "indeterminate", json.dumps(list(said)))
    ]
    assert rows(path, "SELECT outcome, error, blame FROM calls") == [("expired", "TinkerDeadlineError", "call")]


@pytest.mark.parametrize(
    ("outcome", "error", "blame"),
    [
        ("completed", None, None),
        ("failed", ConnectionError("gone"), "service"),
        ("failed", ValueError("a bad argument"), "caller"),
        ("out_of_budget", BudgetExhaustedError("sample", owner="episode", budget_s=5), "budget"),
        ("out_of_budget", None, "budget"),
        ("expired", None, "call"),
        ("cancelled", None, "caller"),
    ],
    ids=str,
)
def test_blame_is_kept(outcome: str, error: BaseException | None, blame: str | None, start: Start, path: Path) -> None:
    """Every outcome but a good one has somebody to blame, as the errors have it."""
    recorder = start()
    end_call(outcome, error)  # type: ignore[arg-type]
    recorder.close()
    assert rows(path, "SELECT outcome, blame FROM calls") == [(outcome, blame)]


def test_an_error_is_not_kept_alive(start: Start, clock: FakeClock) -> None:
    """The record notes the class of an error and lets go of it, with the frames that it holds."""
    start()

    class Held(Exception):
        alive = 0

        def __init__(self) -> None:
            Held.alive += 1

        def __del__(self) -> None:
            Held.alive -= 1

    end_call("failed", Held())
    assert Held.alive == 0


def test_what_is_in_flight_at_the_end_is_kept_as_that(start: Start, path: Path) -> None:
    """A call that the run leaves behind has a row without an outcome and without an end."""
    recorder = start()
    call = begin_call()
    recorder.close()
    assert rows(path, "SELECT number, outcome, ended_s FROM calls") == [(call.id, None, None)]
    board.end(call, "completed")
    assert count(path) == 1


def test_probes_and_events_are_kept(start: Start, path: Path) -> None:
    """What others report is kept with its facts and its instant."""
    recorder = start()
    recorder.probe({"loop_ok": True, "fresh_s": 0.25})
    recorder.event("overdue", {"call": 7, "after_s": float("inf")})
    recorder.close()
    assert rows(path, "SELECT facts FROM probes") == [('{"loop_ok": true, "fresh_s": 0.25}',)]
    assert rows(path, "SELECT name, facts FROM events") == [("overdue", '{"call": 7, "after_s": null}')]


def test_a_run_has_its_row(start: Start, path: Path) -> None:
    """A run is kept with the script's own name, its process, and begin and end, calls or none."""
    recorder = start(command="/home/somebody/train.py data=/home/somebody/secret.jsonl")
    until(lambda: count(path, "runs"))
    assert rows(path, "SELECT id, command, pid, ended_at, dropped FROM runs") == [
        (recorder.run, "train.py", os.getpid(), None, 0)
    ]
    recorder.close()
    ((started_at, ended_at),) = rows(path, "SELECT started_at, ended_at FROM runs")
    assert started_at <= ended_at


def test_it_is_written_each_half_second(start: Start, path: Path, clock: FakeClock) -> None:
    """A call is on the disk half a second after its end, while the run goes on."""
    start()
    until(lambda: count(path, "runs"))
    end_call()
    assert count(path) == 0
    clock.advance(RECORD_FLUSH_S)
    until(lambda: count(path) == 1)


def test_closing_twice_and_after_nothing_is_fine(start: Start, path: Path) -> None:
    """The second close does nothing; a call that ends later is not kept."""
    recorder = start()
    recorder.close()
    recorder.close()
    end_call()
    assert (count(path, "runs"), count(path)) == (1, 0)
    assert board.observers == ()


def test_off_is_off(start: Start, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `off` nothing is observed, kept or created, and every method may be called all the same."""
    monkeypatch.setenv("TINKER_DEADLINES_RECORD", " Off ")
    recorder = start()
    recorder.probe({})
    recorder.event("x", {})
    assert (recorder.load_state(), recorder.merge_state({"k": {}}, lambda old, new: new)) == ({}, False)
    assert (board.observers, home.exists(), len(recorder._queue)) == ((), False, 0)


def test_memory_is_bounded_and_the_gap_is_said_once(
    start: Start, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of more notes than there is room for, the oldest go; their number is kept with the run and said once."""
    recorder = start()
    until(lambda: count(path, "runs"))
    for _ in range(RECORD_BACKLOG + 40):
        end_call()
    assert len(recorder._queue) == RECORD_BACKLOG
    recorder.close()
    assert count(path) == RECORD_BACKLOG
    ((first, last),) = rows(path, "SELECT min(number), max(number) FROM calls")
    assert last - first == RECORD_BACKLOG - 1, "the latest are there"
    assert rows(path, "SELECT dropped FROM runs") == [(40,)]
    assert caplog.text.count("the record of this run has gaps") == 1


def test_calls_of_many_threads_are_all_kept(start: Start, path: Path) -> None:
    """Eight threads that end calls at once lose none."""
    recorder = start()
    threads = [threading.Thread(target=lambda: [end_call() for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert (count(path), recorder.dropped) == (4000, 0)


def test_a_note_that_no_database_takes_does_not_hold_up_the_others(
    start: Start, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A call with an impossible number is left out, named once, and all around it are kept."""
    recorder = start()
    for number in (1, 2**70, 3, 2**70, 5):
        end_call(in_flight=number)
    recorder.close()
    assert rows(path, "SELECT in_flight FROM calls ORDER BY number") == [(1,), (3,), (5,)]
    assert caplog.text.count("a note on a call cannot be kept") == 1
    assert rows(path, "SELECT dropped FROM runs") == [(2,)]


def test_a_commit_whose_answer_was_lost_is_not_written_twice(start: Start, path: Path) -> None:
    """A batch that is written again leaves one row a call."""
    recorder = start()
    end_call()
    end_call()
    recorder.close()
    assert recorder.place is not None
    store = store_module.Store(recorder.place)
    run = dict(zip(("id", "started_at", "last_at", "command", "pid", "version", "python"), "abcd3ef", strict=True))
    row = dict.fromkeys(schema.calls.columns.keys())
    row |= {"run": "a", "number": 1, "kind": "sample", "submitted_at": "", "submitted_s": 0.0}
    for _ in range(2):
        store.write(run, {"calls": [row]})
    store.close()
    assert rows(path, "SELECT run, number FROM calls WHERE run = 'a'") == [("a", 1)]
