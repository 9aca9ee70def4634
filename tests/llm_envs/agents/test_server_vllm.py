"""Agents on vLLM, in this process and on `vllm serve`: recorded log-probabilities, branches, cancelled requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from http_agents import acts, ask, asks_three_at_once, create_client
from tool_model import tool_folder

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytest.importorskip("starlette")
pytestmark = pytest.mark.vllm

from llm_envs.agents import AgentEnv, PolicyServer  # noqa: E402  (after the skip)
from llm_envs.policies import VLLMEnginePolicy, VLLMServerPolicy, load_engine, start_servers  # noqa: E402
from llm_envs.policies.inference import load_model, token_logps  # noqa: E402
from llm_envs.policies.inference.loading import load_tokenizer  # noqa: E402
from llm_envs.rollout import Collector  # noqa: E402
from llm_envs.types import SamplingParams, Trajectory, validate_batch  # noqa: E402

ARGS = ("--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "32", "--enforce-eager")
LIGHT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SAMPLING = SamplingParams(max_new_tokens=40)
folder = pytest.fixture(scope="module")(tool_folder)


@pytest.fixture(scope="module", params=["engine", "server"])
def policy(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made: Any
    if request.param == "engine":
        llm = load_engine(folder, dtype="float32", max_model_len=512, max_num_seqs=32)
        made = VLLMEnginePolicy(llm, llm.get_tokenizer())
        yield made
        asyncio.run(made.aclose())
        return
    logs = tmp_path_factory.mktemp("logs")
    with start_servers(folder, 1, args=ARGS, env=LIGHT, log_dir=logs, start_timeout_s=1200) as servers:
        made = VLLMServerPolicy(servers.urls, load_tokenizer(folder), model=folder, connect_timeout_s=60)
        made.url_of_the_test = servers.urls[0]
        yield made
        asyncio.run(made.aclose())


def collected(env: AgentEnv, policy: Any, n: int, size: int, workers: int = 0) -> list[Trajectory]:
    settings: dict[str, Any] = {"codec": policy.codec, "sampling": SAMPLING, "seed": 5, "progress": False}
    with Collector(env, policy, workers=workers, **settings) as collector:
        trajectories = [t for group in collector.collect(n, size) for t in group]
    assert validate_batch(trajectories) == []
    assert [t.status for t in trajectories] == ["ok"] * n * size
    return trajectories


def largest_gap(folder: Path, trajectories: list[Trajectory]) -> float:
    """Return the largest difference between a recorded log-probability and the one that transformers computes."""
    rows = [row for t in trajectories for row in t.rows]
    scored = token_logps(load_model(folder, dtype=torch.float32), [row.ids for row in rows])
    return max(float(np.abs(logps - row.logps)[row.mask].max()) for logps, row in zip(scored, rows, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_recorded_is_what_transformers_computes(policy: Any, folder: Path, workers: int) -> None:
    agent = AgentEnv(acts, "llm/Calculator-v0", create_client=create_client)
    found = collected(agent, policy, 3, 4, workers)
    assert any(t.tool_results for t in found)
    assert max(len(t.turns) for t in found) > 1
    assert sum(t.n_sampled_tokens for t in found) > 100
    assert largest_gap(folder, found) < 1e-4


def test_concurrent_requests_become_branches(policy: Any, folder: Path) -> None:
    tasks = [{"question": "What is 3 * 4?"}]
    agent = AgentEnv(asks_three_at_once, tasks, lambda result, trajectory: 1.0, create_client=create_client)
    found = collected(agent, policy, 2, 2)
    for trajectory in found:
        assert (len(trajectory.turns), len(trajectory.rows)) == (4, 3)
        first, *others = trajectory.rows
        n = first.spans[0][1]
        for row in others:  # the first reply is trained on in one row, and context in the others
            np.testing.assert_array_equal(row.ids[:n], first.ids[:n])
            assert not row.mask[:n].any()
            assert len(row.spans) == 1
    assert largest_gap(folder, found) < 1e-4


def test_a_client_that_leaves_aborts_its_sampling(policy: Any) -> None:
    sampling = SamplingParams(max_new_tokens=400, extra={"min_tokens": 400})

    async def main() -> None:
        async with PolicyServer(policy, codec=policy.codec, sampling=sampling) as server:
            where = server.endpoint("a")
            client = create_client(where)
            messages = [{"role": "user", "content": "Hello."}]
            leaving = [asyncio.create_task(ask(client, messages)) for _ in range(3)]
            deadline = time.monotonic() + 120
            while "a" not in server.sessions or not await n_running(policy):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.005)
            session = server.sessions["a"]
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            deadline = time.monotonic() + 120
            while session.n_active or await n_running(policy):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            assert session.record.turns == []
            assert str((await ask(client, messages))["content"])  # the policy still answers
            assert len(session.record.turns) == 1
            await client.aclose()

    asyncio.run(main())


async def n_running(policy: Any) -> float:
    """Return how many requests vLLM is working on."""
    if isinstance(policy, VLLMEnginePolicy):
        return float(policy.llm.llm_engine.has_unfinished_requests())
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"{policy.url_of_the_test}/metrics")).text
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(names))
