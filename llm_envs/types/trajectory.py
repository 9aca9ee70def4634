"""Episodes as data: rows of tokens, turns, trajectories and their groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llm_envs.types.messages import Message, ToolResult
from llm_envs.types.sampling import FinishReason, KeptTokens, VersionSpan

__all__ = [
    "RolloutError",
    "Row",
    "Status",
    "StopReason",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "inspect_trajectory",
    "validate_batch",
]

Status = Literal["ok", "errored", "unscored"]


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    """The task ended: the environment returned `terminated`."""
    ENV_TRUNCATED = "env_truncated"
    """A limit of the environment: it returned `truncated`."""
    MAX_TURNS = "max_turns"
    """`RolloutLimits.max_turns` was reached."""
    MAX_TOKENS = "max_tokens"
    """`RolloutLimits.max_episode_tokens` was reached."""
    CONTEXT_FULL = "context_full"
    """The model's context has no room for another turn."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The first prompt already fills the model's context: no turn was played."""
    TIMEOUT = "timeout"
    """`RolloutLimits.max_episode_s` was reached; the unfinished turn is left out."""
    ERROR = "error"
    """The environment, a tool, the policy or a judge failed; see `Trajectory.error`. Never scored."""


_TOKEN_LIMITS = (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL, StopReason.PROMPT_TOO_LONG)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence of tokens as the model saw it. All three arrays have shape (T,)."""

    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    """True exactly where the policy wrote the token."""
    logps: npt.NDArray[np.float32]
    """0 where the mask is False; NaN where it is True but nothing was sampled (an oracle's reply)."""
    spans: tuple[tuple[int, int], ...]
    """`[start, stop)` of each turn's reply; the mask is True exactly inside the spans."""
    kept: KeptTokens | None = None
    """The tokens that the sampling filters kept, for each masked token in order (`SamplingParams.keep_mask`). In memory
    only: it is not written to disk and is ignored when trajectories are compared."""

    def __post_init__(self) -> None:
        """Check that shapes, dtypes, mask and spans agree."""
        if not (self.ids.shape == self.mask.shape == self.logps.shape and self.ids.ndim == 1):
            raise ValueError(f"Row: shapes differ: {self.ids.shape=}, {self.mask.shape=}, {self.logps.shape=}.")
        for name, dtype in (("ids", np.int32), ("mask", np.bool_), ("logps", np.float32)):
            if getattr(self, name).dtype != dtype:
                raise ValueError(f"Row.{name} has dtype {getattr(self, name).dtype}; it must be {np.dtype(dtype)}.")
        stops = [0]
        for start, stop in self.spans:
            if not stops[-1] <= start <= stop <= len(self.ids):
                raise ValueError(f"Row: span ({start}, {stop}) overlaps an earlier one or leaves the row.")
            stops.append(stop)
        inside = sum(stop - start for start, stop in self.spans)
        if inside != int(self.mask.sum()) or not all(self.mask[start:stop].all() for start, stop in self.spans):
            raise ValueError("Row: the mask is not True exactly inside the spans.")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the policy's first token, or of all tokens if it wrote none."""
        return self.spans[0][0] if self.spans else len(self.ids)

    @property
    def nbytes(self) -> int:
        """Size of the token arrays in bytes."""
        return self.ids.nbytes + self.mask.nbytes + self.logps.nbytes


@dataclass(frozen=True, slots=True)
class Turn:
    """One action of the policy and its reward."""

    reward: float
    components: Mapping[str, float]
    """The environment's `info["reward_components"]`."""
    row: int = -1
    """Index into `Trajectory.rows`; -1 if the turn has no tokens (text-only policies)."""
    span: int = -1
    """Index into that row's `spans`."""
    finish_reason: FinishReason = FinishReason.STOP
    weight_versions: tuple[VersionSpan, ...] = ()
    """The versions that sampled its tokens. After an update vLLM continues a turn from keys and values of old weights.
    No version then gives the log-probabilities of the tokens that follow: on a tiny model they differ by nats. The
    recorded ones are from sampling, so importance weights are right."""
    tool_results: tuple[ToolResult, ...] = ()
    is_summary: bool = False
    """Whether the policy summarised its history (`llm_envs.chat.Summarize`): the environment never saw this turn."""
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Wall time by part: `policy`, `env`. Ignored when turns are compared."""


@dataclass(frozen=True, slots=True)
class RolloutError:
    """A failure inside a rollout, as data."""

    kind: str
    """Class name of the exception."""
    message: str
    where: str
    """`env.make`, `env.reset`, `env.step` or `policy`."""


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One complete episode. Two are equal if everything except their wall times is equal."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    seed: int
    """The seed of `env.reset`; the same for every member of a group."""
    group_id: str
    member: int
    """Index in the group, from 0."""
    messages: tuple[Message, ...]
    """The conversation, beginning with the system prompt if there is one."""
    tools: tuple[Mapping[str, Any], ...]
    """JSON Schemas of the tools that the model saw."""
    rows: tuple[Row, ...]
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    stop_reason: StopReason
    status: Status
    is_success: bool | None
    """The environment's `info["is_success"]`. False if a limit cut the episode before that, or if the key is missing.
    None if the status is not `ok`."""
    error: RolloutError | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    """Wall times in seconds: `total`, `policy`, `env`. Ignored when trajectories are compared."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def components(self) -> dict[str, float]:
        """Sum of each reward component over the turns."""
        total: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.components.items():
                total[name] = total.get(name, 0.0) + value
        return total

    @property
    def why_unscored(self) -> str | None:
        """Why the episode has no score: `where: kind: message` of its error, or the reason; None if it has one."""
        if self.status == "ok":
            return None
        if self.error is not None:
            return f"{self.error.where}: {self.error.kind}: {self.error.message}"
        return str(self.metadata.get("unscored_because") or self.stop_reason.value)

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(row) for row in self.rows)

    @property
    def n_sampled_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return int(sum(int(row.mask.sum()) for row in self.rows))

    @property
    def n_completion_tokens(self) -> int:
        """Tokens after the longest row's prompt, including observations; `max_completion_tokens` limits this.

        A branch (`llm_envs.rollout.branch`) counts from its origin's first reply, as the limit does.
        """
        whole: int | None = self.metadata.get("fork", {}).get("completion_tokens")
        return max((len(row) - row.prompt_length for row in self.rows), default=0) if whole is None else whole

    @property
    def is_cut(self) -> bool:
        """Whether a token limit ended the episode or cut its last turn. Limits of turns and time do not count."""
        was_last_turn_cut = bool(self.turns) and self.turns[-1].finish_reason is FinishReason.LENGTH
        return was_last_turn_cut or self.stop_reason in _TOKEN_LIMITS

    @property
    def n_example_replies(self) -> int:
        """Assistant messages before the agent's first one: examples in the prompt.

        If the environment also answers as an assistant, those messages count too.
        """
        said = [message.role == "assistant" for message in self.messages]
        n_failed = int(self.status == "errored" and bool(said) and said[-1])  # a reply whose step failed has no turn
        return max(sum(said) - len(self.turns) - n_failed, 0)

    @property
    def replies(self) -> tuple[Message, ...]:
        """The agent's message of each turn; after them, perhaps one whose step failed."""
        said = [message for message in self.messages if message.role == "assistant"]
        return tuple(said[self.n_example_replies :])

    @property
    def n_forks(self) -> int:
        """How often a new row began because the model had to see a changed history."""
        return max(len(self.rows) - 1, 0)

    @property
    def n_steps(self) -> int:
        """Turns that the environment answered: all but summaries."""
        return sum(not turn.is_summary for turn in self.turns)

    @property
    def messages_of_steps(self) -> tuple[Message, ...]:
        """The conversation without summaries and the requests for them."""
        out: list[Message] = []
        n_earlier, turns = self.n_example_replies, iter(self.turns)
        for message in self.messages:
            out.append(message)
            if message.role == "assistant":
                n_earlier -= 1
                turn = next(turns, None) if n_earlier < 0 else None
                if turn is not None and turn.is_summary:
                    del out[-2:]
        return tuple(out)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Results of all tool calls in order."""
        return tuple(result for turn in self.turns for result in turn.tool_results)

    def to_dict(self, *, timings: bool = True) -> dict[str, Any]:
        """Return the trajectory as JSON types, losslessly; NaN becomes None. `timings=False` drops wall times."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["messages"] = [message.to_dict() for message in self.messages]
        out["tools"] = [dict(tool) for tool in self.tools]
        out["rows"] = [_row_to_dict(row) for row in self.rows]
        out["turns"] = [_turn_to_dict(turn, timings) for turn in self.turns]
        out["error"] = None if self.error is None else {f.name: getattr(self.error, f.name) for f in fields(self.error)}
        out["env_kwargs"], out["metadata"] = dict(self.env_kwargs), dict(self.metadata)
        if timings:
            out["timings"] = dict(self.timings)
        else:
            del out["timings"]
        return out

    def to_json(self, *, timings: bool = True) -> str:
        """Return `to_dict` as one line of strict JSON."""
        return json.dumps(self.to_dict(timings=timings), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trajectory:
        """Rebuild a trajectory from `to_dict`."""
        values = dict(data)
        values["messages"] = tuple(Message.from_dict(message) for message in data["messages"])
        values["tools"] = tuple(data["tools"])
        values["rows"] = tuple(_row_from_dict(row) for row in data["rows"])
        values["turns"] = tuple(_turn_from_dict(turn) for turn in data["turns"])
        values["error"] = None if data["error"] is None else RolloutError(**data["error"])
        values["stop_reason"] = StopReason(data["stop_reason"])
        return cls(**values)

    @classmethod
    def from_json(cls, line: str) -> Trajectory:
        """Rebuild a trajectory from `to_json`."""
        return cls.from_dict(json.loads(line))

    def __eq__(self, other: object) -> bool:
        """Compare everything except wall times."""
        return isinstance(other, Trajectory) and self.to_json(timings=False) == other.to_json(timings=False)

    def __hash__(self) -> int:
        return hash((self.env_id, self.group_id, self.member))


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The trajectories of one seed, in the order of their members."""

    group_id: str
    env_id: str
    seed: int
    trajectories: tuple[Trajectory, ...]

    @classmethod
    def of(cls, members: Iterable[Trajectory]) -> TrajectoryGroup:
        """Return the group of these trajectories of one seed, at least one, in the order of their members."""
        ordered = sorted(members, key=lambda trajectory: trajectory.member)
        return cls(ordered[0].group_id, ordered[0].env_id, ordered[0].seed, tuple(ordered))

    def __len__(self) -> int:
        return len(self.trajectories)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    @property
    def scored(self) -> tuple[Trajectory, ...]:
        """The trajectories with a reward: neither errored nor unscored."""
        return tuple(t for t in self.trajectories if t.status == "ok")

    def filter(self, keep: Any) -> TrajectoryGroup:
        """Return a group of the trajectories for which `keep(trajectory)` is true."""
        return replace(self, trajectories=tuple(t for t in self.trajectories if keep(t)))


def _row_to_dict(row: Row) -> dict[str, Any]:
    return {
        "ids": row.ids.tolist(),
        "mask": row.mask.astype(np.int8).tolist(),
        "logps": [None if value != value else value for value in row.logps.tolist()],
        "spans": [list(span) for span in row.spans],
    }


def _row_from_dict(data: Mapping[str, Any]) -> Row:
    return Row(
        ids=np.array(data["ids"], dtype=np.int32),
        mask=np.array(data["mask"], dtype=np.bool_),
        logps=np.array(data["logps"], dtype=np.float32),  # None becomes NaN
        spans=tuple((start, stop) for start, stop in data["spans"]),
    )


def _turn_to_dict(turn: Turn, timings: bool) -> dict[str, Any]:
    out = {f.name: getattr(turn, f.name) for f in fields(turn)}
    out["components"] = dict(turn.components)
    out["weight_versions"] = [[span.start, span.stop, span.version] for span in turn.weight_versions]
    results = [{f.name: getattr(r, f.name) for f in fields(r)} for r in turn.tool_results]
    out["tool_results"] = [r | {"arguments": dict(r["arguments"])} for r in results]
    if timings:
        out["seconds"] = dict(turn.seconds)
    else:
        del out["seconds"]
        for result in out["tool_results"]:
            del result["seconds"], result["began_s"]
    return out


def _turn_from_dict(data: Mapping[str, Any]) -> Turn:
    values = dict(data)
    values["finish_reason"] = FinishReason(data["finish_reason"])
    values["weight_versions"] = tuple(VersionSpan(*span) for span in data["weight_versions"])
    values["tool_results"] = tuple(ToolResult(**result) for result in data["tool_results"])
    return Turn(**values)


def inspect_trajectory(trajectory: Trajectory) -> str:
    """Return a readable summary of one trajectory: the conversation, each turn's reward, and how it ended."""
    lines = [
        f"{trajectory.env_id} seed={trajectory.seed} group={trajectory.group_id} member={trajectory.member}",
        f"{trajectory.stop_reason.value}, status={trajectory.status}, success={trajectory.is_success}, "
        f"reward={trajectory.reward:g}, turns={len(trajectory.turns)}, "
        f"tokens={trajectory.n_sampled_tokens} sampled of {trajectory.n_tokens}",
    ]
    if trajectory.error is not None:
        lines.append(f"error in {trajectory.error.where}: {trajectory.error.kind}: {trajectory.error.message}")
    turns = iter(trajectory.turns)
    n_examples = trajectory.n_example_replies
    for message in trajectory.messages:
        lines.append(f"--- {message.role}")
        lines.append(message.content)
        if message.role == "assistant":
            n_examples -= 1
            turn = next(turns, None) if n_examples < 0 else None
            if turn is not None:
                kind = "summary" if turn.is_summary else f"reward {turn.reward:g}"
                lines.append(f"    [{kind}, {turn.finish_reason.value}]")
    return "\n".join(lines)


def validate_batch(trajectories: Sequence[Trajectory]) -> list[tuple[int, str]]:
    """Return the problems of the trajectories as (index, complaint); an empty list means a sound batch."""
    problems: list[tuple[int, str]] = []
    for index, trajectory in enumerate(trajectories):
        n_assistant = sum(message.role == "assistant" for message in trajectory.messages)
        if n_assistant < len(trajectory.turns) and trajectory.status == "ok":  # environments may write as one too
            problems.append((index, f"{len(trajectory.turns)} turns but {n_assistant} assistant messages"))
        is_errored = trajectory.status == "errored"  # an unscored one may have its judge's error
        if trajectory.status != "unscored" and is_errored != (trajectory.error is not None):
            problems.append((index, f"status is {trajectory.status!r} but error is {trajectory.error!r}"))
        spans = [(turn.row, turn.span) for turn in trajectory.turns if turn.row >= 0]
        expected = [(r, s) for r, row in enumerate(trajectory.rows) for s in range(len(row.spans))]
        if sorted(spans) != expected:
            problems.append((index, f"turns point at spans {spans}, rows have {expected}"))
        if any(not np.isfinite(turn.reward) for turn in trajectory.turns):
            problems.append((index, "a reward is not finite"))
    return problems
