"""Messages to token ids, appended turn by turn.

The first prompt is encoded with the model's own chat template. After that only observations are encoded, together with
the text that the template writes between the end of an assistant's turn and the start of the next. Sampled tokens are
never encoded again.

1. The text between two turns is determined once for each shape of messages (their roles and names), by rendering a
   placeholder conversation of that shape. So the cost of a turn depends on its new tokens, not on the history.
2. Environment text never becomes a special token. The encoded special tokens are compared with the ones of the same
   conversation with placeholder texts; if they differ, the texts are encoded as plain text.
3. A turn without the template's closing token is closed before anything follows.
4. Recent first prompts are cached, because all members of a group have the same one.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.chat.context import render_reply
from llm_envs.chat.renderer import serve
from llm_envs.chat.template import Schema, structured_reply
from llm_envs.chat.tokenization import WORD, Masked, common_length, contains_in_order, generation_ends
from llm_envs.chat.turn_delta import ASK, Start, TurnShapes, as_users, plainly_named
from llm_envs.errors import ModelError
from llm_envs.parsers import (
    FORMATTERS,
    OWN_TOKENS,
    THINKING_TAGS,
    ParsedReply,
    detect_format,
    format_tool_call,
    parse_reply,
)
from llm_envs.types import IdArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatCodec"]


_MAX_PROMPT_SHAPES = 256
_THOUGHT = structured_reply(ParsedReply(WORD, WORD, (), None, ()), WORD)
_MAX_PROMPTS = 64
"""Number of cached prompts: enough for the groups that begin at the same time."""


class ChatCodec:
    """Encodes conversations for one tokenizer and its chat template.

    Args:
        tokenizer: The model's tokenizer.
        thinking: Passed to the template as `enable_thinking`; None keeps the template's default.
        chat_template: A Jinja template to use instead of the tokenizer's (a training template).
        template_kwargs: Further settings for the template (`reasoning_effort`, ...).
        parser: Splits an assistant's text into its parts for the template: for an oracle's reply, and for earlier turns
            when a history is rendered again.
        renderer: Who writes conversations and reads replies. "template": the chat template and `parse_reply`. A name
            of the library `renderers` ("minimax-m2", ...): that renderer. "auto": the template and `parse_reply`; a
            renderer for what they cannot do, if the model's config.json names the family (`serve`).

    Raises:
        MissingExtraError: If the model needs `renderers`, and it is not installed.
        ModelError: If the chat template is missing, or ends an assistant turn without a special token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        thinking: bool | None = None,
        chat_template: str | None = None,
        template_kwargs: Schema | None = None,
        parser: Callable[[str], ParsedReply] = parse_reply,
        renderer: str = "auto",
    ) -> None:
        kwargs = ({} if thinking is None else {"enable_thinking": thinking}) | dict(template_kwargs or {})
        self.tokenizer = tokenizer
        self.parser = parser
        self.service = serve(tokenizer, renderer, chat_template=chat_template, kwargs=kwargs)
        """Who writes conversations and reads replies."""
        self.template = self.service.template
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
        """Id of the token with which the model closes a final turn."""
        self.end_of_call_id: int = ends[-1]
        """Id of the token with which the model closes a turn with tool calls; often the same."""
        self.end_of_turn_text = str(tokenizer.decode([self.end_of_turn_id], skip_special_tokens=False))
        eos_id = tokenizer.eos_token_id
        ends += ([] if eos_id is None else [eos_id]) + generation_ends(tokenizer)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        """Ids that end the sampling of a turn, the end-of-turn token first; `generation_config.json` lists some."""
        self._closing_ids = after_answer.closing_ids
        self.n_neutralised = 0
        """Number of environment texts so far that contained special tokens and were encoded as plain text instead."""

    @property
    def closes_turns(self) -> bool:
        """Whether the template has a token that closes a turn; otherwise the next role's token ends it (GLM)."""
        return not self.shapes.of((Message("user", WORD),), True).ends_with_next_role

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> IdArray:
        """Encode a conversation from its start, ready for the assistant's next turn.

        Args:
            messages: System prompt and first observation(s). For a new row, also earlier turns, which become context.
            tools: JSON Schemas of the tools, rendered by the template.

        Returns:
            Token ids, shape (T,).
        """
        # The members of a group share one prompt, and rendering it is most of the cost of a short episode.
        try:
            key = json.dumps([[message.to_dict() for message in messages], list(tools)], default=dict)
        except (TypeError, ValueError):  # not JSON, so there is no cache key
            return self._encode_form(next(iter(self._forms(messages))), tools)
        ids = self._prompts.get(key)
        if ids is None:
            ids = self._encode_form(next(iter(self._forms(messages))), tools)
            self._prompts[key] = ids
            while len(self._prompts) > _MAX_PROMPTS:
                self._prompts.pop(next(iter(self._prompts)), None)
        return ids.copy()  # the caller may change its array, and the cached one serves all of the group

    def encode_anew(self, messages: Sequence[Message], tools: Sequence[Schema], row_ids: IdArray) -> IdArray | None:
        """Encode a conversation from its start, unless a row already has the same text and can be continued.

        Args:
            messages: The full conversation, as for `encode_prompt`.
            tools: JSON Schemas of the tools.
            row_ids: The row so far, including the tokens that would be appended to it, shape (T,).

        Returns:
            Token ids, shape (T,); None if the template writes the same text as the row.
        """
        row_text, first = self.decode(row_ids), None
        for form in self._forms(messages):
            ids = self._encode_form(form, tools)
            # Compare texts and not ids: the model may have split the same text into other tokens.
            if self.decode(ids) == row_text:
                return None
            first = ids if first is None else first
        return first

    def start_of(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> Start:
        """Return the start of a conversation for `encode_delta`: its system prompt and tools."""
        return Start.of(messages, tools)

    def encode_delta(
        self,
        messages: Sequence[Message],
        *,
        reply_ids: IdArray,
        generation_prompt: bool = True,
        start: Start | None = None,
    ) -> IdArray:
        """Encode the text between an assistant turn and the next one.

        Args:
            messages: The new messages since the assistant's turn, at least one.
            reply_ids: The ids of that turn, shape (T,). If they are not closed, the closing token comes first.
            generation_prompt: Whether the assistant answers next. False for the last observation of an episode.
            start: The conversation's start (`start_of`); None means no system prompt and no tools.

        Returns:
            Token ids, shape (T,), all from the template or the environment.
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
        """Encode a reply that was not sampled (an oracle's), as the template would have the model write it.

        Calls and thinking are written in the model's own format, if the template has one, and the turn is closed.
        Behind a closed block of thinking (`closes_thinking`) the thinking is left out. Shape (T,).
        """
        has_calls = False
        # A reply that quotes a special token stays plain text: as a token it could end the turn or begin another role.
        if self._text.has_marked_spelling(text):
            body = self._text.encode_plain(text)
        else:
            parsed = self.parser(text)
            has_calls = bool(parsed.tool_calls)
            if parsed.thinking is not None and not parsed.problems and self.closes_thinking:
                parsed = parsed._replace(thinking=None)
                text = render_reply(Message("assistant", parsed.content, parsed.tool_calls))
            body = self._text.encode(self._own_words(text, parsed))
        closing = [self.end_of_call_id] if has_calls else [*self._closing_ids[:-1], self.end_of_turn_id]
        return np.concatenate([body, np.array(closing, dtype=np.int32)]).astype(np.int32)

    def decode_reply(self, token_ids: IdArray) -> str:
        """Decode sampled ids to the action, without the tokens that close the turn; other special tokens are kept.

        If a renderer reads replies, the action is in the canonical form.
        """
        if self.service.reader is None:
            return self.decode_words(token_ids)
        # Inkling's tokens that close a turn close its call too.
        return self.service.reader.read(self.decode(token_ids), self.template.generation_prompt)

    def decode_words(self, token_ids: IdArray) -> str:
        """Decode sampled ids to what the model wrote, without the tokens that close the turn."""
        ids = token_ids.tolist()
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
            before = list(self._closing_ids[:-1])
            if before and ids[-len(before) :] == before:
                del ids[-len(before) :]
        return self.decode(np.array(ids, dtype=np.int32))

    def decode(self, token_ids: IdArray) -> str:
        """Decode ids to text, including special tokens."""
        return str(
            self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    # Safety: environment text must never become a special token.

    def _encode_form(self, messages: Sequence[Message], tools: Sequence[Schema]) -> IdArray:
        expected = self._expected_specials(messages, tools)
        ids = self._encode_as_it_is(lambda: self.template.render(messages, tools), expected)
        return self._encode_plainly(self.template.render, messages, tools, expected) if ids is None else ids

    def _expected_specials(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[int]:
        """Return the special tokens of a prompt whose texts are replaced by placeholders."""
        has_turns = any(message.role == "assistant" for message in messages)
        shape = [(m.role, m.metadata.get("name"), not m.content or m.content.isspace()) for m in messages]
        # Earlier turns keep the markup that they wrote, so their special tokens depend on their texts: no cache key.
        key = None if has_turns else (tuple(shape), json.dumps([dict(tool) for tool in tools], sort_keys=True))
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
        """Markup of thinking and calls that an assistant writes itself and that is not special to the tokenizer."""
        words = f"<think>{WORD}</think>" + format_tool_call("f", x=WORD)
        own = self._own_words(words, self.parser(words)) + self._own_words(WORD, self.parser(WORD))
        markup = {"<think>", "</think>", *self._text.pieces(own)}
        return frozenset(markup - self._text.marked_special) | self._call_tokens

    @cached_property
    def _call_tokens(self) -> frozenset[str]:
        """The tokens of `own_call_format`, which a turn keeps because the template has no other place for its calls."""
        return frozenset(() if self.own_call_format is None else OWN_TOKENS[self.own_call_format])

    def _hide(self, message: Message, masked: Masked) -> Message:
        """Return a message in which every spelling of a special token is replaced by a mark.

        Markup that an assistant writes itself stays in its own turns, but it cannot forge a role either.
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
        """Encode the rendered text unchanged; return None if it has other special tokens than expected.

        Also None if the template refuses certain texts (Qwen3.5 refuses a first question in the tags of a tool result).
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
        """Encode texts that contain special tokens as plain text.

        First only the spellings of special tokens are encoded separately. If that is not enough (a tokenizer that turns
        other spellings into special tokens too), all text is, character by character if necessary.
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
                self.n_neutralised += 1
                return ids
        raise ModelError(
            "an environment's text becomes special tokens of the model, and this cannot be prevented: special tokens "
            f"{self._text.specials(ids)}, where the template itself writes {expected}. Look at tool schemas and tool "
            "names first."
        )

    # The assistant's own replies.

    def _forms(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Yield the forms of a conversation that the template accepts and in which it shows every environment text.

        The order of preference: earlier turns in parts (thinking, content, calls), as their authors meant them; as they
        were written; with tool results as user messages; with special tokens removed from earlier turns.

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
            rest = message.content
            for token in self._call_tokens:
                rest = rest.replace(token, "")
            has_special = message.role == "assistant" and self._text.has_marked_spelling(rest)
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
            self.template.render(in_parts)  # raises with the template's reason, if it refuses
            raise ModelError("the chat template drops environment messages between earlier turns.")

    def _first_prompt(self, messages: Sequence[Message]) -> list[Message]:
        """Return a conversation without turns; messages that the template would drop become user messages."""
        key = tuple((m.role, m.metadata.get("name"), not m.content or m.content.isspace()) for m in messages)
        is_shown = self._prompt_is_shown.get(key)
        if is_shown is None:
            others = as_users(messages, keep_first=True)
            is_shown = self.shapes.shows_all(messages) or not self.shapes.shows_all(others)
            if len(self._prompt_is_shown) < _MAX_PROMPT_SHAPES:
                self._prompt_is_shown[key] = is_shown
        return list(messages) if is_shown else as_users(messages, keep_first=True)

    def _own_words(self, text: str, parsed: ParsedReply) -> str:
        """Return the text that the model itself would write after the generation prompt to express `text`."""
        if parsed.tool_calls and not parsed.problems and self.own_call_format is not None:
            said = "" if parsed.thinking is None else f"<think>\n{parsed.thinking}\n</think>\n\n"
            said = self._own_words(said + parsed.content, parsed._replace(tool_calls=()))
            return said + FORMATTERS[self.own_call_format](parsed.tool_calls)
        if parsed.tool_calls and not parsed.problems and self.template.traits.tool_calls:
            # Some templates have no place for text or thinking beside a call; keep the call.
            for form in (structured_reply(parsed, text), Message("assistant", parsed.content, parsed.tool_calls)):
                words = self._rendered_reply(form)
                if words is not None and contains_in_order(words, [call.name for call in parsed.tool_calls]):
                    return words
            if len(parsed.tool_calls) > 1:
                return self._several_calls(parsed)
        versions = [(Message("assistant", text), [text])]
        if parsed.thinking and not parsed.problems:
            versions.insert(0, (structured_reply(parsed, text), [parsed.thinking, parsed.content]))
        for version, parts in versions:
            words = self._rendered_reply(version)
            if words is not None and contains_in_order(words, parts):
                return words
        if not self.template.opens_thinking:
            return text
        if text.startswith("<think>"):
            return text.removeprefix("<think>").removeprefix(self.template.generation_prompt.rpartition("<think>")[2])
        return f"\n</think>\n\n{text}"

    def _several_calls(self, parsed: ParsedReply) -> str:
        """Return several calls in the model's own format, for a template that writes one call per turn.

        Raises:
            ModelError: If the format does not allow several.
        """
        own_format = detect_format(self._own_words("", ParsedReply(None, "", parsed.tool_calls[:1], None, ())))
        if own_format is None or own_format not in FORMATTERS:
            raise ModelError(
                f"the chat template writes one call per turn, but this reply has {len(parsed.tool_calls)}: "
                f"{[call.name for call in parsed.tool_calls]}. Make the oracle call one tool per turn."
            )
        return FORMATTERS[own_format](parsed.tool_calls)

    @cached_property
    def own_call_format(self) -> str | None:
        """The format of the tokenizer's tokens for calls (`OWN_TOKENS`), if the template shows tools but no calls."""
        traits, added = self.template.traits, self.tokenizer.get_added_vocab()
        if traits.tool_calls or not traits.tools:
            return None
        return next((name for name, tokens in OWN_TOKENS.items() if tokens[0] in added), None)

    @cached_property
    def closes_thinking(self) -> bool:
        """Whether the generation prompt ends behind a closed block of thinking, so that a reply has none."""
        try:
            thought = self.template.render([ASK, _THOUGHT], generation_prompt=False)
        except ModelError:
            return False
        return not self.template.opens_thinking and not thought.startswith(self._answer_prompt)

    @cached_property
    def _answer_prompt(self) -> str:
        return self.template.render([ASK])

    def _rendered_reply(self, reply: Message) -> str | None:
        """Return the template's text for a turn after the generation prompt; None if the prompt itself differs."""
        try:
            rendered = self.template.render([ASK, reply], generation_prompt=False)
        except ModelError:
            return None
        words = self._after_prompt(rendered)
        if words is None or not self.closes_turns:
            return words and words.removesuffix(self.end_of_turn_text)
        if not reply.tool_calls:
            return words.removesuffix(self.shapes.answer_end) if words.endswith(self.shapes.answer_end) else None
        pieces = self._text.pieces(words)
        closers = [i for i, piece in enumerate(pieces) if piece in self._text.marked_special]
        return "".join(pieces[: closers[-1]]) if closers else None

    def _after_prompt(self, rendered: str) -> str | None:
        """Return a rendered turn without the generation prompt; None if it does not follow the prompt."""
        # The text after an open thinking tag varies between turns, and some templates leave out the tag.
        before, tag, space = self._answer_prompt.rpartition("<think>")
        opened = self.template.opens_thinking
        if not opened and rendered.startswith(self._answer_prompt):
            return rendered[len(self._answer_prompt) :]
        if opened and rendered.startswith(before + tag):
            return rendered[len(before + tag) :].removeprefix(space)
        if opened and rendered.startswith(before):
            words = rendered[len(before) :]
            return words if words.startswith("</think>") else f"\n</think>\n\n{words}"
        # The prompt ends with an empty block of thinking, which the turn writes otherwise (DeepSeek V3.2, Gemma 4).
        prompt, turn = self._text.pieces(self._answer_prompt), self._text.pieces(rendered)
        n_common = common_length(prompt, turn)
        rest, words = "".join(prompt[n_common:]), "".join(turn[n_common:])
        if (closing := THINKING_TAGS.get(rest.strip())) is not None:  # a thought that the prompt opens (Cohere)
            return closing + words.removeprefix(closing)
        block = self.parser(rest)  # no problem, but no words either
        if block.problems or block.content or block.thinking != "":
            # The prompt begins a thought with words, which a turn of calls leaves out (Apriel).
            reply = self.parser(words)
            is_plain = self._text.marked_special.isdisjoint(prompt[n_common:])
            return words if is_plain and reply.tool_calls and not reply.content else None
        return words.removeprefix("</think>")
