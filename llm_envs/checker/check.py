"""`check_task`: whether a registered task keeps the environment contract.

Each clause is a small function; `clauses.py` lists them all. They are defined in `static_clauses.py`,
`play_clauses.py`, `form_clauses.py`, `honesty_clauses.py`, `blind_clauses.py`, `replay_clauses.py` and
`twin_clauses.py`. This module runs and reports them.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import load_env_creator

from llm_envs.checker.catalogue import example_kwargs
from llm_envs.checker.clauses import CLAUSES
from llm_envs.checker.subject import QUICK, THOROUGH, BrokenClause, Effort, Inapplicable, Subject
from llm_envs.errors import NoOracleError, TaskCheckError
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
        env_id: The task's id.
        effort: How many seeds, problems and damaged actions to examine: `QUICK`, `THOROUGH` or your own.
        raise_on_failure: Whether to raise if a clause does not hold.
        **kwargs: Keyword arguments of the task, such as `difficulty`; its `example_kwargs` by default. Clauses that
            examine both splits replace a given `split`.

    Returns:
        The report of all clauses.

    Raises:
        UnknownTaskError: If the task does not exist.
        TaskCheckError: If a clause does not hold. The message lists all such clauses, grouped by error.
    """
    task_spec(env_id)
    kwargs = example_kwargs(env_id) | kwargs
    subject = Subject(env_id, kwargs, effort)
    results = []
    for clause in CLAUSES:
        try:
            results.append(ClauseResult(clause.__name__, True, clause(subject)))
        except Exception as error:
            if isinstance(error, NoOracleError) or isinstance(error.__cause__, NoOracleError):
                results.append(ClauseResult(clause.__name__, True, Inapplicable("the environment has no oracle")))
                continue
            detail = str(error) if isinstance(error, BrokenClause) else f"{type(error).__name__}: {error}"
            if place := _place(error, env_id):
                detail = f"{detail} (at {place})"
            results.append(ClauseResult(clause.__name__, False, detail))
            if clause is CLAUSES[0]:  # the task cannot be made
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
    """Return file:line of the last frame inside the task's modules; "" without such a frame."""
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
