"""An agent that is a loop around the client of the package `openai`, which trains as it is.

Command:   llm-envs doctor MODEL --agent examples/agents/openai_loop.py:ENV
Needs:     pip install 'llm-envs[train,agents]'
Hardware:  one CPU core, seconds with a small model.
Expect:    one row for each episode: nothing of the history is changed.
"""

from __future__ import annotations

from typing import Any

from llm_envs.agents import AgentEnv, EnvTask


async def agent(task: EnvTask, client: Any) -> None:
    """Ask, and let the environment answer, until the episode is over."""
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=task.tools)
        reply = answer.choices[0].message
        messages += [reply, *task.step(reply)]


ENV = AgentEnv(agent, "llm/Calculator-v0")
