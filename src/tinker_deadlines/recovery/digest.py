"""Are two batches the same? Equal values have equal digests, whatever objects they are kept in."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import struct
from array import array
from collections.abc import Mapping
from typing import Any

__all__ = ["digest_of"]


def digest_of(value: Any) -> str:
    """The SHA-256 of a value, in hexadecimal.

    Numbers, texts, bytes, sequences, mappings (whatever their order), arrays and objects made of them. A function
    counts by its name: what it does cannot be compared.
    """
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, str, bytes)):
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        found.update(b"%s %d " % (type(value).__name__.encode(), len(raw)) + raw)
    elif isinstance(value, int):
        found.update(b"i %d " % value)
    elif isinstance(value, float):
        found.update(b"f" + struct.pack("<d", value))
    elif isinstance(value, (list, tuple)):
        found.update(b"l %d " % len(value))
        _add_sequence(found, value)
    elif isinstance(value, Mapping):
        found.update(b"m %d " % len(value))
        for key in sorted(value, key=str):
            _add(found, str(key))
            _add(found, value[key])
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        found.update(f"a {value.dtype} {tuple(value.shape)} ".encode() + value.tobytes())
    else:
        found.update(f"o {type(value).__name__} ".encode())
        _add(found, getattr(value, "__qualname__", None) or _parts_of(value))


def _add_sequence(found: Any, values: list[Any] | tuple[Any, ...]) -> None:
    # Tokens come by the hundred thousand.
    if values and all(type(value) is int for value in values):
        try:
            found.update(b"q" + array("q", values).tobytes())
            return
        except OverflowError:
            pass
    for value in values:
        _add(found, value)


def _parts_of(value: Any) -> Mapping[str, Any]:
    """What an object is made of, without what is only kept with it for later."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    parts: Mapping[str, Any] | None = getattr(value, "__dict__", None)
    if parts is None:
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return parts
