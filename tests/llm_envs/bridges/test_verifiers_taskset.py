"""Our environments as a taskset of verifiers, played by its own chat harness against a model behind an API."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from served import served

from llm_envs.sources.source import SeedSource

pytestmark = pytest.mark.doors("verifiers.v1")

MODULE = """
from llm_envs.bridges.verifiers_taskset import EpisodeEnv, EpisodeTaskset
__all__ = ["EpisodeEnv", "EpisodeTaskset"]
"""


@contextmanager
def oracle_api(env_id: str, seeds: list[int], **kwargs: Any) -> Iterator[str]:
    """An API whose model answers as the oracle: it plays the conversation along."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def chat(request: Request) -> Response:
        messages = (await request.json())["messages"]
        first = next(m["content"] for m in messages if m["role"] == "user")
        env = gym.make(env_id, **kwargs)
        assert any(env.reset(seed=seed)[0] == first for seed in seeds), first
        for message in messages:
            if message["role"] == "assistant":
                env.step(message["content"])
        message = {"role": "assistant", "content": env.get_wrapper_attr("oracle")()}
        choice = {"index": 0, "delta": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        frame = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "oracle"}
        events = [{**frame, "choices": [choice]}, {**frame, "choices": [], "usage": usage}]
        lines = [*map(json.dumps, events), "[DONE]"]
        return Response("".join(f"data: {line}\n\n" for line in lines), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    with served(app) as url:
        yield f"{url}/v1"


@pytest.mark.smoke
def test_an_oracle_wins_every_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import verifiers.v1 as vf
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.utils.loaders import load_environment

    from llm_envs.bridges.verifiers_taskset import EpisodeConfig, EpisodeEnvConfig

    (tmp_path / "llm_envs_taskset.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ORACLE_KEY", "none")
    source = SeedSource("llm/Sokoban-v0", seed=0, env_kwargs={"split": "train"})
    seeds = [source.spec(index).seed for index in range(2)]
    taskset = EpisodeConfig(id="llm-envs-taskset", env_id="llm/Sokoban-v0", n=2)

    async def play(url: str) -> list[Any]:
        env = load_environment(EpisodeEnvConfig(taskset=taskset))
        client = vf.EvalClientConfig(base_url=url, api_key_var="ORACLE_KEY")
        context = ModelContext(model="oracle", client=client)
        async with env.serving():
            return [await env.run_episode(task, context) for task in env.taskset]

    with oracle_api("llm/Sokoban-v0", seeds, split="train") as url:
        episodes = asyncio.run(play(url))
    assert len(episodes) == 2
    for episode, seed in zip(episodes, seeds, strict=True):
        assert episode.ok, episode.errors
        [trace] = episode.traces
        assert episode.task.data.seed == seed
        assert trace.rewards["return"].score == pytest.approx(1.0)
        assert trace.metrics["success"] == 1.0 and trace.metrics["correct"] == 1.0
        assert trace.num_turns > 1


def test_tools_stand_in_the_system_prompt() -> None:
    from llm_envs.bridges.verifiers_taskset import EpisodeConfig, EpisodeTaskset

    [task] = EpisodeTaskset(EpisodeConfig(id="x", env_id="llm/Calculator-v0", n=1))
    env = gym.make("llm/Calculator-v0")
    observation, _ = env.reset(seed=task.data.seed)
    assert task.data.prompt == observation and task.data.idx == 0
    assert str(env.get_wrapper_attr("system_prompt")) in task.data.system_prompt
    name = env.get_wrapper_attr("tools")[0]["function"]["name"]
    assert f'"name": "{name}"' in task.data.system_prompt and "<tool_call>" in task.data.system_prompt
