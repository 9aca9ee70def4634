"""Pairs of episodes in `EnvGRPOTrainer`: their rows, and their loss if micro-batches split them.

Invariants:
1. A generation of several steps is normalised together, as TRL's "dapo" loss is.
2. Both rows of a pair are in one optimizer step, on one process. If they are in different micro-batches, a pass without
   gradient before the step gives the slope of the pair's loss at each row's log-ratio. Each row's gradient is then
   exact without the other row, so memory holds one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.time_limit import limited
from llm_envs.trainers.episodes.advantages import Scored
from llm_envs.trainers.episodes.batches import batch_from_trl, slice_rows
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.masking import trim_padding
from llm_envs.trainers.functional.pairs import pair_slopes, sequence_log_ratios

__all__ = ["PairedRows", "keep_groups_together"]


class PairedRows:
    """The pairs of a generation on this process.

    Args:
        algorithm: The algorithm that learns from the pairs.
        pairs_P2: The pairs, as row numbers on this process.
        n_pairs: Number of pairs on all processes together.
        n_rows: Number of rows on this process.
    """

    def __init__(self, algorithm: Algorithm, *, pairs_P2: torch.Tensor, n_pairs: int, n_rows: int) -> None:
        self.algorithm, self.n_pairs = algorithm, n_pairs
        self.pairs_P2 = pairs_P2.cpu()
        self.ratios_R = torch.zeros(n_rows)
        """Each row's log-ratio at the weights of the current step, used if micro-batches split groups."""
        self._scored_at: int | None = None

    @classmethod
    def choose(cls, algorithm: Algorithm, scored: Scored, n_rows: int, *, limit_s: float | None = None) -> PairedRows:
        """Choose the pairs of a generation with the algorithm's selector.

        Args:
            algorithm: The algorithm that learns from the pairs.
            scored: The episodes of all processes. Episodes without a trained token are left out.
            n_rows: Number of rows on this process.
            limit_s: Seconds that the selector may take; None: any time.

        Raises:
            InvalidConfigError: If the selector pairs rows of different groups.
            TimeLimitError: If it takes longer.
        """
        assert algorithm.pair_selector is not None
        # Every process selects from the episodes of all, so that a selector sees the same input everywhere.
        selector = limited(algorithm.pair_selector, limit_s, f"the pair_selector of {algorithm.name!r}")
        pairs_P2 = selector(scored.pair_rewards_E, scored.group_ids_E)
        if (scored.group_ids_E[pairs_P2[:, 0]] != scored.group_ids_E[pairs_P2[:, 1]]).any():
            raise InvalidConfigError(f"the pair_selector of {algorithm.name!r} paired rows of different groups.")
        own_P2 = pairs_P2[scored.is_mine_E[pairs_P2].all(1)]
        rows_P2 = (scored.is_mine_E.long().cumsum(0) - 1)[own_P2]
        return cls(algorithm, pairs_P2=rows_P2, n_pairs=len(pairs_P2), n_rows=n_rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments for the same pairs, except the algorithm."""
        return {"pairs_P2": self.pairs_P2, "n_pairs": self.n_pairs, "n_rows": len(self.ratios_R)}

    def score(
        self, micro_batches: Sequence[Mapping[str, Any]], score: Callable[[Mapping[str, Any]], torch.Tensor], step: int
    ) -> None:
        """Score all rows of an optimizer step without gradient, before its first micro-batch.

        Args:
            micro_batches: The micro-batches of the step.
            score: Returns the trained model's log-probabilities of a batch, shape (B, T).
            step: Optimizer steps done. A second call for the same step does nothing.
        """
        if self._scored_at == step:
            return
        self._scored_at = step
        if "ref_per_token_logps" not in micro_batches[0] and "old_per_token_logps" not in micro_batches[0]:
            return  # without a reference, log-ratios are against the current policy, so all are 0
        for inputs in map(trim_padding, micro_batches):
            self.ratios_R[inputs["row"].cpu()] = self._log_ratios(score(inputs), inputs).cpu()

    def slopes(
        self, logps_BT: torch.Tensor, inputs: Mapping[str, Any], group_size: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return each row's part of the summed pair loss, and the slope of that sum at the row's log-ratio.

        Also, of the pairs whose chosen row is here, how many have the greater log-ratio there, and how many there are.
        """
        # A pair's loss is not linear in its two rows, which may lie in different micro-batches. Its slopes are: summed
        # over the step they give the exact gradient.
        rows = inputs["row"].cpu()
        ratios_R, is_here = self.ratios_R, torch.isin(self.pairs_P2, rows)
        if len(rows) % group_size == 0:  # full groups: both rows of every pair were just computed
            ratios_R = torch.zeros_like(self.ratios_R)
            ratios_R[rows] = self._log_ratios(logps_BT.detach(), inputs).cpu()
        pairs_P2 = self.pairs_P2[is_here.any(1)]
        assert self.algorithm.pair_loss_fn is not None
        losses_R, slopes_R = pair_slopes(ratios_R, pairs_P2, self.algorithm.pair_loss_fn)
        own_P2 = self.pairs_P2[is_here[:, 0]]  # a pair in two micro-batches counts once
        n_right = (ratios_R[own_P2[:, 0]] > ratios_R[own_P2[:, 1]]).sum()
        device = logps_BT.device
        return losses_R[rows].to(device), slopes_R[rows].to(device), n_right, torch.tensor(len(own_P2))

    def _log_ratios(self, logps_BT: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        batch = batch_from_trl(inputs)
        # Against the reference; without one, against the policy that sampled.
        known = (batch.ref_logps_BT, batch.old_logps_BT, logps_BT.detach())
        reference_BT = next(tensor for tensor in known if tensor is not None)
        return sequence_log_ratios(logps_BT, reference_BT, batch.mask_BT, average=self.algorithm.averages_pairs).float()


def keep_groups_together(buffer: Sequence[Mapping[str, Any]], group_size: int) -> list[dict[str, Any]]:
    """Return the micro-batches of a generation with the rows of each group adjacent.

    TRL shuffles the rows. Here only the order of the groups stays shuffled.

    Args:
        buffer: Micro-batches of equal size. `row` is each row's number before the shuffle, where groups are adjacent.
        group_size: Rows of a group.
    """
    first = buffer[0]
    whole = {name: _joined([part[name] for part in buffer]) for name in first}
    groups = (whole["row"] // group_size).tolist()
    seen = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    places = sorted(range(len(groups)), key=lambda row: seen[groups[row]])
    order = torch.tensor(places, device=whole["row"].device)
    for name, value in whole.items():
        if isinstance(value, torch.Tensor) and value.ndim:
            whole[name] = value[order]
        elif isinstance(value, list):
            whole[name] = [value[place] for place in places]
    size = len(first["row"])
    return [
        {name: slice_rows(value, start, start + size) for name, value in whole.items()}
        for start in range(0, size * len(buffer), size)
    ]


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor) and first.ndim:
        return torch.cat(list(values))
    if isinstance(first, list):
        return [value for part in values for value in part]
    return first
