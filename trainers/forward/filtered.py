"""Removes the sampling filters from log-probabilities, as training needs.

Every policy reports a token's log-probability under the distribution that it sampled from, after temperature and
filters (`top_p`, `top_k`, `min_p`, a repetition penalty). Training uses the policy over the full vocabulary, at the
sampling temperature. Even with equal weights, a filter that keeps probability Z makes the two differ by a factor of Z.
So we remove the filters first, for all backends. With unchanged weights each ratio is then 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_envs.policies.inference.scoring import filter_shifts
from llm_envs.types import SamplingParams

__all__ = ["unfiltered_logps", "unfiltered_rows"]


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


def unfiltered_rows(model: Any, rows: Mapping[str, Sequence[Any]], sampling: SamplingParams) -> list[list[float]]:
    """Return the `logprobs` of TRL's rows (`episodes.batches.rollout_output`) without the sampling filters.

    Args:
        model: The trained model, with the weights that sampled.
        rows: Has `prompt_ids`, `completion_ids`, `env_mask` and `logprobs`.
        sampling: How the rows were sampled.
    """
    out = []
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs")
    for prompt, completion, mask, logps in zip(*(rows[name] for name in names), strict=True):
        before = [0] * len(prompt)
        values = unfiltered_logps(model, [*prompt, *completion], [*before, *mask], [*before, *logps], sampling)
        out.append(values[len(prompt) :].tolist())
    return out
