"""Log-probabilities of given tokens and entropies, by hand."""

import math

import pytest
import torch

from llm_envs.trainers.functional.logits import entropies_from_logits, logps_from_logits

LOGITS_BTV = torch.tensor([[[0.0, math.log(3.0), -float("inf")], [math.log(2.0), 0.0, 0.0]]])


def test_log_probabilities():
    ids_BT = torch.tensor([[1, 0]], dtype=torch.int32)
    expected = [math.log(3 / 4), math.log(1 / 2)]
    assert logps_from_logits(LOGITS_BTV, ids_BT)[0].tolist() == pytest.approx(expected)
    # at temperature 1/2 odds are squared: 1 : 9 and 4 : 1 : 1
    halved = logps_from_logits(LOGITS_BTV, ids_BT, temperature=0.5)[0].tolist()
    assert halved == pytest.approx([math.log(9 / 10), math.log(4 / 6)])


def test_entropies():
    expected = [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), 0.5 * math.log(2) + 0.5 * math.log(4)]
    assert entropies_from_logits(LOGITS_BTV)[0].tolist() == pytest.approx(expected)
    logits_BTV = LOGITS_BTV.clone().requires_grad_()
    entropies_from_logits(logits_BTV).sum().backward()
    assert torch.isfinite(logits_BTV.grad).all()


def test_bfloat16_logits_are_normalised_in_float32():
    logits_BTV = torch.zeros(1, 1, 1000, dtype=torch.bfloat16)
    logps_BT = logps_from_logits(logits_BTV, torch.zeros(1, 1, dtype=torch.long))
    assert (logps_BT.dtype, logps_BT.item()) == (torch.float32, pytest.approx(-math.log(1000), abs=1e-6))
