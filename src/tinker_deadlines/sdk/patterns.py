"""Do failures follow the input, or the weights? Two patterns that look like a bad service and are none.

The same payload fails again and again while others pass; or every call on some weights fails while the base model
answers. Payloads are compared by a digest that is made when a call fails, and kept in memory alone.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import threading
from collections import Counter, OrderedDict
from typing import Any

from tinker_deadlines import clock
from tinker_deadlines.calls import SAMPLING_KINDS, Call, TinkerCallKind, Verdict
from tinker_deadlines.limits import PATTERN_FROM, PAYLOADS_KEPT
from tinker_deadlines.sdk.facts import Known, known_of

__all__ = ["Patterns", "digest_of", "patterns"]

log = logging.getLogger("tinker_deadlines")


def digest_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bytes | None:
    """What tells payloads apart, of a method's arguments after its client; `None` where that cannot be told."""
    try:
        return hashlib.blake2b(pickle.dumps((args[1:], kwargs or {})), digest_size=16).digest()
    except Exception:
        return None


class Patterns:
    """What failed together with what. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._completed: Counter[TinkerCallKind] = Counter()
        self._base_at: dict[str, float] = {}
        # Of each payload that failed: how often, and how many calls of its kind had completed when it did first.
        self._payloads: OrderedDict[bytes, list[int]] = OrderedDict()
        # Kinds and sizes of payloads that failed: a digest of a call that completed is only needed among these.
        self._sizes: set[tuple[object, ...]] = set()

    def forked(self) -> None:
        """A fork copies the lock in whatever state another thread held it."""
        self._lock = threading.RLock()

    def completed(self, call: Call) -> None:
        """Notes a call that was answered."""
        args, kwargs, call.args, call.kwargs = call.args, call.kwargs, None, None
        self._completed[call.kind] += 1  # racing threads may lose one
        if args is None:
            return
        if self._sizes and _size_of(call) in self._sizes:
            with self._lock:
                self._payloads.pop(digest_of(args, kwargs) or b"", None)  # it can pass: it was not the input
        known = _known(args)
        if known is None:
            return
        known.failures = 0
        if call.kind in SAMPLING_KINDS and call.model is not None and known.facts.elsewhere and not known.facts.adapted:
            self._base_at[call.model] = clock.monotonic()

    def failed(self, call: Call) -> Verdict | None:
        """Notes a call that failed or was given up, once, and says which pattern it fits."""
        args, kwargs, call.args, call.kwargs = call.args, call.kwargs, None, None
        if args is None:
            return None
        with self._lock:
            return self._by_weights(call, _known(args)) or self._by_payload(call, digest_of(args, kwargs))

    def _by_payload(self, call: Call, digest: bytes | None) -> Verdict | None:
        if digest is None:
            return None
        if len(self._sizes) > PAYLOADS_KEPT:
            self._sizes.clear()
        self._sizes.add(_size_of(call))
        entry = self._payloads.setdefault(digest, [0, self._completed[call.kind]])
        self._payloads.move_to_end(digest)
        while len(self._payloads) > PAYLOADS_KEPT:
            self._payloads.popitem(last=False)
        entry[0] += 1
        others = self._completed[call.kind] - entry[1]
        if entry[0] < PATTERN_FROM or others < PATTERN_FROM:
            return None
        if entry[0] == PATTERN_FROM:
            log.warning(
                "the same %s (%s) has failed %d times while %d others passed: look at what it is made of",
                call.method or call.kind, _sizes(call), entry[0], others,
            )  # fmt: skip
        return "input-dependent failure"

    def _by_weights(self, call: Call, known: Known | None) -> Verdict | None:
        if known is None or call.kind not in SAMPLING_KINDS or not known.facts.adapted:
            return None
        if known.failures == 0:
            known.failed_at = clock.monotonic()
        known.failures += 1
        if known.failures < PATTERN_FROM or self._base_at.get(call.model or "", -1.0) <= known.failed_at:
            return None
        if known.failures == PATTERN_FROM:
            log.warning(
                "the last %d calls on weights of %s failed while its base model answered: they may not be available",
                known.failures, call.model,
            )  # fmt: skip
        return "adapter unavailable"


def _known(args: tuple[Any, ...]) -> Known | None:
    return known_of(args[0]) if args else None


def _size_of(call: Call) -> tuple[object, ...]:
    """What a payload's calls have in common, whether they are the first on their weights or not."""
    return call.kind, None if call.work is None else call.work._replace(fresh=None)


def _sizes(call: Call) -> str:
    sizes = call.work._replace(fresh=None).sizes() if call.work is not None else {}
    return ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in sizes.items()) or "of unknown size"


patterns = Patterns()
