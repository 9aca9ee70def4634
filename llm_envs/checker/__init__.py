"""The clauses that environments are held to. `check_task` is for tasks, `certification` for every text environment."""

from __future__ import annotations

from llm_envs.checker.check import QUICK, THOROUGH, CheckReport, Effort, Finding, check_task
from llm_envs.checker.subject import Settings

__all__ = [
    "QUICK",
    "THOROUGH",
    "CheckReport",
    "Effort",
    "Finding",
    "Settings",
    "check_task",
]
