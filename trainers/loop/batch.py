"""Batches of the functional loop: episodes as tensors, their advantages, and their log-probabilities under a model.

A row is a sequence of tokens. The first rows are the episodes in order; then come the further rows of episodes whose
history forked. Prompts are padded on the left and completions on the right, so the columns (T) begin where the policy
first wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'llm-envs[train]'.") from error

from llm_envs.policies.inference.positions import position_ids
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.trainers.bridge.credit import EpisodeRewards, group_numbers, token_advantages, turn_matrix, turn_penalties
from llm_envs.trainers.bridge.filtered import unfiltered_logps
from llm_envs.trainers.bridge.kept import check_kept, with_kept
from llm_envs.trainers.bridge.trl_rows import fork_owners, rollout_output
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.kl import mean_kl
from llm_envs.trainers.functional.logits import entropies_from_logits, logps_from_logits
from llm_envs.trainers.functional.masking import masked_mean, trim_padding
from llm_envs.types import KeptTokens, SamplingParams

__all__ = [
    "TrainingBatch",
    "autocast",
    "make_batch",
    "micro_batch_rows",
    "minibatch_rows",
    "sampling_gap",
    "score_batch",
    "score_rows",
    "with_advantages",
    "without_filters",
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
    """Shape (B, T), bool: the policy's tokens that are trained on. All False for an episode without a score."""
    sampled_logps_BT: torch.Tensor
    """Shape (B, T), float32: log-probabilities from sampling, under its filters; `without_filters` removes those.
    NaN if a token of the mask was not sampled (an oracle's)."""
    owners_B: torch.Tensor
    """Shape (B,), int64: index of each row's episode in the generation."""
    group_ids_B: torch.Tensor
    """Shape (B,), int64: the episode's group."""
    rewards_B: torch.Tensor
    """Shape (B,), float32: the episode's reward; NaN without a score, and in rows beyond its first."""
    turn_rewards_BK: torch.Tensor
    """Shape (B, K), float32: rewards by turn; NaN beyond the last turn, and where `rewards_B` is NaN."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """The sampling parameters behind `sampled_logps_BT`. Logits are divided by their temperature."""
    old_logps_BT: torch.Tensor | None = None
    """Denominators of the ratios; None: `sampled_logps_BT`."""
    policy_logps_BT: torch.Tensor | None = None
    """The policy's log-probabilities before the first step, from `score_batch`: over the whole vocabulary like the
    reference's, whereas those from sampling may be filtered (top_p, ...). Needed for a KL in the reward."""
    ref_logps_BT: torch.Tensor | None = None
    """The reference's log-probabilities."""
    advantages: torch.Tensor | None = None
    """Shape (B,) or (B, T)."""
    weights: torch.Tensor | None = None
    """Importance weights, shape (B, T) or (B, 1); None: 1."""
    kept: tuple[KeptTokens | None, ...] | None = None
    """By row, the tokens that the sampling filters kept at each sampled token (`SamplingParams.keep_mask`). Every
    log-probability is then over those tokens. None: over the whole vocabulary."""
    group_tokens_B: torch.Tensor | None = None
    """Shape (B,), int64: tokens of each row's group in the whole minibatch, for `normalisation="prompt"`."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.completion_ids)

    @property
    def n_episodes(self) -> int:
        """Number of episodes that the rows belong to."""
        return len(self.owners_B.unique())

    @property
    def n_tokens(self) -> int:
        """Number of trained tokens."""
        return int(self.mask_BT.sum())

    def select(self, rows: torch.Tensor) -> TrainingBatch:
        """Return some rows, without columns that are padding in all of them.

        Args:
            rows: Indices, shape (n,), n at least 1.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = {
            name: value[rows.to(value.device)] if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        turns = chosen.pop("turn_rewards_BK")  # (B, K): trim_padding would take it for (B, T)
        if self.kept is not None:
            chosen["kept"] = tuple(self.kept[row] for row in rows.tolist())
        return TrainingBatch(**trim_padding(chosen), turn_rewards_BK=turns)


def make_batch(
    credit: EpisodeRewards,
    *,
    pad_id: int,
    device: torch.device | str = "cpu",
    sampling: SamplingParams | None = None,
    mask_truncated: bool = False,
    trajectory_filter: TrajectoryFilter | None = None,
) -> TrainingBatch:
    """Return the rows of a generation as tensors, without advantages.

    Args:
        credit: The episodes and their rewards (`credit.score_episodes`), with all members of each group.
        pad_id: Fills masked places; any id of the vocabulary will do.
        device: Device of the tensors.
        sampling: How the episodes were sampled; None: `SamplingParams()`.
        mask_truncated: Whether to mask episodes that a token limit cut. Their rewards still count in baselines.
        trajectory_filter: Keeps the episodes to train on (`rollout.filters`). Rewards of the others still count.

    Raises:
        InvalidConfigError: If there are no episodes.
    """
    trajectories = credit.trajectories
    if not trajectories:
        raise InvalidConfigError("a batch of no episodes: give at least one group.")
    lists = rollout_output(
        trajectories, pad_id=pad_id, mask_truncated=mask_truncated, trajectory_filter=trajectory_filter
    )
    prompt_ids, prompt_mask = _padded(lists["prompt_ids"], pad_id, left=True)
    completion_ids, completion_mask = _padded(lists["completion_ids"], pad_id)
    owners = [*range(len(trajectories)), *fork_owners(trajectories)]
    numbers = group_numbers(trajectories)
    n_forks = len(owners) - len(trajectories)
    sampling = sampling or SamplingParams()
    kept: tuple[KeptTokens | None, ...] | None = None
    if sampling.keep_mask and has_filters(sampling):
        check_kept(trajectories)
        firsts = [t.rows[0].kept if t.rows else None for t in trajectories]
        kept = (*firsts, *(row.kept for t in trajectories for row in t.rows[1:]))
        sampling = SamplingParams(temperature=sampling.temperature)  # with the mask there is no filter to remove
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
        sampling,
        kept=kept,
    )
    return _to(batch, device)


def with_advantages(
    batch: TrainingBatch, algorithm: Algorithm, credit: EpisodeRewards
) -> tuple[TrainingBatch, dict[str, float]]:
    """Return a whole generation with advantages. With `kl_in="reward"`, first subtract the KL from each turn's reward.

    Args:
        batch: The result of `make_batch(credit)`, with `policy_logps_BT` and `ref_logps_BT` if the KL counts in the
            reward.
        algorithm: Its `advantage_fn` gets one row per episode.
        credit: The episodes and rewards of the batch.

    Returns:
        The batch; and `kl`, the mean per token, if it counts in the reward.

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
    if algorithm.advantage_fn is None:
        raise InvalidConfigError(f"{algorithm.name!r} has no advantage_fn; only EnvPPOTrainer has a critic.")
    if algorithm.kl_coef and algorithm.kl_in == "reward":
        if batch.policy_logps_BT is None or batch.ref_logps_BT is None:
            raise InvalidConfigError(
                f"{algorithm.name!r} takes a KL from the reward: the batch needs policy_logps_BT and ref_logps_BT, "
                "both from score_batch."
            )
        kl_BT = algorithm.kl_estimator(batch.policy_logps_BT, batch.ref_logps_BT, batch.mask_BT)
        assert not callable(algorithm.kl_coef)  # checked by training_iteration
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
    """Return the model's log-probabilities of a batch's completion tokens, in one forward pass.

    Args:
        model: A causal language model of transformers, or one with the same call.
        batch: The rows.
        with_entropies: Whether to return entropies too.

    Returns:
        Shape (B, T), float32, with gradient if enabled; and entropies in nats of the same shape, or None.
    """
    attention = torch.cat([batch.prompt_mask, batch.completion_mask], dim=1)
    n_tokens = batch.completion_ids.shape[1]
    logits = model(
        input_ids=torch.cat([batch.prompt_ids, batch.completion_ids], dim=1),
        attention_mask=attention,
        position_ids=position_ids(attention),
        use_cache=False,
        logits_to_keep=n_tokens + 1,
    ).logits[:, -n_tokens - 1 : -1]
    if batch.kept is not None:
        logits = with_kept(logits.float(), batch.mask_BT, batch.kept)
    temperature = batch.sampling.temperature
    logps_BT = logps_from_logits(logits, batch.completion_ids, temperature=temperature)
    return logps_BT, entropies_from_logits(logits, temperature=temperature) if with_entropies else None


@torch.no_grad()
def score_batch(
    model: Any, batch: TrainingBatch, *, micro_batch_size: int | None = None, autocast_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the log-probabilities of all rows, without gradient, shape (B, T); 0 in trimmed padding.

    Args:
        model: As for `score_rows`; scored in eval mode.
        batch: The rows.
        micro_batch_size: Rows per forward pass; None: all.
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


@torch.no_grad()
def without_filters(model: Any, batch: TrainingBatch, *, autocast_dtype: torch.dtype | None = None) -> TrainingBatch:
    """Return the batch with the sampling filters removed from its log-probabilities (`bridge.filtered`).

    Args:
        model: As for `score_rows`, with the weights that sampled; scored in eval mode.
        batch: The rows. A batch sampled without filters is returned unchanged.
        autocast_dtype: See `autocast`.
    """
    if not has_filters(batch.sampling):
        return batch
    out_BT, n_prompt = batch.sampled_logps_BT.clone(), batch.prompt_ids.shape[1]
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], dim=1)
    is_token = torch.cat([batch.prompt_mask, batch.completion_mask], dim=1).bool()
    mask = torch.nn.functional.pad(batch.mask_BT, (n_prompt, 0))
    logps = torch.nn.functional.pad(batch.sampled_logps_BT, (n_prompt, 0))
    was_training = model.training
    model.eval()
    try:
        with autocast(ids.device, autocast_dtype):
            for row, tokens in enumerate(is_token):
                row_ids, row_mask, row_logps = (part[row][tokens].cpu().numpy() for part in (ids, mask, logps))
                values = torch.from_numpy(unfiltered_logps(model, row_ids, row_mask, row_logps, batch.sampling))
                n_tokens = int(batch.completion_mask[row].sum())
                out_BT[row, :n_tokens] = values[len(values) - n_tokens :].to(out_BT)
    finally:
        model.train(was_training)
    return replace(batch, sampled_logps_BT=out_BT, sampling=SamplingParams(temperature=batch.sampling.temperature))


@torch.no_grad()
def sampling_gap(
    model: Any,
    batch: TrainingBatch,
    *,
    micro_batch_size: int | None = None,
    autocast_dtype: torch.dtype | None = None,
) -> float:
    """Return the mean gap between sampled and recomputed log-probabilities, in nats per token; 0 without tokens.

    Args:
        model: As for `score_rows`; scored in eval mode.
        batch: The rows, `without_filters`.
        micro_batch_size: Rows per forward pass; None: all.
        autocast_dtype: See `autocast`.
    """
    mask_BT = batch.mask_BT & ~batch.sampled_logps_BT.isnan()
    logps_BT = score_batch(model, batch, micro_batch_size=micro_batch_size, autocast_dtype=autocast_dtype)
    return float(masked_mean((logps_BT - batch.sampled_logps_BT).abs(), mask_BT))


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return a context in which matrix products use `dtype`; None: the dtype of the weights.

    Raises:
        InvalidConfigError: If it is float16, whose gradients underflow without loss scaling.
    """
    if dtype is None:
        return nullcontext()
    if dtype == torch.float16:
        raise InvalidConfigError("autocast_dtype=float16 needs a scaled loss: use torch.bfloat16.")
    return torch.autocast(device.type, dtype)


def micro_batch_rows(batch: TrainingBatch, size: int | None, *, whole_groups: bool = False) -> Iterator[torch.Tensor]:
    """Yield the row numbers of a batch in parts, one per forward pass.

    Args:
        batch: The rows.
        size: Maximum rows of a part; None: all at once.
        whole_groups: Whether to keep groups whole (for losses on pairs). A part then has at least one group.
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
    """Divide a generation into `n` parts of whole groups, in random order: one optimizer step each.

    Args:
        batch: The generation.
        n: Number of parts; 1 keeps the order.
        seed: Seed of the order.

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
    """Return lists as one padded tensor with at least one column, and the mask of their items."""
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
