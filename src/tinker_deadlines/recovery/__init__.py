"""What happens after a call is dead: what may be done again, where, and how training goes on with nothing done twice.

Pure but for `journal`, `runs` and `spool`, which keep things on disk. What talks to the SDK is in `sdk`.
"""
