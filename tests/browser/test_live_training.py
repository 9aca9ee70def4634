"""The live page in headless Chromium while a training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from tiny_folders import save_tiny
from trainings import PLAYED, QUIET
from transformers import TrainerCallback

from llm_envs.report.feed import Feed
from llm_envs.report.live_server import LiveServer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

pytestmark = pytest.mark.browser


def test_the_page_changes_with_each_step_of_a_training(chromium: Chromium, tmp_path: Path) -> None:
    model, run = save_tiny(tmp_path / "tiny", max_length=512), tmp_path / "run"
    sizes: dict[str, Any] = {"per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 3}
    config = EnvGRPOConfig(output_dir=str(run), **sizes, **QUIET, **PLAYED)
    trainer = EnvGRPOTrainer(str(model), args=config, env="llm/Arithmetic-v0")
    told: list[list[Any]] = []

    class Look(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if len(told) < 3:
                n = state.global_step
                chromium.wait(f"everyEpisode.length === {4 * n}")
                # Written by a callback after this one, so at this step there are the metrics of those before.
                chromium.wait(f"(index.runs[0]?.curves.loss || []).length === {n - 1}")
                chromium.wait("statuses[0].state === 'running'")
                told.append(chromium.js("columns.step"))

    trainer.add_callback(Look())
    with LiveServer(Feed([run])) as server:
        chromium.open(server.url)
        trainer.train()
        trainer.close()
        chromium.wait("statuses[0].state === 'finished' && index.runs[0].curves.loss.length === 3")
        assert "step\n3 of 3" in chromium.text("#live dl")
        assert told == [[0] * 4, [0] * 4 + [1] * 4, [0] * 4 + [1] * 4 + [2] * 4]
        chromium.go("#episode/0")
        chromium.wait("document.querySelector('.tokens i') !== null")
        assert chromium.js("fetched.get(0).learned.step") == 0
        assert chromium.problems() == []
