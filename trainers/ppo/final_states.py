"""The state from which an episode would have continued without its limit of turns or time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llm_envs.chat.context import Codec
from llm_envs.types import StopReason, Trajectory

__all__ = ["next_prompt", "with_next_prompts"]

IdArray = npt.NDArray[np.int32]

_GOES_ON_BEHIND = (StopReason.ENV_TRUNCATED, StopReason.MAX_TURNS, StopReason.TIMEOUT)
# After a token limit no further turn is possible: the environment has already answered the cut reply, and the row has
# no room for another turn.


def next_prompt(
    trajectory: Trajectory, codec: Codec, *, max_row_tokens: int, max_completion_tokens: int
) -> IdArray | None:
    """Return the row that the policy would have been given for its next turn.

    Args:
        trajectory: An episode of one row, whose history was only ever appended to.
        codec: The codec that encoded it.
        max_row_tokens: Maximum tokens of a row: the model's context.
        max_completion_tokens: Maximum tokens of a row after its prompt.

    Returns:
        Token ids, shape (T,). None if the policy could not have taken another turn: the task ended, a token limit cut
        the episode or its final observation, or the row has no room for another token.
    """
    if trajectory.status != "ok" or trajectory.stop_reason not in _GOES_ON_BEHIND:
        return None
    row = trajectory.rows[-1]
    start, stop = row.spans[-1]
    heard = list(takewhile(lambda message: message.role != "assistant", reversed(trajectory.messages)))[::-1]
    said = {"reply_ids": row.ids[start:stop], "start": codec.start_of(trajectory.messages, trajectory.tools)}
    if not heard or not np.array_equal(codec.encode_delta(heard, generation_prompt=False, **said), row.ids[stop:]):
        return None  # the final observation was cut
    prompt = np.concatenate([row.ids[:stop], codec.encode_delta(heard, **said)])
    first = len(row) - trajectory.n_completion_tokens  # of a branch, where its origin's first reply began
    fits = len(prompt) < max_row_tokens and len(prompt) - first < max_completion_tokens
    return prompt if fits else None


def with_next_prompts(
    output: Mapping[str, Any], trajectories: Sequence[Trajectory], prompts: Sequence[IdArray | None], *, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask of full rows, with each row replaced by its next prompt if it has one.

    A row and its next prompt differ only after the policy's last token, so all values up to there are the same.

    Args:
        output: Has `prompt_ids` and `completion_ids` of shapes (B, P) and (B, T), and their masks.
        trajectories: E episodes, E <= B; row i of the batch is the first row of episode i.
        prompts: By episode, from `next_prompt`.
        pad_id: Fills the rows.
    """
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    n_prompt = output["prompt_ids"].shape[1]
    pairs = zip(trajectories, prompts, strict=True)
    tails = {at: prompt[t.rows[-1].prompt_length :] for at, (t, prompt) in enumerate(pairs) if prompt is not None}
    n_more = max((n_prompt + len(tail) - ids.shape[1] for tail in tails.values()), default=0)
    if n_more > 0:
        ids = torch.nn.functional.pad(ids, (0, n_more), value=pad_id)
        mask = torch.nn.functional.pad(mask, (0, n_more))
    for at, tail in tails.items():
        ids[at, n_prompt : n_prompt + len(tail)] = torch.from_numpy(tail).to(ids)
        mask[at, n_prompt:] = 0
        mask[at, n_prompt : n_prompt + len(tail)] = 1
    return ids, mask
