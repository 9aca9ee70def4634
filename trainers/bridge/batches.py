"""From episodes to the batch of a loss: rows of tokens, advantages, and shares of an optimizer step.

The plain loop makes its `Batch` at once (`make_batch`). TRL's trainers take rows (`rollout_output`), which TRL pads,
scores, shuffles and splits, and `batch_from_trl` reads them back. `with_advantages` serves both.

Invariants:
1. The first rows are the episodes in order; the further rows of forked episodes follow; then rows that only fill up.
2. The mask is 1 exactly on the policy's tokens of scored episodes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from llm_envs.errors import InvalidConfigError, ReplayError
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.rollout.fork import state_keys
from llm_envs.rollout.fork_policy import episode_name
from llm_envs.sources.source import EnvFactory
from llm_envs.trainers.bridge.credit import EpisodeRewards, group_numbers
from llm_envs.trainers.bridge.kept import check_kept
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.importance import ImportanceMode, importance_weights
from llm_envs.trainers.functional.kl import kl_in_reward
from llm_envs.trainers.functional.masking import Normalisation, group_token_counts, zero_masked
from llm_envs.trainers.functional.turns import spread_turns
from llm_envs.types import KeptTokens, Row, SamplingParams, Trajectory

__all__ = [
    "OWN_IMPORTANCE_MODES",
    "REWARD_FIELD",
    "Scored",
    "StateFn",
    "StepShares",
    "batch_from_trl",
    "create_column_reader",
    "create_state_fn",
    "fork_owners",
    "make_batch",
    "own_turns",
    "pad_rows",
    "reward_from_field",
    "reweighed",
    "rollout_output",
    "slice_rows",
    "token_advantages",
    "turn_matrix",
    "turn_penalties",
    "two_columns",
    "with_advantages",
]

OWN_IMPORTANCE_MODES = ("turn", "geometric")
"""Prefixes of the importance-sampling modes that we add to TRL's."""
StateFn = Callable[[Trajectory], Sequence[Hashable]]
"""`trajectory -> a key for each turn`: equal where turns of one group began in one state."""
REWARD_FIELD = "trajectory_reward"
"""Extra column that carries each row's reward from the rollout to the reward function."""


def row_places(trajectories: Sequence[Trajectory]) -> list[tuple[int, int]]:
    """Return (trajectory's index, which of its rows) for each row of a batch: first rows, then those of forks."""
    # First rows come first, one per episode: TRL groups rows by position, and must not see forks between them.
    forks = [(index, row) for index, trajectory in enumerate(trajectories) for row in range(1, len(trajectory.rows))]
    return [(index, 0) for index in range(len(trajectories))] + forks


def fork_owners(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return the trajectory's index for each row beyond a trajectory's first, in order."""
    return [index for index, _ in row_places(trajectories)[len(trajectories) :]]


def rollout_output(
    trajectories: Sequence[Trajectory],
    *,
    pad_id: int,
    mask_truncated: bool = False,
    trajectory_filter: TrajectoryFilter | None = None,
    n_rows: int | None = None,
    columns: Mapping[str, Sequence[float | None]] | None = None,
) -> dict[str, list[Any]]:
    """Return the rows of a `rollout_func` for TRL: first rows in the order of the trajectories, then those of forks.

    The tokens are the sampled ones, split where the policy first wrote; `env_mask` is 1 exactly on the policy's tokens.
    A trajectory that was not scored (`status` other than `ok`) is fully masked. Its reward is None, which TRL leaves
    out of the group's baseline: a failure is not a zero. Only the first row of a trajectory has its reward, so that it
    does not count twice.

    Args:
        trajectories: B trajectories; an errored one may have no rows.
        pad_id: Id that fills a row without tokens, since TRL does not accept an empty row.
        mask_truncated: Whether to mask trajectories that a token limit cut (`Trajectory.is_cut`) too. Their rewards
            still count.
        trajectory_filter: Keeps the trajectories to train on (`rollout.filters`); the tokens of the others are masked.
            None: all.
        n_rows: Total rows to return; masked rows without a reward are added to reach it. None: add no rows.
        columns: Further reward columns by name, one number per trajectory, for `create_column_reader`.

    Returns:
        Lists of one length: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, `trajectory_reward`, and
        `trajectory_reward/<name>` of each column.
    """

    def trained(trajectory: Trajectory) -> bool:
        if trajectory.status != "ok" or (mask_truncated and trajectory.is_cut):
            return False
        return trajectory_filter is None or trajectory_filter(trajectory)

    places = [(trajectories[index], row) for index, row in row_places(trajectories)]
    rows: list[tuple[Row | None, bool]] = [(t.rows[row] if t.rows else None, trained(t)) for t, row in places]
    rows += [(None, False)] * (0 if n_rows is None else n_rows - len(rows))
    parts = [_trl_row(row, pad_id, trained=is_trained) for row, is_trained in rows]
    out: dict[str, list[Any]] = {key: [part[key] for part in parts] for key in parts[0]} if parts else {}
    rewards = [t.reward if t.status == "ok" else None for t in trajectories]
    # Rows of forks and filling rows have no reward, so an episode counts once in its baseline.
    fill = [None] * (len(rows) - len(rewards))
    out[REWARD_FIELD] = rewards + fill
    return out | {f"{REWARD_FIELD}/{name}": [*values, *fill] for name, values in (columns or {}).items()}


def reward_from_field(
    prompts: Sequence[Any], completions: Sequence[Any], trajectory_reward: Sequence[float | None], **columns: Any
) -> list[float | None]:
    """Return the environment's rewards: a reward function for TRL that reads the rollout's column."""
    return list(trajectory_reward)


def create_column_reader(name: str) -> Callable[..., list[float | None]]:
    """Return a reward function for TRL that reads one column of `rollout_output`; all None if it is missing."""
    key = f"{REWARD_FIELD}/{name}"

    def read(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return list(columns.get(key, [None] * len(prompts)))

    return read


def _trl_row(row: Row | None, pad_id: int, *, trained: bool) -> Mapping[str, list[Any]]:
    # An episode may fail before its first token, and TRL does not accept an empty completion: give it a masked one.
    if row is None or len(row) <= row.prompt_length:
        ids = [pad_id] if row is None or not len(row) else row.ids.tolist()
        return {"prompt_ids": ids, "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
    start = row.prompt_length
    mask = row.mask[start:].astype(np.int64) if trained else np.zeros(len(row) - start, dtype=np.int64)
    return {
        "prompt_ids": row.ids[:start].tolist(),
        "completion_ids": row.ids[start:].tolist(),
        "logprobs": row.logps[start:].tolist(),
        "env_mask": mask.tolist(),
    }


def pad_rows(rows: Mapping[str, Sequence[Any]], *, pad_id: int) -> dict[str, torch.Tensor]:
    """Return rows of `rollout_output` as TRL pads them: prompts on the left, the rest on the right, on the CPU."""
    prompt_ids, prompt_mask = _padded(rows["prompt_ids"], pad_id, left=True)
    completion_ids, completion_mask = _padded(rows["completion_ids"], pad_id)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": _padded(rows["env_mask"], 0)[0],
        "sampling_per_token_logps": _padded(rows["logprobs"], 0.0, dtype=torch.float32)[0],
    }


def batch_from_trl(inputs: Mapping[str, Any]) -> Batch:
    """Return the batch of TRL's GRPO inputs: a generation, or a micro-batch of it.

    `completion_mask` is 0 on padding and `tool_mask` on the environment's tokens, so the product has the sampled
    tokens.
    """
    return Batch(
        (inputs["completion_mask"] * inputs["tool_mask"]).bool(),
        advantages=inputs.get("advantages"),
        old_logps_BT=inputs.get("old_per_token_logps"),
        ref_logps_BT=inputs.get("ref_per_token_logps"),
        sampled_logps_BT=inputs.get("sampling_per_token_logps"),
        weights=inputs.get("importance_sampling_ratio"),
        prompt_ids=inputs.get("prompt_ids"),
        prompt_mask=inputs.get("prompt_mask"),
        completion_ids=inputs.get("completion_ids"),
        completion_mask=inputs.get("completion_mask"),
        group_tokens_B=inputs.get("group_tokens"),
    )


def make_batch(
    credit: EpisodeRewards,
    *,
    pad_id: int,
    device: torch.device | str = "cpu",
    sampling: SamplingParams | None = None,
    mask_truncated: bool = False,
    trajectory_filter: TrajectoryFilter | None = None,
) -> Batch:
    """Return the rows of a generation as tensors, without advantages.

    Args:
        credit: The episodes and their rewards (`credit.score_episodes`), with all members of each group.
        pad_id: Fills masked places; any id of the vocabulary will do.
        device: Device of the tensors.
        sampling: How the episodes were sampled; None: `SamplingParams()`.
        mask_truncated: Whether to mask episodes that a token limit cut. Their rewards still count in baselines.
        trajectory_filter: Keeps the episodes to train on (`rollout.filters`). Rewards of the others still count.

    Raises:
        InvalidConfigError: If `credit` has no episode.
    """
    trajectories = credit.trajectories
    if not trajectories:
        raise InvalidConfigError("a batch needs episodes: give at least one group.")
    lists = rollout_output(
        trajectories, pad_id=pad_id, mask_truncated=mask_truncated, trajectory_filter=trajectory_filter
    )
    places, numbers = row_places(trajectories), group_numbers(trajectories)
    sampling = sampling or SamplingParams()
    kept: tuple[KeptTokens | None, ...] | None = None
    if sampling.keep_mask and has_filters(sampling):
        check_kept(trajectories)
        kept = tuple(trajectories[i].rows[row].kept if trajectories[i].rows else None for i, row in places)
        sampling = SamplingParams(temperature=sampling.temperature)  # the mask replaces the filters
    batch = replace(
        batch_from_trl(pad_rows(lists, pad_id=pad_id)),
        owners_B=torch.tensor([index for index, _ in places]),
        group_ids_B=torch.tensor([numbers[index] for index, _ in places]),
        # The further row of a fork has no reward, so that its episode counts once.
        rewards_B=torch.tensor(
            [*credit.rewards.tolist(), *[torch.nan] * (len(places) - len(trajectories))], dtype=torch.float32
        ),
        sampling=sampling,
        kept=kept,
    )
    moved: dict[str, Any] = {name: value.to(device) for name, value in batch.tensors().items()}
    return replace(batch, **moved)


@dataclass(frozen=True, eq=False)
class Scored:
    """The inputs of a generation's advantages: its E episodes, those of all processes."""

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
    credit: EpisodeRewards,
    *,
    kl_coef: float | None = None,
    state_fn: StateFn = state_keys,
    gather: Callable[[list[Any]], list[Any]] | None = None,
    process_index: int = 0,
) -> tuple[Batch, Scored]:
    """Return a whole generation with advantages, with the KL subtracted as `kl_in` asks.

    With "reward", each turn's reward loses the KL of its tokens before advantages; with "advantage", each token's
    advantage loses its own KL afterwards.

    The batch's `rewards_B`, by which pairs are formed, become NaN for episodes that are not trained on.

    Args:
        batch: The rows of the episodes of `credit`; with `policy_logps_BT` and `ref_logps_BT` if the KL counts in the
            reward or in the advantages.
        algorithm: Its `advantage_fn` gets one row per episode. Without one (PPO) the batch gets no advantages.
        credit: The episodes and rewards of this process.
        kl_coef: The present coefficient of the KL; None: the algorithm's.
        state_fn: Names the state before each turn of an episode, if the algorithm is `by_state` without a function.
        gather: Joins a list of objects over all processes; None: there is one process.
        process_index: Index of this process.

    Raises:
        InvalidConfigError: If an episode has several rows and the algorithm weighs each row alike, or the batch lacks
            the log-probabilities of such a KL.
    """
    has_forks = any(len(trajectory.rows) > 1 for trajectory in credit.trajectories)
    if has_forks and (algorithm.normalisation == "sequence" or algorithm.pair_loss_fn is not None):
        raise InvalidConfigError(
            f"an episode has several rows, and {algorithm.name!r} weighs each row alike: take one that is normalised "
            "by tokens, prompts or a constant, without pairs, or history='append' and no context function."
        )
    rewards, turns = credit.rewards.tolist(), [part.tolist() for part in credit.turn_rewards]
    kl_BT = _paid_kl(batch, algorithm)
    coefficient = algorithm.kl_coef if kl_coef is None else kl_coef
    assert not callable(coefficient), "a schedule's coefficient of now is given as kl_coef"
    if kl_BT is not None and algorithm.kl_in == "reward":
        penalties = turn_penalties(coefficient * kl_BT, batch.mask_BT, credit.trajectories)
        rewards = [reward - sum(penalty) for reward, penalty in zip(rewards, penalties, strict=True)]
        # strict=False: an episode without a score has no turn rewards, while every turn has a penalty.
        turns = [[r - p for r, p in zip(*pair, strict=False)] for pair in zip(turns, penalties, strict=True)]
    if algorithm.normalisation == "prompt":
        group_ids_B = _group_ids(batch, credit)
        batch = replace(batch, group_tokens_B=group_token_counts(batch.mask_BT, group_ids_B))
    # The process is part of the key: after the gather it tells which episodes are our own.
    mine = [(process_index, trajectory.group_id) for trajectory in credit.trajectories]
    learns = batch.mask_BT[: len(mine)].bool().any(1).tolist()
    # Groups stay on one process, but an advantage_fn may whiten over the whole batch: call it on all episodes at once.
    turns = [own_turns(turn, t) for turn, t in zip(turns, credit.trajectories, strict=True)]
    everything = list(zip(mine, rewards, turns, learns, _states(algorithm, state_fn, credit), strict=True))
    if gather is not None:
        everything = gather(everything)
    numbers: dict[tuple[int, str], int] = {}
    scored = Scored(
        rewards_E=torch.tensor([reward for _, reward, *_ in everything], dtype=torch.float32),
        group_ids_E=torch.tensor([numbers.setdefault(group, len(numbers)) for group, *_ in everything]),
        is_mine_E=torch.tensor([group[0] == process_index for group, *_ in everything]),
        learns_E=torch.tensor([learns for *_, learns, _ in everything]),
        kl_BT=kl_BT,
    )
    if batch.rewards_B is not None:
        rewards_B = torch.full_like(batch.rewards_B, torch.nan)
        rewards_B[: len(mine)] = scored.pair_rewards_E[scored.is_mine_E].to(rewards_B)
        batch = replace(batch, rewards_B=rewards_B)
    if algorithm.advantage_fn is None:
        return batch, scored
    given = [scored.rewards_E, scored.group_ids_E, turn_matrix([turn for _, _, turn, *_ in everything])]
    if algorithm.by_state:
        given.append(_state_numbers([states for *_, states in everything], width=given[-1].shape[1]))
    advantages = algorithm.advantage_fn(*given)
    own = advantages[scored.is_mine_E].to(device=batch.mask_BT.device, dtype=torch.float32)
    n_rows, n_tokens = batch.mask_BT.shape
    spread = token_advantages(own, credit.trajectories, n_rows=n_rows, n_tokens=n_tokens)
    if kl_BT is not None and algorithm.kl_in == "advantage":
        spread_BT = (spread if spread.ndim == 2 else spread[:, None]).expand(n_rows, n_tokens)
        spread = kl_in_reward(spread_BT, kl_BT, batch.mask_BT, coefficient)
    return replace(batch, advantages=spread), scored


def create_state_fn(factories: Mapping[str, EnvFactory]) -> StateFn:
    """Return `rollout.state_keys` for environments by their ids; others are made by `gymnasium.make`."""
    return lambda trajectory: state_keys(trajectory, factories.get(trajectory.env_id))


def own_turns(turn_rewards: Sequence[float], trajectory: Trajectory) -> list[float]:
    """Return the rewards of an episode's turns, NaN for those that a branch only repeats, which are known."""
    n_repeated = trajectory.metadata.get("fork", {"turn": 0})["turn"]
    return [math.nan if k < n_repeated else reward for k, reward in enumerate(turn_rewards)]


def _states(algorithm: Algorithm, state_fn: StateFn, credit: EpisodeRewards) -> list[Sequence[Hashable]]:
    """Return the keys of each episode's turns; none if they are not needed, or the episode has no score.

    The turns of an episode that cannot be replayed, such as one whose tool ran out of time, share no state with others.

    Raises:
        ReplayError: If no episode can be replayed.
    """
    name = algorithm.by_state if callable(algorithm.by_state) else state_fn
    states: list[Sequence[Hashable]] = []
    errors: list[ReplayError] = []
    for trajectory in credit.trajectories:
        try:
            states.append(name(trajectory) if algorithm.by_state and trajectory.status == "ok" else ())
        except ReplayError as error:
            errors.append(error)
            states.append([(episode_name(trajectory), turn) for turn in range(len(trajectory.turns))])
    if errors and len(errors) == sum(trajectory.status == "ok" for trajectory in credit.trajectories):
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


def _group_ids(batch: Batch, credit: EpisodeRewards) -> torch.Tensor:
    """Return each row's group; rows that only fill up the batch are in group -1."""
    numbers = group_numbers(credit.trajectories)
    ids = [numbers[index] for index, _ in row_places(credit.trajectories)]
    return torch.tensor([*ids, *[-1] * (len(batch) - len(ids))], device=batch.mask_BT.device)


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
        values_BT: Columns after the prompt: first rows in the episodes' order, then those of forks. Masked places may
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
    found = []
    for number, turn in enumerate(trajectory.turns):
        if turn.row == row:
            tokens = trajectory.rows[row]
            start, stop = tokens.spans[turn.span]
            found.append((number, (start - tokens.prompt_length, stop - tokens.prompt_length)))
    return found


@dataclass(frozen=True)
class StepShares:
    """How the micro-batches of all processes share the loss of an optimizer step. In an evaluation all counts are 1."""

    n_processes: int
    n_micro_batches: int
    """Micro-batches of a generation, on each process."""
    n_accumulated: int
    """Micro-batches of an optimizer step, on each process."""
    micro_batch_size: int | None
    """Rows of a micro-batch without forks; None: its actual number of rows (evaluation)."""
    group_size: int

    def denominator(
        self, normalisation: Normalisation, mask_BT: torch.Tensor, n_tokens: torch.Tensor, *, constant: float
    ) -> float | torch.Tensor:
        """Return the divisor that turns a micro-batch's sum into its share of the step's loss.

        Gradients are averaged over processes and summed over micro-batches.

        Args:
            normalisation: "token" divides by the tokens of the whole generation, on all processes.
            mask_BT: The micro-batch's.
            n_tokens: TRL's `num_items_in_batch`: trained tokens of the generation, on all processes.
            constant: The constant of "constant".
        """
        if normalisation == "token":
            return n_tokens.clamp(min=1.0) / self.n_processes * self.n_accumulated / self.n_micro_batches
        if normalisation == "prompt":  # a micro-batch may split a group, and forks add rows but no prompts
            n_rows = len(mask_BT) if self.micro_batch_size is None else self.micro_batch_size
            return n_rows * self.n_accumulated / self.group_size
        return len(mask_BT) * self.n_accumulated * (constant if normalisation == "constant" else 1.0)

    def pair_weight(self, n_pairs: int) -> float:
        """Return the weight of a micro-batch's pair sum in the generation's mean pair loss."""
        # The number of processes undoes DDP's average. A step has the share n_accumulated / n_micro_batches of a
        # generation, so the mean over the generation is scaled up to keep a step's size.
        return self.n_processes * self.n_micro_batches / self.n_accumulated / max(n_pairs, 1)


def reweighed(output: dict[str, Any], *, mode: str, maximum: float | None, minimum: float | None) -> dict[str, Any]:
    """Return TRL's batch with our importance weights, if `mode` is not one of TRL's (`functional.importance`)."""
    if "importance_sampling_ratio" not in output or not mode.startswith(OWN_IMPORTANCE_MODES):
        return output
    weights = importance_weights(
        output["old_per_token_logps"],
        output["sampling_per_token_logps"],
        batch_from_trl(output).mask_BT,
        mode=cast("ImportanceMode", mode),
        maximum=maximum,
        minimum=minimum,
    )
    return output | {"importance_sampling_ratio": weights}


def slice_rows(value: Any, start: int, stop: int) -> Any:
    """Return some rows of a tensor or list; a value of the whole batch (a scalar) is returned unchanged."""
    if value is None or (isinstance(value, torch.Tensor) and value.ndim == 0):
        return value
    return value[start:stop] if isinstance(value, torch.Tensor | list) else value


def two_columns(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's micro-batch with a second, masked column if it has only one token in each row.

    TRL takes values of shape (B, 1) for those of rows: its means would count masked ones too.
    """
    shape = inputs["completion_ids"].shape
    if shape[1] > 1:
        return dict(inputs)
    return {
        name: torch.nn.functional.pad(value, (0, 1))
        if isinstance(value, torch.Tensor) and value.shape == shape and not name.startswith("prompt_")
        else value
        for name, value in inputs.items()
    }
