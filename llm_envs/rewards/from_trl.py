"""Reward functions of TRL's form, `(prompts, completions, completion_ids, **columns) -> rewards`, as ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.base import BatchRewardFn, Score
from llm_envs.rewards.functions import name_of
from llm_envs.rewards.words import own_messages, own_words
from llm_envs.types import Trajectory

__all__ = ["trl_reward"]

Form = Literal["conversational", "text"]
_OURS = {"prompt", "completion", "completion_ids"}
"""Columns of a data set that TRL does not pass on."""


def trl_reward(
    function: Callable[..., Sequence[float | None]], *, form: Form = "conversational", name: str | None = None
) -> BatchRewardFn:
    """Make a reward function from one of TRL's form, such as `trl.rewards.think_format_reward`.

    It gets, for all episodes of a generation that have a score:

    - `prompts`: what the model saw before its first reply; `completions`: all messages from there on.
    - `completion_ids`: the tokens of the completions; empty for a policy without tokens.
    - The fields of the given problem (`PromptTask`, `PromptSource`, a data set), as TRL passes a data set's columns; an
      episode without the field has None.
    - The columns of our `rollout_func`: `trajectory_reward`, `reward_components`, `is_success`, `stop_reason`,
      `n_turns`.

    It does not get `trainer_state`, `log_extra`, `log_metric` and `environments`. None leaves an episode unscored,
    where TRL only leaves out this function's reward.

    Args:
        function: The function. It is called with the arguments that it names, or with all if it has `**kwargs`.
        form: "conversational": prompts and completions are lists of messages, as TRL gives them for a data set of
            conversations. "text": texts; of several messages joined by line breaks, in completions only the model's.
        name: Name of its part; None takes the function's.

    Raises:
        InvalidConfigError: If the form is unknown, or the function is asynchronous; when called, if it needs an
            argument that does not exist.
    """
    if form not in ("conversational", "text"):
        raise InvalidConfigError(f"trl_reward: form={form!r}; it must be 'conversational' or 'text'.")
    if inspect.iscoroutinefunction(function):
        raise InvalidConfigError(f"trl_reward: {name_of(function)} is asynchronous, which is not supported.")
    return _TRLReward(function, form, name or name_of(function))


@dataclass(frozen=True)
class _TRLReward:
    function: Callable[..., Sequence[float | None]]
    form: Form
    __name__: str

    def __call__(self, trajectory: Trajectory) -> Score:
        return self.score_batch([trajectory])[0]

    def score_batch(self, trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        given = arguments_of(trajectories, self.form)
        parameters = inspect.signature(self.function).parameters.values()
        needed = {
            p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        if missing := sorted(needed - given.keys()):
            raise InvalidConfigError(
                f"the reward function {self.__name__!r} needs {', '.join(missing)}; the episodes have "
                f"{', '.join(given)}."
            )
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            given = {p.name: given[p.name] for p in parameters if p.name in given}
        return list(self.function(**given))


def arguments_of(trajectories: Sequence[Trajectory], form: Form) -> dict[str, list[Any]]:
    """Return the arguments that TRL would pass for these episodes, a list each."""
    prompts, completions, ids = [], [], []
    for trajectory in trajectories:
        first = next(iter(own_messages(trajectory)), len(trajectory.messages))
        before, after = trajectory.messages[:first], trajectory.messages[first:]
        if form == "text":
            prompts.append("\n".join(message.content for message in before))
            completions.append(own_words(trajectory))
        else:
            prompts.append([message.to_dict() for message in before])  # type: ignore[arg-type]
            completions.append([message.to_dict() for message in after])  # type: ignore[arg-type]
        row = trajectory.rows[0] if trajectory.rows else None
        ids.append([] if row is None else row.ids[row.prompt_length :].tolist())
    problems = [(t.metadata.get("options") or {}).get("problem") or {} for t in trajectories]
    fields = dict.fromkeys(name for problem in problems for name in problem if name not in _OURS)
    return {
        "prompts": prompts,
        "completions": completions,
        "completion_ids": ids,
        "trajectory_reward": [t.reward for t in trajectories],
        "reward_components": [dict(t.components) for t in trajectories],
        "is_success": [t.is_success for t in trajectories],
        "stop_reason": [t.stop_reason.value for t in trajectories],
        "n_turns": [len(t.turns) for t in trajectories],
        **{name: [problem.get(name) for problem in problems] for name in fields},
    }
