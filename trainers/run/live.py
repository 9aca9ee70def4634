"""The live file of each process of a training, which `llm-envs watch` reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import Trainer

from llm_envs.tracking.live import collector_facts, live_file

__all__ = ["shown_live"]


@contextmanager
def shown_live(trainer: Trainer) -> Iterator[None]:
    """Write a training's live file while the block lasts.

    Args:
        trainer: One of TRL's, of ours: its state has the steps, and its player, if any, the counts of episodes.
    """
    folder = trainer.args.output_dir
    if not folder:
        yield
        return

    def facts() -> dict[str, Any]:
        state, player = trainer.state, getattr(trainer, "_player", None)
        played: dict[str, Any] = {} if player is None else collector_facts(player.collector.stats)
        waited = {} if player is None else {"waited_s": player.time_shares.waited_s}
        return {"kind": "training", "step": state.global_step, "steps": state.max_steps} | played | waited

    with live_file(folder, facts, process=trainer.accelerator.process_index):
        yield
