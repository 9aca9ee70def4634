"""A tiny model and its tokenizer, saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_envs.tiny_model import tiny_model, tiny_tokenizer


def save_tiny(folder: Path, tokenizer: Any = None, **sizes: Any) -> Path:
    """Save a tiny model with its tokenizer, by default one whose every byte is a token; return the folder."""
    tokenizer = tokenizer or tiny_tokenizer()
    tiny_model(tokenizer, **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
