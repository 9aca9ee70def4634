"""Trajectories as datasets: lossless tables, messages, and rows to train on. `datasets` is imported on demand."""

from __future__ import annotations

import importlib
import json
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.data.files import atomic
from llm_envs.data.parquet import to_table
from llm_envs.data.records import from_record
from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.parsers import Parser, parse_reply
from llm_envs.types import Message, Row, ToolCall, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import datasets

__all__ = [
    "best_of",
    "fit_rows",
    "from_dataset",
    "is_scored",
    "iter_groups",
    "preference_pairs",
    "preference_rows",
    "sft_rows",
    "to_dataset",
    "to_groups",
    "to_messages",
    "to_messages_jsonl",
    "write_dataset",
    "write_jsonl",
]

_BATCH = 1000
"""Trajectories that `write_dataset` holds at a time."""

IGNORED_LABEL = -100
"""The label that PyTorch's cross-entropy ignores, and so every trainer does."""

OVERLONG = ("drop", "cut", "error")
"""Ways to treat a row that is too long."""


def to_dataset(trajectories: Iterable[Trajectory]) -> datasets.Dataset:
    """Return the trajectories as a table, one line each, losslessly (`from_dataset` gives them back).

    `messages` has the form that chat templates take; `rows` has the token arrays; `turns` a record of each turn;
    `reward` is for filtering. Fields without a fixed shape are JSON text.

    A lone surrogate, which JSON can hold and Arrow's UTF-8 cannot, becomes "?" in a message's `content`. The exact
    content is in `message_extras`, from which `from_dataset` restores it. Two halves of a pair side by side become the
    character that they spell: JSON joins them.

    Nothing is uploaded here; `llm_envs.report.push_to_hub("runs/x", "you/name")` does that. The shards of a run are
    this table already: `datasets.load_dataset("parquet", data_files="runs/x/*.parquet")`.

    Raises:
        MissingExtraError: If `datasets` is not installed.
    """
    with extra_needed("trajectories as a dataset need `datasets`: pip install 'llm-envs[train]'."):
        import datasets
    return datasets.Dataset(to_table(list(trajectories)))


def write_dataset(trajectories: Iterable[Trajectory], folder: str | Path) -> int:
    """Write `to_dataset(trajectories)` as `save_to_disk` does, without holding it, and return the number of lines.

    Args:
        trajectories: From any policy.
        folder: A new folder, for `datasets.load_from_disk`.

    Raises:
        MissingExtraError: If `datasets` is not installed.
    """
    arrow = importlib.import_module("pyarrow")
    rest, target = iter(trajectories), Path(folder)
    some = list(islice(rest, _BATCH))
    first = to_dataset(some)
    first.save_to_disk(str(target), num_shards=1)  # the folder's own files; the full table then replaces the first part
    (data,), state, n = target.glob("*.arrow"), target / "state.json", 0
    with open(data, "wb") as file, arrow.ipc.new_stream(file, first.data.table.schema) as stream:
        while some:
            stream.write_table(to_dataset(some).data.table)
            n += len(some)
            some = list(islice(rest, _BATCH))
    state.write_text(json.dumps(json.loads(state.read_text()) | {"_fingerprint": secrets.token_hex(8)}, indent=2))
    return n


def from_dataset(dataset: datasets.Dataset | Iterable[Mapping[str, Any]]) -> list[Trajectory]:
    """Return the trajectories that `to_dataset` wrote."""
    return [from_record(record) for record in dataset]


def is_scored(trajectory: Trajectory) -> bool:
    """Return whether a trajectory has a reward: neither errored nor unscored."""
    return trajectory.status == "ok"


def sft_rows(
    trajectories: Iterable[Trajectory], keep: Callable[[Trajectory], bool] = is_scored
) -> list[dict[str, list[int]]]:
    """Return token rows in which only the agent's own tokens are trained on.

    The form is TRL's for tokenised datasets: `input_ids`, and `labels` with −100 for tokens of the template or the
    environment. TRL uses `labels` unchanged, whatever its `completion_only_loss` is. Tokens after the agent's last one
    cannot be trained on and are left out.

    Args:
        trajectories: From any policy, played with a codec.
        keep: Which to keep; by default all scored ones. For the successful ones: `lambda t: bool(t.is_success)`.

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


def fit_rows(
    rows: Iterable[Mapping[str, Any]], max_length: int | None, overlong: str = "drop"
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return rows of at most `max_length` tokens, and how many longer ones were dropped or cut.

    Args:
        rows: From `sft_rows`: `input_ids` and `labels`, −100 at tokens that are not trained on.
        max_length: Maximum number of tokens of a row; None means no limit.
        overlong: "drop" leaves a longer row out. "cut" keeps the turns that fit completely, and leaves out a row whose
            first turn does not fit. "error" raises.

    Returns:
        The rows, and counts: `overlong` rows, and how many of them were `dropped` and `cut`.

    Raises:
        InvalidConfigError: If `overlong` has another value, or is "error" and a row is too long.
    """
    if overlong not in OVERLONG:
        raise InvalidConfigError(f"overlong is {overlong!r}; it must be one of {', '.join(OVERLONG)}.")
    out: list[dict[str, Any]] = []
    counts = {"overlong": 0, "dropped": 0, "cut": 0}
    for number, row in enumerate(rows):
        length = len(row["input_ids"])
        if max_length is None or length <= max_length:
            out.append(dict(row))
            continue
        if overlong == "error":
            raise InvalidConfigError(
                f"row {number} has {length} tokens, over max_length={max_length}: raise it, or choose overlong='drop' "
                "or 'cut'."
            )
        counts["overlong"] += 1
        stop = _last_turn_end(row["labels"], max_length) if overlong == "cut" else 0
        counts["cut" if stop else "dropped"] += 1
        if stop:
            out.append({"input_ids": list(row["input_ids"][:stop]), "labels": list(row["labels"][:stop])})
    return out, counts


def best_of(groups: Iterable[TrajectoryGroup], n: int = 1, *, min_reward: float = -math.inf) -> list[Trajectory]:
    """Return the `n` best episodes of each group with a reward of at least `min_reward`: rejection sampling.

    Each group gives at most `n`, so that an easy problem does not crowd out the hard ones. The earlier member wins a
    tie; errored and unscored episodes never count.

    Args:
        groups: For a stored run: `to_groups(read_trajectories("runs/x"))`.
        n: At least 1.
        min_reward: Lowest reward of an episode.

    Raises:
        InvalidConfigError: If `n` is below 1.
    """
    if n < 1:
        raise InvalidConfigError(f"best_of: n is {n!r}; it must be at least 1.")
    best: list[Trajectory] = []
    for group in groups:
        good = [trajectory for trajectory in group.scored if trajectory.reward >= min_reward]
        best += sorted(good, key=lambda trajectory: -trajectory.reward)[:n]
    return best


def to_groups(trajectories: Iterable[Trajectory]) -> list[TrajectoryGroup]:
    """Return the trajectories in their groups: in the order of first appearance, members in member order.

    The key of a group includes its environment and seed, because runs of other tasks may use the same ids.
    """
    return list(iter_groups(trajectories))


def iter_groups(trajectories: Iterable[Trajectory], group_size: int | None = None) -> Iterator[TrajectoryGroup]:
    """Yield the groups of `to_groups`. With their size, each comes when it is complete, and only open ones are held."""
    groups: dict[tuple[str, int, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        key = (trajectory.env_id, trajectory.seed, trajectory.group_id)
        members = groups.setdefault(key, [])
        members.append(trajectory)
        if len(members) == group_size:
            yield TrajectoryGroup.of(groups.pop(key))
    yield from map(TrajectoryGroup.of, groups.values())


def preference_pairs(groups: Iterable[TrajectoryGroup], *, margin: float = 0.0) -> list[dict[str, Any]]:
    """Return the best against the worst episode of each group, the earlier one among equals, as `preference_rows`.

    Args:
        groups: For a stored run: `to_groups(read_trajectories("runs/x"))`. Errored and unscored episodes are left out.
        margin: As for `preference_rows`.

    Raises:
        InvalidConfigError: As `preference_rows`.
    """
    played = [group.scored for group in groups]
    best_worst = [
        (max(members, key=lambda t: t.reward), min(members, key=lambda t: t.reward)) for members in played if members
    ]
    return preference_rows(best_worst, margin=margin)


def preference_rows(pairs: Iterable[tuple[Trajectory, Trajectory]], *, margin: float = 0.0) -> list[dict[str, Any]]:
    """Return pairs of episodes of one seed, with the better one as chosen, as token rows and as messages.

    A row has `prompt_ids`, `chosen_ids` and `rejected_ids`, and `chosen_mask` and `rejected_mask`: 1 for the agent's
    own tokens, 0 for observations in between, which must not be trained on. Tokens after the agent's last one are left
    out. The same pair as messages, with each assistant message as it was written, is in `prompt`, `chosen`, `rejected`
    and `tools` (JSON): TRL's `DPOTrainer` takes these, and encodes them itself. It reads no masks, so use it only for
    episodes of one turn; docs/guides/trl.md lists what else is lost. `chosen_reward`, `rejected_reward`, `env_id`,
    `group_id`, `chosen_member` and `rejected_member` identify the pair.

    Args:
        pairs: (chosen, rejected), both scored, of one group.
        margin: A pair is kept if its rewards differ by more than this; a tie is never kept.

    Raises:
        InvalidConfigError: If the margin is negative, an episode has no tokens or several rows (a pair compares two
            sequences), or the episodes of a pair have different prompts.
    """
    if not margin >= 0:
        raise InvalidConfigError(f"margin is {margin!r}; it must be at least 0.")
    return [_preference(chosen, other) for chosen, other in pairs if chosen.reward - other.reward > margin]


def to_messages(trajectory: Trajectory, parser: Parser | None = parse_reply) -> dict[str, Any]:
    """Return a trajectory as `{"messages": [...], "tools": [...]}`, in the form of chat APIs.

    Args:
        trajectory: From any policy.
        parser: Parses assistant messages. Tool calls become `tool_calls`, with matching `tool_call_id`s in the results,
            and thinking becomes `reasoning_content`. A reply without either, or a broken one, stays unchanged. None
            leaves all messages as written.
    """
    messages: list[dict[str, Any]] = []
    open_ids: list[str] = []
    for message in trajectory.messages:
        shown: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant":
            shown |= _assistant(message, parser, first_id=sum(len(m.get("tool_calls", ())) for m in messages))
            open_ids = [call["id"] for call in shown.get("tool_calls", ())]
        elif message.role == "tool":
            call_id = message.tool_call_id or (open_ids[0] if open_ids else None)
            open_ids = open_ids[1:]
            shown |= {} if call_id is None else {"tool_call_id": call_id}
        if "name" in message.metadata:
            shown["name"] = message.metadata["name"]
        messages.append(shown)
    tools = {"tools": [dict(tool) for tool in trajectory.tools]} if trajectory.tools else {}
    return {"messages": messages} | tools


def to_messages_jsonl(
    trajectories: Iterable[Trajectory],
    path: str | Path,
    *,
    keep: Callable[[Trajectory], bool] = is_scored,
) -> int:
    """Write `to_messages` of each trajectory as a line of JSON, and return the number of lines.

    The file is written atomically. A lone surrogate, which JSON readers refuse, becomes "?".

    Args:
        trajectories: From any policy.
        path: The file; an existing one is replaced.
        keep: Which to keep; by default all scored ones.
    """
    return write_jsonl((to_messages(trajectory) for trajectory in trajectories if keep(trajectory)), path)


def write_jsonl(records: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Write records as lines of JSON, and return their number. The file is written atomically."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with atomic(target) as file:
        for record in records:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False)
            file.write(line.encode(errors="replace") + b"\n")
            count += 1
    return count


def _assistant(message: Message, parser: Parser | None, first_id: int) -> dict[str, Any]:
    """Return the fields of an assistant's message besides its role; calls without ids get ids."""
    calls, out = message.tool_calls, {}
    if not calls and parser is not None:
        parsed = parser(message.content)
        if not parsed.problems and (parsed.tool_calls or parsed.thinking is not None):
            calls, out = parsed.tool_calls, {"content": parsed.content}
            if parsed.thinking is not None:
                out["reasoning_content"] = parsed.thinking
    if not calls:
        return out
    return out | {"tool_calls": [_call(call, f"call_{number}") for number, call in enumerate(calls, start=first_id)]}


def _call(call: ToolCall, own_id: str) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False)
    return {"id": call.id or own_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _preference(chosen: Trajectory, rejected: Trajectory) -> dict[str, Any]:
    rows = {"chosen": _only_row(chosen), "rejected": _only_row(rejected)}
    prompt, other_prompt = (row.ids[: row.prompt_length] for row in rows.values())
    if not np.array_equal(prompt, other_prompt):
        raise InvalidConfigError(
            f"group {chosen.group_id}: members {chosen.member} and {rejected.member} have different prompts, so they "
            "cannot form a pair. Members of a group must have one seed and one environment."
        )
    out: dict[str, Any] = _preference_messages(chosen, rejected) | {"prompt_ids": prompt.tolist()}
    for name, row in rows.items():
        completion = slice(row.prompt_length, row.spans[-1][1])
        out[f"{name}_ids"] = row.ids[completion].tolist()
        out[f"{name}_mask"] = row.mask[completion].astype(np.int8).tolist()
    out |= {"chosen_reward": chosen.reward, "rejected_reward": rejected.reward}
    out |= {"env_id": chosen.env_id, "group_id": chosen.group_id}
    return out | {"chosen_member": chosen.member, "rejected_member": rejected.member}


def _preference_messages(chosen: Trajectory, rejected: Trajectory) -> dict[str, Any]:
    """Return a pair in the conversational form of TRL's data sets."""
    conversations = [[{"role": m.role, "content": m.content} for m in t.messages] for t in (chosen, rejected)]
    start = _first_reply(chosen)
    completions = [
        conversation[_first_reply(t) :] for conversation, t in zip(conversations, (chosen, rejected), strict=True)
    ]
    for completion in completions:
        while completion and completion[-1]["role"] != "assistant":
            completion.pop()
    tools = {"tools": json.dumps([dict(tool) for tool in chosen.tools])} if chosen.tools else {}
    return {"prompt": conversations[0][:start], "chosen": completions[0], "rejected": completions[1]} | tools


def _first_reply(trajectory: Trajectory) -> int:
    """Return the index of the agent's first message; before it, the environment may have written as an assistant."""
    replies = [index for index, message in enumerate(trajectory.messages) if message.role == "assistant"]
    return replies[-len(trajectory.turns)]


def _only_row(trajectory: Trajectory) -> Row:
    name = f"trajectory {trajectory.group_id}/{trajectory.member}"
    if not trajectory.n_sampled_tokens:
        raise InvalidConfigError(f"{name} has no tokens from the agent: collect with codec=ChatCodec(tokenizer).")
    if len(trajectory.rows) > 1:
        raise InvalidConfigError(
            f"{name} has {len(trajectory.rows)} rows, and a pair compares two sequences: collect with history='append' "
            "and without a context function."
        )
    return trajectory.rows[0]


def _sft_row(row: Row) -> dict[str, list[int]]:
    stop = row.spans[-1][1]
    labels = np.where(row.mask[:stop], row.ids[:stop], IGNORED_LABEL)
    return {"input_ids": row.ids[:stop].tolist(), "labels": labels.tolist()}


def _last_turn_end(labels: Sequence[int], max_length: int) -> int:
    """Return the length up to the end of the last turn that fits in `max_length` tokens; 0 if none does."""
    trained = [label != IGNORED_LABEL for label in labels]
    ends = (stop for stop in range(max_length, 0, -1) if trained[stop - 1] and not trained[stop])
    return next(ends, 0)
