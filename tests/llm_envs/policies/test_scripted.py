"""Scripted policies, and what the injectors do to any policy."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.errors import ContextFullError, InvalidConfigError
from llm_envs.parsers import parse_reply
from llm_envs.policies import ConstantPolicy, NoisePolicy, OraclePolicy, RandomPolicy, ReplayPolicy, with_latency
from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy, TokenPolicy, UpdatablePolicy
from llm_envs.policies.scripted import before_turn
from llm_envs.registration import task_ids
from llm_envs.rollout import Collector, EpisodeSpec, play_episode
from llm_envs.tasks.games.two_seat_tic_tac_toe import TwoSeatTicTacToe
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.types import FinishReason, Message, SamplingParams, Trajectory

CODEC = ByteCodec()


def play(policy: Any, **settings: Any) -> Trajectory:
    return asyncio.run(play_episode(NumbersEnv(3), EpisodeSpec("Numbers", seed=1), policy, **settings))


def test_oracle() -> None:
    assert play(OraclePolicy()).is_success is True


def test_an_environment_without_an_oracle_says_so() -> None:
    class Mute(NumbersEnv):
        oracle = None  # type: ignore[assignment]

    trajectory = asyncio.run(play_episode(Mute(), EpisodeSpec("Mute"), OraclePolicy()))
    assert trajectory.error is not None and "has no oracle" in trajectory.error.message


def test_constant() -> None:
    assert [m.content for m in play(ConstantPolicy("hm")).messages if m.role == "assistant"] == ["hm"] * 3


def test_random_draws_from_its_choices_or_from_printable_text() -> None:
    with_choices = {play(RandomPolicy(["a", "b"])).messages[2].content for _ in range(2)}
    assert len(with_choices) == 1 and with_choices <= {"a", "b"}
    policy, env = RandomPolicy(seed=3), NumbersEnv()
    texts = [policy.act(env, "") for _ in range(300)]
    assert max(map(len, texts)) == 20 and "" in texts
    with pytest.raises(InvalidConfigError, match="choices"):
        RandomPolicy([])


def test_a_replay_gives_the_same_episode() -> None:
    original = play(RandomPolicy([str(digit) for digit in range(10)]))
    assert play(ReplayPolicy.of(original)) == original


def test_a_replay_starts_anew_in_every_episode() -> None:
    collector = Collector(NumbersEnv, ReplayPolicy(["1", "2"]), env_kwargs={"n_turns": 2})
    for group in collector.collect(2, 3):
        for trajectory in group:
            assert [m.content for m in trajectory.messages if m.role == "assistant"] == ["1", "2"]


def test_injection_keeps_the_kind_of_policy() -> None:
    class Chat:
        async def reply(self, messages: Any, tools: Any, params: Any) -> Message:
            return Message("assistant", "x")

    def kinds(policy: Any) -> list[bool]:
        return [isinstance(policy, kind) for kind in (TokenPolicy, ChatPolicy, EnvPolicy)]

    assert kinds(with_latency(HashingTokenPolicy(CODEC, ["1"]), 1)) == [True, False, False]
    assert kinds(with_latency(Chat(), 1)) == [False, True, False]
    assert kinds(with_latency(OraclePolicy(), 1)) == [False, False, True]
    assert isinstance(with_latency(RandomPolicy(), 1), EpisodicPolicy)
    assert play(with_latency(Chat(), 0.001)).messages[2].content == "x"


def test_latency_is_added_and_changes_nothing_else() -> None:
    started = time.perf_counter()
    slow = play(with_latency(RandomPolicy(["1", "2"]), 0.02))
    assert time.perf_counter() - started >= 0.06
    assert slow == play(RandomPolicy(["1", "2"]))


def test_failures_strike_the_given_share_and_the_same_turns_again() -> None:
    def failed(rate: float) -> list[bool]:
        policy = with_failures(HashingTokenPolicy(CODEC, ["1"]), rate)
        collector = Collector(NumbersEnv, policy, codec=CODEC, max_retries=0)
        return [t.status == "errored" for group in collector.collect(200) for t in group]

    assert failed(0.25) == failed(0.25)
    assert 30 <= sum(failed(0.25)) <= 70
    assert not any(failed(0.0)) and all(failed(1.0))


def test_a_hook_sees_the_same_stream_in_every_run_of_an_episode() -> None:
    drawn: list[list[float]] = [[], []]
    for run in drawn:

        async def draw(random: Random, run: list[float] = run) -> None:
            run.append(random.random())

        play(before_turn(OraclePolicy(), draw))
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 3


class TestHashingTokenPolicy:
    def sample(self, policy: HashingTokenPolicy, seed: int = 0, budget: int = 50, prompt: int = 3) -> Any:
        params = SamplingParams(max_new_tokens=budget)
        return asyncio.run(policy.sample(np.arange(prompt, dtype=np.int32), params, seed=seed, session="s"))

    def test_seed_and_prompt_decide(self) -> None:
        policy = HashingTokenPolicy(CODEC, [str(n) for n in range(100)])
        first, again, other = self.sample(policy), self.sample(policy), self.sample(policy, seed=1)
        assert first.token_ids.tolist() == again.token_ids.tolist() and first.logps.tolist() == again.logps.tolist()
        assert first.token_ids.tolist() != other.token_ids.tolist()
        assert first.token_ids.tolist() != self.sample(policy, prompt=4).token_ids.tolist()
        assert (first.logps < 0).all()

    def test_budgets(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["abcdef"], context_length=8)
        cut = self.sample(policy)
        assert CODEC.decode_reply(cut.token_ids) == "abcde" and cut.finish_reason is FinishReason.LENGTH
        assert len(self.sample(policy, budget=2).token_ids) == 2
        whole = self.sample(policy, prompt=1)
        assert whole.finish_reason is FinishReason.STOP and whole.token_ids[-1] == CODEC.end_of_turn_id
        with pytest.raises(ContextFullError, match="8 tokens"):
            self.sample(policy, prompt=8)

    def test_versions(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["1"])
        assert isinstance(policy, UpdatablePolicy)
        policy.update_weights([], 3)
        assert self.sample(policy).weight_version == 3


def test_random_draws_legal_answers_where_an_environment_names_them() -> None:
    """Play episodes of every game that does: no reply is malformed."""
    names = set()
    for env_id in task_ids():
        if "tasks.games" not in str(gym.spec(env_id).entry_point):
            continue
        for level in gym.make(env_id).unwrapped.difficulties:
            env = gym.make(env_id, difficulty=level)
            for seed in range(5):
                observation, _ = env.reset(seed=seed)
                if not env.unwrapped.legal_answers():
                    continue
                names.add(env_id)
                policy, is_over, said = RandomPolicy(seed=seed), False, []
                while not is_over and len(said) < 30:
                    legal = env.unwrapped.legal_answers()
                    said.append(policy.act(env, observation))
                    assert said[-1] in [env.unwrapped.write_answer(answer) for answer in legal]
                    assert len(set(legal)) == len(legal)
                    observation, _, terminated, truncated, info = env.step(said[-1])
                    assert info["reward_components"]["malformed"] == 0, (env_id, level, said, observation)
                    is_over = terminated or truncated
    games = "Blackjack CliffWalking ConnectFour FrozenLake Hangman Maze Sokoban Taxi TicTacToe TowerOfHanoi"
    assert names == {f"llm/{name}-v0" for name in games.split()}


def test_random_plays_legal_answers_in_workers_and_in_games_of_seats() -> None:
    with Collector("llm/TicTacToe-v0", RandomPolicy(), workers=1, progress=False) as collector:
        for group in collector.collect(3):
            assert all(turn.components["malformed"] == 0 for turn in group.trajectories[0].turns)
    env = TwoSeatTicTacToe()
    env.reset(seed=0)
    assert parse_reply(RandomPolicy().act(env, "")).answer in env.legal_actions(env.state)


def test_without_legal_answers_random_is_noise_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Unnamed(NumbersEnv):
        pass

    policies = RandomPolicy(seed=3), NoisePolicy(seed=3)
    texts = [[policy.act(Unnamed(), "") for _ in range(5)] for policy in policies]
    assert texts[0] == texts[1] and caplog.text.count("Unnamed") == 1 and "noise" in caplog.text
    assert play(NoisePolicy()) == play(NoisePolicy())
