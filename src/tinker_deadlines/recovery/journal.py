"""How does a ledger outlive its process? Each event is one frame at the end of a file, written in one go.

A frame is a length, a checksum and the event as compressed JSON. A process that is killed while it writes leaves part
of a frame, which the next one cuts off: what was there before it is whole. An event is written before anything that
follows from it is told to anybody. The file is handed to the disk when a checkpoint is confirmed: a machine that loses
its power loses at most what came after, and that is trained again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

from tinker_deadlines.recovery.ledger import Event

__all__ = ["Journal"]

log = logging.getLogger("tinker_deadlines")

_MAGIC = b"tinker-deadlines ledger 1\n"
_HEAD = struct.Struct(">II")
# A length beyond this is no length: no result is that large.
_LONGEST = 1 << 30


class Journal:
    """A file of events. One process writes it at a time.

    Args:
        path: The file; it is made where there is none.

    Raises:
        OSError: it cannot be opened or read.
        ValueError: it is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.events, self._end = self._read()
        except BaseException:
            os.close(self._fd)
            raise

    def _read(self) -> tuple[list[tuple[int, Event]], int]:
        size = os.fstat(self._fd).st_size
        magic = os.pread(self._fd, len(_MAGIC), 0)
        if len(magic) < len(_MAGIC) and _MAGIC.startswith(magic):
            os.ftruncate(self._fd, 0)
            os.write(self._fd, _MAGIC)
            return [], len(_MAGIC)
        if magic != _MAGIC:
            raise ValueError(f"{self.path} is no ledger of this version of tinker-deadlines; it is left alone")
        events: list[tuple[int, Event]] = []
        at = len(_MAGIC)
        while (found := _frame_at(self._fd, at, size)) is not None:
            event, after = found
            # Results are read again when they are asked for: a long run's do not fit into memory.
            events.append((at, {**event, "result": True} if event.get("result") is not None else event))
            at = after
        if at < size:
            self._cut_off(at, size)
        return events, at

    def _cut_off(self, at: int, size: int) -> None:
        rest = os.pread(self._fd, size - at, at)
        length = _HEAD.unpack_from(rest)[0] if len(rest) >= _HEAD.size else _LONGEST
        if length <= size - at - _HEAD.size:
            # Not what a killed process leaves: whoever looks for the cause will want to see it.
            aside = self.path.with_suffix(".damaged")
            with contextlib.suppress(OSError):
                aside.write_bytes(rest)
            log.warning("%s is damaged after %d bytes: the rest is set aside as %s", self.path, at, aside.name)
        os.ftruncate(self._fd, at)

    def append(self, event: Event) -> int:
        """Writes an event down; returns where.

        Raises:
            OSError: it could not be written; the file is as it was.
        """
        body = zlib.compress(json.dumps(event, separators=(",", ":")).encode(), 1)
        frame = _HEAD.pack(len(body), zlib.crc32(body)) + body
        with self._lock:
            at = self._end
            try:
                view = memoryview(frame)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, at)
                raise
            self._end = at + len(frame)
        if event["what"] == "checkpoint":
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
        return at

    def event_at(self, at: int) -> dict[str, Any]:
        """The event that was written down there.

        Raises:
            ValueError: there is none.
        """
        found = _frame_at(self._fd, at, self._end)
        if found is None:
            raise ValueError(f"{self.path} has no event at {at}")
        return found[0]

    @property
    def size(self) -> int:
        """Bytes."""
        return self._end

    def close(self) -> None:
        """Closes the file. May be called twice."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _frame_at(fd: int, at: int, size: int) -> tuple[dict[str, Any], int] | None:
    """The event of the frame that begins there, and where the next one begins; `None` where there is no whole one."""
    head = os.pread(fd, _HEAD.size, at)
    if len(head) < _HEAD.size:
        return None
    length, checksum = _HEAD.unpack(head)
    after = at + _HEAD.size + length
    if length > _LONGEST or after > size:
        return None
    body = os.pread(fd, length, at + _HEAD.size)
    if len(body) < length or zlib.crc32(body) != checksum:
        return None
    try:
        event = json.loads(zlib.decompress(body))
    except (ValueError, zlib.error):
        return None
    return (event, after) if isinstance(event, dict) and "what" in event else None
