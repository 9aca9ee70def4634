"""A training run that is killed goes on from its checkpoint as if nothing had been."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from device import on_cpu
from preloaded import variables
from resumed_run import train
from safetensors.torch import load_file
from trainings import DENSE, PLAYED, QUIET, logged
from transformers import TrainerState

from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.rollout import read_trajectories
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.functional.algorithm import GRPO
from llm_envs.trainers.run.checkpoints import find_checkpoints
from llm_envs.trainers.schedules import AdaptiveKL

pytestmark = pytest.mark.trainings

ROOT = Path(__file__).parents[3]


def run_until_killed(model: str, out: Path, step: int) -> int:
    """Run it in a process of its own; return how that ended."""
    program = ROOT / "tests" / "support" / "resumed_run.py"
    done = subprocess.run(
        ["python", program, model, out, str(step)], capture_output=True, timeout=300, check=False, env=variables()
    )
    return done.returncode


@pytest.mark.smoke
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


@pytest.mark.parametrize(("settings", "trainer"), [(EnvGRPOConfig, EnvGRPOTrainer), (EnvPPOConfig, EnvPPOTrainer)])
def test_the_file_that_makes_a_checkpoint_complete_is_written_last(
    settings, trainer, tiny_folder, tmp_path, monkeypatch
):
    """A kill at any moment leaves no checkpoint that is found and cannot be resumed."""
    written, save = [], TrainerState.save_to_json

    def watched(state, path):
        written.append({found.name for found in Path(path).parent.rglob("*")})
        save(state, path)

    monkeypatch.setattr(TrainerState, "save_to_json", watched)
    args = settings(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=8,
        num_generations=4 if settings is EnvGRPOConfig else 1,
        **PLAYED | QUIET | {"save_strategy": "steps", "save_steps": 1},
    )
    made = trainer(tiny_folder, DENSE, args)
    made.train()
    made.close()
    assert "llm_envs_state.json" in written[0]
    assert find_checkpoints(tmp_path / "out") == [tmp_path / "out" / "checkpoint-1"]


def folders(whole: Path, parts: Path) -> dict[str, Path]:
    return {"start": whole / "checkpoint-5", "whole": whole / "checkpoint-10", "parts": parts / "checkpoint-10"}


TORN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 8}
INSIDE = {
    "one iteration": {"steps_per_generation": 4},
    "two iterations": {"gradient_accumulation_steps": 2, "num_iterations": 4},
    "an adaptive KL": {"steps_per_generation": 4},
    "pairs torn apart": TORN | {"num_iterations": 2},
}


def run(model, folder, name, max_steps, resume=None, **changes):
    """Train with constant settings; the only checkpoint is the one at the end."""
    settings = {
        **QUIET,
        "output_dir": str(folder),
        "max_steps": max_steps,
        "save_strategy": "steps",
        "save_steps": 1000,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 4,
        "max_completion_length": 64,
        "max_turn_tokens": 12,
        "num_train_seeds": 64,
        "seed": 3,
    }
    settings |= INSIDE.get(name, {"steps_per_generation": 4}) | changes
    env = DENSE
    if name == "ppo":
        trainer = EnvPPOTrainer(model, env, EnvPPOConfig(**settings, value_learning_rate=3e-3))
    else:
        algorithms = {"pairs torn apart": "pairwise", "an adaptive KL": replace(GRPO, kl_coef=AdaptiveKL(0.1, 0.001))}
        algorithm = {"algorithm": algorithms[name]} if name in algorithms else {}
        trainer = EnvGRPOTrainer(model, env, EnvGRPOConfig(**settings, num_generations=4), **algorithm)
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        trainer.close()
    return trainer


@pytest.mark.parametrize("name", ["optimizer.pt", "trainer_state.json"])
def test_a_damaged_file_of_the_checkpoint_is_named(tiny_folder, tmp_path, name):
    """By transformers, a link to nothing is an optimizer that starts anew, and a state that is no JSON has no name."""
    run(tiny_folder, tmp_path, "constant", 1)
    path = tmp_path / "checkpoint-1" / name
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(StoreError, match=rf"{path} is damaged \("):
        run(tiny_folder, tmp_path, "constant", 2, resume=str(path.parent))


@pytest.mark.parametrize("resume", [True, "named"])
def test_a_complete_training_is_not_trained_further(tiny_folder, tmp_path, resume):
    """transformers would take another step, which a restarted job then adds to the weights."""
    whole = run(tiny_folder, tmp_path, "constant", 2)
    resumed = run(tiny_folder, tmp_path, "constant", 2, str(tmp_path / "checkpoint-2") if resume == "named" else resume)
    assert resumed.state.global_step == 2
    for key, value in whole.model.named_parameters():
        torch.testing.assert_close(dict(resumed.model.named_parameters())[key], value, rtol=0, atol=0)
    played = [read_trajectories(folder) for folder in (tmp_path / "trajectories").iterdir()]
    assert sum(map(len, played)) == len(read_trajectories(tmp_path / "trajectories" / "process-0"))


@pytest.mark.parametrize("name", [*INSIDE, "ppo"])
def test_a_run_that_ended_inside_a_generation_goes_on_exactly(tiny_folder, tmp_path, name):
    """A generation lasts four steps; the first part ends after six, and the whole run takes ten."""
    whole = run(tiny_folder, tmp_path / "whole", name, 10)
    run(tiny_folder, tmp_path / "parts", name, 6)
    middle = tmp_path / "parts" / "checkpoint-6"
    assert (middle / "generation-0.pt").exists()
    resumed = run(tiny_folder, tmp_path / "parts", name, 10, resume=str(middle))
    before, after = load_file(middle / "model.safetensors"), on_cpu(dict(whole.model.named_parameters()))
    assert max((after[key] - value).abs().max().item() for key, value in before.items()) > 1e-3
    ends = on_cpu(dict(resumed.model.named_parameters()))
    for key, value in after.items():
        torch.testing.assert_close(ends[key], value, rtol=0, atol=1e-6)
    played = read_trajectories(tmp_path / "parts" / "trajectories" / "process-0.2")
    expected = read_trajectories(tmp_path / "whole" / "trajectories" / "process-0")
    assert [(t.group_id, t.messages) for t in played] == [(t.group_id, t.messages) for t in expected][-len(played) :]
    assert len(expected) == 3 * len(played)
    if name == "an adaptive KL":
        assert logged(resumed, "kl_coef")[-4:] == pytest.approx(logged(whole, "kl_coef")[-4:], rel=1e-6)


def test_a_checkpoint_inside_a_generation_wants_the_same_batches_and_its_file(tiny_folder, tmp_path):
    run(tiny_folder, tmp_path, "one iteration", 1)
    middle = tmp_path / "checkpoint-1"
    with pytest.raises(InvalidConfigError, match=r"1 of 4 micro-batches.*'steps_per_generation': 8"):
        run(tiny_folder, tmp_path, "one iteration", 2, resume=str(middle), steps_per_generation=8)
    (middle / "generation-0.pt").unlink()
    with pytest.raises(InvalidConfigError, match=r"generation-0\.pt"):
        run(tiny_folder, tmp_path, "one iteration", 2, resume=str(middle))


def test_at_the_end_of_a_generation_there_is_nothing_to_keep(tiny_folder, tmp_path):
    run(tiny_folder, tmp_path, "one iteration", 4)
    assert not list(tmp_path.glob("checkpoint-4/generation-*"))
    run(tiny_folder, tmp_path, "one iteration", 5, resume=str(tmp_path / "checkpoint-4"), steps_per_generation=8)


@pytest.mark.parametrize("written", ["left out", "empty"])
def test_a_checkpoint_without_a_generation_resumes_at_a_boundary(tiny_folder, tmp_path, written):
    """What was saved before generations were: the next generation is a new one."""
    whole = run(tiny_folder, tmp_path / "whole", "one iteration", 5)
    run(tiny_folder, tmp_path / "parts", "one iteration", 4)
    path = tmp_path / "parts" / "checkpoint-4" / "llm_envs_state.json"
    state = json.loads(path.read_text())
    assert state.pop("generation")["taken"] == 0
    path.write_text(json.dumps(state if written == "left out" else state | {"generation": None}))
    resumed = run(tiny_folder, tmp_path / "parts", "one iteration", 5, resume=str(path.parent))
    for key, value in dict(whole.model.named_parameters()).items():
        torch.testing.assert_close(dict(resumed.model.named_parameters())[key], value, rtol=0, atol=1e-6)
