"""Logged means of the trainers: over tokens, rows or pairs, however a step is cut.

TRL appends a number for each micro-batch and logs the mean of these numbers, so a micro-batch of one token would count
as much as one of a thousand, and one without any as 0.

Invariants:
1. A mean is a sum over all items (tokens, rows or pairs) since the last entry, of all micro-batches and processes,
   divided by their number. Without an item, its name is not logged.
2. A least or greatest value is that of everything since the last entry.
3. `log` has no collective, because it may be called on one process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

__all__ = ["LogsMeans", "sampling_totals", "weights_of_generation", "weights_of_trl"]

_EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {
        "clip_ratio/low_min": min,
        "clip_ratio/high_max": max,
        "policy/ratio_max": max,
        "completions/min_length": min,
        "completions/max_length": max,
        "completions/min_terminated_length": lambda values: min(filter(None, values), default=0.0),  # 0: none ended
        "completions/max_terminated_length": max,
        "sampling/sampling_logp_difference/max": max,
        "sampling/importance_sampling_ratio/min": min,
        "sampling/importance_sampling_ratio/max": max,
    }
)
"""Names whose numbers of micro-batches or generations have no mean."""


if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object


class LogsMeans(_Trainer):
    """Adds exact means to one of TRL's trainers. Stands before it among the base classes."""

    _metrics: Any
    """TRL's numbers by mode ("train", "eval") and name. TRL logs their means."""

    @cached_property
    def _totals(self) -> dict[str, dict[str, tuple[float, float]]]:
        """By mode and name: the sum of the items since the last entry, and their number."""
        return {"train": {}, "eval": {}}

    @property
    def _mode(self) -> str:
        model: Any = self.model
        return "train" if model.training else "eval"

    def _add_means(self, n_items: torch.Tensor, means: Mapping[str, torch.Tensor]) -> None:
        """Add a micro-batch's means over `n_items` items on this process; 0 items leave a mean out.

        A collective: every process must call it, with the same names.
        """
        self._add_totals({name: (mean.detach() * n_items, n_items) for name, mean in means.items()})

    def _add_totals(self, totals: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add sums over items on this process and the numbers of items, by name. A collective, as `_add_means`."""
        if not totals:
            return
        device = self.accelerator.device
        pairs = [torch.stack([part.to(device, torch.float32) for part in totals[name]]) for name in sorted(totals)]
        sums: list[tuple[float, float]] = self.accelerator.reduce(torch.stack(pairs), reduction="sum").tolist()
        for name, (total, n_items) in zip(sorted(totals), sums, strict=True):
            self._take(self._mode, name, total, n_items)

    def _take(self, mode: str, name: str, total: float, n_items: float) -> None:
        """Add a sum over the items of all processes, and their number."""
        if n_items:
            before, n_before = self._totals[mode].get(name, (0.0, 0.0))
            self._totals[mode][name] = before + total, n_before + n_items

    def _take_episodes(self, mode: str, totals: Mapping[str, tuple[float, float]]) -> None:
        """Add the totals of a generation's episodes (`GenerationPlayer.totals`)."""
        for name, (total, n_items) in totals.items():
            self._take(mode, f"env/{name}", total, n_items)

    def _weigh(self, counts: Mapping[str, tuple[torch.Tensor, torch.Tensor]], *, keep: bool = False) -> None:
        """Take over the means that TRL has just appended for a micro-batch or a generation.

        Args:
            counts: By name, on this process: the items that TRL's mean is over, and those that count. Names that TRL
                did not append are left out. They differ if TRL counts masked rows, which have 0 there.
            keep: Log TRL's own number where nothing counted since the last entry: NaN for a reward without a score.
        """
        # TRL's mean is of all processes already: times the items of each process, it adds up to the sum over all.
        metrics = self._metrics[self._mode]
        totals = {}
        for name, (n_items, n_counted) in counts.items():
            if name in metrics:
                mean = (metrics[name] if keep else metrics.pop(name))[-1]
                totals[name] = (n_items * (mean if n_items else 0.0), n_counted)  # TRL's mean of no item is NaN
        self._add_totals(totals)

    @contextmanager
    def _counting_all(self) -> Iterator[None]:
        """Let TRL's means count all processes: `gather_for_metrics` cuts the last batch of an epoch, sums too."""
        own = vars(self.accelerator)
        own["gather_for_metrics"] = self.accelerator.gather
        try:
            yield
        finally:
            del own["gather_for_metrics"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log TRL's numbers and the exact means; an evaluation's loss is one of them."""
        metrics, totals = self._metrics[self._mode], self._totals[self._mode]
        prefixes = [name.removesuffix("runtime") for name in logs if name.endswith("_runtime")]
        if "loss" in totals and prefixes:  # transformers' own is a mean over batches
            total, n_items = totals.pop("loss")
            logs[f"{prefixes[0]}loss"] = total / n_items
        if not totals.get("env/forks", (0.0, 0.0))[0]:  # named only if an episode forked
            totals.pop("env/forks", None)
        metrics |= {name: [total / n_items] for name, (total, n_items) in totals.items()}
        metrics |= {name: [choose(metrics[name])] for name, choose in _EXTREMES.items() if name in metrics}
        totals.clear()
        super().log(logs, start_time)


def weights_of_generation(
    output: Mapping[str, Any], columns: Mapping[str, Sequence[float | None]], end_ids: Collection[int | None]
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return what TRL's means of a generation are over, as `LogsMeans._weigh` takes it.

    Args:
        output: TRL's batch, on this process.
        columns: By name, the rewards of this process's episodes; None or NaN: not scored.
        end_ids: Ids that end a completion, for TRL; it has None for one that the tokenizer lacks.
    """
    ids_BT, mask_BT = output["completion_ids"], output["completion_mask"]
    last_B = ids_BT.gather(1, (mask_BT.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
    known = [end_id for end_id in end_ids if end_id is not None]  # a tokenizer may have no token for the end
    n_ended = torch.isin(last_B, torch.tensor(known, device=last_B.device)).sum()
    n_rows = torch.tensor(len(ids_BT), device=ids_BT.device)
    scored = {name: [value is not None and value == value for value in values] for name, values in columns.items()}
    counts = {
        "completions/mean_length": n_rows,
        "completions/clipped_ratio": n_rows,
        "completions/mean_terminated_length": n_ended,
        "reward": torch.tensor(sum(map(any, zip(*scored.values(), strict=True)))),
        **{f"rewards/{name}/mean": torch.tensor(sum(values)) for name, values in scored.items()},
    }
    return {name: (count, count) for name, count in counts.items()}


def sampling_totals(output: Mapping[str, Any], mask_BT: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the sums of TRL's means of importance sampling, which are means over processes, for `_add_totals`."""
    if "importance_sampling_ratio" not in output:
        return {}
    mask_BT, weights = mask_BT.bool(), output["importance_sampling_ratio"]
    gaps = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).abs()[mask_BT]
    gaps, weights = gaps[~gaps.isnan()], weights[mask_BT] if weights.shape == mask_BT.shape else weights.flatten()
    parts = {"sampling_logp_difference": gaps, "importance_sampling_ratio": weights[~weights.isnan()]}
    return {
        f"sampling/{name}/mean": (part.sum(), torch.tensor(part.numel(), device=part.device))
        for name, part in parts.items()
    }


def weights_of_trl(
    mask_BT: torch.Tensor, *, loss_type: str, by_sequence: bool, n_accumulated: int
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return what the means of TRL's GRPO loss are over, as `LogsMeans._weigh` takes it.

    Args:
        mask_BT: Trained tokens of the micro-batch.
        loss_type: TRL's.
        by_sequence: Whether a row has one ratio.
        n_accumulated: Micro-batches of an optimizer step.
    """
    n_tokens, n_rows = mask_BT.sum(), torch.tensor(len(mask_BT), device=mask_BT.device)
    tokens, rows = (n_tokens, n_tokens), (n_rows, mask_BT.bool().any(1).sum())
    ratios = rows if by_sequence else tokens
    # Divided by the tokens of the step, this loss is a micro-batch's share of it.
    n_shares = n_accumulated if loss_type in ("cispo", "dapo", "vespo") else 1
    clips = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")
    return {
        "entropy": tokens,
        "kl": tokens,
        "vespo/phi_seq_mean": rows,
        "policy_loss": (n_rows * n_shares, n_rows),
        "aux_loss": (n_rows, n_rows),
        **dict.fromkeys(clips, ratios),
    }
