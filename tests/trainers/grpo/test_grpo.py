"""EnvGRPOTrainer with the transformers policy: what is trained on, what is left out, and that it learns."""

import asyncio
import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from device import rounding, spy_on_batches, to_device
from transformers import AutoTokenizer
from trl import GRPOConfig

from llm_envs.errors import InvalidConfigError, ModelError, RolloutFailedError, UnknownTaskError
from llm_envs.policies.inference import load_model, token_logps
from llm_envs.rollout import read_trajectories
from llm_envs.tiny_model import tiny_model
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.callbacks import LoggerCallback
from llm_envs.trainers.episodes.items import episode_seed
from llm_envs.trainers.functional.algorithm import DAPO
from llm_envs.trainers.functional.masking import trim_padding
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.transformers, pytest.mark.trainings]
ENV = "test/Say-v0"


@pytest.fixture
def make(tiny_folder, config, keep):
    def build(env=ENV, model=tiny_folder, kwargs=None, **changes):
        return keep(EnvGRPOTrainer(model, env, config(**changes), **(kwargs or {})))

    return build


def test_contract_one_step(make):
    """Checks the parts of TRL that this subclass relies on; fails if TRL changes them."""
    trainer = make(per_device_train_batch_size=8, gradient_accumulation_steps=2)
    before = copy.deepcopy(trainer.model.state_dict())
    batches = spy_on_batches(trainer)
    trainer.train()
    (batch,) = batches
    assert len(trainer.last_trajectories) == 16
    for row, trajectory in enumerate(trainer.last_trajectories):
        (tokens,) = trajectory.rows
        n_prompt, n = tokens.prompt_length, len(tokens)
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
        completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
        assert prompt.tolist() == tokens.ids[:n_prompt].tolist()
        assert completion.tolist() == tokens.ids[n_prompt:].tolist()
        mask = batch["tool_mask"][row, : n - n_prompt].bool().numpy()
        assert mask.tolist() == tokens.mask[n_prompt:].tolist()
        assert 0 < mask.sum() < len(mask)  # the environment's tokens are in the row, and out of the loss
        sampled = batch["sampling_per_token_logps"][row, : n - n_prompt].numpy()
        assert np.array_equal(sampled, tokens.logps[n_prompt:])
        text = trainer.processing_class.decode(tokens.ids[n_prompt:][~mask])
        assert "<tool_response>\nbbbbbbbb" in text
    assert any(not torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_groups_share_one_seed_and_advantages_are_the_rewards_against_their_group(make):
    trainer = make()
    batches = spy_on_batches(trainer)
    trainer.train()
    groups = [trainer.last_trajectories[i : i + 4] for i in range(0, 16, 4)]
    seeds = [{t.seed for t in group} for group in groups]
    assert [len(s) for s in seeds] == [1, 1, 1, 1]
    assert len(set.union(*seeds)) == 4
    assert [t.member for t in groups[0]] == [0, 1, 2, 3]
    assert len({t.group_id for t in trainer.last_trajectories}) == 4
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories]).view(4, 4)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(batches[0]["advantages"], expected.view(-1), atol=1e-5)


@pytest.mark.smoke
def test_a_failed_episode_is_no_zero(make):
    """Half of the episodes fail: masked whole, no advantage, and the others are judged among themselves."""
    trainer = make(env_kwargs={"fail_every": 2})
    trainer._player.collector.max_retries = 0
    batches = spy_on_batches(trainer)
    trainer.train()
    status = [t.status for t in trainer.last_trajectories]
    assert 0 < status.count("errored") < 16
    (batch,) = batches
    for start in range(0, 16, 4):
        group = trainer.last_trajectories[start : start + 4]
        scored = [t.reward for t in group if t.status == "ok"]
        for row, trajectory in enumerate(group, start):
            if trajectory.status == "errored":
                assert batch["advantages"][row] == 0
                assert batch["tool_mask"][row][batch["completion_mask"][row].bool()].sum() == 0
            elif len(scored) > 1:
                spread = np.std(scored, ddof=1)
                expected = (trajectory.reward - np.mean(scored)) / (spread + 1e-4)
                assert batch["advantages"][row].item() == pytest.approx(expected, abs=1e-4)
    tokens = sum(int(t.rows[0].mask.sum()) for t in trainer.last_trajectories if t.status == "ok")
    assert batch["num_items_in_batch"].item() == tokens
    log = next(entry for entry in trainer.state.log_history if "env/errored" in entry)
    assert log["env/errored"] == status.count("errored")


def test_generations_of_failures_change_nothing_and_then_stop_the_run(make, caplog):
    trainer = make(env_kwargs={"fail_always": True}, max_steps=2)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    assert {t.status for t in trainer.last_trajectories} == {"errored"}
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert "16 of 16 episodes failed" in caplog.text
    with pytest.raises(RolloutFailedError, match=r"server is gone.*3 generations"):
        make(env_kwargs={"fail_always": True}, max_steps=9).train()


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_a_run_that_stops_for_failures_is_saved_and_resumed(make, strategy):
    """The reward function fails for every episode of the second, third and fourth generation."""
    calls = []

    def flaky(trajectory):
        calls.append(trajectory)
        return 1.0 if len(calls) <= 16 else 1 / 0

    settings = {"max_steps": 9, "save_steps": 100, "save_strategy": strategy}
    trainer = make(kwargs={"rewards": flaky}, **settings)
    saved = Path(trainer.args.output_dir) / "checkpoint-3"
    says = f"flaky: ZeroDivisionError.*{saved} has the 3 steps.*--resume" if strategy == "steps" else "='no', so the 3"
    with pytest.raises(RolloutFailedError, match=says):
        trainer.train()
    assert saved.is_dir() == (strategy == "steps")
    if strategy == "steps":
        repaired = make(kwargs={"rewards": {"flaky": lambda trajectory: 1.0}}, **settings | {"max_steps": 4})
        repaired.train(resume_from_checkpoint=True)
        assert repaired.state.global_step == 4


@pytest.mark.smoke
def test_truncated_episodes_keep_their_reward_and_are_masked_on_request(make):
    """The second turn has no room left, or a limit of turns forbids it: only the former is a limit of tokens."""
    n_trained = {}
    for limit, is_masked in (("max_tokens", True), ("max_tokens", False), ("max_turns", True)):
        changes = {"max_completion_length": 30} if limit == "max_tokens" else {"max_turns": 1}
        trainer = make(mask_truncated_completions=is_masked, **changes)
        with torch.no_grad():  # no turn is cut: the model ends each after a few tokens
            bias = torch.zeros(trainer.model.config.vocab_size, device=trainer.model.device)
            trainer.model.lm_head.bias = torch.nn.Parameter(bias)
            trainer.model.lm_head.bias[trainer.processing_class.eos_token_id] = 5.0
        batches = spy_on_batches(trainer)
        trainer.train()
        assert {(t.truncated, str(t.stop_reason)) for t in trainer.last_trajectories} == {(True, limit)}
        n_trained[limit, is_masked] = int(batches[0]["num_items_in_batch"])
    assert n_trained["max_tokens", True] == 0
    assert n_trained["max_tokens", False] > 0 and n_trained["max_turns", True] > 0


def test_dapo_punishes_every_episode_that_reaches_the_limit(make):
    """The environment's words fill most of the 30 tokens; they count in the limit, and so in the punishment."""
    trainer = make(max_completion_length=30, kwargs={"algorithm": dataclasses.replace(DAPO, dynamic_sampling=False)})
    trainer.train()
    episodes, punished = trainer.last_trajectories, trainer.generation.episodes.columns["overlong"]
    assert {str(t.stop_reason) for t in episodes} == {"max_tokens"}
    assert all(t.n_sampled_tokens < 24 and 24 < t.n_completion_tokens <= 30 for t in episodes)
    assert list(punished) == [-1.0] * len(episodes)


@pytest.mark.smoke
def test_the_reward_rises(make):
    """Seeds fixed in advance; the mean reward of the last five steps against the first five."""
    trainer = make(max_steps=40, per_device_train_batch_size=64, num_generations=16, learning_rate=3e-3, seed=1)
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert len(rewards) == 40
    assert np.mean(rewards[:5]) < 0.1
    assert np.mean(rewards[-5:]) > 0.5


def test_lora(make, tiny_folder):
    adapter = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make(kwargs={"peft_config": adapter}, max_steps=3, learning_rate=1e-2)
    trainer.train()
    base = load_model(tiny_folder, dtype=torch.float32)
    weights = dict(trainer.model.named_parameters())
    assert any("lora_B" in name and value.abs().max() > 0 for name, value in weights.items())
    for name, value in base.named_parameters():
        same = [w for n, w in weights.items() if n.replace("base_model.model.", "").replace(".base_layer", "") == name]
        assert torch.equal(same[0], value)
    # The third generation was sampled with the adapter: its log-probabilities are not the base model's.
    rows = [t.rows[0] for t in trainer.last_trajectories]
    scored = token_logps(base, [row.ids for row in rows])
    assert max(np.abs(a - row.logps)[row.mask].max() for a, row in zip(scored, rows, strict=True)) > 1e-3


def test_the_guard_stops_a_policy_with_other_weights(make):
    trainer = make()
    tokenizer = trainer.processing_class
    other = tiny_model(tokenizer, hidden_size=64, n_heads=2, max_length=192, seed=99)
    trainer._policy.model = other.to(trainer.model.device)
    with torch.no_grad():
        for parameter in trainer._policy.model.parameters():
            parameter.mul_(3)
    with pytest.raises(ModelError, match="logps_tolerance"):
        trainer.train()


@pytest.mark.smoke
def test_the_guard_sees_a_wrong_temperature(make):
    trainer = make()
    trainer._player.collector.sampling = dataclasses.replace(trainer._player.collector.sampling, temperature=0.5)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(3)  # away from the uniform distribution, on which temperature has no effect
    with pytest.raises(ModelError, match="temperature"):
        trainer.train()


def test_the_guard_sees_every_group(make):
    """The sampled log-probabilities of the last two groups of four are 3 nats off: 1.5 on average."""
    trainer = make(per_device_train_batch_size=4, steps_per_generation=4)
    rows = trainer._padded

    def shifted(lists):
        lists["logprobs"][8:] = [[value - 3.0 for value in row] for row in lists["logprobs"][8:]]
        return rows(lists)

    trainer._padded = shifted
    with pytest.raises(ModelError, match="logps_tolerance"):
        trainer.train()


@pytest.mark.parametrize("filters", [{"top_p": 0.7}, {"top_k": 5, "temperature": 1.5}, {"repetition_penalty": 1.5}])
def test_the_guard_recomputes_filtered_sampling(make, filters):
    def sharpen(model, factor):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor)

    trainer = make(logps_tolerance=1e-4, **filters)
    sharpen(trainer.model, 3)
    trainer.train()
    assert trainer.state.log_history[0]["sampling/guard_logps_gap"] < 1e-4
    other = make(**filters)
    wrong = tiny_model(other.processing_class, hidden_size=64, n_heads=2, max_length=192, seed=99)
    other._policy.model = wrong.to(other.model.device)
    sharpen(other._policy.model, 3)
    with pytest.raises(ModelError, match="logps_tolerance"):
        other.train()


def test_temperature_reaches_sampling_and_training_alike(make):
    trainer = make(temperature=0.7, logps_tolerance=rounding(1e-5))
    assert trainer._player.collector.sampling.temperature == 0.7
    trainer.train()


def test_the_loss_does_not_see_the_padding(make):
    trainer = make(max_steps=1)
    batches = spy_on_batches(trainer)
    trainer.train()
    batch = {name: value[:4] if getattr(value, "ndim", 0) else value for name, value in batches[0].items()}
    batch = to_device(batch, trainer.model.device)
    wide = {
        name: torch.nn.functional.pad(value, (0, 7)) if value.ndim == 2 and name[:6] != "prompt" else value
        for name, value in batch.items()
    }
    losses = [super(EnvGRPOTrainer, trainer)._compute_loss(trainer.model, b) for b in (batch, wide, trim_padding(wide))]
    assert torch.allclose(losses[0], losses[1], atol=rounding(1e-7))
    assert torch.allclose(losses[0], losses[2], atol=rounding(1e-7))


def test_trajectories_metrics_and_model_are_saved(make, tmp_path):
    seen = []
    trainer = make(
        max_steps=2, kwargs={"callbacks": [LoggerCallback(lambda step, metrics: seen.append((step, metrics)))]}
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    stored = read_trajectories(tmp_path / "out" / "trajectories" / "process-0")
    assert len(stored) == 32
    assert stored[16:] == trainer.last_trajectories
    assert [step for step, metrics in seen if "reward" in metrics] == [1, 2]
    assert {"env/success", "env/turns", "env/stop/terminated", "env/reward/reward"} <= seen[0][1].keys()
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "llama"
    assert torch.equal(load_model(tmp_path / "saved").lm_head.weight, trainer.model.lm_head.weight)


def test_evaluation_plays_the_test_split(make):
    trainer = make(eval_strategy="steps", eval_steps=1, num_eval_seeds=4, per_device_eval_batch_size=8)
    trainer.train()
    metrics = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
    assert len(metrics) == 1
    assert {t.env_kwargs["split"] for t in trainer.last_trajectories} == {"test"}


def test_steps_draw_new_seeds_and_runs_repeat(make):
    first, second = make(max_steps=2), make(max_steps=2)
    first.train()
    second.train()
    assert [t.rows[0].ids.tolist() for t in first.last_trajectories] == [
        t.rows[0].ids.tolist() for t in second.last_trajectories
    ]
    played = read_trajectories(first._player.writer.path)
    assert len({t.seed for t in played}) == len({t.group_id for t in played}) == 8  # no seed twice within an epoch
    assert episode_seed(0, "train", 1) != episode_seed(0, "test", 1)
    assert episode_seed(0, "train", 1) != episode_seed(1, "train", 1)


def test_a_resumed_run_goes_on_with_the_same_episodes(make, tmp_path):
    """Two steps and two more after a resume play what four steps in one go play."""
    settings = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.0}
    whole = make(max_steps=4, output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    make(max_steps=2, output_dir=str(tmp_path / "half"), **settings).train()
    resumed = make(max_steps=4, output_dir=str(tmp_path / "half"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "half" / "checkpoint-2"))
    first = read_trajectories(tmp_path / "half" / "trajectories" / "process-0")
    second = read_trajectories(tmp_path / "half" / "trajectories" / "process-0.2")
    expected = read_trajectories(tmp_path / "whole" / "trajectories" / "process-0")
    assert len(first) == len(second) == 32
    assert [(t.group_id, t.seed, t.messages) for t in first + second] == [
        (t.group_id, t.seed, t.messages) for t in expected
    ]


def test_a_torn_group_is_refused_with_settings_that_fit(config):
    with pytest.raises(InvalidConfigError, match=r"per_device_train_batch_size=4;.* num_generations=8"):
        _two_ranks(config)
    evaluates = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 4, "eval_strategy": "epoch"}
    with pytest.raises(InvalidConfigError, match=r"per_device_eval_batch_size=4;.* num_generations_eval=8"):
        _two_ranks(config, **evaluates)


def test_part_of_a_group_is_never_played(make):
    trainer = make()
    rows = [{"index": 0, "split": "test"}] * 3
    with pytest.raises(InvalidConfigError, match="multiple of 4"):
        trainer._player.play(rows, mode="eval", step=0, group_size=4)


def _two_ranks(config, **changes):
    """TRL accepts two processes of 4 rows with groups of 8; each would hold half of every group."""

    class TwoProcesses(EnvGRPOConfig):
        world_size = property(lambda self: 2)

    base = config()
    values = {
        "output_dir": base.output_dir,
        "per_device_train_batch_size": 4,
        "num_generations": 8,
        "report_to": "none",
    }
    return TwoProcesses(**values | changes)


def test_bad_settings_are_one_line_errors(make, tiny_folder):
    with pytest.raises(InvalidConfigError, match="max_completion_length=500"):
        make(max_completion_length=500)
    with pytest.raises(InvalidConfigError, match="max_completion_length=None;"):
        make(max_completion_length=None)
    for shards, mode in ((2, "colocate"), (0, "colocate"), (2, "server")):
        with pytest.raises(InvalidConfigError, match=f"vllm_tensor_parallel_size={shards};"):
            make(use_vllm=True, vllm_tensor_parallel_size=shards, vllm_mode=mode)
    for busy in ({"vllm_mode": "server"}, {"async_generations": 1}):
        with pytest.raises(InvalidConfigError, match="vllm_enable_sleep_mode=True;"):
            make(use_vllm=True, vllm_enable_sleep_mode=True, **busy)
    with pytest.raises(InvalidConfigError, match=r"difficulty.*easy"):
        make(env="llm/Calculator-v0", env_kwargs={"difficulty": "impossible"})
    with pytest.raises(UnknownTaskError):
        make(env="llm/Calculater-v0")
    with pytest.raises(InvalidConfigError, match=r"\b3 is not"):
        make(env=3)
    with pytest.raises(InvalidConfigError, match="reward_funcs"):
        make(kwargs={"reward_funcs": []})
    with pytest.raises(InvalidConfigError, match="use EnvGRPOConfig"):
        EnvGRPOTrainer(tiny_folder, ENV, GRPOConfig(output_dir="x", bf16=False, report_to="none"))
    for wrong in ("difficulty=hard", "{'difficulty': 'hard'}", "[1]", 3):
        with pytest.raises(InvalidConfigError, match="env_kwargs is"):
            make(env_kwargs=wrong)
    assert make(env_kwargs='{"fail_every": 3}').args.env_kwargs == {"fail_every": 3}
    with pytest.raises(InvalidConfigError, match="temperature=0"):
        make(temperature=0.0)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="chat template"):
        make(kwargs={"processing_class": tokenizer})
    assert EnvGRPOConfig(output_dir="x", report_to="none").bf16 is torch.accelerator.is_available()


def test_an_environment_without_splits_can_be_trained_on(make):
    trainer = make(env_kwargs={"split": None})
    trainer.train()
    assert trainer.last_trajectories[0].env_kwargs == {}


def test_a_tokenizer_without_eos_and_pad_is_given_what_it_lacks(make, tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.eos_token = tokenizer.pad_token = None
    trainer = make(kwargs={"processing_class": tokenizer})
    trainer.train()
    assert tokenizer.pad_token == "<|im_end|>"


def test_evaluate_needs_no_strategy(make):
    trainer = make(num_eval_seeds=4, per_device_eval_batch_size=8)
    metrics = trainer.evaluate()
    assert "eval_reward" in metrics
    assert sum(value for name, value in metrics.items() if name.startswith("eval_env/stop/")) == pytest.approx(1)


def test_closing_works_beside_a_running_loop(make):
    trainer = make()

    async def notebook():
        trainer.train()
        trainer.close()

    asyncio.run(notebook())


def test_sampling_settings_are_the_trainers(make):
    trainer = make(top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)
    expected = SamplingParams(max_new_tokens=8, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)
    assert trainer._player.collector.sampling == expected
    trainer.train()
