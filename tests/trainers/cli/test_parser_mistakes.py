"""Mistakes in the command line of a training: one line that names the setting, before a model is loaded."""

import sys

import pytest

from llm_envs.cli.main import main

pytestmark = [pytest.mark.trainings]
GRPO = "grpo --env llm/Calculator-v0 --model model --bf16 False"


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("sft --model model", "--env or --source is missing: give one.", 2),
        ("sft --model model --data rows.jsonl", "Did you mean --source?", 2),
        ("sft --model model --env llm/Calculator-v0 --num-episodes 0 --bf16 False", "num_episodes=0; it must be", 2),
        ("dpo --model model --source pairs.jsonl --learning-rate -1 --bf16 False", "learning_rate=-1.0; it must be", 2),
        (f"{GRPO} --learning-rate -1", "learning_rate=-1.0; it must be 0 or more", 2),
        (f"{GRPO} --max-completion-length -5", "max_completion_length=-5; it must be", 2),
        (f"{GRPO} --resume nothing", "the folder nothing does not exist; out has none", 2),
        (f"{GRPO} --rewards mistaken_rewards.py:theirs", "form of TRL's reward functions: wrap it: trl_reward", 2),
        (f"{GRPO}", "no tokenizer could be loaded from 'model'", 1),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(command, words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "pairs.jsonl").write_text("")
    (tmp_path / "mistaken_rewards.py").write_text("def theirs(completions, **kwargs):\n    return [1.0]\n")
    assert main(["train", *command.split(), "--output-dir", "out"]) == code
    shown = capsys.readouterr().err
    assert words in shown and "Traceback" not in shown
