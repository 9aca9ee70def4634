"""The trained adapter for a policy on vLLM: what the policy gets, and what is refused."""

import peft
import pytest
import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.loop import create_training_state, share_adapter


class Engine:
    def update_adapter(self, tensors, version):
        self.tensors, self.version = tensors, version


def adapted(**changes):
    settings = {"r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | changes
    model = peft.get_peft_model(tiny_model(tiny_tokenizer()), peft.LoraConfig(**settings))
    return create_training_state(model, learning_rate=1e-3)


def test_a_policy_on_vllm_gets_the_adapter_with_its_scale():
    """alpha / r = 3."""
    state, engine = adapted(), Engine()
    with torch.no_grad():
        for name, value in state.model.named_parameters():
            if "lora_B" in name:
                value.fill_(0.5)
    share_adapter(engine, state)
    assert engine.version == 0
    assert all("lora_" in name for name in engine.tensors)
    assert {value for name, t in engine.tensors.items() if "lora_B" in name for value in t.unique().tolist()} == {1.5}


def test_what_cannot_be_sent_is_refused_by_name():
    with pytest.raises(InvalidConfigError, match="ConstantPolicy"):
        share_adapter(ConstantPolicy("x"), adapted())
    with pytest.raises(InvalidConfigError, match="use_dora"):
        share_adapter(Engine(), adapted(use_dora=True))
