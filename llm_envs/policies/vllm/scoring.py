"""Log-probabilities of given tokens from a vLLM server: what its model thinks of text that another model wrote."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from llm_envs.errors import BridgeError, InvalidConfigError, ModelError
from llm_envs.policies.answers import Answer
from llm_envs.policies.vllm.control import PROBE_TEXT, ServerFacts, VLLMControl
from llm_envs.policies.vllm.http import RetryableError, bearer, check_url, is_local, server_root
from llm_envs.policies.vllm.routing import Backoff

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenScorer"]

T = TypeVar("T")

_ROWS_PER_REQUEST = 16
"""A long request loses more when it is tried again; a short one costs more overhead."""
_ANSWER_S = 1800.0


class TokenScorer:
    """A vLLM server that scores given token ids.

    Any `vllm serve MODEL` will do: it needs no options, and its log-probabilities of a prompt are the model's
    at temperature 1, whatever its `--logprobs-mode`.

    Args:
        url: Address of the server, such as "http://127.0.0.1:8000".
        model: The server's name of an adapter; None: its model.
        api_key: Sent as a bearer token.
        max_concurrency: Maximum number of concurrent requests, of up to 16 rows each.
        max_retries: Attempts at a request after the first. The default retries for about ten minutes.
        backoff: Waits between attempts.

    Raises:
        InvalidConfigError: If the URL is not one, or the server refuses the API key.
        BridgeError: If the server does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        max_concurrency: int = 8,
        max_retries: int = 40,
        backoff: Backoff | None = None,
    ) -> None:
        check_url(url, "the server's URL")
        if max_concurrency < 1 or max_retries < 0:
            raise InvalidConfigError(f"{max_concurrency=} and {max_retries=}: they must be at least 1 and 0.")
        self.url = server_root(url)
        self.max_concurrency, self.max_retries, self.backoff = max_concurrency, max_retries, backoff or Backoff()
        self._control = VLLMControl(bearer(api_key), use_proxy=not is_local(url))
        try:
            self.facts: ServerFacts = self._control.facts(self.url)
        except RetryableError as error:
            raise BridgeError(f"no model server answers: {error}") from error
        self.model = model or self.facts.model

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Compare the server's tokenizer with one, on a text with digits, other scripts and all special tokens.

        Raises:
            ModelError: If the two give other ids.
        """
        text = PROBE_TEXT + "".join(tokenizer.all_special_tokens)
        ours = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        theirs = self._control.tokenize(self.facts, text)
        if theirs is not None and theirs != ours:
            place = next((n for n, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), 0)
            raise ModelError(
                f"{self.url} serves {self.facts.root!r}, whose tokenizer is another than the policy's (the same text "
                f"is {theirs[place : place + 4]} there and {ours[place : place + 4]} here), so it would score other "
                "words than were sampled: serve a model of the same family, or learn from what it writes by "
                "supervised fine-tuning."
            )

    def score_tokens(self, rows: Sequence[npt.ArrayLike]) -> list[npt.NDArray[np.float32]]:
        """Return the log-probability of each token given those before it.

        Args:
            rows: Token ids, each of shape (T,), T at least 1.

        Returns:
            For each row, shape (T,), in nats; NaN at the first token, which nothing comes before.

        Raises:
            InvalidConfigError: If a row is longer than the server's context, or has an id that its model lacks.
            ModelError: If the server does not return log-probabilities of prompts.
            BridgeError: If a request has failed at every attempt.
        """
        lists = [np.asarray(row).tolist() for row in rows]
        longest = max(map(len, lists), default=0)
        if longest >= self.facts.max_model_len:  # one token is always generated
            raise InvalidConfigError(
                f"a row of {longest} tokens does not fit {self.url}, whose context has {self.facts.max_model_len} "
                f"tokens and needs one more than the row: start it with --max-model-len {longest + 1} or more, or "
                "lower max_completion_length."
            )
        parts = [lists[start : start + _ROWS_PER_REQUEST] for start in range(0, len(lists), _ROWS_PER_REQUEST)]
        with ThreadPoolExecutor(self.max_concurrency, thread_name_prefix="llm-envs-score") as threads:
            return [logps for scored in threads.map(self._score, parts) for logps in scored]

    def close(self) -> None:
        """Close the connections."""
        self._control.close()

    def _score(self, lists: Sequence[list[int]]) -> list[npt.NDArray[np.float32]]:
        body = {"model": self.model, "prompt": lists, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        answer = self._tried(lambda: self._control.ask(f"{self.url}/v1/completions", body, timeout_s=_ANSWER_S))
        choices = answer["choices"].items()
        if len(choices) > 1:
            choices.sort(key=lambda choice: choice["index"].whole())
        if len(choices) != len(lists):
            raise answer["choices"].wrong(f"a list of {len(lists)}, one for each row")
        return [_logps_of(choice, ids) for choice, ids in zip(choices, lists, strict=True)]

    def _tried(self, ask: Callable[[], T]) -> T:
        for attempt in range(self.max_retries):
            try:
                return ask()
            except RetryableError as error:
                time.sleep(self.backoff.delay_s(attempt, 0, error.asked_s))
        try:
            return ask()
        except RetryableError as error:
            raise BridgeError(
                f"rows could not be scored in {self.max_retries + 1} attempts; at last: {error}"
            ) from error


def _logps_of(choice: Answer, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the log-probabilities in one choice of an answer.

    Raises:
        ModelError: If one is missing, or is not a log-probability.
    """
    listed = choice["prompt_logprobs"]
    if not listed:
        raise ModelError(
            f"{choice.url} returned no log-probabilities of the prompt: a teacher is scored by vLLM's "
            "`/v1/completions` with `prompt_logprobs`, which other servers and proxies may drop."
        )
    entries = listed.items()
    if len(entries) != len(ids):
        raise listed.wrong(f"a list of {len(ids)}, one for each token")
    # An entry is `{"id": {"logprob": ...}}`; the first is None, since nothing comes before the first token.
    values = [entry[str(token)]["logprob"].value for entry, token in zip(entries[1:], ids[1:], strict=True)]
    # Unlike a sampled token, a given one may be impossible: only its upper bound is known.
    logps = Answer(choice.url, values, f"{listed.field}: logprob").logps(len(ids) - 1, least=-sys.float_info.max)
    return np.array([np.nan, *logps], dtype=np.float32)
