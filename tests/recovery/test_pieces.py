"""The pieces of recovery: spacing, digests, the spool and runs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines.recovery import runs
from tinker_deadlines.recovery.digest import digest_of
from tinker_deadlines.recovery.journal import Journal
from tinker_deadlines.recovery.ledger import Ledger
from tinker_deadlines.recovery.runs import Run, RunError, last_confirmed
from tinker_deadlines.recovery.spacing import spacing
from tinker_deadlines.recovery.spool import Spool

SECONDS = st.floats(0.01, 1e5)


@given(SECONDS, SECONDS, st.floats(10, 1e7))
def test_no_other_spacing_loses_much_less(step_s: float, save_s: float, fault_every_s: float) -> None:
    """The expected loss of the spacing is at most a little above that of any other number of steps nearby."""
    found = spacing(step_s, save_s, fault_every_s)
    assert found.steps >= 1
    if save_s < fault_every_s / 20:
        for steps in {max(1, found.steps // 2), found.steps * 2}:
            assert found.lost_share <= found._replace(steps=steps).lost_share * 1.25


def test_the_spacing_is_that_of_young() -> None:
    """With a save of 5 s and a fault every 8 hours, a checkpoint is due about every nine minutes."""
    found = spacing(10.0, 5.0, 8 * 3600.0)
    assert found.steps == round((math.sqrt(2 * 5 * 28800) - 5) / 10)
    assert "every 53 steps" in str(found)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


class Thing:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


@given(VALUES, VALUES)
def test_equal_values_have_equal_digests_and_others_do_not(one: Any, other: Any) -> None:
    """Digests tell values apart as a comparison of their texts does."""
    assert digest_of(one) == digest_of(one)
    assert digest_of(Thing(part=one)) == digest_of(Thing(part=one))
    if repr(one) != repr(other) and repr(sorted_all(one)) != repr(sorted_all(other)):
        assert digest_of(one) != digest_of(other)


def sorted_all(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, sorted_all(value[key])) for key in sorted(value)]
    return [sorted_all(each) for each in value] if isinstance(value, list) else value


def test_a_mapping_has_the_same_digest_in_any_order() -> None:
    """The order of a mapping's keys is no part of it."""
    assert digest_of({"a": 1, "b": [2.0]}) == digest_of({"b": [2.0], "a": 1})


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(0, 200))
def test_a_spool_gives_back_what_it_keeps_and_stays_within_its_memory(sizes: list[int], most: int) -> None:
    """Each batch comes back as it was, in memory or from disk, until it is let go of."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        spool = Spool(Path(directory), len, most_bytes=most)
        batches = {number: "x" * size for number, size in enumerate(sizes, 1)}
        for number, batch in batches.items():
            spool.keep(number, batch)
        assert spool.in_memory_bytes <= most
        assert {number: spool[number] for number in batches} == batches
        spool.drop_until(len(sizes) // 2)
        assert len(spool) == len(sizes) - len(sizes) // 2
        spool.drop_until(len(sizes))
        spool.close()
        assert (len(spool), spool.in_memory_bytes) == (0, 0)


def test_what_cannot_be_written_stays_in_memory(tmp_path: Path) -> None:
    """A batch with a function in it is kept, whatever the bound."""
    spool = Spool(tmp_path, lambda _: 10, most_bytes=0)
    spool.keep(1, lambda: "a loss function")
    assert spool[1]() == "a loss function"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINKER_DEADLINES_HOME", str(tmp_path))
    return tmp_path


def test_a_run_is_used_by_one_process_at_a_time(home: Path) -> None:
    """A second user of a run is refused with the name of the first, and let in when that one is done."""
    first = Run("one")
    with pytest.raises(RunError, match=r"in use by process \d+"):
        Run("one")
    first.close()
    Run("one").close()


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 101])
def test_a_name_that_is_none_is_refused(home: Path, name: str) -> None:
    """A run's name cannot lead out of where runs are kept."""
    with pytest.raises(RunError, match="no name of a run"):
        Run(name)


def test_a_run_that_does_not_exist_is_told_with_those_that_do(home: Path) -> None:
    """Who mistypes a run is shown the ones that are kept."""
    Run("20260101-000000-aaaa").close()
    with pytest.raises(RunError, match="known are 20260101-000000-aaaa"):
        runs.must_exist("20260101-000000-aaab")


def test_runs_of_long_ago_are_forgotten_unless_they_are_in_use(home: Path) -> None:
    """After thirty days a run's directory goes when another begins; one that a process uses stays."""
    Run("old").close()
    busy = Run("busy")
    for name in ("old", "busy"):
        for path in [*(home / "runs" / name).iterdir(), home / "runs" / name]:
            os.utime(path, (0, 0))
    Run("new").close()
    assert runs.runs() == ["busy", "new"]
    busy.close()


def test_last_confirmed_is_what_a_script_goes_on_from(home: Path) -> None:
    """For each training client: the step and the path of its last confirmed checkpoint."""
    run = Run("one")
    journal = run.next_ledger()
    ledger = Ledger()
    for event in (
        ledger.submitted("optim_step", "x"),
        ledger.confirmed(1, None),
        ledger.checkpoint(1, 1, "tinker://run/weights/one"),
    ):
        journal.append(event)
    journal.close()
    run.close()
    assert last_confirmed("one") == [(1, 1, "tinker://run/weights/one")]
    assert isinstance(Journal(home / "runs" / "one" / "client-1.ledger"), Journal)
