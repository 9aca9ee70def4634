"""Multi-query models: no kernel gets one view of keys and values for several heads together with a mask."""

import numpy as np
import pytest
import torch
from attention_calls import by_a_view, masked_attention
from transformers.integrations import sdpa_attention

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import batch_generate, token_logps
from llm_envs.policies.inference.attention import copy_single_heads
from llm_envs.rollout import Collector
from llm_envs.testing import NumbersEnv
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]


@pytest.fixture
def model():
    """A model of four heads and one key-value head."""
    model = tiny_model(tiny_tokenizer(), hidden_size=64)
    model.config.num_key_value_heads = 1
    return type(model)(model.config).eval()


PROMPTS = [np.arange(3, 3 + n, dtype=np.int32) for n in (4, 9)]


def test_transformers_passes_one_view(model):
    """The fault is still in transformers: the padding of the two rows makes a mask."""
    ids, mask = torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    with masked_attention() as calls:
        model(ids, attention_mask=mask)
    assert calls == [2, 2]  # keys and values, in two layers


def test_scoring_and_generating_copy(model):
    for compute in (
        lambda: token_logps(model, PROMPTS),
        lambda: batch_generate(model, PROMPTS, SamplingParams(max_new_tokens=3)),
    ):
        with masked_attention() as calls:
            compute()
        assert calls and not any(calls)


def test_a_policy_copies_also_behind_a_kept_prefix(model):
    policy = TransformersPolicy(model, tiny_tokenizer())
    with masked_attention() as calls, Collector(
        NumbersEnv, policy, codec=ChatCodec(tiny_tokenizer()), env_kwargs={"n_turns": 3},
        sampling=SamplingParams(max_new_tokens=4), progress=False,
    ) as collector:  # fmt: skip
        collector.collect(3, 2)
    assert calls and not any(calls)


def test_copies_are_what_the_views_show(model):
    heads = torch.randn(2, 1, 5, 3, requires_grad=True)
    copy_single_heads()
    copied, viewed = sdpa_attention.repeat_kv(heads, 4), by_a_view(heads, 4)
    assert torch.equal(copied, viewed) and copied.is_contiguous() and not viewed.is_contiguous()
    assert torch.equal(*(torch.autograd.grad(one.square().sum(), heads)[0] for one in (copied, viewed)))
    assert sdpa_attention.repeat_kv(heads, 1) is heads
