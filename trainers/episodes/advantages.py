"""Advantages of a generation's episodes, and how they and their rewards lie on turns and tokens.

Invariants:
1. An `advantage_fn` sees the episodes of all processes, one row each, and the same on every process.
2. The reward of a turn that a branch only repeats is NaN, so no turn is rewarded twice.
3. A function of the user that fails or takes too long on one process fails on all.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llm_envs.errors import InvalidConfigError, ReplayError
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout.fork import state_keys
from llm_envs.rollout.fork_policy import episode_name
from llm_envs.sources.source import EnvFactory
from llm_envs.trainers.episodes.batches import row_places
from llm_envs.trainers.episodes.rewards import EpisodeRewards, group_numbers
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import kl_in_reward
from llm_envs.trainers.functional.masking import group_token_counts, zero_masked
from llm_envs.trainers.functional.turns import spread_turns
from llm_envs.trainers.run.ranks import raise_on_all_ranks
from llm_envs.types import Trajectory

__all__ = [
    "Scored",
    "StateFn",
    "create_state_fn",
    "own_turns",
    "token_advantages",
    "turn_matrix",
    "turn_penalties",
    "with_advantages",
]

StateFn = Callable[[Trajectory], Sequence[Hashable]]
"""`trajectory -> a key for each turn`: equal where turns of one group began in one state."""


@dataclass(frozen=True, eq=False)
class Scored:
    """The inputs of a generation's advantages: its E episodes, of all processes."""

    rewards_E: torch.Tensor
    """Their rewards, float32; NaN for an episode without a score."""
    group_ids_E: torch.Tensor
    is_mine_E: torch.Tensor
    """Whether this process played the episode."""
    learns_E: torch.Tensor
    """Whether the episode's first row has a trained token."""
    kl_BT: torch.Tensor | None
    """The KL estimates of this process's tokens, if the KL counts in the reward or in the advantages."""

    @property
    def pair_rewards_E(self) -> torch.Tensor:
        """The rewards to form pairs by: NaN too for an episode without a trained token."""
        return self.rewards_E.masked_fill(~self.learns_E, torch.nan)


def with_advantages(
    batch: Batch,
    algorithm: Algorithm,
    episodes: EpisodeRewards,
    *,
    kl_coef: float | None = None,
    state_fn: StateFn = state_keys,
    limit_s: float | None = None,
    gather: Callable[[list[Any]], list[Any]] | None = None,
    process_index: int = 0,
) -> tuple[Batch, Scored]:
    """Return a generation with advantages, with the KL subtracted as `kl_in` asks.

    With "reward", each turn's reward loses the KL of its tokens before advantages; with "advantage", each token's
    advantage loses its own KL afterwards.

    The batch's `rewards_B`, by which pairs are formed, become NaN for episodes that are not trained on.

    Args:
        batch: The rows of the episodes of `episodes`; with `policy_logps_BT` and `ref_logps_BT` if the KL counts in the
            reward or in the advantages.
        algorithm: Its `advantage_fn` gets one row per episode. Without one (PPO) the batch gets no advantages.
        episodes: The episodes and rewards of this process.
        kl_coef: The present coefficient of the KL; None: the algorithm's.
        state_fn: Names the state before each turn of an episode, if the algorithm is `by_state` without a function.
        limit_s: Seconds that one call of a function of the user may take; None: any time.
        gather: Joins a list of objects over all processes; None: there is one process.
        process_index: Index of this process.

    Raises:
        InvalidConfigError: If an episode has several rows and the algorithm weighs each row alike, or the batch lacks
            the log-probabilities of such a KL.
        TimeLimitError: If a function takes longer than `limit_s`.
    """
    _check_forks(algorithm, episodes)
    kl_BT = _paid_kl(batch, algorithm)
    coefficient = algorithm.kl_coef if kl_coef is None else kl_coef
    assert not callable(coefficient), "a schedule's coefficient of now is given as kl_coef"
    rewards, turns = _paid(episodes, batch, kl_BT if algorithm.kl_in == "reward" else None, coefficient)
    if algorithm.normalisation == "prompt":
        group_ids_B = _group_ids(batch, episodes)
        batch = replace(batch, group_tokens_B=group_token_counts(batch.mask_BT, group_ids_B))
    # The process is part of the key: after the gather it tells which episodes are our own.
    mine = [(process_index, trajectory.group_id) for trajectory in episodes.trajectories]
    learns = batch.mask_BT[: len(mine)].bool().any(1).tolist()
    together = nullcontext if gather is None else raise_on_all_ranks
    with together():
        states = _states(algorithm, state_fn, episodes, limit_s)
    # Groups stay on one process, but an advantage_fn may whiten over the batch: call it once, on all episodes.
    everything = list(zip(mine, rewards, turns, learns, states, strict=True))
    if gather is not None:
        everything = gather(everything)
    scored = _scored(everything, process_index, kl_BT)
    if batch.rewards_B is not None:
        rewards_B = torch.full_like(batch.rewards_B, torch.nan)
        rewards_B[: len(mine)] = scored.pair_rewards_E[scored.is_mine_E].to(rewards_B)
        batch = replace(batch, rewards_B=rewards_B)
    if algorithm.advantage_fn is None:
        return batch, scored
    arguments = [scored.rewards_E, scored.group_ids_E, turn_matrix([turn for _, _, turn, *_ in everything])]
    if algorithm.by_state:
        arguments.append(_state_numbers([states for *_, states in everything], width=arguments[-1].shape[1]))
    with together():
        advantages = limited(algorithm.advantage_fn, limit_s, f"the advantage_fn of {algorithm.name!r}")(*arguments)
    own = torch.as_tensor(advantages)[scored.is_mine_E].to(device=batch.mask_BT.device, dtype=torch.float32)
    n_rows, n_tokens = batch.mask_BT.shape
    spread = token_advantages(own, episodes.trajectories, n_rows=n_rows, n_tokens=n_tokens)
    if kl_BT is not None and algorithm.kl_in == "advantage":
        spread_BT = (spread if spread.ndim == 2 else spread[:, None]).expand(n_rows, n_tokens)
        spread = kl_in_reward(spread_BT, kl_BT, batch.mask_BT, coefficient)
    return replace(batch, advantages=spread), scored


def _check_forks(algorithm: Algorithm, episodes: EpisodeRewards) -> None:
    has_forks = any(len(trajectory.rows) > 1 for trajectory in episodes.trajectories)
    if has_forks and (algorithm.normalisation == "sequence" or algorithm.pair_loss_fn is not None):
        raise InvalidConfigError(
            f"an episode has several rows, and {algorithm.name!r} weighs each row alike: take one that is normalised "
            "by tokens, prompts or a constant, without pairs, or history='append' and no context function."
        )


def _paid(
    episodes: EpisodeRewards, batch: Batch, kl_BT: torch.Tensor | None, coefficient: float
) -> tuple[list[float], list[list[float]]]:
    """Return the rewards of episodes and of their turns, without a KL that counts in the reward."""
    rewards, turns = episodes.rewards.tolist(), [part.tolist() for part in episodes.turn_rewards]
    if kl_BT is not None:
        penalties = turn_penalties(coefficient * kl_BT, batch.mask_BT, episodes.trajectories)
        rewards = [reward - sum(penalty) for reward, penalty in zip(rewards, penalties, strict=True)]
        # strict=False: an episode without a score has no turn rewards, while every turn has a penalty.
        turns = [[r - p for r, p in zip(*pair, strict=False)] for pair in zip(turns, penalties, strict=True)]
    return rewards, [own_turns(turn, t) for turn, t in zip(turns, episodes.trajectories, strict=True)]


def _scored(everything: Sequence[tuple[Any, ...]], process_index: int, kl_BT: torch.Tensor | None) -> Scored:
    numbers: dict[tuple[int, str], int] = {}
    return Scored(
        rewards_E=torch.tensor([reward for _, reward, *_ in everything], dtype=torch.float32),
        group_ids_E=torch.tensor([numbers.setdefault(group, len(numbers)) for group, *_ in everything]),
        is_mine_E=torch.tensor([group[0] == process_index for group, *_ in everything]),
        learns_E=torch.tensor([learns for *_, learns, _ in everything]),
        kl_BT=kl_BT,
    )


def create_state_fn(factories: Mapping[str, EnvFactory]) -> StateFn:
    """Return `rollout.state_keys` for environments by their ids; others are made by `gymnasium.make`."""
    return lambda trajectory: state_keys(trajectory, factories.get(trajectory.env_id))


def own_turns(turn_rewards: Sequence[float], trajectory: Trajectory) -> list[float]:
    """Return the rewards of an episode's turns, NaN for those that a branch only repeats, which are known."""
    n_repeated = trajectory.metadata.get("fork", {"turn": 0})["turn"]
    return [math.nan if k < n_repeated else reward for k, reward in enumerate(turn_rewards)]


def _states(
    algorithm: Algorithm, state_fn: StateFn, episodes: EpisodeRewards, limit_s: float | None
) -> list[Sequence[Hashable]]:
    """Return the keys of each episode's turns; none if they are not needed, or the episode has no score.

    The turns of an episode that cannot be replayed, such as one whose tool ran out of time, share no state with others.

    Raises:
        ReplayError: If no episode can be replayed.
    """
    name = algorithm.by_state if callable(algorithm.by_state) else state_fn
    name = limited(name, limit_s, f"by_state of {algorithm.name!r}")
    states: list[Sequence[Hashable]] = []
    errors: list[ReplayError] = []
    for trajectory in episodes.trajectories:
        try:
            states.append(name(trajectory) if algorithm.by_state and trajectory.status == "ok" else ())
        except ReplayError as error:
            errors.append(error)
            states.append([(episode_name(trajectory), turn) for turn in range(len(trajectory.turns))])
    if errors and len(errors) == sum(trajectory.status == "ok" for trajectory in episodes.trajectories):
        raise errors[0]
    if errors:
        warnings.warn(f"{len(errors)} of {len(states)} episodes share no state with others: {errors[0]}", stacklevel=2)
    return states


def _state_numbers(states: Sequence[Sequence[Hashable]], width: int) -> torch.Tensor:
    """Return keys as numbers, shape (E, K); -1 for a missing turn."""
    numbers: dict[Hashable, int] = {}
    out = torch.full((len(states), width), -1)
    for row, keys in enumerate(states):
        out[row, : len(keys)] = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])
    return out


def _paid_kl(batch: Batch, algorithm: Algorithm) -> torch.Tensor | None:
    """Return the KL at each token, shape (B, T); None if no KL counts in the reward or in the advantages.

    The policy is scored the same way as the reference. The log-probabilities from sampling cannot be used: with top_p,
    top_k, min_p or a repetition penalty they belong to another distribution.
    """
    if not algorithm.has_paid_kl:
        return None
    if batch.policy_logps_BT is None or batch.ref_logps_BT is None:
        raise InvalidConfigError(
            f"{algorithm.name!r} has kl_in={algorithm.kl_in!r}: the batch needs policy_logps_BT and ref_logps_BT, both "
            "from score_batch."
        )
    return algorithm.kl_estimator(batch.policy_logps_BT, batch.ref_logps_BT, batch.mask_BT)


def _group_ids(batch: Batch, episodes: EpisodeRewards) -> torch.Tensor:
    """Return each row's group; rows that only fill up the batch are in group -1."""
    numbers = group_numbers(episodes.trajectories)
    ids = [numbers[index] for index, _ in row_places(episodes.trajectories)]
    return torch.tensor([*ids, *[-1] * (len(batch) - len(ids))], device=batch.mask_BT.device)


def turn_matrix(turn_rewards: Sequence[npt.ArrayLike]) -> torch.Tensor:
    """Return rewards as one tensor, shape (B, K), float32; NaN beyond an episode's last turn."""
    n_turns = max((len(np.atleast_1d(part)) for part in turn_rewards), default=0)
    out = torch.full((len(turn_rewards), n_turns), torch.nan)
    for row, part in enumerate(turn_rewards):
        values = torch.as_tensor(np.asarray(part), dtype=torch.float32)
        out[row, : len(values)] = values
    return out


def token_advantages(
    advantages: torch.Tensor, trajectories: Sequence[Trajectory], *, n_rows: int, n_tokens: int
) -> torch.Tensor:
    """Spread the advantages of episodes over rows: first rows in order, then the further rows of forks.

    Args:
        advantages: Shape (B,) for episodes or (B, K) for turns.
        trajectories: The B episodes.
        n_rows: Rows of the batch; rows without an episode get advantage 0.
        n_tokens: T, the columns after the prompts.

    Returns:
        Shape (n_rows,), or (n_rows, T) if `advantages` are by turn.
    """
    rows = row_places(trajectories)
    owners = torch.tensor([owner for owner, _ in rows], dtype=torch.long, device=advantages.device)
    if advantages.ndim == 1:
        out = advantages.new_zeros(n_rows)
        out[: len(rows)] = advantages[owners]
        return out
    starts, stops = np.zeros((2, n_rows, advantages.shape[1]), dtype=np.int64)
    for place, (owner, row) in enumerate(rows):
        for number, (start, stop) in _spans(trajectories[owner], row):
            starts[place, number], stops[place, number] = min(start, n_tokens), min(stop, n_tokens)
    values = advantages.new_zeros(n_rows, advantages.shape[1])
    values[: len(rows)] = advantages[owners]
    device = advantages.device
    return spread_turns(values, torch.from_numpy(starts).to(device), torch.from_numpy(stops).to(device), n_tokens)


def turn_penalties(
    values_BT: torch.Tensor, mask_BT: torch.Tensor, trajectories: Sequence[Trajectory]
) -> list[list[float]]:
    """Return sums of per-token values, such as the KL, over each turn of each episode.

    Args:
        values_BT: Columns after the prompt: first rows in the episodes' order, then the forks' rows. Masked places may
            hold anything.
        mask_BT: 1 on the tokens to sum.
        trajectories: The episodes.
    """
    kept = zero_masked(values_BT, mask_BT).double().cpu().numpy()
    out = [[0.0] * len(trajectory.turns) for trajectory in trajectories]
    for place, (owner, row) in enumerate(row_places(trajectories)):
        for number, (start, stop) in _spans(trajectories[owner], row):
            out[owner][number] += float(kept[place, start:stop].sum())
    return out


def _spans(trajectory: Trajectory, row: int) -> list[tuple[int, tuple[int, int]]]:
    """Return (turn, its columns after the prompt) for each turn in a row."""
    spans = []
    for number, turn in enumerate(trajectory.turns):
        if turn.row == row:
            tokens = trajectory.rows[row]
            start, stop = tokens.spans[turn.span]
            spans.append((number, (start - tokens.prompt_length, stop - tokens.prompt_length)))
    return spans
