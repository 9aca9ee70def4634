"""The process in which `workers.WorkerPool` runs environments, one at a time.

Requests are pickles of (name, *arguments): what the host sends is code that runs here. Each has one reply, in order:
("ok", value) or ("error", (its classes, message, traceback)), as plain data (`wire`). The process ends with its parent:
when the parent's end of the lifeline closes, the kernel kills it and everything that it has started in its process
group, even in the middle of a call.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import socket
import sys
import traceback
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.processes.child import end_group, end_with_host, take_standard_input
from llm_envs.rollout.workers.frames import KEY_BYTES, MAX_FRAME_BYTES, Frames
from llm_envs.rollout.workers.runner import call, check_reset, check_step, env_attribute, make_env
from llm_envs.rollout.workers.wire import MAX_TARGETS, dump_plain, error_bases, error_text

__all__ = ["main"]

_TRACE_CHARACTERS = 4_000
_ABSENT = object()


class _Host:
    """The environment of the current episode, and the factories. Has a method for each request."""

    def __init__(self) -> None:
        self.env: gym.Env[str, str] | None = None
        self.targets: dict[int, Any] = {}

    def load(self, key: int, pickled: bytes) -> None:
        """Import an environment factory, and keep it under `key`."""
        try:
            target = pickle.loads(pickled)
            if isinstance(target, EnvSpec) and isinstance(target.entry_point, str):
                load_env_creator(target.entry_point)
        except Exception as error:
            raise InvalidConfigError(
                f"the environment's factory cannot be loaded in a worker process: {type(error).__name__}: "
                f"{error_text(error)}. It must be in a module that can be imported there, or pickle by value; "
                "an environment server finds FILE.py with `llm-envs serve-envs FILE.py:NAME`."
            ) from error
        if len(self.targets) >= MAX_TARGETS:
            self.targets.clear()
        self.targets[key] = target

    def make(self, key: int, pickled_kwargs: bytes) -> None:
        self.env = call(make_env, self.targets[key], pickle.loads(pickled_kwargs))

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, ...]:
        """Reset it; return the checked result and the attributes that a reset sets."""
        result = check_reset(call(self._env.reset, seed=seed, options=options))
        return *result, self._shown("system_prompt", "tools", "tool_results")

    def step(self, action: str) -> tuple[Any, ...]:
        """Step it; return the checked result and the attributes that a step sets."""
        return *check_step(call(self._env.step, action)), self._shown("tool_results")

    def look(self, name: str, is_base: bool) -> tuple[str, Any]:
        """Return an attribute of the environment, or of the one inside all wrappers. Of a method, only its kind."""
        value = self._attribute(name, is_base)
        if value is _ABSENT:
            return "absent", None
        return ("method", None) if callable(value) else ("value", value)

    def ask(self, name: str, is_base: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return call(self._attribute(name, is_base), *args, **kwargs)

    def close(self) -> None:
        env, self.env = self.env, None
        with contextlib.suppress(BaseException):
            if env is not None:
                env.close()

    @property
    def _env(self) -> gym.Env[str, str]:
        assert self.env is not None, "the parent makes an environment first"
        return self.env

    def _attribute(self, name: str, is_base: bool) -> Any:
        return env_attribute(self._env.unwrapped if is_base else self._env, name, _ABSENT)

    def _shown(self, *names: str) -> dict[str, Any]:
        values = {name: env_attribute(self._env, name, _ABSENT) for name in names}
        return {name: value for name, value in values.items() if value is not _ABSENT}


def _answer(host: _Host, name: str, arguments: tuple[Any, ...]) -> bytes:
    """Return the reply to a request, even if it raises."""
    try:
        reply = dump_plain(("ok", getattr(host, name)(*arguments)))
        if len(reply) > MAX_FRAME_BYTES:
            raise EnvContractError(
                f"the result of env.{name} has {len(reply)} bytes; a worker process can return at most "
                f"{MAX_FRAME_BYTES}."
            )
        return reply
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: the environment raised them
        return dump_plain(("error", (error_bases(type(error)), error_text(error), _trace(error))))


def _trace(error: BaseException) -> str:
    try:
        lines = traceback.format_exception(error, limit=-8, chain=False)
        return "".join(lines)[-_TRACE_CHARACTERS:].strip()
    except Exception:  # the exception cannot be printed
        return ""


def _serve(control: socket.socket, frames: Frames) -> None:
    host = _Host()
    _send(control, frames.pack(dump_plain(("ok", os.getpid()))))
    while True:
        try:
            request = frames.receive(control)
        except OSError:  # the host is gone, or somebody else has sent something
            end_group()
        name, *arguments = pickle.loads(request)
        reply = _answer(host, name, tuple(arguments))
        for stream in (sys.stdout, sys.stderr):  # so that its output is visible even if it is killed later
            with contextlib.suppress(Exception):
                stream.flush()
        _send(control, frames.pack(reply))
        del request, arguments, reply


def _send(control: socket.socket, frame: bytes) -> None:
    try:
        control.sendall(frame)
    except OSError:  # the environment has closed a descriptor that it did not open
        os._exit(1)


def main(lifeline: int) -> None:
    """Answer requests on standard input until the parent ends the process.

    Args:
        lifeline: Descriptor of a pipe's read end. It holds the key of the frames; then it only closes.
    """
    key = os.read(lifeline, KEY_BYTES)
    end_with_host(lifeline)
    control = take_standard_input()
    with contextlib.suppress(Exception):
        faulthandler.enable()  # prints where a fault happened
    sys.argv = ["llm-envs-worker"]
    with control:
        _serve(control, Frames(key, "worker", is_host=False))
