"""The journal: whatever cuts a write short, what was written before it is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_deadlines.recovery.journal import Journal
from tinker_deadlines.recovery.ledger import Event, Ledger

EVENTS: list[Event] = [
    {"what": "submitted", "number": 1, "method": "forward_backward", "digest": "a" * 64},
    {"what": "confirmed", "number": 1, "result": "x" * 300},
    {"what": "checkpoint", "after": 1, "step": 0, "path": "tinker://run/weights/one"},
]


def written(path: Path) -> list[int]:
    """Writes the events down and returns the size of the file after each."""
    journal = Journal(path)
    sizes = [journal.size]
    for event in EVENTS:
        journal.append(event)
        sizes.append(journal.size)
    journal.close()
    return sizes


def without_results(events: list[Event]) -> list[Event]:
    return [{**event, "result": True} if "result" in event else event for event in events]


def test_a_file_cut_at_any_byte_has_every_event_that_was_whole(tmp_path: Path) -> None:
    """At each length of the file, the events that fit in are read, and the next one is written after them."""
    path = tmp_path / "ledger"
    sizes = written(path)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        expected = EVENTS[: max(0, sum(size <= length for size in sizes) - 1)]
        journal = Journal(path)
        assert [event for _, event in journal.events] == without_results(expected)
        journal.append(EVENTS[0])
        journal.close()
        again = Journal(path)
        assert [event for _, event in again.events] == without_results([*expected, EVENTS[0]])
        again.close()


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_byte_that_changed_loses_what_follows_and_says_so(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    """Damage is never read as an event; what stood before it is kept, and the damaged rest is set aside."""
    path = tmp_path_factory.mktemp("damage") / "client-1.ledger"
    sizes = written(path)
    raw = bytearray(path.read_bytes())
    place = sizes[0] + place % (len(raw) - sizes[0])
    raw[place] ^= flip
    path.write_bytes(raw)
    journal = Journal(path)
    kept = max(0, sum(size <= place for size in sizes) - 1)
    assert [event for _, event in journal.events] == without_results(EVENTS[:kept])
    journal.close()


def test_an_answer_is_found_again(tmp_path: Path) -> None:
    """A result is read from where its event was written, in another process too."""
    journal = Journal(tmp_path / "ledger")
    ledger = Ledger()
    for event in EVENTS:
        ledger.apply(event, journal.append(event))
    journal.close()
    again = Journal(tmp_path / "ledger")
    at = Ledger.of(again.events).entry(1).result_at
    assert at is not None
    assert at == ledger.entry(1).result_at
    assert again.event_at(at)["result"] == "x" * 300
    again.close()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way is taken back, and the next one succeeds."""
    journal = Journal(tmp_path / "ledger")
    journal.append(EVENTS[0])
    real, tries = os.write, iter([1])

    def full(fd: int, data: bytes) -> int:
        if next(tries, None) is not None:
            return real(fd, bytes(data)[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        journal.append(EVENTS[1])
    monkeypatch.undo()
    journal.append(EVENTS[2])
    journal.close()
    again = Journal(tmp_path / "ledger")
    assert [event["what"] for _, event in again.events] == ["submitted", "checkpoint"]
    again.close()


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """What is no ledger is neither read nor changed."""
    path = tmp_path / "ledger"
    path.write_text("notes of a person, longer than a first line")
    with pytest.raises(ValueError, match="is no ledger"):
        Journal(path)
    assert path.read_text().startswith("notes of a person")
