"""Is a PostgreSQL as good a place as a file? A real server, started for these tests where its programs are found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from recording import all_at_once, begin_call, end_call, until
from sqlalchemy import create_engine, text

from tinker_deadlines import cli
from tinker_deadlines.calls import Work, board
from tinker_deadlines.limits import RECORD_RETRY_S
from tinker_deadlines.record import Recorder
from tinker_deadlines.testing import FakeClock

Start = Callable[..., Recorder]

# The server refuses to run as root: there has to be somebody else then.
USER: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}


class Server(NamedTuple):
    """A server on a socket of its own, without a network port."""

    programs: Path
    place: Path

    @property
    def url(self) -> str:
        """Where the record goes."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.place}"

    def run(self, program: str, *arguments: str) -> None:
        """Runs one of its programs to the end."""
        done = subprocess.run(
            [self.programs / program, "-D", self.place / "data", *arguments],
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the server keeps what it is given open
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            timeout=40,
            check=False,
            **USER,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Starts it and waits until it answers."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self.place} -c fsync=off"
        self.run("pg_ctl", "start", "-w", "-t", "30", "-l", str(self.place / "log"), "-o", options)

    def stop(self) -> None:
        """Stops it at once, whoever is connected."""
        self.run("pg_ctl", "stop", "-m", "immediate", "-w", "-t", "30")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Asks it, beside the code that is tested."""
        engine = create_engine(self.url)
        try:
            with engine.begin() as connection:
                found = connection.execute(text(sql))
                return [tuple(row) for row in found] if found.returns_rows else []
        finally:
            engine.dispose()


def programs() -> Path | None:
    """Where the server's programs are: on the path, or where Debian puts them."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    """One server for all of these tests."""
    directory = programs()
    if directory is None:
        pytest.skip("no PostgreSQL server is installed here: initdb is neither on the path nor in /usr/lib/postgresql")
    place = Path(tempfile.mkdtemp(prefix="tinker-deadlines-pg-"))
    if USER:
        shutil.chown(place, "postgres", "postgres")
    server = Server(directory, place)
    try:
        server.run("initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def server(cluster: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, empty, and named in the environment."""
    cluster.ask("DROP SCHEMA public CASCADE")
    cluster.ask("CREATE SCHEMA public")
    monkeypatch.setenv("TINKER_DEADLINES_RECORD", cluster.url)
    return cluster


def test_calls_are_kept_in_postgresql(server: Server, start: Start) -> None:
    """A run and its calls, exchanges left out, have their rows on the server, with JSON that it understands."""
    recorder = start(command="train.py")
    call = begin_call(work=Work(prompt_tokens=7))
    board.end(call, "completed")
    end_call("failed", ValueError("a text with \0 in it"))
    recorder.event("nul\0 ü", {"facts": "\0 \ud800 ü"})
    recorder.close()
    assert server.ask("SELECT id, command, ended_at IS NOT NULL FROM runs") == [(recorder.run, "train.py", True)]
    assert server.ask("SELECT number, work->>'prompt_tokens', outcome FROM calls ORDER BY number") == [
        (call.id, "7", "completed"),
        (call.id + 1, None, "failed"),
    ]
    assert server.ask("SELECT name, facts->>'facts' FROM events") == [("nul ü", " ? ü")]


def test_a_server_that_goes_and_comes_back_gets_everything(
    server: Server, start: Start, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls that end while the server is down are written when it is up again; one warning says that it was down."""
    recorder = start()
    end_call()
    clock.advance(1)
    until(lambda: recorder._taken and not recorder._held)
    server.stop()
    try:
        for _ in range(3):
            end_call()
        clock.advance(1)
        until(lambda: "cannot be written now" in caplog.text)
    finally:
        server.start()
    end_call()
    clock.advance(RECORD_RETRY_S)
    until(lambda: server.ask("SELECT count(*) FROM calls") == [(5,)])
    recorder.close()
    assert caplog.text.count("cannot be written now") == 1
    assert server.url not in caplog.text
    assert server.ask("SELECT count(*), max(dropped) FROM runs") == [(1, 0)]


def test_a_server_that_is_not_there_holds_up_nothing(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a server the run begins, goes on and ends, with one warning on the way and one at the end."""
    recorder = start(f"postgresql+psycopg://u:topsecret@/d?host={tmp_path}")
    end_call()
    assert recorder.load_state() == {}
    recorder.close()
    assert "cannot be written now" in caplog.text
    assert "1 note on a call could not be written to postgresql://localhost/d" in caplog.text
    assert "topsecret" not in caplog.text


def test_what_eight_processes_learn_at_once_is_merged_by_the_server(server: Server, start: Start, home: Path) -> None:
    """Eight processes that add to one key five times each, on empty tables, leave forty additions."""
    code = """
    import psycopg, tinker_deadlines.record.learned
    ---
    recorder = record.start()
    def add(kept, new):
        return {"n": kept["n"] + new["n"]}
    for turn in range(5):
        assert recorder.merge_state({"shared": {"n": 1}, sys.argv[1]: {"n": 1}}, add)
    end_call()
    recorder.close()
    """
    names = [f"p{number}" for number in range(8)]
    assert set(all_at_once(code, home, names, server.url)) == {("", "")}
    assert start().load_state() == {"shared": {"n": 40}} | {name: {"n": 5} for name in names}
    assert server.ask("SELECT count(DISTINCT run), count(*) FROM calls") == [(8, 8)]
    assert not home.exists(), "nothing is kept in files"


def test_tables_of_version_1_are_carried_forward(server: Server, start: Start) -> None:
    """What version 1 had not is added on the server as it is in a file, and what it had stays."""
    first = start()
    end_call()
    first.close()
    for column in ("runs.dropped", "calls.in_flight", "calls.predicted_s", "calls.overdue", "exchanges.paused_s"):
        table, _, name = column.partition(".")
        server.ask(f"ALTER TABLE {table} DROP COLUMN {name}")
    server.ask("UPDATE schema_version SET version = 1")
    second = start()
    end_call(in_flight=3)
    second.close()
    assert server.ask("SELECT in_flight FROM calls ORDER BY number") == [(None,), (3,)]
    assert server.ask("SELECT version FROM schema_version") == [(2,)]


def test_a_newer_server_is_left_alone(server: Server, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Tables of a newer version are not written to, and a sentence says so."""
    start().close()
    server.ask("UPDATE schema_version SET version = 99")
    recorder = start()
    end_call()
    recorder.close()
    assert server.ask("SELECT count(*) FROM calls") == [(0,)]
    assert "has version 99, written by a newer tinker-deadlines" in caplog.text


def test_the_command_reads_and_prunes_it(server: Server, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """List, one run, export and prune work on the server as on a file."""
    recorder = start(command="train.py")
    end_call()
    recorder.close()

    def tell(*arguments: str) -> str:
        assert cli.main(["record", *arguments]) == 0
        return capsys.readouterr().out

    listed = tell()
    assert f"{recorder.run}  " in listed
    assert "1 completed" in listed
    assert listed.endswith("1 run in postgresql://localhost/postgres\n")
    assert "sample: 1 completed" in tell("--run", recorder.run[:5])
    assert json.loads(tell("--export", recorder.run))["kind"] == "sample"
    assert tell("--prune", "--keep-days", "0").startswith("1 run deleted")
    assert server.ask("SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM calls)") == [(0, 0)]
