"""Inference below the policies, as plain functions. Each module is loaded when one of its names is first used.

| part | functions |
|---|---|
| `loading` | `load_model`, `load_tokenizer`, `context_length`, `eos_token_ids` |
| `sampling` | `generate`, `batch_generate` |
| `scoring` | `token_logps`, `token_logits` |
| `conversation` | `conversation_turn`, `aconversation_turn`, `next_prompt_ids`, `create_...` |
| `text` | `generate_text` |

The model, the loader, the generator, the template and the seeds are arguments. No function keeps state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_envs.policies.inference.conversation import (
        aconversation_turn,
        conversation_turn,
        create_executor,
        create_policy_generator,
        next_prompt_ids,
    )
    from llm_envs.policies.inference.loading import context_length, eos_token_ids, load_model, load_tokenizer
    from llm_envs.policies.inference.sampling import batch_generate, generate
    from llm_envs.policies.inference.scoring import token_logits, token_logps
    from llm_envs.policies.inference.seeds import turn_seed
    from llm_envs.policies.inference.text import generate_text

__all__ = [
    "aconversation_turn",
    "batch_generate",
    "context_length",
    "conversation_turn",
    "create_executor",
    "create_policy_generator",
    "eos_token_ids",
    "generate",
    "generate_text",
    "load_model",
    "load_tokenizer",
    "next_prompt_ids",
    "token_logits",
    "token_logps",
    "turn_seed",
]

_LAZY = {
    "aconversation_turn": "conversation",
    "batch_generate": "sampling",
    "context_length": "loading",
    "conversation_turn": "conversation",
    "create_executor": "conversation",
    "create_policy_generator": "conversation",
    "eos_token_ids": "loading",
    "generate": "sampling",
    "generate_text": "text",
    "load_model": "loading",
    "load_tokenizer": "loading",
    "next_prompt_ids": "conversation",
    "token_logits": "scoring",
    "token_logps": "scoring",
    "turn_seed": "seeds",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
