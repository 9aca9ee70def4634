"""An adapter as such: which adapters vLLM cannot have and why, and the tensors of those that it can."""

import re

import peft
import pytest
import torch
from safetensors.torch import save_file

from llm_envs.errors import InvalidConfigError
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig
from llm_envs.trainers.engines.adapter_sync import adapter_rank, adapter_tensors, has_base, unmerged_base, why_merged


def adapted(kind=peft.LoraConfig, **changes):
    settings = {"target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"} | changes
    return peft.get_peft_model(tiny_model(tiny_tokenizer()), kind(**settings))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["norm"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "bias"),
        ({"trainable_token_indices": [5, 6]}, "trainable_token_indices"),
        ({"lora_bias": True}, "q_proj is adapted as Linear"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens is adapted as Embedding"),
        ({"target_modules": [], "target_parameters": ["q_proj.weight"]}, "q_proj is adapted as ParamWrapper"),
        ({"r": 513}, "rank 513 .* 512"),
        ({"kind": peft.IA3Config, "feedforward_modules": ["down_proj"]}, "IA3"),
    ],
    ids=str,
)
def test_what_vllm_cannot_have_is_merged_and_named(changes, why):
    model = adapted(**changes)
    assert re.search(why, why_merged(model))


def test_other_reasons_to_merge():
    model = adapted(use_rslora=True, init_lora_weights="pissa", rank_pattern={"q_proj": 2})
    assert why_merged(model) is None
    assert why_merged(model, sharded="FSDP") == "FSDP shards the weights"
    assert why_merged(model, n_shards=2) == "2 processes share an engine"


def test_b_has_the_scale_and_ranks_may_differ():
    """Scales of alpha / r: 8 / 4 = 2 and 8 / 2 = 4."""
    model = adapted(r=4, lora_alpha=8, rank_pattern={"q_proj": 2})
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.fill_(1.5)
    tensors = adapter_tensors(model)
    first = "base_model.model.model.layers.0."
    assert adapter_rank(model) == 4
    assert {name for name in tensors if name.startswith(first)} == {
        f"{first}{layer}.lora_{part}.weight" for layer in ("self_attn.q_proj", "mlp.down_proj") for part in "AB"
    }
    down, query = (tensors[f"{first}{layer}.lora_B.weight"] for layer in ("mlp.down_proj", "self_attn.q_proj"))
    assert (down.shape[1], down.unique().tolist()) == (4, [3.0])
    assert (query.shape[1], query.unique().tolist()) == (2, [6.0])


def test_whether_a_checkpoint_is_the_base(tmp_path):
    model = adapted(r=4)
    assert not has_base(None, unmerged_base(model))
    assert not has_base(tmp_path, unmerged_base(model))
    model.get_base_model().config.save_pretrained(tmp_path)
    save_file({name: value.clone() for name, value in unmerged_base(model)}, tmp_path / "model.safetensors")
    assert has_base(tmp_path, unmerged_base(model))
    with torch.no_grad():
        model.get_base_model().model.norm.weight[0] += 1e-6
    assert not has_base(tmp_path, unmerged_base(model))


@pytest.mark.smoke
def test_the_setting_is_checked(tmp_path):
    with pytest.raises(InvalidConfigError, match=r"lora_sync='both'.*merged, adapter"):
        EnvGRPOConfig(str(tmp_path), use_vllm=True, lora_sync="both")
    with pytest.raises(InvalidConfigError, match=r"lora_sync='adapter' has no effect.*use_vllm"):
        EnvGRPOConfig(str(tmp_path), lora_sync="adapter")
