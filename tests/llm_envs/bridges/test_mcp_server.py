"""Environments as MCP servers, played by the real client over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import gymnasium as gym
import pytest

import llm_envs  # noqa: F401  # registers the tasks
from llm_envs.bridges.mcp import REPLY, START, McpEpisodes
from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import parse_reply
from llm_envs.tools import run_calls
from llm_envs.tools.mcp import mcp_tools
from llm_envs.types import ToolCall


def play(arguments: list[str], script: Callable[[Any], Awaitable[None]]) -> None:
    """Start the command as a client does, and run a script with a connected client."""
    mcp = pytest.importorskip("mcp")

    async def connect() -> None:
        server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "llm_envs.cli", "mcp", *arguments])
        async with mcp.Client(mcp.stdio_client(server)) as client:
            await script(client)

    asyncio.run(connect())


async def said(client: Any, name: str, **arguments: Any) -> tuple[str, bool]:
    result = await client.call_tool(name, arguments)
    return result.content[0].text, bool(result.is_error)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "env_id", ["llm/Calculator-v0", "llm/SQLExplorer-v0", "llm/GuessNumber-v0", "llm/Arithmetic-v0"]
)
def test_the_oracle_wins_through_the_protocol(env_id: str) -> None:
    twin = gym.make(env_id)
    task, _ = twin.reset(seed=7)

    async def script(client: Any) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == [START, REPLY, *(tool["function"]["name"] for tool in twin.get_wrapper_attr("tools"))]
        shown, is_error = await said(client, START, seed=7)
        assert shown == f"{twin.get_wrapper_attr('system_prompt')}\n\n{task}" and not is_error
        is_over, total = False, 0.0
        while not is_over:
            action = twin.get_wrapper_attr("oracle")()
            observation, reward, terminated, truncated, _ = twin.step(action)
            is_over, total = terminated or truncated, total + float(reward)
            calls = parse_reply(action).tool_calls
            assert len(calls) <= 1
            text, is_error = (
                await said(client, calls[0].name, **calls[0].arguments)
                if calls
                else await said(client, REPLY, text=action)
            )
            assert text.startswith(observation) and not is_error
        assert text.endswith(f"it is complete: success, reward {total:g}. {START} begins another.")
        assert await said(client, REPLY, text="more") == (f"No episode is running: call {START} first.", True)

    play([env_id], script)


def test_what_goes_wrong_is_an_error_that_the_model_reads() -> None:
    async def script(client: Any) -> None:
        assert (await said(client, "calculator", expression="1+1"))[1] is True
        unknown = await said(client, "calculater")  # named before an episode too
        assert unknown == (
            "The tool 'calculater' is unknown; the tools are start_episode, submit_reply, calculator. "
            "Did you mean calculator?",
            True,
        )
        first, second = (await said(client, START))[0], (await said(client, START))[0]
        assert first != second
        assert (await said(client, START, seed=3))[0] == (await said(client, START, seed=3))[0]
        text, is_error = await said(client, "calculator", expresion="1+1")
        assert is_error and "expresion" in text
        text, is_error = await said(client, "no_tool")
        assert is_error and text.startswith(
            "The tool 'no_tool' is unknown; the tools are start_episode, submit_reply, calc"
        )
        assert (await said(client, REPLY, text=5))[1] is True
        assert (await said(client, START, seed=-1))[1] is True
        for _ in range(10):
            text, _ = await said(client, REPLY, text="I do not know")
            if "The episode is over" in text:
                break
        assert "the task's limit of turns ended it: no success, reward -" in text

    play(["llm/Calculator-v0", "--difficulty", "easy"], script)


def test_the_tools_are_those_of_the_episode() -> None:
    twin = gym.make("llm/FunctionCalling-v0")
    seen = []

    async def script(client: Any) -> None:
        for seed in (1, 2):
            await said(client, START, seed=seed)
            twin.reset(seed=seed)
            names = [tool["function"]["name"] for tool in twin.get_wrapper_attr("tools")]
            assert [tool.name for tool in (await client.list_tools()).tools][2:] == names
            seen.append(names)

    play(["llm/FunctionCalling-v0"], script)
    assert seen[0] != seen[1]


@pytest.mark.smoke
def test_our_own_client_plays_it() -> None:
    arguments = ["-m", "llm_envs.cli", "mcp", "llm/Calculator-v0"]
    with mcp_tools(sys.executable, arguments, timeout_s=20.0) as tools:
        box = {tool.name: tool for tool in tools.tools()}
        started, computed = run_calls(box, [ToolCall(START, {"seed": 1})]), None
        computed = run_calls(box, [ToolCall("calculator", {"expression": "6*7"})])
    assert "calculator" in started[0].output
    assert computed[0].output == "42"


def test_games_without_tools_and_names_that_are_taken() -> None:
    episodes = McpEpisodes(gym.make("llm/TicTacToe-v0"))
    assert [name for name, _, _ in episodes.tools()] == [START, REPLY]

    class Taken(gym.Env[str, str]):
        tools = [{"type": "function", "function": {"name": REPLY, "parameters": {"type": "object"}}}]

        def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
            return "", {}

    with pytest.raises(InvalidConfigError, match="has a tool 'submit_reply', which is a name of ours"):
        McpEpisodes(Taken())


def test_a_wrong_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "llm/Calculater-v0"]) == 2
    assert "Did you mean llm/Calculator-v0?" in capsys.readouterr().err
