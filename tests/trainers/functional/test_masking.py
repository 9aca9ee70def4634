"""Trimming cuts padding and nothing else."""

import torch

from llm_envs.trainers.functional.masking import trim_padding


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
