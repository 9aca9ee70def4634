"""Rows of an `answer_forms.yaml`: answers of a task, and the reward that each earns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml

from llm_envs.parsers import format_answer


def forms_of(entry: dict[str, Any]) -> Iterator[tuple[Any, str, dict[float, list[str]]]]:
    """Yield (problem, form, {reward: answers}); instead of a problem there may be several `targets`."""
    for target, answers in entry.get("targets", {}).items():
        yield {"question": "How much?", "answer": target}, entry["form"], answers
    for form in ("tags", "prose", "reply"):
        yield entry.get("problem"), form, entry.get(form, {})


def rows_of(folder: Path) -> list[Any]:
    """Return the parameters of a test, one for each answer of a folder's file."""
    return [
        pytest.param(entry, problem, form, answer, paid, id=f"{entry['task']} {form}: {answer[:40]!r}")
        for entry in yaml.safe_load((folder / "answer_forms.yaml").read_text(encoding="utf-8"))
        for problem, form, by_paid in forms_of(entry)
        for paid, answers in by_paid.items()
        for answer in answers
    ]


def reward_of(entry: dict[str, Any], problem: Any, form: str, answer: str) -> float:
    """Return the reward of an answer to a problem."""
    arguments = entry.get("arguments", {"answer_form": "natural" if form == "prose" else None})
    env = gym.make(f"llm/{entry['task']}-v0", **arguments)
    env.reset(seed=0, options={"problem": problem})
    return float(env.step(format_answer(answer) if form == "tags" else answer)[1])
