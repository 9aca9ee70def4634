"""OpenTelemetry spans of episodes, turns, replies, tool calls and training steps, by the GenAI conventions.

They are off until `tracing` is entered; until then each function here is one `is None` check. No prompt, reply,
argument or result is written.

1. The tracer is in a context variable, which asyncio copies into each task. So concurrent episodes nest rightly.
2. A tool may run in a thread, a worker process or on another machine, so its span is written after the step, from its
   result. `carried` keeps the turn's span current in the thread of an environment, for what libraries trace there.
3. A reply may be sampled in another task than its episode (an agent's request), so its parent is explicit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, TypeVar

from llm_envs.errors import extra_needed
from llm_envs.tools.base import UNKNOWN_TOOL
from llm_envs.types import SamplingParams, ToolResult, Trajectory

__all__ = [
    "OpenSpan",
    "Tracing",
    "carried",
    "chat_span",
    "current_tracing",
    "episode_span",
    "step_span",
    "tracing",
    "turn_span",
    "write_tool_spans",
]

Called = TypeVar("Called", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Tracing:
    """Makes spans."""

    tracer: Any
    trace: Any
    """The module `opentelemetry.trace`."""
    context: Any
    """The module `opentelemetry.context`."""
    parent: Any = None
    """OpenTelemetry's context whose span is the parent; None: the current one."""


_TRACING: ContextVar[Tracing | None] = ContextVar("llm_envs_tracing", default=None)
_OFF: AbstractContextManager[None] = nullcontext()


class OpenSpan:
    """A span that is the current one while its block lasts. An exception that leaves the block is its `error.type`."""

    __slots__ = ("_attributes", "_name", "_token", "_tracing", "span")

    def __init__(self, made_by: Tracing, name: str, attributes: Mapping[str, Any]) -> None:
        self._tracing, self._name, self._attributes = made_by, name, attributes

    def __enter__(self) -> OpenSpan:
        made_by = self._tracing
        self.span = made_by.tracer.start_span(self._name, made_by.parent, attributes=self._attributes)
        self._token = made_by.context.attach(made_by.trace.set_span_in_context(self.span, made_by.parent))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # An episode wraps the exception of its environment or policy.
            original = getattr(error, "error", None)
            kind = type(original if isinstance(original, BaseException) else error)
            _fail(self._tracing, self.span, kind.__name__)
        self._tracing.context.detach(self._token)
        self.span.end()

    def note_reply(self, n_prompt: int | None, n_sampled: int | None, finish_reason: str | None) -> None:
        """Note what a policy returned; None: it does not say so."""
        found: dict[str, Any] = {
            "gen_ai.usage.input_tokens": n_prompt,
            "gen_ai.usage.output_tokens": n_sampled,
            "gen_ai.response.finish_reasons": None if finish_reason is None else [str(finish_reason)],
        }
        self.span.set_attributes({name: value for name, value in found.items() if value is not None})

    def note_episode(self, trajectory: Trajectory) -> None:
        """Note how an episode ended."""
        found: dict[str, Any] = {
            "gen_ai.usage.output_tokens": trajectory.n_sampled_tokens,
            "llm_envs.status": trajectory.status,
            "llm_envs.stop_reason": trajectory.stop_reason.value,
            "llm_envs.turns": trajectory.n_steps,
        }
        if trajectory.status == "ok":
            found["llm_envs.reward"] = float(trajectory.reward)
        if trajectory.is_success is not None:
            found["llm_envs.success"] = trajectory.is_success
        self.span.set_attributes(found)
        if trajectory.error is not None:
            _fail(self._tracing, self.span, trajectory.error.kind)


@contextmanager
def tracing(provider: Any = None) -> Iterator[None]:
    """Write spans of all episodes and trainings while the block lasts.

    Args:
        provider: OpenTelemetry's `TracerProvider`; None: the program's, if it has set one. Else spans are sent by
            OTLP over HTTP, as OpenTelemetry's environment variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, ...), and the
            end of the block waits for the last ones.

    Raises:
        MissingExtraError: If OpenTelemetry is not installed.
    """
    with extra_needed("Traces need opentelemetry-sdk and its exporter: pip install 'llm-envs[logging]'."):
        from opentelemetry import context, trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = None
    if provider is None and isinstance(found := trace.get_tracer_provider(), trace.ProxyTracerProvider):
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "llm-envs"}))
        provider = own = TracerProvider(resource=resource)
        own.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    elif provider is None:
        provider = found
    before = _TRACING.set(Tracing(provider.get_tracer("llm_envs"), trace, context))
    try:
        yield
    finally:
        _TRACING.reset(before)
        if own is not None:
            own.shutdown()


def current_tracing() -> Tracing | None:
    """Return what makes spans below the current one; None: traces are off."""
    found = _TRACING.get()
    return None if found is None else replace(found, parent=found.context.get_current())


def carried(function: Called) -> Called:
    """Return the function for another thread, where the present span is the current one during a call."""
    found = current_tracing()
    if found is None:
        return function
    live = found

    def call(*args: Any, **kwargs: Any) -> Any:
        token = live.context.attach(live.parent)
        try:
            return function(*args, **kwargs)
        finally:
            live.context.detach(token)

    return call  # type: ignore[return-value]  # called as the function is


def episode_span(env_id: str, seed: int, group_id: str, member: int) -> AbstractContextManager[OpenSpan | None]:
    """Return the span of an episode."""
    found = _TRACING.get()
    if found is None:
        return _OFF
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": env_id,
        "gen_ai.conversation.id": f"{group_id}/{member}",
        "llm_envs.seed": seed,
    }
    return OpenSpan(found, f"invoke_agent {env_id}", attributes)


def turn_span(number: int) -> AbstractContextManager[OpenSpan | None]:
    """Return the span of an episode's turn."""
    found = _TRACING.get()
    return _OFF if found is None else OpenSpan(found, "turn", {"llm_envs.turn": number})


def step_span(number: int, process: int = 0) -> AbstractContextManager[OpenSpan | None]:
    """Return the span of a step of a training, with the episodes that are begun in it."""
    found = _TRACING.get()
    attributes = {"llm_envs.step": number, "llm_envs.process": process}
    return _OFF if found is None else OpenSpan(found, "training_step", attributes)


def chat_span(
    within: Tracing | None, policy: object, params: SamplingParams
) -> AbstractContextManager[OpenSpan | None]:
    """Return the span of a policy's reply.

    Args:
        within: From `current_tracing`: where the reply belongs.
        policy: Asked for the reply.
        params: How it samples.
    """
    if within is None:
        return _OFF
    model = getattr(policy, "model", None)
    name = model if isinstance(model, str) else getattr(model, "name_or_path", None)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": type(policy).__name__,
        "gen_ai.request.max_tokens": params.max_new_tokens,
        "gen_ai.request.temperature": float(params.temperature),
    }
    if not name or not isinstance(name, str):
        return OpenSpan(within, "chat", attributes)
    return OpenSpan(within, f"chat {name}", attributes | {"gen_ai.request.model": name})


def write_tool_spans(results: Sequence[ToolResult], began_s: float) -> None:
    """Write the spans of the tool calls of the current turn.

    Args:
        results: Of the calls.
        began_s: When the environment's step began (`time.time()`): so did calls that do not tell when they did, or
            that another machine's clock places outside of the step.
    """
    found = _TRACING.get()
    if found is None:
        return
    now = time.time()
    for result in results:
        start = result.began_s if began_s <= result.began_s <= now else began_s
        # A name without a tool is the model's own text.
        name = "unknown" if result.error == UNKNOWN_TOOL else result.name
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
        }
        span = found.tracer.start_span(f"execute_tool {name}", attributes=attributes, start_time=round(start * 1e9))
        if result.error is not None:
            _fail(found, span, result.error)
        span.end(round((start + result.seconds) * 1e9))


def _fail(found: Tracing, span: Any, kind: str) -> None:
    """Note an error. Its message may quote a prompt, so only its class is written."""
    span.set_attribute("error.type", kind)
    span.set_status(found.trace.StatusCode.ERROR)
