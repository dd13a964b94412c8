"""Who is connected? Sessions with their heartbeats, their end, and the cap on how many may live."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .refusal import Refused, bad, unknown
from .wire import Json

GONE = 410  # the status that makes the SDK stop its heartbeat


@dataclass
class Session:
    """One client process."""

    session_id: str
    created_s: float
    heartbeat_s: float
    user_metadata: dict[str, Any]
    display_name: str | None = None
    project_id: str | None = None
    status: Json = field(default_factory=lambda: {"type": "active"})
    models: list[str] = field(default_factory=list)
    samplers: list[str] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return bool(self.status["type"] == "active")


class Sessions:
    """All sessions since the server started.

    Args:
        cap: How many may be alive at once.
        expiry_s: How long one lives without a heartbeat.
        ended: Called with each session that ends.
    """

    def __init__(self, cap: int, expiry_s: float, ended: Callable[[Session], None]) -> None:
        self._cap = cap
        self._expiry_s = expiry_s
        self._ended = ended
        self._sessions: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}

    def create(self, body: Json, idempotency_key: str | None) -> Session:
        """Makes a session; a repeated idempotency key returns the one that was made."""
        self._expire()
        if idempotency_key is not None and idempotency_key in self._by_key:
            return self._by_key[idempotency_key]
        if sum(session.alive for session in self._sessions.values()) >= self._cap:
            raise bad(f"Too many sessions: {self._cap} are alive and no more are allowed; finish some first.")
        session = Session(
            session_id=f"session_{uuid.uuid4().hex[:12]}",
            created_s=time.time(),
            heartbeat_s=time.monotonic(),
            user_metadata=body.get("user_metadata") or {},
            display_name=body.get("display_name"),
            project_id=body.get("project_id"),
        )
        self._sessions[session.session_id] = session
        if idempotency_key is not None:
            self._by_key[idempotency_key] = session
        return session

    def find(self, session_id: object) -> Session:
        """Returns a session, alive or not."""
        session = self._sessions.get(str(session_id))
        if session is None:
            raise unknown(f"There is no session {session_id!r}.")
        return session

    def alive(self, session_id: object) -> Session:
        """Returns a session that is alive; one that has ended is refused."""
        self._expire()
        session = self.find(session_id)
        if not session.alive:
            raise Refused(GONE, f"The session {session_id!r} has ended ({session.status['type']}).")
        return session

    def heartbeat(self, session_id: object) -> None:
        self.alive(session_id).heartbeat_s = time.monotonic()

    def finish(self, session_id: object, body: Json) -> None:
        """Ends a session; the first reason given stays."""
        session = self.find(session_id)
        if session.alive:
            reason = body.get("reason") or {"type": "success"}
            self._end(session, {"type": "client_finished", "reason": reason, "detail": body.get("detail")})

    def all(self) -> list[Session]:
        """Returns all sessions, newest first."""
        return sorted(self._sessions.values(), key=lambda s: -s.created_s)

    def _expire(self) -> None:
        oldest_s = time.monotonic() - self._expiry_s
        for session in self._sessions.values():
            if session.alive and session.heartbeat_s < oldest_s:
                self._end(session, {"type": "cancelled", "detail": "no heartbeat"})

    def _end(self, session: Session, status: Json) -> None:
        session.status = status
        self._ended(session)
