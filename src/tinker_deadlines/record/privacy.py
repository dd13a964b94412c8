"""What may be kept of what was seen? Sizes, numbers and the words of this library; nothing that is a person's.

No prompt, no token, no key and no path reaches the record. What others report passes through here as well, so that a
stack or an error's text cannot carry one in.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["clean", "command_word", "exchange_word", "facts_of", "model_word", "number"]

# The longest text that is kept: the stacks of a few threads.
MAX_TEXT = 20_000
# Texts up to this length are looked through once and remembered.
MAX_ONCE = 100
# The longest list that is kept: a table of the calls in flight. Longer ones, and lists of numbers beyond a few, which
# may be tokens, leave only their length.
MAX_ITEMS = 1_000
MAX_NUMBERS = 16
MAX_DEPTH = 6

# "Qwen/Qwen3-8B": an organisation and a name at most, each of plain characters. Everything else may be a path.
_MODEL = re.compile(r"[A-Za-z0-9][\w.\-]{0,99}(/[A-Za-z0-9][\w.\-:]{0,99})?")

# The ends of paths that name an exchange and nobody's data; an address may also end in the name of a checkpoint.
_EXCHANGES = re.compile(
    r"asample|cancel_future|checkpoints|config|copy_weights|create_custom_loss|create_model|create_sampling_session|"
    r"create_session|current|dynamic_config|events|external_weights_urls|finish|forward|forward_backward|get_info|"
    r"get_server_capabilities|healthz|join_sampling_session|load_weights|me|optim_step|project|publish|retrieve_futures?|"
    r"save_weights|save_weights_external|save_weights_for_sampler|search|session_heartbeat|sessions|telemetry|token|"
    r"trace_export|training_runs|ttl|unload_model|weights_info"
)

# Where what is said under such a name is somebody's, only its length is kept.
_THEIRS = re.compile(
    r"(?i:api_?key|authorization|completions?|contents?|inputs?|key|messages|outputs?|password|prompts?|responses?|"
    r"secrets?|texts?|tokens?)"
)

_KEY = re.compile(r"\b(?:tml|sk|hf|ghp|Bearer)[-_ ][\w\-.]{4,}|(?i:\b(?:api[_-]?key|password|secret)\b\s*[=:]\s*\S+)")
_URL = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.\-]*)://[^\s\"')\]}>,]*")
_QUOTED_PATH = re.compile(r"\"([^\"\n]*[/\\][^\"\n]*)\"|'([^'\n]*[/\\][^'\n]*)'")
_PATH = re.compile(r"(?<![\w.:/\\])(?:~|\.{1,2}|[A-Za-z]:)?[/\\][^\s\"',;)\]}>]+")
_FRAME = re.compile(r"^(\s*)File \"")


def model_word(name: object) -> str | None:
    """The name of a model; for one that is given as a path, an address or anything else, the word "path"."""
    return None if name is None else _model_word(str(name))


@functools.lru_cache(maxsize=1024)
def _model_word(name: str) -> str:
    if not _MODEL.fullmatch(name):
        return "path"
    try:
        return "path" if "/" in name and Path(name).exists() else name
    except OSError:
        return "path"


def exchange_word(last: str) -> str:
    """What is kept of an exchange: the end of its path where that is one of the service's own words, and its status."""
    name, _, answer = last.rpartition(" ")
    shown = name if _EXCHANGES.fullmatch(name) else "other"
    return f"{shown} {clean(answer)}" if last else ""


def command_word(command: str) -> str:
    """What is kept of a command: the script's own name, or the module's, without place and arguments."""
    words = command.split()
    if words[:1] == ["-m"]:
        return clean(" ".join(words[:2]))
    return clean(re.split(r"[/\\]", words[0])[-1]) if words else ""


def number(value: object) -> float | None:
    """A finite number; `None` for anything else, which no database and no JSON agrees on."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def clean(text: str) -> str:
    """Text without keys, addresses, paths, lines of source and characters that a database refuses."""
    # Owners, verdicts and sessions come with every call, and are short.
    return _cleaned_once(text) if len(text) <= MAX_ONCE else _cleaned(text)


def _cleaned(text: str) -> str:
    text = text[:MAX_TEXT].replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    key = os.environ.get("TINKER_API_KEY", "")
    if len(key) >= 4:
        text = text.replace(key, "(key)")
    text = "\n".join(_without_source(text.split("\n"))) if "\n" in text else text
    text = _KEY.sub("(key)", text)
    text = _URL.sub(r"\1://(address)", text)
    text = _QUOTED_PATH.sub(lambda found: f'"{_last_name(found[1] or found[2])}"', text)
    return _PATH.sub(lambda found: _last_name(found[0]), text)


_cleaned_once = functools.lru_cache(maxsize=1024)(_cleaned)


def _last_name(path: str) -> str:
    """A file of Python keeps its name, which a stack cannot be read without; anything else is a path."""
    if "://(address)" in path:
        return path
    name = re.split(r"[/\\]", path.rstrip(":"))[-1]
    return name if name.endswith(".py") else "(path)"


def _without_source(lines: list[str]) -> Iterator[str]:
    """Leaves out the source that a stack shows under each frame: a call's arguments may stand there in full."""
    indent: int | None = None
    for line in lines:
        frame = _FRAME.match(line)
        if frame:
            indent = len(frame[1])
        elif indent is not None and len(line) - len(line.lstrip()) > indent:
            continue
        else:
            indent = None
        yield line


def facts_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of facts that others report: numbers, cleaned words, and lists and mappings of them."""
    return {clean(str(key)): _fact(str(key), value, 1) for key, value in list(facts.items())[:MAX_ITEMS]}


def _fact(name: str, value: object, depth: int) -> Any:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return number(value)
    if _THEIRS.fullmatch(name):
        return f"{len(value)} long" if isinstance(value, (str, bytes, Sequence, Mapping)) else type(value).__name__
    if isinstance(value, str):
        return model_word(value) if name in ("model", "base_model") else clean(value)
    if depth >= MAX_DEPTH or isinstance(value, (bytes, bytearray)):
        return type(value).__name__
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {clean(str(key)): _fact(str(key), item, depth + 1) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return _items(name, list(value), depth)
    return type(value).__name__


def _items(name: str, items: list[object], depth: int) -> Any:
    if len(items) > MAX_ITEMS:
        return f"{len(items)} items"
    if len(items) > MAX_NUMBERS and all(isinstance(item, (int, float)) for item in items):
        return f"{len(items)} numbers"
    return [_fact(name, item, depth + 1) for item in items]
