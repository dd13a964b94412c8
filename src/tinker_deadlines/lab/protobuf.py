"""How are protobuf messages read and written? The wire format itself, without generated classes.

The lab answers every SDK version from one process, and the generated module of the SDK belongs to one version and takes
a second to import. Field numbers have not changed between versions, names have, so the lab speaks in numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

Value = int | bytes


class Malformed(ValueError):
    """Raised when bytes are not a protobuf message."""


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # negative numbers are written as 64-bit two's complement
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(number)


def blob(field: int, content: bytes) -> bytes:
    """Writes bytes, a string in UTF-8, or an embedded message."""
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    return blob(field, content.encode())


def double(field: int, number: float) -> bytes:
    return varint(field << 3 | FIXED64) + struct.pack("<d", number)


def packed(field: int, numbers: list[int]) -> bytes:
    return blob(field, b"".join(map(varint, numbers)))


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yields field number and value in order; fixed-width numbers come as their bytes.

    Raises:
        Malformed: If the message ends early or holds a wire type that does not exist.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == VARINT:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == LENGTH:
            size, at = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise Malformed(f"not a protobuf message: wire type {kind} at byte {at}")
        if at + size > len(message):
            raise Malformed("not a protobuf message: it ends in the middle of a field")
        yield key >> 3, message[at : at + size]
        at += size


def unpacked(value: Value) -> list[int]:
    """Reads a repeated integer field, packed or not."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers


def number_of(value: Value) -> float:
    """Reads a `float` or `double` field."""
    if isinstance(value, int):
        raise Malformed("not a protobuf message: a whole number where a float should be")
    return float(struct.unpack("<f" if len(value) == 4 else "<d", value)[0])


def bytes_of(value: Value) -> bytes:
    if isinstance(value, int):
        raise Malformed("not a protobuf message: a number where bytes should be")
    return value


def int_of(value: Value) -> int:
    if not isinstance(value, int):
        raise Malformed("not a protobuf message: bytes where a number should be")
    return value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & ((1 << 64) - 1), at
        shift += 7
    raise Malformed("not a protobuf message: a number has no end")
