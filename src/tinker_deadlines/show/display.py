"""Who shows a run? One object that starts the live display and the story, and says the summary once at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from typing import Literal

from tinker_deadlines.calls import board
from tinker_deadlines.show import stderr
from tinker_deadlines.show.live import Live
from tinker_deadlines.show.story import Story
from tinker_deadlines.show.summary import calls_in_flight, summary_json, summary_text

__all__ = ["Display", "SummaryForm"]

SummaryForm = Literal["text", "json", "if cut"]
"""How a run ends: with a table, one line of JSON, or a table only if a call was cut."""

# Wide enough for a sentence of a cut on one line, where no terminal says how wide it is.
PLAIN_WIDTH = 160


class Display:
    """The live display of a run and its summary, on standard error."""

    def __init__(self, *, live: bool = True, summary: SummaryForm = "text") -> None:
        self._story = Story()
        self._summary = summary
        self._terminal = stderr.is_terminal() and os.environ.get("TERM") != "dumb"
        self._live = Live(self._story, on_terminal=self._terminal) if live else None
        self._pid = os.getpid()
        self._finishing = threading.Lock()

    def start(self) -> None:
        """Begins to look and to show."""
        self._story.begin(self._live.wake if self._live is not None else lambda: None)
        if self._live is not None:
            self._live.start()

    def say(self, sentence: str) -> None:
        """Says something at once, unless nothing is shown while it runs."""
        if self._summary != "if cut":
            with contextlib.suppress(Exception):
                stderr.say(f"tinker-deadlines: {sentence}\n")

    def stop_live(self) -> None:
        """Ends the live display and leaves the terminal as it was."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def print_calls(self) -> None:
        """Says what is in flight now."""
        with contextlib.suppress(Exception):
            stderr.say(calls_in_flight(board.pending(), width=self._width()))

    def finish(self) -> None:
        """Ends the display and says the summary; a second call, and one in a forked child, does nothing."""
        if os.getpid() != self._pid or not self._finishing.acquire(blocking=False):
            return
        with contextlib.suppress(Exception):  # nothing that goes wrong here may change how the script ends
            self.stop_live()
            self._story.end()
            if self._summary == "json":
                stderr.say(summary_json(self._story))
            elif self._summary == "text" or self._story.cuts_in_all:
                colour = self._terminal and "NO_COLOR" not in os.environ
                stderr.say(summary_text(self._story, width=self._width(), colour=colour))

    def _width(self) -> int:
        return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if self._terminal else PLAIN_WIDTH
