"""Traces by OpenTelemetry's own SDK: the tree of spans of real episodes, and what a receiver of OTLP over HTTP gets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_receiver import Receiver, receiving

from llm_envs.cli.main import main
from llm_envs.env import Difficulty, ToolEnv
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.testing import ByteCodec, HashingTokenPolicy, with_hangs
from llm_envs.tools import Tool
from llm_envs.tracking.spans import tracing
from llm_envs.types import Message

CODEC = ByteCodec()
SEEN_BY_TOOLS: list[Any] = []
"""The span that is the current one in a tool, call by call."""


class AddEnv(ToolEnv):
    """Add with a tool, which fails for 13."""

    difficulties = {"only": Difficulty("only", chance_rate=0.0)}
    default_difficulty = "only"

    def make_tools(self) -> Sequence[Tool]:
        def add(a: int, b: int) -> int:
            """Add."""
            SEEN_BY_TOOLS.append(trace.get_current_span())
            if a == 13:
                raise LookupError("the secret of 13")
            return a + b

        async def later(a: int) -> int:
            """Return it later."""
            SEEN_BY_TOOLS.append(trace.get_current_span())
            await asyncio.sleep(0.01)
            return a

        return [Tool(add), Tool(later)]

    def generate(self) -> dict[str, Any]:
        return {"answer": "5"}

    def prompt(self) -> str:
        return "What is 2 + 3? (a secret prompt)"

    def is_correct(self, answer: str) -> bool:
        return answer == "5"

    def next_action(self) -> str:
        return "<answer>5</answer>"


class Scripted:
    """A chat policy with fixed replies, in order."""

    model = "scripted-1"

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    async def reply(self, messages: Sequence[Message], tools: Any, params: Any) -> Message:
        await asyncio.sleep(0.001)
        return Message("assistant", self.texts[sum(message.role == "assistant" for message in messages)])


def call(name: str, **arguments: int) -> str:
    written = ", ".join(f'"{key}": {value}' for key, value in arguments.items())
    return f'<tool_call>{{"name": "{name}", "arguments": {{{written}}}}}</tool_call>'


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    SEEN_BY_TOOLS.clear()
    yield made
    made.shutdown()


def tree(spans: Sequence[ReadableSpan], parent: ReadableSpan | None = None) -> list[Any]:
    """Return the names of the spans below one, in the order of their beginnings: [name, [children]]."""
    below = [s for s in spans if (s.parent and s.parent.span_id) == (parent and parent.context.span_id)]
    return [[s.name, tree(spans, s)] for s in sorted(below, key=lambda s: (s.start_time, s.name))]


def play(provider: Any, policy: Any, n: int = 1, env: Any = AddEnv, **settings: Any) -> list[Any]:
    with tracing(provider), Collector(env, policy, progress=False, **settings) as collector:
        return [trajectory for group in collector.collect(n) for trajectory in group.trajectories]


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_the_tree_of_two_turns_and_a_tool(provider, exporter):
    (played,) = play(provider, Scripted(call("add", a=2, b=3), "<answer>5</answer>"))
    assert played.is_success
    spans = exporter.get_finished_spans()
    chat = ["chat scripted-1", []]
    assert tree(spans) == [
        [f"invoke_agent {played.env_id}", [["turn", [chat, ["execute_tool add", []]]], ["turn", [chat]]]]
    ]
    (episode,), (tool,) = named(exporter, f"invoke_agent {played.env_id}"), named(exporter, "execute_tool add")
    assert dict(episode.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": played.env_id,
        "gen_ai.conversation.id": f"{played.group_id}/0",
        "gen_ai.usage.output_tokens": 0,
        "llm_envs.seed": played.seed,
        "llm_envs.status": "ok",
        "llm_envs.stop_reason": "terminated",
        "llm_envs.turns": 2,
        "llm_envs.reward": played.reward,
        "llm_envs.success": True,
    }
    assert dict(tool.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
    }
    assert all(span.status.status_code is trace.StatusCode.UNSET for span in spans)
    turn = next(span for span in named(exporter, "turn") if span.attributes["llm_envs.turn"] == 0)
    assert turn.start_time <= tool.start_time <= tool.end_time <= turn.end_time
    assert tool.end_time - tool.start_time == pytest.approx(played.turns[0].tool_results[0].seconds * 1e9, abs=1000)


def test_the_spans_of_a_failing_and_of_an_unknown_tool_have_an_error_and_no_text(provider, exporter):
    play(provider, Scripted(call("add", a=13, b=1) + call("hidden_text", a=1), "<answer>5</answer>"))
    failed, unknown = named(exporter, "execute_tool add")[0], named(exporter, "execute_tool unknown")[0]
    assert failed.attributes["error.type"] == "LookupError"
    assert unknown.attributes["error.type"] == "UnknownToolError"
    assert {failed.status.status_code, unknown.status.status_code} == {trace.StatusCode.ERROR}
    written = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert not [word for word in ("secret", "hidden_text", "2 + 3", "answer>") if word in written]


def test_a_failing_policy_is_an_error_of_its_reply_its_turn_and_its_episode(provider, exporter):
    (played,) = play(provider, Scripted(), max_retries=0)
    assert played.error.kind == "IndexError"
    kinds = {span.name: span.attributes.get("error.type") for span in exporter.get_finished_spans()}
    assert kinds == dict.fromkeys(["chat scripted-1", "turn", f"invoke_agent {played.env_id}"], "IndexError")


def test_a_reply_of_a_token_policy_has_its_tokens(provider, exporter):
    policy = HashingTokenPolicy(CODEC, ["<answer>5</answer>"])
    (played,) = play(provider, policy, codec=CODEC)
    (chat,) = named(exporter, "chat")
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "HashingTokenPolicy",
        "gen_ai.request.max_tokens": 512,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.usage.input_tokens": played.rows[0].prompt_length,
        "gen_ai.usage.output_tokens": played.n_sampled_tokens,
        "gen_ai.response.finish_reasons": ("stop",),
    }


@pytest.mark.parametrize("settings", [{}, {"limits": RolloutLimits(max_step_s=60)}], ids=["here", "in threads"])
def test_concurrent_episodes_nest_rightly_and_so_does_what_tools_trace(settings, provider, exporter):
    texts = call("add", a=2, b=3) + call("later", a=1) + call("later", a=2), "<answer>5</answer>"
    played = play(provider, Scripted(*texts), 20, max_concurrency=10, **settings)
    tools = [["execute_tool add", []], ["execute_tool later", []], ["execute_tool later", []]]
    spans = exporter.get_finished_spans()
    for name, children in tree(spans):
        assert name == f"invoke_agent {played[0].env_id}"
        (first, below), second = children
        assert (first, sorted(below)) == ("turn", [["chat scripted-1", []], *tools])
        assert second == ["turn", [["chat scripted-1", []]]]
    assert len(tree(spans)) == len({span.context.trace_id for span in spans}) == 20
    turns = Counter(span.context.span_id for span in named(exporter, "turn") if span.attributes["llm_envs.turn"] == 0)
    seen = Counter(span.get_span_context().span_id for span in SEEN_BY_TOOLS)
    assert seen == dict.fromkeys(turns, 3)


def test_tools_in_worker_processes_have_their_spans(provider, exporter):
    (played,) = play(provider, OraclePolicy(), env="llm/Calculator-v0", workers=1)
    turns = named(exporter, "turn")
    parents = {turn.context.span_id for turn in turns}
    tools = [span for span in exporter.get_finished_spans() if span.name.startswith("execute_tool ")]
    assert len(tools) == sum(len(turn.tool_results) for turn in played.turns) > 0
    assert all(tool.parent.span_id in parents for tool in tools)


def test_a_cancelled_episode_ends_its_spans(provider, exporter):
    async def cancelled(collector: Collector) -> None:
        task = asyncio.create_task(collector.acollect(1))
        while not collector.stats.running:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with tracing(provider), Collector(AddEnv, with_hangs(Scripted("x"), rate=1.0), progress=False) as collector:
        asyncio.run(cancelled(collector))
    kinds = {span.name: span.attributes.get("error.type") for span in exporter.get_finished_spans()}
    assert kinds.keys() >= {"turn"} and set(kinds.values()) == {"CancelledError"}


def test_nothing_is_traced_outside_of_the_block(provider, exporter):
    with tracing(provider):
        pass
    with Collector(AddEnv, Scripted("<answer>5</answer>"), progress=False) as collector:
        collector.collect(1)
    assert exporter.get_finished_spans() == ()


def test_the_programs_own_provider_is_used_and_stays_open(tmp_path):
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from llm_envs.policies import OraclePolicy

from llm_envs.rollout import Collector
from llm_envs.tracking import tracing
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with Collector("llm/Arithmetic-v0", OraclePolicy(), progress=False) as collector:
    for _ in range(2):
        with tracing(), provider.get_tracer("mine").start_as_current_span("mine"):
            collector.collect(1)
spans = exporter.get_finished_spans()
mine = {span.context.span_id for span in spans if span.name == "mine"}
print(len(spans), mine == {span.parent.span_id for span in spans if span.name.startswith("invoke_agent")})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["6", "True"]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving(monkeypatch) as found:
        yield found


@pytest.mark.parametrize("command", ["collect", "eval"])
def test_a_receiver_gets_the_spans_of_a_command(command, receiver, tmp_path, capsys):
    given = ["llm/Calculator-v0", "--policy", "oracle", "-n", "3", "--out", str(tmp_path / "run")]
    assert main([command, *given]) == 0
    assert receiver.requests == []
    assert main([command, *given[:-1], str(tmp_path / "traced"), "--trace"]) == 0
    assert {path for path, _ in receiver.requests} == {"/v1/traces"}
    counts = Counter(span.name.partition(" ")[0] for span in receiver.spans)
    assert counts["invoke_agent"] == 3 and counts["turn"] >= 3 and counts["execute_tool"] >= 1
    episodes = {span.span_id for span in receiver.spans if span.name == "invoke_agent llm/Calculator-v0"}
    assert {span.parent_span_id for span in receiver.spans if span.name == "turn"} == episodes
    resource = receiver.requests[0][1].resource_spans[0].resource
    assert {a.key: a.value.string_value for a in resource.attributes}["service.name"] == "llm-envs"


def test_a_collector_that_is_not_there_does_not_end_the_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert main(["collect", "llm/Arithmetic-v0", "-n", "2", "--out", str(tmp_path / "run"), "--trace"]) == 0


def test_replay_plays_nothing_that_could_be_traced(tmp_path, capsys):
    assert main(["eval", "--replay", str(tmp_path), "--trace"]) == 2
    assert "--trace" in capsys.readouterr().err


def test_without_the_extra_the_error_names_it(tmp_path):
    code = """
import sys
sys.modules["opentelemetry"] = None
from llm_envs.cli.main import main
sys.exit(main(["collect", "llm/Arithmetic-v0", "-n", "1", "--out", "run", "--trace"]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "llm-envs[logging]" in done.stderr and not Path(tmp_path / "run").exists()
