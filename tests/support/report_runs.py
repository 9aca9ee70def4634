"""Runs made by hand, for tests of what reports show: folders with a few episodes whose every number is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llm_envs.rollout import TrajectoryWriter
from llm_envs.types import Message, Row, StopReason, ToolCall, ToolResult, Trajectory, Turn

__all__ = ["ATTACKS", "make_episode", "make_row", "write_run"]

ATTACKS = (
    "<script>window.attacked = 1</script>",
    "</script><script>window.attacked = 1</script>",
    "<!--<script>",
    "<img src=x onerror='window.attacked = 1'>",
    '"><svg onload=window.attacked=1>',
    "<iframe srcdoc='<script>parent.attacked = 1</script>'></iframe>",
    "</title></style></textarea><a href='javascript:window.attacked=1'>a</a>",
    "&lt;b&gt;&amp;amp; {{7*7}} ${7*7} <style>*{display:none}</style>",
    "line\u2028separator\u2029paragraph",
    "half \ud800 a pair, \u202eright to left, \x1b[31mred\x00",
    "__proto__",
)
"""What a model might write; none of it may do anything but be read."""


def make_row(n: int = 6, mask: Sequence[int] = (0, 0, 1, 1, 0, 1), logps: Sequence[float] = (-0.01, -1.5, -5.0)) -> Row:
    """Return a row of `n` tokens, ids from 100; the mask repeats to the length, and so do the log-probabilities."""
    on = np.resize(np.array(mask, np.bool_), n)
    values = np.zeros(n, np.float32)
    values[on] = np.resize(np.array(logps, np.float32), int(on.sum()))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], on.astype(np.int8), [0]])))
    spans = tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
    return Row(np.arange(100, 100 + n, dtype=np.int32), on, values, spans)


def make_episode(seed: int = 1, member: int = 0, *, text: str = "37*24", **changes: Any) -> Trajectory:
    """Return an episode of two turns: a call with thinking before it, then the answer, which earns 1 less 0.25."""
    success = changes.get("is_success", True)
    result = ToolResult(text, {"expression": text}, text, True, None, 0.25)
    values: dict[str, Any] = {
        "env_id": "llm/Sums-v0", "env_kwargs": {"difficulty": "easy"}, "seed": seed, "group_id": f"g{seed}",
        "member": member,
        "messages": (
            Message("system", "Use the calculator."),
            Message("user", f"What is {text}?"),
            Message("assistant", f"<think>I think of {text}</think>Let me see.", (ToolCall("calc", {"e": text}),)),
            Message("tool", text),
            Message("assistant", f"<answer>{text}</answer>"),
        ),
        "tools": ({"type": "function", "function": {"name": text}},),
        "rows": (make_row(),),
        "turns": (
            Turn(-0.25, {"cost": -0.25}, row=0, span=0, tool_results=(result,)),
            Turn(float(bool(success)), {"correct": float(bool(success))}, row=0, span=1),
        ),
        "terminated": True, "truncated": False, "stop_reason": StopReason.TERMINATED, "status": "ok",
        "is_success": success, "timings": {"total": 0.5}, "metadata": {"note": text},
    }  # fmt: skip
    return Trajectory(**(values | changes))


def write_run(folder: Path, episodes: Iterable[Trajectory], **settings: Any) -> Path:
    """Write episodes as `llm-envs collect` does, and return the folder."""
    with TrajectoryWriter(folder, settings=settings) as writer:
        for episode in episodes:
            writer.write(episode)
    return folder
