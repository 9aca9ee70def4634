"""Gymnasium wrappers for text environments, which change a task's observations, rewards and limits.

    env = StepCost(TurnLimit(gym.make("llm/GuessNumber-v0"), 5), 0.01)

All keep the data that a collector reads (`system_prompt`, `tools`, `info["messages"]`, the reward's components,
`is_success`) consistent with their changes. They work with `EnvSpec` and pickle, and do not affect
`env.unwrapped.oracle()`. An observation that a task gives as messages keeps their roles. Environments composed of
several others are in `mixtures.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium as gym

from llm_envs.env import TextEnv
from llm_envs.env.tool import messages_of_results
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import parse_reply
from llm_envs.problems import as_number, check_at_least
from llm_envs.rewards import weighted_sum
from llm_envs.tools.base import Tool
from llm_envs.tools.executor import Toolbox, run_calls
from llm_envs.tools.toolset import Toolset
from llm_envs.types import ToolResult

__all__ = [
    "AddTools",
    "FormatObservation",
    "StepCost",
    "StripThinking",
    "TruncateObservation",
    "TurnLimit",
]

Info = dict[str, Any]
Stepped = tuple[str, SupportsFloat, bool, bool, Info]


class TextWrapper(gym.Wrapper[str, str, str, str], gym.utils.RecordConstructorArgs):
    """Base of all wrappers. It records its arguments, so that the environment can be saved and made again."""

    def __init__(self, env: gym.Env[str, str], **kwargs: Any) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, **kwargs)
        gym.Wrapper.__init__(self, env)

    def inner(self, name: str) -> Any:
        """Return an attribute of the wrapped environment, through its own wrappers."""
        return self.env.get_wrapper_attr(name)


class TurnLimit(TextWrapper):
    """Truncates an episode after a number of turns, and then reports no success.

    The agent does not see the limit, and the task's prompt may name a higher one. Use `FormatObservation` to show it.

    Args:
        env: The environment to limit.
        max_turns: At least 1. A lower limit of the task stays.

    Raises:
        InvalidConfigError: If the limit is below 1.
    """

    def __init__(self, env: gym.Env[str, str], max_turns: int) -> None:
        check_at_least(type(self).__name__, "max_turns", max_turns, 1)
        super().__init__(env, max_turns=max_turns)
        self._limit = max_turns
        self._n_turns = 0

    @property
    def max_turns(self) -> int:
        """The lower of both limits."""
        return min(self._limit, int(self.inner("max_turns")))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode."""
        self._n_turns = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Stepped:
        """Take a turn; the last one ends the episode."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._n_turns += 1
        if self._n_turns >= self._limit and not (terminated or truncated):
            truncated, info = True, {**info, "is_success": False}
        return observation, reward, terminated, truncated, info


class StepCost(TextWrapper):
    """Makes every turn cost something, as a separate reward component.

    Args:
        env: The environment.
        cost: Subtracted from the reward of each turn, above 0.
        component: Its name among the components; its weight is `-cost`, its value 1.

    Raises:
        InvalidConfigError: If the cost is not above 0, or the task has a component with this name.
    """

    def __init__(self, env: gym.Env[str, str], cost: float, component: str = "steps") -> None:
        if not cost > 0:
            raise InvalidConfigError(f"StepCost: cost is {cost!r}; it must be above 0.")
        super().__init__(env, cost=cost, component=component)
        if component in self.inner("reward_weights"):
            raise InvalidConfigError(
                f"StepCost: the task has a reward component {component!r}: choose another component=."
            )
        self._cost, self._component = float(cost), component

    @property
    def reward_weights(self) -> Mapping[str, float]:
        """The task's weights and the cost's."""
        return {**self.inner("reward_weights"), self._component: -self._cost}

    def step(self, action: str) -> Stepped:
        """Take a turn and subtract its cost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "reward_components": {**info["reward_components"], self._component: 1.0}}
        return observation, as_number(reward) - self._cost, terminated, truncated, info


class StripThinking(TextWrapper):
    """Removes thinking from a reply before the task reads it, for tasks that do not expect it.

    It removes complete `<think>...</think>` blocks, and text before a closing tag whose opening tag is in the prompt.
    Thinking that never ends stays, because the reply has nothing else.

    Args:
        env: The environment.
    """

    def step(self, action: str) -> Stepped:
        """Play the rest of the reply."""
        return self.env.step(_THOUGHTS.sub("", _THOUGHT_IN_PROMPT.sub("", action, count=1)).strip())


_THOUGHTS = re.compile(r"<think>(?:(?!<think>).)*?</think>", re.DOTALL)
_THOUGHT_IN_PROMPT = re.compile(r"\A(?:(?!<think>).)*?</think>", re.DOTALL)


class TruncateObservation(TextWrapper):
    """Cuts long observations in the middle: a tool's result can be longer than a model's context.

    Args:
        env: The environment.
        max_characters: Limit of an observation; if it consists of messages, of each message.
        marker: Replaces the removed text; "{n}" in it becomes the number of characters.

    Raises:
        InvalidConfigError: If the marker leaves no room.
    """

    def __init__(
        self, env: gym.Env[str, str], max_characters: int, marker: str = "\n[... {n} characters left out ...]\n"
    ) -> None:
        check_at_least(type(self).__name__, "max_characters", max_characters, len(marker) + 20)
        super().__init__(env, max_characters=max_characters, marker=marker)
        self._max, self._marker = max_characters, marker

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode."""
        return changed_observation(*self.env.reset(seed=seed, options=options), [self._cut])

    def step(self, action: str) -> Stepped:
        """Take a turn."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = changed_observation(observation, info, [self._cut])
        return observation, reward, terminated, truncated, info

    def _cut(self, text: str) -> str:
        if len(text) <= self._max:
            return text
        marker = self._marker.replace("{n}", str(len(text)))
        kept = self._max - len(marker)
        marker = self._marker.replace("{n}", str(len(text) - kept))
        head = kept - kept // 2
        return text[:head] + marker + text[len(text) - kept // 2 :]


class FormatObservation(TextWrapper):
    """Adds text around each observation: the turn, a reminder of the answer's form, a heading.

    Args:
        env: The environment.
        template: With "{observation}" once; "{turn}" is the coming turn, from 1, "{max_turns}" the limit and
            "{turns_left}" the remaining turns. If an observation consists of messages, the first one gets the text
            before and the last one the text after it.
        first: Another template for the first observation; None: the same.
        last: Another for the observation that ends an episode and gets no reply; None leaves it unchanged.

    Raises:
        InvalidConfigError: If a template has another field, or not exactly one "{observation}".
    """

    def __init__(
        self, env: gym.Env[str, str], template: str, first: str | None = None, last: str | None = None
    ) -> None:
        for given in (template, first, last):
            _check_template(given)
        super().__init__(env, template=template, first=first, last=last)
        self._template, self._first, self._last = template, first or template, last
        self._turn = 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._turn = 1
        return changed_observation(observation, info, self._around(self._first))

    def step(self, action: str) -> Stepped:
        """Take a turn."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._turn += 1
        template = self._last if terminated or truncated else self._template
        if template is not None:
            observation, info = changed_observation(observation, info, self._around(template))
        return observation, reward, terminated, truncated, info

    def _around(self, template: str) -> list[Callable[[str], str]]:
        max_turns = int(self.inner("max_turns"))
        fields = {"turn": self._turn, "max_turns": max_turns, "turns_left": max(max_turns - self._turn + 1, 0)}
        before, after = (part.format(**fields) for part in template.split("{observation}"))
        return [lambda text: before + text, lambda text: text + after]


class AddTools(TextWrapper):
    """Gives a task tools that it does not have. A reply with tool calls is answered by their results.

    A reply without calls, or a broken one, goes to the task.

    Args:
        env: A task without tools; usually one with a single turn.
        make_tools: Makes typed functions, `Tool`s, `Toolset`s or `PythonTool`s for this environment; or a sequence of
            functions and `Tool`s without state.
        max_turns: Replies of an episode; after the last one it is truncated.
        timeout_s: Limit in seconds of each call, for tools without their own limit.

    A reply that calls an unknown tool, or with wrong arguments, gets 1 for the component `malformed`, if the task
    declares it. All other components of a reply with calls are 0.

    Raises:
        InvalidConfigError: If the limit is below 2; from `reset`, if the task already has tools.
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        make_tools: Callable[[], Any] | Sequence[Tool | Callable[..., Any]],
        max_turns: int = 4,
        timeout_s: float | None = None,
    ) -> None:
        check_at_least(type(self).__name__, "max_turns", max_turns, 2)
        # Tools are functions and are not copied: a copy of a toolset would be another toolset.
        gym.utils.RecordConstructorArgs.__init__(
            self, make_tools=make_tools, max_turns=max_turns, timeout_s=timeout_s, _disable_deepcopy=True
        )
        super().__init__(env)
        given = make_tools() if callable(make_tools) and not isinstance(make_tools, Toolset) else make_tools
        self._toolbox = Toolbox(given, self)
        self._timeout_s, self.max_turns = timeout_s, max_turns
        self.blocking = bool(self.inner("blocking")) or self._toolbox.blocking
        self.tools = [tool.schema for tool in self._toolbox.values()]
        self.tool_results: tuple[ToolResult, ...] = ()
        self._n_turns = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self.inner("tools"):
            raise InvalidConfigError(f"AddTools: {type(self.env.unwrapped).__name__} already has tools.")
        self._n_turns, self.tool_results = 0, ()
        if self._toolbox.keeps_state:
            self._toolbox.reset(self.inner("problem"), self.env.unwrapped.np_random)
        return observation, info

    def step(self, action: str) -> Stepped:
        """Run the reply's calls, or let the task judge it."""
        self._n_turns += 1
        is_last = self._n_turns >= self.max_turns
        reply = parse_reply(action)
        if reply.problems or not reply.tool_calls:
            self.tool_results = ()
            observation, reward, terminated, truncated, info = self.env.step(action)
            if is_last and not (terminated or truncated):
                truncated, info = True, {**info, "is_success": False}
            return observation, reward, terminated, truncated, info
        results = self.tool_results = run_calls(self._toolbox, reply.tool_calls[:_MAX_CALLS], timeout_s=self._timeout_s)
        messages, malformed = messages_of_results(reply.tool_calls, results)
        weights: Mapping[str, float] = self.inner("reward_weights")
        components = dict.fromkeys(weights, 0.0)
        if "malformed" in components:
            components["malformed"] = float(malformed)
        if isinstance(self.unwrapped, TextEnv):
            self.unwrapped.limit(components)
        info = {"reward_components": components, "messages": messages}
        if is_last:
            info["is_success"] = False
        text = "\n".join(str(message["content"]) for message in messages)
        return text, weighted_sum(components, weights), False, is_last, info

    def close(self) -> None:
        """Close the toolsets, and the task."""
        self._toolbox.close()
        super().close()


_MAX_CALLS = 16
"""Per reply, as in a `ToolEnv`."""


def changed_observation(observation: str, info: Info, changes: Sequence[Callable[[str], str]]) -> tuple[str, Info]:
    """Return observation and info with the text changed: one function changes every message, two the first and last."""
    messages = info.get("messages")
    if not messages:
        for change in changes:
            observation = change(observation)
        return observation, info
    messages = [dict(message) for message in messages]
    if len(changes) == 1:
        for message in messages:
            message["content"] = changes[0](message["content"])
    else:
        messages[0]["content"] = changes[0](messages[0]["content"])
        messages[-1]["content"] = changes[1](messages[-1]["content"])
    return "\n".join(message["content"] for message in messages), {**info, "messages": messages}


def _check_template(template: str | None) -> None:
    if template is None:
        return
    try:
        template.format(observation="", turn=1, max_turns=1, turns_left=1)
    except (KeyError, IndexError, ValueError) as error:
        raise InvalidConfigError(
            f"FormatObservation: {template!r} cannot be filled ({type(error).__name__}: {error}); its fields are "
            "{observation}, {turn}, {max_turns} and {turns_left}, and other braces are doubled."
        ) from error
    if template.count("{observation}") != 1:
        raise InvalidConfigError(f"FormatObservation: {template!r} must have {{observation}} once.")
