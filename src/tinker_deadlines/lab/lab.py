"""How is a lab started and stopped? As an object in a test, or as the command `tinker-deadlines lab`."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from .fault_log import Record
    from .faults import Faults
    from .proxy import FaultProxy

DEFAULT_BASE_MODEL = "tinker-lab/byte-tiny"
BAD_INPUT = 2  # the exit code of everything a user can put right


class Lab:
    """A Tinker-compatible server in this process, on a thread of its own.

        with Lab() as lab:
            client = tinker.ServiceClient(base_url=lab.url, api_key="tml-lab")

    Args:
        state: Where checkpoints are kept. Without it they live in a temporary directory until the lab stops.
        latency: How long calls take; see `latency.parse_latency`.
        faults: What goes wrong: fault rules, the path of a TOML file with them, or its text. With it, `url` is that
            of a fault proxy in front of the server.
        upstream: The URL of another server to put the fault proxy in front of, instead of a lab.
        fault_log: A file to which the fault proxy writes what it did.
        on_fault: Called with the proxy's record of each request that a fault is done to, on the proxy's thread.
        host: The address to listen on; loopback unless you want others to reach it.
        port: The port to listen on; 0 takes a free one.
        options: Further settings of `config.LabConfig`, such as `session_cap`, `poll_s` or `base_models`.

    Raises:
        ValueError: If a setting makes no sense; the message is one sentence.
        OSError: From `start`, if the address or the state directory cannot be used.
    """

    def __init__(
        self,
        state: str | PathLike[str] | None = None,
        latency: str = "0",
        *,
        faults: Faults | str | PathLike[str] | None = None,
        upstream: str | None = None,
        fault_log: str | PathLike[str] | None = None,
        on_fault: Callable[[Record], None] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        **options: Any,
    ) -> None:
        from .latency import parse_latency

        self._latency = parse_latency(latency)
        self._faults = None if faults is None and upstream is None else read_faults(faults)
        self._state = None if state is None else Path(state)
        self._upstream = upstream
        self._fault_log = fault_log
        self._on_fault = on_fault
        self._address = (host, port)
        self._options = options
        self._parts: list[Any] = []  # what was started, to be stopped in reverse
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._app: Starlette | None = None
        self._url = ""
        self.proxy: FaultProxy | None = None

    @property
    def url(self) -> str:
        """The base URL for `tinker.ServiceClient`."""
        if not self._url:
            raise RuntimeError("The lab is not running; start it, or use it in a with statement.")
        return self._url

    @property
    def base_model(self) -> str:
        """The name of the lab's smallest base model, in the form whose tokenizer loads without a network."""
        return self.base_model_name(DEFAULT_BASE_MODEL)

    def base_model_name(self, name: str) -> str:
        """Returns the name of a base model in the form whose tokenizer loads without a network."""
        bases = self._engine().bases
        return str(bases.tokenizer_directory(bases.resolve(name)))

    def executions(self) -> list[dict[str, Any]]:
        """Returns every request that was really executed, in order: the witness for "exactly once"."""
        executed: list[dict[str, Any]] = self._engine().executions()
        return executed

    def start(self) -> Self:
        """Starts serving; returns once connections are accepted."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops serving, within seconds whatever is in flight; checkpoints in a state directory stay."""
        while self._parts:
            self._parts.pop().stop()
        self._url = ""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        if self._parts:
            raise RuntimeError("The lab is running already.")
        if self._faults is None:
            self._url = self._start_server(*self._address)
            return
        from .proxy import FaultProxy

        upstream = self._upstream or self._start_server("127.0.0.1", 0)
        host, port = self._address
        proxy = FaultProxy(
            upstream, self._faults, host=host, port=port, log_path=self._fault_log, on_fault=self._on_fault
        )
        proxy.start()
        self._parts.append(proxy)
        self.proxy = proxy
        self._url = proxy.url

    def _start_server(self, host: str, port: int) -> str:
        from .config import LabConfig
        from .hosting import Hosted
        from .server import create_app

        config = LabConfig(self._state_directory(), self._latency, **self._options)
        hosted = Hosted(lambda: create_app(config), host, port, closing=lambda app: app.state.engine.close())
        self._parts.append(hosted)
        self._app = hosted.start()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{hosted.port}"

    def _state_directory(self) -> Path:
        if self._state is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tinker-lab-")
            return Path(self._temporary.name).resolve()
        self._state.mkdir(parents=True, exist_ok=True)
        return self._state.resolve()

    def _engine(self) -> Any:
        if self._app is None:
            raise RuntimeError("There is no lab server: it has not been started, or another server is the upstream.")
        return self._app.state.engine


def read_faults(source: Faults | str | PathLike[str] | None) -> Faults:
    """Returns fault rules from a file's path, from TOML text, or as they are; raises `ValueError` for rubbish."""
    from .faults import Faults

    if source is None:
        return Faults.from_toml("")
    if isinstance(source, Faults):
        return source
    if isinstance(source, str) and (not source.strip() or "\n" in source or "=" in source):
        return Faults.from_toml(source)
    return Faults.from_file(source)


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    state: str | PathLike[str] | None = None,
    latency: str = "0",
    faults: str | PathLike[str] | None = None,
    upstream: str | None = None,
    fault_log: str | PathLike[str] | None = None,
    **options: Any,
) -> int:
    """Runs a lab until Ctrl-C or SIGTERM; its URL is the first line on standard output, faults go to standard error.

    Returns:
        The exit code: 0 after a signal, 2 with one sentence on standard error if it could not start.
    """
    ended = threading.Event()
    previous = {sig: signal.signal(sig, lambda *_: ended.set()) for sig in (signal.SIGINT, signal.SIGTERM)}
    settings: dict[str, Any] = {"faults": faults, "upstream": upstream, "fault_log": fault_log, **options}
    settings["on_fault"] = _show
    try:
        with Lab(state, latency, host=host, port=port, **settings) as lab:
            print(lab.url, flush=True)
            ended.wait()
        return 0
    except (OSError, ValueError, OverflowError) as error:
        print(_sentence(error, host, port), file=sys.stderr)
        return BAD_INPUT
    finally:
        for sig, handler in previous.items():
            signal.signal(sig, handler)


def _show(record: Record) -> None:
    from .fault_log import fault_line

    with contextlib.suppress(OSError):  # nobody reads any more: the faults go on
        print(fault_line(record), file=sys.stderr, flush=True)


def _sentence(error: Exception, host: str, port: int) -> str:
    if isinstance(error, OSError) and error.filename is None:
        return f"The lab cannot listen on {host} port {port}: {error.strerror or error}."
    if isinstance(error, OSError):
        return f"The lab cannot use {error.filename}: {error.strerror or error}."
    return str(error)
