"""Messages of a conversation, tool calls and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Message", "Role", "ToolCall", "ToolResult"]

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call by the model."""

    name: str
    arguments: Mapping[str, Any]
    """Decoded JSON object. Values have JSON types."""
    id: str | None = None
    """The caller's id for the call, if the format has one."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call, as the environment reports it."""

    name: str
    arguments: Mapping[str, Any]
    output: str
    """The text that the model sees: the tool's result, or a readable error."""
    success: bool
    error: str | None = None
    """Class name of the error, or None."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time of the call. Ignored when results are compared."""
    began_s: float = field(default=0.0, compare=False)
    """When the call began, by `time.time()`; 0: unknown. Ignored when results are compared."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    """For an assistant: exactly what it wrote, including tool-call markup."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Structured calls, if the policy uses them (a chat API)."""
    tool_call_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain dict that chat templates and `info["messages"]` use; empty fields are left out."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                | ({"id": call.id} if call.id is not None else {})
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        if self.metadata:
            out["metadata"] = dict(self.metadata)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """Rebuild a message from `to_dict`."""
        calls = tuple(
            ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id"))
            for call in data.get("tool_calls", ())
        )
        return cls(data["role"], data["content"], calls, data.get("tool_call_id"), dict(data.get("metadata", {})))
