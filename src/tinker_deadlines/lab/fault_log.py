"""What did the proxy do to whom? The record of every request, without secrets, bodies or prompts."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TextIO

KEPT_RECORDS = 100_000
"""Records kept in memory; the oldest is dropped first. Arbitrary: some 50 MB at most. The file keeps all."""


@dataclass(slots=True)
class Record:
    """One request. `status`, `bytes` and `duration_s` are None for as long as they are not known."""

    t_s: float
    ordinal: int
    method: str
    path: str
    kind: str | None
    session: str | None
    model: str | None
    rule: str | None
    action: str
    status: int | None = None
    bytes: int | None = None
    duration_s: float | None = None

    def as_dict(self) -> dict[str, object]:
        """The record as it is written to the file and sent over HTTP."""
        known = asdict(self)
        known["t_s"] = round(self.t_s, 6)
        known["duration_s"] = None if self.duration_s is None else round(self.duration_s, 6)
        return known


def fault_line(record: Record) -> str:
    """The sentence for a terminal: which fault was done to which request."""
    owner = f" of session {record.session}" if record.session else ""
    return f"{record.t_s:8.3f} s  {record.action} (rule {record.rule}): {record.method} {record.path}{owner}"


class FaultLog:
    """Keeps records in memory, and as JSON Lines in a file; read by any thread, written by the proxy's.

    A record is in memory from the moment its fault is decided, and in the file once it is final: when the exchange has
    ended, or, where it never will, when the silence began.
    """

    def __init__(self, path: str | PathLike[str] | None, on_fault: Callable[[Record], None] | None) -> None:
        self._path = path
        self._on_fault = on_fault
        self._file: TextIO | None = None
        self._records: deque[Record] = deque(maxlen=KEPT_RECORDS)
        self._lock = threading.Lock()

    def open(self) -> None:
        """Opens the file for appending. Raises OSError where that cannot be."""
        if self._path is not None:
            self._file = Path(self._path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed by close()

    def close(self) -> None:
        """Closes the file; the records in memory stay."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def records(self) -> list[Record]:
        """The records so far, in the order of arrival."""
        with self._lock:
            return list(self._records)

    def clear(self) -> None:
        """Forgets the records in memory."""
        with self._lock:
            self._records.clear()

    def begin(self, record: Record) -> None:
        """Takes in a request of which it is known what will be done to it."""
        with self._lock:
            self._records.append(record)
        self.say(record)

    def say(self, record: Record) -> None:
        """Tells whoever listens, if a fault was done."""
        if record.rule is not None and self._on_fault is not None:
            self._on_fault(record)

    def finish(self, record: Record) -> None:
        """Writes a record that will not change any more."""
        if self._file is not None:
            self._file.write(json.dumps(record.as_dict()) + "\n")
