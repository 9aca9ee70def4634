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


def one_step(folder: Path) -> list[str]:
    """Return options of `train grpo` for one step of two episodes with a tiny model, from `folder` into its `out`."""
    model = save_tiny(folder / "model", hidden_size=32, n_heads=2, n_layers=1)
    settings = "--max-steps 1 --per-device-train-batch-size 2 --num-generations 2 --max-completion-length 8"
    rest = "--gradient-checkpointing false --report-to none --max-turns 1"
    return ["--model", str(model), "--out", str(folder / "out"), *settings.split(), *rest.split()]
