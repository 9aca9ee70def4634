"""A tokenizer's chat template, rendered to text. Its capabilities are found by trying it, never by the model's name.

Templates accept different things. If one has no place for something that an environment sends, it is rewritten, in the
same way for every model:

| the template | the rewrite |
|---|---|
| ignores `tools` | the schemas are written into the system prompt, with the canonical call format |
| refuses the system role | its text goes in front of the first user message |
| refuses or drops the tool role | a tool's result becomes a user message |
| refuses two user messages in a row | they are joined with a line break |
| takes contents as lists of blocks | contents become lists of blocks |
| takes a call's arguments as JSON text | arguments become JSON text |
| refuses a call without an id (Mistral) | calls and their results get ids of nine letters and digits |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from llm_envs.chat.tokenization import any_of, common_length
from llm_envs.errors import ModelError
from llm_envs.parsers import ParsedReply
from llm_envs.types import Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatTemplate", "JinjaWriter", "TemplateTraits", "Writer", "structured_reply"]

Schema = Mapping[str, Any]
_WORD = "qzPROBEzq"  # Only letters, so that no template trims or escapes it.
_NAME = "qzTOOLzq"
_TOOL: Schema = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
_CALL = ToolCall(_NAME, {"x": _WORD}, "qz0000000")
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
"""The ids that Mistral's templates accept."""
_TOOL_PROMPT = """\
You may call tools. Their signatures, as JSON Schemas, one a line:
<tools>
{schemas}
</tools>
To call one, write its name and arguments as a JSON object in tags:
<tool_call>
{{"name": ..., "arguments": {{...}}}}
</tool_call>
The results are given to you in the next message."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """The features that a chat template supports."""

    system: bool = True
    """System messages."""
    tools: bool = True
    """The schemas of tools."""
    tool_calls: bool = True
    """Structured calls in an assistant's message."""
    tool_role: bool = True
    """Messages of the role tool."""
    user_again: bool = True
    """Two user messages in a row."""
    blocks: bool = False
    """Contents are lists of blocks."""
    arguments_as_text: bool = False
    """A call's arguments are JSON text."""
    call_ids: bool = False
    """Every call needs an id."""


class Writer(Protocol):
    """Writes a conversation as text: a Jinja template, or the library `renderers`."""

    @property
    def source(self) -> str:
        """A text that spells every marker which the writer writes."""

    def write(self, messages: list[dict[str, Any]], tools: Sequence[Schema], generation_prompt: bool) -> str:
        """Return the text of a conversation. It may raise any exception."""


class JinjaWriter:
    """A tokenizer's Jinja template.

    Args:
        tokenizer: A tokenizer.
        template: A Jinja template to use instead of the tokenizer's.
        kwargs: Passed to the template (`enable_thinking`, `reasoning_effort`, ...).

    Raises:
        ModelError: If the template is missing.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, template: str | None = None, kwargs: Schema | None = None
    ) -> None:
        if not (template or getattr(tokenizer, "chat_template", None)):
            raise ModelError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template: use the instruction-tuned version of "
                "the model, or set tokenizer.chat_template to a Jinja template."
            )
        self._tokenizer = tokenizer
        self._template = template
        self._kwargs: dict[str, Any] = dict(kwargs or {})

    @property
    def source(self) -> str:
        """The template's Jinja source."""
        own = self._template or self._tokenizer.chat_template
        return str(own.get("default", "") if isinstance(own, dict) else own)

    def write(self, messages: list[dict[str, Any]], tools: Sequence[Schema], generation_prompt: bool) -> str:
        """Return the text of a conversation."""
        text = self._tokenizer.apply_chat_template(
            messages,
            tools=[dict(tool) for tool in tools] or None,
            chat_template=self._template,
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **self._kwargs,
        )
        return str(text)


class ChatTemplate:
    """Renders conversations with a chat template.

    Args:
        tokenizer: A tokenizer.
        writer: The template; None means the tokenizer's own.

    Raises:
        ModelError: If the template is missing, or does not show user messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, writer: Writer | None = None) -> None:
        self.tokenizer = tokenizer
        self.writer = writer or JinjaWriter(tokenizer)
        self.refusal = ""
        """The template's reason for refusing a call, if it does; then `traits.tool_calls` is False."""
        self.traits = TemplateTraits()
        self.traits = self._probe()

    @property
    def source(self) -> str:
        """A text that spells every marker which the template writes."""
        return self.writer.source

    def render(
        self, messages: Sequence[Message], tools: Sequence[Schema] = (), *, generation_prompt: bool = True
    ) -> str:
        """Render a conversation as text.

        Args:
            messages: The conversation.
            tools: JSON Schemas of the tools.
            generation_prompt: Whether the text ends with the start of the assistant's next turn.

        Raises:
            ModelError: If the template refuses the conversation.
        """
        from jinja2 import TemplateSyntaxError

        given, shown_tools = self._adapt(messages, tools)
        try:
            return self.writer.write([self._as_dict(message) for message in given], shown_tools, generation_prompt)
        except TemplateSyntaxError as error:
            raise ModelError(f"the chat template is not valid Jinja: {error} (line {error.lineno})") from error
        except Exception as error:  # Jinja's own errors, and any error that a template raises on purpose
            roles = [message.role for message in messages]
            raise ModelError(f"the chat template refuses messages with the roles {roles}: {error}") from error

    @cached_property
    def generation_prompt(self) -> str:
        """The text with which the template begins an assistant's turn."""
        user = [Message("user", _WORD)]
        # Some templates write an end-of-sequence token if nothing follows, so compare full tokens.
        cut = any_of(token.content for token in self.tokenizer.added_tokens_decoder.values()).split
        with_prompt, without = cut(self.render(user)), cut(self.render(user, generation_prompt=False))
        n_common = common_length(with_prompt, without)
        text = "".join(with_prompt[n_common:])
        return text.removeprefix(without[-1]) if n_common == len(without) - 1 else text

    @property
    def opens_thinking(self) -> bool:
        """Whether the generation prompt ends inside a `<think>` block."""
        return self.generation_prompt.rstrip().endswith("<think>")

    @property
    def writes_date(self) -> bool:
        """Whether the template writes today's date, so that prompts differ from day to day."""
        return "strftime_now" in self.source

    # Implementation.

    def _as_dict(self, message: Message) -> dict[str, Any]:
        out = message.to_dict()
        metadata = out.pop("metadata", {})
        out |= {key: metadata[key] for key in ("name", "thinking", "reasoning_content") if key in metadata}
        if self.traits.arguments_as_text:
            for call in out.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        if self.traits.blocks:
            out["content"] = [{"type": "text", "text": message.content}]
        return out

    def _adapt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> tuple[list[Message], Sequence[Schema]]:
        """Rewrite messages and tools that the template does not support; see the module's table."""
        # The order matters: the schemas may add a system message, which may become a user message, which may need to be
        # joined with the next one.
        traits = self.traits
        given = list(messages)
        if tools and not traits.tools:
            schemas = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
            written = _TOOL_PROMPT.format(schemas=schemas)
            if given and given[0].role == "system":
                given[0] = replace(given[0], content=f"{given[0].content}\n\n{written}")
            else:
                given.insert(0, Message("system", written))
            tools = ()
        if not traits.tool_role:
            given = [Message("user", m.content) if m.role == "tool" else m for m in given]
        if not traits.system:
            given = [replace(m, role="user") if m.role == "system" else m for m in given]
        if not traits.tool_calls:
            given = [replace(m, tool_calls=()) if m.tool_calls else m for m in given]
        if traits.call_ids:
            given = _with_ids(given)
        if not traits.user_again:
            given = _joined(given)
        return given, tools

    def _probe(self) -> TemplateTraits:
        traits = TemplateTraits()
        user = Message("user", _WORD)
        if not self._shows(traits, [user]):
            traits = replace(traits, blocks=True)
            if not self._shows(traits, [user]):
                self.traits = traits
                shown = self.render([user])  # raises with the template's reason, if it refuses
                raise ModelError(f"the chat template does not show user messages: it writes {shown[:80]!r}.")
        # Only after `blocks` is known, because every further probe renders user messages too.
        ask = Message("user", "x")
        traits = replace(
            traits,
            user_again=self._shows(traits, [ask, user]),
            system=self._shows(traits, [Message("system", _WORD), ask]),
            tools=self._shows(traits, [ask], tools=[_TOOL], word=_NAME),
        )
        called = [ask, Message("assistant", "", (replace(_CALL, id=None),))]
        with_ids = replace(traits, call_ids=True)
        ways = (traits, with_ids, *(replace(way, arguments_as_text=True) for way in (traits, with_ids)))
        self.refusal = ""
        traits = next((way for way in ways if self._shows(way, called)), replace(traits, tool_calls=False))
        refusal = "" if traits.tool_calls else self.refusal
        heard = Message("tool", _WORD, tool_call_id=_CALL.id, metadata={"name": _NAME})
        other_call = replace(_CALL, arguments={"x": "y"})
        answered = [ask, Message("assistant", "", (other_call,) if traits.tool_calls else ()), heard]
        traits = replace(traits, tool_role=self._shows(traits, answered))
        self.refusal = refusal
        return traits

    def _shows(
        self, traits: TemplateTraits, messages: list[Message], tools: Sequence[Schema] = (), word: str = _WORD
    ) -> bool:
        self.traits = traits  # `render` reads them; `__init__` sets the final ones
        try:
            return word in self.render(messages, tools, generation_prompt=messages[-1].role != "assistant")
        except ModelError as error:
            if "not valid Jinja" in str(error):
                raise
            self.refusal = self.refusal or str(error)
            return False


def structured_reply(parsed: ParsedReply, fallback: str) -> Message:
    """Return an assistant's message with thinking and calls in separate fields, as templates expect them.

    Args:
        parsed: The parsed reply.
        fallback: The content if the reply is broken.
    """
    if parsed.problems:
        return Message("assistant", fallback)
    thinking = {} if parsed.thinking is None else {"reasoning_content": parsed.thinking, "thinking": parsed.thinking}
    return Message("assistant", parsed.content, parsed.tool_calls, metadata=thinking)


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose calls have ids of nine letters and digits, and whose results refer to them."""
    given: list[Message] = []
    pending: dict[str | None, list[str]] = {}
    for message in messages:
        if message.tool_calls:
            pending, calls = {}, []
            for index, call in enumerate(message.tool_calls):
                is_valid = call.id is not None and _CALL_ID.fullmatch(call.id) is not None
                calls.append(replace(call, id=call.id if is_valid else f"call{index:05d}"))
                pending.setdefault(call.id, []).append(str(calls[-1].id))
            message = replace(message, tool_calls=tuple(calls))
        elif message.role == "tool":
            ids = pending.get(message.tool_call_id) or next((left for left in pending.values() if left), [])
            message = replace(message, tool_call_id=ids.pop(0) if ids else "call00000")
        given.append(message)
    return given


def _joined(messages: Sequence[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role == "user":
            joined[-1] = replace(joined[-1], content=f"{joined[-1].content}\n{message.content}")
        else:
            joined.append(message)
    return joined
