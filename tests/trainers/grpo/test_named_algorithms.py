"""One name, one objective: an algorithm has the same gradients by name, as a value, in parts, and in the loop."""

import pytest
import torch
from dense_env import DenseEnv
from transformers import TrainerCallback

from llm_envs.policies.inference import load_model
from llm_envs.rollout import EnvChoice
from llm_envs.trainers import EnvGRPOTrainer
from llm_envs.trainers.functional.algorithm import ALGORITHMS
from llm_envs.trainers.loop import LoopSettings, create_training_state, training_iteration
from llm_envs.types import TrajectoryGroup

pytestmark = pytest.mark.trainings

RATE = 0.03
TWO_PASSES = {"optim": "sgd", "learning_rate": RATE, "max_grad_norm": 0.0, "max_steps": 2, "num_iterations": 2}
SPLIT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}


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


def looped(folder, algorithm, played):
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
    state = create_training_state(load_model(folder))
    training_iteration(state, groups, algorithm=algorithm, optimizer_step_fn=step, settings=settings)
    return kept


def assert_same(given, expected):
    """Compare to a millionth of the largest gradient, or of 1."""
    for one, other in zip(given, expected, strict=True):
        largest = max(gradient.abs().max().item() for gradient in other.values())
        assert largest > 1e-3
        for name, gradient in other.items():
            torch.testing.assert_close(one[name], gradient, rtol=0, atol=1e-6 * max(largest, 1.0))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_name_is_one_objective(tiny_folder, config, name):
    """Two passes, so that ratios leave 1: in the trainer by name, as a value in micro-batches, and in the loop."""
    expected, played = trained(tiny_folder, config(**TWO_PASSES), algorithm=name)
    moved = max((expected[1][key] - gradient).abs().max().item() for key, gradient in expected[0].items())
    assert moved > 1e-4  # the second pass is another than the first
    assert_same(looped(tiny_folder, ALGORITHMS[name], played), expected)
    given, again = trained(tiny_folder, config(**TWO_PASSES | SPLIT), algorithm=ALGORITHMS[name])
    assert [t.rows[0].ids.tolist() for t in again] == [t.rows[0].ids.tolist() for t in played]
    assert_same(given, expected)
