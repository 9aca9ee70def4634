"""The scenarios: what is played in a round, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proof.chaos.clusters import ranks, ray, servers
from proof.chaos.collection import collection, workers
from proof.chaos.models import models
from proof.chaos.rounds import Outcome

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True)
class Scenario:
    """One kind of round."""

    play: Callable[[int, Path], Outcome]
    """(seed, empty folder) -> what happened; runs in a process of its own."""
    limit_s: float
    """Seconds after which a round has hung. Usual is a tenth."""
    needs: str | None = None
    """The package that it needs beside ours, in an environment of its own: "ray", "vllm"."""
    is_isolated: bool = True
    """Whether it runs in a mount namespace, where it can have a small disk."""


def training(seed: int, folder: Path) -> Outcome:
    """Import torch and TRL only for the rounds that need them."""
    from proof.chaos.training import training

    return training(seed, folder)


SCENARIOS = {
    "collection": Scenario(collection, 300.0),
    "workers": Scenario(workers, 300.0),
    "models": Scenario(models, 300.0),
    "training": Scenario(training, 900.0),
    "ranks": Scenario(ranks, 1800.0, is_isolated=False),
    "ray": Scenario(ray, 900.0, needs="ray", is_isolated=False),
    "servers": Scenario(servers, 1800.0, needs="vllm", is_isolated=False),
}
