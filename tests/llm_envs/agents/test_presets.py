"""Presets: the requests that the published agents really send, and the errors of presets that cannot run.

`requests/` has the first requests of each, and of two agents without a preset, as a plain server got them, without
texts: "<123 characters>" stands for one of that length. Codex and Claude Code had the settings of their presets.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from llm_envs.agents import AgentEnv, PolicyServer, PolicySession, SandboxedAgent
from llm_envs.agents.presets import PRESETS
from llm_envs.errors import InvalidConfigError
from llm_envs.sources.source import EpisodeSpec
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import StopReason, Trajectory, validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

SENT = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "requests").glob("*.json")}


def filled(value: Any) -> Any:
    """Return a request with texts of the original lengths."""
    if isinstance(value, dict):
        return {key: filled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each) for each in value]
    if isinstance(value, str) and (found := re.fullmatch(r"<(\d+) characters>", value)):
        return "x" * int(found[1])
    return value


def replayed(name: str) -> tuple[list[httpx.Response], Trajectory]:
    """Send an agent's requests to a server, as a run has it, and return the answers and the episode."""
    codec = ByteCodec()

    async def main() -> tuple[list[httpx.Response], Trajectory]:
        server = PolicyServer(HashingTokenPolicy(codec, ["Done."]), codec=codec, opens_sessions=False)
        spec = EpisodeSpec("agent", {}, 0)
        session = PolicySession(spec, server.policy, codec, marks=PRESETS[name].marks if name in PRESETS else None)
        endpoint = server.add("a", session)
        async with server, httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as http:
            answers = []
            for request in SENT[name]["requests"]:
                headers = request["headers"] | {"x-api-key": endpoint.api_key}
                body = filled(request["body"])
                answers.append(await http.post(f"/s/a{request['path']}", json=body, headers=headers))
        return answers, ended(session)

    return asyncio.run(main())


def ended(session: PolicySession) -> Trajectory:
    session.pay(1.0, {"reward": 1.0})
    trajectory = session.trajectory(stop_reason=StopReason.TERMINATED, is_success=True)
    assert validate_batch([trajectory]) == []
    return trajectory


@pytest.mark.parametrize("name", SENT)
def test_the_server_takes_what_an_agent_sends(name: str) -> None:
    assert name not in PRESETS or SENT[name]["version"] == PRESETS[name].version
    answers, trajectory = replayed(name)
    for request, answer in zip(SENT[name]["requests"], answers, strict=True):
        assert answer.status_code == 200, answer.text
        assert "Done." in answer.text
        assert ("event-stream" in answer.headers["content-type"]) == bool(request["body"].get("stream"))
    assert sum(len(row.spans) for row in trajectory.rows) == len(answers)


def test_every_preset_has_its_requests() -> None:
    assert PRESETS.keys() <= SENT.keys()


def test_what_changes_nothing_is_recorded() -> None:
    assert replayed("codex")[1].metadata["not_applied"] == {
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
    }
    assert replayed("claude-code")[1].metadata["not_applied"] == {
        "reasoning_effort": "high",
        "thinking": {"type": "adaptive"},
    }


def test_children_are_told_by_their_address_their_model_or_their_headers() -> None:
    """Two requests of the agent, one with another model, one of another thread, one at the address for children."""
    codec = ByteCodec()

    async def main() -> Trajectory:
        server = PolicyServer(HashingTokenPolicy(codec, ["Done."]), codec=codec, opens_sessions=False)
        session = PolicySession(EpisodeSpec("agent", {}, 0), server.policy, codec, marks=("thread-id",))
        async with server, httpx.AsyncClient(timeout=120, trust_env=False) as http:
            endpoint = server.add("a", session)
            for number, (url, model, thread) in enumerate(
                [
                    (endpoint.base_url, "policy", "1"),
                    (endpoint.base_url, "small", "1"),
                    (endpoint.base_url, "policy", "2"),
                    (endpoint.child.base_url, "policy", "1"),
                    (endpoint.base_url, "policy", "1"),
                ]
            ):
                headers = {"x-api-key": endpoint.api_key, "thread-id": thread}
                body = {"model": model, "messages": [{"role": "user", "content": str(number)}]}
                answer = await http.post(f"{url}/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200
        return ended(session)

    trajectory = asyncio.run(main())
    assert trajectory.metadata["children"] == {"model small": 1, "thread-id 2": 1, "child": 1}
    assert [len(row.spans) for row in trajectory.rows] == [1, 0, 0, 0, 1]
    assert trajectory.reward == 1


def test_a_preset_that_is_unknown_or_not_installed() -> None:
    with pytest.raises(InvalidConfigError, match=r"'codec'.* codex, claude-code, .* Did you mean codex"):
        AgentEnv("codec", [{}], lambda result, trajectory: 0.0)
    for name, command in (
        ("codex", "npm install -g @openai/codex@0.171.0"),
        ("aider", "pip install aider-chat==0.86.0"),
    ):
        with pytest.raises(InvalidConfigError, match=f"/no/such/place.*{command}"):
            SandboxedAgent(name, executable="/no/such/place")
    with pytest.raises(InvalidConfigError, match="runtime='process'"):
        SandboxedAgent("codex", executable="/bin/true", runtime="process")
