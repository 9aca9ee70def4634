"""`llm-envs mcp`: an environment as an MCP server, for a desktop client."""

from __future__ import annotations

import argparse

from llm_envs.cli.arguments import ENV_HELP, add_env_arguments, env_kwargs_of, require_text

__all__ = ["ABOUT", "add_arguments", "run"]

ABOUT = "Serve a task as an MCP server, for a desktop client."

EXAMPLES = """
examples:
  llm-envs mcp llm/Calculator-v0
  llm-envs mcp llm/SQLExplorer-v0 --difficulty hard --seed 3
  llm-envs mcp llm/Wordle-v0 --split test

The client starts the command itself. In its settings: {"mcpServers": {"calculator": {"command": "llm-envs", "args":
["mcp", "llm/Calculator-v0"]}}}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("env", metavar="ENV", help=ENV_HELP)
    parser.add_argument("--seed", type=int, default=0, help="the run's seed: decides the episodes; default 0")
    add_env_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Serve on standard input and output until the client leaves."""
    import gymnasium as gym

    from llm_envs.bridges.mcp import serve_stdio

    env_kwargs = env_kwargs_of(arguments)
    arguments.env = require_text(arguments.env, env_kwargs)
    serve_stdio(gym.make(arguments.env, **env_kwargs), arguments.env, arguments.seed)
