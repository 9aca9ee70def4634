"""Scoring given tokens: hand-worked numbers, masks, micro-batches, the exact KL."""

import copy
import math

import numpy as np
import pytest
import torch
from device import on_cpu, placed, rounding

from llm_envs.errors import ContextFullError, InvalidConfigError
from llm_envs.policies.inference import token_logits, token_logps
from llm_envs.tiny_model import tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]
TOKENIZER = tiny_tokenizer()
N = len(TOKENIZER)


def sharpened(seed):
    model = placed(tiny_model(TOKENIZER, hidden_size=32, max_length=64, seed=seed))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


MODEL, OTHER = sharpened(1), sharpened(2)
GIVEN = [np.random.default_rng(n).integers(3, N, n).astype(np.int32) for n in (1, 9, 64, 0, 30, 2)]


def constant_model(probabilities):
    """Return a model that gives the same distribution everywhere: its only way out of the last layer is one number."""
    model = copy.deepcopy(MODEL)
    head = torch.nn.Linear(32, N, bias=True)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(-1e9)
        head.bias[: len(probabilities)] = torch.tensor(probabilities).log()
    model.set_output_embeddings(head)
    return placed(model)


def test_by_hand():
    """Tokens 0, 1, 2 with probabilities 0.1, 0.2, 0.7 wherever they stand, and at temperature ½ with their squares."""
    model = constant_model([0.1, 0.2, 0.7])
    ids = np.array([2, 0, 1, 2], np.int32)
    (logps,) = token_logps(model, [ids])
    assert logps.dtype == np.float32
    assert logps.tolist() == pytest.approx([0, math.log(0.1), math.log(0.2), math.log(0.7)], abs=rounding(1e-6))
    squares = [p * p / (0.01 + 0.04 + 0.49) for p in (0.1, 0.2, 0.7)]
    (cold,) = token_logps(model, [ids], temperature=0.5)
    assert cold.tolist() == pytest.approx([0, *(math.log(p) for p in squares)], abs=rounding(1e-6))
    (greedy,) = token_logps(model, [ids], temperature=0)
    assert greedy.tolist() == logps.tolist()


@pytest.mark.parametrize("size", [1, 2, 100])
def test_micro_batches_change_nothing(size):
    for one, other in zip(token_logps(MODEL, GIVEN, micro_batch_size=size), token_logps(MODEL, GIVEN), strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max(initial=0) < rounding(1e-5)
    logits = zip(token_logits(MODEL, GIVEN, micro_batch_size=size), token_logits(MODEL, GIVEN), strict=True)
    assert all(float((a - b).abs().max()) < rounding(1e-4) for a, b in logits if a.numel())


def test_logits_gather_to_logps():
    masks = [np.random.default_rng(n).random(n) < 0.4 for n in map(len, GIVEN)]
    for mask in masks:
        mask[:1] = False
    masks[4][:] = False  # nothing chosen
    logps = token_logps(MODEL, GIVEN)
    logits = on_cpu(token_logits(MODEL, GIVEN, masks=masks, micro_batch_size=2))
    assert [tuple(rows.shape) for rows in logits] == [(int(mask.sum()), N) for mask in masks]
    assert {rows.dtype for rows in logits} == {torch.float32}
    for ids, mask, rows, expected in zip(GIVEN, masks, logits, logps, strict=True):
        chosen = torch.from_numpy(ids[mask][:, None].astype(np.int64))
        found = rows.log_softmax(-1).gather(-1, chosen)[:, 0].numpy()
        assert np.abs(found - expected[mask]).max(initial=0) < rounding(1e-5)
    everything = on_cpu(token_logits(MODEL, GIVEN))
    assert [len(rows) for rows in everything] == [0, 8, 63, 0, 29, 1]
    assert torch.allclose(everything[2][torch.from_numpy(np.flatnonzero(masks[2])) - 1], logits[2], atol=rounding(1e-4))


def test_the_exact_kl_of_two_models():
    """Of [0.5, 0.5] to [0.25, 0.75]: ½ ln 2 + ½ ln ⅔ = 0.14384; the other way ¼ ln ½ + ¾ ln 1.5 = 0.13081."""
    (p,) = token_logits(constant_model([0.5, 0.5]), [np.array([0, 1, 1], np.int32)])
    (q,) = token_logits(constant_model([0.25, 0.75]), [np.array([0, 1, 1], np.int32)])

    def kl(p, q):
        logp, logq = p.log_softmax(-1), q.log_softmax(-1)
        return (logp.exp() * (logp - logq)).sum(-1)

    assert kl(p, q).tolist() == pytest.approx([0.1438410, 0.1438410], abs=1e-6)
    assert kl(q, p).tolist() == pytest.approx([0.1308120, 0.1308120], abs=1e-6)
    ours, again, others = (token_logits(model, GIVEN)[2] for model in (MODEL, MODEL, OTHER))
    assert float(kl(ours, again).abs().max()) == 0
    by_hand = [
        sum(math.exp(a) * (a - b) for a, b in zip(row_a, row_b, strict=True))
        for row_a, row_b in zip(ours.log_softmax(-1).tolist(), others.log_softmax(-1).tolist(), strict=True)
    ]
    assert kl(ours, others).tolist() == pytest.approx(by_hand, rel=1e-4)
    assert min(by_hand) > 0.01


def test_gradients_flow_only_when_asked_for():
    assert not token_logits(MODEL, GIVEN)[1].requires_grad
    model = copy.deepcopy(MODEL)
    ids = GIVEN[1]
    (logits,) = token_logits(model, [ids], requires_grad=True)
    chosen = torch.from_numpy(ids[1:, None].astype(np.int64)).to(model.device)
    logits.log_softmax(-1).gather(-1, chosen).sum().backward()
    found = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    input_ids = torch.from_numpy(ids[None].astype(np.int64)).to(model.device)
    (-8 * model(input_ids=input_ids, labels=input_ids).loss).backward()  # the mean over 8 tokens
    assert torch.allclose(found, model.model.layers[0].self_attn.q_proj.weight.grad, rtol=1e-3, atol=rounding(1e-4))


def test_the_device_of_the_logits_is_the_callers_choice():
    assert {rows.device.type for rows in token_logits(MODEL, GIVEN, device="meta")} == {"meta"}
    assert {rows.device.type for rows in token_logits(MODEL, GIVEN)} == {MODEL.device.type}


def test_nothing_to_score():
    assert token_logps(MODEL, []) == []
    assert [a.tolist() for a in token_logps(MODEL, [GIVEN[3], GIVEN[0]])] == [[], [0.0]]
    assert [tuple(a.shape) for a in token_logits(MODEL, [GIVEN[3], GIVEN[0]])] == [(0, N), (0, N)]


@pytest.mark.parametrize("score", [token_logps, token_logits])
def test_what_cannot_be_scored_is_refused(score):
    with pytest.raises(ContextFullError, match=r"sequence 1 .*65 .*64"):
        score(MODEL, [GIVEN[1], np.zeros(65, np.int32)])
    with pytest.raises(InvalidConfigError, match=f"sequence 0 .*0 to {N}"):
        score(MODEL, [np.array([0, N])])
    with pytest.raises(InvalidConfigError, match="micro_batch_size=0"):
        score(MODEL, GIVEN, micro_batch_size=0)


def test_arguments_that_do_not_fit():
    with pytest.raises(InvalidConfigError, match="temperature=-1"):
        token_logps(MODEL, GIVEN, temperature=-1)
    ids = GIVEN[1]
    for masks, complaint in [
        ([], "0 masks for 1 sequences"),
        ([np.zeros(3, bool)], "mask 0 has shape"),
        ([np.zeros(9)], "dtype float64"),
        ([np.ones(9, bool)], "no predecessor"),
    ]:
        with pytest.raises(InvalidConfigError, match=complaint):
            token_logits(MODEL, [ids], masks=masks)
