"""Which service do the calls of this process go to? What is learned of one says little on another."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["host", "reached", "when_reached"]

_host: str | None = None
_listening: list[Callable[[str], object]] = []


def host() -> str | None:
    """The host that calls went to first; `None` before the first request."""
    return _host


def reached(name: str) -> None:
    """Notes the host that a request goes to; the first one stays."""
    global _host
    if _host is None:
        _host = name
        for listen in _listening:
            listen(name)


def when_reached(listen: Callable[[str], object]) -> None:
    """Has `listen` called with the host, now or once it is known."""
    if _host is not None:
        listen(_host)
    else:
        _listening.append(listen)
