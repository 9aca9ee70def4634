"""An agent of LangChain, which runs as a graph of LangGraph.

Command:   llm-envs doctor MODEL --agent examples/agents/langchain_agent.py:ENV
Needs:     pip install 'llm-envs[train,agents]' langchain langchain-openai
Hardware:  one CPU core, seconds with a small model.
Expect:    one row for each episode: nothing of the history is changed.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from llm_envs.agents import AgentEnv, EnvTask


def to_tool(task: EnvTask, name: str, description: str, parameters: dict[str, Any]) -> StructuredTool:
    """Return a tool of the environment as one of LangChain's."""

    def call(**arguments: Any) -> str:
        return task.call(name, arguments)

    return StructuredTool.from_function(call, name=name, description=description, args_schema=parameters)


async def agent(task: EnvTask, client: Any) -> None:
    """Let the graph call tools until it answers; give the answer to the environment, and its reply to the graph."""
    model = ChatOpenAI(
        model="policy", api_key=client.api_key, root_async_client=client, async_client=client.chat.completions
    )
    graph = create_agent(model, [to_tool(task, **tool["function"]) for tool in task.tools])
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        state = await graph.ainvoke({"messages": messages})
        messages = [*state["messages"], *task.step(state["messages"][-1].text)]


ENV = AgentEnv(agent, "llm/Calculator-v0")
