"""`llm-envs train NAME`: one grammar, YAML and overrides, adapters, dry runs; every algorithm takes a step."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import typing
from dataclasses import fields
from importlib.metadata import entry_points

import gymnasium as gym
import pytest
import yaml
from dense_env import DenseEnv
from trl import ModelConfig, TrlParser

from llm_envs.cli.main import main
from llm_envs.cli.room_options import hooks
from llm_envs.cli.shell_completion import TRAIN_OPTIONS
from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import EnvChoice
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvGRPOConfig,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    load_teacher,
)
from llm_envs.trainers.cli.commands import KINDS, TRAININGS, GRPOArguments, grpo, ppo
from llm_envs.trainers.cli.commands import main as run
from llm_envs.trainers.cli.parser import COMMON_SETTINGS, EXAMPLES, TrainingParser, parse
from llm_envs.trainers.cli.sft_rl import main as sft_rl
from llm_envs.trainers.dpo.config import LOSS_TYPES
from llm_envs.trainers.functional.algorithm import ALGORITHMS, DAPO
from llm_envs.trainers.functional.kl import k1

gym.register("test/Dense-v0", DenseEnv)

GUESS = "llm/GuessNumber-v0"
COMMON = {
    "per_device_train_batch_size": 4,
    "max_steps": 1,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}
PLAYS = {"max_completion_length": 64, "max_turn_tokens": 8, "num_train_seeds": 32, "save_trajectories": False}
OF = {
    "sft": {"env": GUESS, "num_episodes": 4, "max_length": 260, "overlong": "cut"},
    "grpo": {"env": "test/Dense-v0", **PLAYS, "num_generations": 4, "max_concurrency": 3},
    "ppo": {"env": "test/Dense-v0", **PLAYS},
    "dpo": {},
}
"""Training -> what it needs beside `COMMON`, as a YAML file says it; DPO a file of pairs."""


def options(**settings):
    """Return settings as options of a command line."""
    return [part for key, value in settings.items() for part in (f"--{key}", str(value))]


SMALL = options(**COMMON | {"per_device_train_batch_size": 8}, max_completion_length=64, max_turn_tokens=8) + options(
    num_generations=4, num_train_seeds=32
)


@pytest.fixture
def write(tmp_path, tiny_folder, pairs):
    """Return a function that writes a training's YAML file, and returns the command line that reads it."""

    def write_file(name, **changes):
        source = {"source": pairs} if name == "dpo" else {}
        settings = {**COMMON, **OF[name], **source, "model": tiny_folder, "output_dir": str(tmp_path / "out")}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in (settings | changes).items() if v is not None}))
        return ["train", name, "--config", str(path)]

    return write_file


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A file of four pairs of messages."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{n} + 1?"}],
            "chosen": [{"role": "assistant", "content": str(n + 1)}],
            "rejected": [{"role": "assistant", "content": "no"}],
        }
        for n in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# One grammar.


@pytest.mark.trainings
@pytest.mark.parametrize("name", OF)
def test_a_file_is_read_options_win_and_an_adapter_is_trained(name, write, tmp_path, capsys):
    arguments = write(name, max_steps=7, use_peft=True, lora_r=8, variables={"LLM_ENVS_TEST_SEEN": name})
    assert main([*arguments, "--max_steps", "1", "--lora_r", "2", "--save_strategy", "steps"]) == 0
    out = tmp_path / "out"
    assert f"the model is in {out}" in capsys.readouterr().out
    assert json.loads((out / "adapter_config.json").read_text())["r"] == 2
    assert json.loads((out / "checkpoint-1" / "trainer_state.json").read_text())["global_step"] == 1
    assert os.environ.pop("LLM_ENVS_TEST_SEEN") == name  # of the process
    assert (out / "critic" / "critic.json").exists() == (name == "ppo")


@pytest.mark.parametrize("wrong", ["many", 0])
def test_a_number_of_episodes_at_once_that_is_none_is_one_error(wrong, write, capsys):
    assert main(write("grpo", max_concurrency=wrong)) == 2
    assert f"argument --max-concurrency: {wrong} is not an integer of at least 1, or auto." in capsys.readouterr().err


@pytest.mark.trainings
def test_both_after_another_train_adapters_and_the_second_begins_with_the_first_merged(tmp_path, tiny_folder, capsys):
    sections = {"sft": {**COMMON, "num_episodes": 4, "max_length": 260, "overlong": "cut", "max_steps": 5}}
    sections["rl"] = {**COMMON, **PLAYS, "num_generations": 4}
    above = {"mode": "sft+rl", "model": tiny_folder, "env": GUESS, "use_peft": True}
    above |= {"output_dir": str(tmp_path / "out"), "variables": {"LLM_ENVS_TEST_SEEN": "both"}}
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump(above | sections))
    command = ["train", "sft-rl", "--config", str(path)]
    assert main([*command, "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert (
        "sft\ndata              4 rows" in shown
        and "training          5 optimizer steps, " in shown
        and "rl\nenvironments" in shown
    )
    assert not (tmp_path / "out" / "sft" / "adapter_config.json").exists()
    assert main([*command, "--lora_r", "2", "--sft.max_steps", "1", "--rl.num_generations=2"]) == 0
    assert os.environ.pop("LLM_ENVS_TEST_SEEN") == "both"
    for part in ("sft", "rl"):
        assert json.loads((tmp_path / "out" / part / "adapter_config.json").read_text())["r"] == 2
    assert (tmp_path / "out" / "merged" / "model.safetensors").exists()
    assert json.loads((tmp_path / "out" / "rl" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tmp_path / "out" / "merged"
    )


def test_a_critic_of_its_own(write, tmp_path, tiny_folder):
    assert main([*write("ppo"), "--critic", tiny_folder]) == 0
    critic = tmp_path / "out" / "critic"
    assert json.loads((critic / "critic.json").read_text())["trunk"] == "LlamaModel"
    assert (critic / "model.safetensors").exists()


def test_preferences_from_a_file(write, tmp_path, pairs, capsys):
    command = write("dpo")
    assert main([*command, "--dry_run", "--precompute_ref_log_probs"]) == 0
    shown = capsys.readouterr().out
    assert "data              4 pairs" in shown and "4 pairs in micro-batches of 4" in shown
    assert "chosen, reward 1: " in shown and "⟦1<|im_end|>⟧" in shown and "⟦no<|im_end|>⟧" in shown
    assert not list((tmp_path / "out").glob("pairs-*"))
    assert main([*command, "--eval_source", pairs, "--eval_strategy", "steps", "--eval_steps", "1"]) == 0
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.trainings
def test_a_run_goes_on_where_it_is_told_to(write, tmp_path, capsys):
    command = [*write("sft"), "--save_strategy", "steps", "--save_steps", "1"]
    assert main(command) == 0
    assert main([*command, "--max_steps", "3", "--resume"]) == 0
    saved = {path.name for path in (tmp_path / "out").glob("checkpoint-*")}
    assert saved == {"checkpoint-1", "checkpoint-2", "checkpoint-3"}
    capsys.readouterr()
    assert main(command) == 2
    assert "holds a run already (checkpoint-1, checkpoint-2, checkpoint-3): resume it" in capsys.readouterr().err


def test_the_module_is_the_command(write, monkeypatch, capsys):
    """As `accelerate launch -m` runs it."""
    monkeypatch.setattr(sys, "argv", ["commands.py", *write("ppo")[1:], "--dry_run"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("llm_envs.trainers.cli.commands", run_name="__main__")
    assert ended.value.code == 0
    assert "critic            a head on the policy's trunk, 65 parameters" in capsys.readouterr().out


@pytest.mark.processes
def test_accelerate_launches_it(write, tmp_path):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    command += ["-m", "llm_envs.trainers.cli.commands", *write("sft")[1:], "--per_device_train_batch_size", "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("the model is in") == 1 and (tmp_path / "out" / "model.safetensors").exists()


def test_names_in_a_file_are_those_of_options_too(tmp_path):
    path = tmp_path / "run.yaml"
    text = "env: x\nmax-steps: 3\nmodel: here\nout: there\nsave_strategy: no\ngradient_checkpointing: off\n"
    path.write_text(text)
    chosen, args, model = parse("grpo", (GRPOArguments, EnvGRPOConfig, ModelConfig), ["--config", str(path)])
    assert (chosen.env, args.max_steps, model.model_name_or_path) == ("x", 3, "here")
    assert (args.output_dir, args.save_strategy, args.gradient_checkpointing) == ("there", "no", False)
    given = ["--config", str(path), "--max-steps", "4", "--model", "other", "--save_strategy", "steps"]
    _, args, model = parse("grpo", (GRPOArguments, EnvGRPOConfig, ModelConfig), given)
    assert (args.max_steps, model.model_name_or_path, args.save_strategy) == (4, "other", "steps")


def test_shells_complete_what_the_parsers_take():
    points = {found.name: found.load()() for found in entry_points(group=TRAIN_OPTIONS) if found.name in TRAININGS}
    assert points.keys() == TRAININGS.keys()
    for name, kinds in KINDS.items():
        actions = TrainingParser(kinds).options()
        assert points[name].keys() == {option for option in actions if option.startswith("--")}
        assert points[name]["--bf16"] == ("true", "false") and points[name]["--no-bf16"] == ()
        assert points[name]["--dtype"] == tuple(actions["--dtype"].choices) and points[name]["--model"] is None
    assert points["sft-rl"]["--mode"] == ("sft", "rl", "sft+rl")
    assert {"--rl.num-generations", "--sft.num-episodes", "--lora-r"} <= points["sft-rl"].keys()


def lines_of(kind):
    """Yield a field's name and arguments for it, for each field and each way in which TRL may read it."""
    hints = typing.get_type_hints(kind)
    for item in (item for item in fields(kind) if item.init and item.name != "report_to"):
        values = ["1", "3", "0.25", "1e-3", "true", "false", "steps", "no", "None", '{"a": [1, null]}']
        values += map(str, item.metadata.get("choices") or typing.get_args(hints[item.name]))
        for spelled in (item.name, item.name.replace("_", "-")):
            yield item.name, [f"--{spelled}"]
            yield item.name, [f"--no_{spelled}"]
            yield from ((item.name, [f"--{spelled}", value]) for value in values)
            yield item.name, [f"--{spelled}", "a", "b"]
            yield item.name, [f"--{spelled}", "1", "2"]


@pytest.mark.parametrize("kind", [EnvSFTConfig, EnvGRPOConfig, EnvPPOConfig, EnvDPOConfig, ModelConfig])
def test_what_trls_parser_reads_ours_reads_alike(kind, monkeypatch):
    """Every field, in every form that TRL accepts. (--report-to takes several trackers here, and one in TRL.)"""

    def refuse(message):
        raise InvalidConfigError(message)

    theirs, ours = TrlParser((kind,), allow_abbrev=False), TrainingParser((kind,))
    monkeypatch.setattr(theirs, "error", refuse)
    n_read = 0
    for name, arguments in lines_of(kind):
        try:
            expected = getattr(theirs.parse_args(arguments), name)
        except InvalidConfigError:
            continue
        n_read += 1
        assert getattr(ours.parse_args(arguments), name) == expected, arguments
    assert n_read > 4 * len(fields(kind))
    defaults = vars(ours.parse_args([]))
    assert {key: defaults[key] for key in vars(theirs.parse_args([]))} == vars(theirs.parse_args([]))


@pytest.mark.parametrize("name", ["bf16", "thinking", "gradient_checkpointing", "log_completions"])
def test_a_truth_value_in_each_form(name, tmp_path):
    """Also where TRL has no `--no-NAME`, or no `--NAME` without a value."""
    parser, path = TrainingParser((EnvGRPOConfig,)), tmp_path / "run.yaml"
    for value, forms in {True: ("--{}", "--{}=true", "--{}=on"), False: ("--no-{}", "--{}=false", "--{}=off")}.items():
        for form in forms:
            assert getattr(parser.parse_args([form.format(name)]), name) is value
        for text in ("on", "yes", "'true'") if value else ("off", "no", "'false'"):
            path.write_text(f"{name}: {text}\n")
            assert getattr(TrainingParser((EnvGRPOConfig,)).parse_args(["--config", str(path)]), name) is value


def test_the_examples_of_each_training_parse(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("sft", "grpo", "ppo", "dpo"):
        (tmp_path / f"{name}.yaml").write_text(f"{'source' if name == 'dpo' else 'env'}: x\nout: out\n")
    assert EXAMPLES.keys() == TRAININGS.keys()
    for name, text in EXAMPLES.items():
        lines = [shlex.split(line) for line in text.strip().splitlines()]
        assert len(lines) >= 2 and all(words[:3] == ["llm-envs", "train", name] for words in lines)
        for words in lines:
            if name == "sft-rl":  # it reads the file, so only the file is missing
                with pytest.raises(InvalidConfigError, match=r"run\.yaml"):
                    sft_rl(words[3:])
            else:
                rooms = len(hooks("TrainingOptions")) if name in ("grpo", "ppo") else 0
                assert len(parse(name, KINDS[name], words[3:])) == 3 + rooms


def test_every_training_is_installed_and_says_what_it_takes(capsys):
    assert main(["train"]) == 0
    assert set(capsys.readouterr().out.split()) >= set(TRAININGS) == {"sft", "grpo", "ppo", "dpo", "sft-rl"}
    for name, option in (("sft", "--best-of"), ("ppo", "--critic"), ("dpo", "--source"), ("sft-rl", "--mode")):
        with pytest.raises(SystemExit) as ended:
            run([name, "--help"])
        shown = capsys.readouterr().out
        assert ended.value.code == 0 and option in shown and "--config" in shown and "--use-peft" in shown
        assert shown.rstrip().endswith(EXAMPLES[name].rstrip())


@pytest.mark.parametrize("name", KINDS)
def test_the_help_has_the_common_settings_first_then_ours_then_trls(name, capsys):
    with pytest.raises(SystemExit):
        run([name, "--help"])
    shown = capsys.readouterr().out
    titles = [
        "options:",
        "common settings:",
        "further settings of llm-envs:",
        "further settings of TRL and transformers:",
    ]
    head, *parts = re.split("|".join(f"^{title}$" for title in titles), shown, flags=re.MULTILINE)
    listed = [set(re.findall(r"^  (?:-h, )?(--[\w-]+)", part, re.MULTILINE)) for part in parts]
    assert head == f"usage: llm-envs train {name} [OPTION ...]\n\n" and len(listed) == 4
    assert listed[0] == {"--help"}
    assert listed[1] >= {"--model", "--out", "--max-steps", "--learning-rate", "--config", "--use-peft", "--report-to"}
    assert "--trace" in listed[2] and {"--adam-beta1", "--lora-alpha"} <= listed[3]
    if name in ("grpo", "ppo"):
        assert {"--env", "--group-size"} <= listed[1] and "--max-step-s" in listed[2] and "--top-p" in listed[3]
    else:
        assert "--source" in listed[1]
    every = {next(iter(action.option_strings)) for action in TrainingParser(KINDS[name]).actions} - {"-h", "--help"}
    assert sorted(every) == sorted(option for part in listed[1:] for option in part)  # each in one part


def test_each_common_setting_is_one_of_some_training():
    kinds = [*KINDS.values()]
    assert {field.name for kind in kinds for part in kind for field in fields(part)} | {
        "config",
        "mode",
    } >= COMMON_SETTINGS


# Dry runs.


def test_a_dry_run_says_what_would_be_done_and_trains_nothing(tiny_folder, tmp_path, capsys):
    mixture = json.dumps({"llm/GuessNumber-v0": 1, "llm/Countdown-v0": 3})
    out = tmp_path / "out"
    command = ["train", "grpo", "--env", mixture, "--model_name_or_path", tiny_folder, "--output_dir", str(out), *SMALL]
    (tmp_path / "my_rewards.py").write_text("def brief(trajectory):\n    return 1.0\n", encoding="utf-8")
    command += ["--rewards", f"{tmp_path}/my_rewards.py:brief"]
    assert main([*command, "--dry_run", "--algorithm", "dapo", "--max_completion_length", "32"]) == 0
    shown = capsys.readouterr().out
    assert "environments      llm/GuessNumber-v0, llm/Countdown-v0" in shown
    assert "2 groups of 4 = 8 episodes on 1 process" in shown
    assert "8 rows in micro-batches of 8; a generation lasts 1 step" in shown
    assert "32 items: an epoch is 16 generations" in shown
    assert (
        "dapo: clipped_surrogate(clip_low=0.2, clip_high=0.28), normalised by token, KL coefficient 0" in shown
        and "256 of context; 32 behind the first prompt" in shown
    )
    assert "forks             none" in shown
    assert "served by         the model's own template; parse_reply reads replies" in shown
    assert (
        shown.count("of them sampled, ") == 4
        and len(re.findall(r": reward \S+ \(reward \S+, brief 1, overlong \S+\), ", shown)) == 4
    )
    assert "⟦" in shown and "<|im_start|>user" in shown
    assert "are trained\n" in shown
    assert not out.exists()
    out.mkdir()
    settings = "from llm_envs.trainers import RewardSettings\nfrom my_rewards import brief\n"
    settings += 'REWARDS = RewardSettings(reward_fns=brief, weights={"concise": 0.5})\n'
    (tmp_path / "my_settings.py").write_text(settings, encoding="utf-8")
    command[-1] = f"{tmp_path}/my_settings.py:REWARDS"
    with pytest.warns(UserWarning, match="weights names concise: no episode so far.*columns are reward, brief"):
        assert main([*command, "--dry_run"]) == 0
    assert out.is_dir() and not list(out.iterdir())


def test_a_dry_run_says_which_parameters_an_adapter_has(write, capsys):
    wanted = ["--use_peft", "--lora_r", "2", "--lora_alpha", "4", "--lora_target_modules", "q_proj", "v_proj"]
    for name in ("sft", "grpo"):
        assert main([*write(name), "--dry_run", *wanted]) == 0
        assert re.search(
            r"parameters        896 of [\d,]+ are trained: LoRA of rank 2, alpha 4, dropout 0.05, on q_proj, v_proj\n",
            capsys.readouterr().out,
        )


def test_dry_runs_of_the_others(write, tmp_path, capsys, tiny_folder):
    assert main([*write("sft"), "--dry_run", "--num_train_epochs", "3", "--max_steps", "-1"]) == 0
    shown = capsys.readouterr().out
    assert "data              4 rows" in shown and "training          3 optimizer steps, " in shown
    assert "⟦<answer>5</answer><|im_end|>⟧" in shown  # the oracle's first guess, from 1 to 10
    assert main([*write("ppo"), "--dry_run", "--critic", tiny_folder, "--lam", "0.9"]) == 0
    shown = capsys.readouterr().out
    assert "4 groups of 1 = 4 episodes" in shown and "critic            a LlamaModel of its own" in shown
    assert "gamma 1 and lambda 0.9 a turn (the critic's lambda 1), nothing behind a limit of turns" in shown
    assert main([*write("grpo"), "--dry_run", "--algorithm", "pairwise"]) == 0
    assert "pairwise: dpo_loss(beta=0.1), normalised by" in capsys.readouterr().out
    assert not list((tmp_path / "out").glob("*"))


# Algorithms.


@pytest.mark.trainings
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_a_step(name, tiny_folder, teacher_folder, config):
    reference = {"ref_model_fn": load_teacher(teacher_folder)} if ALGORITHMS[name].needs_teacher else {}
    trainer = EnvGRPOTrainer(tiny_folder, EnvChoice("dense", factory=DenseEnv), config(), algorithm=name, **reference)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train()
    trainer.close()
    assert max((trainer.model.state_dict()[key] - value).abs().max() for key, value in before.items()) > 1e-5


class Enough(Exception):
    """Stops a command where its trainer would be made."""


@pytest.mark.parametrize("command", [grpo, ppo])
def test_an_algorithm_by_options_and_file(command, tiny_folder, tmp_path, monkeypatch):
    seen = {}

    def instead(self, *args, **given):
        seen.update(given)
        raise Enough

    name = command.__name__
    monkeypatch.setattr({"grpo": EnvGRPOTrainer, "ppo": EnvPPOTrainer}[name], "__init__", instead)
    path = tmp_path / "run.yaml"
    path.write_text(("algorithm: dapo\n" if command is grpo else "") + "env: llm/Countdown-v0\n")
    given = [f"--config={path}", "--model_name_or_path", tiny_folder, "--output_dir", str(tmp_path)]
    given += SMALL if command is grpo else []
    with pytest.raises(Enough):
        command(given)
    assert seen["algorithm"] is (DAPO if command is grpo else None)
    with pytest.raises(Enough):
        command([*given, "--algorithm_settings", '{"kl_coef": "linear:0.2:0.0", "kl_in": "reward", "kl_fn": "k1"}'])
    algorithm = seen["algorithm"]
    assert algorithm.name == ("dapo" if command is grpo else "ppo")
    assert (algorithm.kl_in, algorithm.kl_fn) == ("reward", k1)
    assert [algorithm.kl_coef(step, 3, None) for step in range(3)] == pytest.approx([0.2, 0.1, 0.0])


@pytest.mark.trainings
def test_environment_rewards_and_algorithm_of_ones_own_file(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "own_training.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from dense_env import DenseEnv\n"
        "from llm_envs.trainers.functional.algorithm import GRPO\n"
        "MINE, NUMBER = replace(GRPO, name='mine'), 3\n"
        "def length(trajectory): return float(len(trajectory.turns))\n"
        "def make(**kwargs): return DenseEnv(**kwargs)\n"
    )
    out = tmp_path / "out"
    settings = COMMON | OF["grpo"] | {"env": f"{file}:make", "algorithm": f"{file}:MINE", "rewards": f"{file}:length"}
    config = tmp_path / "own.yaml"
    config.write_text(yaml.safe_dump({**settings, "model": tiny_folder, "out": str(out), "logging_steps": 1}))
    command = ["grpo", "--config", str(config)]
    assert run([*command, "--dry-run"]) == 0
    assert "loss              mine: " in capsys.readouterr().out
    assert run(command) in (0, 1)  # 1: its groups may have equal rewards
    (entry, *_) = json.loads((out / "trainer_state.json").read_text())["log_history"]
    assert entry["rewards/length/mean"] >= 1.0
    for given, said in (
        (["--algorithm", f"{file}:NUMBER"], "NUMBER is of type int; it must be an Algorithm"),
        (["--algorithm", f"{file}:MINF"], "has no MINF. Did you mean MINE?"),
        (["--algorithm", "no_such_module:MINE"], "No module named 'no_such_module'"),
        (["--algorithm", "dappo"], "give FILE.py:NAME or one of grpo, dr_grpo, "),
        (["--rewards", f"{file}:NUMBER"], "it must be a reward function, a list or a mapping of them"),
        (["--env", f"{file}:NUMBER"], "it must be an environment's class, a function that makes one"),
    ):
        assert run([*command, "--out", str(tmp_path / "other"), *given]) == 2
        assert said in capsys.readouterr().err


# What is wrong.


def test_what_is_wrong_is_said_in_a_line(tiny_folder, tmp_path, capsys):
    command = ["grpo", "--model_name_or_path", tiny_folder, "--output_dir", str(tmp_path), *SMALL]
    for arguments, said in (
        ([*command, "--env", "llm/Countdwn-v0"], "llm/Countdown-v0"),
        ([*command, "--env", "{3"], "is no JSON"),
        (["grpo", "--env", "llm/Countdown-v0", "--output_dir", str(tmp_path), *SMALL], "--model is missing"),
        (command, "is missing"),
        ([*command, "--env", "llm/Countdown-v0", "--algorithm", "gdpo"], "algorithm='gdpo' is not known"),
        ([*command, "--env", "x", "--num_generation", "4"], "Did you mean --num-generations?"),
        ([*command, "--env", "x", "--beta", "much"], "argument --beta: invalid float value: 'much'"),
        ([*command, "--env", "x", "here"], "here: unexpected argument"),
        ([*command, "--config"], "--config needs a YAML file"),
    ):
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert said in error and [line for line in error.splitlines() if line.startswith("llm-envs: error: ")]
    assert run(["ppx"]) == 2 and "there is no training 'ppx'; there are dpo, grpo" in capsys.readouterr().err
    assert run([]) == 2 and "name one of sft, grpo, ppo, dpo, sft-rl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env: x\nnum_generation: 4\n", "num_generation: there is no such option. Did you mean"),
        ("env: {HF_HUB_OFFLINE: 1}\n", "env is the environment to play; variables are below `variables:`"),
        ("env: x\nbeta: much\n", "run.yaml: argument --beta: invalid float value: 'much'"),
        ("env: x\nbeta: [1]\n", r"run.yaml: beta is a list of 1; it takes one value"),
        ("env: x\nmax_steps: 1.5\n", "run.yaml: argument --max-steps: invalid int value: '1.5'"),
        ("env: x\ntrain_sampling_strategy: rnd\n", "run.yaml: argument --train-sampling-strategy: .*'rnd'.*random"),
        ("env: x\ntemperature: 0\n", "temperature=0"),
        ("- a list\n", "must be a mapping"),
        ("a: [", "cannot be read: while parsing"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(text, said, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError, match=said):
        parse("grpo", (GRPOArguments, EnvGRPOConfig), ["--config", str(path), "--output_dir", str(tmp_path)])


def test_settings_of_an_adapter_want_one(write, tmp_path, tiny_folder, capsys):
    for name in OF:
        for given, said in ((["--lora_r", "8"], "--lora-r 8"), (["--use_dora"], "--use-dora")):
            assert main([*write(name), *given]) == 2
            assert f"error: {said} needs --use-peft: no adapter is trained.\n" in capsys.readouterr().err
    both = {"mode": "sft", "model": tiny_folder, "env": GUESS, "lora_target_modules": ["q_proj"]}
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump(both | {"output_dir": str(tmp_path / "out"), "sft": {**COMMON, "max_length": 260}}))
    assert main(["train", "sft-rl", "--config", str(path)]) == 2
    assert "--lora-target-modules q_proj needs --use-peft" in capsys.readouterr().err


def test_a_loss_that_there_is_none_of_is_found_before_training(write, capsys):
    for name, wrong, near in (("grpo", "dapoo", "dapo"), ("ppo", "dapoo", "dapo"), ("dpo", "sigmoyd", "sigmoid")):
        assert main([*write(name), "--dry_run", "--loss_type", wrong]) == 2
        assert re.search(rf"loss_type='{wrong}'.* Did you mean {near}\?", capsys.readouterr().err)
    assert main([*write("sft"), "--dry_run", "--loss_type", "nnl"]) == 2
    assert re.search(r"'nnl' .*'nll', 'dft', 'chunked_nll'.*Did you mean nll\?", capsys.readouterr().err)
    with pytest.raises(InvalidConfigError, match="loss_type='dapoo'"):
        EnvGRPOConfig(loss_type="dapoo")
    text = EnvDPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    (listed,) = re.findall(r"Possible values are:? (.*?)\.(?: [A-Z']|$)", text)
    assert set(re.findall(r"'(\w+)'", listed)) == set(LOSS_TYPES)


def test_a_batch_that_makes_no_whole_groups_is_explained(write, capsys):
    for given, said in (
        ([], "per_device_train_batch_size 4 * gradient_accumulation_steps 1 * 1 process = 4 episodes a generation, "),
        (["--steps_per_generation", "2"], "per_device_train_batch_size 4 * steps_per_generation 2 * 1 process = 8 "),
        (["--generation_batch_size", "4"], "generation_batch_size (4) must be divisible by num_generations (3)."),
    ):
        assert main([*write("grpo"), "--num_generations", "3", *given]) == 2
        error = capsys.readouterr().err
        assert said in error and ("set for example --per-device-train-batch-size 6." in error) == ("4)" not in said)
    assert main([*write("grpo"), "--num_generations", "3", "--per_device_train_batch_size", "6", "--dry_run"]) == 0


def test_where_a_training_failed_is_kept(write, tmp_path, capsys):
    """After hours nobody runs it again with --debug: the traceback is in the folder, and on the terminal a line."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint-1").write_text("in the way of the folder")
    assert main([*write("sft"), "--save_strategy", "steps", "--save_steps", "1"]) == 1
    error = capsys.readouterr().err
    kept = tmp_path / "out" / "traceback-0.txt"
    assert f"llm-envs: it failed after 1 step; the traceback is in {kept}\nllm-envs: error: FileExists" in error
    assert "Traceback" not in error and "Traceback (most recent call last)" in kept.read_text()


def test_warnings_about_names_that_nobody_gave_are_left_out(write):
    command = [sys.executable, "-W", "always", "-m", "llm_envs.trainers.cli.commands"]
    command += [*write("grpo", env="llm/GuessNumber-v0", gradient_checkpointing=None)[1:], "--dry_run", "--use_peft"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "gradient_checkpointing" not in done.stderr, done.stderr[-2000:]
