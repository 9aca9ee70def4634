"""An agent of Pydantic AI.

Command:   llm-envs doctor MODEL --agent examples/agents/pydantic_ai_agent.py:ENV
Needs:     pip install 'llm-envs[train,agents]' 'pydantic-ai-slim[openai]'
Hardware:  one CPU core, seconds with a small model.
Expect:    one row for each episode: nothing of the history is changed.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from llm_envs.agents import AgentEnv, EnvTask


def to_tool(task: EnvTask, name: str, description: str, parameters: dict[str, Any]) -> Tool:
    """Return a tool of the environment as one of Pydantic AI's."""

    def call(**arguments: Any) -> str:
        return task.call(name, arguments)

    return Tool.from_schema(call, name, description, parameters)


async def agent(task: EnvTask, client: Any) -> None:
    """Let the framework call tools until it answers; give the answer to the environment, and its reply to the agent."""
    tools = [to_tool(task, **tool["function"]) for tool in task.tools]
    *system, question = [message["content"] for message in task.messages]
    # It would rewrite the tools' schemas for OpenAI's models.
    profile: Any = {"json_schema_transformer": None}
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client), profile=profile)
    player = Agent(model, system_prompt=system, tools=tools, retries=8)
    result = await player.run(question)
    while not task.is_over:
        answers = task.step(result.output)
        if answers:
            result = await player.run(answers[0]["content"], message_history=result.all_messages())


ENV = AgentEnv(agent, "llm/Calculator-v0")
