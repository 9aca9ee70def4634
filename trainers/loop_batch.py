"""Batches of the functional loop: played episodes as tensors, what they are worth, and what a model says of them.

A row is a sequence of tokens: the first rows are the episodes in their order, then come the further rows of episodes
whose history forked. Prompts are padded on the left and what follows them on the right, so that the columns (T) begin
where the policy first wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.bridge import fork_owners, rollout_output
from llm_envs.trainers.credit import Credit, group_numbers, token_advantages, turn_matrix, turn_penalties
from llm_envs.trainers.functional.algorithm import AlgorithmConfig
from llm_envs.trainers.functional.kl import mean_kl
from llm_envs.trainers.functional.logits import entropies_from_logits, logps_from_logits
from llm_envs.trainers.functional.masking import trim_padding

__all__ = [
    "TrainingBatch",
    "autocast",
    "make_batch",
    "micro_batch_rows",
    "minibatch_rows",
    "score_batch",
    "score_rows",
    "with_advantages",
]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """The rows of one generation, or some of them. Masked places of (B, T) tensors may hold anything."""

    prompt_ids: torch.Tensor
    """Shape (B, P), int64, padded on the left."""
    prompt_mask: torch.Tensor
    """Shape (B, P), int64: 1 at tokens."""
    completion_ids: torch.Tensor
    """Shape (B, T), int64, padded on the right: from the first token that the policy wrote to the last one it saw."""
    completion_mask: torch.Tensor
    """Shape (B, T), int64: 1 at tokens, the environment's too."""
    mask_BT: torch.Tensor
    """Shape (B, T), bool: the tokens that the policy wrote and that are trained on. An episode without a score has
    none."""
    sampled_logps_BT: torch.Tensor
    """Shape (B, T), float32: as sampled. NaN where a token of the mask was not sampled (an oracle's)."""
    owners_B: torch.Tensor
    """Shape (B,), int64: index of each row's episode in the generation."""
    group_ids_B: torch.Tensor
    """Shape (B,), int64: the episode's group."""
    rewards_B: torch.Tensor
    """Shape (B,), float32: what the episode was paid; NaN where it has no score, and in rows beyond its first."""
    turn_rewards_BK: torch.Tensor
    """Shape (B, K), float32: the same by turn; NaN where there is no such turn, and where `rewards_B` is."""
    temperature: float = 1.0
    """Of sampling: what logits are divided by."""
    old_logps_BT: torch.Tensor | None = None
    """What ratios are against; None: `sampled_logps_BT`."""
    ref_logps_BT: torch.Tensor | None = None
    """The reference's."""
    advantages: torch.Tensor | None = None
    """Shape (B,) or (B, T)."""
    weights: torch.Tensor | None = None
    """Importance weights, shape (B, T) or (B, 1); None: 1."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.completion_ids)

    @property
    def n_episodes(self) -> int:
        """Number of episodes that the rows belong to."""
        return len(self.owners_B.unique())

    @property
    def n_tokens(self) -> int:
        """Number of tokens that are trained on."""
        return int(self.mask_BT.sum())

    def select(self, rows: torch.Tensor) -> TrainingBatch:
        """Return some rows, without the columns that are padding in all of them.

        Args:
            rows: Indices, shape (n,), n at least 1.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = {
            name: value[rows.to(value.device)] if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        turns = chosen.pop("turn_rewards_BK")  # (B, K): not to be taken for (B, T)
        return TrainingBatch(**trim_padding(chosen), turn_rewards_BK=turns)


def make_batch(
    credit: Credit,
    *,
    pad_id: int,
    device: torch.device | str = "cpu",
    temperature: float = 1.0,
    mask_truncated: bool = False,
) -> TrainingBatch:
    """Return the rows of a generation as tensors, without advantages.

    Args:
        credit: Its episodes and what they are paid (`credit.pay`); the members of a group are all among them.
        pad_id: Id that fills what is masked; any id of the vocabulary will do.
        device: Where the tensors go.
        temperature: Of sampling.
        mask_truncated: Whether truncated episodes are not trained on (their rewards count in baselines all the same).

    Raises:
        InvalidConfigError: If there is no episode.
    """
    trajectories = credit.trajectories
    if not trajectories:
        raise InvalidConfigError("a batch of no episodes: give at least one group.")
    lists = rollout_output(trajectories, pad_id=pad_id, mask_truncated=mask_truncated)
    prompt_ids, prompt_mask = _padded(lists["prompt_ids"], pad_id, left=True)
    completion_ids, completion_mask = _padded(lists["completion_ids"], pad_id)
    owners = [*range(len(trajectories)), *fork_owners(trajectories)]
    numbers = group_numbers(trajectories)
    n_forks = len(owners) - len(trajectories)
    turns = turn_matrix([*credit.turn_rewards, *[np.zeros(0)] * n_forks])
    rewards = torch.from_numpy(np.append(credit.rewards, np.full(n_forks, np.nan))).float()
    batch = TrainingBatch(
        prompt_ids,
        prompt_mask,
        completion_ids,
        completion_mask,
        _padded(lists["env_mask"], 0)[0].bool(),
        _padded(lists["logprobs"], 0.0, dtype=torch.float32)[0],
        torch.tensor(owners),
        torch.tensor([numbers[owner] for owner in owners]),
        rewards,
        turns,
        temperature,
    )
    return _to(batch, device)


def with_advantages(
    batch: TrainingBatch, algorithm: AlgorithmConfig, credit: Credit
) -> tuple[TrainingBatch, dict[str, float]]:
    """Return a whole generation with its advantages; `kl_in="reward"` takes the KL from each turn's reward before.

    Args:
        batch: As `make_batch` made it of `credit`, with `ref_logps_BT` where the KL counts in the reward.
        algorithm: Its `advantage_fn` sees one row an episode.
        credit: What the batch was made of.

    Returns:
        The batch; and `kl`, the mean per token, where it counts in the reward.

    Raises:
        InvalidConfigError: If an episode has several rows and the algorithm weighs each row alike.
    """
    n_episodes = len(credit.trajectories)
    if len(batch) > n_episodes and (algorithm.normalisation == "sequence" or algorithm.pair_loss_fn is not None):
        raise InvalidConfigError(
            f"an episode has several rows, and {algorithm.name!r} weighs each row alike: take one that is normalised "
            "by tokens or a constant, without pairs, or history='append' and no context function."
        )
    rewards_E, turns_EK = batch.rewards_B[:n_episodes], batch.turn_rewards_BK[:n_episodes]
    stats: dict[str, float] = {}
    if algorithm.kl_coef and algorithm.kl_in == "reward":
        if batch.ref_logps_BT is None:
            raise InvalidConfigError(f"{algorithm.name!r} takes a KL from the reward: the batch needs ref_logps_BT.")
        old_BT = batch.sampled_logps_BT if batch.old_logps_BT is None else batch.old_logps_BT
        kl_BT = algorithm.kl_fn(old_BT, batch.ref_logps_BT, batch.mask_BT)
        penalties = turn_penalties(algorithm.kl_coef * kl_BT, batch.mask_BT, credit.trajectories)
        penalties_EK = turn_matrix(penalties).to(rewards_E.device)
        width = min(turns_EK.shape[1], penalties_EK.shape[1])
        rewards_E = rewards_E - penalties_EK.nansum(1)
        turns_EK = turns_EK[:, :width] - penalties_EK[:, :width]
        stats["kl"] = float(mean_kl(kl_BT, batch.mask_BT))
    advantages = algorithm.advantage_fn(rewards_E, batch.group_ids_B[:n_episodes], turns_EK)
    n_tokens = batch.completion_ids.shape[1]
    spread = token_advantages(advantages, credit.trajectories, n_rows=len(batch), n_tokens=n_tokens)
    return replace(batch, advantages=spread), stats


def score_rows(
    model: Any, batch: TrainingBatch, *, with_entropies: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the model's log-probabilities of a batch's tokens behind the prompts, in one forward pass.

    Args:
        model: A causal language model of transformers, or one that is called as those are.
        batch: The rows.
        with_entropies: Whether entropies are wanted too.

    Returns:
        Shape (B, T), float32, with gradient where that is enabled; and entropies in nats of the same shape, or None.
    """
    attention = torch.cat([batch.prompt_mask, batch.completion_mask], dim=1)
    n_tokens = batch.completion_ids.shape[1]
    logits = model(
        input_ids=torch.cat([batch.prompt_ids, batch.completion_ids], dim=1),
        attention_mask=attention,
        position_ids=(attention.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=n_tokens + 1,
    ).logits[:, -n_tokens - 1 : -1]
    logps_BT = logps_from_logits(logits, batch.completion_ids, temperature=batch.temperature)
    return logps_BT, entropies_from_logits(logits, temperature=batch.temperature) if with_entropies else None


@torch.no_grad()
def score_batch(
    model: Any, batch: TrainingBatch, *, micro_batch_size: int | None = None, autocast_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the log-probabilities of all rows, without gradient, shape (B, T); 0 where a row has padding.

    Args:
        model: As for `score_rows`; scored in eval mode.
        batch: The rows.
        micro_batch_size: Rows a forward pass; None: all.
        autocast_dtype: See `autocast`.
    """
    out = torch.zeros(batch.completion_ids.shape, device=batch.completion_ids.device)
    was_training = model.training
    model.eval()
    try:
        for rows in micro_batch_rows(batch, micro_batch_size):
            part = batch.select(rows)
            with autocast(part.completion_ids.device, autocast_dtype):
                logps_BT, _ = score_rows(model, part)
            out[rows.to(out.device), : logps_BT.shape[1]] = logps_BT.float()
    finally:
        model.train(was_training)
    return out


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return the context in which matrix products are computed in `dtype`; None: in that of the weights.

    Raises:
        InvalidConfigError: If it is float16, whose gradients vanish without a scaled loss.
    """
    if dtype is None:
        return nullcontext()
    if dtype == torch.float16:
        raise InvalidConfigError("autocast_dtype=float16 needs a scaled loss: use torch.bfloat16.")
    return torch.autocast(device.type, dtype)


def micro_batch_rows(batch: TrainingBatch, size: int | None, *, whole_groups: bool = False) -> Iterator[torch.Tensor]:
    """Yield the rows of a batch in parts: what one forward pass takes.

    Args:
        batch: The rows.
        size: Most rows of a part; None: all at once.
        whole_groups: Whether a group lies in one part (for losses on pairs); then a part has at least one group.
    """
    n_rows = len(batch)
    if size is None or size >= n_rows:
        yield torch.arange(n_rows)
        return
    if not whole_groups:
        yield from torch.arange(n_rows).split(size)
        return
    part = torch.zeros(0, dtype=torch.long)
    groups = batch.group_ids_B.cpu()
    for group in groups.unique():
        members = torch.nonzero(groups == group)[:, 0]
        if len(part) and len(part) + len(members) > size:
            yield part
            part = part[:0]
        part = torch.cat([part, members])
    yield part


def minibatch_rows(batch: TrainingBatch, n: int, *, seed: int) -> list[torch.Tensor]:
    """Divide a generation into `n` parts of whole groups, in an order that the seed decides: one optimizer step each.

    Args:
        batch: The generation.
        n: How many; 1 keeps the order.
        seed: Of the order.

    Raises:
        InvalidConfigError: If there are fewer groups than parts.
    """
    if n == 1:
        return [torch.arange(len(batch))]
    groups = batch.group_ids_B.cpu()
    n_groups = len(groups.unique())
    if n > n_groups:
        raise InvalidConfigError(f"n_minibatches={n} of {n_groups} groups: lower it, or play more groups.")
    order = np.random.default_rng(seed).permutation(n_groups)
    parts = [torch.isin(groups, torch.from_numpy(chosen.astype(np.int64))) for chosen in np.array_split(order, n)]
    return [torch.nonzero(part)[:, 0] for part in parts]


def _padded(
    lists: Sequence[Sequence[float]], fill: float, *, left: bool = False, dtype: torch.dtype = torch.long
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lists as one tensor, and where it has their items; at least one column."""
    width = max(1, *map(len, lists))
    values = torch.full((len(lists), width), fill, dtype=dtype)
    mask = torch.zeros((len(lists), width), dtype=torch.long)
    for row, items in enumerate(lists):
        place = slice(width - len(items), None) if left else slice(len(items))
        values[row, place] = torch.tensor(items, dtype=dtype)
        mask[row, place] = 1
    return values, mask


def _to(batch: TrainingBatch, device: torch.device | str) -> TrainingBatch:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    moved: dict[str, Any] = {k: v.to(device) for k, v in values.items() if isinstance(v, torch.Tensor)}
    return replace(batch, **moved)
