"""Sampling: distribution, log-probabilities, seeds, padding, stopping, limits."""

import copy

import numpy as np
import pytest
import torch
from device import on_cpu, placed, rounding

from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference import batch_generate, eos_token_ids, generate_text, token_logps, turn_seed
from llm_envs.policies.inference import generate as generate_one
from llm_envs.policies.inference.sampling import _draw
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import FinishReason, Message, SamplingParams

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]
TOKENIZER = tiny_tokenizer()
MODEL = placed(tiny_model(TOKENIZER, hidden_size=32, max_length=64, seed=1))
with torch.no_grad():  # random weights are nearly uniform: sharpen them, so that a wrong distribution shows
    for parameter in MODEL.parameters():
        parameter.mul_(3.0)
PROMPTS = [np.arange(5, 5 + n, dtype=np.int32) for n in (1, 7, 20, 3)]


def generate(prompts=PROMPTS, params=None, n=8, seeds=None, **kwargs):
    params = params or SamplingParams()
    settings = {"stop_token_ids": (TOKENIZER.eos_token_id,)} | kwargs
    return batch_generate(
        MODEL, prompts, params, max_new_tokens=[n] * len(prompts), seeds=seeds or list(range(len(prompts))), **settings
    )


def next_logits(prompt):
    return on_cpu(MODEL(torch.tensor(prompt[None].astype(np.int64), device=MODEL.device)).logits[0, -1])


def test_draw_inverts_the_cumulative_distribution():
    """Probabilities 0.1, 0.2, 0.7: u < 0.1 is token 0, u < 0.3 token 1, the rest token 2."""
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7]])).repeat(6, 1)
    ids, logps = _draw(logits, [0.0, 0.099, 0.1, 0.299, 0.301, 0.999999], greedy=False)
    assert ids.tolist() == [0, 0, 1, 1, 2, 2]
    assert logps.exp().tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.7, 0.7], abs=1e-6)


def test_draw_never_returns_a_token_without_probability():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(3, 1)
    ids, _ = _draw(logits, [0.0, 0.5, np.nextafter(1.0, 0.0)], greedy=False)
    assert ids.tolist() == [1, 3, 3]


def test_greedy_takes_the_most_likely_and_reports_its_own_probability():
    first = generate(params=SamplingParams(temperature=0), n=1)
    for prompt, sampled in zip(PROMPTS, first, strict=True):
        with torch.no_grad():
            logits = next_logits(prompt)
        assert sampled.token_ids.tolist() == [int(logits.argmax())]
        assert sampled.logps[0] == pytest.approx(float(logits.log_softmax(-1).max()), abs=rounding(1e-5))


def test_frequencies_follow_the_model():
    """4,000 seeds against the model's own distribution: chi-square over 268 tokens, standard deviation 23."""
    prompt, n = PROMPTS[1], 4000
    drawn = generate([prompt] * n, n=1, seeds=list(range(n)))
    counts = np.bincount([int(s.token_ids[0]) for s in drawn], minlength=len(TOKENIZER))
    with torch.no_grad():
        expected = n * next_logits(prompt).softmax(-1).numpy()
    assert 200 < ((counts - expected) ** 2 / expected).sum() < 360
    uniform = n / len(TOKENIZER)  # a sampler that ignored the model would fail
    assert ((counts - uniform) ** 2 / uniform).sum() > 1000


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_are_those_of_the_sampled_distribution(temperature):
    sampled = generate(params=SamplingParams(temperature=temperature), n=12)
    sequences = [np.concatenate([p, s.token_ids]) for p, s in zip(PROMPTS, sampled, strict=True)]
    scored = token_logps(MODEL, sequences, temperature=temperature, micro_batch_size=3)
    for prompt, ids, one, logps in zip(PROMPTS, sequences, sampled, scored, strict=True):
        assert logps.shape == ids.shape
        assert np.abs(logps[len(prompt) :] - one.logps).max() < rounding(1e-5)


def test_top_k_filters_and_renormalises():
    sampled = generate(params=SamplingParams(top_k=1), n=5)
    assert [s.token_ids.tolist() for s in sampled] == [
        s.token_ids.tolist() for s in generate(params=SamplingParams(temperature=0), n=5)
    ]
    assert all(np.abs(s.logps).max() < 1e-6 for s in sampled)


def test_a_row_does_not_depend_on_its_batch_or_on_padding():
    together = generate(n=10)
    for index, prompt in enumerate(PROMPTS):
        alone = generate([prompt], n=10, seeds=[index])[0]
        assert alone.token_ids.tolist() == together[index].token_ids.tolist()
        assert np.abs(alone.logps - together[index].logps).max() < rounding(1e-5)


def test_a_repetition_penalty_sees_the_row_and_not_its_padding():
    params = SamplingParams(repetition_penalty=1.8)
    together = generate(params=params, n=8)
    for index, prompt in enumerate(PROMPTS):
        alone = generate([prompt], params=params, n=8, seeds=[index])[0]
        assert alone.token_ids.tolist() == together[index].token_ids.tolist()
        assert np.abs(alone.logps - together[index].logps).max() < rounding(1e-5)


def test_seeds_decide():
    assert generate(seeds=[1, 2, 3, 4])[0].token_ids.tolist() != generate(seeds=[5, 6, 7, 8])[0].token_ids.tolist()


def test_a_stop_token_and_the_limit_end_a_turn():
    free = generate(n=6)
    stop = int(free[2].token_ids[3])
    stopped = generate(n=6, stop_token_ids=(stop,))[2]
    first = free[2].token_ids.tolist().index(stop)
    assert stopped.token_ids.tolist() == free[2].token_ids.tolist()[: first + 1]
    assert stopped.finish_reason == FinishReason.STOP
    assert free[2].finish_reason == FinishReason.LENGTH


def test_rows_that_end_early_leave_the_others_alone():
    free = generate(n=20)
    stop = int(free[0].token_ids[0])
    some = generate(n=20, stop_token_ids=(stop,))
    assert some[0].token_ids.tolist() == [stop]
    for one, other in zip(free[1:], some[1:], strict=True):
        ids = one.token_ids.tolist()
        expected = ids[: ids.index(stop) + 1] if stop in ids else ids
        assert other.token_ids.tolist() == expected


def test_stop_string():
    params = SamplingParams(stop_strings=("q",))
    spelled = generate(params=params, n=3, detokenize=lambda ids: "q" if len(ids) == 2 else "")
    assert {s.finish_reason for s in spelled} == {FinishReason.STOP_STRING}
    assert {len(s.token_ids) for s in spelled} == {2}
    with pytest.raises(InvalidConfigError, match="detokenize"):
        generate(params=params)


def test_the_context_bounds_a_turn_and_a_full_one_costs_nobody_else_anything():
    prompt = np.zeros(60, dtype=np.int32)
    assert len(generate([prompt], n=50)[0].token_ids) == 4
    alone = generate(n=5)
    first, *full, last = generate(
        [PROMPTS[0], np.zeros(64, np.int32), np.zeros(300, np.int32), PROMPTS[1]], n=5, seeds=[0, 7, 8, 1]
    )
    assert [s.finish_reason for s in full] == [FinishReason.CONTEXT_FULL] * 2
    assert [s.token_ids.shape for s in full] == [(0,)] * 2
    assert [s.token_ids.tolist() for s in (first, last)] == [s.token_ids.tolist() for s in alone[:2]]
    assert generate([np.zeros(64, np.int32)])[0].finish_reason == FinishReason.CONTEXT_FULL
    assert batch_generate(MODEL, []) == []


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        ([], "prompt 1 is empty"),
        ([4, len(TOKENIZER)], "token ids from 4 to 265; the model's vocabulary has 265"),
        ([-1], "token ids from -1"),
        ([0.5], "dtype float64"),
        ([[4]], r"shape \(1, 1\)"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        batch_generate(MODEL, [PROMPTS[0], prompt])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_new_tokens": [3, 0, 3, 3]}, r"max_new_tokens\[1\]=0"),
        ({"max_new_tokens": [3]}, "1 entries for 4 prompts"),
        ({"max_new_tokens": []}, "0 entries for 4 prompts"),
        ({"seeds": [1, 2]}, "2 seeds for 4 prompts"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"params": SamplingParams(extra={"guided": 1})}, "guided"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        batch_generate(MODEL, PROMPTS, **settings)


def test_micro_batches_give_what_one_batch_gives():
    together = generate(n=9)
    for size in (1, 3):
        apart = generate(n=9, micro_batch_size=size)
        assert [s.token_ids.tolist() for s in apart] == [s.token_ids.tolist() for s in together]
        assert max(np.abs(a.logps - b.logps).max() for a, b in zip(apart, together, strict=True)) < rounding(1e-5)


def test_a_seed_in_the_parameters_decides_and_tells_rows_and_prompts_apart():
    params = SamplingParams(max_new_tokens=12, seed=5)
    same = [batch_generate(MODEL, [PROMPTS[1]] * 3, params) for _ in range(2)]
    rows = [[s.token_ids.tolist() for s in drawn] for drawn in same]
    assert rows[0] == rows[1]
    assert len({tuple(row) for row in rows[0]}) == 3
    assert generate_one(MODEL, PROMPTS[1], params).token_ids.tolist() == rows[0][0]
    assert turn_seed(params, PROMPTS[0]) != turn_seed(params, PROMPTS[1])
    free = SamplingParams(max_new_tokens=12)
    assert (
        generate_one(MODEL, PROMPTS[1], free, seed=4).token_ids.tolist()
        == generate(n=12, seeds=[4] * 4)[1].token_ids.tolist()
    )
    assert len({tuple(generate_one(MODEL, PROMPTS[1], free).token_ids.tolist()) for _ in range(5)}) == 5


def test_a_turn_ends_at_the_models_own_tokens_unless_told_otherwise():
    assert eos_token_ids(MODEL) == (TOKENIZER.eos_token_id,)
    free = generate(n=12, stop_token_ids=())[1]
    stop = int(free.token_ids[4])
    model = copy.deepcopy(MODEL)
    model.generation_config.eos_token_id = [stop, TOKENIZER.eos_token_id]
    assert eos_token_ids(model) == (stop, TOKENIZER.eos_token_id)
    stopped = generate_one(model, PROMPTS[1], SamplingParams(max_new_tokens=12), seed=1)
    assert stopped.token_ids.tolist() == free.token_ids.tolist()[: free.token_ids.tolist().index(stop) + 1]
    assert stopped.finish_reason == FinishReason.STOP
    by_hand = generate_one(model, PROMPTS[1], SamplingParams(max_new_tokens=12, seed=1), stop_token_ids=())
    assert by_hand.finish_reason == FinishReason.LENGTH


def test_text_from_messages():
    params = SamplingParams(max_new_tokens=6, seed=2)
    text, sampled = generate_text(MODEL, TOKENIZER, "hi", params)
    codec = ChatCodec(TOKENIZER)
    prompt = codec.encode_prompt([Message("user", "hi")])
    assert TOKENIZER.decode(prompt) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    expected = generate_one(MODEL, prompt, params, stop_token_ids=codec.stop_token_ids)
    assert sampled.token_ids.tolist() == expected.token_ids.tolist()
    assert text == codec.decode_reply(expected.token_ids)
    assert generate_text(MODEL, TOKENIZER, [Message("user", "hi")], params)[0] == text
    seen = []
    generate_text(MODEL, TOKENIZER, "hi", params, template_fn=lambda m, tools: seen.append((m, tools)) or PROMPTS[0])
    assert seen == [([Message("user", "hi")], ())]
    nothing, sampled = generate_text(MODEL, TOKENIZER, "x" * 80, params)
    assert (nothing, sampled.finish_reason) == ("", FinishReason.CONTEXT_FULL)
