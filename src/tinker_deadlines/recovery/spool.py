"""Where do batches wait until a checkpoint contains them? In memory up to a bound, on disk beyond it."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinker_deadlines.limits import REPLAY_MEMORY_BYTES

__all__ = ["Spool"]


class Spool:
    """What each call was made with, by its number. Used by one thread at a time.

    Args:
        directory: Where batches go that do not fit; a temporary file in it is made when the first one does not, and
            is gone with this process, however that ends.
        most_bytes: What may be in memory.
        size_of: The bytes that a batch takes, roughly.
    """

    def __init__(self, directory: Path, size_of: Callable[[Any], int], most_bytes: int = REPLAY_MEMORY_BYTES) -> None:
        self._directory = directory
        self._size_of = size_of
        self._most_bytes = most_bytes
        self._in_memory: dict[int, tuple[Any, int]] = {}
        self._on_disk: dict[int, tuple[int, int]] = {}
        self._bytes = 0
        self._file: Any = None

    def keep(self, number: int, batch: Any) -> None:
        """Keeps a batch; one that cannot be pickled stays in memory whatever its size."""
        size = self._size_of(batch)
        if self._bytes + size > self._most_bytes and self._write(number, batch):
            return
        self._in_memory[number] = (batch, size)
        self._bytes += size

    def _write(self, number: int, batch: Any) -> bool:
        try:
            raw = zlib.compress(pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL), 1)
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  closed when it is dropped
            at = self._file.seek(0, 2)
            self._file.write(raw)
        except Exception:
            return False  # a full disk, or a function of a person's: memory is what is left
        self._on_disk[number] = (at, len(raw))
        return True

    def __getitem__(self, number: int) -> Any:
        """The batch of a call.

        Raises:
            KeyError: it is not kept.
        """
        found = self._in_memory.get(number)
        if found is not None:
            return found[0]
        at, length = self._on_disk[number]
        self._file.seek(at)
        return pickle.loads(zlib.decompress(self._file.read(length)))  # noqa: S301  a file that has no name

    def drop_until(self, number: int) -> None:
        """Lets go of everything up to a call."""
        for each in [each for each in self._in_memory if each <= number]:
            self._bytes -= self._in_memory.pop(each)[1]
        for each in [each for each in self._on_disk if each <= number]:
            del self._on_disk[each]
        if not self._on_disk:
            self.close()

    def drop(self, number: int) -> None:
        """Lets go of one batch."""
        found = self._in_memory.pop(number, None)
        if found is not None:
            self._bytes -= found[1]
        self._on_disk.pop(number, None)

    def close(self) -> None:
        """Gives the room on disk back; what is kept there is gone. May be called twice."""
        file, self._file = self._file, None
        self._on_disk.clear()
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def __contains__(self, number: int) -> bool:
        return number in self._in_memory or number in self._on_disk

    def __len__(self) -> int:
        return len(self._in_memory) + len(self._on_disk)

    @property
    def in_memory_bytes(self) -> int:
        """Bytes in memory, roughly."""
        return self._bytes
