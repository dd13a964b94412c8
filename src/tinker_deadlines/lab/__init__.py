"""A Tinker server to break: what a training script can be tested against, and how is it started?"""

from __future__ import annotations

from .lab import Lab, serve

__all__ = ["Lab", "serve"]
