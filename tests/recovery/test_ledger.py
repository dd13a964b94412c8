"""The ledger: what it says of a client follows from what was written down, and from nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines.recovery.ledger import Checkpoint, Event, Ledger

METHODS = ["forward", "forward_backward", "optim_step", "save_state"]
Action = tuple[str, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["call"] * 3 + ["confirm"] * 2 + ["fail", "fence", "recover", "checkpoint", "resume"]),
        st.integers(0, 10_000),
    ),
    max_size=60,
)


def events_of(actions: list[Action]) -> tuple[Ledger, list[Event]]:
    """Does what the actions say, as far as it can be done, and returns what was written down."""
    ledger, events = Ledger(), []

    def note(event: Event) -> None:
        events.append(event)
        ledger.apply(event, len(events))

    for what, number in actions:
        open_ones = ledger.open()
        if what == "call":
            note(ledger.submitted(METHODS[number % len(METHODS)], f"digest {number}"))
        elif what in ("confirm", "fail") and open_ones:
            entry = open_ones[number % len(open_ones)]
            note(ledger.confirmed(entry.number, "answer") if what == "confirm" else ledger.failed(entry.number, "no"))
        elif what == "fence":
            note(ledger.fenced("silence"))
        elif what == "recover":
            note(ledger.recovered())
        elif what == "checkpoint":
            after = number % (len(ledger.entries) + 1)
            if ledger.at_rest(after):
                note(ledger.checkpoint(after, number, f"path {len(events)}"))
        elif what == "resume":
            last = ledger.last_confirmed
            note(ledger.resumed(0 if last is None else last.after))
    return ledger, events


def shown(ledger: Ledger) -> object:
    entries = [(e.number, e.method, e.digest, e.state, e.step, e.result_at) for e in ledger.entries]
    return entries, ledger.checkpoints, ledger.cause, ledger.steps, ledger.recoveries, ledger.last_confirmed


@given(ACTIONS)
def test_the_same_events_make_the_same_ledger(actions: list[Action]) -> None:
    """A ledger that is read from its events is the one that wrote them."""
    ledger, events = events_of(actions)
    assert shown(Ledger.of(enumerate(events, 1))) == shown(ledger)


@given(ACTIONS)
def test_a_checkpoint_to_go_on_from_holds_no_call_whose_outcome_is_unknown(actions: list[Action]) -> None:
    """Every call that a restorable checkpoint contains has ended."""
    ledger, _ = events_of(actions)
    for checkpoint in ledger.restorable():
        assert all(entry.state in ("confirmed", "failed") for entry in ledger.entries[: checkpoint.after])


@given(ACTIONS)
def test_what_is_made_again_is_what_was_confirmed_and_changes_the_weights(actions: list[Action]) -> None:
    """After a checkpoint, each confirmed call that changes what is trained is in the lineage once, in order."""
    ledger, _ = events_of(actions)
    last = ledger.last_confirmed or Checkpoint(0, 0, "")
    expected = [
        entry.number
        for entry in ledger.entries[last.after :]
        if entry.state == "confirmed" and entry.method in ("forward_backward", "optim_step")
    ]
    assert [entry.number for entry in ledger.lineage(last.after) if entry.state == "confirmed"] == expected


@given(ACTIONS)
def test_steps_count_what_was_not_refused(actions: list[Action]) -> None:
    """The number of steps is the number of optimizer steps that have not failed."""
    ledger, _ = events_of(actions)
    assert ledger.steps == sum(e.method == "optim_step" and e.state != "failed" for e in ledger.entries)


def test_a_state_with_gathered_gradients_is_not_at_rest() -> None:
    """Between a forward_backward and its optimizer step no state contains everything."""
    ledger = Ledger()
    assert ledger.at_rest(0)
    for method, rests in (("forward_backward", False), ("forward", False), ("optim_step", True), ("save_state", True)):
        ledger.apply(ledger.submitted(method, "x"))
        assert ledger.at_rest(len(ledger.entries)) is rests


def test_an_outcome_does_not_change() -> None:
    """A call that has ended cannot end again."""
    ledger = Ledger()
    ledger.apply(ledger.submitted("optim_step", "x"))
    ledger.apply(ledger.confirmed(1, None))
    try:
        ledger.apply(ledger.failed(1, "late"))
    except ValueError as error:
        assert "confirmed already" in str(error)
    else:
        raise AssertionError("it ended twice")


def test_the_first_call_that_differs_is_named() -> None:
    """A call in the place of another is told apart by its method and by its arguments."""
    ledger = Ledger()
    ledger.apply(ledger.submitted("forward_backward", "a"))
    assert ledger.divergence(1, "forward_backward", "a") is None
    found = ledger.divergence(1, "forward_backward", "b")
    assert found is not None
    assert (found.step, found.was, found.now) == (1, "forward_backward", "forward_backward with other arguments")
