"""The record of online DPO's rounds: which episodes are pairs, and what they are paid (`bridge.learned`)."""

from __future__ import annotations

from typing import Any

from llm_envs.chat.codec import ChatCodec
from llm_envs.trainers.bridge.generation import GenerationPlayer
from llm_envs.trainers.bridge.learned import RecordsLearning, row_digest, run_record
from llm_envs.trainers.dpo.config import EnvDPOConfig
from llm_envs.trainers.reference import Reference
from llm_envs.types import Trajectory

__all__ = ["RecordsPairs", "pair_digest"]


class RecordsPairs(RecordsLearning):
    """Records the rounds of online DPO: a mixin before TRL's class."""

    args: EnvDPOConfig
    accelerator: Any
    model: Any
    last_trajectories: list[Trajectory]
    pairs: list[dict[str, Any]]
    _codec: ChatCodec
    _player: GenerationPlayer
    _policy: Any
    _reference: Reference
    _has_own_selector: bool
    _round: int
    _n_round_steps: int

    def _record_round(self) -> None:
        """Record the round that has just been played."""
        self._record(self._player.writer, self._run_record, self._round_record)

    def _round_record(self) -> dict[str, Any]:
        rows = self.last_trajectories
        return {
            "kind": "pairs",
            "step": self.state.global_step,
            "round": self._round,
            "round_steps": self._n_round_steps,
            "episodes": [[t.group_id, t.member] for t in rows],
            "status": [t.status for t in rows],
            "columns": {"reward": [t.reward if t.status == "ok" else None for t in rows]},
            "pairs": [pair_digest(pair) for pair in self.pairs],
        }

    def _run_record(self) -> dict[str, Any]:
        given = {
            "selector": self._has_own_selector,
            "ref_model_fn": self._reference.ref_model_fn is not None,
            "reference_update_fn": self._reference.update_fn is not None,
        }
        return run_record(
            "dpo",
            self.args,
            model=self.accelerator.unwrap_model(self.model),
            codec=self._codec,
            sampling=self._player.collector.sampling,
            max_model_len=self._policy.max_model_len,
            unknown=[name for name, is_given in given.items() if is_given],
            processes=self.accelerator.num_processes,
            pairs_per_step=self.args.n_pairs_per_step,
        )


def pair_digest(pair: dict[str, Any]) -> list[Any]:
    """Return [group, chosen member, rejected member] of a pair, and the digests of its two sequences behind the prompt.

    Args:
        pair: A row of `dpo.pairs.fit_pairs`.
    """
    digests = [row_digest(pair[f"{name}_ids"], pair[f"{name}_mask"]) for name in ("chosen", "rejected")]
    return [pair["group_id"], pair["chosen_member"], pair["rejected_member"], *digests]
