"""Messages to token ids, appended turn by turn.

The first prompt is encoded with the model's own chat template. After that only what the environment says is encoded:
what the template writes between the end of an assistant's turn and the start of the next. What the model sampled is
never encoded again.

1. What stands between two turns is found out once for each shape of messages (their roles and names), by rendering a
   conversation of that shape; a turn then costs its own new tokens, whatever the length of the history.
2. Nothing that an environment says becomes a special token: the special tokens of what was encoded are compared with
   those of the same conversation in harmless words, and where they differ the words are encoded as plain text.
3. A turn that ended without the token with which the template closes it is closed before anything follows.
4. The last first prompts are remembered, since the members of a group share theirs.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.chat_template import ChatTemplate, structured_reply
from llm_envs.errors import ModelError
from llm_envs.parsers import FORMATTERS, ParsedReply, detect_format, format_tool_call, parse_reply
from llm_envs.tokenization import WORD, Masked
from llm_envs.turn_shapes import ASK, Start, TurnShapes, as_users, plainly_named
from llm_envs.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatCodec"]

IdArray = npt.NDArray[np.int32]
Schema = Mapping[str, Any]

_MAX_PROMPT_SHAPES = 256
_MAX_PROMPTS = 64
"""Prompts that are remembered: those of the groups that begin side by side."""


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
        self.shapes = TurnShapes(self.template)
        self._text = self.shapes.text
        self._prompt_is_shown: dict[object, bool] = {}
        self._prompt_specials: OrderedDict[object, list[int]] = OrderedDict()
        self._prompts: dict[str, IdArray] = {}  # the oldest first
        after_answer = self.shapes.of((Message("user", WORD),), True)
        ends = [after_answer.own_end]
        if self.template.traits.tool_role:
            ends.append(self.shapes.of((Message("tool", WORD, metadata={"name": "look_up"}),), True).own_end)
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
        return not self.shapes.of((Message("user", WORD),), True).ends_with_next_role

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> IdArray:
        """Encode a conversation from its start, ready for the assistant's next turn.

        Args:
            messages: System prompt and first observation(s); for a new row also earlier turns, which become context.
            tools: JSON Schemas of the tools, rendered by the template.

        Returns:
            Token ids, shape (T,).
        """
        # The members of a group have one prompt; rendering it is most of what a short episode costs.
        try:
            key = json.dumps([[message.to_dict() for message in messages], list(tools)], default=dict)
        except (TypeError, ValueError):  # nothing that has a name to be remembered by
            return self._encode_form(next(iter(self._forms(messages))), tools)
        ids = self._prompts.get(key)
        if ids is None:
            ids = self._encode_form(next(iter(self._forms(messages))), tools)
            self._prompts[key] = ids
            while len(self._prompts) > _MAX_PROMPTS:
                self._prompts.pop(next(iter(self._prompts)), None)
        return ids.copy()

    def encode_anew(self, messages: Sequence[Message], tools: Sequence[Schema], row_ids: IdArray) -> IdArray | None:
        """Encode a conversation from its start, unless a row already says the same: then it can go on.

        Args:
            messages: The whole conversation, as for `encode_prompt`.
            tools: JSON Schemas of the tools.
            row_ids: The row so far with what would be appended to it, shape (T,).

        Returns:
            Token ids, shape (T,); None if the template writes what the row has.
        """
        row_text, first = self.decode(row_ids), None
        for form in self._forms(messages):
            ids = self._encode_form(form, tools)
            if self.decode(ids) == row_text:
                return None
            first = ids if first is None else first
        return first

    def start_of(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> Start:
        """Return what `encode_delta` needs to know of a conversation's start: its system prompt and tools."""
        return Start.of(messages, tools)

    def encode_delta(
        self,
        messages: Sequence[Message],
        *,
        reply_ids: IdArray,
        generation_prompt: bool = True,
        start: Start | None = None,
    ) -> IdArray:
        """Encode what stands between an assistant turn and the next one.

        Args:
            messages: What the environment said since the assistant's turn, at least one message.
            reply_ids: The turn's own ids, shape (T,): if they are not closed, the closing token comes first.
            generation_prompt: Whether the assistant is to answer. False for the last observation of an episode.
            start: Of the conversation (`start_of`); None stands for one without system prompt and tools.

        Returns:
            Token ids, shape (T,), all written by the template or the environment.
        """
        messages = [plainly_named(message) for message in messages]
        shape = self.shapes.of(tuple(messages), generation_prompt, start)

        def render(messages: Sequence[Message], tools: Sequence[Schema] = ()) -> str:
            return self.shapes.following(messages, shape, generation_prompt)

        ids = self._encode_as_it_is(lambda: shape.fill(messages) or render(messages), shape.specials, shape.anchor)
        if ids is None:
            ids = self._encode_plainly(render, messages, (), shape.specials, shape.anchor)
        missing = shape.missing(reply_ids)
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

    # Safety.

    def _encode_form(self, messages: Sequence[Message], tools: Sequence[Schema]) -> IdArray:
        def render(messages: Sequence[Message], tools: Sequence[Schema]) -> str:
            return self.template.render(messages, tools)

        expected = self._expected_specials(messages, tools)
        ids = self._encode_as_it_is(lambda: render(messages, tools), expected)
        return self._encode_plainly(render, messages, tools, expected) if ids is None else ids

    def _expected_specials(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[int]:
        """Return the special tokens of a prompt in harmless words."""
        has_turns = any(message.role == "assistant" for message in messages)
        said = [(m.role, m.metadata.get("name"), not m.content or m.content.isspace()) for m in messages]
        key = None if has_turns else (tuple(said), json.dumps([dict(tool) for tool in tools], sort_keys=True))
        if key is not None and key in self._prompt_specials:
            return self._prompt_specials[key]
        masked = Masked()
        harmless = [
            self._hide(message, masked)
            if message.role == "assistant" or not message.content.strip()
            else replace(self._hide(message, masked), content=WORD)
            for message in messages
        ]
        text = self.template.render(harmless, self._text.hide_spellings(list(tools), masked))
        expected = self._text.specials(self._text.encode_masked(text, masked))
        if key is not None:
            self._prompt_specials[key] = expected
            if len(self._prompt_specials) > _MAX_PROMPT_SHAPES:
                self._prompt_specials.popitem(last=False)
        return expected

    @cached_property
    def _own_markup(self) -> frozenset[str]:
        """Spellings that an assistant writes itself, and the tokenizer does not call special: of thinking and calls."""
        words = f"<think>{WORD}</think>" + format_tool_call("f", x=WORD)
        own = self._own_words(words, self.parser(words)) + self._own_words(WORD, self.parser(WORD))
        markup = {"<think>", "</think>", *self._text.pieces(own)}
        return frozenset(markup - self._text.marked_special)

    def _hide(self, message: Message, masked: Masked) -> Message:
        """Return a message in whose every string the spellings of special tokens are marks.

        What an assistant writes itself stays in its turns; a role it cannot forge either.
        """
        keep = self._own_markup if message.role == "assistant" else frozenset()

        def hide(value: Any) -> Any:
            return self._text.hide_spellings(value, masked, keep=keep)

        calls = tuple(replace(c, name=hide(c.name), arguments=hide(c.arguments)) for c in message.tool_calls)
        return replace(
            message,
            content=hide(message.content),
            tool_calls=calls,
            tool_call_id=hide(message.tool_call_id),
            metadata=hide(dict(message.metadata)),
        )

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
            hidden = [self._hide(message, masked) for message in hidden]
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

    def _forms(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Yield the forms in which the template takes a conversation, every word of its environment shown.

        First with earlier turns in parts (thinking, content, calls), as their authors meant them; then as they were
        written; then with tools' results as user messages; then with special tokens dropped from earlier turns.

        Raises:
            ModelError: If the template refuses the conversation in every form.
        """
        if not any(message.role == "assistant" for message in messages):
            yield self._first_prompt(messages)
            return
        in_parts, as_written, plain = [], [], []
        for message in messages:
            parts = message
            if message.role == "assistant" and not message.tool_calls:
                parts = structured_reply(self.parser(message.content), message.content)
            has_special = message.role == "assistant" and self._text.has_marked_spelling(message.content)
            in_parts.append(parts)
            as_written.append(parts if has_special else message)
            plain.append(replace(parts, content=self._text.without_marked(parts.content)) if has_special else parts)
        n_forms = 0
        others = [as_users(form, keep_first=True) for form in (as_written, plain)]
        for form in (in_parts, as_written, others[0], plain, others[1]):
            if self.shapes.shows_all(form):
                n_forms += 1
                yield form
        if not n_forms:
            self.template.render(in_parts)  # says why it refuses
            raise ModelError("the chat template drops what the environment says between earlier turns.")

    def _first_prompt(self, messages: Sequence[Message]) -> list[Message]:
        """Return a conversation without turns, with what the template would drop as user messages."""
        key = tuple((m.role, m.metadata.get("name"), not m.content or m.content.isspace()) for m in messages)
        is_shown = self._prompt_is_shown.get(key)
        if is_shown is None:
            others = as_users(messages, keep_first=True)
            is_shown = self.shapes.shows_all(messages) or not self.shapes.shows_all(others)
            if len(self._prompt_is_shown) < _MAX_PROMPT_SHAPES:
                self._prompt_is_shown[key] = is_shown
        return list(messages) if is_shown else as_users(messages, keep_first=True)

    def _own_words(self, text: str, parsed: ParsedReply) -> str:
        """Return what the model itself would write, behind the generation prompt, to say `text`."""
        if parsed.tool_calls and not parsed.problems and self.template.traits.tool_calls:
            # Beside a call some templates have no place for words or thinking; the call is what counts.
            for form in (structured_reply(parsed, text), Message("assistant", parsed.content, parsed.tool_calls)):
                words = self._rendered_reply(form)
                if words is not None and _says(words, [call.name for call in parsed.tool_calls]):
                    return words
            if len(parsed.tool_calls) > 1:
                return self._several_calls(parsed)
        versions = [(Message("assistant", text), [text])]
        if parsed.thinking and not parsed.problems:
            versions.insert(0, (structured_reply(parsed, text), [parsed.thinking, parsed.content]))
        for version, said in versions:
            words = self._rendered_reply(version)
            if words is not None and _says(words, said):
                return words
        if not self.template.opens_thinking:
            return text
        if text.startswith("<think>"):
            return text.removeprefix("<think>").removeprefix(self.template.generation_prompt.rpartition("<think>")[2])
        return f"\n</think>\n\n{text}"

    def _several_calls(self, parsed: ParsedReply) -> str:
        """Return calls in the model's own format, where its template writes but one a turn.

        Raises:
            ModelError: If the format has no way of several.
        """
        own_format = detect_format(self._own_words("", ParsedReply(None, "", parsed.tool_calls[:1], None, ())))
        if own_format is None or own_format not in FORMATTERS:
            raise ModelError(
                f"the chat template writes one call a turn, and these words have {len(parsed.tool_calls)}: "
                f"{[call.name for call in parsed.tool_calls]}. Have the oracle call one tool a turn."
            )
        return FORMATTERS[own_format](parsed.tool_calls)

    @cached_property
    def _answer_prompt(self) -> str:
        return self.template.render([ASK])

    def _rendered_reply(self, reply: Message) -> str | None:
        """Return what the template writes behind the generation prompt for a turn; None if it writes another prompt."""
        try:
            rendered = self.template.render([ASK, reply], generation_prompt=False)
        except ModelError:
            return None
        # What a template writes behind an open tag differs from turn to turn, and some leave the tag out.
        before, tag, space = self._answer_prompt.rpartition("<think>")
        opened = self.template.opens_thinking
        if not opened and rendered.startswith(self._answer_prompt):
            words = rendered[len(self._answer_prompt) :]
        elif opened and rendered.startswith(before + tag):
            words = rendered[len(before + tag) :].removeprefix(space)
        elif opened and rendered.startswith(before):
            words = f"\n</think>\n\n{rendered[len(before) :]}"
        else:
            return None
        if not self.closes_turns:
            return words
        if not reply.tool_calls:
            return words.removesuffix(self.shapes.answer_end) if words.endswith(self.shapes.answer_end) else None
        pieces = self._text.pieces(words)
        closers = [i for i, piece in enumerate(pieces) if piece in self._text.marked_special]
        return "".join(pieces[: closers[-1]]) if closers else None

    def _reply_closing(self) -> list[int]:
        return [*self._closing_ids[:-1], self.end_of_turn_id]


def _says(words: str, parts: Sequence[str]) -> bool:
    """Return whether all parts stand in a text, one behind the other."""
    position = 0
    for part in parts:
        position = words.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return True
