"""Text to token ids, with control over which parts may become special tokens.

A tokenizer turns the spelling of a special token into that token wherever it appears. Some normalise text first, so
that other spellings become it too. Environment text must never become a special token. Searching for spellings is not
enough, so the special tokens among the encoded ids are checked.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.spaces import encodable
from llm_envs.types import IdArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["WORD", "Masked", "SafeTokenizer", "any_of", "common_length", "contains_in_order", "generation_ends"]


# A placeholder for text while a template is rendered. Only letters, so that no template trims or escapes it, and random
# in every process, so that no text can contain it on purpose.
_NONCE = "".join(secrets.choice(string.ascii_letters) for _ in range(12))
_MARK = re.compile(rf"qz{_NONCE}([0-9]+)zq")
WORD = f"qz{_NONCE}WORDzq"
"""A placeholder word: only letters, and random, so that no text contains it on purpose."""


_SHAPE = re.compile(r"<\S+>|\[\S+\]")
_CONTROL = re.compile(r"<[|\uff5c].+[|\uff5c]>")  # DeepSeek uses a full-width bar
_COMMON = frozenset(f"<{slash}{name}>" for slash in ("", "/") for name in ("think", "tool_call", "tool_response"))

_SHORT, _MAX_SHORT = 100, 1000


class Masked:
    """Texts in which some parts are replaced by marks. Marks survive any template and are encoded as plain tokens."""

    def __init__(self) -> None:
        self.hidden: list[str] = []

    def hide(self, text: str) -> str:
        """Return a mark for `text`."""
        self.hidden.append(text)
        return f"qz{_NONCE}{len(self.hidden) - 1}zq"


class SafeTokenizer:
    """A tokenizer with control over special tokens.

    Special tokens here are those that the tokenizer declares special, and its soft markers: added tokens that close a
    thought, open a call or mark a role without being declared special (`</think>`, `<tool_call>`, DeepSeek's role
    markers). An added token in brackets counts as one if a template writes it, if the template's source contains it, if
    it has the shape of a control token, `<|...|>`, or if it is a common marker. HTML tags, runs of white space and
    words that were added to a tokenizer count as text.

    Args:
        tokenizer: The tokenizer.
        structure: Returns a text in which a template wrote its own tokens.
        source: The source of the template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, structure: Callable[[], str] = str, source: str = ""
    ) -> None:
        self.tokenizer = tokenizer
        self._structure = structure
        self._source = source
        added = tokenizer.added_tokens_decoder
        self._ids = {token.content: id_ for id_, token in added.items()}
        self.marked_special = frozenset(token.content for token in added.values() if token.special)
        """Spellings of the tokens that the tokenizer declares special."""
        self._split = any_of(self._ids)
        self._characters: dict[str, tuple[int, ...]] = {}
        self._plain: dict[str, IdArray] = {}
        self._patterns: dict[frozenset[str], re.Pattern[str]] = {}

    @cached_property
    def special_ids(self) -> npt.NDArray[np.int32]:
        """Ids that environment text must never become."""
        return np.array(sorted(self._ids[spelling] for spelling in self._special), dtype=np.int32)

    @cached_property
    def _special(self) -> frozenset[str]:
        structure = {piece for piece in self.pieces(self._structure()) if piece in self._ids and piece.strip()}
        soft = {spelling for spelling in self._ids if _SHAPE.fullmatch(spelling) and self._is_soft(spelling)}
        return self.marked_special | structure | soft

    def _is_soft(self, spelling: str) -> bool:
        # Hunyuan's template composes its markers: "<think{}>".format(":opensource").
        name = spelling.partition(":")[0]
        return name in self._source or spelling in _COMMON or _CONTROL.fullmatch(spelling) is not None

    @cached_property
    def _marked_spelling(self) -> re.Pattern[str]:
        return any_of(self.marked_special)

    def _spelling_but(self, keep: frozenset[str]) -> re.Pattern[str]:
        if keep not in self._patterns:
            self._patterns[keep] = any_of(self._special - keep)
        return self._patterns[keep]

    def pieces(self, text: str) -> list[str]:
        """Split text into added tokens and the text between them."""
        return [piece for piece in self._split.split(text) if piece]

    def id_of(self, spelling: str) -> int:
        """Return the id of an added token."""
        return self._ids[spelling]

    def encode(self, text: str, after: str = "") -> IdArray:
        """Encode text in which spellings of special tokens become those tokens. Shape (T,).

        Args:
            text: The text to encode.
            after: Spelling of an added token before the text. Some tokenizers encode the start of a text differently
                from its middle, or let a special token swallow the white space after it.
        """
        ids = self.tokenizer.encode(after + encodable(text), add_special_tokens=False, split_special_tokens=False)
        if after and ids and ids[0] == self._ids[after]:
            ids = ids[1:]
        return np.array(ids, dtype=np.int32)

    def encode_plain(self, text: str) -> IdArray:
        """Encode text so that no part of it becomes a special token. Shape (T,)."""
        if text in self._plain:
            return self._plain[text]
        ids = self._middle(encodable(text), special=False)
        # A tokenizer may normalise other text to a special token. Character by character, nothing is left to match.
        if self.specials(ids):
            ids = np.array([i for character in text for i in self._character(character)], dtype=np.int32)
        if len(text) < _SHORT and len(self._plain) < _MAX_SHORT:  # spellings of special tokens recur often
            self._plain[text] = ids
        return ids

    def encode_masked(self, text: str, masked: Masked, after: str = "") -> IdArray:
        """Encode text with marks: the hidden texts become plain tokens, the rest is encoded normally."""
        parts = _MARK.split(text)
        ids = [self.encode(parts[0], after)]
        for number, rest in zip(parts[1::2], parts[2::2], strict=True):
            ids += [self.encode_plain(masked.hidden[int(number)]), self._middle(rest, special=True)]
        return np.concatenate(ids).astype(np.int32)

    def specials(self, ids: IdArray) -> list[int]:
        """Return the special tokens among `ids`, in order."""
        return [int(i) for i in ids[np.isin(ids, self.special_ids)]] if len(ids) else []

    def has_marked_spelling(self, text: str) -> bool:
        """Return whether a text contains the spelling of a token that the tokenizer declares special."""
        return self._marked_spelling.search(text) is not None

    def without_marked(self, text: str) -> str:
        """Return a text without the spellings of tokens that the tokenizer declares special."""
        return self._marked_spelling.sub("", text)

    def hide_spellings(self, value: Any, masked: Masked, *, keep: frozenset[str] = frozenset()) -> Any:
        """Return a copy of a JSON value in which spellings of special tokens are replaced by marks.

        Args:
            value: The value to copy.
            masked: Stores the hidden texts.
            keep: Spellings to leave unchanged.
        """
        if isinstance(value, str):
            return self._spelling_but(keep).sub(lambda found: masked.hide(found.group()), value)
        if isinstance(value, Mapping):
            return {
                self.hide_spellings(key, masked, keep=keep): self.hide_spellings(item, masked, keep=keep)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.hide_spellings(item, masked, keep=keep) for item in value]
        return value

    def _middle(self, text: str, *, special: bool) -> IdArray:
        """Encode text as in the middle of another text, without the space that some tokenizers put in front."""
        options = {"add_special_tokens": False, "split_special_tokens": not special}
        first = self.tokenizer.encode("\n", **options)
        ids = self.tokenizer.encode("\n" + text, **options)
        if ids[: len(first)] != first:  # the tokenizer merged the line break with the text
            return np.array(self.tokenizer.encode(text, **options), dtype=np.int32)
        return np.array(ids[len(first) :], dtype=np.int32)

    def _character(self, character: str) -> tuple[int, ...]:
        if character not in self._characters:
            self._characters[character] = tuple(self._middle(character, special=False).tolist())
        return self._characters[character]


def common_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the common beginning of two texts, in characters or pieces."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def any_of(spellings: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds, and splits at, each of these spellings, longest first."""
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if longest_first else "((?!))")


def generation_ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids at which the model's `generation_config.json` ends generation; nothing is downloaded for it.

    OLMo 3 lists its `<|im_end|>` there, and not in its tokenizer.
    """
    from transformers import GenerationConfig

    try:
        listed = GenerationConfig.from_pretrained(tokenizer.name_or_path, local_files_only=True).eos_token_id
    except (OSError, ValueError, TypeError, AttributeError):  # missing, or not a generation config
        return []
    ids = listed if isinstance(listed, list) else [listed]
    return [id_ for id_ in ids if type(id_) is int and 0 <= id_ < len(tokenizer)]


def contains_in_order(words: str, parts: Sequence[str]) -> bool:
    """Return whether a text contains all parts, in this order."""
    position = 0
    for part in parts:
        position = words.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return True
