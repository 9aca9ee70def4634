"""Logged means of the trainers: over tokens, rows or pairs, however a step is cut.

TRL appends a number for each micro-batch and logs the mean of these numbers, so a micro-batch of one token would count
as much as one of a thousand, and one without any as 0.

Invariants:
1. A mean is a sum over all items (tokens, rows or pairs) since the last entry, of all micro-batches and processes,
   divided by their number. Without an item, its name is not logged.
2. A least or greatest value covers everything since the last entry.
3. `log` has no collective, because it may be called on one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

__all__ = ["LogsMeans"]

_EXTREMES: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {
        "clip_ratio/low_min": min,
        "clip_ratio/high_max": max,
        "policy/ratio_max": max,
        "completions/min_length": min,
        "completions/max_length": max,
        "completions/min_terminated_length": min,
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

    def _weigh(self, counts: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take over the means that TRL has just appended for a micro-batch.

        Args:
            counts: By name, on this process: the items that TRL's mean is over, and those that count. Names that TRL
                did not append are left out. They differ if TRL counts masked rows, which have 0 there.
        """
        # TRL's mean is of all processes already: times the items of each process, it adds up to the sum over all.
        metrics = self._metrics[self._mode]
        totals = {}
        for name, (n_items, n_counted) in counts.items():
            if name in metrics:
                mean = metrics.pop(name)[-1]
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
