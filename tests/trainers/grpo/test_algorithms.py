"""One name, one objective: the same gradients by name, as a value, in parts, and from every driver."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import gymnasium as gym
import pytest
import torch
from dense_env import DenseEnv
from device import rounding
from graph_algorithms import GRAPH_ALGORITHMS
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import TrainerCallback

from llm_envs.policies.inference import load_model
from llm_envs.rollout import EnvChoice, state_keys
from llm_envs.trainers import EnvGRPOTrainer, load_teacher
from llm_envs.trainers.cli.commands import grpo
from llm_envs.trainers.functional.algorithm import ALGORITHMS
from llm_envs.trainers.loop import LoopSettings, create_training_state, training_iteration
from llm_envs.types import TrajectoryGroup

pytestmark = pytest.mark.trainings

RATE = 0.03
TWO_PASSES = {"optim": "sgd", "learning_rate": RATE, "max_grad_norm": 0.0, "max_steps": 2, "num_iterations": 2}
SPLIT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}


def with_states(algorithm):
    is_named = algorithm.by_state is True
    return replace(algorithm, by_state=partial(state_keys, env=DenseEnv)) if is_named else algorithm


def gradients_of(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


class KeepGradients(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.kept.append(gradients_of(kwargs["model"]))


def trained(folder, args, **arguments):
    """Return the gradients of both passes over one generation, and its episodes."""
    callback = KeepGradients()
    trainer = EnvGRPOTrainer(folder, EnvChoice("dense", factory=DenseEnv), args, callbacks=[callback], **arguments)
    trainer.train()
    trainer.close()
    return callback.kept, trainer.last_trajectories


def reference_of(name, teacher_folder):
    """Return the arguments of a trainer that an algorithm with a teacher needs."""
    return {"ref_model_fn": load_teacher(teacher_folder)} if ALGORITHMS[name].needs_teacher else {}


def looped(folder, algorithm, played, **reference):
    """Return the gradients of both passes of the plain loop over the same episodes."""
    kept = []

    def step(state):
        kept.append(gradients_of(state.model))
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter -= RATE * parameter.grad
        return {}

    names = dict.fromkeys(trajectory.group_id for trajectory in played)
    groups = [TrajectoryGroup(name, "dense", 0, tuple(t for t in played if t.group_id == name)) for name in names]
    settings = LoopSettings(n_epochs=2, max_length=80.0)
    state = create_training_state(load_model(folder), **reference)
    algorithm = with_states(algorithm)
    training_iteration(state, groups, algorithm=algorithm, optimizer_step_fn=step, settings=settings)
    return kept


def assert_same(given, expected):
    """Compare to five millionths of the largest gradient, or of 1."""
    for one, other in zip(given, expected, strict=True):
        largest = max(gradient.abs().max().item() for gradient in other.values())
        assert largest > 1e-3
        for name, gradient in other.items():
            torch.testing.assert_close(one[name], gradient, rtol=0, atol=rounding(1e-6) * max(largest, 1.0))


@pytest.mark.parametrize("name", [*ALGORITHMS, *GRAPH_ALGORITHMS])
def test_one_name_is_one_objective(tiny_folder, teacher_folder, config, name):
    """Two passes, so that ratios leave 1: in the trainer by name, as a value in micro-batches, and in the loop."""
    value = (ALGORITHMS | GRAPH_ALGORITHMS)[name]
    reference = {"ref_model_fn": load_teacher(teacher_folder)} if value.needs_teacher else {}
    by_name = name if name in ALGORITHMS else value
    expected, played = trained(tiny_folder, config(**TWO_PASSES), algorithm=by_name, **reference)
    moved = max((expected[1][key] - gradient).abs().max().item() for key, gradient in expected[0].items())
    assert moved > 1e-4  # the second pass is another than the first
    assert_same(looped(tiny_folder, value, played, **reference), expected)
    given, again = trained(tiny_folder, config(**TWO_PASSES | SPLIT), algorithm=value, **reference)
    assert [t.rows[0].ids.tolist() for t in again] == [t.rows[0].ids.tolist() for t in played]
    assert_same(given, expected)


@contextmanager
def steps_of_optimizers():
    """Collect the gradients of each optimizer step in the block, by the place of the parameter."""
    kept = []

    def keep(optimizer, args, kwargs):
        gradients = [parameter.grad.clone() for group in optimizer.param_groups for parameter in group["params"]]
        kept.append(dict(enumerate(gradients)))

    handle = register_optimizer_step_pre_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


gym.register("test/Gradients-v0", DenseEnv)
OPTIONS = {
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "max_completion_length": 80,
    "max_turn_tokens": 8,
    "lr_scheduler_type": "constant",
    "gradient_checkpointing": False,
    "bf16": False,
    "save_strategy": "no",
    "report_to": "none",
    "num_train_seeds": 64,
    "disable_tqdm": True,
}
"""The settings of the fixture `config`."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_command_line_has_the_gradients_of_the_trainer(tiny_folder, teacher_folder, config, tmp_path, name):
    """Two passes over one generation, by `llm-envs train grpo --algorithm NAME` and by the class."""
    reference = reference_of(name, teacher_folder)
    options = {"env": "test/Gradients-v0", "model": tiny_folder, "out": tmp_path / "cli", "algorithm": name}
    options |= OPTIONS | TWO_PASSES | ({"teacher": teacher_folder} if reference else {})
    with steps_of_optimizers() as given:
        assert grpo([part for key, value in options.items() for part in (f"--{key}", str(value))]) == 0
    with steps_of_optimizers() as expected:
        args = config(**TWO_PASSES)
        trainer = EnvGRPOTrainer(tiny_folder, "test/Gradients-v0", args, algorithm=name, **reference)
        trainer.train()
        trainer.close()
    assert len(given) == len(expected) == 2
    assert_same(given, expected)
