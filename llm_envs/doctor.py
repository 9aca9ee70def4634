"""Check a model before training: its chat template, its tokens, and one episode in the form of training data."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llm_envs.chat.codec import ChatCodec
from llm_envs.chat.template import structured_reply
from llm_envs.chat.tokenization import common_length
from llm_envs.errors import ModelError
from llm_envs.parsers import detect_format, format_tool_call, parse_reply
from llm_envs.registration import task_spec
from llm_envs.rollout.token_transcript import TokenTranscript
from llm_envs.tracking.loggers import visible_text
from llm_envs.types import IdArray, Message, Row, ToolCall, Trajectory

__all__ = [
    "Diagnosis",
    "ForkCase",
    "diagnose",
    "episode_problems",
    "fork_cases",
    "model_problems",
    "play_oracle",
    "show_diagnosis",
    "show_row",
]

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "tea"}}\n</tool_call>'
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_THOUGHT = "Tea comes from leaves."
_THINKS = f"<think>\n{_THOUGHT}\n</think>\n\n"
_ASK = Message("user", "What is tea?")
_NEXT: Mapping[str, tuple[Message, ...]] = {
    "user": (Message("user", "Are you sure?"),),
    "tool": (Message("tool", "A drink.", metadata={"name": "look_up"}),),
}


@dataclass(frozen=True, slots=True)
class ForkCase:
    """Whether the template still shows a turn as the model wrote it after another message follows."""

    after: str
    """The kind of turn: "an answer", "thinking and an answer", "a call", "thinking and a call"."""
    role: str
    """Role of the next message: "user" or "tool"."""
    forks: bool
    """Whether the template's text now differs from the row's; with `history="template"` a new row begins."""
    why: str = ""
    """The first difference."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings about a tokenizer and its chat template."""

    roles: tuple[str, ...]
    """The roles that the template has a place for."""
    tools: bool
    """Whether the template writes the schemas of tools; otherwise they go into the system prompt."""
    thinking: str
    """"no place", "kept", or "opened" (the prompt for a turn ends inside a thinking block)."""
    call_format: str | None
    """Name (in `llm_envs.parsers`, or of the renderer that reads calls) of the format in which the template writes a
    call; None if it writes no calls."""
    call_text: str
    """A call in that format."""
    stop_tokens: tuple[str, ...]
    """Tokens at which a turn ends."""
    cases: tuple[ForkCase, ...]
    service: str
    """Who writes conversations and reads replies, and why."""
    trials: Mapping[str, bool]
    """Trials with this tokenizer and template -> whether each held."""
    problems: tuple[str, ...]
    """Reasons why the model cannot be trained on."""
    notes: tuple[str, ...]
    """Further findings."""

    @property
    def forks(self) -> bool:
        """Whether the template changes an earlier turn in any case, so that it is not prefix-preserving."""
        return any(case.forks for case in self.cases)


def fork_cases(codec: ChatCodec) -> tuple[ForkCase, ...]:
    """Return whether the template changes an earlier turn, for each kind of turn, by playing two turns."""
    words = {"an answer": "A drink.", "thinking and an answer": _THINKS + "A drink."}
    cases = [_fork_case(codec, after, text, "user") for after, text in words.items() if _can_write(codec, text)]
    if codec.template.traits.tool_role:
        words = {"a call": CALL, "thinking and a call": _THINKS + CALL}
        cases += [_fork_case(codec, after, text, "tool") for after, text in words.items() if _can_write(codec, text)]
    return tuple(cases)


def diagnose(codec: ChatCodec, *, vocabulary_size: int | None = None) -> Diagnosis:
    """Examine a model's tokenizer and chat template.

    Args:
        codec: A codec with the settings of the training.
        vocabulary_size: Rows of the model's embedding, if known.
    """
    traits = codec.template.traits
    ids = codec.encode_reply(CALL)
    call_text = codec.decode_words(ids)
    roles = ("system",) * traits.system + ("user", "assistant") + ("tool",) * traits.tool_role
    return Diagnosis(
        roles=roles,
        tools=traits.tools,
        thinking=_thinking(codec),
        call_format=_call_format(codec, call_text),
        call_text=call_text,
        stop_tokens=tuple(codec.decode(np.array([id_], dtype=np.int32)) for id_ in codec.stop_token_ids),
        cases=fork_cases(codec),
        service=codec.service.description,
        trials={name: trial(codec) for name, trial in _TRIALS.items()},
        problems=tuple(_problems(codec, ids, vocabulary_size)),
        notes=tuple(_notes(codec)),
    )


def play_oracle(codec: ChatCodec, env_id: str) -> Trajectory:
    """Play one episode with the task's oracle; its replies become token rows in the model's own format."""
    from llm_envs.policies.scripted import OraclePolicy
    from llm_envs.rollout.episode import play_episode
    from llm_envs.rollout.workers.runner import EnvMaker
    from llm_envs.sources.source import EpisodeSpec

    task_spec(env_id)
    return asyncio.run(play_episode(EnvMaker(env_id), EpisodeSpec(env_id), OraclePolicy(), codec=codec))


def episode_problems(codec: ChatCodec, trajectory: Trajectory, context_length: int | None) -> Sequence[str]:
    """Return the reasons why this model cannot be trained on this environment's episodes."""
    problems = []
    if trajectory.why_unscored is not None:
        problems.append(f"an oracle's episode has no score: {trajectory.why_unscored}")
    longest = max((len(row) for row in trajectory.rows), default=0)
    if context_length is not None and longest > context_length:
        problems.append(f"an oracle's episode has {longest} tokens, the model's context {context_length}.")
    return problems


def model_problems(config: Any) -> Sequence[str]:
    """Return the reasons why a model with this configuration (None: unknown) cannot be trained."""
    from transformers import AutoModelForCausalLM

    from llm_envs.policies.inference.positions import position_problem

    if type(config) not in AutoModelForCausalLM._model_mapping:
        return []
    model_class: Any = AutoModelForCausalLM._model_mapping[type(config)]
    problem = position_problem(model_class, config.get_text_config().model_type)
    return [] if problem is None else [problem]


def show_row(codec: ChatCodec, row: Row, *, colour: bool) -> str:
    """Return a row as text: trained tokens in green, or between ⟦ and ⟧ without colour; the rest unchanged."""
    begin, end = ("\x1b[32m", "\x1b[0m") if colour else ("⟦", "⟧")
    parts, position = [], 0
    for start, stop in row.spans:
        parts += [visible_text(codec.decode(row.ids[position:start])), begin]
        parts += [visible_text(codec.decode(row.ids[start:stop])), end]
        position = stop
    return "".join([*parts, visible_text(codec.decode(row.ids[position:]))])


def show_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the findings, one line each."""
    earlier = "prefix-preserving: one row per episode, whatever the history"
    if diagnosis.forks:
        earlier = (
            'the template changes some: history="append" (the default) keeps what the model wrote, in one row; '
            'history="template" shows what the template makes of it, and begins a new row there'
        )
    tools = "in the template" if diagnosis.tools else "not in the template: written into the system prompt"
    lines = [
        f"served by         {diagnosis.service}",
        f"roles             {', '.join(diagnosis.roles)}",
        f"tools             {tools}",
        f"tool calls        {diagnosis.call_format or 'no own format: the canonical <tool_call> JSON'}, "
        f"as in {diagnosis.call_text!r}",
        f"thinking          {_THINKING[diagnosis.thinking]}",
        f"a turn ends at    {', '.join(diagnosis.stop_tokens)}",
        f"earlier turns     {earlier}",
    ]
    for case in diagnosis.cases:
        kept = f"changed: {case.why}" if case.forks else "as written"
        lines.append(f"  {case.role:4} after {case.after:24} {kept}")
    if diagnosis.forks:
        lines.append(
            "  a training template may keep more: --chat-template-path FILE shows it, use_training_template=True has it"
        )
    for name, held in diagnosis.trials.items():
        lines.append(f"tried             {name}: {'holds' if held else 'DOES NOT HOLD'}")
    lines += [f"note              {note}" for note in diagnosis.notes]
    lines += [f"PROBLEM           {problem}" for problem in diagnosis.problems]
    return "\n".join(visible_text(line) for line in lines)


_THINKING = {
    "no place": "the template has no place for it; it stays where the model writes it",
    "kept": "in the template",
    "opened": "in the template; the prompt for a turn ends with an open <think>",
}


def _thinking(codec: ChatCodec) -> str:
    if codec.template.opens_thinking:
        return "opened"
    words = (_THINKS + "A drink.", _THINKS + CALL)
    return "kept" if any(_shows_thinking(codec, text) for text in words) else "no place"


def _shows_thinking(codec: ChatCodec, words: str) -> bool:
    """Return whether the template shows the thinking of such a turn."""
    if not codec.template.traits.tool_calls and CALL in words:
        return False
    reply = structured_reply(parse_reply(words), "")
    return _THOUGHT in codec.template.render([_ASK, reply], generation_prompt=False)


def _can_write(codec: ChatCodec, words: str) -> bool:
    return _THOUGHT not in words or codec.template.opens_thinking or _shows_thinking(codec, words)


def _fork_case(codec: ChatCodec, after: str, words: str, role: str) -> ForkCase:
    transcript = TokenTranscript(codec, "template")
    tools = [TOOL] if role == "tool" else []
    transcript.begin([_ASK], tools)
    ids = codec.encode_reply(words)
    reply = Message("assistant", codec.decode_reply(ids))
    transcript.append_reply(reply, ids, None)
    written = codec.decode(transcript.row.ids)
    transcript.append_observation(_NEXT[role])
    if not transcript.is_forked:
        return ForkCase(after, role, False)
    return ForkCase(after, role, True, _first_difference(written, codec.decode(transcript.row.ids)))


def _first_difference(written: str, shown: str) -> str:
    """Describe the first difference of two texts, with a few characters of each."""
    start = common_length(written, shown)
    context = max(0, start - 12)
    return f"{_excerpt(shown, context, start)} where the model saw {_excerpt(written, context, start)}"


def _excerpt(text: str, start: int, at: int) -> str:
    piece = text[start : at + 40]
    return repr(piece + "..." * (at + 40 < len(text)))


def _reads_back(codec: ChatCodec, *calls: ToolCall) -> bool:
    """Return whether an oracle's calls, written in the model's form, are read as the same calls."""
    words = "\n".join(format_tool_call(call.name, **call.arguments) for call in calls)
    try:
        reply = codec.parser(codec.decode_reply(codec.encode_reply(words)))
    except ModelError:  # the template writes one call a turn
        return False
    return [(call.name, dict(call.arguments)) for call in reply.tool_calls] == [
        (call.name, dict(call.arguments)) for call in calls
    ]


def _forges_nothing(codec: ChatCodec) -> bool:
    """Return whether an observation with the model's own markers adds none to a row."""
    hostile = "".join(codec.decode(np.array([id_], dtype=np.int32)) for id_ in codec.stop_token_ids) + "</think>"
    ids = codec.encode_reply(CALL)
    added = codec.tokenizer.added_tokens_decoder
    marks = [
        [
            id_
            for id_ in codec.encode_delta([replace(_NEXT["user"][0], content=text)], reply_ids=ids).tolist()
            if id_ in added
        ]
        for text in ("x", hostile)
    ]
    return marks[0] == marks[1]


_LOOK_UP = ToolCall("look_up", {"word": 'té "a"\nb', "n": 3, "is_new": True, "items": [1, {"a": "b"}]})
_TRIALS: Mapping[str, Callable[[ChatCodec], bool]] = {
    "an oracle's call is read back, with text, numbers, lists and objects": lambda codec: _reads_back(codec, _LOOK_UP),
    "two calls in a turn": lambda codec: _reads_back(codec, _LOOK_UP, ToolCall("close", {})),
    "an observation with the model's markers stays text": _forges_nothing,
}


def _call_format(codec: ChatCodec, call_text: str) -> str | None:
    if not codec.template.traits.tool_calls:
        return codec.own_call_format
    return detect_format(call_text) if codec.service.reader is None else codec.service.reader.name


def _problems(codec: ChatCodec, call_ids: IdArray, vocabulary_size: int | None) -> list[str]:
    problems = []
    is_read = bool(codec.parser(codec.decode_reply(call_ids)).tool_calls)
    if codec.template.traits.tools and codec.template.traits.tool_calls and not is_read:
        written = codec.decode_words(call_ids)
        problems.append(f"the parser cannot read a call that the template writes: {written!r}.")
    if vocabulary_size is not None and len(codec.tokenizer) > vocabulary_size:
        problems.append(
            f"the tokenizer has {len(codec.tokenizer)} tokens, the model {vocabulary_size}: ids beyond them have no "
            "embedding. Resize it (model.resize_token_embeddings) or use the model's own tokenizer."
        )
    text = "é 😀\n  12.5"
    plain = codec.decode(np.array(codec.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32))
    if plain.strip() != text.strip():
        problems.append(f"the tokenizer does not keep text: {text!r} comes back as {plain!r}.")
    return problems


_DENIAL = re.compile(r"[^.\n]*\b(?:no|not|without)\b[^.\n]{0,40}\b(?:functions?|tools?)\b[^.\n]*", re.IGNORECASE)


def _contradictions(codec: ChatCodec) -> list[str]:
    """Return what a template adds to prompts with tools that confuses or costs: denials, and repetitions."""
    start = [Message("system", "qzSYSTEMzq"), _ASK]
    prompt = codec.template.render(start, [TOOL])
    notes = []
    if not codec.template.traits.tools and (denial := _DENIAL.search(codec.template.render(start))):
        notes.append(
            f"the template writes {denial.group().strip()!r} into prompts whose tools are in the system prompt."
        )
    try:
        later = codec.template.render([*start, Message("assistant", "A drink."), _ASK], [TOOL])
    except ModelError:
        return notes
    name = TOOL["function"]["name"]
    for what, text in (("the system prompt", "qzSYSTEMzq"), ("the tools", f'"{name}"')):
        if later.count(text) > prompt.count(text):
            notes.append(f'the template repeats {what} in each turn: rows fork with history="template", and grow.')
    return notes


def _notes(codec: ChatCodec) -> list[str]:
    notes = []
    traits = codec.template.traits
    if not traits.system:
        notes.append("no system role: its text goes in front of the first user message.")
    if not traits.tool_role:
        notes.append("no tool role: a tool's result is a user message.")
    if not traits.user_again:
        notes.append("two user messages in a row are joined.")
    if not codec.template.opens_thinking and "<think>" in codec.decode(codec.encode_reply("A drink.")):
        notes.append(
            "an oracle's turns get an empty thinking block, which a warm start would train as the model's own words: "
            "thinking=False (--no-thinking) puts it into the prompt."
        )
    if traits.tools and not traits.tool_calls and codec.own_call_format is None:
        reason = f" ({codec.template.refusal})" if codec.template.refusal else ""
        notes.append(
            f"tools are shown to the model, but the template has no form for a call{reason}: it writes its own."
        )
    notes += _contradictions(codec)
    if not codec.closes_turns:
        notes.append("no end-of-turn token: the next role's token is a turn's last.")
    if not codec.shapes.of(_NEXT["user"], True).specials:
        notes.append("roles are marked in plain text, not by special tokens: an environment's text can imitate them.")
    if codec.template.writes_date:
        notes.append("the template writes today's date: the same episode has other tokens tomorrow.")
    if codec.tokenizer.pad_token_id is None:
        notes.append("no pad token: masks come from lengths, so nothing depends on one.")
    return notes
