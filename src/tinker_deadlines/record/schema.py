"""Which tables has the record, and how does an older one become what this version reads?

`VERSION` counts the shapes that the tables had in releases and on the way to them. A record of an older version is
carried forward by the functions of `MIGRATIONS`, in order; a newer one is left alone, because an older program cannot
know what it would destroy.

Instants in seconds are of the monotonic clock, from the beginning of their run; instants of the wall clock, for people,
are texts in UTC that sort as they follow each other.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import JSON, BigInteger, Column, Connection, Float, Index, Integer, MetaData, Table, Text, inspect, text

from tinker_deadlines.record.place import RECORD_VARIABLE, RecordError

__all__ = ["MIGRATIONS", "OF_A_RUN", "VERSION", "bring_up_to_date", "learned", "metadata", "runs", "tables"]

VERSION = 2

metadata = MetaData()
_JSON = JSON(none_as_null=True)

schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("started_at", Text, nullable=False),
    Column("last_at", Text, nullable=False),  # when something of it was written last
    Column("ended_at", Text),  # nothing: it still runs, or its process died
    Column("command", Text, nullable=False),  # the script's name alone
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("python", Text, nullable=False),
    Column("dropped", Integer, nullable=False, server_default="0"),  # notes that found no room in memory
    Index("runs_by_last_at", "last_at"),
)

calls = Table(
    "calls",
    metadata,
    Column("run", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("method", Text),
    Column("model", Text),
    Column("session", Text),
    Column("work", _JSON),
    Column("in_flight", Integer),  # calls of the process at its submission
    Column("submitted_at", Text, nullable=False),
    Column("submitted_s", Float, nullable=False),
    Column("started_s", Float),  # when the limit's clock started
    Column("ended_s", Float),
    Column("elapsed_s", Float),  # on the limit's clock
    Column("limit_s", Float),
    Column("limit_owner", Text),
    Column("basis", Text),
    Column("predicted_s", Float),
    Column("outcome", Text),  # nothing: in flight when the run ended
    Column("error", Text),  # the name of the error's class
    Column("blame", Text),
    Column("verdict", Text),
    Column("overdue", Integer),  # 1: it was let go on past its limit
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("run", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # of the call
    Column("sent_s", Float),
    Column("exchanges", Integer, nullable=False),
    Column("polls", Integer),
    Column("last", Text),  # what ended last, such as "retrieve_future 200"
    Column("last_s", Float),
    Column("queue_state", Text),
    Column("paused_s", Float),  # for which the service had paused it: not on the limit's clock
)

expiries = Table(
    "expiries",
    metadata,
    Column("run", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # of the call
    Column("submission", Text),
    Column("evidence", _JSON),
)

probes = Table(
    "probes",
    metadata,
    Column("run", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("facts", _JSON),
)

events = Table(
    "events",
    metadata,
    Column("run", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("name", Text, nullable=False),
    Column("facts", _JSON),
)

learned = Table(
    "learned",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", _JSON),  # nothing: a row that its first writer has just made
    Column("updated_at", Text, nullable=False),
)

tables: dict[str, Table] = {table.name: table for table in (calls, exchanges, expiries, probes, events)}
OF_A_RUN = tuple(tables.values())


def _from_1_to_2(connection: Connection) -> None:
    """Replay asks what the load was, what was predicted, what was paused, and whether the record has gaps."""
    connection.execute(text("ALTER TABLE runs ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0"))
    connection.execute(text("ALTER TABLE calls ADD COLUMN in_flight INTEGER"))
    connection.execute(text("ALTER TABLE calls ADD COLUMN predicted_s DOUBLE PRECISION"))
    connection.execute(text("ALTER TABLE calls ADD COLUMN overdue INTEGER"))
    connection.execute(text("ALTER TABLE exchanges ADD COLUMN paused_s DOUBLE PRECISION"))


# The function at place n makes a record of version n + 1 one of version n + 2. They speak SQL, not of the tables above,
# which are always those of today.
MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_from_1_to_2,)


def bring_up_to_date(connection: Connection, *, shown: str) -> None:
    """Makes the tables, or carries older ones forward, inside of the connection's transaction.

    Raises:
        RecordError: the record was written by a newer version of this library.
    """
    if connection.dialect.name == "postgresql":
        # SQLite's transaction holds the whole file; here two processes would make the same tables at once.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tinker_deadlines record'))"))
    version = _version_of(connection)
    if version is None:
        metadata.create_all(connection)
        connection.execute(schema_version.insert().values(version=VERSION))
        return
    if version > VERSION:
        raise RecordError(
            f"the record {shown} has version {version}, written by a newer tinker-deadlines, and this one knows "
            f"version {VERSION} at most: nothing is recorded; upgrade, or let {RECORD_VARIABLE} name another place"
        )
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(connection)
    if version < VERSION:
        connection.execute(schema_version.update().values(version=VERSION))


def _version_of(connection: Connection) -> int | None:
    if not inspect(connection).has_table(schema_version.name):
        return None
    version: int | None = connection.execute(schema_version.select()).scalar()
    return version
