"""EnvPPOTrainer: its batches and losses, what is bootstrapped, that it learns, resumes and refuses."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import peft
import pytest
import torch
from dense_env import DenseEnv
from device import on_cpu, rounding, spy_on_batches
from safetensors.torch import load_file
from trainings import DENSE, PLAYED, last_only

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference import load_model
from llm_envs.rollout import EnvChoice
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.functional.algorithm import PPO
from llm_envs.trainers.functional.losses import clipped_surrogate

pytestmark = pytest.mark.trainings


class StayEnv(DenseEnv):
    """Stay for 0.2 and be asked again, or leave for 0.5. What stays is decided by the parity of what is said.

    Whoever stays twice is cut off by a limit of time, not by the task: with a discount of 0.9, staying is worth up to
    0.2 / (1 - 0.9) = 2, if what would follow counts; if it does not, leaving is better at the last turn.
    """

    def question(self):
        return "Stay?"

    def step(self, action):
        self.n_turns += 1
        stays = sum(map(ord, action)) % 2 == 0
        cut = stays and self.n_turns == 2
        return "Stay?", 0.2 if stays else 0.5, not stays, cut, {"is_success": cut}


STAY = EnvChoice("stay", factory=StayEnv)


@pytest.fixture
def make(tiny_folder, configure, keep):
    def build(env=STAY, model=tiny_folder, kwargs=None, critic=None, **changes):
        settings = {"value_learning_rate": 1e-3, **PLAYED, "max_turn_tokens": 4}
        args = configure(EnvPPOConfig, **settings | changes)
        return keep(EnvPPOTrainer(model, env, args, critic=critic, **(kwargs or {})))

    return build


def spread(critic):
    """Give the head weights that tell states apart."""
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-0.1, 0.1, critic.head.in_features)[None])
        critic.head.bias.fill_(0.3)


# --- The trainer's batches ---


OPENING = "<|im_start|>assistant\n"
"""Of the tiny models' template."""


def reference(trainer, model, played, *, gamma, lam):
    """Return {(episode, row, column): (value, advantage)} by loops over whole rows, and how the episodes ended."""
    out, endings = {}, Counter()
    weight, bias = trainer.critic.head.weight[0], trainer.critic.head.bias
    opening = torch.tensor(trainer.processing_class.encode(OPENING, add_special_tokens=False))
    for number, episode in enumerate(played):
        values, places, last = [], [], None
        for which, tokens in enumerate(episode.rows):
            ids = torch.cat([torch.from_numpy(tokens.ids).long(), opening])[None]
            with torch.no_grad():
                states = model.model(ids.to(model.device)).last_hidden_state[0]
            after = states @ weight + bias
            for column in np.flatnonzero(tokens.mask):
                values.append(after[column - 1].item())
                places.append((number, which, int(column) - tokens.prompt_length))
            last = after[-1].item()
        ends = np.cumsum([int(episode.rows[t.row].spans[t.span][1] - episode.rows[t.row].spans[t.span][0])
                          for t in episode.turns]) - 1  # fmt: skip
        rewards = dict(zip(ends.tolist(), [t.reward for t in episode.turns], strict=True))
        goes_on = episode.truncated and trainer.args.bootstrap_truncated
        next_value, next_advantage = (last if goes_on else 0.0), 0.0
        endings["truncated" if episode.truncated else "terminated"] += 1
        for t in reversed(range(len(values))):
            delta = rewards.get(t, 0.0) + gamma * next_value - values[t]
            next_value, next_advantage = values[t], delta + gamma * lam * next_advantage
            out[places[t]] = (values[t], next_advantage)
    return out, endings


@pytest.mark.smoke
@pytest.mark.parametrize("form", ["shared", "separate", "forks"])
def test_the_batch_has_the_values_and_advantages_of_whole_episodes(make, tiny_folder, form):
    """Every tensor against loops over unpadded rows: a limit of turns is bootstrapped behind the assistant's opening.

    With forks it is not: only the context function could say what the policy would see.
    """
    model = load_model(tiny_folder, dtype=torch.float32)
    settings = {
        "gamma": 0.9, "lam": 0.8, "value_lam": 0.8, "discount": "token", "whiten_advantages": False,
        "per_device_train_batch_size": 32, "bootstrap_truncated": form != "forks",
    }  # fmt: skip
    forks = {"kwargs": {"context_fn": last_only}} if form == "forks" else {}
    trainer = make(critic=tiny_folder if form == "separate" else None, **settings, **forks)
    spread(trainer.critic)
    head = {name: value.clone() for name, value in trainer.critic.head.state_dict().items()}
    batches = spy_on_batches(trainer)
    trainer.train()
    trainer.critic.head.load_state_dict(head)
    expected, endings = reference(trainer, model, trainer.last_trajectories, gamma=0.9, lam=0.8)
    assert min(endings["truncated"], endings["terminated"]) > 1
    (batch,) = batches
    line, places = len(trainer.last_trajectories), {}
    for number, episode in enumerate(trainer.last_trajectories):
        places[number, 0] = number
        for which in range(1, len(episode.rows)):
            places[number, which] = line
            line += 1
    assert (line > 32) == (form == "forks")
    seen = torch.zeros_like(batch["advantages"])
    for (number, which, column), (value, advantage) in expected.items():
        at = places[number, which], column
        seen[at] = 1
        assert batch["old_values"][at].item() == pytest.approx(value, abs=rounding(1e-5))
        assert batch["advantages"][at].item() == pytest.approx(advantage, abs=rounding(1e-5))
        assert batch["returns"][at].item() == pytest.approx(value + advantage, abs=rounding(1e-5))
    assert torch.equal(seen.bool(), (batch["completion_mask"] * batch["tool_mask"]).bool())
    assert batch["advantages"][~seen.bool()].abs().sum() == 0


def test_a_limit_of_tokens_ends_an_episode_and_a_limit_of_turns_does_not(make):
    """30 tokens hold a first turn and not a second: whoever stays keeps the 0.2, and nothing the critic expects."""
    returns = {}
    for limit in ("tokens", "turns"):
        sizes = {"max_completion_length": 30} if limit == "tokens" else {"max_turns": 1}
        trainer = make(bootstrap_truncated=True, whiten_advantages=False, **sizes)
        trainer.critic.head.bias.data.fill_(0.3)  # of every state
        batches = spy_on_batches(trainer)
        trainer.train()
        cut = torch.tensor([t.truncated for t in trainer.last_trajectories])
        assert 0 < cut.sum() < 16 and {len(t.turns) for t in trainer.last_trajectories} == {1}
        mask = (batches[0]["completion_mask"] * batches[0]["tool_mask"]).bool()
        returns[limit] = [sorted({round(x, 5) for x in batches[0]["returns"][kind][mask[kind]].tolist()})
                          for kind in (cut, ~cut)]  # fmt: skip
    assert returns == {"tokens": [[0.2], [0.5]], "turns": [[0.5], [0.5]]}


def test_bootstrapping_is_off_unless_it_is_asked_for(make):
    trainer = make(max_turns=1)
    trainer.critic.head.bias.data.fill_(0.3)
    batches = spy_on_batches(trainer)
    trainer.train()
    mask = (batches[0]["completion_mask"] * batches[0]["tool_mask"]).bool()
    assert {round(x, 5) for x in batches[0]["returns"][mask].tolist()} == {0.2, 0.5}
    with pytest.raises(InvalidConfigError, match=r"bootstrap_truncated.*context_fn"):
        make(bootstrap_truncated=True, kwargs={"context_fn": last_only})


def test_the_loss_is_the_policys_and_the_critics(make):
    """On the first pass the ratio is 1: the policy's loss is minus the mean advantage, which whitening makes 0."""
    trainer = make(
        value_coef=0.25, whiten_advantages=False, per_device_train_batch_size=8, gradient_accumulation_steps=2
    )
    spread(trainer.critic)
    batches = spy_on_batches(trainer)
    trainer.train()
    (batch,) = batches
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    errors = 0.5 * (batch["old_values"] - batch["returns"])[mask] ** 2
    expected = -batch["advantages"][mask].mean() + 0.25 * errors.mean()
    log = next(entry for entry in trainer.state.log_history if "value/loss" in entry)
    assert log["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert log["value/mean"] == pytest.approx(batch["old_values"][mask].mean().item(), rel=1e-5)
    assert log["value/return_std"] == pytest.approx(batch["returns"][mask].std().item(), rel=1e-5)
    missed = (batch["returns"] - batch["old_values"])[mask].var() / batch["returns"][mask].var()
    assert log["value/explained_variance"] == pytest.approx(1 - missed.item(), rel=1e-4)
    assert log["value/learning_rate"] == 1e-3 and log["policy/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert "frac_reward_zero_std" not in log
    algorithm = replace(PPO, kl_fn=lambda logps, ref, mask: 0.1 * mask, kl_coef=2.0)
    trainer = make(kwargs={"algorithm": algorithm}, value_coef=0.25)
    spread(trainer.critic)
    batches = spy_on_batches(trainer)
    trainer.train()
    assert batches[0]["advantages"][mask].mean().abs() < 1e-5
    assert batches[0]["advantages"][mask].std().item() == pytest.approx(1, abs=1e-4)
    log = next(entry for entry in trainer.state.log_history if "value/loss" in entry)
    assert log["loss"] == pytest.approx(
        0.25 * errors.mean().item() + 0.2, rel=1e-3
    )  # the coefficient times the KL, and no policy's


def test_kl_in_the_reward_is_paid_token_by_token(make):
    """A KL of 0.1 a token times 2, no value, no discount: each token's return lacks 0.2 for itself and all after."""
    trainer = make(
        kwargs={"algorithm": replace(PPO, kl_fn=lambda logps, ref, mask: 0.1 * mask, kl_coef=2.0, kl_in="reward")},
        gamma=1.0, lam=1.0, whiten_advantages=False,
    )  # fmt: skip
    batches = spy_on_batches(trainer)
    trainer.train()
    for number, episode in enumerate(trainer.last_trajectories):
        (tokens,), n = episode.rows, episode.rows[0].prompt_length
        columns = np.flatnonzero(tokens.mask) - n
        ends = {stop - 1 - n: turn.reward for (_, stop), turn in zip(tokens.spans, episode.turns, strict=True)}
        expected, left = [], 0.0
        for column in reversed(columns.tolist()):
            left += ends.get(column, 0.0) - 0.2
            expected.append(left)
        assert batches[0]["returns"][number, columns].tolist() == pytest.approx(expected[::-1], abs=1e-5)
    log = next(entry for entry in trainer.state.log_history if "kl" in entry)
    assert log["kl"] == pytest.approx(0.1)


def test_a_value_of_zero_is_a_bootstrap_too(make):
    trainer = make(max_turns=1, bootstrap_truncated=True)
    trainer.critic.head.weight.data.zero_()
    trainer.critic.head.bias.data.zero_()
    trainer.train()
    assert trainer.state.log_history[0]["value/bootstrap_mean"] == 0.0


def test_no_activation_is_computed_twice_without_a_gradient(make):
    trainer, seen = make(gradient_checkpointing=True), []
    score = trainer._get_per_token_logps_and_entropies
    newer = hasattr(trainer.model, "is_activation_checkpointing")  # releases of transformers differ in the name
    flag = "is_activation_checkpointing" if newer else "is_gradient_checkpointing"

    def watched(model, *args, **kwargs):
        seen.append((torch.is_grad_enabled(), getattr(model, flag)))
        return score(model, *args, **kwargs)

    trainer._get_per_token_logps_and_entropies = watched
    trainer.train()
    assert set(seen) == {(True, True), (False, False)}


def test_one_generation_serves_several_passes_in_minibatches(make):
    trainer = make(
        max_steps=5, num_iterations=2, steps_per_generation=2, per_device_train_batch_size=8, value_clip=0.01,
    )  # fmt: skip
    batches = spy_on_batches(trainer)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "value/loss" in entry]
    assert len(batches) == 2 and len(logs) == 5  # two steps of 8 rows, twice over, then the next generation
    assert logs[0]["clip_ratio/region_mean"] == 0 and logs[3]["clip_ratio/region_mean"] > 0
    assert logs[0]["value/clip_fraction"] == 0 and logs[3]["value/clip_fraction"] > 0
    assert logs[3]["policy/approx_kl"] > 0


def test_the_clip_that_is_logged_is_the_algorithms_own(make):
    wide = replace(PPO, loss_fn=partial(clipped_surrogate, clip_low=0.9, clip_high=9.0))
    settings = {"max_steps": 2, "num_iterations": 2, "learning_rate": 1e-2, "max_grad_norm": 0.0}
    for algorithm in (None, "ppo", wide):
        trainer = make(**settings, kwargs={"algorithm": algorithm})
        trainer.train()
        last = [entry for entry in trainer.state.log_history if "value/loss" in entry][-1]
        assert (last["clip_ratio/region_mean"] == 0) == (algorithm is wide)
        assert 1.0 < last["policy/ratio_max"] < 10.0


def test_in_the_warm_up_the_critic_learns_and_no_policy(make, tiny_folder):
    start = load_model(tiny_folder, dtype=torch.float32).state_dict()
    trainer = make(max_steps=2, value_warmup_steps=2, weight_decay=0.1)
    trainer.train()
    assert all(torch.equal(value, start[name]) for name, value in trainer.model.state_dict().items())
    assert trainer.critic.head.weight.abs().max() > 1e-4
    trainer = make(max_steps=2, value_warmup_steps=1, weight_decay=0.1)
    trainer.train()
    assert not all(torch.equal(value, start[name]) for name, value in trainer.model.state_dict().items())


def test_a_critic_that_only_reads_the_trunk_leaves_it_alone(make, tiny_folder):
    """With advantages of 0 nothing but the critic's loss moves the policy."""
    start = load_model(tiny_folder, dtype=torch.float32).state_dict()
    idle = replace(PPO, loss_fn=lambda logps, old, advantages, mask: 0.0 * logps * mask)
    nothing = {"kwargs": {"algorithm": idle}, "max_steps": 2}
    alone, both = make(value_trains_trunk=False, **nothing), make(**nothing)
    alone.train()
    both.train()
    assert all(torch.equal(value, start[name]) for name, value in alone.model.state_dict().items())
    assert not all(torch.equal(value, start[name]) for name, value in both.model.state_dict().items())


def test_failed_episodes_teach_nothing_and_break_nothing(make, tiny_folder):
    trainer = make("test/Say-v0", env_kwargs={"fail_every": 2}, max_steps=1)
    trainer._player.collector.max_retries = 0
    spread(trainer.critic)  # nobody says b: there is no reward, only what the critic takes for one
    batches = spy_on_batches(trainer)
    trainer.train()
    failed = torch.tensor([t.status == "errored" for t in trainer.last_trajectories])
    assert 0 < failed.sum() < 16
    assert batches[0]["advantages"][failed].abs().sum() == 0 and batches[0]["returns"][failed].abs().sum() == 0
    assert (batches[0]["advantages"][~failed].abs().sum(1) > 0).all()
    start = load_model(tiny_folder, dtype=torch.float32).state_dict()
    nothing = make("test/Say-v0", env_kwargs={"fail_always": True})
    nothing.train()
    assert all(torch.equal(value, start[name]) for name, value in nothing.model.state_dict().items())
    assert nothing.critic.head.weight.abs().max() == 0


def test_evaluation_plays_the_test_split_once_each_and_learns_nothing(make, tiny_folder):
    start = load_model(tiny_folder, dtype=torch.float32).state_dict()
    trainer = make(DENSE, num_eval_seeds=5, per_device_eval_batch_size=2)
    metrics = trainer.evaluate()
    assert {"eval_reward", "eval_loss", "eval_value/mean", "eval_value/loss"} <= metrics.keys()
    assert metrics["eval_env/episodes"] <= 2
    assert all(torch.equal(value, start[name]) for name, value in trainer.model.state_dict().items())


# --- Learning ---


@pytest.mark.parametrize("form", ["shared", "separate"])
def test_the_reward_rises(make, tiny_folder, form):
    """Two turns; seeds fixed in advance; one episode a prompt. The untrained model earns 1.3 of 2."""
    trainer = make(
        DENSE, critic=tiny_folder if form == "separate" else None, max_steps=24, max_turn_tokens=1, learning_rate=6e-3,
        per_device_train_batch_size=32, value_learning_rate=1e-2,
    )  # fmt: skip
    assert trainer.args.num_generations == 1
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert np.mean(rewards[:4]) < 1.4
    assert np.mean(rewards[-4:]) > 1.6


def test_wrong_bootstrapping_fails_where_ours_learns_to_stay(make):
    """What follows a limit of time counts: with it the policy learns to stay, and without it to leave."""
    shares = {}
    for bootstraps in (True, False):
        trainer = make(
            max_steps=20, per_device_train_batch_size=32, max_turn_tokens=1, learning_rate=6e-3, gamma=0.9,
            discount="turn", value_learning_rate=1e-2, value_clip=None, bootstrap_truncated=bootstraps,
        )  # fmt: skip
        trainer.train()
        stayed = [entry["env/success"] for entry in trainer.state.log_history if "env/success" in entry]
        shares[bootstraps] = np.mean(stayed[-3:])
    assert shares[True] > 0.6
    assert shares[False] < 0.3


def test_lora(make, tiny_folder):
    """The head reads the trunk below the adapter, and its loss trains the adapter."""
    adapter = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make(kwargs={"peft_config": adapter}, max_steps=2, learning_rate=1e-2)
    trainer.train()
    weights = dict(trainer.model.named_parameters())
    assert any("lora_B" in name and value.abs().max() > 0 for name, value in weights.items())
    for name, value in load_model(tiny_folder, dtype=torch.float32).named_parameters():
        same = [w for n, w in weights.items() if n.replace("base_model.model.", "").replace(".base_layer", "") == name]
        assert torch.equal(same[0], value)
    assert trainer.critic.head.weight.abs().max() > 1e-4


# --- Files ---


@pytest.mark.parametrize("form", ["shared", "separate"])
def test_four_steps_are_two_and_a_resume_and_two(make, tiny_folder, tmp_path, form):
    settings = {
        "critic": tiny_folder if form == "separate" else None, "save_strategy": "steps", "save_steps": 2,
        "lr_scheduler_type": "linear", "learning_rate": 3e-3,
    }  # fmt: skip
    whole = make(max_steps=4, output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make(max_steps=4, output_dir=str(tmp_path / "whole"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    halfway = load_file(tmp_path / "whole" / "checkpoint-2" / "critic" / "value_head.safetensors")
    assert not torch.equal(halfway["weight"], on_cpu(whole.critic.head.weight))
    for module in ("model", "critic"):
        expected = getattr(whole, module).state_dict()
        for name, value in getattr(resumed, module).state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    assert [t.messages for t in resumed.last_trajectories] == [t.messages for t in whole.last_trajectories]
    metrics = [[e["value/mean"] for e in t.state.log_history if "value/mean" in e][-1] for t in (whole, resumed)]
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-6)


def test_the_policys_files_and_weights_know_of_no_critic(make, tiny_folder, tmp_path):
    trainer = make()
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    names = set(load_file(tmp_path / "saved" / "model.safetensors"))
    assert names == set(load_file(f"{tiny_folder}/model.safetensors"))
    named = dict(trainer.model.named_parameters())  # what a weight sync hands to an engine
    assert named.keys() == dict(load_model(tiny_folder).named_parameters()).keys()
    assert json.loads((tmp_path / "saved" / "critic" / "critic.json").read_text())["trunk"] is None
    again = make(model=str(tmp_path / "saved"), critic=str(tmp_path / "saved" / "critic"))
    assert torch.equal(on_cpu(again.critic.head.weight), on_cpu(trainer.critic.head.weight))
    assert again.critic.head.weight.abs().max() > 0


# --- What is refused ---


def test_checkpoints_without_a_critic_are_refused(make, tiny_folder, config, tmp_path):
    grpo = EnvGRPOTrainer(
        tiny_folder, STAY, config(save_strategy="steps", save_steps=1, output_dir=str(tmp_path / "grpo"))
    )
    grpo.train()
    grpo.close()
    with pytest.raises(InvalidConfigError, match=r"GRPO.*PPO"):
        make(max_steps=2).train(resume_from_checkpoint=str(tmp_path / "grpo" / "checkpoint-1"))


def test_what_contradicts_itself_is_refused(make, config, tiny_folder, tmp_path):
    with pytest.raises(ValueError, match=r"kl_fn.*kl_coef=0"):
        replace(PPO, kl_fn=lambda logps, ref, mask: mask)
    with pytest.raises(InvalidConfigError, match="advantage_fn"):
        make(kwargs={"algorithm": replace(PPO, advantage_fn=lambda rewards, groups, turns: rewards)})
    with pytest.raises(InvalidConfigError, match="use EnvPPOConfig"):
        EnvPPOTrainer(tiny_folder, STAY, config())
    other = tiny_tokenizer(["the cat sat on the mat, the dog on the log"] * 3, vocab_size=290)
    tiny_model(other, hidden_size=32, n_heads=2, max_length=192).save_pretrained(tmp_path / "other")
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(InvalidConfigError, match="vocabulary"):
        make(critic=str(tmp_path / "other"))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"gamma": 1.1}, r"gamma=1.1;"),
        ({"lam": -0.1}, r"lam=-0.1"),
        ({"value_lam": 2}, r"value_lam=2;"),
        ({"discount": "step"}, r"discount='step';"),
        ({"value_clip": 0.0}, r"value_clip=0.0;"),
        ({"value_coef": 0.0}, r"value_coef=0.0;"),
        ({"fp16": True, "bf16": False}, "fp16=True;"),
        ({"per_device_train_batch_size": 1}, "per_device_train_batch_size=1;"),
        ({"num_train_seeds": 7}, "num_train_seeds=7;.* 8"),
        ({"num_generations": 3}, "num_generations"),
    ],
)
def test_settings_that_cannot_be_meant(changes, match):
    settings = {"output_dir": "x", "report_to": "none", "per_device_train_batch_size": 8, **changes}
    with pytest.raises(ValueError, match=match):
        EnvPPOConfig(**settings)


def test_one_sample_a_prompt_in_every_geometry():
    base = {"output_dir": "x", "report_to": "none", "save_strategy": "no"}
    for sizes, expected in [
        ({"per_device_train_batch_size": 5}, 5),
        ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3}, 3),
        ({"per_device_train_batch_size": 4, "generation_batch_size": 12}, 12),
        ({"per_device_train_batch_size": 3, "steps_per_generation": 5, "eval_strategy": "steps"}, 15),
    ]:
        config = EnvPPOConfig(**base, **sizes)
        assert (config.num_generations, config.generation_batch_size) == (1, expected)
    assert EnvPPOConfig(**base, per_device_train_batch_size=8, num_generations=4).num_generations == 4
