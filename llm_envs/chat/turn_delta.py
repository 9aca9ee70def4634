"""The text that a chat template writes between an assistant's turn and the next, cached for each shape of messages.

A shape is the roles and names of an environment's messages. For each shape a placeholder conversation is rendered, with
and without the messages after the assistant's turn. That shows how the turn is closed, the text before and after each
content, and how the template treats a content. Later turns of the shape need no rendering.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from llm_envs.chat.template import ChatTemplate
from llm_envs.chat.tokenization import WORD, SafeTokenizer, common_length
from llm_envs.errors import ModelError
from llm_envs.types import IdArray, Message, ToolCall

__all__ = ["ASK", "Start", "TurnShape", "TurnShapes", "as_users", "plainly_named"]


ASK = Message("user", "x")
"""A placeholder question."""
_UNUSUAL = re.compile(r"[^A-Za-z0-9_./:-]")  # in a tool's name, which the model may have invented
_MAX_SHAPES = 256  # Invented tool names give ever new shapes; the oldest ones are dropped and computed again.


@dataclass(frozen=True, slots=True)
class Start:
    """The part before all turns. A template's output may depend on the system prompt and the tools."""

    messages: tuple[Message, ...] = (ASK,)
    tools: tuple[Mapping[str, Any], ...] = ()
    key: str = ""
    """A cache key that identifies them."""

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Start:
        """Return the start of a conversation."""
        system = messages[:1] if messages and messages[0].role == "system" else []
        shown = tuple(dict(tool) for tool in tools)
        key = json.dumps([[message.content for message in system], shown], sort_keys=True)
        return cls((*system, ASK), shown, key)


@dataclass(frozen=True, slots=True)
class TurnShape:
    """The template's text between an assistant's turn and the next, for messages of certain roles and names."""

    skip: int
    """Number of characters after the turn's last word that belong to the turn, including its closing."""
    anchor: str
    """Spelling of the closing's last token."""
    closing_ids: tuple[int, ...]
    """The ids that close a turn before these messages."""
    own_end: int
    """The id with which the model itself ends such a turn."""
    ends_with_next_role: bool = False
    before: Message = ASK
    """A turn that the messages can follow."""
    start: Start = field(default_factory=Start)
    as_users: bool = False
    """Whether tool results and system messages become user messages, because the template drops or refuses them."""
    specials: list[int] = field(default_factory=list)
    """The special tokens of the text between the turns."""
    pieces: tuple[tuple[str, str], ...] | None = None
    """For each content, the text before it and its treatment, then the final text; None if unknown."""

    def fill(self, messages: Sequence[Message]) -> str | None:
        """Return the text after the closing, with these messages' contents; None if it must be rendered."""
        if self.pieces is None:
            return None
        parts = []
        for (before, treatment), message in zip(self.pieces, messages, strict=False):
            parts += [before, _TREATMENTS[treatment](message.content)]
        return "".join([*parts, self.pieces[-1][0]])

    def missing(self, reply_ids: IdArray) -> tuple[int, ...]:
        """Return the closing ids that a turn still lacks."""
        closing = self.closing_ids
        if len(reply_ids) and int(reply_ids[-1]) in (closing[-1], self.own_end):
            return ()
        # A token limit may have cut the turn inside its closing: add only the rest.
        for n_there in range(min(len(closing) - 1, len(reply_ids)), 0, -1):
            if tuple(reply_ids[-n_there:].tolist()) == closing[:n_there]:
                return closing[n_there:]
        return closing


class TurnShapes:
    """Determines and caches the text that a template writes around environment messages.

    Args:
        template: The chat template.

    Raises:
        ModelError: If the template ends an assistant's turn without a special token.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.text = SafeTokenizer(template.tokenizer, self._structure, template.source)
        self._shapes: OrderedDict[object, TurnShape] = OrderedDict()

    def of(self, messages: tuple[Message, ...], generation_prompt: bool, start: Start | None = None) -> TurnShape:
        """Return the shape of these messages, with or without the start of the assistant's next turn."""
        start = start or Start()
        if any(m.role == "assistant" or m.tool_calls or m.metadata.keys() - {"name"} for m in messages):
            return self._find(messages, generation_prompt, start, is_kept=False)  # the shape does not determine these
        probed = tuple(
            (m.role, m.tool_call_id, m.metadata.get("name"), not m.content or m.content.isspace()) for m in messages
        )
        key = (probed, generation_prompt, start.key)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._find(messages, generation_prompt, start)
            if len(self._shapes) > _MAX_SHAPES:
                self._shapes.popitem(last=False)
        return shape

    def _find(
        self, messages: tuple[Message, ...], generation_prompt: bool, start: Start, *, is_kept: bool = True
    ) -> TurnShape:
        harmless = [replace(m, content=WORD if m.content.strip() else m.content) for m in messages]
        before, ending = self._turn_before(harmless, generation_prompt, start)
        is_all_shown = self._follow([*start.messages, before], harmless, start)
        if not is_all_shown:  # the template drops or refuses these roles after a turn
            harmless = as_users(harmless)
            before, ending = self._turn_before(harmless, generation_prompt, start)
        conversation = [*start.messages, before, *harmless]
        followed = _behind(self.template.render(conversation, start.tools, generation_prompt=generation_prompt))
        shape = self._find_closing(ending, followed, calls=bool(before.tool_calls))
        shape = replace(shape, before=before, as_users=not is_all_shown, start=start)
        text = self.following(harmless, shape, generation_prompt)
        shape = replace(shape, specials=self.text.specials(self.text.encode(text, shape.anchor)))
        return replace(shape, pieces=self._find_pieces(harmless, shape, generation_prompt)) if is_kept else shape

    def _turn_before(self, messages: Sequence[Message], generation_prompt: bool, start: Start) -> tuple[Message, str]:
        """Return an assistant's turn that these messages can follow, and the template's text at its end."""
        names = []
        for message in messages:
            if message.role != "tool":
                break
            names.append((str(message.metadata.get("name") or "look_up"), message.tool_call_id))
        turns = [Message("assistant", WORD)]
        if names and self.template.traits.tool_calls:
            calls = [ToolCall(name, {"x": "y"}, id_) for name, id_ in names]
            several = (*calls[:-1], replace(calls[-1], arguments={"x": WORD}))
            one = (replace(calls[0], arguments={"x": WORD}),)
            turns = [Message("assistant", "", several), Message("assistant", "", one), *turns]
        begun, tools = start.messages, start.tools
        for turn in turns[:-1]:
            try:
                conversation = [*begun, turn, *messages]
                _behind(self.template.render(conversation, tools, generation_prompt=generation_prompt))
                return turn, _behind(self.template.render([*begun, turn], tools, generation_prompt=False))
            except ModelError:  # e.g. several calls in a turn: Llama refuses them, GPT-OSS drops them
                continue
        return turns[-1], _behind(self.template.render([*begun, turns[-1]], tools, generation_prompt=False))

    def _find_closing(self, ending: str, followed: str, *, calls: bool) -> TurnShape:
        """Compare the end of a last turn with the end of a turn with messages after it: the common part closes it."""
        ends, continued = self.text.pieces(ending), self.text.pieces(followed)
        special = [self.text.marked_special.__contains__(piece) for piece in ends]
        n_common = common_length(ends, continued)
        last = max((i for i, is_special in enumerate(special) if is_special), default=-1)
        if last < 0 or (calls and not self._closes_answers() and ends[last] != self._before_user.anchor):
            return self._closed_by_next_role(followed, ends, continued, n_common)
        common = [i for i in range(n_common) if special[i]]
        if last < n_common or (common and not calls):
            at = last if last < n_common else common[-1]
            closing = ends[at : at + 1] if calls else ends[: at + 1]
            own_end = ends[at]
        else:  # the template closes a last turn with a different token (GPT-OSS)
            at = next(i for i, p in enumerate(continued) if i >= n_common and p in self.text.marked_special)
            closing, own_end = continued[at : at + 1], ends[last if calls else special.index(True)]
        return TurnShape(
            skip=len("".join(continued[: at + 1])),
            anchor=continued[at],
            closing_ids=tuple(self.text.encode("".join(closing)).tolist()),
            own_end=self.text.id_of(own_end),
        )

    def _closed_by_next_role(self, followed: str, ends: list[str], continued: list[str], n_common: int) -> TurnShape:
        """Return the shape for a template without an end-of-turn token: the next role's token ends the turn."""
        for at, piece in enumerate(continued):
            if at >= min(n_common, len(ends)) and piece in self.text.marked_special:
                return TurnShape(
                    skip=len("".join(continued[: at + 1])),
                    anchor=piece,
                    closing_ids=(self.text.id_of(piece),),
                    own_end=self.text.id_of(piece),
                    ends_with_next_role=True,
                )
        raise ModelError(
            f"the chat template of {self.template.tokenizer.name_or_path!r} ends an assistant turn with "
            f"{followed[:40]!r}, which has no special token: a turn would never end. Give template and tokenizer an "
            "end-of-turn token."
        )

    @cached_property
    def answer_end(self) -> str:
        """The template's text after the last words of a final answer."""
        return _behind(self.template.render([ASK, Message("assistant", WORD)], generation_prompt=False))

    @property
    def _before_user(self) -> TurnShape:
        return self.of((Message("user", WORD),), True)

    def _closes_answers(self) -> bool:
        return any(piece in self.text.marked_special for piece in self.text.pieces(self.answer_end))

    def following(self, messages: Sequence[Message], shape: TurnShape, generation_prompt: bool) -> str:
        """Render the text after the closing of an assistant's turn."""
        if shape.as_users:
            messages = as_users(messages)
        conversation = [*shape.start.messages, shape.before, *messages]
        rendered = self.template.render(conversation, shape.start.tools, generation_prompt=generation_prompt)
        return rendered[rendered.index(WORD) + len(WORD) :][shape.skip :]

    def _find_pieces(
        self, messages: Sequence[Message], shape: TurnShape, generation_prompt: bool
    ) -> tuple[tuple[str, str], ...] | None:
        """Return, for each content, the text before it and its treatment, then the final text.

        None if the template treats a content in a way that `_TREATMENTS` does not have.
        """
        if any(not message.content.strip() for message in messages):
            return None
        words = [f"{WORD}{i}" for i in range(len(messages))]
        probed = _with_contents(messages, _PROBES[0], words)
        rest = self.following(probed, shape, generation_prompt)
        pieces = []
        for message in probed:
            for name, treat in _TREATMENTS.items():
                before, found, after = rest.partition(treat(message.content))
                if found:
                    pieces.append((before, name))
                    rest = after
                    break
            else:
                return None
        filled = replace(shape, pieces=(*pieces, (rest, "")))
        for probe in _PROBES:  # if the output depends on the content, the text must be rendered every time
            probed = _with_contents(messages, probe, words)
            if filled.fill(probed) != self.following(probed, shape, generation_prompt):
                return None
        return filled.pieces

    def _structure(self) -> str:
        """Return a text with every token that the template itself writes around messages."""
        conversation = [Message("system", WORD), ASK, Message("assistant", WORD), Message("user", WORD)]
        texts = [self.template.render(conversation)]
        if self.template.traits.tool_role:
            results = [Message("tool", WORD, tool_call_id="qz0000000", metadata={"name": "look_up"})]
            turn, ending = self._turn_before(results, True, Start())
            followed = _behind(self.template.render([ASK, turn, *results]))
            texts.append(followed[common_length(ending, followed) :])
        return "".join(texts)

    def _follow(self, begun: Sequence[Message], messages: Sequence[Message], start: Start) -> bool:
        """Return whether the template shows every one of these messages, after the conversation so far."""
        told = [replace(m, content=f"{WORD}{i}z" if m.content.strip() else m.content) for i, m in enumerate(messages)]
        try:
            text = _behind(self.template.render([*begun, *told], start.tools))
        except ModelError:
            return False
        return all(message.content in text for message in told if message.content.strip())

    def shows_all(self, messages: Sequence[Message]) -> bool:
        """Return whether the template shows the content of every message except the assistant's."""
        harmless = [
            replace(message, content=f"{WORD}{index}z")
            if message.role != "assistant" and message.content.strip()
            else message
            for index, message in enumerate(messages)
        ]
        try:
            text = self.template.render(harmless)
        except ModelError:
            return False
        return all(new.content in text for new, old in zip(harmless, messages, strict=True) if new is not old)


# Contents that templates may treat in special ways; {} is a placeholder word.
_PROBES = (
    " \n\"{}\té<'&\\ \n ",
    "{}",
    '{{"a": "{}"}}',
    "[{}]",
    "Error: {}",
    "<think>x</think> {}",
    "</think>{}",
    "\u00a0\u2003{}\x0b\u00a0",
    "a\r\nb {}\n",
    "{}" + " and more" * 500,
)

# The ways in which templates treat a content. Longer results come first, because one contains another.
_TREATMENTS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "rstrip": str.rstrip,
    "lstrip": str.lstrip,
    "strip": str.strip,
    "json": lambda text: json.dumps(text, ensure_ascii=False),
    "json of strip": lambda text: json.dumps(text.strip(), ensure_ascii=False),
}


def plainly_named(message: Message) -> Message:
    """Return a message whose tool name and id, which are rendered as structure, cannot spell a special token."""
    name, id_ = message.metadata.get("name"), message.tool_call_id
    if (name is None or not _UNUSUAL.search(str(name))) and (id_ is None or not _UNUSUAL.search(id_)):
        return message
    plain = {} if name is None else {"name": _UNUSUAL.sub("_", str(name))}
    return replace(
        message,
        tool_call_id=None if id_ is None else _UNUSUAL.sub("_", id_),
        metadata={**message.metadata, **plain},
    )


def as_users(messages: Sequence[Message], *, keep_first: bool = False) -> list[Message]:
    """Return messages with tool results and system messages as user messages; `keep_first` keeps the system prompt."""
    return [
        Message("user", message.content)
        if message.role == "tool" or (message.role == "system" and not (keep_first and index == 0))
        else message
        for index, message in enumerate(messages)
    ]


def _with_contents(messages: Sequence[Message], probe: str, words: Sequence[str]) -> list[Message]:
    return [replace(message, content=probe.format(word)) for message, word in zip(messages, words, strict=True)]


def _behind(rendered: str) -> str:
    """Return the text after the first placeholder word: the end of the assistant's turn and everything after it."""
    _, found, after = rendered.partition(WORD)
    if not found:
        raise ModelError(f"the chat template does not show assistant messages: it writes {rendered[-80:]!r}.")
    return after
