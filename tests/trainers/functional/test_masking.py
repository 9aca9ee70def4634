"""Trimming cuts padding and nothing else; sums, means and whitening see what the mask lets through."""

import pytest
import torch

from llm_envs.trainers.functional.masking import (
    aggregate_loss,
    group_token_counts,
    masked_mean,
    masked_moments,
    masked_sum,
    masked_whiten,
    trim_padding,
)


def test_columns_of_padding_are_cut_on_their_own_side():
    batch = {
        "prompt_ids": torch.tensor([[0, 0, 1, 2], [0, 0, 0, 3]]),
        "prompt_mask": torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]),
        "completion_ids": torch.tensor([[4, 0, 0], [5, 6, 0]]),
        "completion_mask": torch.tensor([[1, 0, 0], [1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 1, 1], [1, 0, 1]]),
        "advantages": torch.tensor([0.5, -0.5]),
        "importance_sampling_ratio": torch.ones(2, 1),
        "num_items_in_batch": torch.tensor(3),
        "note": "kept",
    }
    out = trim_padding(batch)
    assert out["prompt_ids"].tolist() == [[1, 2], [0, 3]]
    assert out["completion_ids"].tolist() == [[4, 0], [5, 6]]
    assert out["tool_mask"].tolist() == [[1, 1], [1, 0]]
    assert out["advantages"].tolist() == [0.5, -0.5]
    assert out["importance_sampling_ratio"].shape == (2, 1)
    assert (out["num_items_in_batch"], out["note"]) == (3, "kept")
    assert batch["prompt_ids"].shape == (2, 4)  # the given batch is left alone


def test_a_batch_without_any_token_keeps_one_column():
    zeros = torch.zeros(2, 3, dtype=torch.long)
    out = trim_padding({"prompt_ids": zeros, "prompt_mask": zeros, "completion_ids": zeros, "completion_mask": zeros})
    assert out["completion_ids"].shape == (2, 1)
    assert out["prompt_ids"].shape == (2, 1)


NAN = float("nan")
VALUES_BT = torch.tensor([[1.0, 2.0, NAN], [4.0, float("inf"), NAN], [NAN, NAN, NAN]])
MASK_BT = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])


def test_sums_and_means_see_only_what_is_not_masked():
    assert masked_sum(VALUES_BT, MASK_BT).item() == 7.0
    assert masked_sum(VALUES_BT, MASK_BT, dim=1).tolist() == [3.0, 4.0, 0.0]
    assert masked_sum(VALUES_BT, MASK_BT, dim=0).tolist() == [5.0, 2.0, 0.0]
    assert masked_mean(VALUES_BT, MASK_BT).item() == pytest.approx(7 / 3)
    assert masked_mean(VALUES_BT, MASK_BT, dim=1).tolist() == [1.5, 4.0, 0.0]
    assert masked_mean(VALUES_BT, MASK_BT.bool(), dim=1).tolist() == [1.5, 4.0, 0.0]


def test_no_gradient_comes_from_masked_places_nan_or_not():
    values_BT = VALUES_BT.clone().requires_grad_()
    masked_mean(values_BT, MASK_BT, dim=1).sum().backward()
    assert values_BT.grad.tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_bfloat16_is_summed_in_float32():
    ones_BT = torch.ones(1, 1000, dtype=torch.bfloat16)
    total = masked_sum(ones_BT, ones_BT)
    assert (total.dtype, total.item()) == (torch.float32, 1000.0)  # in bfloat16 a sum of ones stops at 256
    assert masked_sum(torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2)).dtype == torch.float64


def test_moments_have_n_minus_1():
    mean, variance = masked_moments(torch.tensor([1.0, 2.0, 6.0, NAN]), torch.tensor([1, 1, 1, 0]))
    assert (mean.item(), variance.item()) == (3.0, 7.0)  # (4 + 1 + 9) / 2
    assert [x.item() for x in masked_moments(torch.tensor([5.0, NAN]), torch.tensor([1, 0]))] == [5.0, 0.0]
    assert [x.item() for x in masked_moments(torch.tensor([NAN]), torch.tensor([0]))] == [0.0, 0.0]


def test_moments_of_two_processes_are_those_of_all_tokens():
    other = iter([torch.tensor([6.0, 1.0]), torch.tensor(9.0)])  # sum and count, then (6 - 3)^2
    own, mask = torch.tensor([1.0, 2.0, NAN]), torch.tensor([1, 1, 0])
    mean, variance = masked_moments(own, mask, total=lambda mine: mine + next(other))
    assert (mean.item(), variance.item()) == (3.0, 7.0)


def test_whitening():
    values = torch.tensor([[1.0, 2.0], [6.0, NAN]])
    mask = torch.tensor([[1, 1], [1, 0]])
    scale = 7**-0.5
    assert masked_whiten(values, mask).flatten().tolist() == pytest.approx([-2 * scale, -scale, 3 * scale, 0.0])
    kept = masked_whiten(values, mask, shift_mean=False).flatten().tolist()
    assert kept == pytest.approx([3 - 2 * scale, 3 - scale, 3 + 3 * scale, 0.0])
    other = iter([torch.tensor([6.0, 1.0]), torch.tensor(9.0)])  # of a second process: sum and count, then (6 - 3)^2
    first = masked_whiten(values[0], mask[0], total=lambda mine: mine + next(other))
    assert first.tolist() == pytest.approx([-2 * scale, -scale])
    assert masked_whiten(values, torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_three_normalisations():
    loss_BT = torch.tensor([[1.0, 2.0, 3.0, NAN], [10.0, NAN, NAN, NAN], [NAN] * 4])
    mask_BT = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    assert aggregate_loss(loss_BT, mask_BT, "token").item() == 4.0  # 16 / 4
    assert aggregate_loss(loss_BT, mask_BT, "sequence").item() == 4.0  # (2 + 10 + 0) / 3
    assert aggregate_loss(loss_BT, mask_BT, "constant", constant=8).item() == pytest.approx(16 / 24)
    assert aggregate_loss(loss_BT, mask_BT, "token", denominator=32).item() == 0.5
    assert aggregate_loss(loss_BT, mask_BT, "sequence", denominator=torch.tensor(6.0)).item() == 2.0
    assert aggregate_loss(loss_BT, mask_BT, "constant", denominator=64).item() == 0.25
    per_row_B1 = torch.tensor([[3.0], [5.0], [7.0]])
    assert aggregate_loss(per_row_B1, mask_BT, "token").item() == 3.5  # (3 * 3 + 5) / 4


def test_prompts_weigh_the_same_and_in_a_prompt_its_tokens():
    """Of the first prompt 1, 2, 3 and 10, of the second 4, of the third nothing: (16/4 + 4 + 0) / 3."""
    loss_BT = torch.tensor([[1.0, 2.0, 3.0], [4.0, NAN, NAN], [10.0, NAN, NAN], [NAN] * 3])
    mask_BT = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 0], [0, 0, 0]])
    ids_B = torch.tensor([7, 3, 7, 5])
    assert aggregate_loss(loss_BT, mask_BT, "prompt", group_ids_B=ids_B).item() == pytest.approx(8 / 3)
    assert aggregate_loss(loss_BT, mask_BT, "prompt", group_ids_B=ids_B, denominator=4).item() == 2.0
    counts_B = group_token_counts(mask_BT, ids_B)
    assert counts_B.tolist() == [4, 1, 4, 0]
    parts = [
        aggregate_loss(loss_BT[rows], mask_BT[rows], "prompt", group_tokens_B=counts_B[rows], denominator=3)
        for rows in (slice(0, 1), slice(1, 4))  # the first prompt is torn
    ]
    assert sum(parts).item() == pytest.approx(8 / 3)
    with pytest.raises(ValueError, match="needs group_ids_B"):
        aggregate_loss(loss_BT, mask_BT, "prompt")


def test_what_normalisation_is_not_guessed():
    ones = torch.ones(1, 1)
    with pytest.raises(ValueError, match="needs a constant above 0"):
        aggregate_loss(ones, ones, "constant")
    with pytest.raises(ValueError, match="'mean'"):
        aggregate_loss(ones, ones, "mean")


def test_micro_batches_add_up_to_the_batch():
    torch.manual_seed(0)
    loss_BT, mask_BT = torch.randn(6, 5, dtype=torch.float64), torch.rand(6, 5) > 0.4
    for normalisation, denominator in (("token", mask_BT.sum()), ("sequence", 6), ("constant", 6 * 5)):
        whole = aggregate_loss(loss_BT, mask_BT, normalisation, constant=5)
        parts = [
            aggregate_loss(loss_BT[rows], mask_BT[rows], normalisation, denominator=denominator)
            for rows in (slice(0, 1), slice(1, 4), slice(4, 6))
        ]
        torch.testing.assert_close(sum(parts), whole)
