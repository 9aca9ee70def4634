"""The check of a task's contract: clauses, hostile actions, blind policies, twins and mutations."""

from __future__ import annotations

from llm_envs.checker.check import QUICK, THOROUGH, CheckReport, ClauseResult, Effort, check_task

__all__ = ["QUICK", "THOROUGH", "CheckReport", "ClauseResult", "Effort", "check_task"]
