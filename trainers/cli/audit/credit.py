"""Audits what episodes earn: reward columns, the rows of the loss, group baselines and advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from llm_envs.errors import InvalidConfigError, LLMEnvsError, RolloutFailedError
from llm_envs.rollout.episode import errored_trajectory
from llm_envs.sources.source import EpisodeSpec
from llm_envs.trainers.cli.audit.parts import Audit
from llm_envs.trainers.cli.audit.stored import Started
from llm_envs.trainers.episodes.advantages import with_advantages
from llm_envs.trainers.episodes.batches import make_batch, rollout_output, row_places
from llm_envs.trainers.episodes.rewards import EpisodeRewards, RewardSettings, score_episodes, with_overlong
from llm_envs.trainers.episodes.training_record import baselines, restore, reward_facts, row_digest
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import k1
from llm_envs.trainers.functional.masking import masked_whiten
from llm_envs.trainers.ppo.estimates import Estimates, estimate
from llm_envs.types import Trajectory

__all__ = ["Recomputed", "audit_generation", "per_token", "present_algorithm"]

CLOSE = (1e-4, 1e-5)
"""(relative, absolute) tolerance of advantages and baselines: float32, in another order of sums."""
_WITHIN_GROUPS = ("group_normalised", "group_centred", "leave_one_out", "max_at_k", "group_ranked", "ignore_reward")
"""Advantages that depend on no other group, so that one process's episodes suffice."""


@dataclass(frozen=True)
class Recomputed:
    """A generation as the loss reads it: recomputed from its episodes, with the stored advantages."""

    record: Mapping[str, Any]
    episodes: EpisodeRewards
    batch: Batch
    algorithm: Algorithm
    estimates: Estimates | None
    """PPO's advantages and returns."""


def audit_generation(
    audit: Audit, start: Started, record: Mapping[str, Any], rewards: RewardSettings | None, given: Algorithm | None
) -> Recomputed | None:
    """Compare a generation's rewards, rows, baselines and advantages; return it for its loss, if that is possible."""
    run = start.run or {}
    members = _members(start, record)
    if members is None:
        for part in ("rewards", "masks", "baselines", "advantages"):
            audit.parts[part].lack("an episode of the generation is not stored")
        return None
    algorithm = present_algorithm(audit, run, record, given)
    episodes = _scored_episodes(audit, start, record, members, rewards, algorithm)
    where: dict[str, Any] = {"file": start.record_file, "step": record["step"]}
    for t, stored, made in zip(members, record["baselines"], baselines(episodes), strict=True):
        kept: dict[str, Any] = {"by": baselines, "unit": "baselines", "what": "mean reward of the group", **where}
        audit.compare("baselines", stored, made, tolerance=CLOSE, episode=_name(t), **kept)
    places = row_places(episodes.trajectories)
    _audit_rows(audit, start, record, episodes, places)
    if algorithm is None:
        return None
    is_masked = bool(_setting(run, "mask_truncated_completions", "mask_truncated"))
    batch = make_batch(episodes, pad_id=run["pad_id"], mask_truncated=is_masked)
    batch, estimates = _advantages(audit, run, record, episodes, batch, algorithm)
    _audit_advantages(audit, start, record, episodes, places, batch)
    stored = _stored_advantages(record, batch)
    return Recomputed(record, episodes, replace(batch, advantages=stored), algorithm, estimates)


def present_algorithm(
    audit: Audit, run: Mapping[str, Any], record: Mapping[str, Any], given: Algorithm | None
) -> Algorithm | None:
    """Return the algorithm of a generation; None, with the reason noted, if it is not known."""
    described = record["algorithm"]
    try:
        if given is not None:
            return given.at(record["kl_coef"])
        return restore({**described, "kl_coef": record["kl_coef"]})
    except (InvalidConfigError, ValueError, AttributeError, ImportError) as error:
        for part in ("advantages", "loss"):
            audit.parts[part].lack(str(error))
        return None


def _members(start: Started, record: Mapping[str, Any]) -> list[Trajectory] | None:
    """Return the episodes of a generation; for places that stayed empty they are made as the trainer made them."""
    found: list[Trajectory] = []
    for (group, member), status in zip(record["episodes"], record["status"], strict=True):
        stored = start.trajectories.get((group, member))
        if stored is None and status != "errored":
            return None
        spec = EpisodeSpec("", {}, 0, group, member)
        found.append(stored or errored_trajectory(spec, RolloutFailedError("empty"), "group_filter"))
    return found


def _scored_episodes(
    audit: Audit,
    start: Started,
    record: Mapping[str, Any],
    members: Sequence[Trajectory],
    rewards: RewardSettings | None,
    algorithm: Algorithm | None,
) -> EpisodeRewards:
    """Return the rewards of a generation, and compare them; the stored ones if they cannot be recomputed."""
    run, facts = start.run or {}, (start.run or {})["rewards"]
    where: dict[str, Any] = {"file": start.record_file, "step": record["step"], "unit": "rewards"}
    needs = facts["reward_fns"] + facts["shaping_fns"] + (["aggregate"] if facts["aggregate"] is True else [])
    settings = rewards
    if settings is None and not needs:
        aggregate = facts["aggregate"] or None
        settings = RewardSettings(components=facts["components"], weights=facts["weights"], aggregate=aggregate)
    made: EpisodeRewards | None = None
    if settings is None or algorithm is None:
        names = ", ".join(needs) or "the algorithm's"
        audit.parts["rewards"].lack(f"columns of functions are not stored ({names}): give --rewards module:NAME")
    else:
        if rewards is not None:
            settings = replace(rewards, components=facts["components"])
            audit.compare("rewards", facts, reward_facts(settings), by=reward_facts, what="reward settings", **where)
        length = run["settings"].get("max_completion_length") or record.get("max_length")
        settings = with_overlong(settings, algorithm.overlong, int(length or 0))
        made = score_episodes(members, settings, run["task_weights"])
    stored = _stored_episodes(record, members)
    _audit_columns(audit, stored, made or stored, where, is_recomputed=made is not None)
    return made or stored


def _audit_columns(
    audit: Audit, stored: EpisodeRewards, made: EpisodeRewards, where: dict[str, Any], *, is_recomputed: bool
) -> None:
    by = score_episodes
    if is_recomputed:
        audit.compare("rewards", dict(stored.weights), dict(made.weights), by=by, what="columns and weights", **where)
    for name in made.columns:
        pairs = zip(made.trajectories, stored.columns.get(name, ()), made.columns[name], strict=False)
        for t, old, new in pairs if is_recomputed else ():
            shown: dict[str, Any] = {"what": f"column {name}", "episode": _name(t), "tolerance": (1e-6, 1e-9)}
            audit.compare("rewards", old, new, by=by, **shown, **where)
    by_turn = zip(made.trajectories, stored.turn_rewards, made.turn_rewards, strict=True)
    for t, one, two in by_turn if is_recomputed else ():
        shown = {"what": "rewards of the turns", "episode": _name(t), "tolerance": (1e-6, 1e-9)}
        audit.compare("rewards", one.tolist(), two.tolist(), by=by, **shown, **where)
    if "aggregate" not in stored.columns:
        for place, (t, total) in enumerate(zip(stored.trajectories, stored.rewards.tolist(), strict=True)):
            values = [stored.weights[name] * (column[place] or 0.0) for name, column in stored.columns.items()]
            shown = {"what": "sum of the columns", "episode": _name(t), "tolerance": (1e-5, 1e-7)}
            summed = sum(values) if t.status == "ok" else float("nan")
            audit.compare("rewards", total, summed, by=score_episodes, **shown, **where)


def _stored_episodes(record: Mapping[str, Any], members: Sequence[Trajectory]) -> EpisodeRewards:
    """Return the rewards of a record."""
    scored = [replace(t, status=status) for t, status in zip(members, record["status"], strict=True)]
    return EpisodeRewards(
        {name: tuple(values) for name, values in record["columns"].items()},
        record["weights"],
        tuple(np.array(part, dtype=np.float64) for part in record["turn_rewards"]),
        tuple(scored),
    )


def _audit_rows(
    audit: Audit,
    start: Started,
    record: Mapping[str, Any],
    episodes: EpisodeRewards,
    places: Sequence[tuple[int, int]],
) -> None:
    """Compare the rows that the loss saw with the stored episodes' rows."""
    run = start.run or {}
    if "trajectory_filter" in run["unknown"]:
        audit.parts["masks"].lack("a trajectory_filter chose the episodes to train on, and functions are not stored")
        return
    lists = rollout_output(
        episodes.trajectories,
        pad_id=run["pad_id"],
        mask_truncated=bool(_setting(run, "mask_truncated_completions", "mask_truncated")),
        n_rows=len(record["rows"]),
    )
    for row, stored in enumerate(record["rows"]):
        prompt = lists["prompt_ids"][row]
        made = row_digest([*prompt, *lists["completion_ids"][row]], [*[0] * len(prompt), *lists["env_mask"][row]])
        name = _name(episodes.trajectories[places[row][0]]) if row < len(places) else None
        shown: dict[str, Any] = {"what": "row of the loss [tokens, trained, checksum]", "episode": name}
        where: dict[str, Any] = {"file": start.record_file, "step": record["step"], "unit": "rows"}
        audit.compare("masks", stored, made, by=rollout_output, **shown, **where)


def _advantages(
    audit: Audit,
    run: Mapping[str, Any],
    record: Mapping[str, Any],
    episodes: EpisodeRewards,
    batch: Batch,
    algorithm: Algorithm,
) -> tuple[Batch, Estimates | None]:
    """Return the batch with recomputed advantages, None if that is not possible; and PPO's estimates."""
    if "trajectory_filter" in run["unknown"]:
        audit.parts["advantages"].lack("a trajectory_filter chose the episodes to train on")
        return batch, None
    penalties_BT = per_token(record.get("kl_penalties"), batch)
    if run["trainer"] == "ppo":
        return _critics_advantages(audit, run, record, episodes, batch, penalties_BT)
    name = getattr(algorithm.advantage_fn, "func", algorithm.advantage_fn)
    is_local = getattr(name, "__name__", "") in _WITHIN_GROUPS
    if run["processes"] > 1 and not is_local:
        audit.parts["advantages"].lack("they depend on the episodes of all processes")
        return batch, None
    coefficient = float(record["kl_coef"]) if algorithm.has_paid_kl else None
    if coefficient is not None:
        # The stored penalties stand for the KL: k1 of `penalty / coefficient` against 0 is that value.
        kl_BT = (torch.zeros(batch.mask_BT.shape) if penalties_BT is None else penalties_BT) / coefficient
        batch = replace(batch, policy_logps_BT=kl_BT, ref_logps_BT=torch.zeros_like(kl_BT))
        algorithm = replace(algorithm, kl_fn=k1)
    try:
        return with_advantages(batch, algorithm, episodes, kl_coef=coefficient)[0], None
    except LLMEnvsError as error:
        audit.parts["advantages"].lack(str(error))
        return batch, None


def _critics_advantages(
    audit: Audit,
    run: Mapping[str, Any],
    record: Mapping[str, Any],
    episodes: EpisodeRewards,
    batch: Batch,
    penalties_BT: torch.Tensor | None,
) -> tuple[Batch, Estimates | None]:
    settings, values_BT = run["settings"], per_token(record.get("values"), batch)
    if values_BT is None or run["processes"] > 1:
        audit.parts["advantages"].lack("the critic's values of all processes are not stored together")
        return batch, None
    estimates = estimate(
        episodes.trajectories,
        episodes.turn_rewards,
        values_BT,
        torch.tensor(record["bootstraps"], dtype=torch.float32),
        batch.mask_BT,
        **{name: settings[name] for name in ("gamma", "lam", "value_lam", "lam_alpha")},
        by_turn=settings["discount"] == "turn",
        penalties_BT=penalties_BT,
    )
    advantages_BT = estimates.advantages_BT
    if settings["whiten_advantages"]:
        advantages_BT = masked_whiten(advantages_BT, batch.mask_BT)
    return replace(batch, advantages=advantages_BT), estimates


def _audit_advantages(
    audit: Audit,
    start: Started,
    record: Mapping[str, Any],
    episodes: EpisodeRewards,
    places: Sequence[tuple[int, int]],
    batch: Batch,
) -> None:
    made = batch.advantages
    if made is None:
        return
    by: Any = estimate if (start.run or {})["trainer"] == "ppo" else with_advantages
    for row, (owner, _) in enumerate(places):
        stored, mask_T = record["advantages"][row], batch.mask_BT[row].bool()
        own: Any = made[row].expand(mask_T.shape)[mask_T].tolist() if isinstance(stored, list) else float(made[row])
        token = None
        if isinstance(stored, list):
            n_prompt = int(batch.need("prompt_mask")[row].sum())
            places_N = mask_T.nonzero()[:, 0].tolist()
            trained = zip(places_N, stored, own, strict=False)
            token = next((n_prompt + place for place, one, two in trained if abs(one - two) > 1e-3), None)
        shown: dict[str, Any] = {"what": "advantage", "episode": _name(episodes.trajectories[owner]), "token": token}
        where: dict[str, Any] = {"file": start.record_file, "step": record["step"], "unit": "rows"}
        audit.compare("advantages", stored, own, by=by, tolerance=(1e-4, 1e-4), **shown, **where)


def _stored_advantages(record: Mapping[str, Any], batch: Batch) -> torch.Tensor:
    stored = record["advantages"]
    if stored and isinstance(stored[0], list):
        spread = per_token(stored, batch)
        assert spread is not None
        return spread
    return torch.tensor(stored[: len(batch)], dtype=torch.float32)


def per_token(stored: Sequence[Sequence[float]] | None, batch: Batch) -> torch.Tensor | None:
    """Return the numbers that a record stores for the trained tokens of each row, shape (B, T); None without any.

    A row with another number of trained tokens than the record's is filled as far as it goes.
    """
    if stored is None:
        return None
    out = torch.zeros(batch.mask_BT.shape)
    for row, values in enumerate(stored[: len(batch)]):
        columns = batch.mask_BT[row].nonzero()[:, 0][: len(values)]
        out[row, columns] = torch.tensor(values[: len(columns)], dtype=torch.float32)
    return out


def _setting(run: Mapping[str, Any], *names: str) -> Any:
    """Return the first of some settings that the run has: trainers and the plain loop name some differently."""
    return next((run["settings"][name] for name in names if name in run["settings"]), None)


def _name(trajectory: Trajectory) -> str:
    return f"{trajectory.group_id}/{trajectory.member}"
