"""Sampling and scoring: distribution, log-probabilities, seeds, padding, stopping, limits."""

import numpy as np
import pytest
import torch

from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError
from llm_envs.policies.inference import (
    _draw,
    batch_generate,
    load_model,
    load_tokenizer,
    token_logps,
)
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import FinishReason, SamplingParams

TOKENIZER = tiny_tokenizer()
MODEL = tiny_model(TOKENIZER, hidden_size=32, max_length=64, seed=1)
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
            logits = MODEL(torch.tensor(prompt[None].astype(np.int64))).logits[0, -1]
        assert sampled.token_ids.tolist() == [int(logits.argmax())]
        assert sampled.logps[0] == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-5)


def test_frequencies_follow_the_model():
    """4,000 seeds against the model's own distribution: chi-square over 268 tokens, standard deviation 23."""
    prompt, n = PROMPTS[1], 4000
    drawn = generate([prompt] * n, n=1, seeds=list(range(n)))
    counts = np.bincount([int(s.token_ids[0]) for s in drawn], minlength=len(TOKENIZER))
    with torch.no_grad():
        expected = n * MODEL(torch.tensor(prompt[None].astype(np.int64))).logits[0, -1].softmax(-1).numpy()
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
        assert np.abs(logps[len(prompt) :] - one.logps).max() < 1e-5


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
        assert np.abs(alone.logps - together[index].logps).max() < 1e-5


def test_a_repetition_penalty_sees_the_row_and_not_its_padding():
    params = SamplingParams(repetition_penalty=1.8)
    together = generate(params=params, n=8)
    for index, prompt in enumerate(PROMPTS):
        alone = generate([prompt], params=params, n=8, seeds=[index])[0]
        assert alone.token_ids.tolist() == together[index].token_ids.tolist()


def test_seeds_decide():
    assert generate(seeds=[1, 2, 3, 4])[0].token_ids.tolist() != generate(seeds=[5, 6, 7, 8])[0].token_ids.tolist()


def test_stop_token_limit_and_abort_end_a_turn():
    free = generate(n=6)
    stop = int(free[2].token_ids[3])
    stopped = generate(n=6, stop_token_ids=(stop,))[2]
    first = free[2].token_ids.tolist().index(stop)
    assert stopped.token_ids.tolist() == free[2].token_ids.tolist()[: first + 1]
    assert stopped.finish_reason == FinishReason.STOP
    assert free[2].finish_reason == FinishReason.LENGTH
    aborted = generate(n=6, is_aborted=lambda row: row == 2)
    assert (len(aborted[2].token_ids), aborted[2].finish_reason) == (1, FinishReason.ABORT)
    assert aborted[1].token_ids.tolist() == free[1].token_ids.tolist()


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


def test_the_context_bounds_a_turn_and_refuses_a_full_prompt():
    prompt = np.zeros(60, dtype=np.int32)
    assert len(generate([prompt], n=50)[0].token_ids) == 4
    with pytest.raises(ContextFullError, match=r"64 tokens fills the context of 64"):
        generate([np.zeros(64, dtype=np.int32)])


def test_loading(tmp_path):
    MODEL.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    model, tokenizer = load_model(tmp_path, dtype=torch.float32, device="cpu"), load_tokenizer(tmp_path)
    assert not model.training
    assert tokenizer.encode("a<|im_end|>") == TOKENIZER.encode("a<|im_end|>")
    assert torch.equal(model.lm_head.weight, MODEL.lm_head.weight)
    with pytest.raises(ModelError, match="no model could be loaded from"):
        load_model(tmp_path / "nothing")
    seen = {}

    def loader(name, **kwargs):
        seen.update(kwargs, name=name)
        return MODEL

    assert load_model("some/name", loader=loader, device="cpu", attn_implementation="eager") is MODEL
    assert (seen["name"], seen["attn_implementation"], seen["trust_remote_code"]) == ("some/name", "eager", False)
