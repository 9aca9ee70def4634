"""Prompts with a reward function as an environment, and as a source of episodes.

task = PromptTask(load_prompts("questions.jsonl"), lambda row, reply: float(reply.answer == row["answer"]))
Collector(PromptSource(task), policy, codec=codec).collect(64, group_size=8)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from llm_envs.env import SPLITS, Difficulty, Outcome, SingleTurnEnv, split_of
from llm_envs.errors import EnvContractError, InvalidConfigError, JudgeError
from llm_envs.parsers import ParsedReply, Parser, format_answer, parse_reply
from llm_envs.problems import check_choice
from llm_envs.rewards import weighted_sum
from llm_envs.rewards.functions import check_function, read_score
from llm_envs.sources.prompts import PROMPT, Prompts, PromptsLike, load_prompts
from llm_envs.sources.source import EnvChoice, SeedSource

__all__ = ["PromptEnv", "PromptSource", "PromptTask", "RewardFn"]

RewardFn = Callable[[Mapping[str, Any], ParsedReply], float | Mapping[str, float] | None]
"""(row, parsed reply) -> the reward, or the components that `PromptTask.reward_weights` declares; None: unscored."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptTask:
    """Prompts with a reward function; calling it makes an environment. Pickles if its functions do."""

    prompts: PromptsLike
    """The problems, in any form that `load_prompts` takes."""
    reward_fn: RewardFn
    """If it raises, or returns None, a text or NaN, the episode is unscored; it never counts as reward 0."""
    test_prompts: PromptsLike | None = None
    """Prompts of the split "test". None: the prompts are divided by a hash of the prompt, one in five for the test."""
    disjoint_splits: bool = True
    """False: both splits have all prompts, for tasks with too few to divide."""
    env_id: str = "prompts"
    """Name in trajectories, and in a mixture."""
    reward_weights: Mapping[str, float] = field(default_factory=lambda: {"reward": 1.0})
    """The components of the reward. The default fits a `reward_fn` that returns a number."""
    success_at: float | None = None
    """Lowest reward of a success; None: the sum of the positive weights, so 1 by default."""
    system_prompt: str | None = None
    """Shown before the messages of every prompt."""
    parser: Parser = parse_reply
    """Parses the reply."""
    answer_field: str = "answer"
    """Key of the right answer. Rows that have it have an oracle."""
    format_answer: Callable[[object], str] = format_answer
    """How the oracle writes the answer; by default in `<answer>` tags."""
    difficulty_field: str | None = None
    """Key of a row's level; then `difficulty=` selects the rows of one level."""
    blocking: bool = False
    """Whether `reward_fn` waits (for a server, a subprocess): the collector then calls it in a thread."""
    _chosen: dict[tuple[str, str | None], Prompts] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        # The dataclass is frozen, so the loaded prompts replace the given ones in this way.
        object.__setattr__(self, "prompts", load_prompts(self.prompts))
        if self.test_prompts is not None:
            object.__setattr__(self, "test_prompts", load_prompts(self.test_prompts))
        check_function(self.reward_fn, "PromptTask: reward_fn", ("row", "reply"))
        if not self.reward_weights:
            raise InvalidConfigError("PromptTask: reward_weights is empty; name at least one component.")

    def __call__(self, **kwargs: Any) -> PromptEnv:
        """Make an environment, with the keyword arguments `split`, `difficulty` and `render_mode`."""
        return PromptEnv(self, **kwargs)

    def rows(self, split: str = "train", difficulty: str | None = None) -> Prompts:
        """Return the prompts of a split and level.

        Raises:
            InvalidConfigError: If the split has no such prompts.
        """
        if (split, difficulty) not in self._chosen:
            self._chosen[split, difficulty] = _choose_rows(self, split, difficulty)
        return self._chosen[split, difficulty]


def _choose_rows(task: PromptTask, split: str, difficulty: str | None) -> Prompts:
    check_choice(task.env_id, "split", split, SPLITS)
    if difficulty is not None and task.difficulty_field is None:
        raise InvalidConfigError(f"{task.env_id}: difficulty={difficulty!r} needs PromptTask(difficulty_field=...).")
    rows = task.test_prompts if split == "test" and task.test_prompts is not None else task.prompts
    assert isinstance(rows, Prompts)
    # Only the prompt is hashed, so rows with the same prompt are in the same split.
    by_hash = task.test_prompts is None and task.disjoint_splits
    chosen = [
        row
        for row in rows
        if (not by_hash or split_of(row[PROMPT]) == split)
        and (difficulty is None or str(row.get(task.difficulty_field or "")) == difficulty)
    ]
    if not chosen:
        of_level = "" if difficulty is None else f" of {task.difficulty_field} {difficulty!r}"
        raise InvalidConfigError(
            f"{task.env_id}: of {len(rows)} prompts none{of_level} is in the split {split!r}: give test_prompts=..., "
            "or disjoint_splits=False if there are too few to divide."
        )
    return rows if len(chosen) == len(rows) else Prompts(chosen, name=rows.name)


class PromptEnv(SingleTurnEnv):
    """Asks one prompt and rewards the reply. Made by `PromptTask`.

    ## Description
    `reset(seed=...)` draws a row; `reset(options={"problem": row})` asks any given row, even one that is in no file.

    ## Observation
    The row's prompt: a text, or messages in `info["messages"]`.

    ## Action
    The reply.

    ## Reward
    `PromptTask.reward_fn`, of the row and the parsed reply.

    ## Episode End
    `terminated` after the reply.

    ## Arguments
    - `task`: the prompts and their reward.
    - `split`: "train" or "test".
    - `difficulty`: a level, by the task's `difficulty_field`; None or "all" for all rows.
    - `render_mode`: None or "ansi".

    ## Version History
    - v0: first version.
    """

    difficulties: ClassVar[Mapping[str, Difficulty]] = {"all": Difficulty("The rows of the task.", chance_rate=1.0)}
    default_difficulty = "all"
    divides_by_hash = False
    component_limits: ClassVar[Mapping[str, float]] = {}

    def __init__(
        self,
        task: PromptTask,
        split: str = "train",
        difficulty: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        # Before `super().__init__`, which reads the weights.
        self.reward_weights = task.reward_weights  # type: ignore[misc]  # declared by the task, not by the class
        super().__init__(split, None, render_mode)
        self.task = task
        self.difficulty = difficulty or self.default_difficulty
        self.rows = task.rows(split, None if self.difficulty == self.default_difficulty else difficulty)
        self.n_problems = len(self.rows)
        self.disjoint_splits = task.disjoint_splits
        self.blocking = task.blocking

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask a prompt; see `TextEnv.reset`."""
        observation, info = super().reset(seed=seed, options=options)
        self.system_prompt = self.task.system_prompt
        prompt = self.problem[PROMPT]
        if isinstance(prompt, str):
            return observation, info
        # A table has the same fields in all messages, null if a message lacks one.
        return observation, {"messages": [{k: v for k, v in m.items() if v is not None} for m in prompt]}

    def generate(self) -> dict[str, Any]:
        """Draw a row."""
        return self.rows[int(self.np_random.integers(len(self.rows)))]

    def prompt(self) -> str:
        """Return the prompt's text; for messages, their texts joined by line breaks."""
        prompt = self.problem[PROMPT]
        return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)

    def solution(self) -> str:
        """Return the row's answer."""
        if self.task.answer_field not in self.problem:
            raise EnvContractError(f"{self.task.env_id}: without {self.task.answer_field!r} the row has no oracle.")
        return str(self.problem[self.task.answer_field])

    def next_action(self) -> str:
        """Return the row's answer, as the task writes it."""
        return self.task.format_answer(self.solution())

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge the reply, as `TextEnv.step` does; `info["expected"]` is the answer of a row that was not solved."""
        observation, reward, terminated, truncated, info = super().step(action)
        if not info.get("is_success") and self.task.answer_field in self.problem:
            info["expected"] = self.solution()
        return observation, reward, terminated, truncated, info

    def play(self, action: str) -> Outcome:
        """Reward the reply."""
        components = self._scored(self.task.parser(action))
        if components.keys() != self.reward_weights.keys():
            raise EnvContractError(
                f"{self.task.env_id}: reward_fn returned {sorted(components)}; PromptTask.reward_weights declares "
                f"{sorted(self.reward_weights)}."
            )
        reward = weighted_sum(components, self.reward_weights)
        success_at = self.task.success_at
        if success_at is None:
            success_at = sum(weight for weight in self.reward_weights.values() if weight > 0)
        return Outcome(f"Reward: {reward:g}.", components, True, reward >= success_at)

    def _scored(self, reply: ParsedReply) -> dict[str, float]:
        try:
            components = read_score(self.task.reward_fn(self.problem, reply), "reward")
        except Exception as error:
            raise JudgeError(f"{self.task.env_id}: reward_fn failed: {type(error).__name__}: {error}") from error
        if components is None:
            raise JudgeError(f"{self.task.env_id}: reward_fn gave None")
        return components

    def _draw_problem(self) -> dict[str, Any]:
        return self.generate()  # the rows are already those of the split

    def _given_problem(self, options: Mapping[str, Any]) -> dict[str, Any]:
        for key in options:
            check_choice(self.task.env_id, "option", key, ("problem",))
        if options.get("problem") is None:
            return self._draw_problem()
        row = Prompts([options["problem"]], name=f"{self.task.env_id}, the given problem")[0]
        copied: dict[str, Any] = json.loads(json.dumps(row))
        return copied


class PromptSource(SeedSource):
    """A source that asks the prompts of one or several tasks in epochs, each prompt once per epoch.

    Args:
        tasks: A task, or several with their shares.
        split: The split of the prompts.
        seed: Run seed.
        shuffle: Whether each epoch has its own order; otherwise all have the order of the rows.
    """

    def __init__(
        self,
        tasks: PromptTask | Sequence[PromptTask | tuple[PromptTask, float]],
        *,
        split: str = "train",
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        listed = [tasks] if isinstance(tasks, PromptTask) else list(tasks)
        shares = [item if isinstance(item, tuple) else (item, 1.0) for item in listed]
        choices = [
            EnvChoice(task.env_id, weight, {"split": split}, factory=task, problems=task.rows(split))
            for task, weight in shares
        ]
        super().__init__(choices, seed=seed, shuffle=shuffle)
