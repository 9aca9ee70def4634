"""The facts about each registered task: from its source without importing it, and from its class.

`summary` reads a docstring and imports nothing, so a list is quick, and one broken package does not break it.
`describe` makes the task, for facts that only the class has.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from llm_envs.env import Difficulty, SingleTurnEnv, TextEnv
from llm_envs.registration import task_ids, task_spec

__all__ = ["TaskCard", "describe", "example_kwargs", "family_of", "needs_project", "suite_ids", "summary"]

_OURS = "llm_envs.tasks."


@dataclass(frozen=True, slots=True)
class TaskCard:
    """The facts that help a user to choose a task."""

    id: str
    family: str
    summary: str
    entry_point: str
    multi_turn: bool
    tools: tuple[str, ...]
    """Names, at the default level."""
    max_turns: int
    default_difficulty: str
    levels: dict[str, Difficulty]
    oracle_is_exact: bool
    reward_weights: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the card as JSON types, without what only the task's code uses of a level."""
        card = asdict(self)
        for level, name in product(card["levels"].values(), ("settings", "max_return", "min_return")):
            del level[name]
        return card


def suite_ids() -> list[str]:
    """Return the ids of this package's tasks that need nothing of other people's: data, scorers or a project."""
    ours = [task_id for task_id in task_ids() if task_id.startswith("llm/")]
    return [task_id for task_id in ours if family_of(task_id) != "benchmarks" and not needs_project(task_id)]


def needs_project(task_id: str) -> bool:
    """Return whether a task is made from a project of the user's: each of its episodes runs that project's tests."""
    return family_of(task_id) == "repository"


def family_of(task_id: str) -> str:
    """Return a task's family: the folder, such as "games", for our tasks; the name of the package for others."""
    entry_point = task_spec(task_id).entry_point
    module = entry_point.partition(":")[0] if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    rest = module.removeprefix(_OURS)
    return (rest if rest != module else module).partition(".")[0]


def summary(task_id: str) -> str:
    """Return the first line of a task's docstring, read from its source, or in brackets why it cannot be read."""
    entry_point = task_spec(task_id).entry_point
    if not isinstance(entry_point, str):
        return (getattr(entry_point, "__doc__", None) or "").strip().split("\n")[0]
    return read_summary(entry_point)


def read_summary(entry_point: str) -> str:
    """Return the first line of the docstring of "module:Class", without importing a task module."""
    module, _, name = entry_point.partition(":")
    try:
        found = importlib.util.find_spec(module)
        if found is None:
            return f"(cannot be read: No module named {module!r})"
        tree = ast.parse(Path(str(found.origin)).read_bytes())
    except ImportError as error:
        return f"(cannot be read: {error})"
    except Exception as error:
        return f"(cannot be read: {type(error).__name__}: {' '.join(str(error).split())})"
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if not nodes and not _may_bind(tree, name):
        return f"(cannot be made: the module {module!r} has no class {name!r})"
    docstring = (ast.get_docstring(nodes[0]) if nodes else None) or ""
    return docstring.split("\n")[0]


def _may_bind(tree: ast.Module, name: str) -> bool:
    """Return whether the module may define the name without a top-level class statement, such as by an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in (name, "__getattr__"):
            return True
    return False


def example_kwargs(task_id: str) -> dict[str, Any]:
    """Return the keyword arguments of an example of a task; {} for a task that can be made without arguments."""
    creator: object = task_spec(task_id).entry_point
    try:
        creator = load_env_creator(creator) if isinstance(creator, str) else creator
    except Exception:  # making the task reports it
        return {}
    return dict(getattr(creator, "example_kwargs", {}))


def describe(task_id: str) -> TaskCard:
    """Return a task's card. The task, or its example, is made and reset once.

    Raises:
        UnknownTaskError: If the task does not exist.
        TypeError: If the task is not a `TextEnv`.
    """
    spec = task_spec(task_id)
    env = gym.make(task_id, **example_kwargs(task_id))
    try:
        task = env.unwrapped
        if not isinstance(task, TextEnv):
            raise TypeError(f"{task_id} is a {type(task).__name__}, not an llm_envs.TextEnv, so it declares no levels.")
        env.reset(seed=0)
        entry_point = spec.entry_point
        return TaskCard(
            id=task_id,
            family=family_of(task_id),
            summary=summary(task_id),
            entry_point=entry_point if isinstance(entry_point, str) else repr(entry_point),
            multi_turn=not isinstance(task, SingleTurnEnv),
            tools=tuple(str(tool["function"]["name"]) for tool in task.tools),
            max_turns=task.max_turns,
            default_difficulty=task.default_difficulty,
            levels=dict(task.difficulties),
            oracle_is_exact=task.oracle_is_exact,
            reward_weights=dict(task.reward_weights),
        )
    finally:
        env.close()
