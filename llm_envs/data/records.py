"""Trajectories as flat records with one schema for all tasks: the form of every table.

Fields without a fixed shape (arguments, metadata, tool calls) are JSON text. The other columns have plain types, so a
table can be filtered and shown without this package. Both ways are lossless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_envs.types import Row, Trajectory

__all__ = ["SCHEMA", "from_record", "is_same_record", "to_record"]

_JSON_COLUMNS = ("env_kwargs", "tools", "error", "timings", "metadata")
_JSON_TURN_FIELDS = ("components", "weight_versions", "tool_results", "seconds")
_MESSAGE_EXTRAS = ("tool_calls", "tool_call_id", "metadata")

SCHEMA: Mapping[str, Any] = {
    "env_id": "string",
    "group_id": "string",
    "member": "int32",
    "seed": "int64",
    "status": "string",
    "is_success": "bool",
    "reward": "float64",
    "stop_reason": "string",
    "terminated": "bool",
    "truncated": "bool",
    "messages": [{"role": "string", "content": "string"}],
    "message_extras": "string",
    "rows": [{"ids": ["int32"], "mask": ["bool"], "logps": ["float32"], "spans": [["int64"]]}],
    "turns": [
        {"reward": "float64", "row": "int32", "span": "int32", "finish_reason": "string", "is_summary": "bool"}
        | dict.fromkeys(_JSON_TURN_FIELDS, "string")
    ],
} | dict.fromkeys(_JSON_COLUMNS, "string")
"""Column -> type. A string is the name of an Arrow type, a list with one entry a list of it, a dict a struct."""


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as a record of `SCHEMA`; token data stay NumPy arrays.

    A lone surrogate, which JSON can hold and Arrow's UTF-8 cannot, becomes "?" in a message's `content`. The exact
    content is in `message_extras`, from which `from_record` restores it. Two halves of a pair side by side become the
    character that they spell: JSON joins them.
    """
    record = replace(trajectory, rows=()).to_dict()
    for name in _JSON_COLUMNS:
        record[name] = json.dumps(record[name])  # in ASCII: a lone surrogate becomes an escape
    extras = [{key: message.pop(key) for key in _MESSAGE_EXTRAS if key in message} for message in record["messages"]]
    for message, extra in zip(record["messages"], extras, strict=True):
        content = message["content"] = _joined(message["content"])
        if (readable := content.encode(errors="replace").decode()) != content:
            message["content"], extra["content"] = readable, content
    record["message_extras"] = json.dumps(extras)
    for turn in record["turns"]:
        for name in _JSON_TURN_FIELDS:
            turn[name] = json.dumps(turn[name])
    record["rows"] = [
        {"ids": row.ids, "mask": row.mask, "logps": row.logps, "spans": [list(span) for span in row.spans]}
        for row in trajectory.rows  # NaN stays NaN: Arrow has it
    ]
    return record | {"reward": trajectory.reward}


def from_record(record: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a record. Token data may be lists or arrays."""
    data = {name: value for name, value in record.items() if name not in ("message_extras", "reward")}
    for name in _JSON_COLUMNS:
        data[name] = json.loads(data[name])
    extras = json.loads(record["message_extras"])
    data["messages"] = [{**message, **extra} for message, extra in zip(data["messages"], extras, strict=True)]
    data["turns"] = [{**turn, **{name: json.loads(turn[name]) for name in _JSON_TURN_FIELDS}} for turn in data["turns"]]
    return Trajectory.from_dict(data)


def is_same_record(one: Trajectory, other: Trajectory) -> bool:
    """Return whether two trajectories are equal to the last bit, including wall times.

    Two halves of a surrogate pair side by side equal their character: JSON joins them.
    """
    first, second = (replace(each, rows=()).to_dict() for each in (one, other))
    if len(one.rows) != len(other.rows) or (
        first != second and json.loads(json.dumps(first)) != json.loads(json.dumps(second))
    ):
        return False
    return all(_row_bytes(a) == _row_bytes(b) for a, b in zip(one.rows, other.rows, strict=True))


def _row_bytes(row: Row) -> tuple[Any, ...]:
    return row.ids.tobytes(), row.mask.tobytes(), row.logps.tobytes(), row.spans  # bytes: NaN equals NaN there


def _joined(text: str) -> str:
    """Return the text with the two halves of a surrogate pair as the character that they spell."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
