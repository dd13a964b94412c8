"""What if the database is missing, damaged, full, slow, or of another time? The run goes on, and nothing is silent."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from recording import child, count, end_call, ended, rows, until

from tinker_deadlines.limits import RECORD_CLOSE_S, RECORD_FLUSH_S, RECORD_RETRY_S
from tinker_deadlines.record import Recorder, RecordError, place_of, recorder
from tinker_deadlines.testing import FakeClock

Start = Callable[..., Recorder]
VERSION_1 = Path(__file__).with_name("version1.sqlite")
LOST = "cannot be written now"


def test_a_lost_database_is_said_once_and_written_when_it_is_back(
    start: Start,
    home: Path,
    path: Path,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the directory cannot be made, calls are kept in memory; when it can, all of them are written."""
    tries: list[str] = []
    lost = Recorder._lost
    monkeypatch.setattr(Recorder, "_lost", lambda self, reason: (lost(self, reason), tries.append(reason)))
    home.write_text("a file stands where the directory should be")
    recorder = start()
    for _ in range(3):
        before = len(tries)
        end_call()
        clock.advance(RECORD_RETRY_S)
        until(lambda before=before: len(tries) > before)
    home.unlink()
    end_call()
    clock.advance(RECORD_RETRY_S)
    until(lambda: count(path) == 4)
    assert caplog.text.count(LOST) == 1
    assert recorder.dropped == 0


def test_a_database_that_never_comes_back_is_given_up_at_the_end(
    start: Start, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the run says how many notes are lost."""
    home.write_text("a file stands where the directory should be")
    recorder = start()
    end_call()
    end_call()
    recorder.close()
    assert "2 notes on calls could not be written" in caplog.text


def test_a_directory_that_may_not_be_written_is_a_lost_database(home: Path) -> None:
    """A user without the right to write gets one warning and a run that ends well."""
    process = child(
        """
        home = sys.argv[1]
        os.mkdir(home, 0o500)
        import tinker_deadlines.record.store, tinker_deadlines.record.learned, concurrent.futures.thread
        if os.getuid() == 0:
            os.chown(home, 65534, 65534)
            os.setuid(65534)
        recorder = record.start()
        print(recorder.load_state(), recorder.merge_state({"k": {}}, lambda old, new: new))
        end_call()
        recorder.close()
        """,
        home,
        str(home),
    )
    out, err = ended(process)
    assert out == "{} False\n"
    assert err.count(LOST) == 1
    assert "1 note on a call could not be written" in err
    assert "Traceback" not in err


def test_a_full_disk_costs_the_rest_of_the_record_alone(home: Path, path: Path) -> None:
    """Where a file may not grow, what fitted is kept, the rest is kept in memory, and one warning says so."""
    process = child(
        """
        import resource
        recorder = record.start()
        end_call()
        while recorder._store is None or recorder._queue or recorder._held:
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        began = time.perf_counter()
        for _ in range(20_000):
            end_call()
        print(time.perf_counter() - began)
        while not recorder._held or "lost" not in recorder._said:
            time.sleep(0.01)
        print(len(recorder._queue) + sum(map(len, recorder._held)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        recorder.close()
        """,
        home,
    )
    out, err = ended(process)
    took_s, waiting = map(float, out.split())
    assert waiting > 10_000
    assert took_s / 20_000 < 0.0005, "a call that cannot be recorded costs no more than one that can"
    assert err.count(LOST) == 1
    assert count(path) == 20_001, "there was room again before the end"


def test_a_file_without_room_is_a_lost_database(
    start: Start, path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's own "database or disk is full" is said once, and nothing of it reaches a call."""
    recorder = start()
    until(lambda: count(path, "runs"))
    assert recorder._store is not None
    assert recorder._store._engine is not None
    with closing(recorder._store._engine.raw_connection()) as connection:
        pages = connection.cursor().execute("PRAGMA page_count").fetchone()[0]
        connection.cursor().execute(f"PRAGMA max_page_count = {pages + 2}")
    for _ in range(2000):
        end_call()
    clock.advance(RECORD_FLUSH_S)
    until(lambda: LOST in caplog.text)
    assert "full" in caplog.text
    recorder.close()  # another connection, without that limit
    assert count(path) == 2000


def test_a_busy_file_holds_up_no_call_and_no_end(start: Start, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While another program holds the file, calls end at once, and the end of the run waits a few seconds at most."""
    recorder = start()
    until(lambda: count(path, "runs"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        for _ in range(1000):
            end_call()
        assert time.monotonic() - began < RECORD_FLUSH_S
        recorder.close()
        assert time.monotonic() - began < RECORD_CLOSE_S + 2
        assert "1,000 notes on calls could not be written" in caplog.text
        other.execute("ROLLBACK")


def test_a_writer_that_hangs_holds_up_no_end(
    start: Start, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that answers nothing any more is left behind after the bound, with its number of lost notes."""
    from tinker_deadlines.record.store import Store

    recorder = start()
    until(lambda: recorder._store is not None and not recorder._held)
    hangs, goes_on = [], threading.Event()
    monkeypatch.setattr(Store, "write", lambda *_: (hangs.append(1), goes_on.wait(20)))
    end_call()
    clock.advance(RECORD_FLUSH_S)
    until(lambda: hangs)
    waits = threading.Thread(target=recorder.close)
    waits.start()
    clock.advance(RECORD_CLOSE_S + 1)
    waits.join(5)
    assert not waits.is_alive()
    assert "1 note on a call could not be written" in caplog.text
    goes_on.set()


def damage(path: Path) -> None:
    """Overwrites the file, beginning and all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"this was a database once " * 500)


def aside(path: Path) -> list[Path]:
    """The damaged files, without their companions."""
    return [found for found in path.parent.glob(f"{path.name}.damaged-*") if not found.name.endswith(("-wal", "-shm"))]


def test_a_damaged_file_is_set_aside_and_named(start: Start, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is no database is renamed, one warning names it, and the run is recorded in a new file."""
    damage(path)
    recorder = start()
    end_call()
    recorder.close()
    assert count(path) == 1
    (kept,) = aside(path)
    assert kept.read_bytes().startswith(b"this was a database once")
    assert caplog.text.count("was damaged") == 1
    assert str(kept) in caplog.text


def test_a_file_that_is_damaged_during_a_run_is_set_aside(
    start: Start, path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Pages that are overwritten under a running writer cost what was in them, not what comes."""
    recorder = start()
    until(lambda: count(path, "runs"))
    assert recorder._store is not None
    for _ in range(300):
        end_call()
    clock.advance(RECORD_FLUSH_S)
    until(lambda: count(path) == 300 and not recorder._held)
    recorder._store.close()  # what was written is in the file itself now, not in its log
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))
    for _ in range(200):
        end_call()
    recorder.close()
    assert len(aside(path)) == 1
    assert caplog.text.count("was damaged") == 1
    assert (count(path, "runs"), count(path)) == (1, 200)


def test_what_was_learned_in_a_damaged_file_is_nothing(
    start: Start, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run starts with what is shipped, and adds to a new file."""
    damage(path)
    recorder = start()
    assert recorder.load_state() == {}
    assert recorder.merge_state({"k": {"n": 1}}, lambda old, new: new)
    assert recorder.load_state() == {"k": {"n": 1}}
    recorder.close()
    assert len(aside(path)) == 1
    assert caplog.text.count("was damaged") == 1


def test_a_file_that_is_deleted_during_a_run_is_begun_anew(start: Start, path: Path, clock: FakeClock) -> None:
    """Whoever deletes the record has an empty one; the run goes on into it, with a row of its own."""
    start()
    until(lambda: count(path, "runs"))
    shutil.rmtree(path.parent)
    end_call()
    clock.advance(RECORD_FLUSH_S)
    until(lambda: count(path) == 1)
    assert count(path, "runs") == 1


def test_a_record_of_version_1_is_carried_forward(start: Start, path: Path) -> None:
    """A file that version 1 wrote keeps its calls and what it learned, and has the tables of today."""
    path.parent.mkdir(parents=True)
    shutil.copy(VERSION_1, path)
    assert rows(path, "SELECT version FROM schema_version") == [(1,)]
    recorder = start()
    end_call()
    assert recorder.load_state() == {"sample/Qwen/Qwen3-8B": {"n": 22, "tail": [1.5, 2.5]}}
    recorder.close()
    assert count(path) == 24
    assert (count(path, "runs"), count(path, "expiries"), count(path, "probes")) == (2, 1, 1)
    fresh = start(f"sqlite:///{path.with_name('fresh.sqlite')}")
    fresh.close()
    assert shape(path) == shape(path.with_name("fresh.sqlite"))


def shape(path: Path) -> dict[str, set[tuple[str, str, int, int]]]:
    """Tables, with name, type, nullability and place in the key of each column; indexes, with theirs."""
    tables = [name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {
        table: {
            (name, "REAL" if type_ in ("FLOAT", "DOUBLE PRECISION") else type_, notnull, key)
            for _, name, type_, notnull, _, key in rows(path, f"PRAGMA table_info({table})")
        }
        for table in tables
    }
    indexes = rows(path, "SELECT name, tbl_name FROM sqlite_master WHERE type = 'index'")
    return {**found, "indexes": {(name, table, 0, 0) for name, table in indexes}}


def test_a_newer_record_is_left_alone(start: Start, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An older program says in a sentence what to do, and writes nothing into what it does not know."""
    path.parent.mkdir(parents=True)
    shutil.copy(VERSION_1, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE schema_version SET version = 99")
    recorder = start()
    end_call()
    assert (recorder.load_state(), recorder.merge_state({"k": {}}, lambda old, new: new)) == ({}, False)
    recorder.close()
    assert count(path) == 23
    assert caplog.text.count("has version 99, written by a newer tinker-deadlines, and this one knows version") == 1
    assert "upgrade, or let TINKER_DEADLINES_RECORD name another place" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://u:secret@h/d", "must be off, sqlite:///PATH or postgresql"),
        ("sqlite://", "must be off, sqlite:///PATH or postgresql"),
        ("sqlite:///", "must be off, sqlite:///PATH or postgresql"),
        ("/some/path", "must be off, sqlite:///PATH or postgresql"),
        ("postgresql+psycopg://u:secret@h:port/d", "the URL of the record cannot be read"),
    ],
)
def test_a_wrong_url_is_said_at_once_and_without_its_password(url: str, sentence: str) -> None:
    """A URL that nothing can be written to is refused before the run begins."""
    with pytest.raises(RecordError, match=sentence) as caught:
        place_of(url)
    assert "secret" not in str(caught.value)


def test_the_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value that a person set is said with the name of the variable."""
    monkeypatch.setenv("TINKER_DEADLINES_RECORD", "mysql://h")
    with pytest.raises(RecordError, match="the environment variable TINKER_DEADLINES_RECORD must be off"):
        recorder.start()


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [("sqlalchemy", "", "record"), ("platformdirs", "", "record"), ("psycopg", "postgresql://h/d", "postgres")],
)
def test_a_missing_package_is_named_with_its_extra(
    module: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence says what to install, or how to do without."""
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delenv("TINKER_DEADLINES_HOME")
    with pytest.raises(RecordError) as caught:
        place_of(url)
    assert f'needs {module}, which is not installed: pip install "tinker-deadlines[{extra}]"' in str(caught.value)


def test_without_a_record_its_packages_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `off`, nothing has to be installed."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert place_of("off") is None


def test_only_the_owner_reads_a_record(start: Start, path: Path) -> None:
    """The file and its directory are private, as the runs of a person are."""
    start().close()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
