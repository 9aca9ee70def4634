"""TextArena's games for one or two players as environments: `gym.make("textarena/TicTacToe-v0")`.

Departures from the package:

1. Every episode has a new game. The package's default wrapper keeps what players saw, from one episode to the next.
2. A turn shows what is new since the player's last turn, as a conversation has it. The wrapper repeats everything.
3. Games draw from Python's and numpy's global generators. Each game gets separate states, and yours are put back.
4. A game that ends because the opponent's moves are invalid scores 0: the package counts it as a win.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, cast

import gymnasium as gym
import numpy as np

from llm_envs.bridges.ids import TEXTARENA
from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import (
    BridgeError,
    InvalidActionError,
    InvalidConfigError,
    NoOracleError,
    ResetNeededError,
    extra_needed,
)
from llm_envs.parsers.answers import split_thinking
from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy
from llm_envs.problems import SPLITS, check_choice
from llm_envs.spaces import TextSpace, encodable
from llm_envs.tools.background_loop import LimitReached, wait_for_outcome
from llm_envs.types import Message, SamplingParams

__all__ = ["Game", "ShownMovesOpponent", "TextArenaEnv", "TextArenaSeatsEnv"]

_MAX_MOVE_CHARACTERS = 4_000
"""Longer moves are cut: some games search them with regular expressions."""
_MAX_OPPONENT_MOVES = 200
"""In a row: more is a game that waits for a valid move forever."""
_CRASHED = "[GAME] The game cannot take the last move. It is lost."
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_global_generators = threading.Lock()


class Game:
    """One game: the package's, without its wrappers, with its own states of the global random generators.

    Args:
        name: TextArena's id.
        seed: Decides the game.

    Raises:
        MissingExtraError: If the package is not installed.
    """

    def __init__(self, name: str, seed: int) -> None:
        registry = _import_registry(name)
        wrappers = [wrapper.__name__ for wrapper in registry.ENV_REGISTRY[name].default_wrappers or ()]
        self._adds_brackets = "ActionFormattingWrapper" in wrappers
        self._random = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        self.n_seats = TEXTARENA[name]
        self.is_over = False
        with self._own_generators():
            self._env = registry.make(f"{name}-raw")
            self._env.reset(num_players=self.n_seats, seed=seed)

    @property
    def seat(self) -> int:
        """Whose turn it is."""
        return int(self._env.state.current_player_id)

    def observe(self) -> str:
        """Return what is new for the seat whose turn it is."""
        with self._own_generators():
            seat, seen = self._env.get_observation()
        return self._shown(seen, seat)

    def move(self, text: str) -> None:
        """Play a move of the seat whose turn it is. A game may raise whatever it likes on a hostile one."""
        text = encodable(split_thinking(text).content.strip())[:_MAX_MOVE_CHARACTERS]
        if self._adds_brackets and "[" not in text and "]" not in text:
            text = f"[{text}]"
        with self._own_generators():
            self.is_over, _ = self._env.step(text)

    def result(self, seat: int) -> tuple[float, str]:
        """Return a seat's reward at the end, from -1 to 1, and what it has not seen.

        If invalid moves of another seat end the game, the reward is 0 at most.
        """
        rewards, infos = self._env.close()
        reward = _number((rewards or {}).get(seat, 0.0))
        if any(infos.get(other, {}).get("invalid_move") for other in range(self.n_seats) if other != seat):
            reward = min(reward, 0.0)
        reason = infos.get(seat, {}).get("reason")
        shown = self._shown(self._env.state.observations[seat], seat)
        return reward, "\n".join(filter(None, [shown, f"[GAME] {reason}" if reason else ""])) or "[GAME] It is over."

    def _shown(self, seen: Any, seat: int) -> str:
        """Return messages as text, without the player's own moves."""
        if isinstance(seen, str):
            return seen
        names = self._env.state.role_mapping
        lines = [(names.get(sender, f"Player {sender}"), text) for sender, text, _ in seen if sender != seat]
        return "\n".join(f"[{name}] {text}" for name, text in lines)

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """Give the game its own state of the global random generators."""
        with _global_generators:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._random[0])
            np.random.set_state(self._random[1])
            try:
                with redirect_stdout(sys.stderr):  # some games print
                    yield
            finally:
                self._random = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)


class ShownMovesOpponent:
    """Plays one of the moves in square brackets that the game last showed, at random."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._moves: list[str] = []

    def for_episode(self, seed: int) -> ShownMovesOpponent:
        """Return an opponent with its own random stream."""
        return ShownMovesOpponent(seed)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Return a move."""
        lines = [_MOVE.findall(part) for part in observation.split("\n[GAME]")]
        self._moves = next((moves for moves in reversed(lines) if moves), self._moves)
        return self._random.choice(self._moves or ["[0]"])


class TextArenaEnv(TextEnv):
    """Play a game of TextArena, by yourself or against an opponent.

    ## Description
    Each episode is one game, by the rules and texts of the package `textarena` (Guertler et al., arXiv 2504.11442).
    Games that need a network, a key or downloaded words are not here. Teaches what the game asks for.

    ## Observation
    The rules, and what the game has said since the agent's last turn.

    ## Action
    The move, as the rules say: mostly in square brackets, `[4]`. Brackets are added to a move without them, where the
    package does so. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `reward` (weight 1): at the end of the game the package's reward, from -1 (lost, or repeated invalid moves) to 1
    (won); parts of it for progress, in some games for one player. 0 if the opponent's invalid moves end the game.

    ## Episode End
    Terminates with the game. Truncated after `max_turns` moves of the agent.

    ## Arguments
    - `game`: TextArena's id; the ids have it.
    - `split`: "train" or "test", by a hash of the seed: games that begin alike are in both.
    - `difficulty`: "default".
    - `max_turns`: 200 by default; most games end earlier.
    - `seat`: 0 or 1; None: drawn in every episode.
    - `opponent`: an env policy or a chat policy, or "module:name" of one or of a function that makes it.
      `ShownMovesOpponent()` by default: it is weak, and its moves are often invalid where the game shows none.
    - `opponent_timeout_s`: seconds that a move of a chat policy may take; 60 by default.
    - `reset(options={"problem": {"game_seed": 5, "seat": 0}})` plays the game of a seed.

    ## Version History
    - v0: first version, TextArena 0.7.
    """

    difficulties = {"default": Difficulty("the game as TextArena registers it", chance_rate=1.0)}
    default_difficulty = "default"
    default_max_turns = 200
    problem_fields = {"game_seed": int, "seat": int}
    reward_weights = {"reward": 1.0}
    min_return = -1.0
    oracle_is_exact = False
    has_natural_form = False
    slow_reset_reason = "Some games search for a puzzle."

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        game: str = "TicTacToe-v0",
        seat: int | None = None,
        opponent: EnvPolicy | ChatPolicy | str | None = None,
        opponent_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        check_choice("textarena", "game", game, TEXTARENA)
        self.game, self.n_players = game, TEXTARENA[game]
        check_choice("textarena", "seat", seat, (None, *range(self.n_players)))
        if opponent is not None and self.n_players == 1:
            raise InvalidConfigError(f"textarena: {game} has one player, so it takes no opponent.")
        _import_registry(game)
        self._seat, self._timeout_s = seat, opponent_timeout_s
        self._policy = _named(opponent) if isinstance(opponent, str) else opponent or ShownMovesOpponent()
        self.blocking = isinstance(self._policy, ChatPolicy)

    def generate(self) -> dict[str, Any]:
        """Draw a game and a seat."""
        seat = int(self.np_random.integers(self.n_players))
        return {
            "game_seed": int(self.np_random.integers(2**31)),
            "seat": seat if self._seat is None else self._seat,
        }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a seat or a seed that does not exist."""
        if not 0 <= problem["seat"] < self.n_players or not 0 <= problem["game_seed"] < 2**32:
            raise InvalidActionError(f"the seat must be below {self.n_players}, and the seed below 2**32")

    def begin(self) -> None:
        """Make the game, and let the opponent move if it begins."""
        seed, self._me = self.problem["game_seed"], self.problem["seat"]
        policy: Any = self._policy
        self._opponent = cast("EpisodicPolicy", policy).for_episode(seed) if hasattr(policy, "for_episode") else policy
        self._talk: list[Message] = []
        self._played = Game(self.game, seed)
        self._wait_for_turn()

    def prompt(self) -> str:
        """Return the rules, the first position and the limit of moves."""
        if self._played.is_over:
            return self._played.result(self._me)[1]
        return f"{self._played.observe()}\n\nYou have at most {self.max_turns} moves."

    def next_action(self) -> str:
        """Raise: the games have no oracle."""
        raise NoOracleError(f"{self.game} has no oracle.")

    def play(self, action: str) -> Outcome:
        """Make the agent's move and the opponent's."""
        played = self._played
        if not played.is_over:
            try:
                played.move(action)
            except Exception:  # games were not written against hostile moves
                return Outcome(_CRASHED, {"reward": -1.0}, True, False)
            self._wait_for_turn()
        if not played.is_over:
            return Outcome(played.observe(), {"reward": 0.0})
        reward, observation = played.result(self._me)
        return Outcome(observation, {"reward": reward}, True, reward >= 1.0)

    def _wait_for_turn(self) -> None:
        """Let the opponent move until it is the agent's turn or the end."""
        for _ in range(_MAX_OPPONENT_MOVES):
            if self._played.is_over or self._played.seat == self._me:
                return
            move = self._ask_opponent(self._played.observe())
            try:
                self._played.move(move)
            except Exception as error:
                raise BridgeError(f"{self.game}: the opponent's move {move!r:.80} crashes the game: {error}") from error
        raise BridgeError(f"{self.game}: the opponent had {_MAX_OPPONENT_MOVES} moves in a row.")

    def _ask_opponent(self, observation: str) -> str:
        """Return the opponent's move; raise `BridgeError` if it fails: the episode then has failed."""
        self._talk.append(Message("user", observation))
        try:
            if isinstance(self._opponent, EnvPolicy):
                value: Any = self._opponent.act(self, observation)
            else:
                params = SamplingParams(seed=self.problem["game_seed"] + len(self._talk))
                value = _reply(cast("ChatPolicy", self._opponent), tuple(self._talk), params)
            if inspect.isawaitable(value):
                value = wait_for_outcome(value, self._timeout_s)
        except LimitReached as error:
            raise BridgeError(f"{self.game}: the opponent took longer than {self._timeout_s:g} s.") from error
        except Exception as error:
            raise BridgeError(f"{self.game}: the opponent failed: {type(error).__name__}: {error}") from error
        self._talk.append(Message("assistant", str(value)))
        return str(value)


class TextArenaSeatsEnv(gym.Env[str, str]):
    """A game of TextArena with all its seats, for `llm_envs.rollout.MultiplayerEnv`: self-play, or any opponent.

    Each step is the move of the seat whose turn it is. A move that crashes the game loses it.

    Args:
        game: TextArena's id of a game for two.
        split: "train" or "test": games of different seeds.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, game: str = "TicTacToe-v0", split: str = "train") -> None:
        check_choice("textarena", "game", game, [name for name, n_players in TEXTARENA.items() if n_players == 2])
        check_choice("textarena", "split", split, SPLITS)
        _import_registry(game)
        self.game, self.split, self.n_seats = game, split, 2
        self.observation_space, self.action_space = TextSpace(), TextSpace()
        self._played: Game | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a game; `options={"problem": {"game_seed": 5}}` begins the game of a seed."""
        super().reset(seed=seed)
        drawn = 2 * int(self.np_random.integers(2**30)) + (self.split == "test")  # odd seeds are for the test
        self._played = Game(self.game, options["problem"]["game_seed"] if options else drawn)
        return self._played.observe(), {"seat": self._played.seat}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play the move of the seat whose turn it is; its own reward is returned.

        Raises:
            ResetNeededError: If no game is running.
        """
        played = self._played
        if played is None:
            raise ResetNeededError("TextArenaSeatsEnv.step was called outside a game: call reset() first.")
        seat = played.seat
        try:
            played.move(action)
        except Exception:
            return self._end(seat, [(-1.0, _CRASHED) if each == seat else (0.0, _CRASHED) for each in (0, 1)])
        if played.is_over:
            return self._end(seat, [played.result(each) for each in (0, 1)])
        return played.observe(), 0.0, False, False, {"seat": played.seat, "rewards": [0.0, 0.0]}

    def _end(self, seat: int, results: list[tuple[float, str]]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._played = None
        rewards, observations = [reward for reward, _ in results], [text for _, text in results]
        info = {"seat": seat, "rewards": rewards, "observations": observations}
        info["is_success"] = [reward >= 1.0 for reward in rewards]
        return observations[seat], rewards[seat], True, False, info


def _import_registry(game: str) -> Any:
    with extra_needed(f"{game} needs `textarena`: pip install 'llm-envs[suites]'."):
        importlib.import_module("textarena.envs")
        return importlib.import_module("textarena.envs.registration")


def _number(reward: Any) -> float:
    """Return a reward from -1 to 1. Some games write the reason of a loss where the number belongs."""
    return max(-1.0, min(1.0, float(reward))) if isinstance(reward, int | float | np.number) else -1.0


async def _reply(policy: ChatPolicy, messages: Sequence[Message], params: SamplingParams) -> str:
    return (await policy.reply(messages, (), params)).content


def _named(text: str) -> Any:
    """Return the policy that "module:name" names, or that the function of this name makes."""
    module, _, name = text.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError(
            f"textarena: opponent is {text!r}; a text must be module:name of a policy, or of a function that makes "
            f"one: {error}."
        ) from error
    is_policy = any(hasattr(found, method) for method in ("reply", "act")) and not isinstance(found, type)
    return found if is_policy else found()
