"""Trajectories as datasets: lossless tables, and rows to train on. The `datasets` package is imported on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.types import Row, Trajectory

if TYPE_CHECKING:
    import datasets

__all__ = ["from_dataset", "is_scored", "sft_rows", "to_dataset"]

IGNORED_LABEL = -100
"""The label that PyTorch's cross-entropy, and so every trainer, leaves out."""

# Columns whose values have no fixed shape: kept as JSON text, so that the table has one schema whatever was played.
_JSON_COLUMNS = ("env_kwargs", "tools", "error", "timings", "metadata")
_JSON_TURN_FIELDS = ("components", "weight_versions", "tool_results", "seconds")
_MESSAGE_EXTRAS = ("tool_calls", "tool_call_id", "metadata")


def to_dataset(trajectories: Iterable[Trajectory]) -> datasets.Dataset:
    """Return the trajectories as a table, one line each, losslessly (`from_dataset` gives them back).

    `messages` has the form that chat templates take; `rows` the token arrays; `turns` a record of each turn; `reward`
    is there to be filtered by. What has no fixed shape is JSON text.

    Half a surrogate pair, which JSON can hold and Arrow's UTF-8 cannot, stands as "?" in a message's `content`; the
    exact content is in `message_extras`, whence `from_dataset` takes it.

    Raises:
        MissingExtraError: If `datasets` is not installed.
    """
    module = _datasets()
    features, records = _features(module), [_to_record(t) for t in trajectories]
    columns = {name: [record[name] for record in records] for name in features}
    return module.Dataset.from_dict(columns, features=features)


def from_dataset(dataset: datasets.Dataset | Iterable[Mapping[str, Any]]) -> list[Trajectory]:
    """Return the trajectories that `to_dataset` wrote."""
    return [_from_record(record) for record in dataset]


def is_scored(trajectory: Trajectory) -> bool:
    """Say whether a trajectory has a reward: neither errored nor unscored."""
    return trajectory.status == "ok"


def sft_rows(
    trajectories: Iterable[Trajectory], keep: Callable[[Trajectory], bool] = is_scored
) -> list[dict[str, list[int]]]:
    """Return token rows on which only the agent's own tokens are trained.

    The form is TRL's for datasets that are already tokenised: `input_ids`, and `labels` with −100 wherever the template
    or the environment wrote. TRL takes `labels` as they are, whatever its `completion_only_loss` says. What follows the
    agent's last token cannot be trained on and is left out.

    Args:
        trajectories: Of any policy, played with a codec.
        keep: Which to keep; by default all that were scored. For the successful ones: `lambda t: bool(t.is_success)`.

    Raises:
        InvalidConfigError: If a kept trajectory was played without a codec and so has no tokens.
    """
    out = []
    for trajectory in trajectories:
        if not keep(trajectory):
            continue
        if not trajectory.rows and trajectory.turns:
            raise InvalidConfigError(
                f"trajectory {trajectory.group_id}/{trajectory.member} has no tokens: "
                "collect with codec=ChatCodec(tokenizer)."
            )
        out += [_sft_row(row) for row in trajectory.rows if row.mask.any()]
    return out


def _sft_row(row: Row) -> dict[str, list[int]]:
    stop = row.spans[-1][1]
    labels = np.where(row.mask[:stop], row.ids[:stop], IGNORED_LABEL)
    return {"input_ids": row.ids[:stop].tolist(), "labels": labels.tolist()}


def _to_record(trajectory: Trajectory) -> dict[str, Any]:
    record = trajectory.to_dict()
    for name in _JSON_COLUMNS:
        record[name] = _dump(record[name])
    extras = [{key: message.pop(key) for key in _MESSAGE_EXTRAS if key in message} for message in record["messages"]]
    for message, extra in zip(record["messages"], extras, strict=True):
        content = message["content"]
        if (readable := content.encode(errors="replace").decode()) != content:
            message["content"], extra["content"] = readable, content
    record["message_extras"] = _dump(extras)
    for turn in record["turns"]:
        for name in _JSON_TURN_FIELDS:
            turn[name] = _dump(turn[name])
    for record_row, row in zip(record["rows"], trajectory.rows, strict=True):
        record_row["logps"] = row.logps  # NaN stays NaN here: Arrow has it
    return record | {"reward": trajectory.reward}


def _from_record(record: Mapping[str, Any]) -> Trajectory:
    data = {name: value for name, value in record.items() if name not in ("message_extras", "reward")}
    for name in _JSON_COLUMNS:
        data[name] = json.loads(data[name])
    extras = json.loads(record["message_extras"])
    data["messages"] = [{**message, **extra} for message, extra in zip(data["messages"], extras, strict=True)]
    data["turns"] = [{**turn, **{name: json.loads(turn[name]) for name in _JSON_TURN_FIELDS}} for turn in data["turns"]]
    return Trajectory.from_dict(data)


def _dump(value: Any) -> str:
    return json.dumps(value)  # in ASCII: half a surrogate pair is an escape there


def _features(module: Any) -> Any:
    value, sequence = module.Value, module.List
    text, number = value("string"), value("float64")
    row = {
        "ids": sequence(value("int32")),
        "mask": sequence(value("bool")),
        "logps": sequence(value("float32")),
        "spans": sequence(sequence(value("int64"))),
    }
    turn = {"reward": number, "row": value("int32"), "span": value("int32"), "finish_reason": text}
    flags = {name: value("bool") for name in ("terminated", "truncated", "is_success")}
    texts = ("env_id", "group_id", "stop_reason", "status", "message_extras", *_JSON_COLUMNS)
    columns = {
        "seed": value("int64"),
        "member": value("int32"),
        "messages": sequence({"role": text, "content": text}),
        "rows": sequence(row),
        "turns": sequence(turn | dict.fromkeys(_JSON_TURN_FIELDS, text)),
        "reward": number,
    }
    return module.Features(columns | flags | dict.fromkeys(texts, text))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("trajectories as a dataset need `datasets`: pip install 'llm-envs[train]'.") from error
    return datasets
