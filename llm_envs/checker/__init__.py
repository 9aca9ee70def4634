"""The check of a task's contract, and `certify` for other environments: clauses, hostile actions, hacks, mutations."""

from __future__ import annotations

from llm_envs.checker.candidate import Settings
from llm_envs.checker.certification import Certificate, Finding, certify
from llm_envs.checker.check import QUICK, THOROUGH, CheckReport, ClauseResult, Effort, check_task

__all__ = [
    "QUICK",
    "THOROUGH",
    "Certificate",
    "CheckReport",
    "ClauseResult",
    "Effort",
    "Finding",
    "Settings",
    "certify",
    "check_task",
]
