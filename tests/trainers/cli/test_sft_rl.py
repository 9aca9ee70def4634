"""Supervised, then reinforcement learning, from one file."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny_folders import save_tiny

from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.loading import load_tokenizer
from llm_envs.rollout import TrajectoryWriter, read_trajectories
from llm_envs.trainers.cli.sft_rl import main, newest_checkpoint, read_settings
from llm_envs.trainers.sft import oracle_trajectories

pytestmark = pytest.mark.trainings

EXAMPLES = Path(__file__).parents[3] / "examples"
STEP = {"max_steps": 1, "per_device_train_batch_size": 4, "report_to": "none", "disable_tqdm": True}
STEP |= {"gradient_checkpointing": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with room for an episode of which every byte is a token."""
    return str(save_tiny(tmp_path_factory.mktemp("base"), hidden_size=32, n_heads=2, n_layers=1))


@pytest.fixture
def write(tmp_path, folder):
    """Return a function that writes a settings file of one step each, with some values changed."""

    def write_file(**changes):
        settings = {
            "mode": "sft+rl",
            "model": folder,
            "env": "llm/GuessNumber-v0",
            "output_dir": str(tmp_path / "out"),
            "seed": 3,
            "env_kwargs": {"difficulty": "easy"},
            "sft": {**STEP, "num_episodes": 4, "max_length": 400, "overlong": "cut", "learning_rate": "1e-3"},
            "rl": {**STEP, "num_generations": 2, "max_completion_length": 24, "max_turns": 1, "num_train_seeds": 4},
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**settings, **changes}))
        return str(path)

    return write_file


def test_settings_are_typed_and_shared(write, tmp_path):
    settings = read_settings(write(model="other"))
    sft, rl = settings.sft_config, settings.rl_config
    assert (settings.mode, settings.model_name_or_path) == ("sft+rl", "other")
    assert sft.learning_rate == 1e-3 and sft.overlong == "cut"
    assert (sft.seed, rl.seed) == (3, 3) and sft.env_kwargs == rl.env_kwargs == {"difficulty": "easy"}
    assert [sft.output_dir, rl.output_dir] == [str(tmp_path / "out" / name) for name in ("sft", "rl")]


def test_what_is_wrong_in_the_file_is_said(write):
    for changes, message in (
        ({"mode": "grpo"}, "argument --mode: invalid choice: 'grpo'"),
        ({"modle": "x"}, r"modle: there is no such option. Did you mean mode"),
        ({"sft": 3}, "sft is '3'; it must be a mapping"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            read_settings(write(**changes))
    settings = read_settings(write(rl={"num_generation": 2}))
    with pytest.raises(InvalidConfigError, match=r"rl: num_generation: .*num_generations"):
        settings.rl_config  # noqa: B018 - a property that parses
    path = Path(write())
    path.write_text("mode: sft\n")
    with pytest.raises(InvalidConfigError, match="--env, --out"):
        read_settings(path)


def weights(place):
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(Path(place) / "model.safetensors").items())])


def test_reinforcement_begins_where_supervision_ended(write, folder, tmp_path, monkeypatch):
    """By the example script, both; then rl alone, from the newest checkpoint. Its learning rate is a thousandth."""
    monkeypatch.setattr(sys, "argv", ["train_sft_rl.py", "--config", write()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "train_sft_rl.py"), run_name="__main__")
    assert ended.value.code == 1  # all rewards of the one step of rl are equal
    sft, rl = tmp_path / "out" / "sft", tmp_path / "out" / "rl"
    assert (sft / "model.safetensors").exists() and (rl / "model.safetensors").exists()
    played = read_trajectories(rl / "trajectories" / "process-0")
    assert {t.env_kwargs["difficulty"] for t in played} == {"easy"}
    assert newest_checkpoint(sft) == sft
    assert (weights(sft) - weights(folder)).abs().max() > 5e-4
    assert (weights(rl) - weights(sft)).abs().max() < 5e-6
    (rl / "model.safetensors").unlink()
    assert main(["--config", write(), "--mode", "rl", "--model", "nowhere"]) == 1
    assert (weights(rl) - weights(sft)).abs().max() < 5e-6


OWN = """
from dataclasses import replace

import numpy as np

from llm_envs.tasks.games.guess_number import GuessNumberEnv
from llm_envs.trainers.functional.algorithm import GRPO

SEEN = []


def always(rewards_B, group_ids_B, turn_rewards_BK):
    SEEN.extend(rewards_B)
    return np.ones_like(rewards_B)


def bonus(trajectory):
    return 7.0


MINE = replace(GRPO, name="mine", advantage_fn=always)
"""


def test_environment_rewards_and_algorithm_of_ones_own_file(write, tmp_path, monkeypatch):
    """Equal rewards train nothing by GRPO. By an algorithm whose advantages are always 1 they do."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "own_sft_rl.py"
    file.write_text(OWN)
    own = {"env": f"{file}:GuessNumberEnv", "algorithm": f"{file}:MINE", "rewards": f"{file}:bonus"}
    section = {**STEP, "num_generations": 2, "max_completion_length": 24, "max_turns": 1, "learning_rate": 1e-3}
    assert main(["--config", write(**own, rl={**section, "num_train_seeds": 4, "logging_steps": 1})]) == 0
    sft, rl = tmp_path / "out" / "sft", tmp_path / "out" / "rl"
    assert (weights(rl) - weights(sft)).abs().max() > 5e-4
    seen = sys.modules.pop("own_sft_rl").SEEN
    assert len(seen) == 4 and all(6.0 <= reward <= 8.0 for reward in seen)  # 7 and the environment's
    (entry, *_) = json.loads((rl / "trainer_state.json").read_text())["log_history"]
    assert entry["rewards/bonus/mean"] == 7.0


def test_supervision_alone_and_from_a_saved_run(write, tmp_path, folder):
    codec = ChatCodec(load_tokenizer(folder))
    with TrajectoryWriter(tmp_path / "run") as writer:
        for trajectory in oracle_trajectories("llm/GuessNumber-v0", codec, 4):
            writer.write(trajectory)
    section = {**STEP, "source": str(tmp_path / "run"), "best_of": 1, "min_reward": 0.5}
    assert main(["--config", write(sft=section), "--mode", "sft"]) == 0
    assert (tmp_path / "out" / "sft" / "model.safetensors").exists() and not (tmp_path / "out" / "rl").exists()


def test_the_newest_whole_checkpoint_is_found(tmp_path):
    assert newest_checkpoint(tmp_path / "nothing") is None

    def save(name, second, *, whole=True):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").touch()
        os.utime(folder / "model.safetensors", (second, second))
        if whole:
            (folder / "trainer_state.json").touch()
        return folder

    early = save("checkpoint-9", 100)
    assert newest_checkpoint(tmp_path) == early
    late = save("checkpoint-10", 100)
    assert newest_checkpoint(tmp_path) == late  # saved in the same second: the later step
    save("checkpoint-11", 300, whole=False)
    assert newest_checkpoint(tmp_path) == late
    final = save(".", 200)
    assert newest_checkpoint(tmp_path) == final
    again = save("checkpoint-5", 250)
    assert newest_checkpoint(tmp_path) == again  # a second run into the same folder


def test_the_other_examples_run(write, folder, tmp_path, monkeypatch):
    """SFT from an oracle, and stock GRPO, by their scripts."""
    flags = [f"--{name}={str(value).lower()}" for name, value in STEP.items()]
    common = ["--model_name_or_path", folder, *flags]
    commands = {
        "train_sft.py": ["--env", "llm/GuessNumber-v0", "--num_episodes", "4", "--output_dir", str(tmp_path / "a")],
        "stock_grpo.py": ["--env", "llm/Arithmetic-v0", "--num_generations", "2", "--max_completion_length", "8"],
    }
    commands["stock_grpo.py"] += ["--output_dir", str(tmp_path / "b"), "--num_train_seeds", "4", "--bf16=false"]
    for script, arguments in commands.items():
        monkeypatch.setattr(sys, "argv", [script, *arguments, *common])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert (tmp_path / "a" / "model.safetensors").exists() and (tmp_path / "b" / "model.safetensors").exists()
