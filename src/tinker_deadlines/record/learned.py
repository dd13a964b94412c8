"""How does what a run learned outlive it? One row a key; runs that end together add to it one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from tinker_deadlines import clock
from tinker_deadlines.record.rows import utc
from tinker_deadlines.record.schema import learned
from tinker_deadlines.record.store import Store

__all__ = ["load", "merge_into"]

State = dict[str, Any]


def load(store: Store) -> dict[str, State]:
    """All that was learned so far, by key."""
    with store.reading() as connection:
        found = connection.execute(select(learned.c.key, learned.c.value).where(learned.c.value.is_not(None)))
        return {row.key: row.value for row in found}


def merge_into(store: Store, delta: Mapping[str, State], merge: Callable[[State, State], State]) -> None:
    """Adds what a run learned, in one transaction: `merge(kept, new)` for a key that is there already.

    Raises:
        ValueError: a state holds a number that JSON has no form for, or something else that it cannot say.
    """
    with store.writing() as connection:
        for key in sorted(delta):  # one order for all, so that two never wait for each other
            kept = _locked_value(connection, key)
            value = dict(delta[key]) if kept is None else merge(kept, dict(delta[key]))
            _check(key, value)
            row = learned.update().where(learned.c.key == key)
            connection.execute(row.values(value=value, updated_at=utc(clock.wall())))


def _locked_value(connection: Connection, key: str) -> State | None:
    """The value of a key, held against other writers until the transaction ends; its row is made where there is none.

    SQLite's transaction holds the whole file from its beginning, and ignores `FOR UPDATE`.
    """
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    fresh = {"key": key, "value": None, "updated_at": utc(clock.wall())}
    connection.execute(insert(learned).values(fresh).on_conflict_do_nothing())
    found: State | None = connection.execute(
        select(learned.c.value).where(learned.c.key == key).with_for_update()
    ).scalar_one()
    return found


def _check(key: str, value: State) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"what was learned for {key!r} cannot be kept as JSON: {error}") from None
