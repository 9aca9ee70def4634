"""Tolerances from a run's own noise: how far rounding moved its log-probabilities, and so how far it moves a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from llm_envs.trainers.episodes.guard import Rounding, noise_limit

__all__ = ["Noise", "spread"]

Floats = npt.NDArray[np.float64]

_MIN_PER_BIN, _MAX_BINS = 64, 8
_N_DRAWS, _DEVIATIONS = 32, 6.0


@dataclass(frozen=True)
class Noise:
    """Differences between stored and recomputed log-probabilities of one version of the weights."""

    edges: Floats
    """Log-probabilities that separate K bins, ascending, shape (K - 1,)."""
    differences: tuple[Floats, ...]
    """The differences in each bin, in nats: K arrays."""

    @classmethod
    def of(cls, differences: Floats, logps: Floats) -> Noise:
        """Sort differences into bins of similar log-probabilities: rounding moves a likely token less.

        Args:
            differences: Shape (N,).
            logps: The recomputed log-probabilities, shape (N,).
        """
        n_bins = int(np.clip(len(logps) // _MIN_PER_BIN, 1, _MAX_BINS))
        edges = np.unique(np.quantile(logps, np.arange(1, n_bins) / n_bins)) if n_bins > 1 else np.zeros(0)
        bins = np.digitize(logps, edges)
        return cls(edges, tuple(differences[bins == number] for number in range(len(edges) + 1)))

    def limits(self, logps: Floats, rounding: Rounding) -> Floats:
        """Return the greatest difference of each token that noise explains, shape (N,)."""
        return np.array([noise_limit(part, rounding) for part in self.differences])[np.digitize(logps, self.edges)]

    def draw(self, logps: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Return differences drawn at random from the bins of given log-probabilities, in their shape."""
        places = np.digitize(logps.double().numpy(), self.edges)
        out = np.zeros(places.shape)
        for number, part in enumerate(self.differences):
            if len(part):
                out[places == number] = rng.choice(part, size=int((places == number).sum()))
        return torch.from_numpy(out).to(logps.dtype)


def spread(value: Callable[[Callable[[torch.Tensor], torch.Tensor]], torch.Tensor], noise: Noise | None) -> float:
    """Return how far noise moves a number that is computed from log-probabilities.

    Args:
        value: Computes the number, or several, from log-probabilities. It passes each tensor of them to its argument,
            which returns them with noise.
        noise: The noise; None: the result is 0.

    Returns:
        The mean shift and six standard deviations over draws of noise; of several numbers, the greatest.
    """
    if noise is None:
        return 0.0
    rng = np.random.default_rng(0)
    exact = value(lambda logps: logps)
    moved = torch.stack([value(lambda logps: logps + noise.draw(logps, rng)) - exact for _ in range(_N_DRAWS)]).double()
    return float((moved.mean(0).abs() + _DEVIATIONS * moved.std(0)).max())
