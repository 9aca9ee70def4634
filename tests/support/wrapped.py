"""Tiny models whose text part is inside a model of text and images, as Qwen 3.5, Gemma 3 and 4 and Llama 4 are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from llm_envs.tiny_model import tiny_tokenizer

WRAPPED = {
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
}
"""Kinds, and the classes that their checkpoints name."""


TEXT_LAYERS = r".*language_model.*\.(q_proj|v_proj)"
"""The `target_modules` of an adapter: PEFT cannot adapt all layers of Gemma 4's image part."""


def tiny_wrapped(kind: str, folder: Path) -> None:
    """Save a tiny model of a kind, with random weights and our tokenizer."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    model = getattr(transformers, WRAPPED[kind])(_config(kind, tokenizer)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config(kind: str, tokenizer: Any) -> Any:
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    images = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    # Ids of images, which the tests' texts do not have.
    ids = {"boi_token_index": 1, "eoi_token_index": 1}
    sliding = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
    if kind == "qwen3_5":
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
        text |= {"layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2}
        text |= {"linear_num_value_heads": 2, "linear_num_key_heads": 2}
        text |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
        text |= {"rope_parameters": rope | {"partial_rotary_factor": 0.5}}
        images = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
        images |= {"patch_size": 4, "num_position_embeddings": 16}
        return transformers.Qwen3_5Config(text_config=text, vision_config=images, tie_word_embeddings=True)
    if kind == "gemma3":
        images |= {"image_size": 28, "patch_size": 14}
        return transformers.Gemma3Config(
            text_config=text | sliding, vision_config=images, mm_tokens_per_image=4, image_token_index=1, **ids
        )
    if kind == "gemma4":
        text |= sliding | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 32}
        text |= {"vocab_size_per_layer_input": len(tokenizer)}
        images |= {"num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "default_output_length": 4}
        return transformers.Gemma4Config(text_config=text, vision_config=images, audio_config=None)
    # Dense layers only: vLLM's experts of Llama 4 give NaN on a CPU.
    text |= {"intermediate_size_mlp": 64, "num_local_experts": 2, "moe_layers": [], "interleave_moe_layer_step": 0}
    text |= {"attention_chunk_size": 128}
    images |= {"image_size": 28, "patch_size": 14, "vision_output_dim": 32}
    images |= {"projector_input_dim": 32, "projector_output_dim": 32}
    return transformers.Llama4Config(text_config=text, vision_config=images, image_token_index=1, **ids)
