"""One episode of an agent, shown request by request: the row that each continued, why rows began, what is trained."""

from __future__ import annotations

from collections.abc import Sequence

from llm_envs.agents.record import RecordedTurn
from llm_envs.agents.session import PolicySession
from llm_envs.errors import counted
from llm_envs.tracking.loggers import visible_text
from llm_envs.types import Message, Trajectory

__all__ = ["lost_messages", "show_session"]

_LENGTH = 70
"""Characters of a message that are shown."""


def show_session(session: PolicySession, trajectory: Trajectory) -> str:
    """Return the requests of a session, one paragraph each, and what became of the episode.

    Args:
        session: A session that has ended.
        trajectory: Its trajectory, with its reward.
    """
    lines = session.record.lines()
    places = {turn: (row, span) for row, line in enumerate(lines) for span, turn in enumerate(line)}
    out: list[str] = []
    for turn in session.record.turns:
        out += _request(session, turn, *places[turn])
    n_trained = sum(int(row.mask.sum()) for row in trajectory.rows)
    out.append(
        f"{counted(len(session.record.turns), 'request')}, {counted(len(lines), 'row')}, "
        f"{counted(trajectory.n_tokens, 'token')}: {n_trained} trained"
    )
    why = trajectory.why_unscored
    status = trajectory.status if why is None else f"{trajectory.status}: {why}"
    out.append(
        f"{trajectory.stop_reason.value}, {status}, reward {trajectory.reward:g}, success {trajectory.is_success}"
    )
    if session.overridden:
        out.append(f"the run decides, not the requests: {', '.join(sorted(session.overridden))}")
    return "\n".join(visible_text(line) for line in out)


def lost_messages(session: PolicySession, turn: RecordedTurn) -> list[Message]:
    """Return the messages of a request whose text the model does not see: the chat template dropped or changed them."""
    decode = getattr(session.codec, "decode", session.codec.decode_reply)
    shown = str(decode(turn.context_ids))
    return [
        message for message in turn.messages if message.role != "assistant" and message.content.strip() not in shown
    ]


def _request(session: PolicySession, turn: RecordedTurn, row: int, span: int) -> Sequence[str]:
    assert turn.reply is not None
    n_context, n_sampled = len(turn.prompt_ids), len(turn.reply_ids)
    again = n_context - len(turn.context_ids)
    what = f"begins row {row} ({turn.why})"
    if turn.parent is not None and span:
        what = f"continues row {row}, after turn {turn.parent.number}"
    out = [
        f"request {turn.number}: {what}",
        f"  {again} tokens as they were, {len(turn.context_ids)} new, {n_sampled} sampled and trained "
        f"({turn.reply.finish_reason})",
    ]
    out += [f"  + {message.role}: {_short(message.content)}" for message in turn.messages]
    out.append(f"  = assistant: {_short(turn.reply.sampled.text)}")
    out += [f"  LOST by the chat template: {_short(m.content)}" for m in lost_messages(session, turn)]
    return out


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LENGTH else f"{line[:_LENGTH]}... ({len(text)} characters)"
