"""Sampling filters: with unchanged weights every ratio of policy to policy is 1, and the guard sees what is wrong."""

import numpy as np
import pytest
import torch
from device import rounding, spy_on_batches
from trainings import DENSE, play_filtered, save_sharp

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.inference import load_model, token_logps
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.policies.inference.scoring import filter_shifts
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.episodes.batches import make_batch
from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes
from llm_envs.trainers.forward.filtered import unfiltered_logps, without_filters
from llm_envs.trainers.functional.algorithm import GRPO
from llm_envs.trainers.loop import LoopSettings, create_training_state, training_iteration, training_step
from llm_envs.trainers.loop.run import _prepared
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]

FILTERS = [
    {},
    {"temperature": 0.7},
    {"top_p": 0.7},
    {"top_k": 5, "temperature": 1.5},
    {"min_p": 0.1},
    {"repetition_penalty": 1.5},
    {"top_p": 0.9, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2, "temperature": 0.8},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_sharp(tmp_path_factory.mktemp("sharp"))


class Table(torch.nn.Module):
    """A model whose next token never depends on the earlier ones: probabilities 1/2, 1/4, 1/8, 1/8."""

    def __init__(self):
        super().__init__()
        self.logits_V = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.125]).log())

    def forward(self, input_ids, **ignored):
        logits = self.logits_V.expand(*input_ids.shape, -1)
        return type("Output", (), {"logits": logits})


@pytest.mark.parametrize(
    ("filters", "expected"),
    [  # tokens 0 and 1 at places 1 and 2; what each filter keeps
        ({}, [0.0, 0.0]),
        ({"temperature": 0.5}, [0.0, 0.0]),
        ({"top_k": 2}, [np.log(4 / 3)] * 2),
        ({"top_p": 0.8}, [np.log(8 / 7)] * 2),  # 1/2 + 1/4 < 0.8: three are kept
        ({"min_p": 0.5}, [np.log(4 / 3)] * 2),
        ({"top_k": 2, "temperature": 0.5}, [np.log(1.375 / 1.25)] * 2),  # squares: 1, 1/4, 1/16, 1/16
        ({"top_k": 1}, [np.log(2.0), np.log(4 / 3)]),  # token 1 is dropped: it counts as kept beside token 0
    ],
)
def test_what_a_filter_adds_by_hand(filters, expected):
    shifts = filter_shifts(Table(), np.array([3, 0, 1]), [1, 2], SamplingParams(**filters))
    assert shifts.tolist() == pytest.approx(expected, abs=1e-6)


def test_what_a_repetition_penalty_adds_by_hand():
    """The logits are below 0, so the penalty of 2 doubles those of tokens 3 and 0 once they were seen."""
    shifts = filter_shifts(Table(), np.array([3, 0, 0]), [1, 2], SamplingParams(repetition_penalty=2.0))
    first = 1 / 2 + 1 / 4 + 1 / 8 + 1 / 64
    second = 1 / 4 + 1 / 4 + 1 / 8 + 1 / 64
    assert shifts.tolist() == pytest.approx([np.log(1 / first), np.log(0.25 / second) - np.log(0.5)], abs=1e-6)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_without_its_filters_the_sampler_says_what_scoring_says(folder, filters):
    params = SamplingParams(max_new_tokens=8, **filters)
    model = load_model(folder)
    for trajectory in [t for group in play_filtered(folder, params) for t in group]:
        (row,) = trajectory.rows
        values = unfiltered_logps(model, row.ids, row.mask, row.logps, params)
        (scored,) = token_logps(model, [row.ids], temperature=params.temperature)
        np.testing.assert_allclose(values[row.mask], scored[row.mask], atol=rounding(2e-5))
        assert (values[~row.mask] == 0).all()


@pytest.mark.parametrize("old_logps", ["sampled", "recomputed"])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_ratios_and_weights_of_the_loop_are_one(folder, filters, old_logps):
    params = SamplingParams(max_new_tokens=8, **filters)
    groups = play_filtered(folder, params)
    state = create_training_state(load_model(folder), learning_rate=0.0)
    settings = LoopSettings(old_logps=old_logps, logps_tolerance=rounding(2e-5))  # the guard is on
    _, metrics = training_iteration(state, groups, sampling=params, settings=settings)
    assert metrics["ratio"] == pytest.approx(1.0, abs=rounding(1e-5))
    assert metrics["sampling_gap"] < rounding(2e-5)
    if old_logps == "recomputed":
        paid = score_episodes([t for group in groups for t in group], RewardSettings(), {})
        batch = make_batch(paid, pad_id=0, sampling=params, device=state.model.device)
        prepared, _ = _prepared(state, without_filters(state.model, batch), paid, GRPO, settings)
        torch.testing.assert_close(prepared.weights, torch.ones_like(prepared.weights), rtol=0, atol=1e-4)
        as_sampled, _ = _prepared(state, batch, paid, GRPO, settings)
        assert ((as_sampled.weights - 1.0).abs().max() > 0.05) == has_filters(params)  # the filter, as a weight


def test_the_loop_refuses_ratios_against_a_filtered_distribution(folder):
    params = SamplingParams(max_new_tokens=8, top_p=0.7)
    paid = score_episodes([t for group in play_filtered(folder, params) for t in group], RewardSettings(), {})
    state = create_training_state(load_model(folder))
    played = make_batch(paid, pad_id=0, sampling=params, device=state.model.device)
    batch, _ = _prepared(state, played, paid, GRPO, LoopSettings())
    with pytest.raises(InvalidConfigError, match="without_filters"):
        training_step(state, batch)


def trainer_of(kind, folder, config, **changes):
    if kind == "grpo":
        return EnvGRPOTrainer(folder, DENSE, config(**changes))
    given = vars(config(num_generations=4))
    names = ("output_dir", "max_steps", "per_device_train_batch_size", "max_completion_length", "max_turn_tokens")
    own = {name: given[name] for name in names}
    further = {"gradient_checkpointing": False, "logging_steps": 1, "save_strategy": "no", "report_to": "none"}
    further["bf16"] = False
    return EnvPPOTrainer(folder, DENSE, EnvPPOConfig(**own | further | {"num_train_seeds": 64} | changes))


def one_generation(trainer):
    kept = spy_on_batches(trainer)
    trainer.train()
    trainer.close()
    return kept[0], (kept[0]["completion_mask"] * kept[0]["tool_mask"]).bool()


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_ratios_of_the_trainers_are_one(folder, config, kind, filters):
    """Two steps a generation at a learning rate of 0: old log-probabilities are there, and nothing moves."""
    settings = {"max_steps": 2, "learning_rate": 0.0, "steps_per_generation": 2, "per_device_train_batch_size": 8}
    batch, mask = one_generation(
        trainer_of(kind, folder, config, logps_tolerance=rounding(2e-5), **settings, **filters)
    )
    old, sampled = batch["old_per_token_logps"][mask], batch["sampling_per_token_logps"][mask]
    torch.testing.assert_close((old - sampled).exp(), torch.ones_like(old), rtol=0, atol=rounding(2e-5))


def test_the_guard_is_on_under_filters(folder, config):
    trainer = trainer_of("ppo", folder, config, top_p=0.8)
    with torch.no_grad():
        other = load_model(folder)
        other.lm_head.weight.copy_(other.lm_head.weight.flip(0))
    trainer._policy.model = other
    with pytest.raises(ModelError, match="logps_tolerance"):
        trainer.train()
    trainer.close()


def test_importance_settings_are_checked_with_the_config(config):
    assert config(use_vllm=True, vllm_importance_sampling_mode="geometric_mask")
    with pytest.raises(InvalidConfigError, match=r"mode='truncate'.*token_truncate"):
        config(use_vllm=True, vllm_importance_sampling_mode="truncate")
    with pytest.raises(InvalidConfigError, match="mode='turn_truncate'"):
        config(use_vllm=True, vllm_importance_sampling_mode="turn_truncate", vllm_importance_sampling_clip_max=None)


def test_a_trainer_leaves_an_episode_out_of_the_loss(folder, config):
    trainer = EnvGRPOTrainer(folder, DENSE, config(), trajectory_filter=lambda trajectory: trajectory.member > 0)
    batch, mask = one_generation(trainer)
    assert mask.any(1).tolist() == [False, True, True, True] * 4
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories]).view(4, 4)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(batch["advantages"].cpu(), expected.flatten(), rtol=0, atol=1e-4)


def test_lambda_by_length_in_the_trainer(folder, config):
    """Two turns an episode: with alpha 1 lambda is 1/2, so the same setting as `lam` gives the same advantages."""
    settings = {"whiten_advantages": False, "num_generations": 1, "max_steps": 1}
    one, _ = one_generation(trainer_of("ppo", folder, config, lam_alpha=1.0, **settings))
    other, mask = one_generation(trainer_of("ppo", folder, config, lam=0.5, **settings))
    assert torch.equal(one["advantages"], other["advantages"]) and mask.any()
    with pytest.raises(InvalidConfigError, match=r"lam=0\.5.*lam_alpha"):
        trainer_of("ppo", folder, config, lam_alpha=1.0, lam=0.5)
    with pytest.raises(InvalidConfigError, match="lam_alpha=0"):
        trainer_of("ppo", folder, config, lam_alpha=0.0)
