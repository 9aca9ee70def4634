"""The agents of examples/agents, each with the real package, on a tiny model and on scripted replies.

What holds of the rows that each leaves:

| agent | compared with the same task played as an environment |
|---|---|
| `openai` in a loop, LangChain, the Agents SDK, Pydantic AI | equal: ids, log-probabilities, masks, rewards, messages |
| the same, after a call of a tool that does not exist | equal up to there: frameworks answer it in their own words |
| Node | equal until the model answers without a call, which ends the agent |
| smolagents | other prompts; each sampled token is trained on once, as it was sampled |
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tool_model import make_tool_model

from llm_envs.agents import AgentEnv
from llm_envs.chat import ChatCodec
from llm_envs.cli.agent_option import load_agent
from llm_envs.cli.main import main
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.testing import HashingTokenPolicy
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import SamplingParams, Trajectory, validate_batch

pytestmark = [pytest.mark.agents, pytest.mark.slow]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "agents"
SAME = ["openai_loop", "langchain_agent", "agents_sdk", "pydantic_ai_agent"]
ALL = [*SAME, "smolagents_agent", "node_agent"]
CALCULATOR = "llm/Calculator-v0"
CODEC = ChatCodec(tiny_tokenizer())
CALLS = [format_tool_call("calculator", expression=e) for e in ("2*3", "1/0", "37*24")]
NO_TOOL = format_tool_call("other", x=1)
BROKEN = ["<tool_call>{", "No idea.", format_tool_call("calculator", wrong=1), f"<think>Hm.</think>{CALLS[2]}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that calls tools, with a context for the prompts of smolagents."""
    path = tmp_path_factory.mktemp("agents") / "model"
    make_tool_model(path, steps=80)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return path


class KeepingPolicy(TransformersPolicy):
    """Keeps what it has sampled."""

    sampled: list[tuple[int, ...]]

    async def sample(self, *arguments: Any, **settings: Any) -> Any:
        result = await super().sample(*arguments, **settings)
        self.sampled.append(tuple(map(int, result.token_ids)))
        return result


@pytest.fixture(scope="module")
def policy(folder: Path) -> Iterator[KeepingPolicy]:
    made = KeepingPolicy.from_pretrained(folder, max_batch_size=1)
    yield made
    asyncio.run(made.aclose())


def agent(name: str) -> AgentEnv:
    if name == "node_agent" and (shutil.which("node") is None or not (FOLDER / "node_modules").is_dir()):
        reason = "there is no Node, or `npm ci --prefix examples/agents` did not run (apt-get install nodejs npm)"
        (pytest.fail if os.environ.get("LLM_ENVS_REQUIRE_NODE") else pytest.skip)(reason)
    return load_agent(f"{FOLDER / name}.py:ENV")


def collected(env: Any, policy: Any, n: int = 4, **settings: Any) -> list[Trajectory]:
    settings = {"seed": 5, "max_retries": 0, "progress": False} | settings
    sampling = SamplingParams(temperature=0.5, max_new_tokens=48)
    with Collector(env, policy, codec=policy.codec, sampling=sampling, **settings) as collector:
        found = [t for group in collector.collect(n, 2) for t in group]
    assert validate_batch(found) == []
    return found


def scripted(env: Any, texts: Sequence[str], n: int = 12, **settings: Any) -> list[Trajectory]:
    sampling = SamplingParams(max_new_tokens=400)  # a token for each byte
    policy = HashingTokenPolicy(CODEC, list(texts))
    settings = {"seed": 5, "max_retries": 0, "progress": False, "sampling": sampling} | settings
    with Collector(env, policy, codec=CODEC, **settings) as collector:
        found = [t for group in collector.collect(n, 2) for t in group]
    assert validate_batch(found) == []
    return found


def check_equal(found: Sequence[Trajectory], expected: Sequence[Trajectory]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours.rows) == len(theirs.rows) == 1
        for a, b in zip(ours.rows, theirs.rows, strict=True):
            np.testing.assert_array_equal(a.ids, b.ids)
            np.testing.assert_array_equal(a.mask, b.mask)
            np.testing.assert_array_equal(a.logps, b.logps)
        assert ours == theirs  # also turns, rewards, messages, tools, seeds, stop reasons


@pytest.mark.smoke
@pytest.mark.parametrize("name", SAME)
def test_a_models_rows_are_those_of_the_environment(name: str, policy: KeepingPolicy) -> None:
    policy.sampled = []
    expected, found = collected(CALCULATOR, policy), collected(agent(name), policy)
    assert {t.status for t in found} == {"ok"}, found[0].error
    assert any(message.role == "tool" for t in found for message in t.messages)
    check_equal(found, expected)


@pytest.mark.parametrize("name", SAME)
def test_rows_of_every_kind_of_reply_are_those_of_the_environment(name: str) -> None:
    texts = [*CALLS, f"{CALLS[0]}\n{CALLS[2]}", f"Let me see.\n{CALLS[0]}", *BROKEN, format_answer(6)]
    expected, found = scripted(CALCULATOR, texts), scripted(agent(name), texts)
    assert {t.stop_reason for t in found} == {"terminated", "env_truncated"}
    assert max(len(turn.tool_results) for t in found for turn in t.turns) == 2
    check_equal(found, expected)


@pytest.mark.parametrize("name", SAME[1:])
def test_a_tool_that_does_not_exist_is_answered_by_the_framework_in_the_same_row(name: str) -> None:
    texts = [CALLS[0], NO_TOOL, format_answer(6)]
    expected, found = scripted(CALCULATOR, texts), scripted(agent(name), texts)
    n_unlike = 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.status == "ok" and len(ours.rows) == 1
        n_unlike += any(NO_TOOL in message.content for message in ours.messages)
        a, b = ours.rows[0], theirs.rows[0]
        # Where the framework's words begin; without them, all of it.
        spans = [stop for message, (_, stop) in zip(replies(ours), a.spans, strict=True) if NO_TOOL in message]
        same = spans[0] if spans else len(b.ids)
        np.testing.assert_array_equal(a.ids[:same], b.ids[:same])
    assert n_unlike >= 4


def replies(trajectory: Trajectory) -> list[str]:
    return [message.content for message in trajectory.messages if message.role == "assistant"]


@pytest.mark.smoke
def test_a_command_in_another_language_leaves_the_rows_of_the_environment(policy: KeepingPolicy) -> None:
    env, limits = agent("node_agent"), RolloutLimits(max_turns=4)
    policy.sampled = []
    texts = [CALLS[2], format_tool_call("calculator", expression="512+348"), f"{CALLS[0]}\n{CALLS[2]}"]
    texts += [format_answer(888), format_answer(860)]
    for play in (lambda e: scripted(e, texts, limits=limits), lambda e: collected(e, policy, limits=limits)):
        n_equal = 0
        for ours, theirs in zip(play(env), play(CALCULATOR), strict=True):
            assert ours.status == "ok" and len(ours.rows) == 1
            a, b = ours.rows[0], theirs.rows[0]
            np.testing.assert_array_equal(a.ids, b.ids[: len(a.ids)])
            np.testing.assert_array_equal(a.logps, b.logps[: len(a.ids)])
            np.testing.assert_array_equal(a.mask, b.mask[: len(a.ids)])
            if len(a.ids) == len(b.ids):
                n_equal += ours.terminated
                assert (ours.reward, ours.is_success) == (theirs.reward, theirs.is_success)
        assert n_equal >= 2


@pytest.mark.parametrize("name", ALL)
def test_every_sampled_token_is_trained_on_once_as_it_was_sampled(name: str, policy: KeepingPolicy) -> None:
    policy.sampled = []
    found = collected(agent(name), policy, n=2)
    assert {t.status for t in found} == {"ok"}
    spans = [tuple(row.ids[a:b].tolist()) for t in found for row in t.rows for a, b in row.spans]
    assert sorted(spans) == sorted(policy.sampled)
    if name in SAME:
        assert all(len(t.rows) == 1 for t in found)


def test_a_framework_that_shows_calls_as_text_begins_rows_that_share_the_reward() -> None:
    """smolagents has a system prompt of its own, and sends each call back as "Calling tools: ..."."""
    final = format_tool_call("final_answer", answer="888")
    found = scripted(agent("smolagents_agent"), [CALLS[2], final])
    for t in found:
        assert t.status == "ok"
        assert t.messages[0].content.startswith("You are an expert assistant")
        assert "Use the calculator" not in t.messages[0].content
        assert {tool["function"]["name"] for tool in t.tools} == {"calculator", "final_answer"}
        assert all(len(row.spans) == 1 for row in t.rows)
        whys = t.metadata.get("row_reasons", [])
        assert all("(assistant) is not the reply of turn" in why for why in whys[1:4])
    assert max(len(t.rows) for t in found) > 2
    assert any(t.is_success is False and t.turns[-1].reward == 0 for t in found)


def test_rows_of_vllm_in_process_are_those_of_the_environment(folder: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (make test-agents has it)")
    from llm_envs.policies import VLLMEnginePolicy

    policy = VLLMEnginePolicy.from_pretrained(folder, dtype="float32", max_model_len=1024, max_num_seqs=8)
    try:
        one = {"max_concurrency": 1}  # the composition of a batch would change the last bits
        expected = collected(CALCULATOR, policy, **one)
        assert any(message.role == "tool" for t in expected for message in t.messages)
        for name in ("langchain_agent", "agents_sdk"):
            check_equal(collected(agent(name), policy, **one), expected)
        concurrent = collected(agent("agents_sdk"), policy, n=8)
        assert all(t.status == "ok" and len(t.rows) == 1 for t in concurrent)
    finally:
        asyncio.run(policy.aclose())


@pytest.mark.parametrize("name", ALL)
def test_each_is_one_screen_and_its_command_shows_an_episode(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(source)) or ""
    assert len(source.splitlines()) <= 45
    assert [line.split()[0] for line in doc.splitlines()[2:]] == ["Command:", "Needs:", "Hardware:", "Expect:"]
    agent(name)
    monkeypatch.chdir(FOLDER.parents[1])
    *_, command = doc.splitlines()[2].split("llm-envs ")
    main(command.replace("MODEL", str(folder)).split())
    printed = capsys.readouterr().out
    assert "request 0: begins row 0" in printed and "trained" in printed
    assert "terminated, ok, reward" in printed or "env_truncated, ok, reward" in printed
