"""What a user may replace in GRPO by passing a function: rewards, shaping, filters, and the parts of an algorithm."""

import asyncio
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from device import spy_on_batches
from graph_algorithms import TREE
from trainings import COIN, DENSE, assert_same, distance, logged, trained

from llm_envs.errors import InvalidConfigError, JudgeError, RolloutFailedError, TimeLimitError
from llm_envs.rollout import EnvChoice
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.rollout.workers.remote import TOKEN_VARIABLE
from llm_envs.rollout.workers.server import EnvServer
from llm_envs.trainers import EnvGRPOTrainer, RewardSettings
from llm_envs.trainers.functional.advantages import group_normalised, leave_one_out
from llm_envs.trainers.functional.algorithm import DAPO, GRPO, PAIRWISE, PPO
from llm_envs.trainers.functional.kl import k1, k3, k3_weighted
from llm_envs.trainers.functional.turn_advantages import per_turn
from llm_envs.trainers.schedules import create_linear

pytestmark = pytest.mark.trainings

LEARNING = {"optim": "sgd", "learning_rate": 0.5, "max_steps": 2, "seed": 5}


@pytest.fixture
def make(tiny_folder, config, keep):
    def build(settings=None, env=DENSE, **hooks):
        return keep(EnvGRPOTrainer(tiny_folder, env, config(**LEARNING | (settings or {})), **hooks))

    return build


SPLIT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
RELATIVE = RewardSettings(aggregate="relative")
ON_POLICY_TOKENS = replace(GRPO, normalisation="token", kl_coef=0.5)


def test_the_weighted_k3_is_trls_corrected_kl(make):
    """TRL's own estimator has one importance weight, and so has `k3_weighted`: on-policy they are the same."""
    plain = trained(make({"beta": 0.5, **SPLIT}))
    assert_same(plain, trained(make(SPLIT, algorithm=replace(ON_POLICY_TOKENS, kl_fn=k3_weighted))))
    assert distance(plain, trained(make(SPLIT, algorithm=replace(ON_POLICY_TOKENS, kl_fn=k3)))) > 1e-5


@pytest.mark.smoke
def test_another_function_is_another_step(make):
    plain = trained(make(algorithm=ON_POLICY_TOKENS))
    for changes in ({"advantage_fn": leave_one_out}, {"kl_fn": k1}, {"advantage_fn": per_turn}):
        assert distance(plain, trained(make(algorithm=replace(ON_POLICY_TOKENS, **changes)))) > 1e-5


def test_environments_elsewhere_train_the_same_weights(make, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "a token for this test")
    plain = trained(make())
    assert_same(plain, trained(make({"workers": 2})), atol=1e-5)
    with EnvServer(2, b"a token for this test") as server:
        assert_same(plain, trained(make({"env_servers": [server.address]})), atol=1e-5)


def test_advantages_by_turn_are_on_the_turns_tokens(make):
    def second_turn_only(rewards_B, group_ids_B, turn_rewards_BK):
        assert rewards_B.tolist() == pytest.approx(turn_rewards_BK.nan_to_num().sum(1).tolist())
        assert sorted(group_ids_B.tolist()) == sorted([0, 1, 2, 3] * 4)
        return rewards_B.new_tensor([[0.0, 7.0]]).expand(len(rewards_B), 2)

    trainer = make({"max_steps": 1}, algorithm=replace(GRPO, advantage_fn=second_turn_only))
    kept = spy_on_batches(trainer)
    trainer.train()
    for row, trajectory in enumerate(trainer.last_trajectories):
        (tokens,) = trajectory.rows
        start, stop = tokens.spans[1]
        expected = torch.zeros(kept[0]["completion_ids"].shape[1])
        expected[start - tokens.prompt_length : stop - tokens.prompt_length] = 7.0
        assert torch.equal(kept[0]["advantages"][row], expected)


@pytest.mark.smoke
def test_kl_in_the_reward(make):
    """With a policy that is its reference the KL is 0; one step later it is not, and every advantage has its part."""
    seen, paid, steps = [], [], {"max_steps": 3}

    def seeing(*arguments):
        seen.append(arguments)
        return group_normalised(*arguments)

    algorithm = replace(GRPO, normalisation="token", kl_coef=0.3, kl_in="reward")
    trainer = make(steps, algorithm=replace(algorithm, advantage_fn=seeing))
    score = trainer._generate_and_score_completions

    def watched(inputs):
        output = score(inputs)
        paid.append(trainer.generation.episodes.rewards)
        return output

    trainer._generate_and_score_completions = watched
    trainer.train()
    kls = logged(trainer, "kl")
    assert kls[0] == pytest.approx(0.0, abs=1e-6) and abs(kls[-1]) > 1e-5
    assert seen[0][0].tolist() == pytest.approx(paid[0].tolist(), abs=1e-5)
    assert seen[2][0].tolist() != pytest.approx(paid[2].tolist(), abs=1e-6)
    assert seen[2][2].nan_to_num().sum(1).tolist() == pytest.approx(seen[2][0].tolist(), abs=1e-5)
    in_loss = replace(algorithm, kl_in="loss")
    assert distance(trained(make(steps, algorithm=algorithm)), trained(make(steps, algorithm=in_loss))) > 1e-6
    assert_same(trained(make(steps, algorithm=algorithm)), trained(make(steps, algorithm=replace(algorithm, kl_fn=k1))))


def test_rewards_of_ones_own_are_columns_and_count(make):
    def length(trajectory):
        return float(trajectory.n_sampled_tokens)

    def shorter(trajectory, cost):
        return [-cost] * len(trajectory.turns)

    trainer = make(
        {"max_steps": 1, "scale_rewards": "none"},
        rewards=RewardSettings(
            reward_fns={"length": length}, weights={"length": -0.125}, shaping_fns={"cost": partial(shorter, cost=0.25)}
        ),
    )
    kept = spy_on_batches(trainer)
    trainer.train()
    log = trainer.state.log_history[0]
    played = trainer.last_trajectories
    paid = torch.tensor([t.reward - 0.125 * t.n_sampled_tokens - 0.5 for t in played])
    expected = paid - paid.view(-1, 4).mean(1).repeat_interleave(4)
    torch.testing.assert_close(kept[0]["advantages"], expected, rtol=0, atol=1e-5)
    assert log["rewards/length/mean"] == pytest.approx(sum(t.n_sampled_tokens for t in played) / 16, rel=1e-3)
    assert log["rewards/shaping/cost/mean"] == pytest.approx(-0.5)
    assert log["rewards/reward/mean"] == pytest.approx(log["env/reward"], rel=1e-3)  # the task's stays what it is


def test_components_keep_their_names_in_both_of_trls_ways(make):
    for way in ("sum_then_normalize", "normalize_then_sum"):
        trainer = make(
            {"max_steps": 1, "multi_objective_aggregation": way, "env_kwargs": {"difficulty": "easy"}},
            env="llm/Countdown-v0",
            rewards=RewardSettings(components=True),
        )
        trainer.train()
        weights = trainer.generation.episodes.weights
        task = trainer.last_trajectories[0]
        assert weights.keys() - {"aggregate"} == task.components.keys() and len(weights) > 1
        log = trainer.state.log_history[0]
        assert all(f"rewards/{name}/mean" in log for name in weights)
        declared = trainer._task_weights
        assert sum(w * task.components[name] for name, w in declared.items()) == pytest.approx(task.reward)
        assert (weights == declared) == (way == "sum_then_normalize")


def test_what_a_judge_cannot_score_is_masked_and_counts_nowhere(make):
    def judge(trajectory):
        if trajectory.member == 1:
            raise JudgeError("away")
        return float(trajectory.member)

    trainer = make({"max_steps": 1}, rewards={"judge": judge})  # as RewardSettings(reward_fns=...)
    kept = spy_on_batches(trainer)
    trainer.train()
    for row, trajectory in enumerate(trainer.last_trajectories):
        assert trajectory.status == ("unscored" if trajectory.member == 1 else "ok")
        assert kept[0]["tool_mask"][row].any().item() == (trajectory.member != 1)
    assert kept[0]["advantages"].view(4, 4)[:, 1].tolist() == [0.0] * 4
    assert kept[0]["advantages"].view(4, 4).sum(1).abs().max() < 1e-4


def test_groups_without_spread_are_replaced(make):
    trainer = make(env=COIN, group_filter=create_spread_filter())
    trainer.train()
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories]).view(4, 4)
    assert (rewards.max(1).values > rewards.min(1).values).all()
    assert all(t.seed % 2 == 1 for t in trainer.last_trajectories)
    played = logged(trainer, "env/episodes")
    assert sum(played) > 2 * 16  # what was filtered counts in what is reported of the environment
    again = make(env=COIN, group_filter=create_spread_filter())
    assert_same(trained(again), trainer.model.state_dict(), atol=0.0)


def test_places_that_no_refill_fills_are_masked_and_are_no_failures(make):
    trainer = make({"max_refills": 2, "max_steps": 5}, env=COIN, group_filter=lambda group: False)
    trainer.train()
    assert trainer.state.global_step == 5 and trainer.learning.learned_nothing
    failing = EnvChoice("test/Say-v0", kwargs={"fail_always": True})  # failures count, though the filter drops them
    trainer = make({"max_refills": 2, "max_steps": 5}, env=failing, group_filter=create_spread_filter())
    with pytest.raises(RolloutFailedError, match=r"32 of 32 episodes.*server is gone.*3 generations.*the 2 steps"):
        trainer.train()
    half = make({"max_refills": 1, "max_steps": 1}, env=COIN, group_filter=create_spread_filter())
    half.train()
    kept = [t.status == "ok" for t in half.last_trajectories]
    assert 0 < sum(kept) < 16 and sum(kept) % 4 == 0


@pytest.mark.parametrize(
    ("settings", "hooks", "match"),
    [
        ({"max_refills": 0}, {}, "max_refills=0"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, {"algorithm": GRPO}, "='normalize_then_sum'"),
        ({"loss_type": "dr_grpo"}, {"algorithm": GRPO}, "loss_type='dr_grpo': the algorithm decides that"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, {"rewards": RELATIVE}, "both join the columns"),
        ({}, {"algorithm": PPO}, "'ppo' has no advantage_fn; only EnvPPOTrainer has a critic"),
        ({"max_steps": 1}, {"algorithm": DAPO, "rewards": RewardSettings(reward_fns={"overlong": len})}, "overlong"),
        ({"loss_type": "cispo"}, {}, "cuts every weight to 0.2. Set epsilon_high to 1 or more"),
        ({"loss_type": "cispo", "epsilon_high": 0.28}, {}, "epsilon_high=0.28: .* Set epsilon_high"),
    ],
)
def test_settings_that_contradict_one_another(make, settings, hooks, match):
    with pytest.raises(InvalidConfigError, match=match):
        make(settings, **hooks).train()


@pytest.mark.parametrize(("start", "end"), [(0.1, 0.0), (0.0, 0.1)])
def test_a_schedule_may_reach_zero_beside_a_kl_fn(make, start, end):
    trainer = make({"max_steps": 3}, algorithm=replace(GRPO, kl_fn=k3_weighted, kl_coef=create_linear(start, end)))
    trainer.train()
    coefficients = logged(trainer, "kl_coef")
    assert len(coefficients) == 3 and coefficients[0] == start and min(coefficients) == 0.0


def never_ends(*given):
    time.sleep(600.0)


async def waits_for_ever(messages):
    await asyncio.sleep(600.0)


@pytest.mark.parametrize(
    ("hooks", "what"),
    [
        ({"rewards": RewardSettings(reward_fns={"mine": never_ends})}, "reward function 'mine'.*episode 0 of group"),
        ({"rewards": RewardSettings(shaping_fns={"mine": never_ends})}, "shaping function 'mine'.*episode 0 of group"),
        ({"rewards": RewardSettings(aggregate=never_ends)}, "aggregate"),
        ({"trajectory_filter": never_ends}, "trajectory_filter.*episode 0 of group 'train"),
        ({"group_filter": never_ends}, "group_filter.*group 'train"),
        ({"algorithm": replace(PAIRWISE, pair_selector=never_ends)}, "pair_selector of 'pairwise'"),
        ({"algorithm": replace(GRPO, advantage_fn=never_ends)}, "advantage_fn of 'grpo'"),
        ({"algorithm": replace(TREE, branch_at=never_ends)}, "branch_at of 'tree'"),
        ({"context_fn": never_ends}, "context_fn.*messages, the last '"),
        ({"context_fn": waits_for_ever}, "context_fn.*messages, the last '"),
    ],
    ids=[
        *("reward", "shaping", "aggregate", "trajectory_filter", "group_filter", "pair_selector", "advantage_fn"),
        *("branch_at", "context_fn", "asynchronous context_fn"),
    ],
)
def test_a_function_that_never_ends_ends_the_run(make, hooks, what):
    trainer = make({"max_function_s": 0.2}, **hooks)
    with pytest.raises(TimeLimitError, match=rf"{what}.*"):
        trainer.train()
    assert trainer.state.global_step == 0
