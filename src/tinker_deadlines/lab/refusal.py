"""How does the lab say no? With a status and one sentence, as the service does."""

from __future__ import annotations


class Refused(Exception):
    """Raised when a request is not taken on.

    Args:
        status: The HTTP status of the answer.
        detail: One sentence for the caller; it becomes the `detail` of the JSON body.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


def bad(detail: str) -> Refused:
    """Returns the refusal of a request that makes no sense."""
    return Refused(400, detail)


def unknown(detail: str) -> Refused:
    """Returns the refusal of a request about something that does not exist."""
    return Refused(404, detail)
