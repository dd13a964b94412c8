"""How is an ASGI application served from a thread? Uvicorn on its own event loop, on a socket bound before."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

import uvicorn
from starlette.applications import Starlette

STOP_WITHIN_S = 5.0
BACKLOG = 2048


class Hosted:
    """A running application.

    Args:
        make_app: Called on the server's thread, so that everything it makes belongs to the server's loop.
        host: The address to listen on.
        port: The port to listen on; 0 takes a free one.
        closing: Called on the server's loop before it stops, to wake handlers that wait.
    """

    def __init__(
        self, make_app: Callable[[], Starlette], host: str, port: int, closing: Callable[[Starlette], None]
    ) -> None:
        self._make_app = make_app
        self._closing = closing
        self._socket = listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="tinker-lab", daemon=True)
        self._ready: Future[Starlette] = Future()

    def start(self) -> Starlette:
        """Returns the application once connections are accepted; re-raises what kept it from starting."""
        self._thread.start()
        return self._ready.result()

    def stop(self) -> None:
        """Ends the server within `STOP_WITHIN_S`; may be called more than once."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._shut)
            self._thread.join(STOP_WITHIN_S)
        self._socket.close()

    def _shut(self) -> None:
        assert self._server is not None
        self._closing(self._ready.result())
        self._server.should_exit = True

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # it belongs to whoever waits for the start
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = self._make_app()
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,  # the default would configure logging for the whole process
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config, started=lambda: self._ready.set_result(app))
        await self._server.serve(sockets=[self._socket])


class _Server(uvicorn.Server):
    """Tells when it accepts connections."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; raises `OSError` if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without this, a server that was killed cannot be started again on its port for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
