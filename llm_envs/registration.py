"""The registry of all tasks, ours and other packages'.

Tasks come from the entry-point group `llm_envs.tasks` of any installed distribution:

- an entry point whose *name* is an environment id, `"my/Task-v0" = "my_package.task:TaskEnv"`, is registered as a
  string: nothing is imported before `gymnasium.make`;
- any other entry point is a module or a function that calls `register_task` itself. It is loaded at discovery, and a
  function is called.

A distribution that fails, or whose entry points cannot be read, causes one warning and does not affect the others.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from llm_envs.errors import DuplicateTaskError, InvalidConfigError, UnknownTaskError, did_you_mean

__all__ = [
    "ENTRY_POINT_GROUP",
    "TaskPackageWarning",
    "bridged_ids",
    "discover",
    "installed_entry_points",
    "load_entry_point",
    "load_entry_points",
    "register_task",
    "task_ids",
    "task_spec",
]

ENTRY_POINT_GROUP = "llm_envs.tasks"

_ID = re.compile(r"[\w-]+/[\w:.-]+-v(?:0|[1-9][0-9]*)")
_task_ids: set[str] = set()
_loaded: set[tuple[str, str, str]] = set()
"""Entry points that discovery has handled: (distribution, name, value)."""
_unreadable: set[str] = set()
"""Distributions with unreadable entry points, for which a warning was already given."""


class TaskPackageWarning(UserWarning):
    """An entry point could not be loaded, such as another distribution's tasks."""


def register_task(id: str, entry_point: str | Callable[..., gym.Env[str, str]], **kwargs: Any) -> None:
    """Register a task, so that `gymnasium.make(id)` makes it and `task_ids` lists it.

    Registering the same task again, with equal arguments, does nothing: a module may register what its package names.

    Args:
        id: `namespace/Name-vN`.
        entry_point: The class, or "module:Class". The module is imported only when the task is made.
        **kwargs: Defaults of the task's keyword arguments, as JSON types, so that the spec can be saved.

    Raises:
        DuplicateTaskError: If the id is already in use, by another class or with other arguments.
        InvalidConfigError: If the id or the entry point has the wrong form, or `kwargs` are not JSON.
    """
    if not isinstance(id, str) or _ID.fullmatch(id) is None:
        raise InvalidConfigError(
            f'{id!r} is not a task id: it must read "namespace/Name-v0", the version without leading zeros.'
        )
    try:
        json.dumps(kwargs, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(
            f"{id}: the keyword arguments {kwargs!r} are not made of JSON types: {error}"
        ) from error
    target = _as_string(id, entry_point)
    taken = gym.registry.get(id)
    if taken is not None and (taken.entry_point, taken.kwargs) != (target, kwargs):
        raise DuplicateTaskError(
            f"{id} is already registered, as {taken.entry_point}{f' with {taken.kwargs}' if taken.kwargs else ''}: "
            f"choose another name or version (or remove the old one with gymnasium.registry.pop({id!r}))."
        )
    if taken is None:
        gym.register(id, entry_point=target, kwargs=kwargs)
    _task_ids.add(id)


def discover() -> list[str]:
    """Register the tasks of all installed distributions; return the new ids.

    `import llm_envs` calls it. Call it again to find distributions that were installed since.
    """
    before = set(_task_ids)
    # Ours first: another distribution cannot take our ids.
    found = installed_entry_points(ENTRY_POINT_GROUP)
    found.sort(key=lambda ep: (_distribution(ep) != "llm-envs", ep.name))
    for entry_point in found:
        key = (_distribution(entry_point), entry_point.name, entry_point.value)
        if key in _loaded:
            continue
        _loaded.add(key)
        if not _is_shipped(entry_point.module):
            continue
        try:
            _register_entry_point(entry_point)
        except (Exception, SystemExit) as error:
            _warn_skipped(entry_point, error)
    return sorted(_task_ids - before)


def _is_shipped(module: str) -> bool:
    """Return whether the folder of a module below `llm_envs.tasks` exists; it is not imported to find out."""
    package, room, folder, *_ = [*module.split("."), "", ""]
    tasks = find_spec(f"{package}.{room}") if (package, room) == ("llm_envs", "tasks") and folder else None
    places = tasks.submodule_search_locations if tasks is not None else None
    return not places or any((Path(place) / folder).exists() for place in places)


def load_entry_points(group: str) -> dict[str, Any]:
    """Return what a group's entry points name, by their names; leave out what cannot be imported, with a warning."""
    loaded = {}
    for entry_point in installed_entry_points(group):
        try:
            loaded[entry_point.name] = entry_point.load()
        except (Exception, SystemExit) as error:
            _warn_skipped(entry_point, error)
    return loaded


def load_entry_point(group: str, name: str, asked: str) -> Any:
    """Return what one entry point names.

    Args:
        group: The group.
        name: The entry point's name.
        asked: The setting that needs it, for the error.

    Raises:
        InvalidConfigError: If no distribution has it, or it cannot be imported.
    """
    if (found := load_entry_points(group).get(name)) is None:
        raise InvalidConfigError(f"{asked} needs the entry point {name!r} of the group {group!r}; none is installed.")
    return found


def _warn_skipped(entry_point: EntryPoint, error: BaseException) -> None:
    is_missing = isinstance(error, ModuleNotFoundError) and f"{entry_point.module}.".startswith(f"{error.name}.")
    if is_missing and _distribution(entry_point) == "llm-envs":
        return  # a part that the core does without was not shipped
    kind = "task" if entry_point.group == ENTRY_POINT_GROUP else entry_point.group
    warnings.warn(
        f"the {kind} entry point {entry_point.name!r} of the distribution {_distribution(entry_point)!r} was skipped: "
        f"{type(error).__name__}: {error}",
        TaskPackageWarning,
        stacklevel=3,
    )


def installed_entry_points(group: str) -> list[EntryPoint]:
    """Return the group's entry points of all distributions, skipping unreadable ones with a warning."""
    try:
        return list(entry_points(group=group))
    except Exception:  # one broken file stops the search, so read each distribution separately
        return _entry_points_one_by_one(group)


def _entry_points_one_by_one(group: str) -> list[EntryPoint]:
    found: list[EntryPoint] = []
    seen: set[str] = set()
    for distribution in distributions():
        name = _name(distribution)
        if name in seen:  # a distribution earlier in `sys.path` hides it
            continue
        seen.add(name)
        try:
            found += [entry_point for entry_point in distribution.entry_points if entry_point.group == group]
        except Exception as error:
            if name not in _unreadable:
                _unreadable.add(name)
                warnings.warn(
                    f"the entry points of the distribution {name!r} were skipped, entry_points.txt cannot be read: "
                    f"{type(error).__name__}: {error}",
                    TaskPackageWarning,
                    stacklevel=4,
                )
    return found


def _name(distribution: Distribution) -> str:
    try:
        return str(distribution.metadata["Name"])
    except Exception:
        return str(getattr(distribution, "_path", "unknown"))


def task_ids() -> list[str]:
    """Return the ids of all registered tasks, sorted."""
    return sorted(id for id in _task_ids if id in gym.registry)


def bridged_ids() -> list[str]:
    """Return the ids of environments of other suites (`llm_envs.bridges`), sorted: no tasks, and none that are off."""
    tasks = set(task_ids())
    return sorted(
        id
        for id, spec in gym.registry.items()
        if str(spec.entry_point).startswith("llm_envs.bridges.")
        and spec.kwargs.get("allow_flawed", True)
        and id not in tasks
    )


def task_spec(id: str) -> EnvSpec:
    """Return the Gymnasium spec of a task.

    Args:
        id: A registered id, or "module:id" to first import a module that registers it.

    Raises:
        UnknownTaskError: If the id is unknown. The message suggests similar ids.
    """
    module, colon, name = id.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UnknownTaskError(f"{id}: the module {module!r} cannot be imported: {error}") from error
    spec = gym.registry.get(name)
    if spec is None:
        known = task_ids()
        near = did_you_mean(name, known)
        some = f"known are {', '.join(known) or 'none'}"
        if len(known) > 6:
            some = f"`llm-envs list` names all {len(known)}, such as {', '.join(known[:6])}"
        raise UnknownTaskError(f"there is no task {name!r}{f'.{near}' if near else f'; {some}.'}")
    return spec


def _distribution(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "unknown"


def _register_entry_point(entry_point: EntryPoint) -> None:
    if "/" in entry_point.name:
        register_task(entry_point.name, f"{entry_point.module}:{entry_point.attr or ''}")
        return
    loaded = entry_point.load()
    if isinstance(loaded, type):
        raise InvalidConfigError(
            f'{entry_point.value} is a class, so the name must be an environment id such as "my/Task-v0"'
        )
    if callable(loaded) and not isinstance(loaded, ModuleType):
        loaded()


def _as_string(id: str, entry_point: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return "module:Class" for a class that can be imported under that name, else the callable itself."""
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
