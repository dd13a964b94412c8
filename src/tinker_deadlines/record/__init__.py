"""What happened? Runs, their calls, probes and expiries, and what was learned of them, kept in a database."""

from tinker_deadlines.record.place import RecordError, place_of
from tinker_deadlines.record.recorder import Recorder, start

__all__ = ["RecordError", "Recorder", "place_of", "start"]
