"""The generation under way: its episodes, pairs and kept tokens, and the part of it that a checkpoint must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.episodes.rewards import EpisodeRewards
from llm_envs.trainers.forward.kept import KeptRows
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.grpo.pairs import PairedRows

__all__ = ["Generation"]


@dataclass
class Generation:
    """The episodes that this process played together, and what their rows need until they are trained."""

    episodes: EpisodeRewards = field(default_factory=lambda: EpisodeRewards({}, {}, (), ()))
    kept: KeptRows = field(default_factory=KeptRows)
    """With `keep_sampling_mask`, the tokens that the sampling filters kept; otherwise empty."""
    pairs: PairedRows | None = None
    """The pairs of an algorithm that learns from pairs."""
    is_arranged: bool = False
    """Whether the rows of each group are adjacent in the micro-batches."""

    def save(self, path: Path, micro_batches: Sequence[Mapping[str, Any]]) -> None:
        """Write what a resumed run needs to train the rest of this generation.

        Args:
            path: The file.
            micro_batches: All micro-batches of the generation, as TRL buffers them.
        """
        pairs = None if self.pairs is None else self.pairs.state_dict()
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"pairs": pairs, "kept": self.kept.state(), "is_arranged": self.is_arranged}
        torch.save({"inputs": micro_batches, **state}, path)

    @classmethod
    def load(cls, path: Path, algorithm: Algorithm) -> tuple[Generation, list[dict[str, Any]]]:
        """Return a generation that `save` wrote, without its episodes, and its micro-batches on the CPU.

        Args:
            path: The file.
            algorithm: The algorithm of the generation.

        Raises:
            InvalidConfigError: If the file is missing.
        """
        if not path.is_file():
            raise InvalidConfigError(
                f"{path.parent} lies inside a generation, and {path.name}, with the rest of it, is missing: copy the "
                "complete folder, or resume from an earlier checkpoint."
            )
        # The file has only tensors and numbers, so loading it need not be able to run code.
        content = torch.load(path, map_location="cpu", weights_only=True)
        generation = cls(is_arranged=content["is_arranged"])
        generation.kept.load(content.get("kept", ()))
        if content["pairs"] is not None:
            generation.pairs = PairedRows(algorithm, **content["pairs"])
        return generation, content["inputs"]
