"""The card of a trained model, as `create_model_card` writes it and `push_to_hub` uploads it to a local server."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import environment, hub_stand_in

from llm_envs.sources.source import EnvChoice
from llm_envs.trainers import EnvGRPOTrainer, RewardSettings
from llm_envs.trainers.callbacks import LoggerCallback
from llm_envs.trainers.run.model_card import environment_section, without_none
from llm_envs.types import Trajectory

pytestmark = [pytest.mark.trainings]


def test_held_out_results_come_before_those_of_training() -> None:
    splits = {
        "train": [EnvChoice("a/B-v0", 2.0, {"level": 1})],
        "test": [EnvChoice("a/B-v0", kwargs={"split": "test"})],
    }
    trained = {"step": 5, "reward": 0.5, "env/success": 0.25}
    held_out = {"step": 4, "eval_reward": 0.75, "eval_env/success": 0.125, "eval_runtime": 3.0}
    section = environment_section(splits, 7, 5, [held_out, trained, {"step": 5, "train_runtime": 1.0}])
    assert '| train | `a/B-v0` | `{"level": 1}` | 2 |\n| test | `a/B-v0` | `{"split": "test"}` | 1 |' in section
    assert "Seed 7" in section and "5 steps. python 3" in section and "llm-envs 0.1.0, trl 1." in section
    assert "On held-out episodes (of the split test), step 4:" in section
    assert "| env/success | 0.125 |\n| reward | 0.75 |" in section and "runtime" not in section
    section = environment_section(splits, 7, 5, [trained])
    assert "Not evaluated on held-out episodes. While training, at the last logged step, step 5:" in section
    assert "| env/success | 0.25 |" in section
    section = environment_section(splits, 7, 5, [trained, {"step": 6, "reward": None, "loss": 0.0}])  # nothing scored
    assert "at the last logged step, step 6:" in section and "| loss | 0 |" in section and "reward" not in section
    assert "transformers 5 or later" not in section
    new = environment_section(splits, 7, 5, [trained], tokenizer_class="TokenizersBackend")
    assert "`TokenizersBackend`, which only transformers 5 or later can load" in new
    read = environment_section("Read.", 7, 5, [])
    assert "\n\nRead.\n\n" in read and "Nothing was logged." in read


def test_a_model_of_a_folder_is_named_in_the_card() -> None:
    card = 'of [None](https://huggingface.co/None).\npipeline("text-generation", model="None")'
    named = without_none(card, "/home/me/models/base", "runs/grpo")
    assert named == 'of `base`, a model of a folder.\npipeline("text-generation", model="grpo")'
    assert "of a new model." in without_none(card, None, "runs/grpo")
    known = "of [owner/base](https://huggingface.co/owner/base)."
    assert without_none(known, "owner/base", "runs/grpo") == known


@pytest.mark.smoke
def test_nothing_that_describes_a_run_ends_it(config: Any, tiny_folder: str, tmp_path: Path, caplog: Any) -> None:
    """Card, table of completions, record, tracker: each cannot be written. The first generation has no score."""
    n_scored = []

    def late(trajectory: Trajectory) -> float | None:
        n_scored.append(1)
        return None if len(n_scored) <= 16 else float(len(n_scored) % 3)

    def down(step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("the tracker is down")

    out = tmp_path / "out"
    args = config(max_steps=2, save_strategy="steps", save_steps=1, log_completions=True, num_completions_to_print=1)
    rewards = RewardSettings(reward_fns={"late": late})
    trainer = EnvGRPOTrainer(tiny_folder, "test/Say-v0", args, rewards=rewards, callbacks=[LoggerCallback(down)])
    (out / "README.md").mkdir()
    (out / "completions").rmdir()
    for name in ("completions", "record"):
        (out / name).write_text("in the way")
    trainer.train()
    trainer.close()
    assert trainer.state.log_history[0]["reward"] is None and trainer.state.global_step == 2
    assert all((out / f"checkpoint-{step}" / "trainer_state.json").is_file() for step in (1, 2))
    card, table, record = "the model card", "the table of completions", "the record of what is learned"
    said = [message for message in caplog.messages if "the run continues without it" in message]
    for what, n in ((card, 2), (table, 1), (record, 1), ("the tracker LoggerCallback", 1)):  # a new card at each save
        assert sum(message.startswith(what) for message in said) == n, what


GRPO = """
    import sys
    from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
    args = EnvGRPOConfig(output_dir=sys.argv[2], max_steps=1, per_device_train_batch_size=4, num_generations=2,
        max_completion_length=16, max_turn_tokens=4, report_to="none", seed=11, logging_steps=1, num_eval_seeds=2,
        per_device_eval_batch_size=2, hub_model_id="you/model", hub_private_repo=True, use_cpu=True,
        env_kwargs={"difficulty": "easy"}, gradient_checkpointing=False, num_train_seeds=8)
    trainer = EnvGRPOTrainer(sys.argv[1], "llm/Arithmetic-v0", args)
    trainer.train()
    trainer.evaluate()
    trainer.push_to_hub()
    trainer.close()
"""
SFT = """
    import sys
    from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer
    args = EnvSFTConfig(output_dir=sys.argv[2], max_steps=1, report_to="none", seed=11, logging_steps=1, use_cpu=True,
        hub_model_id="you/model", env_kwargs={"difficulty": "easy"}, num_episodes=4, max_length=None)
    trainer = EnvSFTTrainer(sys.argv[1], "llm/Arithmetic-v0", args)
    trainer.train()
    trainer.push_to_hub()
"""
PPO = """
    import sys
    from llm_envs.trainers import EnvPPOConfig, EnvPPOTrainer
    args = EnvPPOConfig(output_dir=sys.argv[2], max_steps=1, per_device_train_batch_size=4, max_completion_length=16,
        max_turn_tokens=4, report_to="none", seed=11, logging_steps=1, hub_model_id="you/model", use_cpu=True,
        env_kwargs={"difficulty": "easy"}, gradient_checkpointing=False, num_train_seeds=8)
    trainer = EnvPPOTrainer(sys.argv[1], "llm/Arithmetic-v0", args)
    trainer.train()
    trainer.push_to_hub()
    trainer.close()
"""
DPO = """
    import sys
    from datasets import Dataset
    from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer
    says = {name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    pairs = Dataset.from_list([{"prompt": [{"role": "user", "content": "Go"}], **says}])
    args = EnvDPOConfig(output_dir=sys.argv[2], max_steps=1, report_to="none", seed=11, logging_steps=1, use_cpu=True,
        hub_model_id="you/model", gradient_checkpointing=False)
    trainer = EnvDPOTrainer(sys.argv[1], args, source=pairs)
    trainer.train()
    trainer.push_to_hub()
"""


@pytest.mark.parametrize("code", [GRPO, SFT, PPO, DPO], ids=["GRPO", "SFT", "PPO", "DPO"])
def test_an_uploaded_model_says_where_it_was_trained(tiny_folder: str, tmp_path: Path, code: str) -> None:
    with hub_stand_in(tmp_path / "hub") as server:
        command = [sys.executable, "-c", textwrap.dedent(code), tiny_folder, str(tmp_path / "out")]
        variables = {**os.environ, **environment(server)}
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=600)
        assert done.returncode == 0, done.stderr
    there = tmp_path / "hub" / "models" / "you" / "model"
    assert (there / "model.safetensors").read_bytes() == (tmp_path / "out" / "model.safetensors").read_bytes()
    card = (there / "README.md").read_text()
    assert "It has been trained using [TRL]" in card and "llm-envs" in card.split("---")[1]
    assert "TokenizersBackend" in card and "[None]" not in card and 'model="None"' not in card
    assert "Seed 11, from which" in card and "; 1 step. python" in card and "llm-envs 0.1.0, trl" in card
    if code is GRPO:
        assert '| train | `llm/Arithmetic-v0` | `{"split": "train", "difficulty": "easy"}` | 1 |' in card
        assert '| test | `llm/Arithmetic-v0` | `{"split": "test", "difficulty": "easy"}` | 1 |' in card
        assert "On held-out episodes (of the split test), step 1:" in card and "| env/success | 0 |" in card
    elif code is PPO:
        assert '| train | `llm/Arithmetic-v0` | `{"split": "train", "difficulty": "easy"}` | 1 |' in card
        assert "Not evaluated on held-out episodes." in card and "| env/success | 0 |" in card
    elif code is DPO:
        assert "It was trained on stored episodes." in card
        assert "| loss | 0.6931 |" in card  # ln 2, before the first step
    else:
        assert '| train, by the oracle | `llm/Arithmetic-v0` | `{"split": "train", "difficulty": "easy"}` | 1 |' in card
        assert "Not evaluated on held-out episodes." in card and "| loss |" in card
