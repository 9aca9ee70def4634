"""An environment as an MCP server, which a desktop client can play: `llm-envs mcp llm/Calculator-v0`.

The server has the environment's own tools, and two more: `start_episode`, which returns the task, and `submit_reply`,
for any reply other than a tool call. A call of the environment's tool is a reply with this one call.

Invariants:

1. Calls wait for each other, in the order of their arrival: the environment has one thread at a time.
2. A call before `start_episode`, or after the end of an episode, is an error; it starts nothing.
3. The tools belong to the current episode. If an episode has others, the client is told to list them again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError, did_you_mean, extra_needed
from llm_envs.parsers import format_tool_call
from llm_envs.rollout.workers.runner import close_env, env_attribute
from llm_envs.sources.mixture import derive_seed

__all__ = ["REPLY", "START", "McpEpisodes", "serve_stdio"]

START, REPLY = "start_episode", "submit_reply"
_OWN_TOOLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        START,
        "Begin an episode and return its task. Play it with the other tools. The same seed begins the same episode.",
        {"type": "object", "properties": {"seed": {"type": "integer", "minimum": 0}}, "additionalProperties": False},
    ),
    (
        REPLY,
        "Send a reply that is not a tool call: an answer, in the form that the task asks for, or words.",
        {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    ),
)
_NOT_PLAYING = f"No episode is running: call {START} first."


class McpEpisodes:
    """The episodes of one client. It knows nothing of the protocol.

    Args:
        env: The environment; the episodes change it.
        seed: Decides the episodes that are started without a seed.

    Raises:
        InvalidConfigError: If the environment has a tool with the name of one of the server's.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int = 0) -> None:
        self.env, self._seed = env, seed
        self._n_started, self._is_playing, self._return = 0, False, 0.0
        env.reset(seed=derive_seed(seed, "tools"))  # tools are known after a reset
        self._read_tools()

    def tools(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return name, description and schema of each tool."""
        listed = [(f["name"], f.get("description", ""), f["parameters"]) for f in self._functions]
        return [*_OWN_TOOLS, *listed]

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call a tool; return its text, and whether that is an error."""
        if name == START:
            seed = arguments.get("seed")
            if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
                return f"The seed is {seed!r}; it must be an integer of at least 0.", True
            return self._start(seed), False
        known = [tool for tool, _, _ in self.tools()]
        if name not in known:
            near = did_you_mean(name, known)
            return f"The tool {name!r} is unknown; the tools are {', '.join(known)}.{near}", True
        if not self._is_playing:
            return _NOT_PLAYING, True
        if name == REPLY:
            text = arguments.get("text")
            return self._step(text) if isinstance(text, str) else (f"The text is {text!r:.80}, and not a string.", True)
        return self._step(format_tool_call(name, **arguments))

    def _start(self, seed: int | None) -> str:
        chosen = derive_seed(self._seed, self._n_started) if seed is None else seed
        self._n_started += 1
        observation, info = self.env.reset(seed=chosen)
        self._is_playing, self._return = True, 0.0
        self._read_tools()
        parts = [env_attribute(self.env, "system_prompt", None), _text(observation, info.get("messages"))]
        return "\n\n".join(part for part in parts if part)

    def _step(self, action: str) -> tuple[str, bool]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        results = env_attribute(self.env, "tool_results", ()) or ()
        is_error = any(result.error is not None for result in results)
        text = _text(observation, info.get("messages"))
        if not terminated and not truncated:
            return text, is_error
        self._is_playing = False
        how = "the task's limit of turns ended it" if truncated and not terminated else "it is complete"
        outcome = "success" if info.get("is_success") else "no success"
        end = f"The episode is over, {how}: {outcome}, reward {self._return:g}. {START} begins another."
        return f"{text}\n\n{end}" if text else end, is_error

    def _read_tools(self) -> None:
        self._functions = [tool.get("function", tool) for tool in env_attribute(self.env, "tools", ()) or ()]
        for function in self._functions:
            if function["name"] in (START, REPLY):
                raise InvalidConfigError(f"the environment has a tool {function['name']!r}, which is a name of ours.")


def _text(observation: Any, messages: Sequence[Mapping[str, Any]] | None) -> str:
    if messages:
        return "\n".join(str(message["content"]) for message in messages)
    return observation if isinstance(observation, str) else json.dumps(observation, default=str)


def serve_stdio(env: gym.Env[Any, Any], name: str, seed: int = 0) -> None:
    """Serve an environment on standard input and output until the client leaves.

    Args:
        env: The environment. It is closed at the end.
        name: The server's name.
        seed: Decides the episodes that are started without a seed.

    Raises:
        MissingExtraError: If the package `mcp` is not installed.
    """
    with extra_needed("an MCP server needs `mcp`: pip install 'llm-envs[bridges]'."):
        import mcp.server.stdio
        from mcp.server.lowlevel import NotificationOptions
    try:
        episodes = McpEpisodes(env, seed)

        async def serve() -> None:
            server = _server(episodes, name)
            async with mcp.server.stdio.stdio_server() as (reader, writer):
                await server.run(
                    reader, writer, server.create_initialization_options(NotificationOptions(tools_changed=True))
                )

        asyncio.run(serve())
    finally:
        close_env(env)


def _server(episodes: McpEpisodes, name: str) -> Any:
    """Return a server of the protocol. Create it on the event loop that runs it."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    lock = asyncio.Lock()

    async def list_tools(context: Any, params: Any) -> Any:
        async with lock:
            return types.ListToolsResult(
                tools=[
                    types.Tool(name=n, description=about, input_schema=schema) for n, about, schema in episodes.tools()
                ]
            )

    async def call_tool(context: Any, params: Any) -> Any:
        async with lock:
            before = episodes.tools()
            text, is_error = await asyncio.to_thread(episodes.call, params.name, params.arguments or {})
            if episodes.tools() != before:
                await context.session.send_tool_list_changed()
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)

    about = f"Call {START} for a task, then play it with the other tools."
    return Server(name, instructions=about, on_list_tools=list_tools, on_call_tool=call_tool)
