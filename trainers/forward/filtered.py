"""Removes the sampling filters from log-probabilities, as training needs.

Every policy reports a token's log-probability under the distribution that it sampled from, after temperature and
filters (`top_p`, `top_k`, `min_p`, a repetition penalty). Training uses the policy over the full vocabulary, at the
sampling temperature. Even with equal weights, a filter that keeps probability Z makes the two differ by a factor of Z.
So we remove the filters first, for all backends. With unchanged weights each ratio is then 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llm_envs.policies.inference.sampling import has_filters
from llm_envs.policies.inference.scoring import filter_shifts
from llm_envs.trainers.functional.batch import Batch
from llm_envs.types import SamplingParams

__all__ = ["unfiltered_logps", "without_filters"]


def unfiltered_logps(
    model: Any,
    ids: Sequence[int] | npt.NDArray[Any],
    mask: Sequence[int] | npt.NDArray[Any],
    logps: Sequence[float] | npt.NDArray[Any],
    sampling: SamplingParams,
) -> npt.NDArray[np.float32]:
    """Return the log-probabilities of one row without the sampling filters, by one forward pass.

    Args:
        model: The trained model, with the weights that sampled.
        ids: Shape (T,), T at least 2: the full row, prompt included.
        mask: Shape (T,): 1 where the policy wrote a token, never at the first.
        logps: Shape (T,): log-probabilities from sampling, NaN at tokens that were not sampled.
        sampling: How the row was sampled.

    Returns:
        Shape (T,); unchanged where the mask is 0.
    """
    out = np.array(logps, dtype=np.float32)
    places = np.flatnonzero(mask)
    # A row without such a token is scored too: under FSDP each forward pass needs every process.
    shifts = filter_shifts(model, np.asarray(ids), places.tolist() or [1], sampling)
    out[places] -= shifts[: len(places)]
    return out


@torch.no_grad()
def without_filters(model: torch.nn.Module, batch: Batch) -> Batch:
    """Return the batch with the sampling filters removed from its log-probabilities.

    Args:
        model: The trained model, with the weights that sampled; scored in eval mode.
        batch: The rows. A batch sampled without filters is returned unchanged.
    """
    if batch.sampling is None or not has_filters(batch.sampling):
        return batch
    sampled_BT, prompt_ids, completion_mask = map(batch.need, ("sampled_logps_BT", "prompt_ids", "completion_mask"))
    n_prompt = prompt_ids.shape[1]
    ids = torch.cat([prompt_ids, batch.need("completion_ids")], dim=1)
    is_token = torch.cat([batch.need("prompt_mask"), completion_mask], dim=1).bool()
    mask = torch.nn.functional.pad(batch.mask_BT, (n_prompt, 0))
    logps = torch.nn.functional.pad(sampled_BT, (n_prompt, 0))
    out_BT, n_tokens_B = sampled_BT.cpu().clone(), completion_mask.sum(1).tolist()
    is_token, *on_host = (part.cpu() for part in (is_token, ids, mask, logps))
    was_training = model.training
    model.eval()
    try:
        for row, tokens in enumerate(is_token):
            # Without padding: `unfiltered_logps` takes the tokens of one row.
            row_ids, row_mask, row_logps = (part[row][tokens].numpy() for part in on_host)
            values = torch.from_numpy(unfiltered_logps(model, row_ids, row_mask, row_logps, batch.sampling))
            out_BT[row, : n_tokens_B[row]] = values[len(values) - n_tokens_B[row] :]
    finally:
        model.train(was_training)
    return replace(
        batch, sampled_logps_BT=out_BT.to(sampled_BT), sampling=SamplingParams(temperature=batch.temperature)
    )
