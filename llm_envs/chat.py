"""Messages to token ids, appended turn by turn.

The first prompt is encoded with the model's own chat template. After that only what the environment says is encoded:
the template's text between the end of an assistant turn and the start of the next. What the model sampled is never
encoded again.

Environment text never becomes a special token: where a content contains the spelling of one, the template's text and
the contents are encoded apart, with special tokens off for the contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.errors import ModelError
from llm_envs.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatCodec"]

# Stands for a content while the template is rendered. Letters alone, so that no template trims or escapes it.
_SENTINEL = "qzSENTINELzq{}q"

IdArray = npt.NDArray[np.int32]


class ChatCodec:
    """Encodes conversations for one tokenizer and its chat template.

    Args:
        tokenizer: A tokenizer with a chat template.
        thinking: Passed to the template as `enable_thinking`; None leaves the template's default.

    Raises:
        ModelError: If there is no chat template, or the template ends an assistant turn without a special token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, thinking: bool | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template: use the instruction-tuned version of "
                "the model, or set tokenizer.chat_template to a Jinja template of your own."
            )
        self.tokenizer = tokenizer
        self._template_kwargs: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        self._special_texts = tuple(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        self.end_of_turn_id: int = self._find_end_of_turn()
        """Id of the token with which the template closes an assistant turn."""
        self.end_of_turn_text = str(tokenizer.decode([self.end_of_turn_id], skip_special_tokens=False))
        eos_id = tokenizer.eos_token_id
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys([self.end_of_turn_id] + ([] if eos_id is None else [eos_id]))
        )
        """Ids at which sampling a turn ends: the end-of-turn token first."""

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> IdArray:
        """Encode the start of an episode, ready for the assistant's first turn.

        Args:
            messages: System prompt and first observation(s).
            tools: JSON Schemas of the tools, rendered by the template.

        Returns:
            Token ids, shape (T,).
        """
        text = self._render(messages, tools)
        if not self._can_forge(messages):
            return self._encode(text)
        contents = [message.content for message in messages]
        return self._encode_apart(self._render(_with_sentinels(messages), tools), contents)

    def encode_delta(self, messages: Sequence[Message], *, closed: bool, generation_prompt: bool = True) -> IdArray:
        """Encode what stands between an assistant turn and the next one.

        Args:
            messages: What the environment said since the assistant's turn.
            closed: Whether the turn's own ids ended with `end_of_turn_id`. If not, that token comes first.
            generation_prompt: Whether the assistant is to answer. False for the last observation of an episode.

        Returns:
            Token ids, shape (T,), all written by the template or the environment.
        """
        forged = self._can_forge(messages)
        delta = self._delta_text(_with_sentinels(messages) if forged else messages, generation_prompt)
        if not closed:
            delta = self.end_of_turn_text + delta
        if not forged:
            return self._encode(delta)
        return self._encode_apart(delta, [message.content for message in messages])

    def encode_reply(self, text: str) -> IdArray:
        """Encode words that stand for an assistant's own (an oracle's), closed by the end-of-turn token. Shape (T,)."""
        ids = self._encode(text, special_tokens=not self._contains_special(text))
        return np.append(ids, np.int32(self.end_of_turn_id)).astype(np.int32)

    def decode_reply(self, token_ids: IdArray) -> str:
        """Decode sampled ids to the action: without a closing stop token, other special tokens kept."""
        ids = token_ids.tolist()
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _find_end_of_turn(self) -> int:
        sentinel = _SENTINEL.format(0)
        rendered = self._render([Message("user", "x"), Message("assistant", sentinel)], (), generation_prompt=False)
        _, found, after = rendered.partition(sentinel)
        special_ids = {id_ for id_, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        for token_id in self._encode(after).tolist() if found else []:
            if token_id in special_ids:
                return int(token_id)
        raise ModelError(
            f"the chat template of {self.tokenizer.name_or_path!r} ends an assistant turn with {after[:40]!r}, which "
            "has no special token: a turn would have no end. Give template and tokenizer an end-of-turn token."
        )

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], generation_prompt: bool = True
    ) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                [message.to_dict() for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._template_kwargs,
            )
        except Exception as error:  # Jinja's own errors, and whatever a template raises on purpose
            roles = [message.role for message in messages]
            raise ModelError(f"the chat template refuses messages with the roles {roles}: {error}") from error
        return str(text)

    def _delta_text(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        sentinel = _SENTINEL.format("A")
        before = [Message("user", "x"), Message("assistant", sentinel)]
        rendered = self._render([*before, *messages], (), generation_prompt=generation_prompt)
        _, _, after = rendered.partition(sentinel)
        head, found, delta = after.partition(self.end_of_turn_text)
        if not found or head.strip():
            raise ModelError(
                f"the chat template does not close an assistant turn with {self.end_of_turn_text!r} when "
                f"{[message.role for message in messages]} follows (it writes {after[:40]!r})."
            )
        return delta

    def _contains_special(self, text: str) -> bool:
        return any(special in text for special in self._special_texts)

    def _can_forge(self, messages: Sequence[Message]) -> bool:
        return any(self._contains_special(message.content) for message in messages)

    def _encode(self, text: str, special_tokens: bool = True) -> IdArray:
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not special_tokens)
        return np.array(ids, dtype=np.int32)

    def _encode_apart(self, rendered: str, contents: Sequence[str]) -> IdArray:
        pieces: list[IdArray] = []
        rest = rendered
        for index, content in enumerate(contents):
            before, _, rest = rest.partition(_SENTINEL.format(index))
            pieces += [self._encode(before), self._encode(content, special_tokens=False)]
        return np.concatenate([*pieces, self._encode(rest)]).astype(np.int32)


def _with_sentinels(messages: Sequence[Message]) -> list[Message]:
    return [replace(message, content=_SENTINEL.format(index)) for index, message in enumerate(messages)]
