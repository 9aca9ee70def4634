"""The registry: which tasks there are, ours and other people's.

Tasks come from the entry-point group `llm_envs.tasks` of any installed distribution:

- an entry point whose *name* is an environment id, `"my/Task-v0" = "my_package.task:TaskEnv"`, is registered as a
  string: nothing of it is imported before `gymnasium.make`;
- any other is loaded at discovery, and called if it is callable; it calls `register_task` itself.

A distribution that fails is reported by one warning and leaves the others as they are.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from llm_envs.errors import DuplicateTaskError, InvalidConfigError, UnknownTaskError

__all__ = ["ENTRY_POINT_GROUP", "TaskPackageWarning", "discover", "register_task", "task_ids", "task_spec"]

ENTRY_POINT_GROUP = "llm_envs.tasks"

_ID = re.compile(r"[\w-]+/[\w:.-]+-v\d+")
_task_ids: set[str] = set()
_loaded: set[tuple[str, str, str]] = set()
"""Entry points that discovery is done with: (distribution, name, value)."""


class TaskPackageWarning(UserWarning):
    """Another distribution's tasks could not be registered."""


def register_task(id: str, entry_point: str | Callable[..., gym.Env[str, str]], **kwargs: Any) -> None:
    """Register a task, so that `gymnasium.make(id)` makes it and `task_ids` lists it.

    Args:
        id: `namespace/Name-vN`.
        entry_point: The class, or "module:Class", which is imported only when the task is made.
        **kwargs: Defaults of the task's keyword arguments. JSON types, so that the spec can be written down.

    Raises:
        DuplicateTaskError: If the id is taken.
        InvalidConfigError: If the id or the entry point has the wrong form, or `kwargs` are not JSON.
    """
    if not isinstance(id, str) or _ID.fullmatch(id) is None:
        raise InvalidConfigError(f'{id!r} is no task id: it must read "namespace/Name-v0".')
    if id in gym.registry:
        taken = gym.registry[id].entry_point
        raise DuplicateTaskError(
            f"{id} is registered already, as {taken}: choose another name or version (or take the old one out with "
            f"gymnasium.registry.pop({id!r}))."
        )
    try:
        json.dumps(kwargs, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(
            f"{id}: the keyword arguments {kwargs!r} are not made of JSON types: {error}"
        ) from error
    gym.register(id, entry_point=_as_string(id, entry_point), kwargs=kwargs)
    _task_ids.add(id)


def discover() -> list[str]:
    """Register the tasks of all installed distributions; return the ids that are new.

    Called by `import llm_envs`. Calling it again finds what was installed since.
    """
    before = set(_task_ids)
    # Ours first: another distribution cannot take our ids.
    found = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda ep: (_distribution(ep) != "llm-envs", ep.name))
    for entry_point in found:
        key = (_distribution(entry_point), entry_point.name, entry_point.value)
        if key in _loaded:
            continue
        _loaded.add(key)
        try:
            _register_entry_point(entry_point)
        except (Exception, SystemExit) as error:
            warnings.warn(
                f"the task entry point {entry_point.name!r} of the distribution {key[0]!r} was left out: "
                f"{type(error).__name__}: {error}",
                TaskPackageWarning,
                stacklevel=2,
            )
    return sorted(_task_ids - before)


def task_ids() -> list[str]:
    """Return the ids of all registered tasks, sorted."""
    return sorted(id for id in _task_ids if id in gym.registry)


def task_spec(id: str) -> EnvSpec:
    """Return the Gymnasium spec of a task.

    Args:
        id: A registered id, or "module:id" to import a module first that registers it.

    Raises:
        UnknownTaskError: If there is none; names the ids that are close.
    """
    module, colon, name = id.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UnknownTaskError(f"{id}: the module {module!r} cannot be imported: {error}") from error
    spec = gym.registry.get(name)
    if spec is None:
        raise UnknownTaskError(f"there is no task {name!r}{_hint(name, task_ids())}.")
    return spec


def _hint(name: str, known: Iterable[str]) -> str:
    by_lower = {id.lower(): id for id in known}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known are {', '.join(sorted(by_lower.values())) or 'none'}"


def _distribution(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "unknown"


def _register_entry_point(entry_point: EntryPoint) -> None:
    if "/" in entry_point.name:
        register_task(entry_point.name, f"{entry_point.module}:{entry_point.attr or ''}")
        return
    loaded = entry_point.load()
    if callable(loaded) and not isinstance(loaded, ModuleType):
        loaded()


def _as_string(id: str, entry_point: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return "module:Class" for whatever can be found again under that name; else the callable itself."""
    if isinstance(entry_point, str):
        module, _, attribute = entry_point.partition(":")
        if not module or not attribute.isidentifier():
            raise InvalidConfigError(f'{id}: the entry point is {entry_point!r}; it must read "module:Class".')
        return entry_point
    if not callable(entry_point):
        raise InvalidConfigError(f'{id}: the entry point is {entry_point!r}; it must be a class or "module:Class".')
    module = getattr(entry_point, "__module__", "")
    name = getattr(entry_point, "__qualname__", "")
    if getattr(sys.modules.get(module), name, None) is entry_point:
        return f"{module}:{name}"
    return entry_point
