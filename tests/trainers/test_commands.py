"""`llm-envs train grpo`: recipes, mixtures, dry runs; and every recipe takes a step."""

import json

import pytest
from dense_env import DenseEnv

from llm_envs.cli import main
from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import EnvChoice
from llm_envs.trainers.commands import grpo
from llm_envs.trainers.commands import main as run
from llm_envs.trainers.grpo import EnvGRPOTrainer
from llm_envs.trainers.recipes import RECIPES, make_recipe

SMALL = """
    --per_device_train_batch_size 8 --num_generations 4 --max_completion_length 64 --max_turn_tokens 8 --max_steps 1
    --gradient_checkpointing false --report_to none --num_train_seeds 32 --save_strategy no --disable_tqdm true
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_a_step(name, tiny_folder, config):
    recipe = make_recipe(name, max_completion_length=80)
    args = config(**recipe.settings)
    trainer = EnvGRPOTrainer(tiny_folder, EnvChoice("dense", factory=DenseEnv), args, **recipe.hooks)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train()
    trainer.close()
    assert max((trainer.model.state_dict()[key] - value).abs().max() for key, value in before.items()) > 1e-5


def test_dapo_is_all_of_dapo():
    recipe = make_recipe("dapo", max_completion_length=100)
    assert recipe.settings["loss_type"] == "dapo" and recipe.settings["epsilon_high"] > recipe.settings["epsilon"]
    assert (
        recipe.settings["beta"] == 0.0 and "group_filter" in recipe.hooks and "overlong" in recipe.hooks["reward_fns"]
    )
    with pytest.raises(InvalidConfigError, match=r"no recipe 'gdpo'; there are grpo, dr_grpo, dapo"):
        make_recipe("gdpo")


def test_a_dry_run_says_what_would_be_done_and_trains_nothing(tiny_folder, tmp_path, capsys):
    mixture = json.dumps({"llm/GuessNumber-v0": 1, "llm/Countdown-v0": 3})
    out = tmp_path / "out"
    command = ["train", "grpo", "--env", mixture, "--model_name_or_path", tiny_folder, "--output_dir", str(out), *SMALL]
    assert (
        main([*command, "--dry_run", "--recipe", "dapo", "--epsilon_high", "0.5", "--max_completion_length", "32"]) == 0
    )
    shown = capsys.readouterr().out
    assert "environments      llm/GuessNumber-v0, llm/Countdown-v0" in shown
    assert "2 groups of 4 = 8 episodes on 1 process" in shown
    assert "8 rows in micro-batches of 8; a generation lasts 1 steps" in shown
    assert "32 items: an epoch is 16 generations" in shown
    assert "loss              dapo" in shown and "192 of context; 32 behind the first prompt" in shown
    assert "forks             none" in shown
    assert shown.count("of them sampled, ") == 4
    assert "⟦" in shown and "<|im_start|>user" in shown
    assert not (out / "trajectories").exists() and not (out / "model.safetensors").exists()


def test_a_recipe_sets_defaults_that_arguments_override(tiny_folder, tmp_path, monkeypatch):
    seen = {}

    def instead(self, *args, **hooks):
        seen["args"], seen["hooks"] = args, hooks
        raise InvalidConfigError("enough")

    monkeypatch.setattr(EnvGRPOTrainer, "__init__", instead)
    path = tmp_path / "run.yaml"
    path.write_text("recipe: dapo\nepsilon: 0.1\nenvironment: llm/Countdown-v0\n")
    command = ["--config", str(path), "--model_name_or_path", tiny_folder, "--output_dir", str(tmp_path), *SMALL]
    with pytest.raises(InvalidConfigError, match="enough"):
        grpo([*command, "--epsilon_high", "0.5"])
    config = seen["args"][2]
    assert (config.loss_type, config.epsilon, config.epsilon_high) == ("dapo", 0.1, 0.5)
    assert {"group_filter", "reward_fns"} <= seen["hooks"].keys()


def test_what_is_wrong_is_said_in_a_line(tiny_folder, tmp_path, capsys):
    command = ["grpo", "--model_name_or_path", tiny_folder, "--output_dir", str(tmp_path), *SMALL]
    for arguments, said in (
        ([*command, "--env", "llm/Countdwn-v0"], "llm/Countdown-v0"),
        ([*command, "--env", "{3"], "is no JSON"),
        (
            ["grpo", "--env", "llm/Countdown-v0", "--output_dir", str(tmp_path), *SMALL],
            "--model_name_or_path is missing",
        ),
        ([*command, "--env", "llm/Countdown-v0", "--recipe", "gdpo"], "no recipe 'gdpo'"),
    ):
        assert run(arguments) == 2
        assert said in capsys.readouterr().err
    assert run(["ppx"]) == 2 and "there is no training 'ppx'; there are dpo, grpo" in capsys.readouterr().err
