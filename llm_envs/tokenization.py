"""Text to token ids, with control over which of it may become special tokens.

A tokenizer turns the spelling of a special token into that token wherever it stands, and some normalise text first, so
that other spellings become it too. What an environment says must never do so. Looking for spellings is not enough;
what counts is looked at: the special tokens among the ids.
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

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["WORD", "Masked", "SafeTokenizer", "any_of", "common_length"]

IdArray = npt.NDArray[np.int32]

# Stands for text while a template is rendered. Letters alone, so that no template trims or escapes it, and drawn anew
# in every process, so that no text can contain it on purpose.
_NONCE = "".join(secrets.choice(string.ascii_letters) for _ in range(12))
_MARK = re.compile(rf"qz{_NONCE}([0-9]+)zq")
WORD = f"qz{_NONCE}WORDzq"
"""A harmless word: letters alone, and none that a text could contain on purpose."""


_SHORT, _MOST_SHORT = 100, 1000


class Masked:
    """Texts with parts of them replaced by marks, which survive any template, and are put back as plain tokens."""

    def __init__(self) -> None:
        self.hidden: list[str] = []

    def hide(self, text: str) -> str:
        """Return a mark that stands for `text`."""
        self.hidden.append(text)
        return f"qz{_NONCE}{len(self.hidden) - 1}zq"


class SafeTokenizer:
    """A tokenizer that tells apart what may become special tokens and what may not.

    Args:
        tokenizer: The tokenizer.
        structure: Text in which a template wrote its own tokens: added tokens in it count as special too, whether the
            tokenizer calls them so or not (DeepSeek's role markers are not).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, structure: Callable[[], str] = str) -> None:
        self.tokenizer = tokenizer
        self._structure = structure
        added = tokenizer.added_tokens_decoder
        self._ids = {token.content: id_ for id_, token in added.items()}
        self.marked_special = frozenset(token.content for token in added.values() if token.special)
        """Spellings of the tokens that the tokenizer itself calls special."""
        self._split = any_of(self._ids)
        self._characters: dict[str, tuple[int, ...]] = {}
        self._plain: dict[str, IdArray] = {}
        self._patterns: dict[frozenset[str], re.Pattern[str]] = {}

    @cached_property
    def special_ids(self) -> npt.NDArray[np.int32]:
        """Ids that text of an environment must never become."""
        return np.array(sorted(self._ids[spelling] for spelling in self._special), dtype=np.int32)

    @cached_property
    def _special(self) -> frozenset[str]:
        structure = {piece for piece in self.pieces(self._structure()) if piece in self._ids and piece.strip()}
        return self.marked_special | structure  # white space is in every text: runs of it are tokens, not markers

    @cached_property
    def _marked_spelling(self) -> re.Pattern[str]:
        return any_of(self.marked_special)

    def _spelling_but(self, keep: frozenset[str]) -> re.Pattern[str]:
        if keep not in self._patterns:
            self._patterns[keep] = any_of(self._special - keep)
        return self._patterns[keep]

    def pieces(self, text: str) -> list[str]:
        """Cut text into added tokens and what stands between them."""
        return [piece for piece in self._split.split(text) if piece]

    def id_of(self, spelling: str) -> int:
        """Return the id of an added token."""
        return self._ids[spelling]

    def encode(self, text: str, after: str = "") -> IdArray:
        """Encode text in which spellings of special tokens become those tokens. Shape (T,).

        Args:
            text: What to encode.
            after: Spelling of an added token that stands before it: some tokenizers encode the start of a text in
                another way than its middle, or let a special token swallow the white space behind it.
        """
        ids = self.tokenizer.encode(after + encodable(text), add_special_tokens=False, split_special_tokens=False)
        if after and ids and ids[0] == self._ids[after]:
            ids = ids[1:]
        return np.array(ids, dtype=np.int32)

    def encode_plain(self, text: str) -> IdArray:
        """Encode text of which nothing becomes a special token, whatever it contains. Shape (T,)."""
        if text in self._plain:
            return self._plain[text]
        ids = self._unspecial(encodable(text))
        if self.specials(ids):
            ids = np.array([i for character in text for i in self._character(character)], dtype=np.int32)
        if len(text) < _SHORT and len(self._plain) < _MOST_SHORT:  # spellings of special tokens come again and again
            self._plain[text] = ids
        return ids

    def encode_masked(self, text: str, masked: Masked, after: str = "") -> IdArray:
        """Encode text with marks: what they stand for becomes plain tokens, the rest is encoded as it is."""
        parts = _MARK.split(text)
        ids = [self.encode(parts[0], after)]
        for number, rest in zip(parts[1::2], parts[2::2], strict=True):
            ids += [self.encode_plain(masked.hidden[int(number)]), self._middle(rest, special=True)]
        return np.concatenate(ids).astype(np.int32)

    def specials(self, ids: IdArray) -> list[int]:
        """Return the special tokens among `ids`, in order."""
        return [int(i) for i in ids[np.isin(ids, self.special_ids)]] if len(ids) else []

    def has_marked_spelling(self, text: str) -> bool:
        """Return whether the spelling of a token that the tokenizer calls special stands in a text."""
        return self._marked_spelling.search(text) is not None

    def without_marked(self, text: str) -> str:
        """Return a text without the spellings of tokens that the tokenizer calls special."""
        return self._marked_spelling.sub("", text)

    def hide_spellings(self, value: Any, masked: Masked, *, keep: frozenset[str] = frozenset()) -> Any:
        """Return a copy of a JSON value in which spellings of special tokens are marks.

        Args:
            value: What to copy.
            masked: Keeps what the marks stand for.
            keep: Spellings that stay as they are.
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

    def _unspecial(self, text: str) -> IdArray:
        return self._middle(text, special=False)

    def _middle(self, text: str, *, special: bool) -> IdArray:
        """Encode text as it is encoded in the middle of another: without a space that some tokenizers put in front."""
        options = {"add_special_tokens": False, "split_special_tokens": not special}
        first = self.tokenizer.encode("\n", **options)
        ids = self.tokenizer.encode("\n" + text, **options)
        if ids[: len(first)] != first:
            return np.array(self.tokenizer.encode(text, **options), dtype=np.int32)
        return np.array(ids[len(first) :], dtype=np.int32)

    def _character(self, character: str) -> tuple[int, ...]:
        if character not in self._characters:
            self._characters[character] = tuple(self._unspecial(character).tolist())
        return self._characters[character]


def common_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many characters, or pieces, two texts have in common at their start."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def any_of(spellings: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern that finds, and splits at, each of these spellings; the longest first."""
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if longest_first else "((?!))")
