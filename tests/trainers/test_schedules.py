"""KL coefficients over a run: their values by hand, and in force in the trainers."""

import math
from dataclasses import replace

import pytest
import torch
from trainings import DENSE, distance, logged

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers import EnvGRPOTrainer
from llm_envs.trainers.functional.algorithm import GRPO
from llm_envs.trainers.grpo.algorithms import with_settings
from llm_envs.trainers.schedules import AdaptiveKL, KLController, create_cosine, create_linear, parse_kl_schedule

pytestmark = pytest.mark.trainings

LEARNING = {"optim": "sgd", "learning_rate": 0.5, "max_steps": 3, "seed": 5, "per_device_train_batch_size": 8}


@pytest.fixture
def make(tiny_folder, config, keep):
    def build(settings=None, model=tiny_folder, **hooks):
        return keep(EnvGRPOTrainer(model, DENSE, config(**LEARNING | (settings or {})), **hooks))

    return build


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_values():
    linear = create_linear(1.0, 0.0)
    assert [linear(step, 5, None) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert linear(9, 5, None) == 0.0  # past the end it stays
    assert create_linear(1.0, 3.0)(0, 1, None) == 3.0  # a run of one step ends where it should
    assert create_linear(0.0, 1.0, n_steps=3)(1, 100, None) == 0.5
    cosine = create_cosine(1.0, 0.2)
    assert [round(cosine(step, 5, None), 6) for step in range(5)] == pytest.approx(
        [1.0, 0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - math.sqrt(0.5)), 0.2], abs=1e-6
    )


def test_the_adaptive_coefficient_follows_the_error_and_goes_on_from_its_state():
    """arXiv 1909.08593: `beta (1 + K clip(KL / target - 1, -0.2, 0.2))` with K = 0.1."""
    schedule = AdaptiveKL(0.5, 0.02)
    assert schedule(0, 10, None) == 0.5
    assert schedule(1, 10, 0.04) == pytest.approx(0.5 * 1.02)  # far above: the error is cut at 0.2
    assert schedule(2, 10, 0.022) == pytest.approx(0.5 * 1.02 * 1.01)  # a tenth above
    assert schedule(3, 10, 0.0) == pytest.approx(0.5 * 1.02 * 1.01 * 0.98)
    other = AdaptiveKL(7.0, 0.02)
    other.load_state_dict(schedule.state_dict())
    assert other(4, 10, 0.02) == schedule(4, 10, 0.02) == schedule.coefficient


def test_the_controller_asks_once_a_step_with_the_mean_since_it_last_asked():
    asked = []
    controller = KLController(lambda *given: asked.append(given) or 0.1 * len(asked), 0.0)
    controller.begin_generation(0, 9)
    controller.begin_generation(0, 9)  # two generations for one optimizer step
    for kl in (0.1, None, 0.3):
        controller.end_step(kl)
    kept = controller.state_dict()
    controller.begin_generation(3, 9)
    assert asked == [(0, 9, None), (3, 9, pytest.approx(0.2))] and controller.coefficient == pytest.approx(0.2)
    again = KLController(lambda step, n_steps, kl: kl, 0.0)
    again.load_state_dict(kept)
    assert again.coefficient == pytest.approx(0.1)
    again.begin_generation(3, 9)
    assert again.coefficient == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("text", "at_step_1_of_3"), [("linear:0.4:0.2", 0.3), ("cosine:0.4:0.2", 0.3), ("adaptive:0.05:0.01", 0.05)]
)
def test_a_line_of_a_configuration(text, at_step_1_of_3):
    assert parse_kl_schedule(text)(1, 3, None) == pytest.approx(at_step_1_of_3)


@pytest.mark.parametrize("text", ["linear", "linear:0.1", "linear:a:b", "sine:0.1:0.0", "constant:0.1", "0.1", ""])
def test_what_is_no_schedule(text):
    with pytest.raises(InvalidConfigError, match="linear:FIRST:LAST"):
        parse_kl_schedule(text)
    with pytest.raises(InvalidConfigError, match="linear:FIRST:LAST"):
        with_settings(GRPO, {"kl_coef": text})


@pytest.mark.parametrize(
    "create",
    [
        lambda: create_linear(0.1, math.nan),
        lambda: create_cosine(0.1, 0.0, n_steps=0),
        lambda: AdaptiveKL(0.0, 0.1),
        lambda: AdaptiveKL(0.1, 0.0),
        lambda: AdaptiveKL(0.1, 0.1, gain=5.0),
        lambda: KLController(lambda step, n_steps, kl: -1.0, 0.0).begin_generation(0, 1),
    ],
)
def test_coefficients_that_are_none(create):
    with pytest.raises(InvalidConfigError):
        create()


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_a_constant_schedule_is_a_coefficient(make, kl_in):
    settings = {"num_iterations": 2, "max_steps": 4}
    plain = make(settings, algorithm=replace(GRPO, kl_in=kl_in, kl_coef=0.4))
    plain.train()
    scheduled = make(settings, algorithm=with_settings(GRPO, {"kl_in": kl_in, "kl_coef": "linear:0.4:0.4"}))
    scheduled.train()
    assert distance(weights(plain), weights(scheduled)) == 0.0
    assert logged(plain, "kl_coef") == logged(scheduled, "kl_coef") == [0.4] * 4


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_a_schedule_that_begins_at_0_and_passes_through_it(make, kl_in):
    """0, 2, 0 and 2: the first step is one without a reference, and the reference is there all the same."""
    schedule = {0: 0.0, 1: 2.0, 2: 0.0, 3: 2.0}
    algorithm = replace(GRPO, kl_in=kl_in, kl_coef=lambda step, n_steps, kl: schedule[step])
    trainer = make({"max_steps": 4}, algorithm=algorithm)
    kept = []
    generate = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: kept.append(generate(inputs)) or kept[-1]
    trainer.train()
    assert logged(trainer, "kl_coef") == [0.0, 2.0, 0.0, 2.0]
    assert all("ref_per_token_logps" in batch for batch in kept)
    measured = logged(trainer, "reference/kl")
    assert measured[0] == pytest.approx(0.0, abs=1e-6) and min(measured[1:]) > 1e-6


def test_it_changes_at_generation_boundaries_only(make):
    """Two passes over each generation: steps 0 and 1 have one coefficient, 2 and 3 the next."""
    trainer = make({"num_iterations": 2, "max_steps": 4}, algorithm=replace(GRPO, kl_coef=create_linear(0.3, 0.0)))
    trainer.train()
    assert logged(trainer, "kl_coef") == pytest.approx([0.3, 0.3, 0.1, 0.1])


def test_a_resumed_run_has_the_coefficients_of_the_whole_one(make, tmp_path):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1.0}

    def run(folder, resume=None):
        schedule = AdaptiveKL(0.5, 1e-5)
        algorithm = replace(GRPO, kl_coef=schedule)
        trainer = make(settings | {"output_dir": str(tmp_path / folder)}, algorithm=algorithm)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, schedule

    whole, schedule = run("whole")
    assert len(set(logged(whole, "kl_coef"))) > 2  # it moved
    resumed, again = run("resumed", str(tmp_path / "whole" / "checkpoint-2"))
    assert logged(resumed, "kl_coef") == logged(whole, "kl_coef")  # the first two are the checkpoint's
    assert again.coefficient == schedule.coefficient
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"dynamic_sampling": "false"}, "dynamic_sampling='false'; it must be true or false"),
        ({"kl_coef": True}, "kl_coef=True; it must be a number or a text"),
        ({"entropy_coef": "much"}, "entropy_coef='much'; it must be a number"),
        ({"kl_fn": ["k1"]}, r"kl_fn=\['k1'\]; it must be a text"),
        ('{"entropy_coef": NaN}', "NaN.*must be a JSON object"),
        ({"entropy_coef": float("nan")}, "entropy_coef is nan"),
        ('{"kl_coef": -1}', "kl_coef is -1; it must be a number of at least 0"),
        ("[1]", "it must be a JSON object"),
    ],
)
def test_settings_of_an_algorithm_that_cannot_be_meant(settings, match):
    with pytest.raises(InvalidConfigError, match=match):
        with_settings(GRPO, settings)


def test_two_schedules_under_one_name_are_refused(make):
    """Their state would be one: the first would count for both."""
    two = {0: replace(GRPO, kl_coef=create_linear(0.3, 0.0)), 1: replace(GRPO, kl_coef=create_linear(0.0, 0.3))}
    with pytest.raises(InvalidConfigError, match="'grpo'"):
        make(algorithm=two)


def test_a_number_beside_a_schedule_of_the_same_name_is_that_number(make):
    schedule = replace(GRPO, kl_coef=create_linear(0.4, 0.0))
    trainer = make({"max_steps": 3}, algorithm={0: schedule, 1: replace(GRPO, kl_coef=0.7), 2: schedule})
    trainer.train()
    assert logged(trainer, "kl_coef") == pytest.approx([0.4, 0.7, 0.0])
