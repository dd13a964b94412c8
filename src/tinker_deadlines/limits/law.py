"""How is the law of elapsed / predicted learned, and how does it forget? Its constants, none of them seconds.

Chosen on six simulated worlds, which `tinker_deadlines.replay` has built in.
"""

from __future__ import annotations

__all__ = [
    "GUARD_DECAY",
    "GUARD_FACTOR",
    "GUARD_MOST",
    "HALVE_EVERY",
    "KILL_SHARE",
    "KILL_WINDOW",
    "LEAST_COMPLETED",
    "P99_FACTOR",
    "PRIOR_CALLS",
    "PRIOR_SIGMA",
    "REFIT_EVERY",
    "TAIL_PRIOR_CALLS",
    "TAIL_PRIOR_SLOPE",
    "TAIL_SHARE",
]

# Before anything is learned: so many calls, log-normal around the prediction with this deviation.
PRIOR_CALLS = 30
PRIOR_SIGMA = 0.6

# The tail is what lies beyond this share, a Pareto law; its exponent starts at the slope, with the weight of so many
# calls in the tail. Runs of the same job differed by factors of 1.1 to 8.6.
TAIL_SHARE = 0.05
TAIL_PRIOR_CALLS = 20
TAIL_PRIOR_SLOPE = 0.45

# Counts are halved so often, so that a law is made of the last few thousand calls.
HALVE_EVERY = 2000

# The law is worked out anew after so many calls: it takes as long as ten limits, and changes little from call to call.
REFIT_EVERY = 10

# Until so many calls of its kind and model have completed, no limit is narrower than with nothing learned.
LEAST_COMPLETED = 30

# After a kill the limits of its kind and model are doubled, at most to sixteen times; each completed call takes 2 % of
# that back, so that one doubling is gone after 35.
GUARD_FACTOR = 2.0
GUARD_MOST = 16.0
GUARD_DECAY = 0.98

# Where more than this share of the last calls were killed, nothing is tightened: a policy that kills one in a hundred
# has no idea what is usual.
KILL_WINDOW = 200
KILL_SHARE = 0.01

# The simple rule beside all this: so many times the work-scaled 99th percentile.
P99_FACTOR = 3.0
