"""`check_task`: whether a registered task keeps the environment contract, which is `clauses.CLAUSES`."""

from __future__ import annotations

import inspect
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium.envs.registration import load_env_creator

from llm_envs.checker.catalogue import example_kwargs
from llm_envs.checker.clauses import CHECKS, CLAUSES, Clause
from llm_envs.checker.subject import QUICK, THOROUGH, Effort, Subject
from llm_envs.checker.verdicts import EXCUSABLE, BrokenClause, Inapplicable, NotATask
from llm_envs.errors import NoOracleError, TaskCheckError
from llm_envs.registration import task_spec

__all__ = ["QUICK", "THOROUGH", "CheckReport", "Effort", "Finding", "Status", "check_task", "examine"]

Status = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one clause."""

    check: str
    """The check that the clause is part of."""
    clause: str
    """The name of its function."""
    status: Status
    detail: str
    """The findings; the fault and its remedy; or why the clause does not apply."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the clause holds or does not apply."""
        return self.status != "failed"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check_task`."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    results: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every clause holds."""
        return not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The clauses that do not hold."""
        return tuple(result for result in self.results if not result.passed)

    def __str__(self) -> str:
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
    report = CheckReport(env_id, dict(kwargs), tuple(examine(Subject(env_id, kwargs, effort), CLAUSES)))
    if raise_on_failure and not report.passed:
        by_detail: dict[str, list[str]] = {}
        for result in report.failures:
            by_detail.setdefault(result.detail, []).append(result.clause)
        failures = "\n".join(f"- {', '.join(clauses)}: {detail}" for detail, clauses in by_detail.items())
        raise TaskCheckError(f"{env_id} breaks {len(report.failures)} of {len(CLAUSES)} clauses:\n{failures}")
    return report


_CHECK_OF = {clause: check.name for check in CHECKS for clause in (*check.clauses, *check.further)}


def examine(subject: Subject, clauses: Sequence[Clause]) -> Iterator[Finding]:
    """Yield the finding of each clause, until the first of a task finds that it cannot be made."""
    for clause in clauses:
        name, started = clause.__name__, time.perf_counter()
        status: Status = "passed"
        try:
            reason = getattr(subject.env.unwrapped, "clause_reasons", {}).get(name) if name in EXCUSABLE else None
            detail = clause(subject) if reason is None else Inapplicable(f"the task gives a reason: {reason}")
            if isinstance(detail, Inapplicable):
                status = "not applicable"
        except Exception as error:
            if isinstance(error, NoOracleError) or isinstance(error.__cause__, NoOracleError):
                status, detail = "not applicable", "the environment has no oracle"
            elif isinstance(error, NotATask):
                status, detail = "not applicable", str(error)
            else:
                status = "failed"
                detail = str(error) if isinstance(error, BrokenClause) else f"{type(error).__name__}: {error}"
                if place := _place(error, subject):
                    detail = f"{detail} (at {place})"
        yield Finding(_CHECK_OF[clause], name, status, str(detail), time.perf_counter() - started)
        if status == "failed" and clause is CLAUSES[0]:
            return


def _place(error: BaseException, subject: Subject) -> str:
    """Return file:line of the last frame inside the environment's modules; "" without such a frame."""
    if isinstance(error, BrokenClause):
        if error.__cause__ is None:
            return ""
        error = error.__cause__
    files = _files(subject)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _files(subject: Subject) -> set[str]:
    """Return the source files of the task's class and of its bases, except those of this package and of Gymnasium."""
    entry_point: object = subject.maker or task_spec(subject.env_id).entry_point
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
