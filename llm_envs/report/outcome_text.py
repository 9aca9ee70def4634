"""Why an episode earned nothing, in a line, and the answer that its problem expected, if its record has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llm_envs.parsers import parse_reply
from llm_envs.types import FinishReason, StopReason, Trajectory

__all__ = ["expected_answer", "why_nothing"]

_ANSWERS = ("answers", "answer", "expected", "solution", "target")
"""Fields of a given problem that hold its answer."""
_MOST = 300
"""Characters of a text."""


def expected_answer(trajectory: Trajectory) -> str | None:
    """Return the answer that the problem expected; None if the record does not say it."""
    if isinstance(expected := trajectory.metadata.get("expected"), str):
        return expected[:_MOST]
    options = trajectory.metadata.get("options")
    problem = options.get("problem") if isinstance(options, Mapping) else None
    row = problem if isinstance(problem, Mapping) else {}
    value: Any = next((row[name] for name in _ANSWERS if row.get(name) is not None), None)
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:_MOST]


def why_nothing(trajectory: Trajectory) -> str | None:
    """Return why an episode has no positive reward: its limit, the form of its last reply, what the task said last.

    None if it succeeded or earned something.
    """
    t = trajectory
    if t.status != "ok":
        because = t.metadata.get("unscored_because")
        return None if because is None else str(because)[:_MOST]
    if t.is_success or t.reward > 0 or not t.turns:
        return None
    said, last = [], t.turns[-1]
    if last.finish_reason is FinishReason.LENGTH:
        n = "" if last.row < 0 else f" of {_n_tokens(t)} tokens"
        said.append(f"cut at the turn's limit{n}")
    elif t.stop_reason is not StopReason.TERMINATED:
        said.append(f"ended by {t.stop_reason.value}")
    final = t.metadata.get("final_observation")
    expected = expected_answer(t)
    if expected is not None and _has_no_answer(t):
        said.append("no <answer> tags")
    elif isinstance(final, str) and final.strip():
        said.append(final.strip().splitlines()[0].rstrip(".")[:_MOST])
    if expected is not None:
        said.append(f"expected {expected}")
    return "; ".join(said) or None


def _n_tokens(trajectory: Trajectory) -> int:
    last = trajectory.turns[-1]
    start, stop = trajectory.rows[last.row].spans[last.span]
    return stop - start


def _has_no_answer(trajectory: Trajectory) -> bool:
    replies = [message.content for message in trajectory.messages if message.role == "assistant"]
    return bool(replies) and parse_reply(replies[-1]).answer is None and "<answer" not in replies[-1]
