"""Agents that talk to a language model through OpenAI's API: a server that records them, and agents as episodes."""

from llm_envs.agents.server import Endpoint, PolicyServer
from llm_envs.agents.session import PolicySession

__all__ = ["Endpoint", "PolicyServer", "PolicySession"]
