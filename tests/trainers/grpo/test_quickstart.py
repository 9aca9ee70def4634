"""Five lines that train: on prompts, on an environment, again after a stop."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from llm_envs import evaluate
from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.trainers import quick_start_training

pytestmark = pytest.mark.trainings

PROMPTS = [{"prompt": f"Say {word}"} for word in "abcdefghij"]
SMALL = {"num_iterations": 2, "n_groups": 2, "group_size": 4, "max_turn_tokens": 6}


def share_of_b(row, reply):
    return reply.content.count("b") / 8


def test_prompts_with_a_reward(tiny_folder, capsys):
    result = quick_start_training(
        tiny_folder,
        prompts=PROMPTS,
        reward_fn=share_of_b,
        num_iterations=30,
        group_size=16,
        max_turn_tokens=8,
        learning_rate=5e-3,
    )
    steps = [metrics for metrics in result.history if "reward" in metrics]
    rewards = [metrics["reward"] for metrics in steps]
    assert len(rewards) == 30 and sum(rewards[:3]) / 3 < 0.03 and sum(rewards[-3:]) / 3 > 0.15, rewards
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("step     1  reward 0.00") and shown[29].startswith("step    30  reward 0.")
    assert steps[-1]["learning_rate"] < 0.01 * 5e-3 < steps[1]["learning_rate"]


def test_an_environment_an_evaluation_and_a_folder(tiny_folder, tmp_path):
    settings = {**SMALL, "env": "llm/Arithmetic-v0", "env_kwargs": {"difficulty": "medium"}, "max_turn_tokens": 4}
    settings |= {"eval_strategy": "steps", "eval_steps": 1, "num_eval_seeds": 4, "logger": lambda step, metrics: None}
    out = tmp_path / "run"
    first = quick_start_training(tiny_folder, **settings, output_dir=out)
    assert first.trainer.state.global_step == 2 and any("eval_env/success" in metrics for metrics in first.history)
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    second = quick_start_training(tiny_folder, **{**settings, "num_iterations": 3}, output_dir=out, resume=True)
    assert (second.trainer.state.global_step, sum("reward" in metrics for metrics in second.history)) == (3, 1)
    logged = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert [metrics["step"] for metrics in logged if "reward" in metrics] == [1, 2, 3]
    second.save(tmp_path / "final")
    assert load_tokenizer(tmp_path / "final").chat_template == second.policy.tokenizer.chat_template
    played = evaluate("llm/Arithmetic-v0", second.policy, n=2, codec=second.policy.codec, max_concurrency=2)
    assert played.n == 2
    next(second.policy.model.parameters()).data.view(-1)[0] = float("nan")
    with pytest.raises(ModelError, match=r" 1 of \d+ .*the model"):
        second.save(tmp_path / "broken")


def test_any_algorithm_by_name(tiny_folder):
    words = {"prompts": PROMPTS, "reward_fn": lambda row, reply: len(reply.content) % 5}
    for name in ("dapo", "rloo", "pairwise"):
        result = quick_start_training(tiny_folder, **words, **SMALL, algorithm=name, logger=lambda step, metrics: None)
        assert result.trainer.state.global_step == 2
    with pytest.raises(InvalidConfigError, match=r"algorithm='ppo'.*grpo"):
        quick_start_training(tiny_folder, **words, algorithm="ppo")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "nothing is given"),
        ({"env": "llm/Arithmetic-v0", "prompts": PROMPTS, "reward_fn": share_of_b}, "env, prompts, reward_fn is given"),
        ({"prompts": PROMPTS}, "^prompts is given"),
        ({"env": "llm/Arithmetic-v0", "reward_fn": share_of_b}, "env, reward_fn is given"),
        ({"env": "llm/Arithmetic-v0", "env_kwargs": {"split": "test"}}, "that one is for measuring"),
        ({"env": "llm/Arithmetic-v0", "resume": True}, "needs the output_dir"),
        ({"prompts": PROMPTS, "reward_fn": share_of_b, "env_kwargs": {"difficulty": 1}}, "env_kwargs, prompts"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(changes, message):
    with pytest.raises(InvalidConfigError, match=message):
        quick_start_training("no-such-model", **changes)


def test_the_example_runs(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["quickstart.py", tiny_folder, "1"])
    runpy.run_path(str(Path(__file__).parents[3] / "examples" / "quickstart.py"))
    assert capsys.readouterr().out.startswith("step     1  reward 0.0")
    assert load_model(tmp_path / "quickstart-model").num_parameters() > 0
