"""One episode as the report's page takes it: a line of the table, and the details that are drawn when it is opened.

Everything that a model, a tool or an environment wrote goes through `visible_text`: control characters, marks that
reorder text and lone surrogates are shown as symbols. The page itself makes sure that no text becomes markup (`page/`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from llm_envs.report.evaluation import visible
from llm_envs.report.outcome_text import why_nothing
from llm_envs.tracking.loggers import visible_text
from llm_envs.types import Message, Row, Trajectory, Turn

__all__ = ["COLUMNS", "Details", "Names", "is_sampled", "table_line"]

COLUMNS = (
    "run", "env", "seed", "member", "group", "problem", "settings", "outcome", "reward", "turns", "tokens", "stop",
    "seconds", "begins", "step", "weights", "parts", "chunk",
)  # fmt: skip
"""The table of episodes. `env`, `group`, `problem`, `settings`, `stop` and `begins` are numbers from `Names`."""

_OF_TRAINER = re.compile(r"(?:train|eval)-(\d{1,9})-\d+-\d+-\d+")
"""A group's id of `trainers.episodes.generation`: step, generation in it, process, place."""
OUTCOMES = ("success", "failure", "errored", "unscored")
BEGINS = 90
"""Characters of the first observation that the table shows."""
MAX_PARTS = 40
"""Parts of a reward that the table has of one episode."""
EXACT = 2**53
"""JavaScript's numbers are exact below this; a larger seed is kept as text."""


@dataclass(slots=True)
class Names:
    """Texts that many episodes share, each stored once: kind -> text -> its number."""

    of: dict[str, dict[str, int]] = field(default_factory=dict)

    def number(self, kind: str, text: str) -> int:
        """Return the number of a text; a new text gets the next number."""
        known = self.of.setdefault(kind, {})
        return known.setdefault(text, len(known))

    def texts(self) -> dict[str, list[str]]:
        """Return the texts of each kind, in the order of their numbers."""
        return {kind: [visible_text(text) for text in known] for kind, known in self.of.items()}


def table_line(
    trajectory: Trajectory, run: int, part: int, names: Names, learned: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return an episode's values of `COLUMNS`, except the last one, `chunk`.

    Args:
        trajectory: The episode.
        run: Number of its run.
        part: Number of its folder in the run.
        names: Gets its texts.
        learned: Its rewards in a training (`report.learned`), if any.
    """
    settings = json.dumps(dict(trajectory.env_kwargs), sort_keys=True, ensure_ascii=False, default=str)
    seed = trajectory.seed if abs(trajectory.seed) < EXACT else str(trajectory.seed)
    is_scored = trajectory.status == "ok"
    outcome = ("success" if trajectory.is_success else "failure") if is_scored else trajectory.status
    return [
        run,
        names.number("env", trajectory.env_id),
        seed,
        trajectory.member,
        names.number("group", f"{run}/{part}/{trajectory.env_id}/{trajectory.seed}/{trajectory.group_id}"),
        names.number("problem", f"{trajectory.env_id}/{trajectory.seed}/{settings}"),
        names.number("settings", settings),
        OUTCOMES.index(outcome),
        _rounded(trajectory.reward) if is_scored else None,
        trajectory.n_steps,
        trajectory.n_sampled_tokens,
        names.number("stop", trajectory.stop_reason.value),
        _rounded(trajectory.timings.get("total")),
        names.number("begins", _begins(trajectory)),
        _step(trajectory.group_id),
        min((span.version for turn in trajectory.turns for span in turn.weight_versions), default=None),
        _parts(trajectory, names, learned) if is_scored else [],
    ]


def _parts(trajectory: Trajectory, names: Names, learned: Mapping[str, Any] | None) -> list[Any]:
    """Return [number of a name, value, ...]: components of the task, and rewards of the training."""
    values = [(f"task: {name}", value) for name, value in trajectory.components.items()]
    if learned is not None:
        values += [(f"learned: {name}", value) for name, value in learned["columns"].items()]
        values.append(("advantage", learned["advantage"]))
    pairs = [(names.number("part", name), _rounded(value)) for name, value in values[:MAX_PARTS]]
    return [entry for pair in pairs for entry in pair]


def _step(group_id: str) -> int | None:
    """Return the optimizer step that an episode of a trainer was played for, which its group's id begins with."""
    found = _OF_TRAINER.fullmatch(group_id)
    return None if found is None else int(found[1])


def is_sampled(trajectory: Trajectory, share: float) -> bool:
    """Return whether an episode is in a sample of this share of the problems.

    All episodes of a problem are, or none. The same problem is drawn in every run, and a larger share has all those of
    a smaller one, so sampled runs can be compared by problem.
    """
    problem = json.dumps([trajectory.env_id, trajectory.seed, dict(trajectory.env_kwargs)], sort_keys=True, default=str)
    digest = blake2b(problem.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _begins(trajectory: Trajectory) -> str:
    """Return how the first observation begins, in one line."""
    said = next((message.content for message in trajectory.messages if message.role == "user"), "")
    words = " ".join(said[: 4 * BEGINS].split())
    return words if len(words) <= BEGINS else words[: BEGINS - 1].rstrip() + "…"


class Details:
    """Makes the details of episodes, within what one page can hold.

    Args:
        names: Stores each system prompt and list of tools once.
        max_tokens: Limit on the tokens of all episodes together. An episode that exceeds it is shown without rows.
        max_characters: Limit on the characters of all conversations. An episode that exceeds it keeps only its numbers.
    """

    def __init__(self, names: Names, *, max_tokens: int, max_characters: int) -> None:
        self.token_ids: dict[int, set[int]] = {}
        """Run -> its token ids that are on the page."""
        self.without_tokens = 0
        """Episodes whose rows were left out."""
        self.without_text = 0
        """Episodes whose conversations were left out."""
        self._names, self._tokens_left, self._characters_left = names, max_tokens, max_characters

    def of(self, trajectory: Trajectory, run: int, learned: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the details of one episode as JSON types.

        `m` messages [role, text or the number of a shared one, calls?], `t` turns, `r` rows, `e` error, `tools` the
        number of the tools' text, `group` the group's id, `why` why it earned nothing, `meta` the metadata, `learned`
        what a training learned from it (`report.learned`).
        """
        error = trajectory.error
        out: dict[str, Any] = {
            "group": visible_text(trajectory.group_id),
            "t": [_turn(turn, trajectory.rows) for turn in trajectory.turns],
        }
        if learned is not None:
            out["learned"] = visible(learned)
        if error is not None:
            out["e"] = [visible_text(text) for text in (error.where, error.kind, error.message)]
        if (why := why_nothing(trajectory)) is not None:
            out["why"] = visible_text(why)
        if trajectory.metadata:
            out["meta"] = visible_text(_json(trajectory.metadata))
        if trajectory.tools:
            out["tools"] = self._names.number("tools", _json([dict(tool) for tool in trajectory.tools]))
        size = sum(len(message.content) for message in trajectory.messages)
        if size <= self._characters_left:
            self._characters_left -= size
            out["m"] = [self._message(message) for message in trajectory.messages]
        else:
            self.without_text += 1
        if trajectory.n_tokens and trajectory.n_tokens <= self._tokens_left:
            self._tokens_left -= trajectory.n_tokens
            out["r"] = [self._row(row, run) for row in trajectory.rows]
        elif trajectory.n_tokens:
            self.without_tokens += 1
            out["r"] = None
        return out

    def _message(self, message: Message) -> list[Any]:
        content: int | str = visible_text(message.content)
        if message.role == "system":
            content = self._names.number("system", message.content)
        calls = [[visible_text(call.name), visible_text(_json(call.arguments))] for call in message.tool_calls]
        return [message.role, content, *([calls] if calls else [])]

    def _row(self, row: Row, run: int) -> list[Any]:
        """Return [ids, [start, stop, ...] of the mask's runs, log-probabilities of the masked]."""
        self.token_ids.setdefault(run, set()).update(row.ids.tolist())
        padded = np.concatenate([[False], row.mask, [False]])
        logps = [None if value != value else round(value, 2) for value in row.logps[row.mask].tolist()]
        return [row.ids.tolist(), np.flatnonzero(padded[1:] != padded[:-1]).tolist(), logps]


def _turn(turn: Turn, rows: Sequence[Row]) -> list[Any]:
    """Return [reward, components, finish reason, row, first token, seconds of the policy, results, tokens]."""
    results = [
        [
            visible_text(result.name),
            visible_text(_json(result.arguments)),
            visible_text(result.output),
            int(result.success),
            None if result.error is None else visible_text(result.error),
            _rounded(result.seconds),
        ]
        for result in turn.tool_results
    ]
    components = {visible_text(name): _rounded(value) for name, value in turn.components.items()}
    seconds = _rounded(turn.seconds.get("policy"))
    start, stop = rows[turn.row].spans[turn.span] if turn.row >= 0 else (0, 0)
    tokens = stop - start if turn.row >= 0 else None
    finish = "summary, " * turn.is_summary + turn.finish_reason.value
    return [_rounded(turn.reward), components, finish, turn.row, start, seconds, results, tokens]


def _rounded(value: float | None) -> float | None:
    """Return the number with at most six digits; None if it is not finite."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def _json(value: Mapping[str, Any] | Sequence[Any]) -> str:
    plain = dict(value) if isinstance(value, Mapping) else list(value)
    text = json.dumps(plain, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else json.dumps(plain, indent=1, ensure_ascii=False, default=str)
