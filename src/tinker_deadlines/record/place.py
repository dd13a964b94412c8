"""Where is the record kept? In a file of the state directory, in the database that a person names, or nowhere."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from tinker_deadlines.home import HOME_VARIABLE, state_dir

__all__ = ["RECORD_VARIABLE", "Place", "RecordError", "place_of"]

RECORD_VARIABLE = "TINKER_DEADLINES_RECORD"

_FILE = "record.sqlite"
_SQLITE = ("sqlite", "sqlite+pysqlite")
_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


class RecordError(Exception):
    """The record cannot be had as it is asked for: a package is missing, the URL is wrong, or the file is too new.

    Cause, consequence and remedy are in its one sentence. Nothing is ever bounded less because of it.
    """


class Place(NamedTuple):
    """A database."""

    path: Path | None
    """The file, for SQLite."""
    url: str
    """The URL, for PostgreSQL; it may hold a password."""
    shown: str
    """How it is named to people, without a password."""


def place_of(url: str | None = None) -> Place | None:
    """Says where the record is kept; `None` is nowhere.

    Args:
        url: A URL for SQLAlchemy or "off"; by default what `TINKER_DEADLINES_RECORD` says, read now, and without it
            the file `record.sqlite` in the state directory.

    Raises:
        RecordError: the URL is none that this library writes to, or a package for it is missing.
    """
    given = url if url is not None else os.environ.get(RECORD_VARIABLE, "")
    text = given.strip()
    if text.lower() == "off":
        return None
    _need("record", "sqlalchemy")
    if not text:
        if not os.environ.get(HOME_VARIABLE):
            _need("record", "platformdirs")
        path = state_dir() / _FILE
        return Place(path, "", str(path))
    scheme, _, rest = text.partition("://")
    if scheme in _SQLITE and rest.startswith("/") and len(rest) > 1:
        path = Path(rest[1:].partition("?")[0]).expanduser()
        return Place(path, "", str(path))
    if scheme in _POSTGRESQL and rest:
        return _postgresql(rest)
    raise RecordError(
        f"{'the environment variable ' + RECORD_VARIABLE if url is None else 'the URL of the record'} must be off, "
        "sqlite:///PATH or postgresql+psycopg://HOST/DATABASE, and is none of them; without it the record is kept in "
        "the state directory"
    )


def _postgresql(rest: str) -> Place:
    _need("postgres", "psycopg")
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):  # its words repeat the URL, and a password in it
        raise RecordError(
            "the URL of the record cannot be read; it must be like postgresql+psycopg://USER@HOST:5432/DATABASE"
        ) from None
    shown = f"postgresql://{url.host or 'localhost'}/{url.database or ''}"
    return Place(None, url.render_as_string(hide_password=False), shown)


def _need(extra: str, module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise RecordError(
            f'the record needs {module}, which is not installed: pip install "tinker-deadlines[{extra}]", '
            f"or set {RECORD_VARIABLE}=off to do without it"
        )
