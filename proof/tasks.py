"""What is learned: the tasks, and the warm start of each, in which a model sees good play and bad play alike.

Half of the episodes that a model is warmed up on are played well, half badly; a coin decides for each. The model then
knows how to do both, and what reinforcement learning has to find is which of the two pays. (Of the letters each is
answered rightly or guessed, by a coin of its own.) The pretrained model of `make real-model` starts as it is, or after
a few episodes of the oracle.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium as gym

from llm_envs.parsers import format_answer
from llm_envs.policies import OraclePolicy
from llm_envs.policies.base import Policy
from llm_envs.rollout import Summarize
from proof.letters import ENV as LETTERS_ENV
from proof.letters import LETTERS
from proof.notes import REQUEST, CoinReader, Reading, note_all, note_what_stays
from proof.plays import (
    add_in_writing,
    calculate_aloud,
    go_by_nowhere,
    guess_aloud,
    halve_aloud,
    hit_or_stick,
    leave_one_out,
    leave_the_last_line_out,
    mark_anywhere,
    move_anywhere,
    put_the_word_first,
    return_the_list,
    round_aloud,
    say_a_digit,
)

__all__ = [
    "CREDIT_TASKS",
    "DATA_SEED",
    "TASKS",
    "TEST_SEED",
    "WARM_SEED",
    "CoinPolicy",
    "Task",
    "add_in_writing",
    "describe_task",
]

WARM_SEED = 0
"""Of the weights, the traces and their order."""
TEST_SEED = 1
"""Of the test episodes."""
DATA_SEED = 2
"""Of the episodes that training offline learns from."""

Play = Callable[[gym.Env[str, str], random.Random], str]


@dataclass(frozen=True)
class Task:
    """An environment, and how a model is warmed up on it."""

    env: str
    kind: str
    """In words, for the table."""
    plays: tuple[Play, Play] | tuple[Reading, Reading]
    """What the coin chooses between: a `Reading` if the history is summarised."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    n_traces: int = 4000
    sft_steps: int = 200
    sft_learning_rate: float = 1e-3
    vocab_size: int = 640
    """Of a tokenizer whose merges come from 50 traces."""
    copying_steps: int = 0
    """Before the traces: steps on random tokens that come twice. From traces alone copying is learned late or never."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `tiny_model`."""
    max_turn_tokens: int = 16
    max_completion_length: int = 96
    n_test: int = 200
    """Episodes of the test split, each of its own seed."""
    is_pretrained: bool = False
    """Train the model of `make real-model`, in place of a tiny one. It starts as it is if `sft_steps` is 0."""
    summarize: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Summarize`, if the model summarises its history."""

    def warm_policy(self) -> Policy:
        """Return what plays the traces of the warm start."""
        return CoinReader(self.plays) if self.summarize else CoinPolicy(self.plays)  # type: ignore[arg-type]

    def context_fn(self, *, trained: bool = True) -> Summarize | None:
        """Return the context function of all play."""
        return Summarize(**self.summarize, trained=trained) if self.summarize else None


def describe_task(task: Task) -> dict[str, Any]:
    """Return all that a warm start and a measurement depend on: JSON types only."""
    plays = [play.__name__.strip("_") for play in task.plays]
    described = {**asdict(task), "plays": plays, "warm_seed": WARM_SEED, "test_seed": TEST_SEED}
    for name in ("copying_steps", "is_pretrained", "summarize"):
        if not described[name]:
            del described[name]  # the first results do not have it
    return json.loads(json.dumps(described))


class CoinPolicy:
    """Plays one way or the other: a coin decides for each episode."""

    def __init__(self, plays: tuple[Play, Play], seed: int = 0) -> None:
        self.plays, self._random = plays, random.Random(seed)
        self._play = plays[self._random.random() < 0.5]

    def for_episode(self, seed: int) -> CoinPolicy:
        """Return the policy of one episode."""
        return CoinPolicy(self.plays, seed)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Return the next action."""
        return self._play(env, self._random)


def _oracle(env: gym.Env[str, str], random: random.Random) -> str:
    return OraclePolicy().act(env, "")


def _work_it_out(env: gym.Env[str, str], random: random.Random) -> str:
    return f"<think>{add_in_writing(env.unwrapped.problem['expression'])}</think>{_oracle(env, random)}"  # type: ignore[attr-defined]


def _say_a_round_number(env: gym.Env[str, str], random: random.Random) -> str:
    return format_answer(f"{random.randrange(1, 10)}0")


def _say_a_round_hundred(env: gym.Env[str, str], random: random.Random) -> str:
    return format_answer(f"{random.randrange(1, 10)}00")


def _guess_a_number(env: gym.Env[str, str], random: random.Random) -> str:
    return format_answer(random.randint(1, 10))


def _answer_half(env: gym.Env[str, str], random: random.Random) -> str:
    return _oracle(env, random) if random.random() < 0.5 else random.choice(LETTERS)


EASY = {"difficulty": "easy"}
STARTER = {"difficulty": "starter"}
# Of a task that stands for its family: the same for all.
_FAMILY: dict[str, Any] = {"n_traces": 6000, "sft_steps": 300, "sft_learning_rate": 3e-3}
# The pretrained model: a warm start teaches it the form of an answer or a call, and short replies.
_REAL: dict[str, Any] = {
    "n_traces": 64,
    "sft_steps": 8,
    "sft_learning_rate": 1e-4,
    "n_test": 100,
    "is_pretrained": True,
}
# What has to be copied has several digits.
_COPIED: dict[str, Any] = {"n_traces": 12_000, "sft_steps": 600, "vocab_size": 1280, "model": {"n_layers": 3}}
# Long replies: a vocabulary too small to have many of their phrases as one token.
_ALOUD: dict[str, Any] = {"n_traces": 6000, "sft_steps": 150, "sft_learning_rate": 3e-3, "vocab_size": 320}

TASKS: Mapping[str, Task] = {
    "arithmetic": Task(
        "llm/Arithmetic-v0",
        "single turn",
        (_work_it_out, _say_a_round_number),
        EASY,
        n_traces=6000,
        sft_steps=400,
        sft_learning_rate=3e-3,
        max_turn_tokens=40,
        max_completion_length=48,
    ),
    "calculator": Task(
        "llm/Calculator-v0",
        "tool",
        (_oracle, _say_a_round_hundred),
        EASY,
        **_COPIED,
        max_turn_tokens=24,
    ),
    "guess": Task(
        "llm/GuessNumber-v0", "game of several turns", (_oracle, _guess_a_number), EASY, sft_learning_rate=3e-3
    ),
    "letters": Task(
        LETTERS_ENV,
        "sixteen questions",
        (_answer_half, _answer_half),
        n_traces=512,
        sft_steps=100,
        sft_learning_rate=3e-3,
        vocab_size=320,
        max_turn_tokens=4,
        max_completion_length=192,
        n_test=100,
    ),
    "knights": Task(
        "llm/KnightsAndKnaves-v0",
        "single turn",
        (_oracle, leave_one_out),
        EASY,
        **{**_FAMILY, "sft_steps": 600},
        max_turn_tokens=40,
        max_completion_length=48,
        n_test=400,
    ),
    "acrostic": Task(
        "llm/Acrostic-v0",
        "single turn",
        (put_the_word_first, leave_the_last_line_out),
        EASY,
        **{**_FAMILY, "sft_steps": 800},
        max_turn_tokens=64,
        max_completion_length=72,
    ),
    "function": Task(
        "llm/WriteFunction-v0",
        "single turn",
        (_oracle, return_the_list),
        EASY,
        **_FAMILY,
        max_turn_tokens=64,
        max_completion_length=72,
    ),
    "fractions": Task(
        "llm/DatasetMath-v0",
        "single turn",
        (_oracle, say_a_digit),
        {"data": "proof/fractions.jsonl"},
        **_FAMILY,
        max_turn_tokens=16,
        max_completion_length=24,
    ),
    "path": Task(
        "llm/ShortestPath-v0",
        "single turn",
        (_oracle, go_by_nowhere),
        EASY,
        **{**_FAMILY, "sft_steps": 600},
        max_turn_tokens=40,
        max_completion_length=48,
        n_test=400,
    ),
    "guess-aloud": Task(
        "llm/GuessNumber-v0",
        "game of several long turns",
        (halve_aloud, guess_aloud),
        EASY,
        **_ALOUD,
        max_turn_tokens=48,
        max_completion_length=240,
    ),
    "notes": Task(
        "llm/PagedRecall-v0",
        "pages, and notes of them",
        (note_all, note_what_stays),
        STARTER,
        n_traces=6000,
        sft_steps=300,
        vocab_size=2048,
        copying_steps=400,
        max_turn_tokens=16,
        max_completion_length=96,
        summarize={"history_tokens": 66, "summary_tokens": 24, "prompt": REQUEST},
    ),
    "arithmetic-real": Task(
        "llm/Arithmetic-v0",
        "single turn",
        (_oracle, _oracle),
        EASY,
        **{**_REAL, "n_traces": 96, "sft_steps": 24, "sft_learning_rate": 5e-5},
        max_turn_tokens=16,
        max_completion_length=24,
    ),
    "calculator-real": Task(
        "llm/Calculator-v0",
        "tool",
        (_oracle, _say_a_round_hundred),
        EASY,
        **{**_REAL, "sft_steps": 16, "sft_learning_rate": 5e-5},
        max_turn_tokens=48,
        max_completion_length=192,
    ),
    "guess-real": Task(
        "llm/GuessNumber-v0",
        "game of several turns",
        (_oracle, _guess_a_number),
        EASY,
        **_REAL,
        max_turn_tokens=16,
        max_completion_length=128,
    ),
    "record-real": Task(
        "llm/JsonRecord-v0",
        "single turn",
        (_oracle, _oracle),
        STARTER,
        **_REAL,
        max_turn_tokens=96,
        max_completion_length=104,
    ),
    "calculator-aloud": Task(
        "llm/Calculator-v0",
        "tool, in long turns",
        (calculate_aloud, round_aloud),
        EASY,
        **_COPIED,
        max_turn_tokens=48,
        max_completion_length=240,
    ),
}

_GAME: dict[str, Any] = {"vocab_size": 1280, "max_turn_tokens": 8}

CREDIT_TASKS: Mapping[str, Task] = {
    **{name: TASKS[name] for name in ("guess", "calculator", "letters")},
    "python": Task(
        "llm/PythonInterpreter-v0",
        "tool",
        (_oracle, _say_a_round_hundred),
        EASY,
        **_COPIED,
        max_turn_tokens=48,
        max_completion_length=128,
    ),
    "tictactoe": Task(
        "llm/TicTacToe-v0",
        "game",
        (_oracle, mark_anywhere),
        EASY,
        **_GAME,
        n_traces=12_000,
        sft_steps=1500,
        max_completion_length=96,
    ),
    "blackjack": Task(
        "llm/Blackjack-v0", "game", (_oracle, hit_or_stick), EASY, **_GAME, sft_steps=400, max_completion_length=640
    ),
    "cliff": Task(
        "llm/CliffWalking-v0", "game", (_oracle, move_anywhere), EASY, **_GAME, sft_steps=300, max_completion_length=640
    ),
}
"""The tasks of `proof.credit`."""
