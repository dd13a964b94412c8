"""What is in flight now? A table at the foot of a terminal, else a line now and then, and one for each call cut.

The table stands below the scrolling region of the terminal, as the progress bar of apt does. The script goes on
writing to the terminal itself, above it: its streams are not replaced, so that its progress bars, prompts, debuggers
and child processes work as ever. The region is taken back when the run ends; a helper process does it for one that is
killed.
"""

from __future__ import annotations

import os
import subprocess
import threading

from tinker_deadlines.limits import LINE_EVERY_S, REDRAW_EVERY_S, STOP_LIVE_WITHIN_S
from tinker_deadlines.show import stderr
from tinker_deadlines.show.story import Row, Story, age
from tinker_deadlines.show.summary import headline
from tinker_deadlines.show.tables import counts_table, lines_of

__all__ = ["Live"]

# Lines that the table leaves to the script, at least. In a terminal smaller than that there is no table.
LEAST_LINES_FOR_SCRIPT = 8

_SAVE, _RESTORE, _CLEAR_LINE = "\x1b7", "\x1b8", "\x1b[2K"


class Live:
    """Shows a story while it goes on, on a daemon thread that touches nothing of the script's."""

    def __init__(self, story: Story, *, on_terminal: bool) -> None:
        self._story = story
        self._foot = _Foot() if on_terminal else None
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._show, name="tinker-deadlines-live", daemon=True)
        self._cuts_shown = 0
        self._said: object = None
        self._said_at_s = 0.0

    def start(self) -> None:
        """Starts showing."""
        self._thread.start()

    def wake(self) -> None:
        """Says that something happened that is to be shown now."""
        self._wake.set()

    def stop(self) -> None:
        """Stops, and leaves the terminal as it was."""
        self._stopping = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_LIVE_WITHIN_S)

    def _show(self) -> None:
        every_s = LINE_EVERY_S if self._foot is None else REDRAW_EVERY_S
        try:
            while not self._stopping:
                self._wake.wait(every_s)
                self._wake.clear()
                if self._foot is None or not self._foot.draw(self._story):
                    self._say_lines()
        finally:
            if self._foot is not None:
                self._foot.clear()
            else:
                self._say_cuts()

    # Lines ----------------------------------------------------------------------------------------------------------

    def _say_lines(self) -> None:
        self._say_cuts()
        now_s = self._story.duration_s()
        if now_s - self._said_at_s < LINE_EVERY_S:
            return
        rows = self._story.rows()
        state = [(row.kind, row.counts) for row in rows]
        if state == self._said and not any(row.in_flight for row in rows):
            return
        self._said, self._said_at_s = state, now_s
        if rows:
            stderr.say(headline(rows, now_s) + _oldest(rows))

    def _say_cuts(self) -> None:
        cuts, in_all = self._story.cuts_after(self._cuts_shown)
        missed = in_all - self._cuts_shown - len(cuts)
        self._cuts_shown = in_all
        if missed > 0:
            stderr.say(f"tinker-deadlines: {missed:,} more calls were cut at the same time")
        for cut in cuts:
            stderr.say(f"tinker-deadlines {age(cut.at_s)}  {cut.sentence()}")


def _oldest(rows: list[Row]) -> str:
    flying = [row for row in rows if row.in_flight]
    if not flying:
        return ""
    row = max(flying, key=lambda row: row.oldest_s / row.limit_s)
    return f"; oldest {row.kind} {row.oldest_s:.0f} s of {row.limit_s:g} s"


# The table ----------------------------------------------------------------------------------------------------------


class _Foot:
    """The last lines of the terminal, out of the way of everything that scrolls."""

    def __init__(self) -> None:
        self._height = 0
        self._size = (0, 0)
        self._guardian: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    def draw(self, story: Story) -> bool:
        """Draws the story; false where there is no room, so that lines are to be written instead."""
        rows = story.rows()
        if not rows:
            return True
        try:
            size = os.get_terminal_size(stderr.fileno())
        except OSError:
            return False
        lines = self._lines(story, rows, size.columns)
        if size.lines - len(lines) < LEAST_LINES_FOR_SCRIPT:
            lines = lines[:1]
        if size.lines - len(lines) < LEAST_LINES_FOR_SCRIPT:
            self.clear()
            return False
        if self._height == 0:
            self._stand_guard()
        stderr.write(self._room_for(max(len(lines), self._height), size) + self._drawn(lines, size.lines))
        return True

    def _lines(self, story: Story, rows: list[Row], width: int) -> list[str]:
        from rich.rule import Rule
        from rich.text import Text

        title = Rule(Text(headline(rows, story.duration_s()), style="bold"), style="dim", align="left")
        lines = lines_of(title, width=width, colour=True)
        lines += lines_of(counts_table(rows, in_flight=True), width=width, colour=True)
        cuts, _ = story.cuts_after(max(0, story.cuts_in_all - 1))
        if cuts:
            last = Text(f"cut last, at {age(cuts[-1].at_s)}: {cuts[-1].sentence()}", style="red")
            lines += lines_of(last, width=width, colour=True)
        return lines

    def _room_for(self, height: int, size: os.terminal_size) -> str:
        """Takes the last lines out of the scrolling region, after moving up what the script has written there."""
        grown = height - self._height if (size.lines, size.columns) == self._size else height
        self._height, self._size = height, (size.lines, size.columns)
        if grown <= 0:
            return ""
        # Index, not newline: the column of a line that the script has not finished yet stays.
        return "\x1bD" * grown + f"\x1b[{grown}A"

    def _drawn(self, lines: list[str], rows: int) -> str:
        top = rows - self._height
        lines = lines + [""] * (self._height - len(lines))
        drawn = "".join(f"\x1b[{top + number};1H{_CLEAR_LINE}{line}" for number, line in enumerate(lines, start=1))
        return f"{_SAVE}\x1b[1;{top}r\x1b[?7l{drawn}\x1b[?7h{_RESTORE}"

    def clear(self) -> None:
        """Gives the lines back."""
        if self._height == 0:
            return
        stderr.write(_clearing(self._size[0] - self._height + 1))
        self._height = 0
        self._size = (0, 0)
        self._dismiss_guard()

    # A process that is killed cannot give them back, and would leave a terminal behind that scrolls in its upper part
    # only. A shell that is no child of ours waits until our end of a pipe is closed, in whatever way we end.

    def _stand_guard(self) -> None:
        if os.name != "posix" or self._pipe is not None:
            return
        try:
            reading, self._pipe = os.pipe()
        except OSError:
            return
        try:
            # The outer shell ends at once, so that the script's own `os.wait()` never sees a child of ours.
            script = f"exec 3<&0; (trap '' INT QUIT HUP TERM; read answer <&3 || printf '{_CLEAR_REGION}' >&2) &"
            subprocess.run(
                ["/bin/sh", "-c", script], stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True, check=False
            )
        except OSError:
            self._dismiss_guard()
        finally:
            os.close(reading)

    def _dismiss_guard(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            try:
                os.write(pipe, b"done\n")
            except OSError:
                pass
            os.close(pipe)


_CLEAR_REGION = "\\0337\\033[r\\0338\\033[J"


def _clearing(top: int) -> str:
    return f"{_SAVE}\x1b[{top};1H\x1b[J\x1b[r{_RESTORE}"
