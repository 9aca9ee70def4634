"""An agent of smolagents, which brings a long system prompt and shows earlier calls as text.

Command:   llm-envs doctor MODEL --agent examples/agents/smolagents_agent.py:ENV
Needs:     pip install 'llm-envs[train,agents]' 'smolagents[openai]', and a model with a context of 4,096 tokens
Hardware:  one CPU core, seconds with a small model.
Expect:    a new row after each call, since the next request has changed it; all rows share the reward.
"""

from __future__ import annotations

from typing import Any

from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent

from llm_envs.agents import AgentEnv, EnvTask


class Calculator(Tool):
    """The environment's tool as one of smolagents'."""

    name = "calculator"
    description = "Evaluate an arithmetic expression."
    inputs = {"expression": {"type": "string", "description": "such as 37*24"}}  # noqa: RUF012  # as Tool declares it
    output_type = "string"

    def __init__(self, task: EnvTask) -> None:
        super().__init__()
        self.task = task

    def forward(self, expression: str) -> str:
        """Return the value."""
        return self.task.call("calculator", {"expression": expression})


def agent(task: EnvTask, client: Any) -> str:
    """Return what the model passes to `final_answer`, a tool of smolagents."""
    model = OpenAIModel("policy", api_base=str(client.base_url), api_key=client.api_key, tool_choice="auto")
    player = ToolCallingAgent([Calculator(task)], model, verbosity_level=LogLevel.OFF, max_steps=4)
    return f"<answer>{player.run(task.messages[-1]['content'])}</answer>"


ENV = AgentEnv(agent, "llm/Calculator-v0")
