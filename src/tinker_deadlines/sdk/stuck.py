"""What does an expiry look like inside a script that does not know this library?"""

from __future__ import annotations

from typing import Any

import httpx
import tinker

from tinker_deadlines.errors import DeadlineExpiry

__all__ = ["StuckCallError"]


class StuckCallError(DeadlineExpiry, tinker.APIConnectionError):
    """A call of the SDK ran into its limit under `install()`, `guard()` or `tinker-deadlines run`.

    It is what the SDK itself raises when its requests appear to be stuck, a `tinker.APIConnectionError`, so that a
    script's own handling of connection failures takes it. It is not a `TimeoutError`: scripts take one for an episode
    that ended or score it as a reward of 0.

    Cause, consequence and remedy are those of `TinkerDeadlineError`; the attributes are those of `DeadlineExpiry`.
    """

    def __init__(self, kind: Any, **facts: Any) -> None:
        super().__init__(kind, **facts)
        # What `tinker.APIError` promises to have. No single request is to blame, so this one leads nowhere.
        self.message = str(self)
        self.request = httpx.Request("POST", "http://tinker.invalid/")
        self.body = None


StuckCallError.__module__ = "tinker_deadlines"
