"""What does it look like when a run goes wrong and does not hang? `tinker-deadlines demo` shows it on a lab server."""

from __future__ import annotations

from tinker_deadlines.demo.director import run

__all__ = ["run"]
