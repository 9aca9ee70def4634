"""`check_task`: whether a registered task keeps the environment contract.

The clauses are in `clauses.py`, one small function each; here they are run and reported.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import load_env_creator

from llm_envs.checker.clauses import CLAUSES
from llm_envs.checker.subject import QUICK, THOROUGH, BrokenClause, Effort, Subject
from llm_envs.errors import TaskCheckError
from llm_envs.registration import task_spec

__all__ = ["QUICK", "THOROUGH", "CheckReport", "ClauseResult", "Effort", "check_task"]


@dataclass(frozen=True, slots=True)
class ClauseResult:
    """Whether one clause holds."""

    clause: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check_task`."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    results: tuple[ClauseResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every clause holds."""
        return not self.failures

    @property
    def failures(self) -> tuple[ClauseResult, ...]:
        """The clauses that do not hold."""
        return tuple(result for result in self.results if not result.passed)

    def __str__(self) -> str:
        """Return one line for each clause."""
        lines = [f"{'ok  ' if result.passed else 'FAIL'} {result.clause}: {result.detail}" for result in self.results]
        return "\n".join([f"{self.env_id} {dict(self.env_kwargs)}", *lines])


def check_task(env_id: str, *, effort: Effort = QUICK, raise_on_failure: bool = True, **kwargs: Any) -> CheckReport:
    """Check that a registered task keeps the environment contract.

    Args:
        env_id: Its id.
        effort: How many seeds, problems and spoilt actions are looked at: `QUICK`, `THOROUGH` or your own.
        raise_on_failure: Whether to raise if a clause does not hold.
        **kwargs: Keyword arguments of the task, such as `difficulty`. A split given here is replaced where both are
            looked at.

    Returns:
        The report of all clauses.

    Raises:
        UnknownTaskError: If the task does not exist.
        TaskCheckError: If a clause does not hold; the message lists all of them, those with the same error together.
    """
    task_spec(env_id)
    subject = Subject(env_id, kwargs, effort)
    results = []
    for clause in CLAUSES:
        try:
            results.append(ClauseResult(clause.__name__, True, clause(subject)))
        except Exception as error:
            detail = str(error) if isinstance(error, BrokenClause) else f"{type(error).__name__}: {error}"
            if place := _place(error, env_id):
                detail = f"{detail} (at {place})"
            results.append(ClauseResult(clause.__name__, False, detail))
            if clause is CLAUSES[0]:  # it cannot even be made
                break
    report = CheckReport(env_id, dict(kwargs), tuple(results))
    if raise_on_failure and not report.passed:
        by_detail: dict[str, list[str]] = {}
        for result in report.failures:
            by_detail.setdefault(result.detail, []).append(result.clause)
        failures = "\n".join(f"- {', '.join(clauses)}: {detail}" for detail, clauses in by_detail.items())
        raise TaskCheckError(f"{env_id} breaks {len(report.failures)} of {len(CLAUSES)} clauses:\n{failures}")
    return report


def _place(error: BaseException, env_id: str) -> str:
    """Return file:line of the last frame inside the task's own modules; "" without such a frame."""
    if isinstance(error, BrokenClause):
        if error.__cause__ is None:
            return ""
        error = error.__cause__
    files = _files(env_id)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _files(env_id: str) -> set[str]:
    """Return the source files of the task's class and of its bases, except those of this package and of Gymnasium."""
    entry_point: object = task_spec(env_id).entry_point
    if isinstance(entry_point, str):
        try:
            entry_point = load_env_creator(entry_point)
        except Exception:
            return set()
    names = {cls.__module__ for cls in inspect.getmro(entry_point)} if isinstance(entry_point, type) else set()
    names.add(getattr(entry_point, "__module__", ""))
    names -= {"llm_envs.env"}
    modules = [sys.modules.get(name) for name in names if not name.startswith("gymnasium.")]
    return {str(module.__file__) for module in modules if getattr(module, "__file__", None) and module is not None}
