"""Tools from functions, tools that share state, budgets, parallel calls; `mcp` takes them from an MCP server."""

from __future__ import annotations

from llm_envs.tools.base import BUDGET_EXCEEDED, INVALID_ARGUMENTS, TOOL_TIMEOUT, UNKNOWN_TOOL, Tool
from llm_envs.tools.budget import Budget
from llm_envs.tools.executor import Toolbox, arun_calls, run_calls
from llm_envs.tools.toolset import Toolset, budgeted, tool

__all__ = [
    "BUDGET_EXCEEDED",
    "INVALID_ARGUMENTS",
    "TOOL_TIMEOUT",
    "UNKNOWN_TOOL",
    "Budget",
    "Tool",
    "Toolbox",
    "Toolset",
    "arun_calls",
    "budgeted",
    "run_calls",
    "tool",
]
