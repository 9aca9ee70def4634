"""Sample episodes as one page that needs nothing else: no scripts, no fonts, no network.

Everything that a model, a tool or an environment wrote is taken to be hostile. It reaches the page only through
jinja2's automatic escaping; control characters are shown as symbols; the page forbids scripts and requests to itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

from llm_envs.data.files import replacing
from llm_envs.errors import MissingExtraError
from llm_envs.tracking.loggers import visible_text
from llm_envs.tracking.metrics import trajectory_metrics
from llm_envs.types import Message, Row, Trajectory, Turn

__all__ = ["write_episode_page"]

MARKUP = re.compile(r"(<think>.*?</think>|<tool_call>.*?</tool_call>|<answer>.*?</answer>)", re.DOTALL)
"""Parts of a reply that get a colour. The text itself is shown exactly as it was written."""

MAX_TOKENS_SHOWN = 4000
"""Tokens of one row that the token view shows: each costs an element, and a browser slows at some hundred thousand."""


@dataclass(frozen=True)
class Bubble:
    """One message as the page shows it."""

    role: str
    parts: tuple[tuple[str, str], ...]
    """(class, text): `text`, `think`, `tool_call` or `answer`."""
    turn: Turn | None
    """The message's turn with its reward; None for messages that are not the policy's."""


@dataclass(frozen=True)
class TokenRun:
    """Tokens of one row that follow one another with the same mask."""

    sampled: bool
    tokens: tuple[tuple[str, str], ...]
    """(text, tooltip) of each."""


def write_episode_page(
    path: str | Path,
    sections: Mapping[str, Sequence[Trajectory]],
    *,
    title: str = "Sample episodes",
    decode_token: Callable[[int], str] | None = None,
) -> Path:
    """Write one self-contained HTML page of episodes: each a chat, with its rewards, tool results and tokens.

    Args:
        path: The file to write.
        sections: Heading to episodes, in the order to show: for example before and after training.
        title: The page's title.
        decode_token: One token id to its text, for the token view; None shows the ids.

    Returns:
        The path.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise MissingExtraError("Episode pages need jinja2: pip install 'llm-envs[report]'.") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = lambda value: f"{value:+.4g}" if value else "0"
    environment.filters["counted"] = lambda count, noun: f"{count} {noun}" + ("" if count == 1 else "s")
    source = resources.files("llm_envs.report").joinpath("episodes.html").read_text(encoding="utf-8")
    page = environment.from_string(source).render(
        title=title,
        sections=[
            (heading, trajectory_metrics(episodes), [_episode(episode, decode_token) for episode in episodes])
            for heading, episodes in sections.items()
        ],
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "w", encoding="utf-8", opener=replacing) as file:
        file.write(visible_text(page))
    return target


def _episode(trajectory: Trajectory, decode_token: Callable[[int], str] | None) -> dict[str, Any]:
    return {
        "trajectory": trajectory,
        "outcome": _outcome(trajectory),
        "settings": json.dumps(dict(trajectory.env_kwargs), ensure_ascii=False, default=str),
        "tools": [json.dumps(dict(tool), indent=2, ensure_ascii=False, default=str) for tool in trajectory.tools],
        "bubbles": list(_bubbles(trajectory)),
        "rows": [(len(row), int(row.mask.sum()), _token_runs(row, decode_token)) for row in trajectory.rows],
        "max_tokens_shown": MAX_TOKENS_SHOWN,
    }


def _outcome(trajectory: Trajectory) -> str:
    if trajectory.status != "ok":
        return trajectory.status
    return "success" if trajectory.is_success else "failure"


def _bubbles(trajectory: Trajectory) -> Iterator[Bubble]:
    turns = chain([None] * trajectory.n_example_replies, trajectory.turns)
    for message in trajectory.messages:
        if message.role == "assistant":
            yield Bubble("assistant", _parts(message), next(turns, None))
        else:
            yield Bubble(message.role, (("text", message.content),), None)


def _parts(message: Message) -> tuple[tuple[str, str], ...]:
    parts = [(_kind(part), part) for part in MARKUP.split(message.content) if part]
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    parts += [("tool_call", json.dumps(call, ensure_ascii=False, default=str)) for call in calls]
    return tuple(parts)


def _kind(part: str) -> str:
    return part[1 : part.index(">")] if MARKUP.fullmatch(part) else "text"


def _token_runs(row: Row, decode_token: Callable[[int], str] | None) -> list[TokenRun]:
    runs: list[TokenRun] = []
    start = 0
    length = min(len(row), MAX_TOKENS_SHOWN)
    for stop in range(1, length + 1):
        if stop == length or row.mask[stop] != row.mask[start]:
            tokens = tuple(_token(row, index, decode_token) for index in range(start, stop))
            runs.append(TokenRun(bool(row.mask[start]), tokens))
            start = stop
    return runs


def _token(row: Row, index: int, decode_token: Callable[[int], str] | None) -> tuple[str, str]:
    token_id = int(row.ids[index])
    text = str(token_id) if decode_token is None else decode_token(token_id).replace("\n", "\u23ce\n")
    logp = f", log-probability {row.logps[index]:.3f}" if row.mask[index] else ""
    return text, f"token {index}, id {token_id}{logp}"
