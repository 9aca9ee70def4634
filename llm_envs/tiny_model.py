"""Create a language model that is small enough to train on a laptop's CPU, for tests, the demo and examples.

It consists of a byte-level BPE tokenizer (it encodes any text, and digits stay single tokens), a Qwen-style chat
template with tools, and a Llama model with random weights. `save_pretrained` of both writes a folder that transformers
and vLLM can load.

(It is not a Qwen2 model: for that type `AutoTokenizer` replaces the saved tokenizer by its own class, which splits
words differently.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llm_envs.errors import extra_needed

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

__all__ = ["CHAT_TEMPLATE", "tiny_model", "tiny_tokenizer"]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# As in Qwen's vocabulary, these are single tokens but not special ones: they are part of the text.
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

CHAT_TEMPLATE = """\
{%- set has_system = messages[0].role == 'system' %}
{%- if tools or has_system %}
    {{- '<|im_start|>system\\n' + (messages[0].content if has_system else '') }}
    {%- if tools %}
        {{- '\\n\\n# Tools\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' + (tool | tojson) }}
        {%- endfor %}
        {{- '\\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first else '' }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def tiny_tokenizer(
    texts: Iterable[str] = (),
    *,
    vocab_size: int = 512,
    max_token_length: int | None = None,
    by_words: bool = False,
) -> PreTrainedTokenizerBase:
    """Make a byte-level BPE tokenizer with a Qwen-style chat template.

    Args:
        texts: Texts from which the merges are learned. Without texts, every byte is a token.
        vocab_size: Maximum size of the vocabulary, special tokens included; at least 265.
        max_token_length: Longest token in bytes; None means no limit.
        by_words: Whether no token spans words, as in GPT-2: a word with the space before it has the same tokens
            wherever it stands, which makes it easier to copy. Otherwise a constant prompt becomes a few tokens.

    Returns:
        A fast tokenizer; `<|im_end|>` is its end-of-turn token, `<|endoftext|>` its pad token.
    """
    with extra_needed("tiny_tokenizer needs transformers: pip install 'llm-envs[train]'."):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_words),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKUP_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=max_token_length,
        show_progress=False,
    )
    added = re.compile("|".join(map(re.escape, (*SPECIAL_TOKENS, *MARKUP_TOKENS))))  # which no merge may span
    tokenizer.train_from_iterator((piece for text in texts for piece in added.split(text) if piece), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.add_tokens(list(MARKUP_TOKENS))
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model(
    tokenizer: PreTrainedTokenizerBase,
    *,
    hidden_size: int = 128,
    n_layers: int = 2,
    n_heads: int = 4,
    max_length: int = 1024,
    seed: int = 0,
) -> LlamaForCausalLM:
    """Make a Llama model with random weights for `tokenizer`, in float32 on the CPU.

    Args:
        tokenizer: Determines the vocabulary size and the ids of the end-of-turn and pad tokens.
        hidden_size: Width; the feed-forward layers are twice as wide.
        n_layers: Number of blocks.
        n_heads: Attention heads; there are half as many key-value heads. (vLLM on a CPU needs at least 32 dimensions
            per head.)
        max_length: Context in tokens.
        seed: Seed of the weights.
    """
    with extra_needed("tiny_model needs torch and transformers: pip install 'llm-envs[train]'."):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads // 2,
        max_position_embeddings=max_length,
        attention_bias=True,  # as in Qwen2; without it, some seeds learn to copy digits late or never
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.float().eval()
