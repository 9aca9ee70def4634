"""Runs made by hand, for tests of what reports show: folders with a few episodes whose every number is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llm_envs.evaluation.replayed import replay
from llm_envs.report import write_report
from llm_envs.rollout import TrajectoryWriter
from llm_envs.types import Message, RolloutError, Row, StopReason, ToolCall, ToolResult, Trajectory, Turn

__all__ = [
    "ATTACKS",
    "episodes_after",
    "episodes_before",
    "make_episode",
    "make_row",
    "report_of",
    "write_evaluation",
    "write_run",
]

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
    "]]> --> <!-- <![CDATA[ </script",
    "[x](javascript:window.attacked=1) <https://example.org/> \\u003cimg\\u003e",
    "\u2067isolated\u2069 \u200e\u200f\u061c marks, \ufeff\u2029",
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


def write_evaluation(folder: Path, episodes: Iterable[Trajectory], *, k: int = 2, **settings: Any) -> Path:
    """Write episodes and the `results.json` that they come to, as `llm-envs eval --out` does; return the folder."""
    results = replay(write_run(folder, episodes, **settings), k=k)
    replace(results, played_with=results.versions).save(folder)
    return folder


def write_run(folder: Path, episodes: Iterable[Trajectory], **settings: Any) -> Path:
    """Write episodes as `llm-envs collect` does, and return the folder."""
    with TrajectoryWriter(folder, settings=settings) as writer:
        for episode in episodes:
            writer.write(episode)
    return folder


def report_of(folder: Path, episodes: Sequence[Trajectory], **options: Any) -> Path:
    """Write a report of one run with these episodes, and return it."""
    write_report([write_run(folder / "run", episodes)], folder / "report.html", **options)
    return folder / "report.html"


def episodes_before() -> list[Trajectory]:
    """Return 12 problems of two members, every third success; one has an error, one goes on to a limit."""
    episodes = [
        make_episode(seed, member, is_success=seed % 3 == 0, text=f"{seed}+{member}")
        for seed in range(12)
        for member in range(2)
    ]
    error = RolloutError("TimeoutError", "the tool hung", "env.step")
    values: dict[str, Any] = {"status": "errored", "error": error, "is_success": None, "stop_reason": StopReason.ERROR}
    episodes[3] = make_episode(1, 1, env_id="llm/Broken-v0", text="7+7", **values)
    episodes[5] = make_episode(2, 1, stop_reason=StopReason.MAX_TOKENS, is_success=False, text="5+5")
    return episodes


def episodes_after() -> list[Trajectory]:
    """Return the same problems, every second success, once each."""
    return [make_episode(seed, is_success=seed % 2 == 0, text=f"{seed}+0") for seed in range(12)]
