"""When is it installed? The moment somebody imports `tinker`, so that it lies under every later patch.

Nothing here imports the SDK: a program that never uses Tinker pays nothing.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

__all__ = ["install_on_import", "tinker_first"]


def install_on_import(then: Callable[[], object] | None = None) -> None:
    """Installs now where `tinker` is imported already, else right after its import.

    Args:
        then: What is done once it is installed.
    """
    if "tinker" in sys.modules:
        _install(then)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(then))


def tinker_first() -> None:
    """Imports the SDK, and so has the hook do its work, before a module of this package that needs it is half-way in.

    Called by whatever of ours a script may touch before it imports `tinker` itself.
    """
    importlib.import_module("tinker")


def _install(then: Callable[[], object] | None) -> None:
    from tinker_deadlines.sdk.install import install

    install()
    if then is not None:
        then()


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find `tinker` and has its loader install afterwards."""

    def __init__(self, then: Callable[[], object] | None) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds `tinker` alone, with the finders behind this one."""
        if name != "tinker":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _install(self._then)

        spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec
