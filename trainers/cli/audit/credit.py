"""Audits what episodes earn: reward columns, the rows of the loss, group baselines and advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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

__all__ = ["Recomputed", "audit_generation", "per_token"]

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
    members = _members(start, record)
    if members is None:
        audit.lack("an episode of the generation is not stored", "rewards", "masks", "baselines", "advantages")
        return None
    return _Generation(audit, start, record).recompute(members, rewards, given)


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


class _Generation:
    """The audit of one generation."""

    def __init__(self, audit: Audit, start: Started, record: Mapping[str, Any]) -> None:
        self.audit, self.record, self.run = audit, record, start.run or {}
        self.compare = partial(audit.compare, file=start.record_file, step=record["step"])
        self.is_masked = bool(self.run["settings"].get("mask_truncated_completions"))

    def recompute(
        self, members: Sequence[Trajectory], rewards: RewardSettings | None, given: Algorithm | None
    ) -> Recomputed | None:
        """Compare all parts; return the generation, if its algorithm is known."""
        record, algorithm = self.record, self._algorithm(given)
        episodes = self._score(members, rewards, algorithm)
        compare = partial(self.compare, "baselines", by=baselines, unit="baselines", what="mean reward of the group")
        for t, stored, made in zip(members, record["baselines"], baselines(episodes), strict=True):
            compare(stored, made, tolerance=CLOSE, episode=_name(t))
        self._audit_rows(episodes)
        if algorithm is None:
            return None
        batch = make_batch(episodes, pad_id=self.run["pad_id"], mask_truncated=self.is_masked)
        batch, estimates = self._advantages(episodes, batch, algorithm)
        if batch.advantages is not None:
            self._audit_advantages(episodes, batch)
        per_row = record["advantages"]
        if not (per_row and isinstance(per_row[0], list)):
            advantages: torch.Tensor | None = torch.tensor(per_row[: len(batch)], dtype=torch.float32)
        else:
            advantages = per_token(per_row, batch)
        return Recomputed(record, episodes, replace(batch, advantages=advantages), algorithm, estimates)

    def _algorithm(self, given: Algorithm | None) -> Algorithm | None:
        """Return the algorithm of the generation; None, with the reason noted, if it is not known."""
        try:
            if given is not None:
                return given.at(self.record["kl_coef"])
            return restore({**self.record["algorithm"], "kl_coef": self.record["kl_coef"]})
        except (InvalidConfigError, ValueError, AttributeError, ImportError) as error:
            self.audit.lack(str(error), "advantages", "loss")
            return None

    def _score(
        self, members: Sequence[Trajectory], rewards: RewardSettings | None, algorithm: Algorithm | None
    ) -> EpisodeRewards:
        """Return the rewards of the episodes, and compare them; the stored ones if they cannot be recomputed."""
        run, record, facts = self.run, self.record, self.run["rewards"]
        needs = facts["reward_fns"] + facts["shaping_fns"] + (["aggregate"] if facts["aggregate"] is True else [])
        settings = rewards
        if settings is None and not needs:
            aggregate = facts["aggregate"] or None
            settings = RewardSettings(components=facts["components"], weights=facts["weights"], aggregate=aggregate)
        stored = EpisodeRewards(
            {name: tuple(values) for name, values in record["columns"].items()},
            record["weights"],
            tuple(np.array(part, dtype=np.float64) for part in record["turn_rewards"]),
            tuple(replace(t, status=status) for t, status in zip(members, record["status"], strict=True)),
        )
        compare = partial(self.compare, "rewards", unit="rewards")
        made = stored
        if settings is None or algorithm is None:
            names = ", ".join(needs) or "the algorithm's"
            self.audit.lack(f"columns of functions are not stored ({names}): give --rewards FILE.py:NAME", "rewards")
        else:
            if rewards is not None:
                settings = replace(rewards, components=facts["components"])
                compare(facts, reward_facts(settings), by=reward_facts, what="reward settings")
            settings = with_overlong(settings, algorithm.overlong, int(run["settings"]["max_completion_length"]))
            made = score_episodes(members, settings, run["task_weights"])
            self._audit_columns(stored, made)
        if "aggregate" not in stored.columns:
            for place, (t, total) in enumerate(zip(stored.trajectories, stored.rewards.tolist(), strict=True)):
                values = [stored.weights[name] * (column[place] or 0.0) for name, column in stored.columns.items()]
                summed = sum(values) if t.status == "ok" else float("nan")
                shown: dict[str, Any] = {"what": "sum of the columns", "tolerance": (1e-5, 1e-7)}
                compare(total, summed, by=score_episodes, episode=_name(t), **shown)
        return made

    def _audit_columns(self, stored: EpisodeRewards, made: EpisodeRewards) -> None:
        compare = partial(self.compare, "rewards", by=score_episodes, unit="rewards")
        compare(dict(stored.weights), dict(made.weights), what="columns and weights")
        compare = partial(compare, tolerance=(1e-6, 1e-9))
        for name, column in made.columns.items():
            for t, old, new in zip(made.trajectories, stored.columns.get(name, ()), column, strict=False):
                compare(old, new, what=f"column {name}", episode=_name(t))
        for t, one, two in zip(made.trajectories, stored.turn_rewards, made.turn_rewards, strict=True):
            compare(one.tolist(), two.tolist(), what="rewards of the turns", episode=_name(t))

    def _audit_rows(self, episodes: EpisodeRewards) -> None:
        """Compare the rows that the loss saw with the stored episodes' rows."""
        if "trajectory_filter" in self.run["unknown"]:
            why = "a trajectory_filter chose the episodes to train on, and functions are not stored"
            self.audit.lack(why, "masks", "advantages")
            return
        rows, places = self.record["rows"], row_places(episodes.trajectories)
        kept: dict[str, Any] = {"pad_id": self.run["pad_id"], "mask_truncated": self.is_masked, "n_rows": len(rows)}
        lists = rollout_output(episodes.trajectories, **kept)
        compare = partial(self.compare, "masks", by=rollout_output, unit="rows")
        for row, stored in enumerate(rows):
            prompt = lists["prompt_ids"][row]
            made = row_digest([*prompt, *lists["completion_ids"][row]], [*[0] * len(prompt), *lists["env_mask"][row]])
            name = _name(episodes.trajectories[places[row][0]]) if row < len(places) else None
            compare(stored, made, what="row of the loss [tokens, trained, checksum]", episode=name)

    def _advantages(
        self, episodes: EpisodeRewards, batch: Batch, algorithm: Algorithm
    ) -> tuple[Batch, Estimates | None]:
        """Return the batch with recomputed advantages, None if that is not possible; and PPO's estimates."""
        if "trajectory_filter" in self.run["unknown"]:
            return batch, None
        penalties_BT = per_token(self.record.get("kl_penalties"), batch)
        if self.run["trainer"] == "ppo":
            return self._critics_advantages(episodes, batch, penalties_BT)
        name = getattr(algorithm.advantage_fn, "func", algorithm.advantage_fn)
        if self.run["processes"] > 1 and getattr(name, "__name__", "") not in _WITHIN_GROUPS:
            self.audit.lack("they depend on the episodes of all processes", "advantages")
            return batch, None
        coefficient = float(self.record["kl_coef"]) if algorithm.has_paid_kl else None
        if coefficient is not None:
            # The stored penalties stand for the KL: k1 of `penalty / coefficient` against 0 is that value.
            kl_BT = (torch.zeros(batch.mask_BT.shape) if penalties_BT is None else penalties_BT) / coefficient
            batch = replace(batch, policy_logps_BT=kl_BT, ref_logps_BT=torch.zeros_like(kl_BT))
            algorithm = replace(algorithm, kl_fn=k1)
        try:
            return with_advantages(batch, algorithm, episodes, kl_coef=coefficient)[0], None
        except LLMEnvsError as error:
            self.audit.lack(str(error), "advantages")
            return batch, None

    def _critics_advantages(
        self, episodes: EpisodeRewards, batch: Batch, penalties_BT: torch.Tensor | None
    ) -> tuple[Batch, Estimates | None]:
        settings, values_BT = self.run["settings"], per_token(self.record.get("values"), batch)
        if values_BT is None or self.run["processes"] > 1:
            self.audit.lack("the critic's values of all processes are not stored together", "advantages")
            return batch, None
        estimates = estimate(
            episodes.trajectories,
            episodes.turn_rewards,
            values_BT,
            torch.tensor(self.record["bootstraps"], dtype=torch.float32),
            batch.mask_BT,
            **{name: settings[name] for name in ("gamma", "lam", "value_lam", "lam_alpha")},
            by_turn=settings["discount"] == "turn",
            penalties_BT=penalties_BT,
        )
        advantages_BT = estimates.advantages_BT
        if settings["whiten_advantages"]:
            advantages_BT = masked_whiten(advantages_BT, batch.mask_BT)
        return replace(batch, advantages=advantages_BT), estimates

    def _audit_advantages(self, episodes: EpisodeRewards, batch: Batch) -> None:
        by: Any = estimate if self.run["trainer"] == "ppo" else with_advantages
        compare = partial(self.compare, "advantages", by=by, unit="rows", what="advantage", tolerance=(1e-4, 1e-4))
        for row, (owner, _) in enumerate(row_places(episodes.trajectories)):
            stored, mask_T = self.record["advantages"][row], batch.mask_BT[row].bool()
            made, token = batch.need("advantages")[row], None
            own: Any = float(made) if not isinstance(stored, list) else made.expand(mask_T.shape)[mask_T].tolist()
            if isinstance(stored, list):
                n_prompt = int(batch.need("prompt_mask")[row].sum())
                trained = zip(mask_T.nonzero()[:, 0].tolist(), stored, own, strict=False)
                token = next((n_prompt + place for place, one, two in trained if abs(one - two) > 1e-3), None)
            compare(stored, own, episode=_name(episodes.trajectories[owner]), token=token)


def _name(trajectory: Trajectory) -> str:
    return f"{trajectory.group_id}/{trajectory.member}"


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
