"""Which numbers ship with the library, where does each come from, and what did a person set instead?

Every constant of policy stands here, in seconds unless its name says otherwise.
"""

from __future__ import annotations

import math
import os
from typing import Literal

from tinker_deadlines.calls import KINDS, TinkerCallKind
from tinker_deadlines.limits.law import (
    GUARD_DECAY,
    GUARD_FACTOR,
    GUARD_MOST,
    HALVE_EVERY,
    KILL_SHARE,
    KILL_WINDOW,
    LEAST_COMPLETED,
    P99_FACTOR,
    PRIOR_CALLS,
    PRIOR_SIGMA,
    REFIT_EVERY,
    TAIL_PRIOR_CALLS,
    TAIL_PRIOR_SLOPE,
    TAIL_SHARE,
)
from tinker_deadlines.limits.priors import (
    KNOWN_MODELS,
    MIDDLE_MODEL,
    SIZE_EXTRA_B,
    SIZE_REFERENCE_B,
    WORK_PRIORS,
    WorkPrior,
    WorkTerm,
)

__all__ = [
    "ADVANTAGE_EPSILON",
    "ALIVE_S",
    "ASK_EVERY_S",
    "ASK_FROM_S",
    "CEILINGS_S",
    "CEILING_ENV_PREFIX",
    "CHECKPOINTS_KEPT",
    "CHECKPOINT_TTL_S",
    "CLOSE_LIMIT_S",
    "COALESCE_S",
    "CONVICT_FROM",
    "DEADLINE_ENV_PREFIX",
    "DEFAULT_DEADLINES_S",
    "DUMPED_CALLS",
    "EXIT_GRACE_S",
    "EXIT_PAUSE_S",
    "EXPIRIES_IN_A_ROW",
    "FALSE_KILLS",
    "FALSE_KILLS_ONCE",
    "FAULT_EVERY_S",
    "FIRST_SAVE_S",
    "FIRST_STEP_S",
    "FLOORS_S",
    "FRESH_ALLOWANCE_S",
    "GUARD_DECAY",
    "GUARD_FACTOR",
    "GUARD_MOST",
    "HALVE_EVERY",
    "HEDGES_A_MINUTE",
    "HEDGE_CLIENTS",
    "HEDGE_CROWD",
    "HEDGE_SHARE",
    "HEDGE_WINDOW_S",
    "KILL_SHARE",
    "KILL_WINDOW",
    "KNOWN_MODELS",
    "LAST_WORDS_S",
    "LEARN_BACKLOG",
    "LEAST_COMPLETED",
    "LEAST_EXIT_GRACE_S",
    "LEAST_EXPECTED",
    "LEAST_VALID",
    "LEDGER_BYTES",
    "LENGTH_BINS",
    "LENGTH_TREND_Z",
    "LIMITS_KEPT",
    "LINE_EVERY_S",
    "LOAD_BY_CHANCE",
    "LOAD_WINDOW",
    "LOOK_AGAIN_S",
    "LOOK_EVERY_S",
    "LOOK_UP_S",
    "MAX_ABANDONED_WORKERS",
    "MAX_WORKERS",
    "MIDDLE_MODEL",
    "MIN_LIMIT_S",
    "ONCE_KINDS",
    "P99_FACTOR",
    "PATTERN_FROM",
    "PAUSE_BUDGET_S",
    "PAUSE_NOTICES_S",
    "PAYLOADS_KEPT",
    "POLICY_ENV",
    "PRIOR_CALLS",
    "PRIOR_SIGMA",
    "PROBE_LIMIT_S",
    "READY_STREAMS",
    "RECORD_BACKLOG",
    "RECORD_BATCH",
    "RECORD_BUSY_S",
    "RECORD_CLOSE_S",
    "RECORD_FLUSH_S",
    "RECORD_KEEP_DAYS",
    "RECORD_LOOK_S",
    "RECORD_RETRY_S",
    "RECORD_STATE_S",
    "RECOVERIES_FOR_ONE",
    "RECOVERY_ATTEMPTS",
    "RECOVERY_LIMIT_S",
    "RECOVERY_WAIT_MOST_S",
    "RECOVERY_WAIT_S",
    "REDRAW_EVERY_S",
    "REFIT_EVERY",
    "REPLAYED_AT_ONCE",
    "REPLAY_MEMORY_BYTES",
    "SAMPLERS_KEPT",
    "SESSIONS_KEPT",
    "SESSION_BUDGET",
    "SESSION_BUDGET_ENV",
    "SESSION_WARN_SHARE",
    "SHARE_ENV",
    "SILENCE_S",
    "SIZE_EXTRA_B",
    "SIZE_REFERENCE_B",
    "STACK_FRAMES",
    "STALLS_KEPT",
    "STALL_S",
    "STOP_LIVE_WITHIN_S",
    "SUSPECT_FROM",
    "TAIL_PRIOR_CALLS",
    "TAIL_PRIOR_SLOPE",
    "TAIL_SHARE",
    "TELLER_STALL_S",
    "TIDY_FROM",
    "WORKER_IDLE_S",
    "WORK_PRIORS",
    "WorkPrior",
    "WorkTerm",
    "ceiling_for",
    "env_var_for",
    "override_for",
    "sessions_allowed",
    "sharing_wanted",
]

# The ceiling of ignorance: what holds while nothing better is known about a call. The numbers come from runs with
# students up to 120B parameters and 240k tokens of context, where 120 s killed calls that were only slow and an
# optimizer step after a batch of 512 datums took longer than 120 s. `connect` is everything that blocks without
# a future: an independent process made a client in 0.7 s while a wedged one waited 33 minutes.
DEFAULT_DEADLINES_S: dict[TinkerCallKind, float] = {
    "sample": 300.0,
    "compute_logprobs": 300.0,
    "forward_backward": 900.0,
    "optim_step": 600.0,
    "save_state": 600.0,
    "load_state": 600.0,
    "save_weights_for_sampler": 600.0,
    "connect": 60.0,
    "rest": 60.0,
}

DEADLINE_ENV_PREFIX = "WMO_TINKER_DEADLINE_"

# Names the policy of a process in which deadlines are installed: "learned" where it is not set.
POLICY_ENV = "TINKER_DEADLINES_POLICY"

# A person's number below this counts as this much: a limit of nothing would expire calls that never had a chance.
MIN_LIMIT_S = 0.001

# `close` and `__exit__` of a service client: they wait for a request that says "finished" and may carry an exception
# out of a `with` block meanwhile. Measured in the SDK: more than 15 s on a failing server, 5 minutes by its code.
CLOSE_LIMIT_S = 10.0

# Threads that were given up while their call still blocks. Each holds a stack and whatever the call holds; so
# many at once mean that the process should be looked at rather than be given more.
MAX_ABANDONED_WORKERS = 32

# Threads that run blocking calls at the same time; further calls wait for one, each against its own limit.
# Arbitrary: four times the abandoned ones, far below the thread limits of any platform.
MAX_WORKERS = 128

# How long a worker without work stays for the next call. Arbitrary: longer than the pause between two steps.
WORKER_IDLE_S = 60.0

# Expired futures are completed on a thread of their own. When one person's done-callback holds it up for this long,
# another thread goes on with the rest. Half of the 50 ms that an expiry may be late.
TELLER_STALL_S = 0.025

# The timer looks for further alarms only after this long, so that calls that run out together are told together: at
# 50,000 expiries a second the two threads would otherwise spend their time on waking each other.
COALESCE_S = 0.001

# A count, not seconds: alarms taken back before their heap is tidied at all. Arbitrary: below it, nothing is saved.
TIDY_FROM = 1024

# `tinker-deadlines run`: once a script's main code has ended, its process has so long to end as well. Uploads of logs
# and joins of thread pools end well within it; nobody pays for a dead process for longer.
EXIT_GRACE_S = 30.0

# The least of it: an orderly exit takes some hundredths of a second, on a busy machine some tenths.
LEAST_EXIT_GRACE_S = 0.5

# A process that we end ourselves says why within this: a pipe that nobody reads would hold it up for ever.
LAST_WORDS_S = 2.0

# The live table is redrawn at most four times a second: ages move visibly, and no CPU is missed.
REDRAW_EVERY_S = 0.25

# Where nobody looks as it is written, a line on the run this often: a day of it stays readable in a log.
LINE_EVERY_S = 30.0

# The end of a run waits so long for a live display that is stuck in a terminal which takes nothing.
STOP_LIVE_WITHIN_S = 1.0

# Slow or dead ---------------------------------------------------------------------------------------------------
# Where a number is called simulated, it is that of the simulation of session suspicion in docs/policies.md.

# The watcher looks at the sessions once a second: the finest step of anything below.
LOOK_EVERY_S = 1.0

# No session is convicted on less silence than this. Simulated: with 15 s, no false conviction while the load
# alternates between 1 and 4 times the usual, with 1, 8 and 64 calls in flight; without it, up to 53 an hour.
SILENCE_S = 15.0

# A suspected session is asked from this much silence on, so that the answers are there when it may be convicted.
ASK_FROM_S = 5.0

# How often a suspected session is asked.
ASK_EVERY_S = 15.0

# How long each question of a probe may take; they are asked side by side. The SDK's own heartbeat waits as long.
PROBE_LIMIT_S = 10.0

# φ, no seconds: from 3 on (a silence that comes once in a thousand times) a session is asked, from 8 on (Akka's and
# Cassandra's threshold for dead) it is convicted unless a probe says otherwise.
SUSPECT_FROM = 3.0
CONVICT_FROM = 8.0

# A call that the service answered within this shows life. A poll is answered within 45 s, with the SDK's other HTTP
# client within 90 s; the rest is for a slow network.
ALIVE_S = 100.0

# A call that is let go on past its limit is looked at again this often.
LOOK_AGAIN_S = 15.0

# A watcher that wakes so late was kept from running: the machine slept, or the interpreter lock was held.
STALL_S = 5.0

# Whoever waits on a paused service hears of it at these ages of the pause.
PAUSE_NOTICES_S = (60.0, 300.0, 900.0)

# The most that a service may have paused one call. The SDK gives up on a billing pause after one hour; a pause for
# capacity was seen to last hours, and ending it loses the work that waits.
PAUSE_BUDGET_S = 6 * 3600.0

# Counts: completed calls that tell the present load; stalls of this process that are remembered; calls of the table
# that is recorded when some end; frames of a stack that say where a thread is; calls that have ended
# and wait to be learned from; and sessions that are remembered (the
# service refuses about the 240th of a process).
LOAD_WINDOW = 20
STALLS_KEPT = 16
DUMPED_CALLS = 100
STACK_FRAMES = 8
LEARN_BACKLOG = 100_000
LIMITS_KEPT = 1000
SESSIONS_KEPT = 1000

# Counts: failures in a row from which on a pattern is told (two may be chance, and a third is seldom); payloads that
# are compared, by a digest of 16 bytes each.
PATTERN_FROM = 3
PAYLOADS_KEPT = 1024

# Second attempts of calls that may have been lost: at most this share of all calls, and this many a minute on top.
# Finagle's retry budget has the same 20 %.
HEDGE_SHARE = 0.2
HEDGES_A_MINUTE = 10

# What may be repeated is reckoned over windows of this length, the present one and the one before.
HEDGE_WINDOW_S = 60.0

# A count: from so many calls in flight on, one that takes too long is compared with those that were answered since, so
# that none is repeated where all became slow. Fewer have nobody to be compared with. Arbitrary, and a few cost little.
HEDGE_CROWD = 16

# A factor: a load up to this is no load. The median of a few calls is off by so much by chance.
LOAD_BY_CHANCE = 1.5

# A count: sampling clients that are kept for second attempts, one for each weights. Arbitrary: a run samples from few
# weights at a time, and a client is made again in half a second.
HEDGE_CLIENTS = 8

# Sessions -----------------------------------------------------------------------------------------------------------

# Seconds: after its last request the process goes on for so long before it ends. The SDK's transport has answered by
# then, and its threads still have to return from Python: one that finds the interpreter gone aborts the process.
EXIT_PAUSE_S = 0.05

# None of the following are seconds.

# Sessions that a process may hold open. The service was seen to refuse the next at about 240; the rest is room for
# other processes of the same key, and for sessions whose creation was never answered.
SESSION_BUDGET = 200
SESSION_BUDGET_ENV = "TINKER_DEADLINES_SESSIONS"

# A person hears of it, once, when this share of it is used.
SESSION_WARN_SHARE = 0.8

# Whether equal clients share one session: "on" where it is not set.
SHARE_ENV = "TINKER_DEADLINES_SHARE"

# A session in which so many calls in a row ran into their limits is shared with no further client. Runs that went on
# with theirs had 9 and 96 such calls, while a fresh process was answered in 1.7 s; not after one, because each
# new session is one of those that the budget counts.
EXPIRIES_IN_A_ROW = 3

# Sampling clients of a session that are kept while nobody else holds them. Arbitrary: rollouts sample from few weights
# at a time, and a client is made again in half a second.
SAMPLERS_KEPT = 32

# Small samples that go out at once to get new weights ready. One did not do: of the calls after it, a fifth were still
# lost; the cost is the way to many streams.
READY_STREAMS = 8

# The record ---------------------------------------------------------------------------------------------------------

# The record is written this often. A crash may lose the last second: most of it to wait, and what is left to write.
RECORD_FLUSH_S = 0.8

# A database that could not be written is tried again after this long. Arbitrary: often enough that a disk with room
# again is found while somebody looks, seldom enough that a dead server costs nothing.
RECORD_RETRY_S = 5.0

# The end of a run waits so long for what is not written yet: the writer's one wait for another process's write to the
# same file, which is the next number, fits into it. What is not written by then is lost, and its number said.
RECORD_CLOSE_S = 6.0

# A process waits so long for another that writes to the same file, and for a server to answer. A batch takes
# milliseconds; 5 s is SQLite's own usual number.
RECORD_BUSY_S = 5.0

# How often it looks whether a file may be opened, which one process does at a time. Opening takes milliseconds.
RECORD_LOOK_S = 0.01

# The start of a run waits so long for what earlier runs learned, and its end to add to it: one wait as above, and the
# second that SQLAlchemy may take to be imported on a busy machine. A run without it starts with what is shipped.
RECORD_STATE_S = 8.0

# A count, not seconds: what is kept in memory of a record that cannot be written; then the oldest goes. About 40 MB;
# 50,000 calls that end in one moment, as in a session that wedges, fit in.
RECORD_BACKLOG = 50_000

# A count: what is written in one transaction. Some 20 ms of work, during which other processes wait for their turn.
RECORD_BATCH = 2_000

# Days: `tinker-deadlines record --prune` keeps runs younger than this. Arbitrary: a month of runs to compare.
RECORD_KEEP_DAYS = 30.0

# Recovery -----------------------------------------------------------------------------------------------------------

# A count: attempts to bring a new training client to where the old one stood. Each waits out an outage within its
# calls' own limits; five of them, with the waits between, last from seconds to about an hour.
RECOVERY_ATTEMPTS = 5

# The wait before the second attempt, and the longest one; it doubles, with as much again by chance. A service that
# refuses everybody for a minute is common; more than a minute between two attempts is time lost.
RECOVERY_WAIT_S = 2.0
RECOVERY_WAIT_MOST_S = 60.0

# Whether a save landed is asked for so long. A list of checkpoints comes in a tenth of a second; what cannot be found
# out is saved again.
LOOK_UP_S = 10.0

# A recovery is over after this long whatever its attempts do: the ceiling of a restore and of a step, twice.
RECOVERY_LIMIT_S = 7200.0

# A count: a call that has the client given up so often in a row is not sent again: its payload is what is wrong.
RECOVERIES_FOR_ONE = 3

# A count: calls that are made again at once while a new client is brought up. Enough that none waits for an answer's
# way; few enough that a fault then leaves few on their way.
REPLAYED_AT_ONCE = 8

# Until faults have been seen, one is reckoned with every so often: a run of a day that meets three.
FAULT_EVERY_S = 8 * 3600.0

# Until a save and a step have been measured: the shipped priors of a small model's save, and of a step of 128 datums.
FIRST_SAVE_S = 5.0
FIRST_STEP_S = 8.0

# A count: checkpoints of ours that are kept. One would do; the second is there if the service has lost the first.
CHECKPOINTS_KEPT = 2

# How long the service keeps a checkpoint of ours: seven days, longer than the runs that are known of. The service takes
# one hour to ten years. Those of a run that ends well are deleted by then; those of one that does not can be gone on
# with for so long.
CHECKPOINT_TTL_S = 7 * 24 * 3600

# Bytes, not seconds: batches since the last checkpoints that are kept in memory; the others are on disk.
REPLAY_MEMORY_BYTES = 256 * 1024 * 1024

# Bytes: what a run's ledger may take on disk with the results of its calls. Beyond it, results are not kept, and the
# run can be gone on with by a script that keeps its own position only.
LEDGER_BYTES = 4 * 1024**3

# How long a policy waits --------------------------------------------------------------------------------------------

# The share of living calls that a limit may cut. It follows from what an error costs: with one dead call in 2,000, a
# tail exponent of 0.3 and a limit of 100 s, redoing a sample (30 s) balances at 1.5e-4, restoring a checkpoint
# (1,800 s) at 8e-6. Rounded, and for samples doubled: a call that shows life is not expired at its limit anyway.
FALSE_KILLS = 3e-4
FALSE_KILLS_ONCE = 1e-5

# Kinds that may not be repeated after a lost answer: an error costs a restored checkpoint.
ONCE_KINDS: frozenset[TinkerCallKind] = frozenset({"forward_backward", "optim_step", "load_state"})

# No limit that a policy works out is narrower. The service's training cycles last up to 10 s: two of them. REST calls
# range from a list to an archive and have no size to go by: learning does not narrow their flat default.
FLOORS_S: dict[TinkerCallKind, float] = {
    "sample": 5.0,
    "compute_logprobs": 5.0,
    "forward_backward": 20.0,
    "optim_step": 20.0,
    "save_state": 20.0,
    "load_state": 20.0,
    "save_weights_for_sampler": 20.0,
    "connect": 10.0,
    "rest": 60.0,
}

# No limit that a policy works out is wider: a bad host may not teach patience for ever. Of 2,321 samples with a long
# context all ended within 1,800 s; a forward_backward of a 397B model at 256k tokens takes 1,200 s to 1,800 s, and its
# users settled on 3,600 s. Creations that took longer than 600 s were in outages. A person may set the first two.
CEILINGS_S: dict[TinkerCallKind, float] = {
    "sample": 1800.0,
    "compute_logprobs": 1800.0,
    "forward_backward": 3600.0,
    "optim_step": 3600.0,
    "save_state": 3600.0,
    "load_state": 3600.0,
    "save_weights_for_sampler": 3600.0,
    "connect": 600.0,
    "rest": 600.0,
}
CEILING_ENV_PREFIX = "TINKER_DEADLINES_CEILING_"

# The first call on new weights or of a new shape may take so much longer. Measured against a server that compiles each
# shape: 3 s to 5 s where later calls take 0.1 s to 0.6 s. Six times that: larger models compile and load for longer.
FRESH_ALLOWANCE_S = 30.0

# What an episode is worth ---------------------------------------------------------------------------------------------
# None of these are seconds.

# Added to the standard deviation of a group's rewards before they are divided by it, as TRL's GRPO trainer does:
# rewards that differ by rounding alone are not blown up to advantages of 1. Equal rewards have none in any case.
ADVANTAGE_EPSILON = 1e-4

# A share: a score over fewer valid episodes than this is not accepted. With a tenth missing, the mean over the rest is
# off by at most a tenth of the range of rewards, whatever those that are missing would have got. Where in that range
# one draws the line is arbitrary; a stricter evaluation passes its own.
LEAST_VALID = 0.9

# Counts: episodes are put into so many bins of equal size by their length; no trend is reckoned where fewer expiries,
# or fewer episodes that did not expire, would be expected in either half: Cochran's rule for tests that rest on a
# normal law.
LENGTH_BINS = 10
LEAST_EXPECTED = 5

# Standard deviations: from here on the rate of expiry is said to rise with length. By chance that comes once in 740
# looks, and a long run is looked at often.
LENGTH_TREND_Z = 3.0

_ENV_VARS: dict[TinkerCallKind, str] = {kind: DEADLINE_ENV_PREFIX + kind.upper() for kind in KINDS}


def env_var_for(kind: TinkerCallKind) -> str:
    """Names the environment variable that sets the limit of a kind.

    Raises:
        ValueError: `kind` is not a kind of call.
    """
    try:
        return _ENV_VARS[kind]
    except (KeyError, TypeError):
        raise ValueError(f"{kind!r} is not a kind of Tinker call; the kinds are {', '.join(KINDS)}") from None


def parse_seconds(text: str, *, what: str, example: float) -> float:
    """Reads a positive, finite number of seconds; less than a millisecond counts as one.

    Raises:
        ValueError: the text is anything else; the message names `what`, the text and the fix.
    """
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(
            f"{what} is {text!r}, which is not a positive finite number of seconds; "
            f"set it to a number such as {example:g}, or remove it"
        )
    return max(seconds, MIN_LIMIT_S)


# `os.environ.get` encodes the name and raises and catches a KeyError for every variable that is not set: 0.9 µs, as
# much as the whole wait on a finished future may cost. The mapping underneath answers in 0.05 µs and is written
# through by every assignment to `os.environ`. An `os.environ` that has no such mapping is asked in the plain way.
_encode = getattr(os.environ, "encodekey", None)
_KEYS: dict[str, object] = {kind: _encode(name) for kind, name in _ENV_VARS.items()} if _encode else {}


def override_for(kind: TinkerCallKind) -> float | None:
    """The limit in seconds that a person set for this kind in the environment, read now; `None` if none is set.

    Raises:
        ValueError: `kind` is not a kind of call, or the variable holds anything but a positive finite number of
            seconds. The message names the variable, its value, the fix, and the default.
    """
    try:
        raw = os.environ._data.get(_KEYS[kind])  # type: ignore[attr-defined]
    except (AttributeError, KeyError, TypeError):
        raw = os.environ.get(env_var_for(kind))
    if raw is None:
        return None
    text = os.environ[_ENV_VARS[kind]]
    default = DEFAULT_DEADLINES_S[kind]
    try:
        return parse_seconds(text, what=f"the environment variable {_ENV_VARS[kind]}", example=default)
    except ValueError as error:
        raise ValueError(f"{error} for the default of {default:g} s") from None


def ceiling_for(group: Literal["sampling", "training"], default_s: float) -> float:
    """The widest limit of a group of kinds: what a person set in the environment, else the default; in seconds.

    Raises:
        ValueError: the variable holds anything but a positive finite number of seconds.
    """
    name = CEILING_ENV_PREFIX + group.upper()
    text = os.environ.get(name)
    return (
        default_s if text is None else parse_seconds(text, what=f"the environment variable {name}", example=default_s)
    )


def sessions_allowed() -> int:
    """How many sessions this process may hold open: what a person set in the environment, read now, else the default.

    Raises:
        ValueError: the variable holds anything but a whole number above 0.
    """
    text = os.environ.get(SESSION_BUDGET_ENV)
    if text is None:
        return SESSION_BUDGET
    try:
        most = int(text)
    except ValueError:
        most = 0
    if most < 1:
        raise ValueError(
            f"the environment variable {SESSION_BUDGET_ENV} is {text!r}, which is not a whole number above 0; set it "
            f"to a number such as {SESSION_BUDGET}, or remove it"
        )
    return most


def sharing_wanted() -> bool:
    """Whether equal clients share one session, as a person says in the environment: "on", "off", or nothing for on.

    Raises:
        ValueError: the variable holds anything else.
    """
    text = os.environ.get(SHARE_ENV, "on")
    if text not in ("on", "off"):
        raise ValueError(f'the environment variable {SHARE_ENV} is {text!r}; set it to "on" or "off", or remove it')
    return text == "on"
