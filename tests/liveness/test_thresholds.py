"""The durations that count, together and scaled."""

from __future__ import annotations

import pytest

from tinker_deadlines import limits
from tinker_deadlines.liveness.thresholds import Thresholds


def test_the_shipped_ones_are_those_of_the_limits() -> None:
    """Every field is the constant of its name."""
    for name, value in Thresholds()._asdict().items():
        assert value == getattr(limits, name.upper())


@pytest.mark.parametrize("factor", [0.02, 1.0, 3.0])
def test_all_of_them_scale(factor: float) -> None:
    """Each one, and each of the ages at which a pause is noticed."""
    shipped, scaled = Thresholds(), Thresholds().scaled(factor)
    for name, value in scaled._asdict().items():
        if name == "pause_notices_s":
            assert value == pytest.approx([factor * each for each in shipped.pause_notices_s])
        else:
            assert value == pytest.approx(factor * getattr(shipped, name)), name


def test_the_shipped_ones_fit_together() -> None:
    """A session is asked before it may be convicted, and the answers are there before they are needed again."""
    shipped = Thresholds()
    assert shipped.look_every_s < shipped.ask_from_s < shipped.silence_s
    assert shipped.ask_from_s + shipped.probe_limit_s <= shipped.silence_s
    assert shipped.probe_limit_s < shipped.in_vain_s < shipped.ask_every_s
    assert shipped.look_every_s < shipped.stall_s
    assert list(shipped.pause_notices_s) == sorted(shipped.pause_notices_s)
    assert shipped.pause_notices_s[-1] < shipped.pause_budget_s
