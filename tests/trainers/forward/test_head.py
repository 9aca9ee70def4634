"""Log-probabilities from hidden states, some tokens at a time: the same as from all logits."""

import numpy as np
import pytest
import torch
from architectures import tiny

from llm_envs.policies.inference.positions import position_ids
from llm_envs.trainers.forward import head
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.logits import entropies_from_logits, logps_from_logits
from llm_envs.trainers.loop.batch import score_rows
from llm_envs.types import KeptTokens, SamplingParams

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]


def batch(**changes):
    """Four rows of a 5-token prompt, padded on the left for two, and up to 6 tokens, which two of them share."""
    ids = torch.randint(5, 90, (4, 11), generator=torch.Generator().manual_seed(1))
    ids[1], ids[3, :7] = ids[0], ids[0, :7]
    ids[1, 9:] = 7
    mask = torch.ones_like(ids)
    mask[2, :2], mask[3, 9:] = 0, 0
    parts = {"prompt_ids": ids[:, :5], "completion_ids": ids[:, 5:]}
    parts |= {"prompt_mask": mask[:, :5], "completion_mask": mask[:, 5:], "mask_BT": mask[:, 5:].bool()}
    return Batch(**parts | changes)


def from_logits(model, rows):
    """Log-probabilities and entropies from the logits of all tokens."""
    ids, mask = (torch.cat([rows.need(f"prompt_{n}"), rows.need(f"completion_{n}")], dim=1) for n in ("ids", "mask"))
    logits = model(input_ids=ids, attention_mask=mask, position_ids=position_ids(mask)).logits[:, 4:-1]
    return (
        logps_from_logits(logits, ids[:, 5:], temperature=rows.temperature),
        entropies_from_logits(logits, temperature=rows.temperature),
    )


@pytest.mark.parametrize("forward", ["padded", "prefix_tree"])
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "granite"])
def test_chunks_of_tokens_are_scored_as_from_all_logits(name, forward, monkeypatch):
    """Gemma 2 caps its logits, and Granite divides them."""
    monkeypatch.setattr(head, "_CHUNK", 3)
    model, rows = tiny(name).eval(), batch(sampling=SamplingParams(temperature=0.7))
    found = []
    for score in (
        lambda: from_logits(model, rows),
        lambda: score_rows(model, rows, with_entropies=True, forward=forward),
    ):
        model.zero_grad()
        logps_BT, entropies_BT = score()
        ((logps_BT + 0.1 * entropies_BT) * rows.mask_BT).sum().backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        found.append([logps_BT.detach() * rows.mask_BT, entropies_BT.detach() * rows.mask_BT, *gradients])
    largest = max(float(g.abs().max()) for g in found[0][2:])
    for expected, own in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-5 * max(largest, 1.0))


@pytest.mark.parametrize("forward", ["padded", "prefix_tree"])
def test_kept_tokens_are_those_of_each_token(forward, monkeypatch):
    """With only the sampled token kept its probability is 1; with that and one more, it depends on the two logits."""
    monkeypatch.setattr(head, "_CHUNK", 4)
    model, rows = tiny("qwen3").eval(), batch()
    kept = []
    for ids, mask in zip(rows.completion_ids.tolist(), rows.mask_BT.tolist(), strict=True):
        lists = [[token, 3] if place == 1 else [token] for place, token in enumerate(ids) if mask[place]]
        stops = np.cumsum([len(part) for part in lists])
        kept.append(KeptTokens(np.array([t for part in lists for t in part], np.int32), stops))
    logps_BT, _ = score_rows(model, batch(kept=tuple(kept)), forward=forward)
    ids, mask = (torch.cat([rows.need(f"prompt_{n}"), rows.need(f"completion_{n}")], dim=1) for n in ("ids", "mask"))
    logits = model(input_ids=ids, attention_mask=mask, position_ids=position_ids(mask)).logits[:, 5]
    expected_B = torch.stack([pair[[int(ids[b, 6]), 3]].log_softmax(-1)[0] for b, pair in enumerate(logits)])
    torch.testing.assert_close(logps_BT[:, 1], expected_B, rtol=0, atol=1e-5)
    assert not logps_BT[:, [0, 2, 3, 4, 5]].any()
