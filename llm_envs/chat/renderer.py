"""The library `renderers`, for models that a Jinja template or `parse_reply` cannot serve.

Some models come without a Jinja template (DeepSeek V4), and some write calls in a form that `parse_reply` does not
read. `renderers` has their templates as Python code, and reads their replies. Its renderers make token ids. Here they
get a tokenizer of characters, so they make text. The codec encodes it like the text of any other template: in one
piece, and so that environment text never becomes a special token.

A reply that `renderers` reads is written again in the canonical form (`<think>`, `<tool_call>`), because environments
read that one. docs/reference/libraries.md has the trial that decided what the library is used for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from llm_envs.chat.template import ChatTemplate, JinjaWriter, Schema
from llm_envs.chat.tokenization import any_of
from llm_envs.errors import InvalidConfigError, ModelError, extra_needed
from llm_envs.parsers import FORMATTERS, parse_reply
from llm_envs.types import ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Renderer", "Service", "renderers_of", "serve"]

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "deepseek_v4": ("deepseek-v4",),
    "glm_moe_dsa": ("glm-5", "glm-5.1", "glm-5.3"),
    "hy_v3": ("hy3",),
    "inkling_mm_model": ("inkling",),
    "kimi_k2": ("kimi-k2",),
    "kimi_k25": ("kimi-k2.5",),
    "laguna": ("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"),
    "minimax_m2": ("minimax-m2",),
}
"""`model_type` of a model's config.json: its renderers. Other families have a template, and calls that are read."""
_OTHERS = {
    "auto": "the codec chooses by the model's config.json",
    "default": "it is the tokenizer's own template",
    "gpt-oss": "it takes its ids from openai-harmony, which downloads a vocabulary; use the model's own template",
}
"""Names of the library that cannot be chosen here, and why."""
_PARSER = "parse_reply reads replies"
_ASK: Mapping[str, Any] = {"role": "user", "content": "x"}
_CALLS: Mapping[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "look_up", "arguments": {"x": "y"}}}],
}


class _Characters:
    """A tokenizer of characters: ids are code points, and for the added tokens of a tokenizer numbers above them."""

    unk_token_id = None
    chat_template = ""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        spellings = [token.content for token in tokenizer.added_tokens_decoder.values()]
        self._ids = {spelling: 0x110000 + number for number, spelling in enumerate(spellings)}
        self._spellings = {id_: spelling for spelling, id_ in self._ids.items()}
        self._split = any_of(spellings)
        self.name_or_path = tokenizer.name_or_path
        self.eos_token_id = self._ids.get(str(tokenizer.eos_token))
        self.asked_for: list[str] = []
        """The markers that a renderer has asked for."""

    def encode(self, text: str, **_: Any) -> list[int]:
        ids: list[int] = []
        for piece in self._split.split(text):
            ids += [self._ids[piece]] if piece in self._ids else map(ord, piece)
        if len(ids) == 1:
            self.asked_for.append(text)
        return ids

    def decode(self, token_ids: int | Sequence[int], **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return "".join(self._spellings.get(id_) or chr(id_) for id_ in ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        self.asked_for.append(token)
        return self._ids.get(token)


class Renderer:
    """One renderer of the library: writes conversations (a `Writer`), and reads replies.

    Args:
        tokenizer: The model's tokenizer. It must have the renderer's markers.
        name: The renderer's name in the library ("minimax-m2", ...).
        kwargs: The template's settings (`enable_thinking`, ...).

    Raises:
        InvalidConfigError: If the library has no such renderer, or the renderer no such setting.
        MissingExtraError: If the library is not installed.
        ModelError: If the tokenizer lacks a marker.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str, kwargs: Mapping[str, Any] | None = None) -> None:
        if name in _OTHERS:
            raise InvalidConfigError(f"renderer={name!r} cannot serve: {_OTHERS[name]}.")
        with extra_needed(f"renderer={name!r} needs `renderers`: pip install 'llm-envs[agents]'."):
            from renderers import config_from_name, create_renderer, merge_chat_template_kwargs
        self.name = name
        self._characters = _Characters(tokenizer)
        try:
            config = merge_chat_template_kwargs(config_from_name(name), kwargs)
        except ValueError as error:
            raise InvalidConfigError(f"renderer={name!r}: {error}") from error
        try:
            self._renderer = create_renderer(self._characters, config)
        except (AssertionError, ValueError) as error:  # the library's way to report a missing marker
            raise ModelError(f"the tokenizer does not fit the renderer {name!r}: {error}.") from error
        self.source = " ".join(marker for marker in self._characters.asked_for if not marker.isspace())

    def write(self, messages: list[dict[str, Any]], tools: Sequence[Schema], generation_prompt: bool) -> str:
        """Return the text of a conversation. Calls without ids, and their results, get ids of Kimi K2's form."""
        shown = [dict(tool) for tool in tools] or None
        ids = self._renderer.render_ids(_with_ids(messages), tools=shown, add_generation_prompt=generation_prompt)
        return self._characters.decode(ids)

    def read(self, text: str, generation_prompt: str = "") -> str:
        """Return a reply in the canonical form; a call that cannot be read becomes a broken one.

        Args:
            text: The reply as the model wrote it, special tokens included.
            generation_prompt: The text before it, which may have opened a thought.
        """
        encode = self._characters.encode
        parsed = self._renderer.parse_response(encode(text), prompt_ids=encode(generation_prompt))
        thinking, is_cut = parsed.reasoning_content or "", parsed.reasoning_complete is False
        thought = f"<think>\n{thinking}" + ("" if is_cut else "\n</think>\n\n")
        body = "\n".join([*([parsed.content] if parsed.content else []), *map(_canonical, parsed.tool_calls)])
        return (thought if thinking or is_cut else "") + body

    def writes_calls_that_are_read(self) -> bool:
        """Return whether `parse_reply` reads a call in this renderer's form, so that it need not read replies."""
        ids = self._renderer.render_ids(_with_ids([_ASK, _CALLS]))
        prompt = self._renderer.render_ids([_ASK], add_generation_prompt=True)
        n_common = next((i for i, (a, b) in enumerate(zip(ids, prompt, strict=False)) if a != b), len(prompt))
        return bool(parse_reply(self._characters.decode(ids[n_common:])).tool_calls)


def _canonical(call: Any) -> str:
    """Return a call of the library in the canonical form, and one that it could not read as a broken call."""
    # Without a schema, it calls a bare string among XML-like arguments invalid JSON.
    if call.status == "ok" or (call.status == "invalid_json" and isinstance(call.arguments, Mapping)):
        return FORMATTERS["hermes"]([ToolCall(call.name, call.arguments or {}, call.id)])
    return f"<tool_call>\n{call.raw}\n</tool_call>"


def _with_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which every call has an id, and every result the id of its call."""
    with_ids: list[dict[str, Any]] = []
    n_calls, unanswered = 0, list[str]()
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            call = {"id": f"functions.{call['function']['name']}:{n_calls}", **call}
            calls.append(call)
            unanswered.append(call["id"])
            n_calls += 1
        new = {**message, "tool_calls": calls} if calls else dict(message)
        if message["role"] == "tool":
            answered = unanswered.pop(0) if unanswered else f"functions.{message.get('name', 'tool')}:{n_calls}"
            new.setdefault("tool_call_id", answered)
        with_ids.append(new)
    return with_ids


class Service(NamedTuple):
    """Who writes conversations and reads replies for a model."""

    template: ChatTemplate
    reader: Renderer | None
    """Reads replies; None: `parse_reply` does."""
    description: str
    """Who serves, and why."""


def renderers_of(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the renderers for a model that a Jinja template or `parse_reply` may not serve, by its `model_type`.

    A folder or a downloaded model has a config.json. Nothing is downloaded. Several: the config does not decide.
    """
    from transformers import PretrainedConfig

    if not tokenizer.name_or_path:
        return ()
    try:
        config, _ = PretrainedConfig.get_config_dict(tokenizer.name_or_path, local_files_only=True)
    except (OSError, ValueError):
        return ()
    names = _FAMILIES.get(str(config.get("model_type")), ())
    if len(names) > 1 and importlib.util.find_spec("renderers") is not None:
        from renderers.base import MODEL_RENDERER_MAP

        exact = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
        return (exact,) if exact in names else names
    return names


def serve(
    tokenizer: PreTrainedTokenizerBase,
    renderer: str = "auto",
    *,
    chat_template: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Service:
    """Decide who serves a model.

    Args:
        tokenizer: The model's tokenizer.
        renderer: "template": its Jinja template and `parse_reply`. A name: that renderer of `renderers`. "auto": the
            template and `parse_reply`, but a renderer for what they cannot do, where config.json names the family.
        chat_template: A Jinja template to use instead of the tokenizer's.
        kwargs: The template's settings.

    Raises:
        InvalidConfigError: If both a renderer and a template are given, or the renderer does not exist.
        MissingExtraError: If the library is needed and not installed.
        ModelError: If the model has neither a template nor a renderer.
    """
    jinja = chat_template or getattr(tokenizer, "chat_template", None)
    if renderer not in ("auto", "template"):
        if chat_template is not None:
            raise InvalidConfigError(f"renderer={renderer!r} has its own template: leave chat_template out.")
        return _served_by(Renderer(tokenizer, renderer, kwargs), tokenizer, "as asked")
    names = renderers_of(tokenizer) if renderer == "auto" else ()
    if not jinja and len(names) == 1:
        return _served_by(Renderer(tokenizer, names[0], kwargs), tokenizer, "because the model has no Jinja template")
    if not jinja and names:
        choice = " or ".join(f"renderer={name!r}" for name in names)
        raise ModelError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template: give {choice}.")
    template = ChatTemplate(tokenizer, JinjaWriter(tokenizer, template=chat_template, kwargs=kwargs))
    reader, why = _reader(tokenizer, names)
    writer = "the model's own template" if chat_template is None else "the given template"
    return Service(template, reader, f"{writer}; {why}")


def _served_by(renderer: Renderer, tokenizer: PreTrainedTokenizerBase, why: str) -> Service:
    who = f"the renderer {renderer.name}, {why}"
    if renderer.writes_calls_that_are_read():
        return Service(ChatTemplate(tokenizer, renderer), None, f"{who}; {_PARSER}")
    return Service(ChatTemplate(tokenizer, renderer), renderer, f"{who}; it reads replies too")


def _reader(tokenizer: PreTrainedTokenizerBase, names: Sequence[str]) -> tuple[Renderer | None, str]:
    """Return the renderer that reads replies, if `parse_reply` does not read the calls of the family, and why."""
    if not names:
        return None, _PARSER
    if len(names) > 1 or importlib.util.find_spec("renderers") is None:
        return None, f"{_PARSER} (not tried: the library `renderers`, as {' or '.join(names)})"
    try:
        renderer = Renderer(tokenizer, names[0])
    except ModelError as error:
        return None, f"{_PARSER} ({error})"
    if renderer.writes_calls_that_are_read():
        return None, _PARSER
    return renderer, f"the renderer {renderer.name} reads replies, because parse_reply does not read its calls"
