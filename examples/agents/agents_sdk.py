"""An agent of OpenAI's Agents SDK, which asks for chat completions: its other kind of model raises if a reply is cut.

Command:   llm-envs doctor MODEL --agent examples/agents/agents_sdk.py:ENV
Needs:     pip install 'llm-envs[train,agents]' openai-agents
Hardware:  one CPU core, seconds with a small model.
Expect:    one row for each episode: nothing of the history is changed.
"""

from __future__ import annotations

import json
from typing import Any

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, RunConfig, Runner

from llm_envs.agents import AgentEnv, EnvTask


def to_tool(task: EnvTask, name: str, description: str, parameters: dict[str, Any]) -> FunctionTool:
    """Return a tool of the environment as one of the SDK's."""

    async def call(context: Any, arguments: str) -> str:
        return task.call(name, json.loads(arguments))

    return FunctionTool(name, description, parameters, call, strict_json_schema=False)


async def agent(task: EnvTask, client: Any) -> None:
    """Let the SDK call tools until the model answers; give the answer to the environment, and its reply to the SDK."""
    tools: list[Any] = [to_tool(task, **tool["function"]) for tool in task.tools]
    player = Agent("player", model=OpenAIChatCompletionsModel("policy", client), tools=tools)
    # The default raises, which would lose the episode: the model should learn from it.
    settings = RunConfig(tracing_disabled=True, tool_not_found_behavior="return_error_to_model")
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        result = await Runner.run(player, messages, run_config=settings, max_turns=None)
        messages = [*result.to_input_list(), *task.step(result.final_output)]


ENV = AgentEnv(agent, "llm/Calculator-v0")
