"""How does text become the model's bytes? Files that `AutoTokenizer` loads from a directory, without a network.

The SDK resolves a tokenizer with `AutoTokenizer.from_pretrained(name)`, and an absolute directory is a name it accepts.
Token n is the byte n; after the bytes come the special tokens of `model`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .model import BOS, BYTES, CONTEXT_LENGTH, EOS, PAD

SPECIAL_TOKENS = {"<|bos|>": BOS, "<|eos|>": EOS, "<|pad|>": PAD}

# Renders a conversation as plain lines, so that scripts calling `apply_chat_template` work.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """Writes the tokenizer's files into `directory`; files that are there already are left alone."""
    files = {"tokenizer.json": _tokenizer(), "tokenizer_config.json": _settings()}
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / name
        if not path.exists():
            # Two labs may share a directory; a rename is all or nothing for a reader.
            fresh = path.with_suffix(".fresh")
            fresh.write_text(json.dumps(content))
            fresh.replace(path)


def _tokenizer() -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    specials = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text, number in SPECIAL_TOKENS.items()
    ]
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {letter: byte for byte, letter in enumerate(_byte_letters())},
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def _settings() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "model_max_length": CONTEXT_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _byte_letters() -> list[str]:
    """Returns the letter by which the ByteLevel format writes each byte.

    Printable Latin-1 characters stand for themselves; all others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(BYTES) if byte not in printable]
    return [chr(byte) if byte in printable else chr(BYTES + hidden.index(byte)) for byte in range(BYTES)]
