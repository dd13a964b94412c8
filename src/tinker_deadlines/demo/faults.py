"""What goes wrong in the demo, and for how long would it have hung without this library?

The durations are those of the Tinker SDK's own constants, 0.38.0.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DISTILLATION", "EPISODES", "FINETUNING", "Fault", "longest_request_s", "rules"]

# One HTTP request of the SDK: 10 retries after the first try. A server that accepts and is silent costs each try the
# read and the write timeout of 60 s together. The pauses between tries double from 0.5 s up to 10 s.
TRIES = 11
TRY_S = 120.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0


class Fault(NamedTuple):
    """One thing that goes wrong."""

    name: str
    rule: str
    """The rest of the fault rule in TOML."""
    title: str
    would_hang: str
    """For how long, and why, where nothing bounds the call."""
    remedy: str
    """What was done after the call was cut."""


def longest_request_s() -> float:
    """Seconds that the SDK spends on one request to a server that never answers."""
    pauses: list[float] = [min(FIRST_PAUSE_S * 2.0**number, LONGEST_PAUSE_S) for number in range(TRIES - 1)]
    return TRIES * TRY_S + sum(pauses)


DISTILLATION = (
    Fault(
        "auth",
        'do = "auth_blackhole"\ntimes = 1',
        "the exchange of the API key for a token is black-holed",
        f"up to {longest_request_s() / 60:.0f} min ({TRIES} tries of {TRY_S:.0f} s), with every request behind it",
        "connection error; the script made a new service client",
    ),
    Fault(
        "creation",
        'do = "future_never_completes"\npath = "create_model"\nnth = 2',
        "the student's training client is never ready",
        "for ever (the SDK polls without a limit)",
        "connection error; the script asked for another one",
    ),
    Fault(
        "sample",
        'do = "future_never_completes"\nkind = "sample"\nnth = 20',
        "a sample never returns, while its siblings do",
        "for ever (the SDK's 120 min without progress start anew with each sibling's)",
        "connection error; the request was cancelled and sent again",
    ),
)

EPISODES = (
    Fault(
        "paused",
        'do = "try_again"\nkind = "sample"\nnth = "4.."\nfor_s = 3600\nqueue_state = "paused_capacity"\n'
        'queue_state_reason = "running short on capacity"',
        "the service pauses sampling for want of capacity",
        "as long as the pause lasts, here an hour",
        "cut by the episode's wall: no error of the service, no reward, not tried again",
    ),
)


FINETUNING = (
    Fault(
        "step",
        'do = "future_never_completes"\npath = "optim_step"\nnth = 6',
        "an optimizer step is executed, and its answer never comes",
        "for ever (the SDK polls without a limit)",
        "a new client, from where the ledger stands: the step is applied once",
    ),
    Fault(
        "wedge",
        'do = "silence_session"\npath = "forward_backward"\nnth = 22',
        "the whole session goes silent, while a new one works",
        f"about {longest_request_s() / 60:.0f} min, and then again at each call",
        "a session of its own, the last checkpoint with its optimizer, and the steps since then",
    ),
)


def rules(faults: tuple[Fault, ...]) -> str:
    """The faults as the text of a fault file."""
    return "\n".join(f'[[fault]]\nname = "{fault.name}"\n{fault.rule}\n' for fault in faults)
