"""Agents that talk to a language model through OpenAI's API: a server that records them, and agents as episodes."""

from llm_envs.agents.env import AgentEnv
from llm_envs.agents.sandboxed import SandboxedAgent, check_passed
from llm_envs.agents.server import Endpoint, PolicyServer
from llm_envs.agents.session import PolicySession
from llm_envs.agents.task import EnvTask

__all__ = ["AgentEnv", "Endpoint", "EnvTask", "PolicyServer", "PolicySession", "SandboxedAgent", "check_passed"]
