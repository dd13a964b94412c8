"""How do other people's tests get a lab? As the fixtures `tinker_lab` and `make_tinker_lab`.

Pytest loads this module in every run of every project that has the package installed, so it imports nothing but pytest
until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .lab import Lab


@pytest.fixture(scope="session")
def tinker_lab() -> Iterator[Lab]:
    """A lab server for the whole test run, without faults and without added latency."""
    from .lab import Lab

    with Lab() as lab:
        yield lab


@pytest.fixture
def make_tinker_lab() -> Iterator[Callable[..., Lab]]:
    """A function that starts a lab with the settings given to it; every lab is stopped when the test ends."""
    from .lab import Lab

    with ExitStack() as running:

        def make(*args: Any, **settings: Any) -> Lab:
            return running.enter_context(Lab(*args, **settings))

        yield make
