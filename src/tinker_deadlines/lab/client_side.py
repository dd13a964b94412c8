"""What can be done to one client's TCP connection? HTTP/1.1 by h11 on a raw transport, so that faults are real."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import h11

READ_BYTES = 64 * 1024
HEAD_BYTES = 256 * 1024
"""A request head larger than this is refused; h11's own 16 KiB is less than some servers accept."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ConnectionEnded(Exception):
    """We ended the connection on purpose: nothing more is to be said on it."""


class ClientSide:
    """One accepted connection, read and written as HTTP/1.1.

    `on_gone` is called once the client has closed its end, whatever the connection is doing at that moment.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)

    async def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        """The next part of what the client sends: a request, a piece of its body, its end, or the connection's."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(READ_BYTES))

    async def send(self, *events: h11.Event) -> int:
        """Sends the events in one write, waits until the client keeps up, and returns the bytes written."""
        data = b"".join(self._http.send(event) or b"" for event in events)
        if data:
            self._writer.write(data)
            await self._writer.drain()
        return len(data)

    def start_next_request(self) -> bool:
        """Whether the connection can carry another request; prepares it for one."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    @property
    def can_answer(self) -> bool:
        """Whether no answer has been begun."""
        return self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def stop_reading(self) -> None:
        """Leaves what the client sends in the kernel's buffers, where it backs up to the client."""
        with suppress(RuntimeError):
            cast(asyncio.Transport, self._writer.transport).pause_reading()

    def reset(self) -> None:
        """Ends the connection with a TCP reset: unsent bytes are dropped and the client sees ECONNRESET."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._writer.transport.abort()

    def close(self) -> None:
        """Ends the connection in order, after what was written has been sent."""
        self._writer.transport.close()


class WatchedProtocol(asyncio.StreamReaderProtocol):
    """A stream protocol that says when the client has gone, even while nobody reads."""

    def __init__(
        self,
        on_connection: Callable[[WatchedProtocol, asyncio.StreamReader, asyncio.StreamWriter], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.on_gone: Callable[[], object] | None = None
        reader = asyncio.StreamReader(limit=READ_BYTES, loop=loop)
        super().__init__(reader, lambda stream, writer: on_connection(self, stream, writer), loop=loop)

    def eof_received(self) -> bool | None:
        """The client has sent its last byte; nobody is left to answer."""
        self._say_gone()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is no more, by whoever's hand."""
        super().connection_lost(exc)
        self._say_gone()

    def _say_gone(self) -> None:
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()
