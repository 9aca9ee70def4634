"""Objects of the user's that commands and YAML files name: `FILE.py:NAME` or `module:NAME`."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.registration import register_task

__all__ = ["absolute_name", "env_id", "is_named", "load_object", "named_source"]

_NAMED = re.compile(r"(?P<place>.+):(?P<name>[A-Za-z_]\w*)")


def is_named(text: str) -> bool:
    """Return whether a text has the form `FILE.py:NAME` or `module:NAME`; an environment's id has not."""
    return _NAMED.fullmatch(text) is not None and "://" not in text


def absolute_name(text: str) -> str:
    """Return `FILE.py:NAME` with the file's absolute path, and any other text unchanged."""
    place, _, name = text.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else text


def named_source(function: Any) -> str:
    """Return a function's name and a hash of its source, which tell whether it has changed; or only the name."""
    own = function if inspect.isfunction(function) else type(function)
    with suppress(OSError, TypeError):  # made by `exec`, or written in C
        source = inspect.cleandoc(inspect.getsource(own))
        return f"{own.__qualname__} {hashlib.blake2b(source.encode(), digest_size=8).hexdigest()}"
    return str(own.__qualname__)


def load_object(option: str, text: str, kind: type | tuple[type, ...] = object) -> Any:
    """Return the object that a text names.

    A file is imported as a module of its folder, so it can import its neighbours, and worker processes can import it.
    A module may also be in the current folder.

    Args:
        option: Where the text was given, for errors.
        text: `FILE.py:NAME` or `module:NAME`.
        kind: Type of the object, or several.

    Raises:
        InvalidConfigError: If it cannot be imported, or the object does not exist.
    """
    found = _NAMED.fullmatch(text)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    wanted = " or ".join("an object" if one is object else f"{_article(one)} {one.__name__}" for one in kinds)
    if found is None:
        raise InvalidConfigError(f"{option} {text}: it must be FILE.py:NAME or module:NAME of {wanted}.")
    module, name = _imported(option, text, found["place"]), found["name"]
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        near = did_you_mean(name, public) or (f" It has {', '.join(public)}." if public else "")
        raise InvalidConfigError(f"{option} {text}: {found['place']} has no {name}.{near}")
    value = getattr(module, name)
    if not isinstance(value, kinds):
        raise InvalidConfigError(f"{option} {text}: {name} is of type {type(value).__name__}; it must be {wanted}.")
    return value


_EPISODE_NAMES = {"trajectory", "trajectories", "completions", "result"}
"""Parameters of functions of episodes, such as rewards."""


def env_id(text: str, option: str = "ENV") -> str:
    """Return an environment's id, after registering an environment that is named by `FILE.py:NAME` or `module:NAME`.

    NAME is a class, a function, a `PromptTask` or an id that the file registers. Its new id is `FILE/NAME-v0`.

    Args:
        text: An id, which is returned unchanged, or a name.
        option: Where it was given, for errors.

    Raises:
        InvalidConfigError: If the object is not an environment.
    """
    if text.endswith(".py"):
        raise InvalidConfigError(f"{option} {text}: it is a file; name what it defines, as {text}:NAME.")
    if not is_named(text):
        return text
    found = load_object(option, text)
    place, name = text.rpartition(":")[::2]
    if isinstance(found, str) and found in gym.registry:
        return found
    if hasattr(found, "play_episode"):
        raise InvalidConfigError(f"{option} {text}: {name} is an agent, which plays its episodes itself: give --agent.")
    if isinstance(found, gym.Env) or not callable(found):
        raise InvalidConfigError(
            f"{option} {text}: {name} is of type {type(found).__name__}; it must be an environment's class, a function "
            "that makes one, a PromptTask, or the id of a registered environment."
        )
    names: set[str] = set()
    with suppress(ValueError):  # some classes in C have no signature
        names = {*inspect.signature(found).parameters}
    if _EPISODE_NAMES & names:  # other arguments may come from --env-kwargs
        raise InvalidConfigError(
            f"{option} {text}: {name}{inspect.signature(found)} needs arguments; what makes an environment gets no "
            "episode."
        )
    module = Path(place).stem if place.endswith(".py") else place
    target = f"{module}:{name}"
    same = [spec.id for spec in gym.registry.values() if spec.entry_point in (target, found) and not spec.kwargs]
    if same:
        return same[0]
    new = f"{re.sub(r'[^A-Za-z0-9_-]', '-', module.rpartition('.')[2] or module)}/{name}-v0"
    register_task(new, target)
    return new


def _imported(option: str, text: str, place: str) -> ModuleType:
    path = Path(place).resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise InvalidConfigError(f"{option} {text}: the file {place} does not exist.")
    try:
        if path is not None and str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        elif path is None and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        module = importlib.import_module(place if path is None else path.stem)
    except (Exception, SystemExit) as error:
        # A SyntaxError names its line itself.
        frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
        where = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
        what = f"{type(error).__name__}: {error}{where}"
        raise InvalidConfigError(f"{option} {text}: {place} cannot be imported ({what}).") from error
    if path is not None and Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise InvalidConfigError(
            f"{option} {text}: a module {path.stem!r} is loaded already; give the file another name."
        )
    return module


def _article(kind: type) -> str:
    return "an" if kind.__name__[0] in "AEIOU" else "a"
