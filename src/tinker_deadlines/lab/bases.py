"""Which base models are there, and by what names? Each has a short name and a directory that holds its tokenizer.

The SDK loads a sampling client's tokenizer by the name of its base model alone. So that this works without a network,
the lab calls a base model by its directory wherever the SDK asks for a name; both names are accepted everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .model import CONTEXT_LENGTH, Shape, Weights, base_weights
from .refusal import unknown
from .tokenizer import write_tokenizer
from .wire import Json


class BaseModels:
    """The base models of one server."""

    def __init__(self, directory: Path, shapes: Mapping[str, Shape]) -> None:
        self._directory = directory
        self._shapes = shapes
        self._weights: dict[str, Weights] = {}
        for name in shapes:
            write_tokenizer(directory / name)

    def resolve(self, name: object) -> str:
        """Returns the short name of a base model given by either of its names."""
        short = str(name).removeprefix(f"{self._directory}/")
        if short not in self._shapes:
            known = ", ".join(self._shapes)
            raise unknown(f"There is no base model {name!r}; the lab has {known}.")
        return short

    def tokenizer_directory(self, name: str) -> str:
        """Returns the name under which the SDK finds the tokenizer."""
        return str(self._directory / name)

    def weights(self, name: str) -> Weights:
        if name not in self._weights:
            self._weights[name] = base_weights(name, self._shapes[name])
        return self._weights[name]

    def capabilities(self) -> Json:
        names = [self.tokenizer_directory(name) for name in self._shapes] + list(self._shapes)
        facts = {"max_context_length": CONTEXT_LENGTH, "trainable": True, "sampleable": True}
        return {"supported_models": [{"model_name": name, **facts} for name in names]}
