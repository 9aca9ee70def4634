"""Prompts that begin with known tokens: what is read, and that it gives the same as whole prompts."""

import asyncio

import numpy as np
import pytest
import torch
from causal_models import FAMILIES, make
from device import placed, rounding
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference.padding import PaddedBatch
from llm_envs.policies.inference.prefixes import PrefixCache, depends_on_length
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]
TOKENIZER = tiny_tokenizer()
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SAMPLING = SamplingParams(max_new_tokens=12)


def model_of(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return placed(AutoModelForCausalLM.from_config(config).eval())


def qwen(**changes):
    return model_of(Qwen3Config(vocab_size=len(TOKENIZER), head_dim=16, num_key_value_heads=1, **SIZES | changes))


def tokens(n, seed):
    return np.random.default_rng(seed).integers(5, 90, n).astype(np.int32)


class Counted:
    """How many tokens, padding included, a model reads."""

    def __init__(self, model, monkeypatch):
        self.n_tokens, forward = 0, model.forward

        def count(*args, input_ids, **kwargs):
            self.n_tokens += input_ids.numel()
            return forward(*args, input_ids=input_ids, **kwargs)

        monkeypatch.setattr(model, "forward", count)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_what_is_known_is_not_read_and_nothing_changes(name, monkeypatch):
    """Rows of which 30, 20, 0 and all tokens but one are known, and the batches that they go on in."""
    model, prefixes = placed(make(name)), PrefixCache(2**30)
    prompts = [tokens(n, seed) for seed, n in enumerate((40, 33, 25, 31))]
    for place, n in ((0, 30), (1, 20), (3, 31)):
        known = PaddedBatch([prompts[place][:n], tokens(50, 9)], model.device)
        known.forward(model)
        if (prefix := known.prefix(0, n)) is None:
            return  # its cache has something else than keys and values of all tokens
        prefixes.add(prefix)
    whole = PaddedBatch(prompts, model.device)
    counted = Counted(model, monkeypatch)
    expected = [whole.forward(model)]
    n_whole, counted.n_tokens = counted.n_tokens, 0
    batch, logits = prefixes.read(model, prompts)
    assert (n_whole, counted.n_tokens) == (4 * 40, 3 * 13 + 25)  # the new row is read separately
    found = [logits]
    for step in range(3):
        for one, values in ((whole, expected), (batch, found)):
            one.extend(torch.tensor([7 + step] * 4), [True] * 4)
            values.append(one.forward(model))
    for column in ("input_ids", "attention_mask", "position_ids"):
        assert torch.equal(getattr(batch, column), getattr(whole, column))
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=0, atol=rounding(1e-5))


@torch.no_grad()
def test_what_new_prompts_share_is_read_once(monkeypatch):
    model, prefixes = qwen(), PrefixCache(2**30)
    common = tokens(60, 0)
    prompts = [np.concatenate([common, tokens(n, n)]) for n in (10, 12, 11, 9)]
    expected = PaddedBatch(prompts, model.device).forward(model)
    counted = Counted(model, monkeypatch)
    _, logits = prefixes.read(model, prompts)
    assert counted.n_tokens == 60 + 4 * 12
    torch.testing.assert_close(logits, expected, rtol=0, atol=rounding(1e-5))
    counted.n_tokens = 0
    prefixes.read(model, [np.concatenate([common, tokens(5, 7)])])  # and later ones know it
    assert counted.n_tokens == 5


def play(policy, n_turns=3, n_sessions=4):
    """Return the tokens and log-probabilities of some sessions, each turn going on from the last one."""

    async def one(session):
        prompt, turns = np.concatenate([tokens(50, 99), tokens(10 + session, session)]), []
        for turn in range(n_turns):
            sampled = await policy.sample(prompt, SAMPLING, seed=10 * session + turn, session=str(session))
            turns.append(sampled)
            prompt = np.concatenate([prompt, sampled.token_ids, tokens(6, turn)])
        return turns

    async def every():
        return await asyncio.gather(*[one(session) for session in range(n_sessions)])

    return [turn for turns in asyncio.run(every()) for turn in turns]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        np.testing.assert_allclose(a.logps, b.logps, atol=rounding(1e-5))


def test_later_turns_read_only_what_is_new(monkeypatch):
    model = qwen()
    counted = Counted(model, monkeypatch)
    whole = play(TransformersPolicy(model, TOKENIZER, prefix_cache_gib=0))
    n_whole, counted.n_tokens = counted.n_tokens, 0
    assert_same(play(TransformersPolicy(model, TOKENIZER)), whole)
    assert counted.n_tokens < 0.5 * n_whole


def test_little_memory_costs_reading_and_nothing_else():
    model = qwen()
    row = 2 * 2 * 16 * 4 * 100  # of 100 tokens: layers, keys and values, their size, bytes
    assert_same(
        play(TransformersPolicy(model, TOKENIZER, prefix_cache_gib=2 * row / 2**30)),
        play(TransformersPolicy(model, TOKENIZER, prefix_cache_gib=0)),
    )
    prefixes = PrefixCache(2 * row)
    for seed in range(5):
        batch = PaddedBatch([tokens(90, seed)], model.device)
        with torch.no_grad():
            batch.forward(model)
        prefixes.add(batch.prefix(0, 90))
    assert [prefixes.find(tokens(91, seed)) is not None for seed in range(5)] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("how", ["optimizer", "data", "policy"])
def test_changed_weights_are_not_sampled_with_the_old_ones_prefixes(how):
    model = qwen()
    policy = TransformersPolicy(model, TOKENIZER)
    before = play(policy)
    with torch.no_grad():
        new = {name: value * 1.5 for name, value in model.named_parameters()}
    if how == "optimizer":
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(new[name])
    elif how == "data":
        next(model.parameters()).data.mul_(1.5)
    else:
        policy.update_weights(new.items(), 1)
    after = play(policy)
    assert any(a.token_ids.tolist() != b.token_ids.tolist() for a, b in zip(before, after, strict=True))
    assert_same(after, play(TransformersPolicy(model, TOKENIZER, prefix_cache_gib=0)))


def test_weights_that_change_while_a_turn_runs_are_not_mixed_with_old_prefixes():
    """A long turn keeps the batch running; a new turn begins after the change. Then the change is taken back."""
    model = qwen()
    with torch.no_grad():
        old = {name: value.clone() for name, value in model.named_parameters()}
        new = {name: value * 1.5 for name, value in model.named_parameters()}
    prompt, policies = tokens(40, 1), [TransformersPolicy(model, TOKENIZER, prefix_cache_gib=gib) for gib in (2.0, 0.0)]

    async def run(policy):
        model.load_state_dict(old)
        turns = [await policy.sample(prompt, SAMPLING, seed=1, session="a")]
        long = asyncio.create_task(policy.sample(tokens(9, 2), SamplingParams(max_new_tokens=400), seed=2, session="b"))
        await asyncio.sleep(0.05)
        for weights in (new, old):
            if weights is new:
                policy.update_weights(new.items(), 1)
            else:
                with policy._hold_model():
                    model.load_state_dict(old)
            turns.append(await policy.sample(prompt, SAMPLING, seed=1, session="a"))
        long.cancel()
        return turns

    found, expected = (asyncio.run(run(policy)) for policy in policies)
    assert_same(found, expected)


def test_an_adapter_that_is_switched_has_its_own_prefixes():
    model = get_peft_model(qwen(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    model.add_adapter("second", LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    policies = [TransformersPolicy(model, TOKENIZER, prefix_cache_gib=gib) for gib in (2.0, 0.0)]

    def run(policy):
        model.set_adapter("default")
        turns = play(policy)
        model.set_adapter("second")
        turns += play(policy)
        with model.disable_adapter():
            return turns + play(policy)

    found, expected = map(run, policies)
    assert_same(found, expected)


def test_keys_that_depend_on_the_whole_length_are_not_kept():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(vocab_size=len(TOKENIZER), max_position_embeddings=160, rope_parameters=rope, **SIZES)
    model = model_of(config)
    assert depends_on_length(model) and not depends_on_length(qwen())
    one, other = TransformersPolicy(model, TOKENIZER), TransformersPolicy(model, TOKENIZER, prefix_cache_gib=0)
    assert_same(play(one), play(other))


def test_the_memory_of_the_prefixes_is_released():
    policy = TransformersPolicy(qwen(), TOKENIZER)
    play(policy)
    assert policy._prefixes._prefixes
    policy.free_memory()
    assert not policy._prefixes._prefixes
    play(policy)
    asyncio.run(policy.aclose())
    assert not policy._prefixes._prefixes


@torch.no_grad()
def test_what_is_kept_when_there_is_little_room():
    model, batches = qwen(), []
    for seed in range(4):
        batches.append(PaddedBatch([tokens(90, seed)], model.device))
        batches[-1].forward(model)
    kept = [batch.prefix(0, 90) for batch in batches]
    prefixes = PrefixCache(3 * kept[0].n_bytes)
    for prefix in kept[:3]:
        prefixes.add(prefix)
    large = PaddedBatch([tokens(400, 9)], model.device)
    large.forward(model)
    prefixes.add(large.prefix(0, 400))  # more than all room: nothing else makes place for it
    assert prefixes.find(np.concatenate([tokens(90, 0)[:5], tokens(50, 77)])) is None  # five tokens are nobody's
    prefixes.add(kept[3])
    found = [prefixes.find(np.append(tokens(90, seed), 1)) for seed in range(4)]
    assert [one is not None for one in found] == [False, True, True, True]


@torch.no_grad()
def test_new_prompts_with_a_few_common_tokens_are_read_in_one_pass(monkeypatch):
    model, prefixes = qwen(), PrefixCache(2**30)
    counted = Counted(model, monkeypatch)
    prefixes.read(model, [np.concatenate([tokens(3, 0), tokens(37, seed)]) for seed in range(1, 30)])
    assert counted.n_tokens == 29 * 40


def test_a_failure_of_the_check_leaves_the_training_mode(monkeypatch):
    model = qwen().train()
    policy = TransformersPolicy(model, TOKENIZER)
    monkeypatch.setattr(PrefixCache, "check_weights", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        play(policy)
    assert model.training


def test_other_caches_read_every_prompt_whole(monkeypatch):
    """Of a window's layers, and only one attempt at keeping what they have."""
    config = MistralConfig(vocab_size=len(TOKENIZER), num_key_value_heads=1, sliding_window=8, **SIZES)
    model = model_of(config)
    whole = play(TransformersPolicy(model, TOKENIZER, prefix_cache_gib=0))
    policy = TransformersPolicy(model, TOKENIZER)
    assert_same(play(policy), whole)
    counted = Counted(model, monkeypatch)
    assert_same(play(policy), whole)
    n_again, counted.n_tokens = counted.n_tokens, 0
    play(TransformersPolicy(model, TOKENIZER, prefix_cache_gib=0))
    assert n_again == counted.n_tokens
