"""Audits episodes without a model: complete groups, the environment's answers, token rows and masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import ReplayError
from llm_envs.rollout import RolloutLimits
from llm_envs.rollout.fork import replay_to
from llm_envs.rollout.limits import row_limit
from llm_envs.rollout.token_transcript import TokenTranscript
from llm_envs.trainers.cli.audit.parts import Audit, Difference, function_name
from llm_envs.trainers.cli.audit.stored import Started
from llm_envs.trainers.episodes.training_record import row_digest
from llm_envs.types import FinishReason, Message, Row, StopReason, Trajectory

__all__ = ["audit_groups", "audit_replay", "audit_rows", "rebuild_rows", "weight_version"]


def audit_groups(audit: Audit, start: Started) -> None:
    """Compare the stored episodes with the record: each once, all of a group alike, of the weights of their step."""
    file = start.episodes_file
    if start.damage is not None:
        part = "masks" if "Row:" in start.damage else "episodes"
        audit.compare(part, start.damage, "a complete record", by=Row, file=file, what="unreadable episode")
        return
    compare = partial(audit.compare, "episodes", by=audit_groups, unit="episodes", file=file)
    for group, member in start.twice:
        compare(2, 1, what="times stored", episode=f"{group}/{member}")
    for t in start.trajectories.values():
        is_terminated = t.stop_reason is StopReason.TERMINATED
        flags = (is_terminated, not is_terminated and t.error is None)
        compare((t.terminated, t.truncated), flags, what="terminated and truncated", episode=_name(t))
    is_sync = not (start.run or {}).get("settings", {}).get("async_generations")
    for generation in start.generations:
        _audit_generation(partial(compare, step=generation["step"]), start, generation, is_sync=is_sync)


def _audit_generation(compare: Callable[..., bool], start: Started, generation: Any, *, is_sync: bool) -> None:
    step, groups = generation["step"], defaultdict(list)
    for (group, member), status in zip(generation["episodes"], generation["status"], strict=True):
        found, name = start.trajectories.get((group, member)), f"{group}/{member}"
        if found is None and status == "errored":  # a place that stayed empty
            continue
        if not compare(found is not None, True, what="recorded episode is stored", episode=name):
            continue
        assert found is not None
        groups[group].append(found)
        if found.status != "ok" or not is_sync or "fork" in found.metadata:
            continue
        for turn, played in enumerate(found.turns):
            versions = sorted({span.version for span in played.weight_versions})
            compare(versions, [step], what="versions of the weights", turn=turn, episode=name)
    for members in groups.values():
        problems = [(t.env_id, t.seed, dict(t.env_kwargs), t.metadata.get("options")) for t in members]
        for t, problem in zip(members[1:], problems[1:], strict=True):
            compare(problem, problems[0], what="problem of the group", episode=_name(t))


def weight_version(trajectory: Trajectory) -> int | None:
    """Return the version of the weights that sampled an episode; None without one, or with several."""
    versions = {span.version for turn in trajectory.turns for span in turn.weight_versions}
    return versions.pop() if len(versions) == 1 else None


def audit_replay(audit: Audit, start: Started, trajectory: Trajectory) -> None:
    """Play an episode again and compare observations, tool results, rewards and its end."""
    parts = ("observations", "rewards")
    if trajectory.status != "ok":
        audit.lack("episodes without a score are not played again", *parts)
        return
    where: dict[str, Any] = {"file": start.episodes_file, "episode": _name(trajectory)}
    by = function_name(replay_to)
    try:
        replayed = replay_to(trajectory, len(trajectory.turns))
    except ReplayError as error:
        name = "rewards" if error.part == "reward" else "observations"
        where |= {"what": error.part, "turn": error.turn}
        audit.add(Difference(name, stored=error.stored, recomputed=error.found, by=by, **where))
        return
    except IndexError:
        what, n_turns = "an assistant's message for each turn", len(trajectory.turns)
        audit.compare("observations", "fewer", n_turns, by=replay_to, what=what, **where)
        return
    except Exception as error:  # an environment is anyone's code
        said = f"{type(error).__name__}: {' '.join(str(error).split()):.150}"
        audit.lack(f"{trajectory.env_id} cannot be made or played again ({said})", *parts)
        return
    replayed.env.close()
    shown: dict[str, Any] = {"by": replay_to, "unit": "messages", "what": "number of messages", **where}
    audit.compare("observations", len(trajectory.messages), len(replayed.messages), **shown)
    audit.parts["observations"].n += len(trajectory.messages) - 1
    audit.parts["rewards"].n += len(trajectory.turns)
    audit.parts["rewards"].unit = "rewards"


def audit_rows(audit: Audit, start: Started, trajectory: Trajectory, codec: ChatCodec | None) -> None:
    """Encode an episode's messages again, and compare token rows and masks; sampled tokens must read as the replies."""
    run = start.run or {}
    why = _not_encodable(run, trajectory, codec)
    if why is not None:
        audit.lack(why, "tokens", "masks")
        return
    assert codec is not None
    where: dict[str, Any] = {"file": start.episodes_file, "episode": _name(trajectory)}
    if not _replies_agree(audit, trajectory, codec, where):
        return
    limits = RolloutLimits(max_completion_tokens=run["settings"].get("max_completion_length"))
    rebuilt = rebuild_rows(trajectory, codec, run["settings"].get("history", "append"), limits, run["max_model_len"])
    for stored, made in zip(trajectory.rows, rebuilt, strict=False):
        place = _first_difference(stored, made)
        token = None if place is None else int(place)
        shown = (_ids_at(stored, place), _ids_at(made, place))
        audit.compare("tokens", *shown, by=rebuild_rows, what="token ids from here on", token=token, **where)
        audit.parts["tokens"].n += len(made) - 1
        spans = (list(stored.spans), list(made.spans))
        if audit.compare("masks", *spans, by=rebuild_rows, what="spans of the policy's tokens", **where):
            masks = (row_digest(stored.ids, stored.mask), row_digest(stored.ids, made.mask[: len(stored)]))
            audit.compare("masks", *masks, by=rebuild_rows, what="mask of the policy's tokens", unit="rows", **where)
    audit.compare("tokens", len(trajectory.rows), len(rebuilt), by=rebuild_rows, what="rows", unit="tokens", **where)


def _not_encodable(run: Any, trajectory: Trajectory, codec: ChatCodec | None) -> str | None:
    """Return why an episode's rows cannot be encoded again; None if they can."""
    if codec is None:
        return "no tokenizer is stored with the run (save the model, or a checkpoint)"
    if "context_fn" in run["unknown"] or any(turn.is_summary for turn in trajectory.turns):
        return "a context_fn chose the messages, and functions are not stored"
    if any(turn.row < 0 for turn in trajectory.turns) and "fork" not in trajectory.metadata:
        return "turns without tokens"
    if "fork" in trajectory.metadata:
        return "branches of other episodes are not encoded again"
    if trajectory.status != "ok":
        return "episodes without a score are not encoded again"
    return None


def _replies_agree(audit: Audit, trajectory: Trajectory, codec: ChatCodec, where: dict[str, Any]) -> bool:
    """Compare the text and the last token of each reply."""
    said = [m for m in trajectory.messages if m.role == "assistant"][trajectory.n_example_replies :]
    is_equal = True
    for index, (turn, message) in enumerate(zip(trajectory.turns, said, strict=False)):
        ids = trajectory.rows[turn.row].ids[slice(*trajectory.rows[turn.row].spans[turn.span])]
        shown: dict[str, Any] = {"by": ChatCodec.decode_reply, "turn": index, "unit": "tokens", **where}
        is_equal &= audit.compare("tokens", message.content, codec.decode_reply(ids), what="text of a reply", **shown)
        if turn.finish_reason is FinishReason.STOP:
            last = int(ids[-1]) if len(ids) else None
            expected = last if last in codec.stop_token_ids else codec.end_of_turn_id
            is_equal &= audit.compare("tokens", last, expected, what="last token of a reply that stopped", **shown)
    return is_equal


def rebuild_rows(
    trajectory: Trajectory, codec: ChatCodec, history: Any, limits: RolloutLimits, max_model_len: int | None
) -> tuple[Row, ...]:
    """Return an episode's rows, made of its messages by the codec; only sampled ids are taken from the stored rows.

    Args:
        trajectory: A scored episode, with one span for each turn.
        codec: The run's codec.
        history: The run's `TokenTranscript` history.
        limits: The limits that cut a row.
        max_model_len: The policy's context in tokens.
    """
    transcript, messages = TokenTranscript(codec, history), list(trajectory.messages)
    first = [i for i, m in enumerate(messages) if m.role == "assistant"][trajectory.n_example_replies]
    transcript.begin(messages[:first], trajectory.tools)
    observed: tuple[Message, ...] = ()
    rest = messages[first:]
    for index, turn in enumerate(trajectory.turns):
        if index:
            transcript.append_observation(observed)
        row = trajectory.rows[turn.row]
        span = slice(*row.spans[turn.span])
        transcript.append_reply(rest[0], row.ids[span], row.logps[span])
        n_observed = next((i for i, m in enumerate(rest[1:]) if m.role == "assistant"), len(rest) - 1)
        observed, rest = tuple(rest[1 : 1 + n_observed]), rest[1 + n_observed :]
    if trajectory.stop_reason is not StopReason.TERMINATED and observed:
        transcript.append_final_observation(observed)
        transcript.cut(row_limit(limits, transcript.row.prompt_length, transcript.earlier_tokens))
        transcript.cut(max_model_len)
    return transcript.rows()


def _first_difference(one: Row, other: Row) -> int | None:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one.ids[:length] != other.ids[:length])
    if len(differs):
        return int(differs[0])
    return None if len(one) == len(other) else length


def _ids_at(row: Row, place: int | None) -> list[int]:
    """Return a few ids from a place on."""
    return [] if place is None else row.ids[place : place + 8].tolist()


def _name(trajectory: Trajectory) -> str:
    return f"{trajectory.group_id}/{trajectory.member}"
