"""The task that `check_task` examines, and the episodes that several clauses share."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial, wraps
from typing import Any, SupportsFloat

import gymnasium as gym

from llm_envs.checker.blind import Lesson
from llm_envs.checker.hostile import HostileAction, hostile_actions, mutate
from llm_envs.env import TextEnv, canonical_json
from llm_envs.parsers import ParsedReply
from llm_envs.types import ToolCall

__all__ = [
    "EXCUSABLE",
    "QUICK",
    "THOROUGH",
    "BrokenClause",
    "Draw",
    "Effort",
    "Inapplicable",
    "Step",
    "Subject",
    "TaskPolicy",
    "binomial_tail",
    "excusable",
    "play",
    "remembering",
]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a task the checker examines."""

    n_seeds: int
    """Episodes of the oracle."""
    n_draws: int
    """Number of problems to draw, half of them in each split."""
    n_hostile_episodes: int
    """Episodes of each kind of hostile action."""
    n_fuzzed: int
    """Damaged and hostile actions in the middle of good play."""
    n_pairs: int
    """Neighbouring seeds whose problems are compared."""
    n_tries: tuple[int, ...] = (40, 160, 640)
    """Episodes of a blind policy, by stage. A next stage is played only if chance does not explain the wins so far."""


QUICK = Effort(n_seeds=20, n_draws=300, n_hostile_episodes=30, n_fuzzed=100, n_pairs=60)
"""Takes seconds: for use while writing a task."""
THOROUGH = Effort(
    n_seeds=200, n_draws=2_000, n_hostile_episodes=30, n_fuzzed=1_000, n_pairs=10_000, n_tries=(40, 160, 640, 2_000)
)
"""May take a minute: for use before publishing a task."""


FALSE_ALARM = 1e-6
"""Probability, for each policy, that a task fails although its chance rate is exactly as declared."""


EXCUSABLE: list[str] = []
"""Names of the clauses that a task may leave out with a reason."""


class BrokenClause(Exception):
    """A clause does not hold."""


class Inapplicable(str):
    """The finding of a clause that has nothing to examine in this environment: why."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode, as the environment returned it."""

    action: str
    observation: str
    reward: SupportsFloat
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def is_win(self) -> bool:
        """Whether the episode ended here with success."""
        return (self.terminated or self.truncated) and self.info.get("is_success") is True


@dataclass(frozen=True, slots=True)
class FailedEpisode:
    """An episode that an exception ended."""

    action: str
    """The last one."""
    error: Exception


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn problem."""

    problem: str
    """In canonical JSON."""
    shown: str
    """The first observation."""
    reply: str
    """The oracle's first reply; "" for tasks of several turns, where it may take long."""


TaskPolicy = Callable[[TextEnv, str], str]
"""(task, last observation) to action."""


@dataclass
class Subject:
    """The task under test, and the episodes that several clauses share."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = QUICK

    def make(self, **more: Any) -> gym.Env[str, str]:
        """Make the environment, with some keyword arguments replaced."""
        return gym.make(self.env_id, **{**self.kwargs, **more})

    @cached_property
    def env(self) -> gym.Env[str, str]:
        """One environment for all clauses that do not change it."""
        return self.make()

    @property
    def task(self) -> TextEnv:
        """The same environment without Gymnasium's wrappers."""
        return unwrap(self.env)

    @cached_property
    def splits(self) -> Sequence[str]:
        """The task's splits, in their order."""
        return type(self.task).splits

    @cached_property
    def n_problems(self) -> int | None:
        """The declared number of problems in all splits together."""
        if type(self.task).divides_by_hash:
            return self.task.n_problems
        counts = [unwrap(self.make(split=split)).n_problems for split in self.splits]
        return None if None in counts else sum(count for count in counts if count is not None)

    @cached_property
    def replayed(self) -> gym.Env[str, str]:
        """An environment for clauses that play the same seeds many times."""
        return remembering(self.make())

    @cached_property
    def oracle_episodes(self) -> list[list[Step]]:
        """The oracle's episodes, by seed."""
        return [play(self.env, seed, ask_oracle) for seed in range(self.effort.n_seeds)]

    @cached_property
    def hostile_episodes(self) -> dict[str, list[list[Step] | Exception]]:
        """Episodes by the name of the hostile action. If an episode raised, the list has its exception instead."""
        self.env.reset(seed=0)
        rng = random.Random(0)
        episodes: dict[str, list[list[Step] | Exception]] = {}
        for name, act in hostile_actions(self.task.tools).items():
            policy = partial(_act_hostile, act, rng)
            played = episodes[name] = []
            for seed in range(3 if "long" in name else self.effort.n_hostile_episodes):
                try:
                    played.append(play(self.replayed, seed, policy))
                except Exception as error:
                    played.append(error)
        return episodes

    @cached_property
    def borrowed_episodes(self) -> dict[int, list[Step]]:
        """Episodes, by seed, of a policy that gives the oracle's reply to another problem: well-formed guesses."""
        problems = []
        for seed in range(self.effort.n_seeds):
            self.replayed.reset(seed=seed)
            problems.append(problem_of(self.replayed))
        episodes = {}
        for seed, problem in enumerate(problems):
            others = [
                other for other in range(seed + 1, seed + len(problems)) if problems[other % len(problems)] != problem
            ]
            if others:
                actions = [step.action for step in self.oracle_episodes[others[0] % len(problems)]]
                episodes[seed] = play(self.replayed, seed, repeat(actions))
        return episodes

    @cached_property
    def fuzzed_episodes(self) -> list[list[Step] | FailedEpisode]:
        """Episodes, by seed, of an oracle with half of its actions damaged: `effort.n_fuzzed` damaged ones."""
        rng = random.Random(0)
        self.env.reset(seed=0)
        hostile = [act for name, act in hostile_actions(self.task.tools).items() if "long" not in name]
        episodes: list[list[Step] | FailedEpisode] = []
        n_spoilt, latest = 0, ""

        def act(task: TextEnv, observation: str) -> str:
            nonlocal n_spoilt, latest
            latest = task.oracle()
            if rng.random() < 0.5:
                n_spoilt += 1
                latest = mutate(latest, rng) if rng.random() < 0.8 else rng.choice(hostile)(task, observation, rng)
            return latest

        while n_spoilt < self.effort.n_fuzzed:
            latest = ""
            try:
                episodes.append(play(self.replayed, len(episodes), act))
            except Exception as error:
                episodes.append(FailedEpisode(latest, error))
                break
        return episodes

    @cached_property
    def all_steps(self) -> list[Step]:
        """The steps of all these episodes."""
        hostile = [steps for played in self.hostile_episodes.values() for steps in played if isinstance(steps, list)]
        fuzzed = [steps for steps in self.fuzzed_episodes if isinstance(steps, list)]
        played = [*self.oracle_episodes, *hostile, *fuzzed, *self.borrowed_episodes.values()]
        return [step for steps in played for step in steps]

    @cached_property
    def draws(self) -> dict[str, list[Draw]]:
        """The problems of many resets, by split."""
        draws: dict[str, list[Draw]] = {}
        for split in self.splits:
            env = self.make(split=split)
            task = unwrap(env)
            env.reset(seed=0)
            drawn = draws[split] = []
            for _ in range(self.effort.n_draws // 2):
                shown, _ = env.reset()
                drawn.append(Draw(problem_of(env), shown, task.oracle() if task.max_turns == 1 else ""))
        return draws

    @cached_property
    def drawn_problems(self) -> list[str]:
        """Canonical JSON of the same problems, half of them in each split."""
        return [draw.problem for split in self.splits for draw in self.draws[split]]

    @cached_property
    def lessons(self) -> list[Lesson]:
        """The material to learn from: the oracle's play on the train split. Empty without that split."""
        if "train" not in self.splits:
            return []
        if self.task.max_turns == 1:
            return [Lesson(draw.shown, (draw.reply,)) for draw in self.draws["train"]]
        is_train = self.kwargs.get("split", "train") == "train"
        env = self.env if is_train else self.make(split="train")
        lessons = []
        for seed in range(self.effort.n_seeds):
            steps = self.oracle_episodes[seed] if is_train else play(env, seed, ask_oracle)
            prompt = env.reset(seed=seed)[0]
            shown = (prompt, *(step.observation for step in steps[:-1]))
            lessons.append(Lesson(prompt, tuple(step.action for step in steps), shown))
        return lessons


def play(env: gym.Env[str, str], seed: int | None, policy: TaskPolicy) -> list[Step]:
    """Play one episode, with at most two steps more than the task's limit."""
    task = unwrap(env)
    observation, _ = env.reset(seed=seed)
    steps: list[Step] = []
    while len(steps) < task.max_turns + 2 and not (steps and (steps[-1].terminated or steps[-1].truncated)):
        action = policy(task, observation)
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append(Step(action, observation, reward, terminated, truncated, info))
    return steps


def remembering(env: gym.Env[str, str]) -> gym.Env[str, str]:
    """Make the environment cache its generated problems and parsed replies; return it.

    Problems are cached by the state of the random generator, so the cache also covers resets without a seed.
    """
    task = unwrap(env)
    generate, known = task.generate, dict[str, tuple[bytes, Any]]()

    def remembered() -> dict[str, Any]:
        generator = task.np_random.bit_generator
        before = repr(generator.state)
        if before not in known:
            problem = generate()
            if repr(generator.state) == before:  # drawn from another source: `depends_on_the_seed` reports it
                return problem
            known[before] = (pickle.dumps(problem), generator.state)
        pickled, generator.state = known[before]
        fresh: dict[str, Any] = pickle.loads(pickled)
        return fresh

    parse = task.parse_reply

    @lru_cache(maxsize=1_000)
    def parsed_once(text: str) -> tuple[ParsedReply, bytes, tuple[ToolCall, ...]]:
        reply, n_run = parse(text), getattr(task, "max_calls_per_turn", 0)
        return reply, pickle.dumps(reply.tool_calls[:n_run]), reply.tool_calls[n_run:]

    def parsed(text: str) -> ParsedReply:
        reply, run, never_run = parsed_once(text)
        if not reply.tool_calls:
            return reply
        return reply._replace(tool_calls=(*pickle.loads(run), *never_run))  # a tool may change its arguments

    task.generate = remembered  # type: ignore[method-assign]
    if type(task).parse_reply is TextEnv.parse_reply:  # a parser that the task defines may depend on its state
        task.parse_reply = parsed  # type: ignore[method-assign]
    return env


def require(condition: object, message: str) -> None:
    """Raise `BrokenClause` with the message unless the condition is true."""
    if not condition:
        raise BrokenClause(message)


def excusable(clause: Callable[[Subject], str]) -> Callable[[Subject], str]:
    """Let a task leave the clause out with a reason in `clause_reasons`."""

    @wraps(clause)
    def examined(subject: Subject) -> str:
        reason = subject.task.clause_reasons.get(clause.__name__)
        return clause(subject) if reason is None else Inapplicable(f"the task gives a reason: {reason}")

    EXCUSABLE.append(clause.__name__)
    return examined


def require_chance(subject: Subject, what: str, won: Sequence[int], n: int, example: str = "") -> None:
    """Require that the chance rate explains this many wins of `n` episodes."""
    chance = subject.task.chance_rate
    require(
        binomial_tail(len(won), n, chance) >= FALSE_ALARM,
        f"{what} won {len(won)} of {n} episodes (seeds {list(won[:3])}); chance_rate is {chance:g}"
        f"{example and '; '}{example}",
    )


def unwrap(env: gym.Env[str, str]) -> TextEnv:
    """Return the task below the wrappers."""
    task = env.unwrapped
    if not isinstance(task, TextEnv):
        raise BrokenClause(f"{type(task).__name__} is not an llm_envs.TextEnv: subclass it, or one of its subclasses")
    return task


def ask_oracle(task: TextEnv, observation: str) -> str:
    """Play as the oracle: a `TaskPolicy`."""
    return task.oracle()


def _act_hostile(act: HostileAction, rng: random.Random, task: TextEnv, observation: str) -> str:
    return act(task, observation, rng)


def repeat(actions: Sequence[str], then: str = "I am done.") -> TaskPolicy:
    """Return a policy that gives the actions in order, and then repeats `then`."""
    left = list(actions)
    return lambda task, observation: left.pop(0) if left else then


def split_key_of(task: TextEnv, problem: str) -> str:
    """Return the canonical JSON of the split key of a problem in canonical JSON."""
    return canonical_json(task.split_key(json.loads(problem)))


def without_luck(task: TextEnv, problem: str) -> str:
    """Return a problem without the task's `luck_fields`. Both are canonical JSON."""
    return canonical_json({key: value for key, value in json.loads(problem).items() if key not in task.luck_fields})


def problem_of(env: gym.Env[str, str]) -> str:
    """Return the canonical JSON of the problem in play."""
    problem = env.get_wrapper_attr("problem")
    require(
        isinstance(problem, dict),
        f"the problem is of type {type(problem).__name__}: generate() must return a dict of JSON types",
    )
    return canonical_json(problem)


def binomial_tail(successes: int, n: int, p: float) -> float:
    """Return the probability of at least `successes` in `n` trials, each with probability `p`."""
    if successes <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    log_p, log_q = math.log(p), math.log1p(-p)
    ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(successes, n + 1))
    return math.fsum(math.exp(w + k * log_p + (n - k) * log_q) for k, w in enumerate(ways, successes))
