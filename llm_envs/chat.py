"""Messages to token ids, appended turn by turn.

The first prompt is encoded with the model's own chat template. After that only what the environment says is encoded:
what the template writes between the end of an assistant's turn and the start of the next. What the model sampled is
never encoded again.

1. What stands between two turns is found out once for each shape of messages (their roles and names), by rendering a
   conversation of that shape; a turn then costs its own new tokens, whatever the length of the history.
2. Nothing that an environment says becomes a special token: the special tokens of what was encoded are compared with
   those of the same conversation in harmless words, and where they differ the words are encoded as plain text.
3. A turn that ended without the token with which the template closes it is closed before anything follows.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from llm_envs.chat_template import ChatTemplate, structured_reply
from llm_envs.errors import ModelError
from llm_envs.parsers import ParsedReply, parse_reply
from llm_envs.tokenization import Masked, SafeTokenizer, common_length
from llm_envs.types import Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatCodec"]

IdArray = npt.NDArray[np.int32]
Schema = Mapping[str, Any]

_WORD = "qzWORDzq"  # Harmless: letters alone.
_ASK = Message("user", "x")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_./:-]")  # in the name of a tool, which the model may have made up
_MAX_SHAPES = 256  # A model that makes up tool names makes up shapes; older ones are found out again.


class ChatCodec:
    """Encodes conversations for one tokenizer and its chat template.

    Args:
        tokenizer: A tokenizer with a chat template.
        thinking: Passed to the template as `enable_thinking`; None leaves the template's default.
        chat_template: A Jinja template in place of the tokenizer's own (a training template).
        template_kwargs: Further settings for the template (`reasoning_effort`, ...).
        parser: Takes an assistant's text apart, where the template wants its parts: for an oracle's words, and for
            earlier turns when a history is rendered anew.

    Raises:
        ModelError: If there is no chat template, or the template ends an assistant turn without a special token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        thinking: bool | None = None,
        chat_template: str | None = None,
        template_kwargs: Schema | None = None,
        parser: Callable[[str], ParsedReply] = parse_reply,
    ) -> None:
        kwargs = ({} if thinking is None else {"enable_thinking": thinking}) | dict(template_kwargs or {})
        self.tokenizer = tokenizer
        self.parser = parser
        self.template = ChatTemplate(tokenizer, template=chat_template, kwargs=kwargs)
        self._text = SafeTokenizer(tokenizer, self._structure)
        self._shapes: OrderedDict[object, _Shape] = OrderedDict()
        self._prompt_specials: OrderedDict[object, list[int]] = OrderedDict()
        after_answer = self._shape((Message("user", _WORD),), True)
        ends = [after_answer.own_end]
        if self.template.traits.tool_role:
            ends.append(self._shape((Message("tool", _WORD, metadata={"name": "look_up"}),), True).own_end)
        self.end_of_turn_id: int = ends[0]
        """Id of the token with which the model closes its last turn."""
        self.end_of_call_id: int = ends[-1]
        """Id of the token with which the model closes a turn that calls a tool; often the same."""
        self.end_of_turn_text = str(tokenizer.decode([self.end_of_turn_id], skip_special_tokens=False))
        eos_id = tokenizer.eos_token_id
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ends + ([] if eos_id is None else [eos_id])))
        """Ids at which sampling a turn ends: the end-of-turn token first."""
        self._closing_ids = after_answer.closing_ids

    @property
    def closes_turns(self) -> bool:
        """Whether the template closes a turn with a token of its own; else the next role's token ends it (GLM)."""
        return not self._shape((Message("user", _WORD),), True).ends_with_next_role

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> IdArray:
        """Encode a conversation from its start, ready for the assistant's next turn.

        Args:
            messages: System prompt and first observation(s); for a new row also earlier turns, which become context.
            tools: JSON Schemas of the tools, rendered by the template.

        Returns:
            Token ids, shape (T,).
        """
        given = self._as_history(messages)

        def render(messages: Sequence[Message], tools: Sequence[Schema]) -> str:
            return self.template.render(messages, tools)

        expected = self._expected_specials(given, tools)
        ids = self._encode_as_it_is(lambda: render(given, tools), expected)
        return self._encode_plainly(render, given, tools, expected) if ids is None else ids

    def encode_delta(
        self, messages: Sequence[Message], *, reply_ids: IdArray, generation_prompt: bool = True
    ) -> IdArray:
        """Encode what stands between an assistant turn and the next one.

        Args:
            messages: What the environment said since the assistant's turn, at least one message.
            reply_ids: The turn's own ids, shape (T,): if they are not closed, the closing token comes first.
            generation_prompt: Whether the assistant is to answer. False for the last observation of an episode.

        Returns:
            Token ids, shape (T,), all written by the template or the environment.
        """
        messages = [_plainly_named(message) for message in messages]
        shape = self._shape(tuple(messages), generation_prompt)

        def render(messages: Sequence[Message], tools: Sequence[Schema] = ()) -> str:
            return self._following(messages, shape, generation_prompt)

        ids = self._encode_as_it_is(lambda: shape.fill(messages) or render(messages), shape.specials, shape.anchor)
        if ids is None:
            ids = self._encode_plainly(render, messages, (), shape.specials, shape.anchor)
        missing = _missing(reply_ids, shape)
        return np.concatenate([np.array(missing, dtype=np.int32), ids]) if missing else ids

    def encode_reply(self, text: str) -> IdArray:
        """Encode words that stand for an assistant's own (an oracle's) as the template has the model write them.

        Calls and thinking become the model's own format, where the template has one, and the turn is closed. Shape
        (T,).
        """
        has_calls = False
        if self._text.has_marked_spelling(text):
            body = self._text.encode_plain(text)
        else:
            parsed = self.parser(text)
            has_calls = bool(parsed.tool_calls)
            body = self._text.encode(self._own_words(text, parsed))
        closing = [self.end_of_call_id] if has_calls else self._reply_closing()
        return np.concatenate([body, np.array(closing, dtype=np.int32)]).astype(np.int32)

    def decode_reply(self, token_ids: IdArray) -> str:
        """Decode sampled ids to the action: without the tokens that close the turn, other special tokens kept."""
        ids = token_ids.tolist()
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
            before = list(self._closing_ids[:-1])
            if before and ids[-len(before) :] == before:
                del ids[-len(before) :]
        return self.decode(np.array(ids, dtype=np.int32))

    def decode(self, token_ids: IdArray) -> str:
        """Decode ids to text, special tokens included."""
        return str(
            self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def is_continued(self, row_ids: IdArray, prompt_ids: IdArray) -> bool:
        """Return whether a prompt that was encoded anew says the same as a row: then the row can go on."""
        return np.array_equal(row_ids, prompt_ids) or self.decode(row_ids) == self.decode(prompt_ids)

    # Shapes: what the template writes around what an environment says.

    def _shape(self, messages: tuple[Message, ...], generation_prompt: bool) -> _Shape:
        said = tuple(
            (m.role, m.tool_call_id, m.metadata.get("name"), not m.content or m.content.isspace()) for m in messages
        )
        key = (said, generation_prompt)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._find_shape(messages, generation_prompt)
            if len(self._shapes) > _MAX_SHAPES:
                self._shapes.popitem(last=False)
        return shape

    def _find_shape(self, messages: tuple[Message, ...], generation_prompt: bool) -> _Shape:
        harmless = [replace(m, content=_WORD if m.content.strip() else m.content) for m in messages]
        before, alone = self._turn_before(harmless, generation_prompt)
        as_users = not self._shows_all([_ASK, before, *harmless])
        if as_users:
            harmless = [_as_user(message) for message in harmless]
            before, alone = self._turn_before(harmless, generation_prompt)
        followed = _behind(self.template.render([_ASK, before, *harmless], generation_prompt=generation_prompt))
        shape = self._find_closing(alone, followed, calls=bool(before.tool_calls))
        shape = replace(shape, before=before, as_users=as_users)
        text = self._following(harmless, shape, generation_prompt)
        shape = replace(shape, specials=self._text.specials(self._text.encode(text, shape.anchor)))
        filled = replace(shape, pieces=self._find_pieces(harmless, shape, generation_prompt))
        return filled if filled.fill(harmless) == text else shape

    def _turn_before(self, messages: Sequence[Message], generation_prompt: bool) -> tuple[Message, str]:
        """Return an assistant's turn that such messages can follow, and what the template writes at its end."""
        names = []
        for message in messages:
            if message.role != "tool":
                break
            names.append((str(message.metadata.get("name") or "look_up"), message.tool_call_id))
        turns = [Message("assistant", _WORD)]
        if names and self.template.traits.tool_calls:
            calls = [ToolCall(name, {"x": "y"}, id_) for name, id_ in names]
            several = (*calls[:-1], replace(calls[-1], arguments={"x": _WORD}))
            one = (replace(calls[0], arguments={"x": _WORD}),)
            turns = [Message("assistant", "", several), Message("assistant", "", one), *turns]
        for turn in turns[:-1]:
            try:
                _behind(self.template.render([_ASK, turn, *messages], generation_prompt=generation_prompt))
                return turn, _behind(self.template.render([_ASK, turn], generation_prompt=False))
            except ModelError:  # several calls in a turn, say: refused by Llama, dropped by GPT-OSS
                continue
        return turns[-1], _behind(self.template.render([_ASK, turns[-1]], generation_prompt=False))

    def _find_closing(self, alone: str, followed: str, *, calls: bool) -> _Shape:
        """Compare how a turn ends alone and followed by others: what is common closes it."""
        ends, goes_on = self._text.pieces(alone), self._text.pieces(followed)
        special = [self._text.marked_special.__contains__(piece) for piece in ends]
        n_common = common_length(ends, goes_on)
        if not any(special) or (calls and not self._closes_answers()):
            return self._closed_by_next_role(followed, ends, goes_on, n_common)
        last = max(i for i, is_special in enumerate(special) if is_special)
        common = [i for i in range(n_common) if special[i]]
        if last < n_common or (common and not calls):
            at = last if last < n_common else common[-1]
            closing = ends[at : at + 1] if calls else ends[: at + 1]
            own_end = ends[at]
        else:  # the template closes a last turn with another token (GPT-OSS)
            at = next(i for i, p in enumerate(goes_on) if i >= n_common and p in self._text.marked_special)
            closing, own_end = goes_on[at : at + 1], ends[last if calls else special.index(True)]
        return _Shape(
            skip=len("".join(goes_on[: at + 1])),
            anchor=goes_on[at],
            closing_ids=tuple(self._text.encode("".join(closing)).tolist()),
            own_end=self._text.id_of(own_end),
        )

    def _closed_by_next_role(self, followed: str, ends: list[str], goes_on: list[str], n_common: int) -> _Shape:
        """Return the shape of a template without an end-of-turn token: the next role's token is the turn's last."""
        for at, piece in enumerate(goes_on):
            if at >= min(n_common, len(ends)) and piece in self._text.marked_special:
                return _Shape(
                    skip=len("".join(goes_on[: at + 1])),
                    anchor=piece,
                    closing_ids=(self._text.id_of(piece),),
                    own_end=self._text.id_of(piece),
                    ends_with_next_role=True,
                )
        raise ModelError(
            f"the chat template of {self.tokenizer.name_or_path!r} ends an assistant turn with {followed[:40]!r}, "
            "which has no special token: a turn would have no end. Give template and tokenizer an end-of-turn token."
        )

    @cached_property
    def _answer_prompt(self) -> str:
        return self.template.render([_ASK])

    @cached_property
    def _answer_end(self) -> str:
        """What the template writes behind the last words of an answer that nothing follows."""
        return _behind(self.template.render([_ASK, Message("assistant", _WORD)], generation_prompt=False))

    def _closes_answers(self) -> bool:
        return any(piece in self._text.marked_special for piece in self._text.pieces(self._answer_end))

    def _following(self, messages: Sequence[Message], shape: _Shape, generation_prompt: bool) -> str:
        """Render what follows the closing of an assistant's turn."""
        if shape.as_users:
            messages = [_as_user(message) for message in messages]
        rendered = self.template.render([_ASK, shape.before, *messages], generation_prompt=generation_prompt)
        return rendered[rendered.index(_WORD) + len(_WORD) :][shape.skip :]

    def _find_pieces(
        self, messages: Sequence[Message], shape: _Shape, generation_prompt: bool
    ) -> tuple[tuple[str, str], ...] | None:
        """Return the template's text before each content with how it treats it, and its text at the end.

        None where the template does something else with a content than what `_TREATMENTS` has.
        """
        if any(not message.content.strip() for message in messages):
            return None
        probes = [f" \n\"{_WORD}{i}\té<'&\\ \n " for i in range(len(messages))]
        said = [replace(message, content=probe) for message, probe in zip(messages, probes, strict=True)]
        rest = self._following(said, shape, generation_prompt)
        pieces = []
        for probe in probes:
            for name, treat in _TREATMENTS.items():
                before, found, after = rest.partition(treat(probe))
                if found:
                    pieces.append((before, name))
                    rest = after
                    break
            else:
                return None
        return (*pieces, (rest, ""))

    # Safety.

    def _structure(self) -> str:
        """Return text with every token that the template itself writes around messages."""
        said = [Message("system", _WORD), _ASK, Message("assistant", _WORD), Message("user", _WORD)]
        texts = [self.template.render(said)]
        if self.template.traits.tool_role:
            heard = [Message("tool", _WORD, tool_call_id="qz0000000", metadata={"name": "look_up"})]
            turn, alone = self._turn_before(heard, True)
            followed = _behind(self.template.render([_ASK, turn, *heard]))
            texts.append(followed[common_length(alone, followed) :])
        return "".join(texts)

    def _expected_specials(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[int]:
        """Return the special tokens of a prompt in harmless words."""
        has_turns = any(message.role == "assistant" for message in messages)
        said = [(m.role, m.metadata.get("name"), not m.content or m.content.isspace()) for m in messages]
        key = None if has_turns else (tuple(said), json.dumps([dict(tool) for tool in tools], sort_keys=True))
        if key is not None and key in self._prompt_specials:
            return self._prompt_specials[key]
        masked = Masked()
        harmless = [
            _hide(self._text, message, masked)
            if message.role == "assistant" or not message.content.strip()
            else replace(_hide(self._text, message, masked), content=_WORD)
            for message in messages
        ]
        text = self.template.render(harmless, self._text.hide_spellings(list(tools), masked))
        expected = self._text.specials(self._text.encode_masked(text, masked))
        if key is not None:
            self._prompt_specials[key] = expected
            if len(self._prompt_specials) > _MAX_SHAPES:
                self._prompt_specials.popitem(last=False)
        return expected

    def _encode_as_it_is(self, render: Callable[[], str], expected: list[int], anchor: str = "") -> IdArray | None:
        """Encode what the template makes of the very words; None if that has other special tokens than expected.

        A template may refuse certain words (Qwen3.5 a first question in the tags of a tool's result): None too.
        """
        try:
            ids = self._text.encode(render(), anchor)
        except ModelError:
            return None
        return ids if self._text.specials(ids) == expected else None

    def _encode_plainly(
        self,
        render: Callable[[Sequence[Message], Sequence[Schema]], str],
        messages: Sequence[Message],
        tools: Sequence[Schema],
        expected: list[int],
        anchor: str = "",
    ) -> IdArray:
        """Encode words that would become special tokens so that they do not.

        First only the spellings of special tokens are encoded apart. Where that is not enough (a tokenizer that makes
        special tokens of other spellings too), all words are, character by character if need be.
        """
        for whole in (False, True):
            masked = Masked()
            hidden = [
                replace(m, content=masked.hide(m.content)) if whole and m.content.strip() else m for m in messages
            ]
            hidden = [_hide(self._text, message, masked) for message in hidden]
            shown_tools = self._text.hide_spellings(list(tools), masked)
            try:
                ids = self._text.encode_masked(render(hidden, shown_tools), masked, anchor)
            except ModelError:
                if whole:
                    raise
                continue
            if self._text.specials(ids) == expected:
                return ids
        raise ModelError(
            "what the environment says becomes special tokens of the model, in a way that cannot be prevented: special "
            f"tokens {self._text.specials(ids)} where the template alone writes {expected}. Look at tool schemas and "
            "tool names first."
        )

    # The assistant's own words.

    def _as_history(self, messages: Sequence[Message]) -> list[Message]:
        """Return a conversation as the template takes it, every word of its environment shown.

        Earlier turns stay as they were written, unless they have special tokens in them: those are given in parts. Some
        templates show a tool's result only behind a call that is given as one; then calls are. Where that does not
        help either, results are user messages.

        Raises:
            ModelError: If the template refuses the conversation in every form.
        """
        if not any(message.role == "assistant" for message in messages):
            return list(messages)
        parsed = [self.parser(message.content) if message.role == "assistant" else None for message in messages]
        as_written, in_parts, as_users = [], [], []
        for message, reply in zip(messages, parsed, strict=True):
            is_whole = reply is None or message.tool_calls
            parts = message if is_whole else structured_reply(cast("ParsedReply", reply), message.content)
            special = message.role == "assistant" and self._text.has_marked_spelling(message.content)
            as_written.append(parts if special else message)
            in_parts.append(parts if parts.tool_calls else as_written[-1])
            as_users.append(_as_user(as_written[-1]))
        for form in (as_written, in_parts, as_users):
            if self._shows_all(form):
                return form
        self.template.render(as_users)  # says why it refuses
        raise ModelError("the chat template drops what the environment says between earlier turns.")

    def _shows_all(self, messages: Sequence[Message]) -> bool:
        """Return whether the template shows what is said in every message that is not the assistant's."""
        harmless = [
            replace(message, content=f"{_WORD}{index}z")
            if message.role != "assistant" and message.content.strip()
            else message
            for index, message in enumerate(messages)
        ]
        try:
            text = self.template.render(harmless)
        except ModelError:
            return False
        return all(new.content in text for new, old in zip(harmless, messages, strict=True) if new is not old)

    def _own_words(self, text: str, parsed: ParsedReply) -> str:
        """Return what the model itself would write, behind the generation prompt, to say `text`."""
        versions = [Message("assistant", text)]
        has_parts = (parsed.tool_calls and self.template.traits.tool_calls) or (
            parsed.thinking and not parsed.tool_calls
        )
        if has_parts and not parsed.problems:
            versions.insert(0, structured_reply(parsed, text))
        for version in versions:
            words = self._rendered_reply(version)
            if words is not None and all(said in words for said in _said(version, parsed)):
                return words
        if not self.template.opens_thinking:
            return text
        if text.startswith("<think>"):
            return text.removeprefix("<think>").removeprefix(self.template.generation_prompt.rpartition("<think>")[2])
        return f"\n</think>\n\n{text}"

    def _rendered_reply(self, reply: Message) -> str | None:
        """Return what the template writes behind the generation prompt for a turn; None if it writes another prompt."""
        prompt, space = self._answer_prompt, ""
        if self.template.opens_thinking:  # what a template writes behind the tag differs from turn to turn
            before, tag, space = prompt.rpartition("<think>")
            prompt = before + tag
        try:
            rendered = self.template.render([_ASK, reply], generation_prompt=False)
        except ModelError:
            return None
        if not rendered.startswith(prompt):
            return None
        words = rendered[len(prompt) :].removeprefix(space)
        if not self.closes_turns:
            return words
        if not reply.tool_calls:
            return words.removesuffix(self._answer_end) if words.endswith(self._answer_end) else None
        pieces = self._text.pieces(words)
        closers = [i for i, piece in enumerate(pieces) if piece in self._text.marked_special]
        return "".join(pieces[: closers[-1]]) if closers else None

    def _reply_closing(self) -> list[int]:
        return [*self._closing_ids[:-1], self.end_of_turn_id]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the template writes between an assistant's turn and the next, for messages of certain roles and names."""

    skip: int
    """Characters behind the turn's last word that belong to the turn, its closing included."""
    anchor: str
    """Spelling of the closing's last token."""
    closing_ids: tuple[int, ...]
    """What closes a turn before these messages."""
    own_end: int
    """With which token the model itself ends such a turn."""
    ends_with_next_role: bool = False
    before: Message = _ASK
    """A turn that the messages can follow."""
    as_users: bool = False
    """Whether tools' results are shown as user messages: the template drops or refuses them there."""
    specials: list[int] = field(default_factory=list)
    """The special tokens of what follows."""
    pieces: tuple[tuple[str, str], ...] | None = None
    """The template's text before each content with how it treats it, and its text at the end; None if unknown."""

    def fill(self, messages: Sequence[Message]) -> str | None:
        """Return what follows the closing, with these messages' contents; None if it must be rendered."""
        if self.pieces is None:
            return None
        parts = []
        for (before, treatment), message in zip(self.pieces, messages, strict=False):
            parts += [before, _TREATMENTS[treatment](message.content)]
        return "".join([*parts, self.pieces[-1][0]])


# What templates do with a content: the longest result first, as one contains another.
_TREATMENTS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "rstrip": str.rstrip,
    "lstrip": str.lstrip,
    "strip": str.strip,
    "json": lambda text: json.dumps(text, ensure_ascii=False),
    "json of strip": lambda text: json.dumps(text.strip(), ensure_ascii=False),
}


def _plainly_named(message: Message) -> Message:
    """Return a message whose tool's name and id, which are rendered as structure, can spell no special token."""
    name, id_ = message.metadata.get("name"), message.tool_call_id
    if (name is None or not _UNUSUAL.search(str(name))) and (id_ is None or not _UNUSUAL.search(id_)):
        return message
    plain = {} if name is None else {"name": _UNUSUAL.sub("_", str(name))}
    return replace(
        message,
        tool_call_id=None if id_ is None else _UNUSUAL.sub("_", id_),
        metadata={**message.metadata, **plain},
    )


def _as_user(message: Message) -> Message:
    return Message("user", message.content) if message.role == "tool" else message


def _missing(reply_ids: IdArray, shape: _Shape) -> tuple[int, ...]:
    """Return what is missing of a turn's closing."""
    closing = shape.closing_ids
    if len(reply_ids) and int(reply_ids[-1]) in (closing[-1], shape.own_end):
        return ()
    for n_there in range(min(len(closing) - 1, len(reply_ids)), 0, -1):
        if tuple(reply_ids[-n_there:].tolist()) == closing[:n_there]:
            return closing[n_there:]
    return closing


def _behind(rendered: str) -> str:
    """Return what stands behind the first harmless word: the end of the assistant's turn, and what follows."""
    _, found, after = rendered.partition(_WORD)
    if not found:
        raise ModelError(f"the chat template does not show what an assistant says: it writes {rendered[-80:]!r}.")
    return after


def _said(version: Message, parsed: ParsedReply) -> list[str]:
    """Return what must be found in a turn's text for it to say everything that was meant."""
    if not version.tool_calls and not version.metadata:
        return [version.content]
    return [part for part in (parsed.thinking, parsed.content, *(call.name for call in parsed.tool_calls)) if part]


def _hide(text: SafeTokenizer, message: Message, masked: Masked) -> Message:
    """Return a message in whose every string the spellings of special tokens are marks.

    What an assistant wrote may contain tokens that only the template uses as structure (`<think>`).
    """

    def hide(value: Any) -> Any:
        return text.hide_spellings(value, masked, marked_only=message.role == "assistant")

    calls = tuple(replace(c, name=hide(c.name), arguments=hide(c.arguments)) for c in message.tool_calls)
    return replace(
        message,
        content=hide(message.content),
        tool_calls=calls,
        tool_call_id=hide(message.tool_call_id),
        metadata=hide(dict(message.metadata)),
    )
