"""Which run is this, and what was kept of it? A directory for each run, a ledger for each of its training clients."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from tinker_deadlines import clock
from tinker_deadlines.home import state_dir
from tinker_deadlines.limits import RECORD_KEEP_DAYS
from tinker_deadlines.recovery.journal import Journal
from tinker_deadlines.recovery.ledger import Ledger

__all__ = [
    "RECOVER_VARIABLE",
    "RUN_VARIABLE",
    "Confirmed",
    "Run",
    "RunError",
    "last_confirmed",
    "must_exist",
    "new_name",
    "recovery_is_wanted",
    "runs",
]

RUN_VARIABLE = "TINKER_DEADLINES_RUN"
RECOVER_VARIABLE = "TINKER_DEADLINES_RECOVER"

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,99}")
_LEDGER = "client-{}.ledger"


class RunError(Exception):
    """What was kept of a run cannot be had: its name is none, it does not exist, or another process uses it.

    Cause, consequence and remedy are in its one sentence.
    """


class Confirmed(NamedTuple):
    """Where a training client of a run stands for certain."""

    client: int
    """Which of the run's training clients, counted from 1 in the order in which they were made."""
    step: int
    """Optimizer steps that the checkpoint contains."""
    path: str
    """The checkpoint, as the service names it."""


class Run:
    """What is kept of a run. One process uses it at a time.

    Args:
        name: The run's name; letters, digits, dots, dashes and underscores.

    Raises:
        RunError: see there.
    """

    def __init__(self, name: str) -> None:
        self.name = _checked(name)
        self.directory = _directory() / name
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self.directory / "in-use", name)
        except OSError as error:
            raise RunError(
                f"the run {name!r} cannot be kept in {self.directory.parent}: {error.strerror or error}; "
                "without it, training cannot be gone on with after this process"
            ) from None
        _forget_old(self.directory)
        self._made = 0

    def next_ledger(self) -> Journal:
        """The ledger of the next training client, in the order in which they are made.

        Raises:
            RunError: it cannot be read.
        """
        self._made += 1
        path = self.directory / _LEDGER.format(self._made)
        try:
            return Journal(path)
        except (OSError, ValueError) as error:
            raise RunError(f"the ledger of the run {self.name!r} cannot be read: {error}") from None

    def close(self) -> None:
        """Lets another process use it. May be called twice."""
        fd, self._lock = self._lock, -1
        if fd >= 0:
            os.close(fd)


def _forget_old(mine: Path) -> None:
    """Removes runs that nobody has gone on with for as long as runs are kept."""
    oldest_s = clock.wall() - timedelta(days=RECORD_KEEP_DAYS).total_seconds()
    for each in mine.parent.iterdir():
        with contextlib.suppress(OSError, RunError):
            if each != mine and max(path.stat().st_mtime for path in [each, *each.iterdir()]) < oldest_s:
                os.close(_locked(each / "in-use", each.name))  # not one that is in use
                shutil.rmtree(each)


def recovery_is_wanted() -> bool:
    """Whether every training client of this process is to be recoverable: `tinker-deadlines run --recover` says so."""
    return os.environ.get(RECOVER_VARIABLE) == "1"


def _locked(path: Path, name: str) -> int:
    import fcntl

    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        who = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise RunError(
            f"the run {name!r} is in use by process {who}: two processes that go on with one run would each train "
            "what the other trains; end that one first, or begin a run of your own"
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, str(os.getpid()).encode())
    return fd


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise RunError(
            f"{name!r} is no name of a run: a name has letters, digits, dots, dashes and underscores, at most 100"
        )
    return name


def _directory() -> Path:
    try:
        return state_dir() / "runs"
    except ModuleNotFoundError as error:
        raise RunError(f"runs cannot be kept: {error}") from None


def _unknown(name: str) -> str:
    known = runs()
    shown = f"known are {', '.join(known[-5:])}" if known else "none has been kept yet"
    return f"there is no run {name!r} to go on with; {shown}"


def must_exist(name: str) -> None:
    """Makes sure that there is a run of this name to go on with.

    Raises:
        RunError: there is none.
    """
    if not (_directory() / _checked(name)).is_dir():
        raise RunError(_unknown(name))


def new_name() -> str:
    """A name for a run that begins now: the time, and a few letters that keep two apart."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def runs() -> list[str]:
    """The names of the runs that are kept, the last one last."""
    with contextlib.suppress(OSError):
        found = [each for each in _directory().iterdir() if each.is_dir() and _NAME.fullmatch(each.name)]
        return [each.name for each in sorted(found, key=lambda each: (each.stat().st_mtime, each.name))]
    return []


def ledgers_of(directory: Path) -> list[Path]:
    """The ledgers of a run, in the order in which their training clients were made."""
    found: list[Path] = []
    while (path := directory / _LEDGER.format(len(found) + 1)).exists():
        found.append(path)
    return found


def last_confirmed(run: str) -> list[Confirmed]:
    """Where the training clients of a run stand for certain: for a script that keeps its own position.

    Args:
        run: The run's name, as `tinker-deadlines run --recover` says it at its start and at its end.

    Returns:
        The last confirmed checkpoint of each training client that has one, in the order in which the clients were
        made. It contains the first `step` optimizer steps of that client, and nothing of a later one.

    Raises:
        RunError: there is no such run, or its ledgers cannot be read.
    """
    directory = _directory() / _checked(run)
    if not directory.is_dir():
        raise RunError(_unknown(run))
    confirmed = []
    for number, path in enumerate(ledgers_of(directory), 1):
        try:
            journal = Journal(path)
        except (OSError, ValueError) as error:
            raise RunError(f"the ledger of the run {run!r} cannot be read: {error}") from None
        try:
            checkpoint = Ledger.of(journal.events).last_confirmed
        finally:
            journal.close()
        if checkpoint is not None and checkpoint.path:
            confirmed.append(Confirmed(number, checkpoint.step, checkpoint.path))
    return confirmed
