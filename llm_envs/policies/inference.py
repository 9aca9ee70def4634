"""Inference by hand: plain functions below the policies.

| part | functions |
|---|---|
| `loading` | `load_model`, `load_tokenizer`, `context_length`, `eos_token_ids` |
| `sampling` | `generate`, `batch_generate`, `create_generator` |
| `scoring` | `token_logps`, `token_logits` |
| `conversation` | `conversation_turn`, `aconversation_turn`, `next_prompt_ids`, `parse_thinking`, `create_...` |

Each takes what it needs as an argument: the model, the loader, the generator, the template, the seeds. None keeps
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_envs.chat import ChatCodec
from llm_envs.policies.conversation import (
    ConversationTurn,
    ExecuteFn,
    GenerateFn,
    TemplateFn,
    aconversation_turn,
    conversation_turn,
    create_executor,
    create_policy_generator,
    create_template_fn,
    next_prompt_ids,
    parse_thinking,
)
from llm_envs.policies.loading import context_length, eos_token_ids, load_model, load_tokenizer
from llm_envs.policies.padding import IdArray
from llm_envs.policies.sampling import batch_generate, create_generator, generate
from llm_envs.policies.scoring import token_logits, token_logps
from llm_envs.policies.seeds import turn_seed
from llm_envs.types import Message, Sampled, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "ConversationTurn",
    "ExecuteFn",
    "GenerateFn",
    "IdArray",
    "TemplateFn",
    "aconversation_turn",
    "batch_generate",
    "context_length",
    "conversation_turn",
    "create_executor",
    "create_generator",
    "create_policy_generator",
    "create_template_fn",
    "eos_token_ids",
    "generate",
    "generate_text",
    "load_model",
    "load_tokenizer",
    "next_prompt_ids",
    "parse_thinking",
    "token_logits",
    "token_logps",
    "turn_seed",
]


def generate_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    messages: str | Sequence[Message],
    params: SamplingParams | None = None,
    *,
    seed: int | None = None,
    template_fn: TemplateFn | None = None,
) -> tuple[str, Sampled]:
    """Answer messages with text: template, `generate`, decode.

    Args:
        model: A causal language model in eval mode.
        tokenizer: Its tokenizer, with a chat template.
        messages: The conversation, or the text of a single user message.
        params: How to sample.
        seed: The same seed and messages give the same answer; None takes it from `params.seed`.
        template_fn: In place of the tokenizer's own chat template.

    Returns:
        The answer without its end-of-turn token, and the ids, log-probabilities and finish reason behind it. A prompt
        that fills the context gives "" and `FinishReason.CONTEXT_FULL`.

    Raises:
        ModelError: If the tokenizer has no usable chat template.
    """
    codec = ChatCodec(tokenizer)
    conversation = [Message("user", messages)] if isinstance(messages, str) else messages
    sampled = generate(
        model,
        (template_fn or codec.encode_prompt)(conversation, ()),
        params,
        seed=seed,
        stop_token_ids=codec.stop_token_ids,
        detokenize=lambda ids: str(tokenizer.decode(ids)),
    )
    return codec.decode_reply(sampled.token_ids), sampled
