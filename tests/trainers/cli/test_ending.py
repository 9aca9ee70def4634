"""A training that is ended early: SIGTERM saves a checkpoint behind the step, from which the run goes on to the bit."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from trainings import QUIET
from transformers import TrainerCallback

from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer
from llm_envs.trainers.cli.ending import resumable

pytestmark = [pytest.mark.transformers, pytest.mark.trainings]


class Sends(TrainerCallback):
    """Sends this process signals at the beginning of its second step."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            for number in self.numbers:
                signal.raise_signal(number)


def make(model: str, folder: Any, *callbacks: TrainerCallback) -> EnvSFTTrainer:
    args = EnvSFTConfig(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=2,
        num_episodes=6,
        max_length=260,
        overlong="cut",
        learning_rate=1e-2,
        **QUIET,
    )
    return EnvSFTTrainer(model, "llm/GuessNumber-v0", args, callbacks=list(callbacks))


@pytest.mark.smoke
def test_sigterm_saves_behind_the_step_and_the_run_goes_on_to_the_bit(tiny_folder, tmp_path, capfd):
    whole = make(tiny_folder, tmp_path / "whole")
    whole.train()
    before = signal.getsignal(signal.SIGTERM)
    ended = make(tiny_folder, tmp_path / "run", Sends(signal.SIGTERM))
    how = r"2 of 3 steps are done, .*checkpoint-2 has .*--resume"
    with pytest.raises(KeyboardInterrupt, match=how), resumable(ended):
        ended.train()
    assert signal.getsignal(signal.SIGTERM) is before
    assert "SIGTERM: after this step a checkpoint is saved" in capfd.readouterr().err
    resumed = make(tiny_folder, tmp_path / "run")
    with resumable(resumed):
        resumed.train(resume_from_checkpoint=True)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT,)])
def test_a_second_sigterm_or_ctrl_c_ends_it_at_once(tiny_folder, tmp_path, numbers):
    trainer = make(tiny_folder, tmp_path / "run", Sends(*numbers))
    how = "1 of 3 steps are done, and .* has no checkpoint yet"
    with pytest.raises(KeyboardInterrupt, match=how), resumable(trainer):
        trainer.train()
