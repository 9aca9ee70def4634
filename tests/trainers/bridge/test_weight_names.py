"""The names under which weights are sent to an engine."""

import pytest
import torch
from experts import tiny_experts
from safetensors.torch import load_file

from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.bridge.engine_weights import checkpoint_weights


def test_experts_have_the_names_and_values_of_a_checkpoint(tmp_path):
    model = tiny_experts()
    assert any(value.ndim == 3 for value in model.parameters())
    model.save_pretrained(tmp_path)
    sent, saved = dict(checkpoint_weights(model, model.named_parameters())), load_file(tmp_path / "model.safetensors")
    assert sent.keys() == saved.keys()
    for name, value in saved.items():
        torch.testing.assert_close(sent[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("names", [["a", "b.experts.c"], []])
def test_another_model_keeps_its_own(names):
    pairs = [(name, torch.zeros(1, 2, 3)) for name in names]
    assert list(checkpoint_weights(tiny_model(tiny_tokenizer()), pairs)) == pairs
