"""What the tests of the record start from: a directory of its own, and recorders that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tinker_deadlines import record
from tinker_deadlines.record import Recorder
from tinker_deadlines.testing import FakeClock


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory, which is not there yet."""
    directory = tmp_path / "state"
    monkeypatch.setenv("TINKER_DEADLINES_HOME", str(directory))
    return directory


@pytest.fixture
def path(home: Path) -> Path:
    """Where the record will be."""
    return home / "record.sqlite"


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Recorder]]:
    """Starts a recorder, as `record.start` does."""
    started: list[Recorder] = []

    def start(url: str | None = None, command: str = "") -> Recorder:
        started.append(record.start(url, command=command))
        return started[-1]

    yield start
    for recorder in started:
        recorder.close()


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    """A clock that the test moves: the writer writes when it has moved on by half a second."""
    with FakeClock() as fake:
        yield fake
