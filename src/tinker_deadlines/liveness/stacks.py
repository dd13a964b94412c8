"""Where does a thread stand? Its innermost frames by file, line and function: no path, and no value of anything."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import PurePath
from types import FrameType

from tinker_deadlines.limits import STACK_FRAMES

__all__ = ["busiest_stack", "stack_of"]

# Where a thread stands that waits.
_WAITING = ("threading.py", "selectors.py", "queue.py", "_base.py", "socket.py", "ssl.py", "thread.py")


def stack_of(thread: threading.Thread | None) -> str:
    """Where a thread stands, the outermost of its innermost frames first; "" for one that has no frames."""
    frame = sys._current_frames().get(thread.ident or 0) if thread is not None else None
    return "" if frame is None else _shown(frame)


def busiest_stack() -> str:
    """Where a thread stands that does not wait, the main one first; "" where all others wait."""
    frames, own = sys._current_frames(), threading.get_ident()
    main = threading.main_thread().ident
    for ident in sorted(frames, key=lambda each: each != main):
        file = PurePath(frames[ident].f_code.co_filename).name
        if ident != own and file not in _WAITING:
            return _shown(frames[ident])
    return ""


def _shown(frame: FrameType) -> str:
    frames = traceback.extract_stack(frame)[-STACK_FRAMES:]
    return " > ".join(f"{PurePath(each.filename).name}:{each.lineno} {each.name}" for each in frames)
