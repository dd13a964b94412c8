"""Slow or dead? Signs of life, suspicion, a probe, and a verdict before anything is expired.

`signs` says what was seen of each session; `suspicion` turns silence into a number; `verdict` draws the conclusion
from what a probe found; `judge` decides on one call at its limit; `watcher` is the thread that looks.
"""
