"""Rows that join and leave a running batch: equal tokens, several parameters, shared prompts, padding, other caches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from device import placed, rounding
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from llm_envs.policies.inference import batch_generate, generate, token_logps
from llm_envs.policies.inference.caches import join_problem, make_room
from llm_envs.policies.inference.sampling import RunningBatch, Turn
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import FinishReason, SamplingParams

pytestmark = pytest.mark.transformers
TOKENIZER = tiny_tokenizer()
MODEL = placed(tiny_model(TOKENIZER, hidden_size=32, max_length=512, seed=1))
with torch.no_grad():  # random weights are nearly uniform: sharpen them, so that a wrong distribution shows
    for parameter in MODEL.parameters():
        parameter.mul_(3.0)
RNG = np.random.default_rng(0)
PLAIN = SamplingParams()


def prompt(n):
    return RNG.integers(5, len(TOKENIZER), n).astype(np.int32)


def turn(ids, n, seed, params=PLAIN, **kwargs):
    return Turn(ids, params, limit=n, seed=seed, **kwargs)


def play(schedule, max_rows=64):
    """Sample turns of which each joins at its own step; `schedule` has (step, turn)."""
    running, left, n_steps = RunningBatch(MODEL, max_rows), list(schedule), 0
    while left or running.n_turns:
        now = [one for at, one in left if at <= n_steps][: max(running.n_free, 0)]
        left = [(at, one) for at, one in left if one not in now]
        if now:
            running.join(now)
        running.step()
        n_steps += 1
    return [one.sampled(0) for _, one in schedule]


def test_a_token_is_appended_without_a_copy_of_the_others():
    layer, plain = DynamicLayer(), DynamicLayer()
    for cached in (layer, plain):
        cached.update(torch.ones(2, 3, 5, 4), torch.zeros(2, 3, 5, 4))
    cache = DynamicCache()
    cache.layers.append(layer)
    make_room(cache)
    places = []
    for step in range(70):
        keys, values = torch.full((2, 3, 1, 4), float(step)), torch.rand(2, 3, 1, 4)
        found, expected = layer.update(keys, values), plain.update(keys, values)
        places.append(found[0].data_ptr())
        assert all(map(torch.equal, found, expected))
        if step == 40:  # rows are chosen: what was in the old place no longer counts
            for cached in (layer, plain):
                cached.reorder_cache(torch.tensor([1, 0]))
    assert len(set(places[:41])) == len(set(places[41:])) == 1 and places[0] != places[-1]


def test_turns_that_join_at_any_step_have_the_tokens_of_turns_alone():
    """60 turns of 1 to 80 tokens behind prompts of 1 to 200, with every kind of filter, in one batch of at most 8.

    The model computes in float32, where the kernels' rounding moves a log-probability by about 1e-6. Greedy rows of
    such a model, and uniform numbers of 53 bits, meet no choice that close here.
    """
    kinds = [
        PLAIN,
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_p=0.9, keep_mask=True),
        SamplingParams(top_k=5, min_p=0.02),
        SamplingParams(repetition_penalty=1.5),
    ]
    given = [(prompt(int(RNG.integers(1, 200))), int(RNG.integers(1, 80)), kinds[i % len(kinds)]) for i in range(60)]
    schedule = [(int(RNG.integers(0, 150)), turn(ids, n, i, params)) for i, (ids, n, params) in enumerate(given)]
    for i, ((ids, n, params), sampled) in enumerate(zip(given, play(schedule, max_rows=8), strict=True)):
        alone = generate(MODEL, ids, replace(params, max_new_tokens=n), seed=i, stop_token_ids=())
        assert sampled.token_ids.tolist() == alone.token_ids.tolist()
        assert np.abs(sampled.logps - alone.logps).max() < rounding(1e-5)
        assert len(sampled.token_ids) == n and sampled.finish_reason is FinishReason.LENGTH
        if params.keep_mask:
            assert sampled.kept.ids.tolist() == alone.kept.ids.tolist()
            assert sampled.kept.stops.tolist() == alone.kept.stops.tolist()
        if params == PLAIN:
            (scored,) = token_logps(MODEL, [np.concatenate([ids, sampled.token_ids])])
            assert np.abs(scored[len(ids) :] - sampled.logps).max() < rounding(1e-5)


def test_equal_prompts_are_read_once():
    shared, other = prompt(30), prompt(20)
    sizes, forward = [], MODEL.forward
    MODEL.forward = lambda *args, **kwargs: sizes.append(tuple(kwargs["input_ids"].shape)) or forward(*args, **kwargs)
    try:
        running = RunningBatch(MODEL, 8)
        turns = [turn(ids, 6, i) for i, ids in enumerate([shared, other, shared, shared])]
        running.join(turns)
        running.step()
    finally:
        del MODEL.forward
    assert sizes == [(2, 30), (4, 1)]
    while running.n_turns:
        running.step()
    for i, (ids, one) in enumerate(zip([shared, other, shared, shared], turns, strict=True)):
        alone = generate(MODEL, ids, SamplingParams(max_new_tokens=6), seed=i, stop_token_ids=())
        assert one.sampled(0).token_ids.tolist() == alone.token_ids.tolist()


def test_padding_goes_when_the_row_that_needed_it_leaves():
    """A batch that always has someone in it: its rows and columns stay within what its turns need."""
    running, seed = RunningBatch(MODEL, 4), 0
    long = turn(prompt(400), 5, 0)
    running.join([long])
    widths = []
    for _ in range(200):
        while running.n_free:
            seed += 1
            running.join([turn(prompt(10), 8 + seed % 5, seed)])
        running.step()
        widths.append(running._batch.width)
        assert len(running._turns) <= 6  # four that run, and ended ones that were not worth a copy
        assert running._batch._cache.layers[0].keys.shape[2] <= running._batch.width
    assert widths[0] > 400 and max(widths[10:]) <= 10 + 13 + 2


def test_a_failing_prompt_leaves_the_running_turns_as_they_were():
    running, one, expected = RunningBatch(MODEL, 4), turn(prompt(9), 20, 3), None
    expected = generate(MODEL, one.prompt_ids, SamplingParams(max_new_tokens=20), seed=3, stop_token_ids=())
    running.join([one])
    running.step()
    MODEL.forward = None
    try:
        with pytest.raises(TypeError):
            running.join([turn(prompt(5), 3, 1)])
    finally:
        del MODEL.forward
    while running.n_turns:
        running.step()
    assert one.sampled(0).token_ids.tolist() == expected.token_ids.tolist()


def test_rows_of_a_model_with_an_adapter_join_too():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    model = tiny_model(TOKENIZER, hidden_size=32, max_length=512, seed=1)
    model = placed(peft.get_peft_model(model, config).eval())
    given = [prompt(n) for n in (30, 4, 17, 50)]
    limits = [20, 3, 9, 5]
    joined = batch_generate(model, given, max_new_tokens=limits, seeds=range(4), stop_token_ids=(), micro_batch_size=2)
    for i, (ids, n, sampled) in enumerate(zip(given, limits, joined, strict=True)):
        alone = generate(model, ids, SamplingParams(max_new_tokens=n), seed=i, stop_token_ids=())
        assert sampled.token_ids.tolist() == alone.token_ids.tolist()
        assert np.abs(sampled.logps - alone.logps).max() < rounding(1e-5)


class OtherLayer(DynamicLayer):
    """A layer that a library of models may bring."""


class OtherCache(DynamicCache):
    """A cache that a library of models may bring."""


def test_turns_wait_for_a_batch_whose_cache_is_of_an_unknown_kind(monkeypatch):
    cache = DynamicCache(config=MODEL.config)
    assert join_problem(cache) is None and join_problem(None) is None
    assert "is a OtherCache" in join_problem(OtherCache(config=MODEL.config))
    cache.layers[0] = OtherLayer()
    assert "layers of type OtherLayer" in join_problem(cache)

    forward = MODEL.forward

    def with_other_layers(*args, **kwargs):
        output = forward(*args, **kwargs)
        for layer in output.past_key_values.layers:
            layer.__class__ = OtherLayer
        return output

    given = [prompt(n) for n in (40, 3, 12, 7)]
    limits = (3, 30, 6, 9)
    monkeypatch.setattr(MODEL, "forward", with_other_layers)
    running, turns = RunningBatch(MODEL, 8), [turn(*x, i) for i, x in enumerate(zip(given, limits, strict=True))]
    running.join(turns[:3])
    n_steps = 0
    while running.n_turns:
        assert running.n_free == 0 and "OtherLayer" in running.join_problem
        running.step()
        n_steps += 1
    assert n_steps == 29 and running.n_free == 8
    running.join(turns[3:])
    while running.n_turns:
        running.step()
    monkeypatch.undo()
    for i, (ids, n, one) in enumerate(zip(given, limits, turns, strict=True)):
        alone = generate(MODEL, ids, SamplingParams(max_new_tokens=n), seed=i, stop_token_ids=())
        assert one.sampled(0).token_ids.tolist() == alone.token_ids.tolist()
