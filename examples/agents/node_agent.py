"""An agent in another language: a command that reads the task and prints its answer.

Command:   npm ci --prefix examples/agents && llm-envs doctor MODEL --agent examples/agents/node_agent.py:ENV
Needs:     pip install 'llm-envs[train,agents]', Node 18 or later
Hardware:  one CPU core, seconds with a small model.
Expect:    one row for each episode: nothing of the history is changed.
"""

from __future__ import annotations

from pathlib import Path

from llm_envs.agents import AgentEnv

ENV = AgentEnv(["node", str(Path(__file__).with_name("node_agent.mjs"))], "llm/Calculator-v0")
