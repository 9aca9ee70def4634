"""What is logged is the same however a step is cut into micro-batches; and what it is, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from dense_env import DenseEnv

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector, EnvChoice
from llm_envs.tracking import trajectory_metrics
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
)
from llm_envs.trainers.functional.algorithm import GRPO, GSPO, PAIRWISE
from llm_envs.trainers.run.means import LogsMeans
from llm_envs.types import SamplingParams

LEFT_OUT = ("time", "per_second", "flos", "epoch")


class HalfEnv(DenseEnv):
    """DenseEnv in which every other group fails, so that small micro-batches are masked whole."""

    def step(self, action):
        observation, reward, ended, cut, info = super().step(action)
        if self.np_random_seed % 2:
            raise ConnectionError("the tool's server is gone")
        return observation, reward, ended or not reward > 0.3, cut, info  # one turn or two


HALF = EnvChoice("half", factory=HalfEnv)


def logged(trainer):
    """Train, evaluate pairs and rows, and return all numbers that do not depend on the time or the order of rows."""
    trainer.train()
    if isinstance(trainer, EnvGRPOTrainer):  # an evaluation plays, and what it plays depends on its batches
        trainer.close()
    else:
        trainer.evaluate()
    entries = {}
    for entry in trainer.state.log_history:
        entries |= {name: value for name, value in entry.items() if not any(part in name for part in LEFT_OUT)}
    return entries


def assert_same_numbers(one, other, names=()):
    assert one.keys() == other.keys() and set(names) <= one.keys()
    for name, value in one.items():
        assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True), name


@pytest.mark.trainings
@pytest.mark.parametrize(
    ("algorithm", "changes", "names"),
    [
        pytest.param(
            replace(GRPO, kl_coef=0.1), {}, ("kl", "entropy", "policy/ratio", "policy/approx_kl"),
            marks=pytest.mark.smoke,
        ),
        (replace(GSPO, entropy_coef=0.1), {}, ("policy/ratio_max",)),
        (PAIRWISE, {}, ("pairs/accuracy",)),
        (None, {"beta": 0.1, "loss_type": "dapo"}, ("kl", "clip_ratio/region_mean", "clip_ratio/low_min")),
        (None, {"loss_type": "grpo", "importance_sampling_level": "sequence"}, ("clip_ratio/high_max",)),
        (
            None, {"max_steps": 1, "logging_steps": 1, "entropy_coef": 0.1, "loss_type": "cispo", "epsilon_high": 1.0},
            ("clip_ratio/high_mean",),
        ),
    ],
)  # fmt: skip
def test_grpo_logs_the_same_however_a_step_is_cut(tiny_folder, config, algorithm, changes, names):
    """Half of the episodes fail; the second step is off the policy that sampled, which moves the ratios."""
    numbers = []
    for size in (16, 2):
        settings = {"num_iterations": 2, "max_steps": 2, "logging_steps": 2, "epsilon": 0.02, **changes}
        if algorithm is not None or settings.get("loss_type") == "cispo":
            del settings["epsilon"]
        args = config(per_device_train_batch_size=size, gradient_accumulation_steps=16 // size, **settings)
        numbers.append(logged(EnvGRPOTrainer(tiny_folder, HALF, args, algorithm=algorithm)))
    assert_same_numbers(*numbers, names)


@pytest.mark.trainings
def test_ppo_logs_the_same_however_a_step_is_cut(tiny_folder, tmp_path):
    numbers = []
    for size in (16, 2):
        args = EnvPPOConfig(
            output_dir=str(tmp_path), max_steps=2, logging_steps=2, num_iterations=2, bf16=False, report_to="none",
            per_device_train_batch_size=size, gradient_accumulation_steps=16 // size, max_turn_tokens=8,
            max_completion_length=80, num_train_seeds=16, gradient_checkpointing=False, save_strategy="no",
            learning_rate=1e-3, value_learning_rate=1e-2, lr_scheduler_type="constant", disable_tqdm=True,
        )  # fmt: skip
        numbers.append(logged(EnvPPOTrainer(tiny_folder, HALF, args)))
    names = ("value/loss", "value/clip_fraction", "policy/approx_kl", "clip_ratio/region_mean", "entropy")
    assert_same_numbers(*numbers, names)


@pytest.mark.trainings
def test_a_step_of_several_generations_logs_means_over_all_their_episodes(tiny_folder, config):
    """Some have fewer scored episodes than others, and one entry is over two steps."""
    args = config(
        max_steps=2, logging_steps=2, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        steps_per_generation=1, num_generations=2, learning_rate=1e-5, epsilon=0.2,
    )  # fmt: skip
    trainer, played = EnvGRPOTrainer(tiny_folder, HALF, args), []
    play = trainer._player.play
    trainer._player.play = lambda *given, **named: played.append(play(*given, **named)) or played[-1]
    trainer.train()
    trainer.close()
    entry = next(entry for entry in trainer.state.log_history if "reward" in entry)
    scored = [[t.reward for t in generation if t.status == "ok"] for generation in played]
    assert len(scored) == 4 and len({len(rewards) for rewards in scored}) > 1
    mean = sum(map(sum, scored)) / sum(map(len, scored))
    assert [entry[name] for name in ("reward", "rewards/reward/mean", "env/reward")] == pytest.approx([mean] * 3)
    lengths = [sum(t.rows[0].mask) if t.status == "ok" else 0 for generation in played for t in generation]
    assert entry["completions/mean_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert entry["completions/max_length"] == max(lengths) and entry["completions/min_length"] == min(lengths)


@pytest.fixture(scope="module")
def episodes(tiny_folder):
    """Episodes of one turn and of two, in groups of two."""
    codec = ChatCodec(load_tokenizer(tiny_folder))
    policy = TransformersPolicy(load_model(tiny_folder), codec.tokenizer)
    sampling = SamplingParams(max_new_tokens=8)
    with Collector(HALF, policy, codec=codec, sampling=sampling, seed=5, progress=False, max_retries=0) as collector:
        return [trajectory for group in collector.collect(40, 2) for trajectory in group]


@pytest.mark.trainings
@pytest.mark.parametrize(("trainer", "kind"), [(EnvSFTTrainer, EnvSFTConfig), (EnvDPOTrainer, EnvDPOConfig)])
def test_sft_and_dpo_log_the_same_however_a_step_is_cut(tiny_folder, tmp_path, episodes, trainer, kind):
    numbers = []
    for size in (8, 1):
        args = kind(
            output_dir=str(tmp_path), max_steps=2, logging_steps=2, bf16=False, report_to="none", save_strategy="no",
            per_device_train_batch_size=size, gradient_accumulation_steps=8 // size, learning_rate=1e-2,
            per_device_eval_batch_size=size, gradient_checkpointing=False, disable_tqdm=True,
        )  # fmt: skip
        given = {"source": episodes}
        if trainer is EnvDPOTrainer:
            given["eval_source"] = episodes
        made = trainer(tiny_folder, args=args, **given)
        made.eval_dataset = made.train_dataset
        numbers.append(logged(made))
    names = {"eval_loss", "eval_entropy", "entropy", "mean_token_accuracy"}
    assert_same_numbers(*numbers, names)


@pytest.mark.trainings
def test_an_evaluation_is_over_all_of_its_episodes(tiny_folder, config):
    """Its batches are generations, of which some have fewer scored episodes than others."""
    args = config(num_eval_seeds=6, num_generations_eval=1, per_device_eval_batch_size=4)
    trainer, played = EnvGRPOTrainer(tiny_folder, HALF, args), []
    play = trainer._player.play
    trainer._player.play = lambda *given, **named: played.append(play(*given, **named)) or played[-1]
    measured = trainer.evaluate()
    trainer.close()
    expected = trajectory_metrics([t for batch in played for t in batch])
    assert [len(batch) for batch in played] == [4, 2] and 0 < expected["errored"] < 6
    for name in ("reward", "turns", "success", "stop/terminated"):
        assert measured[f"eval_env/{name}"] == pytest.approx(expected[name]), name
    assert measured["eval_env/errored"] == expected["errored"] / 2  # a count is of one generation


def test_a_mean_is_over_items_and_a_process_without_any_says_nothing():
    class Logger:
        def log(self, logs, start_time=None):
            mode = "train" if self.model.training else "eval"
            self.said = logs | {name: sum(values) / len(values) for name, values in self._metrics[mode].items()}

    class Trainer(LogsMeans, Logger):
        def __init__(self):
            self.model, self._metrics = SimpleNamespace(training=True), {"train": {}, "eval": {}}
            self.accelerator = SimpleNamespace(device="cpu", reduce=self.with_another)

        def with_another(self, part, reduction):
            return part + torch.tensor([[4.0, 1.0]])  # a second process has one item, of 4

    trainer = Trainer()
    trainer._add_means(torch.tensor(3), {"entropy": torch.tensor(1.0)})
    trainer._add_means(torch.tensor(0), {"entropy": torch.tensor(9.0)})
    trainer._metrics["train"]["policy/ratio_max"] = [1.5, 3.0, 1.0]
    trainer.log({"loss": 0.5})
    assert trainer.said == {"loss": 0.5, "entropy": (3.0 + 0.0 + 4.0 + 4.0) / (3 + 0 + 1 + 1), "policy/ratio_max": 3.0}
    trainer._metrics["train"].clear()
    trainer.log({})
    assert trainer.said == {}
