"""Does what a run learned outlive it, as it was?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recording import rows

from tinker_deadlines.limits import RECORD_STATE_S
from tinker_deadlines.record import Recorder, store
from tinker_deadlines.testing import FakeClock

Start = Callable[..., Recorder]
State = dict[str, Any]


def keep_new(kept: State, new: State) -> State:
    return new


def test_a_second_run_begins_where_the_first_stopped(start: Start) -> None:
    """What one run merged, the next loads: nested values, text beyond ASCII and all."""
    state = {"sample/Qwen/Qwen3-8B": {"n": 3, "tail": [1.5, None, {"ä": True}]}, "optim_step": {}}
    first = start()
    assert first.load_state() == {}
    assert first.merge_state(state, keep_new)
    first.close()
    assert start().load_state() == state


def test_merge_is_asked_only_where_there_is_something_to_merge_with(start: Start) -> None:
    """The function gets the kept state and the new one of a key that is there; a new key is kept as it is."""
    asked = []

    def merge(kept: State, new: State) -> State:
        asked.append((kept, new))
        return {"n": kept["n"] + new["n"]}

    recorder = start()
    recorder.merge_state({"a": {"n": 1}}, merge)
    recorder.merge_state({"a": {"n": 2}, "b": {"n": 5}}, merge)
    assert asked == [({"n": 1}, {"n": 2})]
    assert recorder.load_state() == {"a": {"n": 3}, "b": {"n": 5}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}], ids=repr)
def test_what_json_cannot_say_is_refused(value: object, start: Start) -> None:
    """The key is named, and nothing of the delta is kept: one transaction, or none."""
    recorder = start()
    with pytest.raises(ValueError, match="what was learned for 'b' cannot be kept as JSON"):
        recorder.merge_state({"a": {"n": 1}, "b": {"n": value}}, keep_new)
    assert recorder.load_state() == {}


def test_what_merge_raises_comes_through(start: Start) -> None:
    """A mistake in the merging is the caller's to see; what was kept stays."""

    def merge(kept: State, new: State) -> State:
        raise KeyError("n")

    recorder = start()
    recorder.merge_state({"a": {"n": 1}}, merge)
    with pytest.raises(KeyError):
        recorder.merge_state({"a": {"n": 2}}, merge)
    assert recorder.load_state() == {"a": {"n": 1}}


def test_a_row_says_when_it_was_written(start: Start, path: Path) -> None:
    """A person sees how old what was learned is, in UTC."""
    start().merge_state({"a": {}}, keep_new)
    ((stamp,),) = rows(path, "SELECT updated_at FROM learned")
    assert stamp.endswith("Z")


def test_a_database_that_hangs_holds_up_no_start(
    start: Start, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run whose disk does not answer begins with what is shipped, after a bound, and says so."""
    goes_on = threading.Event()
    recorder = start()

    def hang(self: object) -> None:
        for _ in range(1000):
            clock.advance(RECORD_STATE_S / 10)
            if goes_on.wait(0.01):
                break
        raise OSError("gone")

    monkeypatch.setattr(store.Store, "reading", hang)
    assert recorder.load_state() == {}
    assert "what earlier runs learned cannot be read" in caplog.text
    assert "did not answer within" in caplog.text
    goes_on.set()
