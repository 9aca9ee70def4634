"""Stock TRL: its own, unmodified GRPOTrainer trains on our environments, through both of its doors."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from functools import partial

import gymnasium as gym
import pytest
import torch
from datasets import concatenate_datasets
from device import on_cpu, rounding
from families import family_tokenizer
from tool_model import _cut
from trainings import logged
from transformers import AutoTokenizer
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from llm_envs.chat import ChatCodec
from llm_envs.data import sft_rows
from llm_envs.errors import InvalidConfigError, UnknownTaskError
from llm_envs.parsers import format_answer
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, EpisodeSpec, RolloutLimits
from llm_envs.spaces import TextSpace
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.episodes.items import episode_seed
from llm_envs.trainers.functional.algorithm import GIGPO
from llm_envs.trainers.stock_trl import (
    algorithm_advantages,
    component_reward,
    env_reward,
    environment_factory,
    episode_dataset,
    prompt_dataset,
    rollout_func,
)

pytestmark = pytest.mark.trainings

SAY = "test/Say-v0"
CALCULATOR = "llm/Calculator-v0"
N_PROBLEMS = 4


@pytest.fixture
def settings(configure):
    return partial(configure, GRPOConfig, num_generations=4, max_completion_length=80, seed=7)


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


class GuessPolicy:
    """Answers at once, and wrong."""

    def act(self, env, observation):
        return format_answer("100")


class AsTRLShowsIt(gym.Wrapper):
    """The environment with its tools' schemas as transformers writes them."""

    @property
    def tools(self):
        made = environment_factory(CALCULATOR)()
        return [get_json_schema(made.calculator)]


def play_problems(codec, policy, make):
    """Play the first problems of the run seed 7, as the trainer's rows have them."""
    with Collector(make, policy, codec=codec, progress=False) as collector:
        kwargs = {"split": "train"}
        (env_id,) = {choice.env_id for choice in collector.source.choices}
        specs = [
            [EpisodeSpec(env_id, kwargs, episode_seed(7, "train", index), str(index))] for index in range(N_PROBLEMS)
        ]
        return [t for group in collector.play(specs) for t in group]


@pytest.fixture(scope="session")
def warm_folder(tmp_path_factory):
    """A model that on four problems calls the calculator and answers rightly, or guesses: about as often."""

    def as_trl_shows_it(**kwargs):
        return AsTRLShowsIt(gym.make(CALCULATOR, **kwargs))

    plain = family_tokenizer("qwen3_instruct_2507")
    special = {token.content: token for token in plain.added_tokens_decoder.values()}
    games = [(policy, make) for policy in (OraclePolicy(), GuessPolicy()) for make in (CALCULATOR, as_trl_shows_it)]
    texts = [
        plain.decode(t.rows[0].ids) for policy, make in games for t in play_problems(ChatCodec(plain), policy, make)
    ]
    tokenizer = tiny_tokenizer([_cut(text, special) for text in texts], vocab_size=600, max_token_length=64)
    tokenizer.add_tokens([token for token in special.values() if token.special], special_tokens=True)
    tokenizer.add_tokens([token for token in special.values() if not token.special])
    tokenizer.eos_token, tokenizer.chat_template = plain.eos_token, plain.chat_template
    codec = ChatCodec(tokenizer)
    rows = sft_rows([t for policy, make in games for t in play_problems(codec, policy, make)])
    model = tiny_model(tokenizer, hidden_size=64, n_heads=2, max_length=512, seed=1).train()
    memorise(model, rows, steps=160)
    folder = tmp_path_factory.mktemp("warm")
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def memorise(model, rows, steps):
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    labels = torch.tensor([row["labels"] + [-100] * (width - len(row["labels"])) for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(steps):
        model(input_ids=ids, labels=labels).loss.backward()  # padded behind, and causal: no mask is needed
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(n_threads)


def check_that_the_reward_rises(trainer):
    """Of 64 episodes a step about half succeed at first; the standard error of the difference is 0.07."""
    rewards = logged(trainer, "reward")
    assert len(rewards) == 16 and rewards[0] < 0.7
    assert sum(rewards[-4:]) / 4 > rewards[0] + 0.15
    assert logged(trainer, "env/success")[-1] > logged(trainer, "env/success")[0]


RISING = {
    "max_steps": 16,
    "per_device_train_batch_size": 64,
    "num_generations": 16,
    "max_completion_length": 64,
    "learning_rate": 5e-4,
    "lr_scheduler_type": "linear",
}


@pytest.mark.slow
def test_the_reward_rises_through_rollout_func(warm_folder, settings):
    rollout = rollout_func(CALCULATOR, limits=RolloutLimits(max_turn_tokens=32))
    dataset = episode_dataset(CALCULATOR, N_PROBLEMS)
    trainer = GRPOTrainer(warm_folder, env_reward, settings(**RISING), dataset, rollout_func=rollout)
    trainer.train()
    rollout.close()
    check_that_the_reward_rises(trainer)


@pytest.mark.slow
def test_the_reward_rises_through_environment_factory(warm_folder, settings):
    trainer = GRPOTrainer(
        warm_folder,
        env_reward,
        settings(**RISING),
        prompt_dataset(CALCULATOR, N_PROBLEMS, seed=7),
        environment_factory=environment_factory(CALCULATOR),
    )
    trainer.train()
    check_that_the_reward_rises(trainer)
    assert logged(trainer, "tools/call_frequency")[-1] > logged(trainer, "tools/call_frequency")[0]


# rollout_func: one step each.


def require_the_same_step(folder, settings, config, trainer=GRPOTrainer, **options):
    """Train `EnvGRPOTrainer`, then TRL's trainer on the same episodes; return the episodes of both."""
    from llm_envs.trainers import EnvGRPOTrainer

    common = {"seed": 7, "max_completion_length": 64, "num_generations": 8, "optim": "sgd", "learning_rate": 0.1}
    args = config(max_turn_tokens=32, num_train_seeds=N_PROBLEMS, **common)
    ours = EnvGRPOTrainer(folder, CALCULATOR, args, **options)
    before = weights(ours)
    ours.train()
    played = ours.last_trajectories
    ours.close()
    rollout = rollout_func(CALCULATOR, limits=RolloutLimits(max_turn_tokens=32))
    dataset = episode_dataset(CALCULATOR, N_PROBLEMS)
    stock = trainer(folder, env_reward, settings(**common), dataset, rollout_func=rollout)
    stock.train()
    rollout.close()
    torch.testing.assert_close(weights(stock), weights(ours), atol=rounding(1e-6), rtol=0)
    assert (weights(stock) - before).abs().max() > 1e-4
    return rollout.last_trajectories, played


@pytest.mark.smoke
def test_rollout_func_takes_the_step_that_our_own_trainer_takes(warm_folder, settings, config):
    """The same episodes, tokens, masks and rewards: the parameters are equal afterwards."""
    stock, ours = require_the_same_step(warm_folder, settings, config)
    assert [(t.seed, t.messages) for t in stock] == [(t.seed, t.messages) for t in ours]
    assert len({t.reward for t in ours}) > 1 and max(len(t.turns) for t in ours) > 1


def test_advantages_by_state_in_trls_trainer_are_ours(warm_folder, settings, config):
    """The same step as `EnvGRPOTrainer`'s with the algorithm, and not TRL's own."""

    class GiGPOTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            generation = super()._generate_and_score_completions(inputs)
            found.append(algorithm_advantages(self.rollout_func.last_trajectories, GIGPO, generation))
            return generation | {"advantages": found[-1]}

    found = []
    require_the_same_step(warm_folder, settings, config, GiGPOTrainer, algorithm="gigpo")
    assert found[0].ndim == 2 and any(len(set(row.tolist()) - {0.0}) > 1 for row in found[0])  # turns differ


def test_rollout_func_gives_groups_of_one_seed_and_columns_for_rewards(warm_folder, settings):
    seen = {}

    def look(prompts, completions, **columns):
        seen.update(columns, prompts=prompts)
        return [0.0] * len(prompts)

    rollout = rollout_func(CALCULATOR, limits=RolloutLimits(max_turn_tokens=2, max_turns=2))
    rewards = [component_reward("malformed"), env_reward, look]
    args = settings(per_device_train_batch_size=8)
    trainer = GRPOTrainer(warm_folder, rewards, args, episode_dataset(CALCULATOR, 8), rollout_func=rollout)
    trainer.train()
    played = rollout.last_trajectories
    rollout.close()
    for start in (0, 4):
        members = played[start : start + 4]
        assert len({t.seed for t in members}) == 1 and [t.member for t in members] == [0, 1, 2, 3]
        index = int(seen["prompts"][start].partition("#")[2])
        assert members[0].seed == episode_seed(7, "train", index) and seen["index"][start] == index
        assert members[0].env_kwargs == {"split": "train"}
    # Two tokens a turn are no answer and no call: both turns are malformed.
    assert seen["trajectory_reward"] == pytest.approx([-0.2] * 8)
    assert seen["reward_components"] == [{"correct": 0.0, "malformed": 2.0}] * 8
    assert seen["n_turns"] == [2] * 8 and seen["stop_reason"] == ["max_turns"] * 8
    assert logged(trainer, "rewards/malformed/mean") == [2.0]
    assert logged(trainer, "rewards/env_reward/mean") == [pytest.approx(-0.2)]
    assert logged(trainer, "env/success") == [0.0] and logged(trainer, "env/turns") == [2.0]
    assert logged(trainer, "env/stop/max_turns") == [1.0] and logged(trainer, "env/stop/terminated") == [0.0]


def test_an_episode_that_fails_has_no_reward_and_no_token_in_the_loss(tiny_folder, settings):
    losses = {}

    class Watching(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            losses.update(on_cpu(output))
            return output

    rollout = rollout_func(SAY, env_kwargs={"fail_every": 2}, limits=RolloutLimits(max_turn_tokens=8))
    trainer = Watching(tiny_folder, env_reward, settings(), episode_dataset(SAY, 8), rollout_func=rollout)
    trainer.train()
    rollout.close()
    failed = torch.tensor([t.status == "errored" for t in rollout.last_trajectories])
    assert 0 < failed.sum() < 16
    assert losses["tool_mask"][failed].masked_fill(losses["completion_mask"][failed] == 0, 0).sum() == 0
    assert losses["advantages"][failed].abs().sum() == 0
    assert logged(trainer, "env/errored") == [failed.float().mean().item()]


def test_rollout_func_plays_the_test_split_in_evaluation(tiny_folder, settings):
    rollout = rollout_func(SAY, limits=RolloutLimits(max_turn_tokens=4))
    trainer = GRPOTrainer(
        tiny_folder,
        env_reward,
        settings(per_device_eval_batch_size=8),
        episode_dataset(SAY, 8),
        eval_dataset=episode_dataset(SAY, 2, split="test"),
        rollout_func=rollout,
    )
    assert "eval_reward" in trainer.evaluate()
    rollout.close()
    assert {t.env_kwargs["split"] for t in rollout.last_trajectories} == {"test"}
    assert len({t.seed for t in rollout.last_trajectories}) == 2


COLOCATED = """
import sys
from trl import GRPOConfig, GRPOTrainer
from llm_envs.rollout import RolloutLimits
from llm_envs.trainers.stock_trl import env_reward, episode_dataset, rollout_func

folder, env = sys.argv[1:]
args = GRPOConfig(
    output_dir=folder + "/out", max_steps=1, per_device_train_batch_size=4, num_generations=2, use_vllm=True,
    vllm_mode="colocate", vllm_max_model_length=640, vllm_gpu_memory_utilization=0.3, max_completion_length=200,
    bf16=False, gradient_checkpointing=False, logging_steps=1, save_strategy="no", report_to="none",
)
rollout = rollout_func(env, limits=RolloutLimits(max_turn_tokens=8, max_turns=2))
trainer = GRPOTrainer(folder, env_reward, args, episode_dataset(env, 4), rollout_func=rollout)
trainer._last_loaded_step = 0  # nothing to synchronise before the first step
trainer.train()
rollout.close()
assert [len(t.turns) for t in rollout.last_trajectories] == [2] * 4, rollout.last_trajectories
assert trainer.state.log_history[0]["sampling/sampling_logp_difference/max"] < 0.05, trainer.state.log_history
"""


@pytest.mark.vllm
def test_rollout_func_samples_with_the_engine_that_trl_has_colocated(tmp_path):
    """With the weights as loaded: on vLLM's CPU build TRL's own synchronisation of weights fails.

    In a process of its own, since TRL's engine leaves the process group and variables of a distributed run behind.
    """
    pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
    tokenizer = tiny_tokenizer()
    for part in (tiny_model(tokenizer, max_length=640), tokenizer):
        part.save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COLOCATED, str(tmp_path), CALCULATOR],
        env=os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_rollout_func_says_what_is_wrong(tiny_folder, settings):
    with pytest.raises(UnknownTaskError):
        rollout_func("llm/Calculater-v0")
    for dataset in (episode_dataset(CALCULATOR, 8), prompt_dataset(SAY, 8)):
        rollout = rollout_func(SAY)
        trainer = GRPOTrainer(tiny_folder, env_reward, settings(), dataset, rollout_func=rollout)
        with pytest.raises(InvalidConfigError, match="test/Say-v0"):
            trainer.train()
        rollout.close()
    rollout = rollout_func(SAY)
    args = settings(max_completion_length=256)
    trainer = GRPOTrainer(tiny_folder, env_reward, args, episode_dataset(SAY, 8), rollout_func=rollout)
    with pytest.raises(InvalidConfigError, match=r"max_completion_length=\d+"):
        trainer.train()
    with pytest.raises(InvalidConfigError, match=r"rollout_func=.*environment_factory="):
        env_reward(["p"], ["c"])


# environment_factory.


def test_a_tools_method_has_the_signature_and_text_of_its_schema():
    made = environment_factory(CALCULATOR)
    assert made.__name__ == "CalculatorEnv"
    public = [name for name, _ in inspect.getmembers(made, inspect.isfunction) if not name.startswith("_")]
    assert public == ["calculator", "reset"]
    assert get_json_schema(made().calculator)["function"] == {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "expression"}},
            "required": ["expression"],
        },
    }


class ShopEnv(gym.Env):
    """Has a tool with every kind of parameter; answers with what it was told, pays 1 a turn, and may break."""

    observation_space = action_space = TextSpace()
    schema = {
        "name": "order",
        "description": "Order something.\nQuickly.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "What."},
                "size": {"enum": ["s", "l"], "description": "How\nlarge."},
                "n": {"type": "integer", "default": 1},
                "notes": {"type": "array", "items": {"type": "string"}},
                "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "more": {"type": "object"},
                "either": {"type": ["integer", "string"]},
            },
            "required": ["name", "size"],
        },
    }
    tools = [{"type": "function", "function": schema}]
    system_prompt = "You shop."

    def __init__(self, split="train", max_turns=3, breaks=False):
        self.max_turns, self.breaks = max_turns, breaks

    def reset(self, *, seed=None, options=None):
        self.said = []
        return f"Shop {seed}", {}

    def step(self, action):
        if self.breaks:
            raise ConnectionError("closed")
        self.said.append(action)
        ended = action == "done"
        info = {"is_success": ended, "reward_components": {"turns": 1.0}}
        return f"{len(self.said)}: {action}", 1.0, ended, len(self.said) == self.max_turns, info


gym.register("test/Shop-v0", ShopEnv)
SHOP = "test/Shop-v0"


def test_schemas_of_every_kind_become_signatures():
    assert get_json_schema(environment_factory(SHOP)().order)["function"] == {
        "name": "order",
        "description": "Order something.\nQuickly.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "What."},
                "size": {"type": "string", "enum": ["s", "l"], "description": "How large."},
                "n": {"type": "integer", "description": "n"},
                "notes": {"type": "array", "items": {"type": "string"}, "description": "notes"},
                "price": {"type": "number", "nullable": True, "description": "price"},
                "more": {"type": "object", "description": "more"},
                "either": {"type": ["integer", "string"], "description": "either"},
            },
            "required": ["name", "size"],
        },
    }


def begun(env=SHOP, **env_kwargs):
    environment = environment_factory(env, env_kwargs=env_kwargs)()
    row = prompt_dataset(env, 2, seed=7, env_kwargs=env_kwargs)[1]
    assert environment.reset(**row) is None
    return environment, row


def said(text):
    return {"role": "assistant", "content": text}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}


def test_calls_are_stepped_and_the_last_words_at_the_end():
    environment, row = begun()
    seed = episode_seed(7, "train", 1)
    assert row["prompt"] == [{"role": "system", "content": "You shop."}, {"role": "user", "content": f"Shop {seed}"}]
    assert (row["index"], row["split"], row["seed"]) == (1, "train", seed)
    answer = environment.order(name="tea", size="s")
    assert answer == '1: <tool_call>\n{"name": "order", "arguments": {"name": "tea", "size": "s"}}\n</tool_call>'
    completion = [CALL, {"role": "tool", "content": answer}, said("done")]
    columns = {"environments": [environment]}
    assert env_reward([row["prompt"]], [completion], **columns) == [2.0]
    assert component_reward("turns")([row["prompt"]], [completion], **columns) == [2.0]  # not stepped twice
    assert component_reward("other")([row["prompt"]], [completion], **columns) == [None]
    assert environment._episode.is_success and environment._episode.stop_reason == "terminated"
    environment.reset(**row)
    assert env_reward([row["prompt"]], [[CALL]], **columns) == [0.0]  # a call that TRL did not run any more


def test_an_episode_that_is_over_pays_nothing_more():
    environment, row = begun(max_turns=1)
    environment.order(name="tea", size="s")
    assert environment.order(name="tea", size="s") == "Error: the episode is over."
    assert env_reward([row["prompt"]], [[said("done")]], environments=[environment]) == [1.0]
    assert environment._episode.stop_reason == "env_truncated"


def test_a_failure_of_the_environment_is_no_zero():
    environment, row = begun(breaks=True)
    assert environment.order(name="tea", size="s") == "Error: closed"
    metrics = {}
    rewards = env_reward(
        [row["prompt"]], [[said("done")]], environments=[environment], log_metric=lambda k, v: metrics.update({k: v})
    )
    assert rewards == [None] and metrics == {"env/errored": 1.0}


def test_games_act_and_single_turns_have_no_tools():
    game, row = begun("llm/GuessNumber-v0")
    assert get_json_schema(type(game)().act)["function"]["parameters"]["required"] == ["text"]
    assert game.act(text=format_answer("1")) != game.act(text="no number")
    assert game._episode.n_turns == 2
    with pytest.raises(TypeError):
        game.act(words="5")
    single, row = begun("llm/Arithmetic-v0")
    names = [name for name, _ in inspect.getmembers(type(single), inspect.isfunction) if not name.startswith("_")]
    assert names == ["reset"]
    assert env_reward([row["prompt"]], [[said("no answer")]], environments=[single]) == [-0.1]


def test_environment_factory_says_what_is_wrong():
    environment = environment_factory(CALCULATOR)()
    with pytest.raises(InvalidConfigError, match="train_dataset=prompt_dataset"):
        environment.reset(**episode_dataset(CALCULATOR, 1)[0])
    with pytest.raises(InvalidConfigError, match="env_kwargs"):
        environment.reset(**prompt_dataset(CALCULATOR, 1, env_kwargs={"difficulty": "hard"})[0])
    with pytest.raises(InvalidConfigError, match=r"name: environment_factory\(env\)"):
        environment_factory([CALCULATOR, SHOP])

    class Named(ShopEnv):
        tools = [{"type": "function", "function": ShopEnv.schema | {"name": "reset"}}]

    with pytest.raises(InvalidConfigError, match="'reset'"):
        environment_factory(Named)


def test_trls_prompt_is_ours_but_for_the_tools_descriptions(warm_folder):
    """Token for token, once the descriptions that transformers insists on are left out."""
    tokenizer = AutoTokenizer.from_pretrained(warm_folder)
    row = prompt_dataset(CALCULATOR, 1, seed=7)[0]
    theirs = tokenizer.apply_chat_template(
        row["prompt"], tools=[environment_factory(CALCULATOR)().calculator], add_generation_prompt=True, tokenize=False
    )
    ours = play_problems(ChatCodec(tokenizer), OraclePolicy(), CALCULATOR)[0].rows[0]
    assert theirs.replace(', "description": "expression"', "") == tokenizer.decode(ours.ids[: ours.prompt_length])


@pytest.mark.smoke
def test_environment_factory_trains_on_several_environments_and_splits(warm_folder, settings):
    """One step on a mixture, by TRL's own means; the rows of a group play one seed."""
    factories = {"calculator": environment_factory(CALCULATOR), "numbers": environment_factory("llm/GuessNumber-v0")}
    parts = [
        prompt_dataset(env, 4).add_column("environment", [name] * 4)
        for name, env in (("calculator", CALCULATOR), ("numbers", "llm/GuessNumber-v0"))
    ]
    args = settings(max_completion_length=40)
    trainer = GRPOTrainer(warm_folder, env_reward, args, concatenate_datasets(parts), environment_factory=factories)
    trainer.train()
    assert len(logged(trainer, "reward")) == 1 and logged(trainer, "env/errored") == [0.0]
    openings = [environment._episode._env.unwrapped.problem for environment in trainer.environments]
    assert [openings[i] == openings[i - i % 4] for i in range(16)] == [True] * 16
