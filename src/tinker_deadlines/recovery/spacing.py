"""How often is a checkpoint worth its time? So often that what saving costs and what a fault loses are least together.

Young's rule, as refined by Daly (J. T. Daly, *A higher order estimate of the optimum checkpoint interval for restart
dumps*, FGCS 22, 2006): with `C` seconds to save and a fault every `M` seconds, the best interval between two saves is
`sqrt(2 C M) - C` where `C < M / 2`, and `M` where it is not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Spacing", "spacing"]


class Spacing(NamedTuple):
    """How far apart checkpoints are, and why."""

    steps: int
    step_s: float
    save_s: float
    fault_every_s: float

    @property
    def lost_share(self) -> float:
        """The share of the time that saving, and training again what a fault lost, are expected to take."""
        interval_s = self.steps * self.step_s
        return self.save_s / interval_s + (interval_s / 2 + self.save_s) / self.fault_every_s

    def __str__(self) -> str:
        return (
            f"a checkpoint every {self.steps} step{'s' if self.steps > 1 else ''}: a step takes {self.step_s:.1f} s, "
            f"a save {self.save_s:.1f} s, and a fault is reckoned with every {self.fault_every_s / 3600:.1f} h; "
            f"{100 * self.lost_share:.1f} % of the time goes into saving and training again"
        )


def spacing(step_s: float, save_s: float, fault_every_s: float) -> Spacing:
    """The number of optimizer steps between two checkpoints that loses least.

    Args:
        step_s: Seconds that a step takes.
        save_s: Seconds that a save takes.
        fault_every_s: Seconds from one fault to the next, on average.
    """
    step_s, save_s = max(step_s, 1e-6), max(save_s, 1e-6)
    best_s = math.sqrt(2 * save_s * fault_every_s) - save_s if save_s < fault_every_s / 2 else fault_every_s
    return Spacing(max(1, round(best_s / step_s)), step_s, save_s, fault_every_s)
