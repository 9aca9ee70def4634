"""Tools from functions, tools that share state, budgets, parallel calls; `mcp` takes them from an MCP server."""

from __future__ import annotations

from llm_envs.tools.base import (
    BUDGET_EXCEEDED,
    INVALID_ARGUMENTS,
    TOOL_TIMEOUT,
    UNKNOWN_TOOL,
    Tool,
    call_tool,
    unknown_tool,
)
from llm_envs.tools.budget import Budget
from llm_envs.tools.executor import MAX_PARALLEL, Executor, Toolbox, arun_calls, run_calls
from llm_envs.tools.toolset import Toolset, as_tools, budgeted, tool

__all__ = [
    "BUDGET_EXCEEDED",
    "INVALID_ARGUMENTS",
    "MAX_PARALLEL",
    "TOOL_TIMEOUT",
    "UNKNOWN_TOOL",
    "Budget",
    "Executor",
    "Tool",
    "Toolbox",
    "Toolset",
    "arun_calls",
    "as_tools",
    "budgeted",
    "call_tool",
    "run_calls",
    "tool",
    "unknown_tool",
]
