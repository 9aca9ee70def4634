"""A training run that is killed goes on from its checkpoint as if nothing had been."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from resumed_run import train
from safetensors.torch import load_file

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import read_trajectories

pytestmark = pytest.mark.trainings

ROOT = Path(__file__).parents[2]


def run_until_killed(model: str, out: Path, step: int) -> int:
    """Run it in a process of its own; return how that ended."""
    program = ROOT / "tests" / "support" / "resumed_run.py"
    done = subprocess.run(
        [sys.executable, program, model, out, str(step)], capture_output=True, timeout=300, check=False
    )
    return done.returncode


def test_ten_steps_are_five_and_a_kill_and_five(tiny_folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(tiny_folder, str(whole))
    assert run_until_killed(tiny_folder, parts, 7) == -signal.SIGKILL
    assert (parts / "checkpoint-5").exists() and not (parts / "checkpoint-10").exists()
    train(tiny_folder, str(parts), resume=str(parts / "checkpoint-5"))
    at = {name: load_file(folder / "model.safetensors") for name, folder in folders(whole, parts).items()}
    assert max((at["whole"][key] - at["start"][key]).abs().max().item() for key in at["whole"]) > 1e-3
    for key, value in at["whole"].items():
        torch.testing.assert_close(at["parts"][key], value, rtol=0, atol=1e-6)
    second = read_trajectories(parts / "trajectories" / "process-0.2")
    expected = read_trajectories(whole / "trajectories" / "process-0")[5 * 16 :]
    assert [(t.group_id, t.messages) for t in second] == [(t.group_id, t.messages) for t in expected]


def folders(whole: Path, parts: Path) -> dict[str, Path]:
    return {
        "start": whole / "checkpoint-5",
        "whole": whole / "checkpoint-10",
        "parts": parts / "checkpoint-10",
    }


def test_a_checkpoint_in_the_middle_of_a_generation_is_refused(config):
    settings = {"save_strategy": "steps", "per_device_train_batch_size": 4, "steps_per_generation": 4}
    with pytest.raises(InvalidConfigError, match=r"save_steps=3 .* every 4 steps.* save_steps=4"):
        config(**settings, save_steps=3)
    assert config(**settings, save_steps=8).save_steps == 8
    assert config(**settings, save_steps=3, gradient_accumulation_steps=4).save_steps == 3
    with pytest.raises(InvalidConfigError, match=r"save_steps=3 .* every 2 steps"):
        config(save_strategy="steps", save_steps=3, num_iterations=2)
