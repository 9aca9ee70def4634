"""TextArena's games: every id plays, a fresh game an episode, isolated generators, opponents, seats."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llm_envs import evaluate
from llm_envs.bridges.ids import TEXTARENA, suite_ids
from llm_envs.bridges.textarena import ShownMovesOpponent, TextArenaEnv, TextArenaSeatsEnv
from llm_envs.errors import BridgeError, InvalidConfigError, ResetNeededError
from llm_envs.rollout import Collector, MultiplayerEnv
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import Message

pytestmark = pytest.mark.suites
RECORD = json.loads((Path(__file__).parents[3] / "proof/results/bridges/textarena.json").read_text())["measured"]


def play(env: Any, seed: int, moves: int = 20) -> list[tuple[str, float, bool]]:
    """Return the steps of an episode of shown moves."""
    agent, steps = ShownMovesOpponent(seed), []
    observation, _ = env.reset(seed=seed)
    steps.append((observation, 0.0, False))
    for _ in range(moves):
        observation, reward, terminated, *_ = env.step(agent.act(env, observation))
        steps.append((observation, reward, terminated))
        if terminated:
            break
    return steps


def test_the_ids_are_the_games_that_the_command_found() -> None:
    from textarena.envs.registration import ENV_REGISTRY

    games = {name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))}
    assert {game: result["players"] for game, result in RECORD.items() if "players" in result} == TEXTARENA
    assert set(RECORD) == games
    assert all(id in gym.registry for id in suite_ids()["textarena"])


@pytest.mark.parametrize("game", [game for game in TEXTARENA if game not in ("RushHour-v0", "Sudoku-v0-hard")])
def test_an_episode_is_one_game_and_repeats(game: str) -> None:
    env = TextArenaEnv(game=game)
    first, _, again = play(env, 5, moves=6), play(env, 6, moves=6), play(env, 5, moves=6)
    assert first == again
    assert all(-1 <= reward <= 1 for _, reward, _ in first)


def test_global_generators_are_left_as_they_were() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr, index]
    one, two = TextArenaEnv(game="2048-v0"), TextArenaEnv(game="2048-v0")
    apart = play(one, 3, moves=5)
    agents = ShownMovesOpponent(3), ShownMovesOpponent(4)
    seen = [one.reset(seed=3)[0], two.reset(seed=4)[0]]
    together = [seen[0]]
    for _ in range(len(apart) - 1):
        seen[0] = one.step(agents[0].act(one, seen[0]))[0]
        if two._is_playing:
            seen[1] = two.step(agents[1].act(two, seen[1]))[0]
        together.append(seen[0])
    assert together == [text for text, _, _ in apart]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[union-attr, index]


class Script:
    """Plays the given moves."""

    def __init__(self, moves: list[str]) -> None:
        self.moves = moves

    def for_episode(self, seed: int) -> Script:
        return Script(list(self.moves))

    def act(self, env: Any, observation: str) -> str:
        return self.moves.pop(0)


@pytest.mark.smoke
def test_tic_tac_toe_by_hand() -> None:
    env = TextArenaEnv(game="TicTacToe-v0", seat=0, opponent=Script(["[3]", "4"]))
    shown, _ = env.reset(seed=1)
    assert "As Player 0, you will be 'O'" in shown and "Player 1" not in shown
    shown, reward, terminated, _, _ = env.step("<think>The corner [8]?</think> [0]")
    assert "[Player 1] [3]" in shown and "[8]" in shown.splitlines()[-1] and not terminated
    assert env.step("1")[1:3] == (0.0, False)
    shown, reward, terminated, _, info = env.step("[2]")
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)
    assert shown.endswith("[GAME] Player 0 has won!")


def test_invalid_moves_lose_and_those_of_the_opponent_win_nothing() -> None:
    env = TextArenaEnv(game="TicTacToe-v0", seat=0, opponent=Script(["[0]", "[0]"]))
    env.reset(seed=1)
    assert "attempted an invalid move" in env.step("[9]")[0]
    assert env.step("[9]")[1:3] == (-1.0, True)
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("[0]")
    assert (reward, terminated, info["is_success"]) == (0.0, True, False)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "move", ["", "[", "[" * 3000, "[9" + "9" * 3000 + "]", "[-1]", "[a b c d]", "\ud800", "[0]" * 999]
)
@pytest.mark.parametrize("game", ["TicTacToe-v0", "Nim-v0", "Sokoban-v0", "Countdown-v0", "Tak-v0", "Mastermind-v0"])
def test_hostile_moves_never_win(game: str, move: str) -> None:
    env = TextArenaEnv(game=game)
    env.reset(seed=2)
    for _ in range(4):
        _, reward, terminated, _, info = env.step(move)
        assert reward < 1.0
        if terminated:
            assert info["is_success"] is False
            break


def test_a_model_as_the_opponent() -> None:
    class Model:
        seen: list[int] = []

        async def reply(self, messages: Any, tools: Any, params: Any) -> Message:
            Model.seen.append(len(messages))
            return Message("assistant", "<think>?</think>[" + "345"[len(messages) // 2] + "]")

    env = TextArenaEnv(game="TicTacToe-v0", seat=0, opponent=Model())
    env.reset(seed=1)
    rewards = [env.step(move)[1] for move in ("[0]", "[1]", "[8]")]
    assert (rewards, Model.seen) == ([0.0, 0.0, -1.0], [1, 3, 5])


def test_an_opponent_that_fails_is_no_bad_episode() -> None:
    env = TextArenaEnv(game="TicTacToe-v0", seat=0, opponent=Script([]))
    env.reset(seed=1)
    with pytest.raises(BridgeError, match="TicTacToe-v0: the opponent failed: IndexError"):
        env.step("[0]")


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidConfigError, match="textarena has no game 'Chess-v0'"):
        TextArenaEnv(game="Chess-v0")
    with pytest.raises(InvalidConfigError, match="2048-v0 has one player, so it takes no opponent"):
        TextArenaEnv(game="2048-v0", opponent=Script([]))
    with pytest.raises(InvalidConfigError, match="a text must be module:name of a policy"):
        TextArenaEnv(game="TicTacToe-v0", opponent="no_such_module:x")
    with pytest.raises(ResetNeededError):
        TextArenaSeatsEnv().step("[0]")


def test_all_seats_by_one_policy() -> None:
    codec = ByteCodec()
    policy = HashingTokenPolicy(codec, [f"[{cell}]" for cell in range(9)])
    with Collector(
        MultiplayerEnv(lambda **kwargs: TextArenaSeatsEnv("TicTacToe-v0", **kwargs)), policy, codec=codec
    ) as collector:
        first, second = collector.collect(2, group_size=6)
    assert [trajectory.metadata["seat"] for trajectory in (*first, *second)] == [0] * 6 + [1] * 6
    rewards = [(a.reward, b.reward) for a, b in zip(first, second, strict=True)]
    assert set(rewards) <= {(1.0, -1.0), (-1.0, 1.0), (0.0, 0.0), (-1.0, 0.0), (0.0, -1.0)}


@pytest.mark.smoke
def test_they_are_evaluated_as_any_task() -> None:
    result = evaluate("textarena/TicTacToe-v0", ShownMovesOpponent(), n=12, progress=False)
    assert 0.0 < result.success_rate < 1.0
