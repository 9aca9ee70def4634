"""The clauses that environments are held to: `check_task` for tasks, `certify` for every text environment."""

from __future__ import annotations

from llm_envs.checker.certification import Certificate, certify
from llm_envs.checker.check import QUICK, THOROUGH, CheckReport, Effort, Finding, check_task
from llm_envs.checker.subject import Settings

__all__ = [
    "QUICK",
    "THOROUGH",
    "Certificate",
    "CheckReport",
    "Effort",
    "Finding",
    "Settings",
    "certify",
    "check_task",
]
