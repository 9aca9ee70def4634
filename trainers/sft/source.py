"""Training data of supervised learning: episodes or conversations from disk, as token rows of the trained model."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, load_from_disk

from llm_envs.chat.codec import ChatCodec
from llm_envs.data.datasets import best_of, from_dataset, sft_rows, to_groups
from llm_envs.errors import InvalidConfigError, counted
from llm_envs.rollout import from_messages, read_messages_jsonl, read_trajectories
from llm_envs.rollout.token_transcript import History
from llm_envs.sources.prompts import read_jsonl
from llm_envs.types import Trajectory

__all__ = ["first_record", "in_tokens_of", "load_source", "rows_of", "tools_of", "without_nones"]

logger = logging.getLogger(__name__)

_IGNORED = -100
_N_LOOKED_AT = 8
"""Number of episodes whose tokens are compared with their texts. A wrong tokenizer shows in the first few."""

Source = Sequence[Trajectory] | list[dict[str, Any]]


def is_trajectories(source: Any) -> bool:
    """Return whether a source is a sequence of trajectories, not a path or a data set."""
    return isinstance(source, Sequence) and not isinstance(source, str)


def load_source(
    source: str | Path | Dataset | Sequence[Trajectory], codec: ChatCodec, *, history: History = "append"
) -> Source:
    """Return the trajectories of a saved data set, or its token rows if it has no trajectories.

    Args:
        source: Trajectories, returned unchanged; the folder of a run (`TrajectoryWriter`, `llm-envs collect`), one of
            `datasets` (`to_dataset`, `llm-envs export --to dataset`), a JSONL file of conversations (`messages`,
            perhaps `tools`, `reward`), one of token rows (`llm-envs export --to sft`), or a `datasets.Dataset` with the
            columns of one of these.
        codec: Codec of the model to train; it encodes conversations.
        history: As for `from_messages`.

    Raises:
        InvalidConfigError: If the path does not exist or has none of these forms.
    """
    if isinstance(source, Dataset):
        return _from_table(source, codec, history)
    if not isinstance(source, str | Path):
        return source
    path = Path(source)
    if (path / "dataset_info.json").exists():
        return _from_table(load_from_disk(str(path)), codec, history)
    if path.is_dir():
        return read_trajectories(path)
    if not path.is_file():
        hint = " An environment (FILE.py:NAME) is played with --env." if ".py:" in str(path) else ""
        raise InvalidConfigError(f"there is neither a file nor a folder {str(path)!r} to learn from.{hint}")
    first = first_record(path)
    keys = set(first) if isinstance(first, dict) else {"messages"}
    if "input_ids" in keys:
        return _token_rows([row for _, row in read_jsonl(path)], codec)
    if {"rows", "turns", "group_id"} <= keys:
        return read_trajectories(path)
    return [_conversation(record, n, codec, history) for n, record in enumerate(read_messages_jsonl(path))]


def first_record(path: Path) -> Any:
    """Return the value in the first line of a JSONL file.

    Raises:
        InvalidConfigError: If the file is empty, or the line is not JSON.
    """
    if not path.stat().st_size:
        raise InvalidConfigError(f"{path} is empty: a file to learn from has one object a line (JSONL).")
    try:
        # Some editors put a byte-order mark at the start of a file.
        with path.open(encoding="utf-8-sig") as file:
            return json.loads(file.readline())
    except ValueError as error:  # neither JSON nor UTF-8
        raise InvalidConfigError(
            f"line 1 of {path} is not JSON ({error}): a file to learn from has one object a line (JSONL)."
        ) from error


def rows_of(
    source: Source, codec: ChatCodec, *, n_best: int | None = None, min_reward: float | None = None
) -> list[dict[str, Any]]:
    """Return token rows of trajectories, with labels on the agent's tokens; token rows are returned unchanged.

    A trajectory whose history forks gives several rows. Each of its tokens is trained in exactly one of them.

    Args:
        source: From `load_source`, or trajectories of any policy.
        codec: Codec of the model to train.
        n_best: Number of best episodes to take from each group; None: all.
        min_reward: Leave out episodes with a lower reward.

    Raises:
        InvalidConfigError: If `n_best` or `min_reward` is given for token rows, which have no rewards.
    """
    if source and isinstance(source[0], Mapping):
        if n_best is not None or min_reward is not None:
            raise InvalidConfigError("token rows have no rewards: leave best_of and min_reward out.")
        return [dict(row) for row in source if isinstance(row, Mapping)]
    trajectories = [trajectory for trajectory in source if isinstance(trajectory, Trajectory)]
    if n_best is not None or min_reward is not None:
        threshold = -math.inf if min_reward is None else min_reward
        trajectories = best_of(to_groups(trajectories), n_best or max(len(trajectories), 1), min_reward=threshold)
    return sft_rows(in_tokens_of(codec, trajectories))


def in_tokens_of(codec: ChatCodec, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the trajectories with token rows of this model: unchanged, or re-encoded from their messages.

    They are re-encoded if they have no tokens (played through a chat API), or another tokenizer's.
    """
    played = [trajectory for trajectory in trajectories if trajectory.turns]
    if all(_is_of(codec, trajectory) for trajectory in played[:_N_LOOKED_AT]) and all(t.rows for t in played):
        return list(trajectories)
    logger.warning(f"{counted(len(played), 'episode')} without tokens of this model, encoded from the messages")
    return [_encoded(codec, trajectory) if trajectory.turns else trajectory for trajectory in trajectories]


def _is_of(codec: ChatCodec, trajectory: Trajectory) -> bool:
    """Return whether each turn's tokens decode to the text of its message."""
    # Assistant messages before the first turn were given (examples in the prompt), so compare only the last ones.
    said = [message.content for message in trajectory.messages if message.role == "assistant"][-len(trajectory.turns) :]
    for turn, text in zip(trajectory.turns, said, strict=True):
        if turn.row < 0:
            if turn.is_summary:  # an untrained one has no tokens
                continue
            return False
        row = trajectory.rows[turn.row]
        start, stop = row.spans[turn.span]
        ids = row.ids[start:stop]
        if len(ids) and int(ids.max()) >= len(codec.tokenizer):
            return False
        is_same = codec.decode_reply(ids).strip() == text.strip()
        # The codec leaves out thinking that the template closes.
        if len(ids) and not is_same and ids.tolist() != codec.encode_reply(text).tolist():
            return False
    return True


def _encoded(codec: ChatCodec, trajectory: Trajectory) -> Trajectory:
    scored = trajectory.status == "ok"
    return from_messages(
        trajectory.messages_of_steps,  # a summary has no observation after it, so no template could show it as a turn
        codec=codec,
        tools=trajectory.tools,
        env_id=trajectory.env_id,
        reward=trajectory.reward if scored else None,
        is_success=trajectory.is_success,
        group_id=trajectory.group_id,
        member=trajectory.member,
    )


def without_nones(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the keys that a table filled with None."""
    return {key: value for key, value in message.items() if value is not None}


def tools_of(record: Mapping[str, Any]) -> Any:
    """Return the tools of a conversation, which a table may hold as JSON."""
    tools = record.get("tools") or ()
    return json.loads(tools) if isinstance(tools, str) else tools


def _conversation(record: Mapping[str, Any], number: int, codec: ChatCodec, history: History) -> Trajectory:
    """Return a conversation as a trajectory. Without a reward it still counts as scored, because somebody chose it."""
    reward = record.get("reward")
    try:
        return from_messages(
            [without_nones(message) for message in record["messages"]],
            codec=codec,
            tools=tools_of(record),
            reward=0.0 if reward is None else float(reward),
            history=history,
            group_id=str(record.get("group_id", number)),
            member=int(record.get("member", 0)),
        )
    except InvalidConfigError as error:
        raise InvalidConfigError(f"conversation {number + 1} of the data: {error}") from error


def _from_table(table: Any, codec: ChatCodec, history: History) -> Source:
    columns = set(getattr(table, "column_names", ()) or ())
    if "input_ids" in columns:
        return _token_rows(list(table), codec)
    if {"rows", "turns", "group_id"} <= columns:
        return from_dataset(table)
    if "messages" in columns:
        return [_conversation(record, number, codec, history) for number, record in enumerate(table)]
    raise InvalidConfigError(
        f"the data set has the columns {sorted(columns)}; it must have the columns of `to_dataset`, or messages, or "
        "input_ids and labels."
    )


def _token_rows(rows: Sequence[Mapping[str, Any]], codec: ChatCodec) -> list[dict[str, Any]]:
    n_known = len(codec.tokenizer)
    for number, row in enumerate(rows):
        if len(row.get("labels") or ()) != len(row["input_ids"]):
            raise InvalidConfigError(f"token row {number} has no label for each of its {len(row['input_ids'])} tokens.")
        if wrong := [i for i in row["input_ids"] if type(i) is not int or i < 0]:
            raise InvalidConfigError(
                f"token row {number} has the id {wrong[0]!r}; ids are whole numbers of at least 0."
            )
        for token, label in zip(row["input_ids"], row["labels"], strict=True):
            if label not in (token, _IGNORED):
                raise InvalidConfigError(
                    f"token row {number} has the label {label!r} at the token {token}; a label is the token itself, or "
                    f"{_IGNORED} where nothing is learned."
                )
        if (highest := max(row["input_ids"], default=0)) >= n_known:
            raise InvalidConfigError(
                f"token row {number} is not this model's: its tokenizer has {n_known} ids, the highest here is "
                f"{highest}. Give what the rows were made of (the folder of the run, or conversations), which is "
                "encoded by the model that is to learn."
            )
    return [{"input_ids": list(row["input_ids"]), "labels": list(row["labels"])} for row in rows]
