"""Where does this library keep things on a machine?"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

__all__ = ["HOME_VARIABLE", "state_dir"]

HOME_VARIABLE = "TINKER_DEADLINES_HOME"


def state_dir() -> Path:
    """Names the directory: `TINKER_DEADLINES_HOME`, or the platform's own.

    Raises:
        ModuleNotFoundError: the variable is not set, and `platformdirs`, which knows the platform's, is not installed.
    """
    home = os.environ.get(HOME_VARIABLE, "")
    if home:
        return Path(home).expanduser()
    if importlib.util.find_spec("platformdirs") is None:
        raise ModuleNotFoundError(
            "the state directory is found with platformdirs, which is not installed: pip install platformdirs, or set "
            f"{HOME_VARIABLE} to a directory"
        )
    import platformdirs

    return platformdirs.user_state_path("tinker-deadlines")
