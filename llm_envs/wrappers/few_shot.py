"""Solved problems before the question: a wrapper that shows how the oracle solves problems of the train split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from llm_envs.env import TextEnv, canonical_json
from llm_envs.errors import InvalidConfigError
from llm_envs.problems import check_at_least, check_choice
from llm_envs.wrappers.text import Info, TextWrapper, changed_observation

__all__ = ["FewShot"]

_TRIES = 50
"""Episodes of the oracle for each problem that is needed: it may fail, or draw a problem again."""
_SPEAKERS = {"user": "User", "assistant": "Assistant", "tool": "Tool", "system": "System"}


Shots = Mapping[str, Sequence[Mapping[str, Any]]]
"""Key of a problem that the oracle solved -> the conversation, without the last observation, which gets no reply."""


class FewShot(TextWrapper):
    """Shows solved problems before the question.

    The oracle solves `k` problems of the train split in a second environment, made from this environment's spec. Every
    episode shows the same ones, so that the prompts share their beginning. Only an example that is the asked problem,
    or is equivalent to it, is replaced by another one. Wrap this around the other wrappers, so that the examples go
    through them too.

    Args:
        env: An environment from `gymnasium.make`, with an oracle and the argument `split`.
        k: Solved problems, at least 1.
        form: "turns": as earlier turns of the conversation, with tool results where there are any. They are part of the
            prompt and never trained on. "prompt": as text in the first observation.
        seed: Decides which problems are shown.

    Raises:
        InvalidConfigError: If `k` is below 1, the form is unknown, the environment has no oracle or no spec, or the
            level has too few problems.
    """

    def __init__(self, env: gym.Env[str, str], k: int, form: str = "turns", seed: int = 0) -> None:
        check_at_least(type(self).__name__, "k", k, 1)
        check_choice(type(self).__name__, "form", form, ("turns", "prompt"))
        task = type(env.unwrapped).__name__
        if not hasattr(env.unwrapped, "oracle"):
            raise InvalidConfigError(f"FewShot: {task} has no oracle to solve the examples: it needs oracle() -> str.")
        super().__init__(env, k=k, form=form, seed=seed)
        if env.spec is None:
            raise InvalidConfigError(
                f"FewShot: this {task} has no spec, so a second one for the examples cannot be made from it: register "
                "the task and make it with gymnasium.make."
            )
        self._k, self._form = k, form
        self._shots = _solve(env.spec, k + 1, seed)  # one more, in place of the asked problem

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start an episode, after the solved problems."""
        observation, info = self.env.reset(seed=seed, options=options)
        asked = _key(self.env, observation)
        shots = [shot for key, shot in self._shots.items() if key != asked][: self._k]
        if self._form == "prompt":
            shown = _as_text(shots)
            return changed_observation(observation, info, [lambda text: shown + text, lambda text: text])
        messages = [dict(message) for shot in shots for message in shot] + _messages(observation, info)
        return "\n".join(message["content"] for message in messages), {**info, "messages": messages}


def _solve(spec: EnvSpec, n: int, seed: int) -> Shots:
    """Return `n` solved problems of an environment's train split."""
    try:
        written = spec.to_json()
    except (TypeError, ValueError, AttributeError):  # a class or function in the spec, such as the tools of `AddTools`
        return _play(spec, n, seed)
    return _play_written(written, n, seed)


@lru_cache(maxsize=256)
def _play_written(spec: str, n: int, seed: int) -> Shots:
    # Cached, because a collector makes an environment for each episode.
    return _play(EnvSpec.from_json(spec), n, seed)


def _play(spec: EnvSpec, n: int, seed: int) -> Shots:
    spec = copy(spec)
    spec.kwargs = {**spec.kwargs, "split": "train"}
    spec.disable_env_checker = True
    shots: dict[str, Sequence[Mapping[str, Any]]] = {}
    env = gym.make(spec)
    try:
        env.reset(seed=seed)
        for _ in range(_TRIES * n):
            key, shot = _solved(env)
            if shot is not None:
                shots.setdefault(key, shot)
            if len(shots) == n:
                return shots
    finally:
        env.close()
    raise InvalidConfigError(
        f"FewShot: {_TRIES * n} episodes of {spec.id}'s oracle solved {len(shots)} different problems of the train "
        f"split, but k={n - 1} needs {n}, one in reserve: give a smaller k, or a level with more problems."
    )


def _solved(env: gym.Env[str, str]) -> tuple[str, list[dict[str, Any]] | None]:
    """Play the oracle's episode of the next problem; return its key, and its conversation if it succeeded."""
    observation, info = env.reset()
    key, messages, is_over = _key(env, observation), list[dict[str, Any]](), False
    while not is_over:
        messages += _messages(observation, info)
        # An oracle writes only the answer; published solutions have the steps too.
        solve = getattr(env.unwrapped, "worked_answer", None) or env.unwrapped.oracle  # type: ignore[attr-defined]
        action = str(solve())
        messages.append({"role": "assistant", "content": action})
        observation, _, terminated, truncated, info = env.step(action)
        is_over = terminated or truncated
    return key, messages if info.get("is_success") else None


def _key(env: gym.Env[str, str], observation: str) -> str:
    """Return a key that equivalent problems share."""
    task = env.unwrapped
    if not isinstance(task, TextEnv):
        return observation
    if task.disjoint_splits:
        return canonical_json(task.split_key(task.problem))
    # Here all problems may have one split key, because the level has too few to divide.
    return canonical_json({name: value for name, value in task.problem.items() if name not in task.luck_fields})


def _messages(observation: str, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = info.get("messages")
    if listed and "\n".join(message["content"] for message in listed) == observation:
        return [dict(message) for message in listed]
    return [{"role": "user", "content": observation}]


def _as_text(shots: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    examples = [
        "\n".join([f"Example {number}", *(f"{_SPEAKERS[message['role']]}: {message['content']}" for message in shot)])
        for number, shot in enumerate(shots, 1)
    ]
    count = "Here is a solved example." if len(shots) == 1 else f"Here are {len(shots)} solved examples."
    return "\n\n".join([count, *examples, "Now it is your turn.\n\n"])
