"""Text environments that are real Gymnasium environments, and a collector that plays them with a language model.

Importing the package registers every installed task by name, and imports none of them:

    import gymnasium as gym, llm_envs
    env = gym.make("llm/Calculator-v0")
"""

from __future__ import annotations

from llm_envs.processes import end_quietly_until_started

end_quietly_until_started()  # before the other imports, which take a second

# ruff: noqa: E402
import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from llm_envs.env import Difficulty, Outcome, SingleTurnEnv, TextEnv, ToolEnv
from llm_envs.registration import discover, register_task, task_ids, task_spec
from llm_envs.spaces import TextSpace
from llm_envs.tools.base import Tool

if TYPE_CHECKING:
    from llm_envs.checker import check_task
    from llm_envs.evaluation import evaluate

__all__ = [
    "Difficulty",
    "Outcome",
    "SingleTurnEnv",
    "TextEnv",
    "TextSpace",
    "Tool",
    "ToolEnv",
    "__version__",
    "check_task",
    "discover",
    "evaluate",
    "register_task",
    "task_ids",
    "task_spec",
]

__version__ = version("llm-envs")

# Loaded when first asked for: none of it is needed to play.
_LAZY = {"check_task": "llm_envs.checker", "evaluate": "llm_envs.evaluation"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


discover()
