"""Text from messages in one call: template, sampling, decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_envs.chat.codec import ChatCodec
from llm_envs.policies.inference.conversation import TemplateFn
from llm_envs.policies.inference.sampling import generate
from llm_envs.types import Message, Sampled, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["generate_text"]


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
        template_fn: Used instead of the tokenizer's chat template.

    Returns:
        The answer without its end-of-turn token, and its ids, log-probabilities and finish reason. A prompt
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
