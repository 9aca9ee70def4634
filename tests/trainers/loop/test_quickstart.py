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
from llm_envs.trainers.loop import quick_start_training

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
        num_iterations=20,
        group_size=16,
        max_turn_tokens=8,
        learning_rate=5e-3,
    )
    rewards = [metrics["env/reward"] for metrics in result.history]
    assert len(rewards) == 20 and sum(rewards[:3]) / 3 < 0.03 and sum(rewards[-3:]) / 3 > 0.15, rewards
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 20 and shown[0].startswith("step     1  env/reward 0.00")
    assert result.history[-1]["learning_rate"] < 0.01 * 5e-3 < result.history[1]["learning_rate"]


def test_an_environment_held_out_problems_and_a_folder(tiny_folder, tmp_path):
    settings = {**SMALL, "env": "llm/Arithmetic-v0", "env_kwargs": {"difficulty": "medium"}, "max_turn_tokens": 4}
    out = tmp_path / "run"
    first = quick_start_training(tiny_folder, **settings, output_dir=out, eval_every=1, n_eval=4)
    assert (first.state.iteration, first.state.best) == (2, (0.0, 1))
    assert {"eval/success", "eval/reward"} <= first.history[0].keys()
    assert sorted(path.name for path in out.glob("iteration-*")) == ["iteration-000001", "iteration-000002"]
    longer = {**settings, "num_iterations": 3}
    second = quick_start_training(tiny_folder, **longer, output_dir=out, eval_every=1, n_eval=4, resume=True)
    assert (second.state.iteration, len(second.history)) == (3, 1)
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]
    assert load_model(out / "iteration-000003" / "model").num_parameters() == second.model.num_parameters()
    second.save(tmp_path / "final")
    assert load_tokenizer(tmp_path / "final").chat_template == second.tokenizer.chat_template
    next(second.model.parameters()).data.view(-1)[0] = float("nan")
    with pytest.raises(ModelError, match="trained tensors of the model"):
        second.save(tmp_path / "broken")
    next(second.model.parameters()).data.view(-1)[0] = 0.0
    played = evaluate("llm/Arithmetic-v0", second.policy, n=2, codec=second.policy.codec, max_concurrency=2)
    assert played.n == 2


def test_prompts_may_be_held_out_too(tiny_folder):
    rows = [{"prompt": f"Say {number}"} for number in range(60)]
    result = quick_start_training(
        tiny_folder, prompts=rows, reward_fn=share_of_b, **SMALL, eval_every=1, n_eval=3, logger=lambda *_: None
    )
    assert [metrics["eval/n"] for metrics in result.history] == [3.0, 3.0]


def test_any_algorithm_by_name(tiny_folder):
    words = {"prompts": PROMPTS, "reward_fn": lambda row, reply: len(reply.content) % 5}
    for name in ("dapo", "rloo", "pairwise"):
        result = quick_start_training(tiny_folder, **words, **SMALL, algorithm=name, logger=lambda step, metrics: None)
        assert result.state.step == 2
    with pytest.raises(InvalidConfigError, match=r"algorithm='ppo' is not known; give an Algorithm or one of grpo"):
        quick_start_training(tiny_folder, **words, algorithm="ppo")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "neither of env and prompts"),
        ({"env": "llm/Arithmetic-v0", "prompts": PROMPTS, "reward_fn": share_of_b}, "both of env and prompts"),
        ({"prompts": PROMPTS}, "prompts need reward_fn"),
        ({"env": "llm/Arithmetic-v0", "reward_fn": share_of_b}, "reward_fn is for prompts"),
        ({"env": "llm/Arithmetic-v0", "env_kwargs": {"split": "test"}}, "that one is for measuring"),
        ({"env": "llm/Arithmetic-v0", "resume": True}, "needs the output_dir"),
        ({"prompts": PROMPTS, "reward_fn": share_of_b, "env_kwargs": {"difficulty": 1}}, "prompts have none"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(changes, message):
    with pytest.raises(InvalidConfigError, match=message):
        quick_start_training("no-such-model", **changes)


def test_the_example_runs(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["quickstart.py", tiny_folder, "1"])
    runpy.run_path(str(Path(__file__).parents[3] / "examples" / "quickstart.py"))
    assert capsys.readouterr().out.startswith("step     1  env/reward 0.0")
    assert load_model(tmp_path / "quickstart-model").num_parameters() > 0
