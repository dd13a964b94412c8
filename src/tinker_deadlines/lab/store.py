"""What outlives the server? Checkpoints and training runs on disk, one file each, written whole or not at all.

A checkpoint is one `.npz` file that holds its arrays and, as JSON, its facts. It comes into being by a rename, so a
server killed at any moment leaves either the old checkpoint or the new one, and leftovers of an interrupted write
carry a name that no listing looks at.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from .model import Array

SECTIONS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_FACTS = "facts"


@dataclass(frozen=True)
class Checkpoint:
    """The facts of a checkpoint; its path is `tinker://<run>/<section>/<name>`."""

    run: str
    section: str
    name: str
    base_model: str
    lora: Mapping[str, Any]
    created_s: float
    expires_s: float | None = None
    public: bool = False
    optimizer: bool = False
    user_metadata: Mapping[str, str] | None = None
    size_bytes: int = 0

    @property
    def path(self) -> str:
        return f"tinker://{self.run}/{self.section}/{self.name}"


@dataclass(frozen=True)
class Run:
    """The facts of a training run, kept so that listings and resumes work after a restart."""

    run: str
    session: str
    base_model: str
    lora: Mapping[str, Any] = field(default_factory=dict)
    created_s: float = 0.0
    user_metadata: Mapping[str, str] | None = None


class Missing(KeyError):
    """Raised when there is no such checkpoint or run; the message is one sentence."""

    def __str__(self) -> str:
        return str(self.args[0])


def split_path(path: str) -> tuple[str, str, str]:
    """Returns run, section and name of a `tinker://` path; raises `Missing` if it is none."""
    parts = path.removeprefix("tinker://").split("/", 2)
    if not path.startswith("tinker://") or len(parts) != 3 or parts[1] not in SECTIONS or not all(parts):
        raise Missing(f"{path!r} is not a path of the form tinker://<run>/<weights|sampler_weights>/<name>.")
    return parts[0], parts[1], parts[2]


class Store:
    """All checkpoints and runs below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._runs = directory / "runs"
        self._runs.mkdir(parents=True, exist_ok=True)

    def save_run(self, run: Run) -> None:
        _write(self._run_directory(run.run) / "run.json", json.dumps(asdict(run)).encode())

    def run(self, run: str) -> Run:
        try:
            return Run(**json.loads((self._run_directory(run) / "run.json").read_bytes()))
        except FileNotFoundError:
            raise Missing(f"There is no training run {run!r}.") from None

    def runs(self) -> list[Run]:
        """Returns all runs, newest first."""
        found = [Run(**json.loads(path.read_bytes())) for path in self._runs.glob("*/run.json")]
        return sorted(found, key=lambda run: (-run.created_s, run.run))

    def save(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> Checkpoint:
        """Writes a checkpoint, replacing one of the same path, and returns it with its size."""
        size = sum(int(array.nbytes) for array in arrays.values())
        checkpoint = replace(checkpoint, size_bytes=size)
        facts = np.frombuffer(json.dumps(asdict(checkpoint)).encode(), dtype=np.uint8)
        file = self._file(checkpoint.run, checkpoint.section, checkpoint.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f".{uuid.uuid4().hex}.fresh")
        with fresh.open("wb") as out:
            np.savez(out, allow_pickle=False, **{_FACTS: facts}, **dict(arrays))
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
        return checkpoint

    def load(self, path: str) -> tuple[Checkpoint, dict[str, Array]]:
        """Returns a checkpoint with its arrays."""
        checkpoint = self.checkpoint(path)
        with np.load(self._file(*split_path(path)), allow_pickle=False) as archive:
            return checkpoint, {name: archive[name] for name in archive.files if name != _FACTS}

    def checkpoint(self, path: str) -> Checkpoint:
        found = self._read(self._file(*split_path(path)))
        if found is None:
            raise Missing(f"There is no checkpoint {path!r}.")
        return found

    def exists(self, run: str, section: str, name: str) -> bool:
        return self._read(self._file(run, section, name)) is not None

    def checkpoints(self, run: str | None = None) -> list[Checkpoint]:
        """Returns the checkpoints of a run, or of all, oldest first."""
        below = self._runs if run is None else self._run_directory(run)
        found = (self._read(file) for file in below.glob("*/*.npz" if run is not None else "*/*/*.npz"))
        return sorted((c for c in found if c is not None), key=lambda c: (c.created_s, c.path))

    def change(self, path: str, **facts: Any) -> Checkpoint:
        """Rewrites a checkpoint with some facts changed."""
        checkpoint, arrays = self.load(path)
        return self.save(replace(checkpoint, **facts), arrays)

    def delete(self, path: str) -> None:
        self.checkpoint(path)
        self._file(*split_path(path)).unlink(missing_ok=True)

    def file(self, path: str) -> Path:
        """Returns the file of a checkpoint that exists."""
        self.checkpoint(path)
        return self._file(*split_path(path))

    def _read(self, file: Path) -> Checkpoint | None:
        try:
            with np.load(file, allow_pickle=False) as archive:
                checkpoint = Checkpoint(**json.loads(archive[_FACTS].tobytes()))
        except FileNotFoundError:
            return None
        expired = checkpoint.expires_s is not None and checkpoint.expires_s <= time.time()
        if expired:
            file.unlink(missing_ok=True)
        return None if expired else checkpoint

    def _run_directory(self, run: str) -> Path:
        return self._runs / quote(run, safe="")

    def _file(self, run: str, section: str, name: str) -> Path:
        return self._run_directory(run) / section / f"{quote(name, safe='')}.npz"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{uuid.uuid4().hex}.fresh")
    with fresh.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(path)
