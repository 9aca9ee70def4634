"""Packed rows of one sequence: models that mix them are refused."""

import pytest
import torch
from architectures import EXPERTS, LLAMA, MIXING, SIZES, TOKENIZER, llama_like, model_of, vision_language_model
from transformers import (
    BloomConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    Llama4TextConfig,
    MambaConfig,
    MistralConfig,
    Qwen3MoeConfig,
)

from llm_envs.errors import ModelError
from llm_envs.policies.inference.positions import pass_positions
from llm_envs.trainers.sft.packing import check_packing

pytestmark = [pytest.mark.transformers, pytest.mark.trainings]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*MIXING, "qwen2_5_vl"])
def test_models_that_mix_rows_are_refused_whatever_the_dtype(name, dtype):
    """Fresh hybrids carry little from row to row: less than bfloat16 rounds."""
    model = (vision_language_model() if name == "qwen2_5_vl" else model_of(MIXING[name]())).to(dtype)
    with pytest.raises(ModelError, match=f"packing=bfd: {type(model).__name__}"):
        check_packing(model, pass_positions(model), torch.device("cpu"), setting="packing=bfd")


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_keep_rows_apart_pass_whatever_the_dtype(dtype):
    for config in (
        llama_like(),
        GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2),
        GPTNeoConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_layers=2, num_heads=2,
                     attention_types=[[["global", "local"], 1]]),
        Gemma3TextConfig(**LLAMA),
        MistralConfig(vocab_size=len(TOKENIZER), sliding_window=4, num_key_value_heads=1, **SIZES),
        Llama4TextConfig(**LLAMA, num_local_experts=2, intermediate_size_mlp=64),
        Qwen3MoeConfig(**LLAMA, **EXPERTS),
    ):  # fmt: skip
        model = model_of(config).to(dtype).train()  # GPT-2 has dropout
        check_packing(model, model, torch.device("cpu"), setting="packing=True")
        assert model.training and not any(parameter.grad is not None for parameter in model.parameters())


def test_models_without_positions_are_refused():
    for config in (
        MambaConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=1, state_size=4),
        BloomConfig(vocab_size=len(TOKENIZER), hidden_size=32, n_layer=1, n_head=2),
    ):
        model = model_of(config)
        with pytest.raises(ModelError, match=r"packing=True: .*position_ids"):
            check_packing(model, pass_positions(model), torch.device("cpu"), setting="packing=True")
