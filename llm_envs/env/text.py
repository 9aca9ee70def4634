"""The base class of all text environments."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import gymnasium as gym

from llm_envs.env.state import digest
from llm_envs.errors import EnvContractError, InvalidActionError, InvalidConfigError, ResetNeededError
from llm_envs.parsers import ParsedReply, natural_answers, parse_reply, plain_answer, stated_answers
from llm_envs.problems import SPLITS, Difficulty, Outcome, check_at_least, check_choice, checked_problem, split_of
from llm_envs.rewards import weighted_sum
from llm_envs.spaces import MAX_TEXT_LENGTH, TextSpace, encodable
from llm_envs.types import ToolResult

__all__ = ["TextEnv"]

T = TypeVar("T")

_MAX_DRAWS = 1_000
"""Draws until a problem falls into the split. At one in five, missing this often has probability 1e-97."""
_NATURAL_TEMPLATE = "The answer is ...."
_TAGGED = re.compile(r"<answer>([^<]*)</answer>")


class TextEnv(gym.Env[str, str], ABC):
    """Base of all text environments.

    Args:
        split: "train" or "test", or one of them (`splits`). Their problems are disjoint, unless the level declares too
            few problems for that.
        difficulty: A key of `difficulties`; `default_difficulty` if None.
        max_turns: Turns after which an unfinished episode is truncated; `default_max_turns` if None.
        render_mode: None, or "ansi": `render` returns the state as text.
        answer_form: None: answers are written as in `answer_template`. "natural": they are also read from plain prose
            (`llm_envs.parsers.natural_answers`), and the system prompt asks for "The answer is 42.".

    Raises:
        InvalidConfigError: If an argument has an unknown name or value. The message names the known ones.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it so)

    difficulties: ClassVar[Mapping[str, Difficulty]] = {}
    default_difficulty: ClassVar[str] = ""
    default_max_turns: ClassVar[int] = 1
    problem_fields: ClassVar[Mapping[str, type]] = {}
    """Keys of a problem, and the type of each: str, int, float, bool, list or dict."""
    luck_fields: ClassVar[Sequence[str]] = ()
    """Keys of a problem that decide only luck, such as an opponent's seed. Problems that differ only in these keys
    count as one in `n_problems`."""
    reward_weights: ClassVar[Mapping[str, float]] = {"correct": 1.0, "malformed": -0.1}
    max_return: float | None = None
    """The return of a perfect episode; None means the sum of the positive weights. Declare it if a component is a cost,
    because the cost of tools reduces the oracle's return below that sum."""
    min_return: float | None = None
    """The lowest return of an episode; None means the sum of the negative weights, each times the component's limit or,
    without one, `max_turns`. Declare it if a component can be negative, or above 1 in one turn."""
    component_limits: ClassVar[Mapping[str, float]] = {"malformed": 5.0}
    """The most that a component can add up to in one episode. Each turn counts at most half of the remainder: the first
    four malformed replies count 1, the next ones 1/2, 1/4, ... So a long episode costs no more than a short one, and
    every malformed turn still has a cost."""
    oracle_is_exact: ClassVar[bool] = True
    """False if chance or an opponent matters, so that the oracle is right only in expectation."""
    blocking: bool = False
    """True if the environment waits (network, subprocess): the collector steps it in a thread. A `ToolEnv` sets it if a
    toolset declares it. Tools that are asynchronous, parallel or limited need it not: only their episode waits."""
    slow_reset_reason: ClassVar[str | None] = None
    """Why the task cannot reset 1,000 times a second; None if it can."""
    clause_reasons: ClassVar[Mapping[str, str]] = {}
    """Why a clause of `check_task` does not apply, by its name, for clauses that allow it: a sentence each."""
    instructions: ClassVar[str | None] = None
    """The system prompt."""
    answer_example: ClassVar[str | None] = None
    """An answer in the right form, not one that is often right. The system prompt then ends with it:
    "Answer in this form: <answer>42</answer>"."""
    answer_template: str = "<answer>...</answer>"
    """How to write an answer, with "..." in its place. It must match `parse_reply`."""
    plain_answer: Callable[[str], str] = staticmethod(plain_answer)
    """Removes decoration from an answer before it is judged (`**42**`, "The answer is 42."). Set it to
    `staticmethod(str.strip)` if such characters belong to the answer."""
    has_natural_form: ClassVar[bool] = True
    """False if an answer is too long for a sentence, or if plain words have another meaning."""

    splits: ClassVar[Sequence[str]] = SPLITS
    """The splits of the task: a benchmark may have only "test"."""
    divides_by_hash: ClassVar[bool] = True
    """Whether a hash of `split_key` divides the problems. False if data come in splits: then `generate` draws from the
    instance's split, and `n_problems` counts only that split."""
    example_kwargs: ClassVar[Mapping[str, Any]] = {}
    """Keyword arguments for an example of a task that cannot be made without arguments. The checker and the gallery
    use them."""

    not_state: ClassVar[Collection[str]] = ()
    """Attributes that the rest of an episode does not depend on, such as an oracle's cache. `state` leaves them out."""

    chance_rate: float = 0.0
    """Of the instance's level; on the class, of the default level."""
    n_problems: int | None = None
    """Of the instance's level; on the class, of the default level."""

    disjoint_splits: bool
    """Whether the two splits of the instance's level share no problem."""
    system_prompt: str | None
    tools: list[dict[str, Any]]
    tool_results: tuple[ToolResult, ...]
    problem: dict[str, Any]
    """The problem in play; JSON types only."""
    n_turns: int
    """Turns taken in this episode."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Copy `chance_rate` and `n_problems` from the default level to the class."""
        super().__init_subclass__(**kwargs)
        level = cls.difficulties.get(cls.default_difficulty)
        if level is not None:
            cls.chance_rate, cls.n_problems = level.chance_rate, level.n_problems
        parser = vars(cls).get("parse_reply")
        is_plain = inspect.isfunction(parser) and len(inspect.signature(parser).parameters) == 1
        if is_plain or isinstance(parser, partial):  # a parser without `self`; Python 3.14 makes methods of partials
            cls.parse_reply = staticmethod(parser)  # type: ignore[method-assign, arg-type]

    def __new__(cls, *args: Any, **kwargs: Any) -> TextEnv:
        """Reject unknown arguments with a message that names the known ones."""
        parameters = inspect.signature(cls.__init__).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        known = [name for name in parameters if name != "self"]
        for name in kwargs:
            if name not in parameters and not takes_any:
                raise InvalidConfigError(f"{cls.__name__} has no argument {name!r}; known are {', '.join(known)}.")
        return super().__new__(cls)

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        name = self.default_difficulty if difficulty is None else difficulty
        check_choice(type(self).__name__, "split", split, self.splits)
        check_choice(type(self).__name__, "difficulty", name, self.difficulties)
        check_choice(type(self).__name__, "render_mode", render_mode, (None, *self.metadata["render_modes"]))
        check_choice(type(self).__name__, "answer_form", answer_form, (None, "natural"))
        if answer_form == "natural" and not self.has_natural_form:
            raise InvalidConfigError(
                f"{type(self).__name__} has no answer_form 'natural': its answers are too long for a sentence, or "
                "plain words have another meaning. Leave answer_form out."
            )
        turns = self.default_max_turns if max_turns is None else max_turns
        check_at_least(type(self).__name__, "max_turns", turns, 1)
        self.split, self.difficulty, self.max_turns, self.render_mode = split, name, turns, render_mode
        self.answer_form = answer_form
        if answer_form == "natural":
            self.answer_template = _NATURAL_TEMPLATE
        level = self.difficulties[name]
        self.settings: Mapping[str, Any] = level.settings
        self.chance_rate = level.chance_rate
        self.n_problems = level.n_problems
        if level.max_return is not None:
            self.max_return = level.max_return
        if level.min_return is not None:
            self.min_return = level.min_return
        self.observation_space, self.action_space = TextSpace(), TextSpace()
        self.system_prompt = self.instructions
        self.tools, self.tool_results = [], ()
        self.n_turns = 0
        self.disjoint_splits = level.disjoint_splits
        self._component_names = frozenset(self.reward_weights)
        self._declared_limits = {
            name: limit for name, limit in self.component_limits.items() if name in self.reward_weights
        }
        self._unused_limits: dict[str, float] = {}
        self._is_playing = False
        self._last_observation: str | None = None
        self._actions: list[str] = []
        self._quirks: tuple[str, ...] = ()
        self._fixed = frozenset(vars(self)) | {"problem", "spec", "_np_random", "_np_random_seed"}

    @property
    def return_range(self) -> tuple[float, float]:
        """The lowest and highest return of an episode. A lucky one may get more than the oracle."""
        weights, low = self.reward_weights, self.min_return
        if low is None:
            limits = {name: min(self._declared_limits.get(name, self.max_turns), self.max_turns) for name in weights}
            low = sum(weight * limits[name] for name, weight in weights.items() if weight < 0)
        return low, max(sum(weight for weight in weights.values() if weight > 0), self.max_return or 0.0)

    # Methods that a task writes.

    @abstractmethod
    def generate(self) -> dict[str, Any]:
        """Return a new problem of this level, drawn only with `self.np_random`. JSON types only."""

    @abstractmethod
    def prompt(self) -> str:
        """Return the first observation for `self.problem`."""

    @abstractmethod
    def play(self, action: str) -> Outcome:
        """Answer one action. Must not raise, whatever the agent wrote."""

    @abstractmethod
    def next_action(self) -> str:
        """Return the next right action in the current state, in canonical form. `oracle` calls this."""

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Raise `InvalidActionError` if a given problem with the right keys and types cannot be played."""

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return a key that decides the problem's split, as JSON types: equal for equivalent problems.

        By default the problem itself. If 47+85 and 85+47 can both be drawn, return one key for both; otherwise half of
        the test problems may have been trained on. Called for every draw, so it should be cheap.
        """
        return problem

    def shortcuts(self) -> Mapping[str, str]:
        """Return typical wrong replies in the current state, by name: a common mistake, or a step left out.

        For example a query without its tie-break, a program without one of its steps, or rules applied in any order.
        One may be right by luck; `check_task` requires that none is right more often than `chance_rate`. It calls this
        only before the oracle's last action. One that is named "reader(k)" is the answer of a player that reads
        everything once and keeps k facts; it may be right half of the time at an expert level or where a level is
        `expected_hard`, and more often elsewhere. `llm_envs.checker.mutations` makes mutants of queries and programs.
        """
        return {}

    def legal_answers(self) -> Sequence[str]:
        """Return the answers that the present state allows, if they are few; empty: many, or unknown.

        A random player draws from them, and none may be malformed.
        """
        return ()

    def state(self) -> Any:
        """Return what the rest of the episode depends on, beside chance and limits: all attributes of an episode.

        Override it, or declare `not_state`, if some of them do not matter.
        """
        return {
            name: value
            for name, value in vars(self).items()
            if name not in self._fixed and name not in self.not_state and not isinstance(value, FunctionType)
        }

    def parse_reply(self, text: str) -> ParsedReply:
        r"""Parse a reply, for `SingleTurnEnv` and `ToolEnv`; by default with `llm_envs.parsers.parse_reply`.

        For another form, assign a parser (`parse_reply = PARSERS["boxed"]`) and declare how an answer is written in it
        (`answer_template = r"\boxed{...}"`).
        """
        return parse_reply(text)

    def begin(self) -> None:
        """Set up an episode of `self.problem`. `reset` calls this before `prompt`."""

    def turns_allowed(self) -> int:
        """Return how many turns this episode may take, at most `max_turns`. `step` asks after each turn."""
        return self.max_turns

    # Methods that Gymnasium calls.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of all randomness in the episode.
            options: `{"problem": {...}}` plays that problem, regardless of its split.

        Returns:
            The first observation, and an empty info.
        """
        super().reset(seed=seed)
        self.problem = self._given_problem(options) if options else self._draw_problem()
        self.system_prompt = self.written_instructions()
        self.tools, self.tool_results = [], ()
        self.n_turns = 0
        self._unused_limits = dict(self._declared_limits)
        self._actions = []
        self._is_playing = True
        self._reset_tools()
        self.begin()
        self._last_observation = observation = encodable(self.prompt())
        return observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the assistant's reply; see Gymnasium's `Env.step`."""
        if not self._is_playing:
            raise ResetNeededError(
                f"{type(self).__name__}.step was called {'after the end of' if self.n_turns else 'before'} an episode: "
                "call reset() first."
            )
        if not isinstance(action, str):
            raise InvalidActionError(
                f"{type(self).__name__}: the action is of type {type(action).__name__}; it must be a str."
            )
        self.n_turns += 1
        self._actions.append(action)
        self._quirks = ()
        observation, components, terminated, is_success, messages = self.play(action)
        if components.keys() != self._component_names:
            raise EnvContractError(
                f"{type(self).__name__}.play returned the components {sorted(components)}; reward_weights declares "
                f"{sorted(self.reward_weights)}."
            )
        self.limit(components)
        if not observation.isascii():
            observation = encodable(observation)
        self._last_observation = observation
        info: dict[str, Any] = {"reward_components": components}
        if messages is not None:
            info["messages"] = messages
        if self._quirks:
            info["quirks"] = dict(Counter(self._quirks))
        truncated = not terminated and self.n_turns >= self.turns_allowed()
        if terminated or truncated:
            self._is_playing = False
            info["is_success"] = is_success
        return observation, weighted_sum(components, self.reward_weights), terminated, truncated, info

    def render(self) -> str | None:
        """Return the state as text if `render_mode` is "ansi", else None."""
        if self._last_observation is None:
            raise ResetNeededError(f"{type(self).__name__}.render was called before an episode: call reset() first.")
        if self.render_mode is None:
            return None
        lines = [f"[{type(self).__name__}, {self.difficulty}, turn {self.n_turns} of {self.max_turns}]"]
        if self.n_turns == 0 and self.system_prompt is not None:
            lines.append(f"system: {self.system_prompt}")
        if self._actions:
            lines.append(f"agent: {self._actions[-1]}")
        lines.append(f"environment: {self._last_observation}")
        return "\n".join(lines)

    def oracle(self) -> str:
        """Return the next right action in the current state, in canonical form."""
        if not self._is_playing:
            raise ResetNeededError(f"{type(self).__name__}.oracle was called outside an episode: call reset() first.")
        return self.next_action()

    def state_key(self) -> str:
        """Return a key of the current state, for episodes of one problem.

        Equal keys have equal futures under equal actions and equal chance, except for the turns that are left and the
        `component_limits`. `check_task` checks that. If the content of an attribute cannot be read (a process, a
        connection), the key is that of all actions so far.
        """
        try:
            return digest(self.state(), owner=self)
        except TypeError:
            return digest(self._actions)

    def limit(self, components: dict[str, float]) -> None:
        """Cap a turn's components, in place, by the remainder of their `component_limits` in this episode."""
        for name, left in self._unused_limits.items():
            if components[name] > 0:
                components[name] = min(components[name], left / 2)
                self._unused_limits[name] = left - components[name]

    # Methods for tasks to call.

    def write_answer(self, answer: object) -> str:
        """Write an answer in the form that the agent is told."""
        return self.answer_template.replace("...", str(answer), 1)

    def written_instructions(self) -> str | None:
        """Return the system prompt: `instructions`, and the form of an answer if there is an `answer_example`."""
        instructions = self.instructions
        if instructions is not None and self.answer_form == "natural":
            instructions = _TAGGED.sub(lambda found: f'"{self.write_answer(found[1])}"', instructions)
        if self.answer_example is None:
            return instructions
        form = f"Answer in this form: {self.write_answer(self.answer_example)}"
        return form if instructions is None else f"{instructions} {form}"

    def read(self, action: str) -> ParsedReply:
        """Parse a reply; one that is too long is broken. Its quirks are counted in the step's `info["quirks"]`."""
        if len(action) > MAX_TEXT_LENGTH:
            return ParsedReply(None, "", (), None, (f"it has {len(action)} characters, over {MAX_TEXT_LENGTH}",))
        reply = self.parse_reply(action)
        self._quirks = reply.quirks
        return reply

    def judge(self, reply: ParsedReply, decide: Callable[[str], T], *, or_else: str = "") -> T:
        """Return the result of `decide` for the reply's answer, without its decoration.

        Prose around an answer is read too: the first reading that `decide` does not refuse counts, right or wrong.

        Args:
            reply: The parsed reply.
            decide: Takes an answer; raises `InvalidActionError`, with nothing changed, if it has the wrong form.
            or_else: The alternative to an answer, for the error: "tool call or ". With one, prose must state its answer
                ("The answer is 42."): another sentence may be a remark.

        Raises:
            InvalidActionError: If the reply is broken, has no answer, or the answer has the wrong form.
        """
        if reply.problems:
            raise InvalidActionError(f"the reply cannot be read: {'; '.join(reply.problems)}")
        refusal = None
        for reading in self._readings(reply, natural_answers if not or_else else stated_answers):
            try:
                return decide(reading)
            except InvalidActionError as error:
                refusal = refusal or error
        raise refusal or InvalidActionError(f"the reply has no {or_else}{self._wanted_form()}")

    # Implementation.

    def _readings(self, reply: ParsedReply, read_prose: Callable[[str], Sequence[str]]) -> Iterator[str]:
        if reply.answer is not None:
            plain = self.plain_answer(reply.answer)
            yield plain
            if self.has_natural_form:
                yield from natural_answers(plain)
        elif self.answer_form == "natural":
            yield from read_prose(reply.content)

    def _wanted_form(self) -> str:
        """Return the description of an answer, for a reply without one."""
        if self.answer_example is not None:
            return f"answer in the form {self.write_answer(self.answer_example)}".removesuffix(".")
        is_default = self.answer_template == TextEnv.answer_template
        return "answer" if is_default and type(self).parse_reply is not TextEnv.parse_reply else self.answer_template

    def _reset_tools(self) -> None:
        """Reset the tools' state for a new episode."""

    def _draw_problem(self) -> dict[str, Any]:
        for _ in range(_MAX_DRAWS):
            problem = self.generate()
            try:
                is_divided = self.divides_by_hash and self.disjoint_splits
                if not is_divided or split_of(self.split_key(problem)) == self.split:
                    return problem
            except EnvContractError as error:
                raise EnvContractError(f"{type(self).__name__}: {error}") from error
        raise EnvContractError(
            f"{type(self).__name__}: {_MAX_DRAWS} problems of level {self.difficulty!r} were drawn, but none is in the "
            f"split {self.split!r}: there are too few problems. Declare Difficulty(..., disjoint_splits=False)."
        )

    def _given_problem(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checked copy of `options["problem"]`, or draw a problem if it is missing."""
        name = type(self).__name__
        if not isinstance(options, Mapping):
            raise InvalidConfigError(f'{name}: options is {options!r:.80}; it must be a dict: {{"problem": {{...}}}}.')
        for key in options:
            check_choice(name, "option", key, ("problem",))
        problem = options.get("problem")
        if problem is None:
            return self._draw_problem()
        copied = checked_problem(problem, self.problem_fields, name)
        try:
            self.check_problem(copied)
        except InvalidActionError as refusal:
            raise InvalidConfigError(f"{name}: the problem {copied!r:.200} cannot be played: {refusal}.") from refusal
        return copied
