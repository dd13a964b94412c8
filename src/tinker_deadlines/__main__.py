"""What does `python -m tinker_deadlines` do? The same as the command `tinker-deadlines`."""

from __future__ import annotations

import sys

from tinker_deadlines.cli import main

if __name__ == "__main__":
    sys.exit(main())
