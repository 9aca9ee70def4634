"""Environments for TRL's tool loop: a class whose public methods are the tools.

TRL samples, parses and calls the tools. We write each call in the canonical form and pass it to the environment's
`step`. At the end, we step with the assistant's last message too. Each rollout has one environment, which is reused for
the next batch.
"""

from __future__ import annotations

import inspect
import json
import keyword
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Union

from datasets import Dataset

from llm_envs.chat.context import observed_messages
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_tool_call
from llm_envs.rollout.checks import check_success
from llm_envs.rollout.workers.runner import EnvMaker, check_reset, check_step, env_attribute
from llm_envs.sources.source import Envs
from llm_envs.trainers.episodes.items import make_items
from llm_envs.types import Message

__all__ = ["TOOL_LOOP_STOPS", "ToolLoopEpisode", "environment_factory", "prompt_dataset"]

TOOL_LOOP_STOPS = ("terminated", "env_truncated", "tool_loop")
"""Why a scored episode ended: a value of `StopReason`, or the end of TRL's tool loop."""

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
    "object": dict,
}
_OVER = "Error: the episode is over."


def prompt_dataset(
    env: Envs, n: int, *, split: str = "train", seed: int = 0, env_kwargs: Mapping[str, Any] | None = None
) -> Dataset:
    """Return the data set for `environment_factory`: the first messages of `n` episodes with different seeds.

    Args:
        env: Id of a registered environment, or a factory.
        n: Distinct episodes: the rows of one epoch.
        split: Split of the environment.
        seed: Run seed, which maps numbers to problems; `seed=args.seed` gives `EnvGRPOTrainer`'s.
        env_kwargs: Keyword arguments of the environment, the same as for `environment_factory`.

    Returns:
        A data set with the columns `prompt` (messages), `index`, `split` and `seed` (the environment's).
    """
    items = make_items(env, split, n, seed=seed, env_kwargs=dict(env_kwargs or {}))
    made = _maker(env, split, env_kwargs)()
    seeds = [items.spec(index, "").seed for index in range(n)]
    prompts = []
    for env_seed in seeds:
        observation, info = check_reset(made.reset(seed=env_seed))
        prompts.append([{"role": m.role, "content": m.content} for m in _opening(made, observation, info)])
    made.close()
    return Dataset.from_dict({"prompt": prompts, "index": list(range(n)), "split": [split] * n, "seed": seeds})


def environment_factory(env: Envs, *, env_kwargs: Mapping[str, Any] | None = None, seed: int = 0) -> type:
    """Return an `environment_factory` for TRL's `GRPOTrainer`: a class whose public methods are the tools.

    - If the environment has tools, these are the methods, with signatures and docstrings from their JSON Schemas.
    - A single-turn environment has no method: it is stepped with the model's reply when the reward is computed.
    - A multi-turn environment without tools has one method, `act(text)`, which steps it.

    Read the rewards with `env_reward` or `component_reward`. The tools are the environment's after a first
    reset.

    Args:
        env: Id of a registered environment, or a factory.
        env_kwargs: Keyword arguments of the environment, the same as for `prompt_dataset`.
        seed: Seed of that first reset.

    Raises:
        InvalidConfigError: If a tool cannot be a method, or the environment does not parse calls in the canonical form.
    """
    probe = _maker(env, "train", env_kwargs)()
    # Some environments have their tools only after a reset.
    probe.reset(seed=seed)
    schemas = [tool["function"] for tool in env_attribute(probe, "tools", ()) or ()]
    members: dict[str, Any] = {}
    for schema in schemas:
        _check_tool(probe, schema["name"])
        members[schema["name"]] = _method(schema, partial(_write_call, schema["name"]))
    if not schemas and not _is_single_turn(probe):
        members["act"] = _method(_ACT, _as_text)
    name, doc = type(probe.unwrapped).__name__, f"{_maker(env, 'train', env_kwargs).env_id} for TRL's tool loop."
    probe.close()

    def __init__(self: Any) -> None:
        self._episode = ToolLoopEpisode(env, env_kwargs)

    def reset(self: Any, **row: Any) -> None:
        self._episode.begin(row)

    # TRL takes every public method as a tool, so the logic is in the private `_episode`.
    return type(name, (), {"__doc__": doc, "__init__": __init__, "reset": reset, **members})


class ToolLoopEpisode:
    """The episode of one rollout of TRL's tool loop."""

    def __init__(self, env: Envs, env_kwargs: Mapping[str, Any] | None) -> None:
        self._given, self._env_kwargs = env, env_kwargs
        self._envs: dict[str, Any] = {}  # by split
        self._env: Any = None
        self._is_over = True
        self.error: Exception | None = None
        """The environment's error. The episode then has no reward; it is never scored as 0."""

    def begin(self, row: Mapping[str, Any]) -> None:
        """Start the episode of a row of `prompt_dataset`. An error of the environment is stored in `error`, not raised.

        Raises:
            InvalidConfigError: If the row has missing columns, or the environment's first messages are not its prompt.
        """
        if missing := sorted({"prompt", "split", "seed"} - row.keys()):
            raise InvalidConfigError(
                f"the data set has no {' and no '.join(missing)}: give train_dataset=prompt_dataset(env, n)."
            )
        self.reward, self.components, self.n_turns = 0.0, dict[str, float](), 0
        self.is_success, self.stop_reason = False, "tool_loop"
        self._is_over, self._is_finished, self.error = False, False, None
        split = row["split"]
        try:
            if split not in self._envs:
                self._envs[split] = _maker(self._given, split, self._env_kwargs)()
            self._env = self._envs[split]
            observation, info = check_reset(self._env.reset(seed=row["seed"]))
            opening = [(m.role, m.content) for m in _opening(self._env, observation, info)]
        except Exception as error:
            self._fail(error)
            return
        if opening != [(m["role"], m["content"]) for m in row["prompt"]]:
            raise InvalidConfigError(
                f"the environment opens with {opening!r:.200}, the row's prompt is {row['prompt']!r:.200}: give "
                "prompt_dataset and environment_factory the same environment and env_kwargs."
            )

    def step(self, text: str) -> str:
        """Step the environment with the assistant's text; return its observation."""
        if self._is_over:
            return _OVER
        try:
            observation, reward, terminated, truncated, info = check_step(self._env.step(text))
        except Exception as error:
            self._fail(error)
            return f"Error: {error}"
        self.reward += reward
        self.n_turns += 1
        for name, value in info.get("reward_components", {}).items():
            self.components[name] = self.components.get(name, 0.0) + value
        if terminated or truncated:
            self._is_over, self.is_success = True, check_success(info)
            self.stop_reason = "terminated" if terminated else "env_truncated"
        return observation

    def finish(self, completion: Sequence[Mapping[str, Any]]) -> None:
        """Step the environment with the assistant's last message, unless it is a call. A second call does nothing."""
        # Every reward function calls this, and the environment must take the last step once.
        if self._is_finished:
            return
        self._is_finished = True
        last = completion[-1] if completion else {}
        if last.get("role") == "assistant" and not last.get("tool_calls"):
            self.step(str(last.get("content") or ""))

    def outcome(self) -> dict[str, Any]:
        """Return the outcome, under the names that the reward functions use."""
        scored = self.error is None
        return {
            "reward": self.reward if scored else None,
            "components": self.components,
            "is_success": self.is_success if scored else None,
            "stop_reason": self.stop_reason,
            "n_turns": self.n_turns,
        }

    def _fail(self, error: Exception) -> None:
        self.error, self._is_over, self.stop_reason = error, True, "error"


_ACT: Mapping[str, Any] = {
    "name": "act",
    "description": "Say something to the environment and read its answer.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What you say, exactly as the task asks for it."}},
        "required": ["text"],
    },
}


def _as_text(text: str) -> str:
    return text


def _write_call(tool: str, /, **arguments: Any) -> str:
    """Return a call in the canonical form. `format_tool_call` does not work for a parameter called `name`."""
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _method(schema: Mapping[str, Any], write: Callable[..., str]) -> Any:
    """Return a method that steps the environment with `write(**arguments)`, with a tool's signature and docstring.

    The method accepts any arguments; `write` or the environment rejects the wrong ones.
    """
    name, parameters = schema["name"], schema.get("parameters", {})
    properties, required = parameters.get("properties", {}), parameters.get("required", ())

    def method(self: Any, /, **arguments: Any) -> str:
        return str(self._episode.step(write(**arguments)))

    signature = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for parameter, kind in properties.items():
        if not parameter.isidentifier() or keyword.iskeyword(parameter):
            raise InvalidConfigError(f"the tool {name!r} has a parameter {parameter!r}, which no method can have.")
        empty = inspect.Parameter.empty
        default = empty if parameter in required else kind.get("default")
        signature.append(
            inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=_hint(kind), default=default)
        )
    method.__name__ = method.__qualname__ = name
    method.__annotations__ = {parameter: _hint(kind) for parameter, kind in properties.items()}
    # transformers makes the tool's schema from name, signature and docstring.
    method.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    method.__doc__ = _docstring(schema.get("description", ""), properties)
    return method


def _docstring(description: str, properties: Mapping[str, Mapping[str, Any]]) -> str:
    # transformers rejects a parameter without a description, so use its name instead.
    texts = {name: " ".join(str(kind.get("description", "")).split()) or name for name, kind in properties.items()}
    lines = [f"    {name}: {text}" for name, text in texts.items()]
    return "\n".join([description.strip() or "A tool.", *(["", "Args:", *lines] if lines else [])])


def _hint(kind: Mapping[str, Any]) -> Any:
    """Return the type for which transformers generates the JSON Schema nearest to this one."""
    if "enum" in kind:
        return Literal[tuple(kind["enum"])]
    options = kind.get("anyOf") or kind.get("oneOf")
    if options:
        return Union[tuple(_hint(option) for option in options)]  # noqa: UP007 - of a tuple
    names = kind.get("type")
    if isinstance(names, list):
        return Union[tuple(_hint({**kind, "type": one}) for one in names)]  # noqa: UP007
    if names == "array":
        return list[_hint(kind["items"])] if kind.get("items") else list  # type: ignore[misc]
    return _TYPES.get(str(names), Any)


def _check_tool(env: Any, name: str) -> None:
    if name in ("reset", "get_reward") or name.startswith("_"):
        raise InvalidConfigError(f"a tool is called {name!r}, which TRL takes for a method of its own: rename it.")
    read = getattr(env.unwrapped, "parse_reply", None)
    if read is not None and [call.name for call in read(format_tool_call(name)).tool_calls] != [name]:
        raise InvalidConfigError(
            f"{type(env.unwrapped).__name__} does not read tool calls in the canonical form, <tool_call>: play it "
            "through rollout_func, which gives it the model's own words."
        )


def _is_single_turn(env: Any) -> bool:
    spec_limit = None if env.spec is None else env.spec.max_episode_steps
    return env_attribute(env, "max_turns", spec_limit) == 1


def _opening(env: Any, observation: object, info: Mapping[str, Any]) -> list[Message]:
    """Return the first messages of an episode."""
    system_prompt = env_attribute(env, "system_prompt", None)
    return [*([Message("system", system_prompt)] if system_prompt else []), *observed_messages(observation, info)]


def _maker(env: Envs, split: str, env_kwargs: Mapping[str, Any] | None) -> EnvMaker:
    items = make_items(env, split, 1, seed=0, env_kwargs=dict(env_kwargs or {}))
    if len(items.source.choices) > 1:
        raise InvalidConfigError(
            "one environment at a time: for several give TRL a dict of factories, {name: environment_factory(env)}, "
            "and a data set with a column `environment`."
        )
    (choice,) = items.source.choices
    return EnvMaker(choice.env_id, choice.kwargs, choice.factory)
