"""How is a database opened, written and read? One connection, one transaction a batch, and a damaged file set aside."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, URL, Connection, Dialect, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tinker_deadlines import clock
from tinker_deadlines.limits import RECORD_BUSY_S, RECORD_LOOK_S
from tinker_deadlines.record import schema
from tinker_deadlines.record.place import Place

__all__ = ["Store", "is_damage", "is_lost", "reason_of"]

# What SQLite says of a file that is none of its own, or not any more. Everything else may pass by itself.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# The most values that a statement of any SQLite may come with.
_MOST_VARIABLES = 999


class _Insert:
    """Puts rows into a table, prepared once: per row, SQLAlchemy's own way takes longer than SQLite.

    A row that is there already is left alone: it was written by a commit whose answer was lost.
    """

    def __init__(self, table: Table, dialect: Dialect) -> None:
        insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        compiled = insert(table).on_conflict_do_nothing().compile(dialect=dialect)
        self._sql = str(compiled)
        self._names = compiled.positiontup if compiled.positional else None
        self._row = f"({', '.join('?' * len(table.columns))})"
        self._at_once = _MOST_VARIABLES // len(table.columns)
        self._json = [column.name for column in table.columns if isinstance(column.type, JSON)]

    def run(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Inserts rows, each with every column of the table; a text in a column of JSON is JSON already."""
        for name in self._json:
            rows = [
                row if row[name] is None or isinstance(row[name], str) else {**row, name: json.dumps(row[name])}
                for row in rows
            ]
        if self._names is None:
            connection.exec_driver_sql(self._sql, list(rows))  # its driver sends them together
            return
        # SQLite lets go of the interpreter for every statement, and has to wait for it afterwards where others are
        # busy: many rows in one cost a call a third of what they do one by one.
        values = itemgetter(*self._names)
        for first in range(0, len(rows), self._at_once):
            some = rows[first : first + self._at_once]
            sql = self._sql.replace(self._row, ", ".join([self._row] * len(some)))
            connection.exec_driver_sql(sql, tuple(chain.from_iterable(map(values, some))))


class Store:
    """A record: opened at its first use, and again after an error. For one thread; each process has its own.

    Every method may raise `RecordError`, where the record was written by a newer version of this library, and `OSError`
    or `SQLAlchemyError`, where the database cannot be used now.

    Args:
        place: Which database.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None
        self._inserts: dict[str, _Insert] = {}

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that no other writer of the file overlaps; committed at its end."""
        with self._opened().begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the record and holds nobody up."""
        with self._opened().connect().execution_options(only_reads=True) as connection:
            yield connection

    def write(self, run: Mapping[str, Any], rows: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Writes rows of a run, by table, and the run's own row, in one transaction."""
        own = schema.runs.c.id == run["id"]
        with self.writing() as connection:
            if connection.execute(schema.runs.update().where(own).values(**run)).rowcount == 0:
                connection.execute(schema.runs.insert().values(**run))
            for name, some in rows.items():
                self._inserts[name].run(connection, some)

    def close(self) -> None:
        """Gives the connection back; the next use opens another."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def give_room_back(self) -> None:
        """Makes the file as small as its contents, unless somebody else is using it just now."""
        if self.place.path is None:
            return  # a server does so by itself
        connection = self._opened().raw_connection()
        try:
            for statement in ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                with contextlib.suppress(sqlite3.Error):
                    connection.cursor().execute(statement)
        finally:
            connection.close()

    def leave_to_parent(self) -> None:
        """In a forked child: forgets the connection without a word on it: it is the parent's."""
        _left.append(self._engine)  # what is collected would be closed
        self._engine = None

    def set_aside(self) -> Path | None:
        """Renames the file that was opened last, which is damaged; `None` where another process has done so already."""
        path, file = self.place.path, self._file
        if path is None or file is None:
            return None
        with _locked(path):
            if _identity(path) != file:
                return None
            aside = _name_aside(path)
            for end in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
            return path.rename(aside)

    def _opened(self) -> Engine:
        path = self.place.path
        if self._engine is not None and path is not None and _identity(path) != self._file:
            self.close()  # moved or deleted: SQLite would go on writing to what nobody will ever find
        if self._engine is None:
            if path is None:
                self._engine = self._made_ready()
            else:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _locked(path):  # SQLite waits for nobody while it makes a file one with a write-ahead log
                    self._file = _ready_file(path)
                    self._engine = self._made_ready()
        return self._engine

    def _made_ready(self) -> Engine:
        engine = _engine_for(self.place)
        try:
            with engine.begin() as connection:
                schema.bring_up_to_date(connection, shown=self.place.shown)
        except BaseException:
            engine.dispose()
            raise
        self._inserts = {name: _Insert(table, engine.dialect) for name, table in schema.tables.items()}
        return engine


_left: list[Engine | None] = []


def is_damage(error: BaseException) -> bool:
    """Whether the file is none that SQLite can read."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF in _DAMAGE


def is_lost(error: BaseException) -> bool:
    """Whether the database cannot be written now but may be later: gone, full, read-only, busy."""
    if isinstance(error, OSError):
        return True
    name = type(error).__name__
    return isinstance(error, SQLAlchemyError) and name not in ("DataError", "IntegrityError", "StatementError")


def reason_of(error: BaseException) -> str:
    """The database's own words, in one line."""
    own = error.orig if isinstance(error, DBAPIError) else error
    words = own.strerror or str(own) if isinstance(own, OSError) else str(own)
    text = " ".join(words.split("\n")[0].split()).rstrip(".")
    return text or type(own).__name__


def _ready_file(path: Path) -> tuple[int, int]:
    # Who else uses the machine need not know what is trained here. A file that is there is left alone: SQLite's locks
    # on it, which hold for a whole process, would end with any other use of it in this process.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    identity = _identity(path)
    assert identity is not None
    return identity


def _name_aside(path: Path) -> Path:
    stamp = datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (f"{path.name}.damaged-{stamp}{end}" for end in ("", *(f"-{count}" for count in range(2, 100))))
    return next(aside for aside in map(path.with_name, names) if not aside.exists())


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One at a time, of all threads and processes: to make a new file ready, or to rename a damaged one."""
    until = clock.monotonic() + RECORD_BUSY_S
    pause = threading.Condition()
    with path.with_name(path.name + ".lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic() >= until:
                    raise
            with pause:
                clock.wait(pause, RECORD_LOOK_S)
        yield


def _engine_for(place: Place) -> Engine:
    if place.path is None:
        return create_engine(
            place.url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            # A server that is gone without a word is noticed by what is not acknowledged, in milliseconds.
            connect_args={
                "connect_timeout": round(RECORD_BUSY_S),
                "tcp_user_timeout": round(RECORD_BUSY_S * 1000),
                "options": f"-c lock_timeout={round(RECORD_BUSY_S * 1000)}",
            },
        )
    engine = create_engine(
        URL.create("sqlite", database=str(place.path)),
        pool_size=1,
        max_overflow=0,
        connect_args={"timeout": RECORD_BUSY_S, "check_same_thread": False},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    # Readers and a writer do not wait for each other; a commit survives the death of the process without waiting for
    # the disk.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once where another has written between: so not later.
    reads = connection.get_execution_options().get("only_reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
