"""What is kept of one training client? Its ledger and its batches, and when the next checkpoint is due."""

from __future__ import annotations

import logging
from typing import Any

from tinker_deadlines import clock, limits
from tinker_deadlines.recovery.journal import Journal
from tinker_deadlines.recovery.ledger import Entry, Event, Ledger
from tinker_deadlines.recovery.spacing import Spacing, spacing
from tinker_deadlines.recovery.spool import Spool
from tinker_deadlines.sdk import results

__all__ = ["Kept"]

log = logging.getLogger("tinker_deadlines")


class Kept:
    """What is kept of one training client, and how: its ledger, its batches, and where checkpoints are due.

    Args:
        run: The run's name; "" where nothing outlives this process.
        journal: Where the ledger is written down; `None` for nowhere.
        spool: Where batches wait.
        every: Optimizer steps between two checkpoints; `None` for as many as lose least.
        keep: Checkpoints of ours that are kept on the service.
    """

    def __init__(
        self, run: str, journal: Journal | None, spool: Spool, every: int | None, keep: int = limits.CHECKPOINTS_KEPT
    ) -> None:
        self.run = run
        self.spool = spool
        self.keep = keep
        self.ledger = Ledger.of(journal.events) if journal is not None else Ledger()
        self._journal = journal
        self._every = every
        self._step_s = limits.FIRST_STEP_S
        self._save_s = limits.FIRST_SAVE_S
        self._began = clock.monotonic()

    def note(self, event: Event) -> None:
        """Writes an event down, and only then takes it in."""
        at = None
        if self._journal is not None:
            try:
                at = self._journal.append(event)
            except OSError as error:
                log.warning(
                    "the ledger of the run %r cannot be written (%s): training goes on, but not after this process; "
                    "make room, and begin another run from the next checkpoint", self.run, error
                )  # fmt: skip
                self._journal.close()
                self._journal, self.run = None, ""
        self.ledger.apply(event, at)

    def text_of(self, result: Any) -> str | None:
        """An answer as it is kept; `None` where it is not."""
        if self._journal is None or self._journal.size > limits.LEDGER_BYTES:
            return None
        try:
            return results.as_text(result)
        except Exception as error:
            log.warning("an answer is not kept, and its run cannot be replayed: %s: %s", type(error).__name__, error)
            return None

    def answer_of(self, entry: Entry) -> Any:
        """The answer that a call was given before.

        Raises:
            LookupError: it was not kept.
        """
        if self._journal is None or entry.result_at is None:
            raise LookupError(f"the answer of call {entry.number} was not kept")
        return results.from_text(self._journal.event_at(entry.result_at)["result"])

    # When a checkpoint is due -----------------------------------------------------------------------------------------

    def took(self, *, step_s: float | None = None, save_s: float | None = None) -> None:
        """Learns from a step or a save: the mean of the last few, the last one counting a quarter."""
        if step_s is not None:
            self._step_s += (step_s - self._step_s) / 4
        if save_s is not None:
            self._save_s += (save_s - self._save_s) / 4

    def spacing(self) -> Spacing:
        """How far apart checkpoints are, and why."""
        ran_s = clock.monotonic() - self._began
        # As if one fault had been seen in the time that is reckoned with: what has happened weighs more with each.
        fault_every_s = (limits.FAULT_EVERY_S + ran_s) / (1 + self.ledger.recoveries)
        found = spacing(self._step_s, self._save_s, fault_every_s)
        return found if self._every is None else found._replace(steps=self._every)

    def close(self) -> None:
        """Closes its files."""
        self.spool.close()
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
