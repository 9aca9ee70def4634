"""Checks of an environment's `info`, tools and tool results. Values that a trajectory cannot record are an error.

All of them raise an `EnvContractError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llm_envs.errors import EnvContractError
from llm_envs.parsers import QUIRKS
from llm_envs.problems import as_flag, as_number
from llm_envs.types import ToolResult

__all__ = ["check_components", "check_results", "check_success", "check_tools", "count_quirks"]


def check_components(info: Mapping[str, Any], reward: float) -> dict[str, float]:
    """Return the turn's reward components. Without declared components, the reward is the only one."""
    components = info.get("reward_components")
    if components is None:
        return {"reward": reward}
    try:
        return {str(name): as_number(value) for name, value in components.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise EnvContractError(
            f'info["reward_components"] must map names to finite numbers, got {components!r:.80}.'
        ) from error


def check_success(info: Mapping[str, Any]) -> bool:
    """Return whether the environment reports that the task was solved; the default is False."""
    value = info.get("is_success", False)
    try:
        return as_flag(value)
    except TypeError as error:
        raise EnvContractError(f'info["is_success"] is {value!r:.80}; {error}.') from error


def check_tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the tools' schemas, checked to be JSON."""
    try:
        checked = tuple(tools)
        # NaN and Infinity are not JSON: a recorded episode could not be read by others.
        json.dumps([dict(tool) for tool in checked], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EnvContractError(f"tools must be JSON Schemas as dicts ({error}), got {tools!r:.200}.") from error
    return checked


def check_results(results: Any) -> tuple[ToolResult, ...]:
    """Return the turn's tool results, checked to be JSON."""
    checked = tuple(result for result in results if isinstance(result, ToolResult))
    for r in checked:
        try:
            parts = [
                r.name,
                dict(r.arguments),
                r.output,
                r.success,
                r.error,
                as_number(r.seconds),
                as_number(r.began_s),
            ]
            json.dumps(parts, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise EnvContractError(f"a tool result must be JSON types ({error}), got {r!r:.200}.") from error
    return checked


MAX_EXPECTED = 300
"""Characters of an expected answer that an episode keeps."""


def note_expected(info: Mapping[str, Any], metadata: dict[str, Any]) -> None:
    """Keep the answer that an environment expected, if its last step's info has it: for people, never for a model."""
    if isinstance(expected := info.get("expected"), str):
        metadata["expected"] = expected[:MAX_EXPECTED]


def count_quirks(info: Mapping[str, Any], metadata: dict[str, Any]) -> None:
    """Add a step's `info["quirks"]`, counts by kind (`llm_envs.parsers.QUIRKS`), to the episode's metadata."""
    quirks = info.get("quirks")
    if not quirks:
        return
    counts = metadata.setdefault("quirks", {})
    try:
        for kind in QUIRKS.keys() & quirks.keys():
            counts[kind] = counts.get(kind, 0) + int(as_number(quirks[kind]))
    except (AttributeError, TypeError, ValueError) as error:
        raise EnvContractError(f'info["quirks"] must map kinds to counts, got {quirks!r:.80}.') from error
