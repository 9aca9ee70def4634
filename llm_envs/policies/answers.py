"""Read the JSON of a model server or a chat API, field by field.

Nothing that a server writes is used before it is checked here. A wrong field is a `ModelError` that names the server
and the field, so the episode is errored and never scored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_envs.errors import ModelError
from llm_envs.types.sampling import MAX_LOGP, MIN_LOGP

__all__ = ["Answer", "read_json"]


def read_json(text: str) -> Any:
    """Return a text's JSON.

    Raises:
        ValueError: If it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's JSON, or a field of it. Every method raises a `ModelError` if the value is not what it returns."""

    url: str
    """The server's address, for errors."""
    value: Any
    """The value; None also if the field is missing."""
    field: str = "the answer"
    """The field's name, with those around it."""

    def __getitem__(self, name: str) -> Answer:
        if not isinstance(self.value, Mapping):
            raise self.wrong("an object")
        return Answer(self.url, self.value.get(name), name if self.field == "the answer" else f"{self.field}.{name}")

    def __bool__(self) -> bool:
        """Return whether the field has a value other than null."""
        return self.value is not None

    def items(self, *, least: int = 1) -> list[Answer]:
        """Return the elements of a list that has at least so many."""
        if not isinstance(self.value, list) or len(self.value) < least:
            raise self.wrong(f"a list of at least {least}" if least else "a list")
        return [Answer(self.url, value, f"{self.field}[{index}]") for index, value in enumerate(self.value)]

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def whole(self, least: int = 0) -> int:
        """Return an integer of at least `least`."""
        if type(self.value) is not int or self.value < least:
            raise self.wrong(f"an integer of at least {least}")
        return self.value

    def ids(self, n_vocabulary: int | None) -> list[int]:
        """Return token ids, at least one, all below `n_vocabulary` if that is known."""
        ids = self.value
        if not isinstance(ids, list) or not ids:
            raise self.wrong("a list of at least one token id")
        end = 2**31 if n_vocabulary is None else n_vocabulary
        for index, one in enumerate(ids):
            if type(one) is not int or not 0 <= one < end:
                raise Answer(self.url, one, f"{self.field}[{index}]").wrong(f"a token id from 0 to {end - 1}")
        return ids

    def logps(self, n_tokens: int, least: float = MIN_LOGP) -> list[float]:
        """Return the log-probabilities of so many tokens, each at least `least`."""
        logps = self.value
        if not isinstance(logps, list) or len(logps) != n_tokens:
            raise self.wrong(f"a list of {n_tokens} log-probabilities, one for each token")
        for index, one in enumerate(logps):
            if type(one) not in (float, int) or not least <= one <= MAX_LOGP:
                raise Answer(self.url, one, f"{self.field}[{index}]").wrong(f"a log-probability from {least:g} to 0")
        return logps

    def wrong(self, expected: str) -> ModelError:
        """Return the error for a value that is not the expected one."""
        shown = "missing" if self.value is None else repr(self.value)[:100]
        return ModelError(f"{self.url}: {self.field} is {shown}; it must be {expected}.")
