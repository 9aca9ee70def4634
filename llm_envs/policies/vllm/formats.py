"""Requests to a model server and its answers: plain functions from our types to JSON and back.

vLLM's format is tested with a real server. SGLang's follows its documentation and has not been tried with a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.base import refuse_keep_mask
from llm_envs.types import FinishReason, Sampled, SamplingParams

__all__ = ["EXTENSION", "SERVE_COMMAND", "SGLangFormat", "ServerFormat", "TurnRequest", "VLLMFormat"]

SERVE_COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve {model} --logprobs-mode processed_logprobs"
"""The command for a server whose samples can be trained on; `{model}` is the model."""
EXTENSION = "llm_envs.policies.vllm.worker.WorkerExtension"
"""The value for `--worker-extension-cls`."""

# A request's seed is read as a signed 64-bit number.
_SEED_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class TurnRequest:
    """One turn to be sampled, before a server is chosen."""

    prompt_ids: npt.NDArray[np.int32]
    """Shape (T,)."""
    params: SamplingParams
    max_tokens: int
    """The remaining budget, within the context."""
    seed: int
    stop_ids: Sequence[int]
    """Ids that end a turn of this model; those of `params` are added."""

    def common(self) -> dict[str, Any]:
        """Return the parameters with the same names on both servers."""
        refuse_keep_mask(self.params, "a server")
        fields: dict[str, Any] = {
            "temperature": self.params.temperature,
            "repetition_penalty": self.params.repetition_penalty,
            "stop_token_ids": [*self.stop_ids, *self.params.stop_token_ids],
            "skip_special_tokens": False,
        }
        return fields | ({"stop": list(self.params.stop_strings)} if self.params.stop_strings else {})


class ServerFormat(Protocol):
    """The JSON format of one kind of server."""

    sample_path: str

    def request(self, turn: TurnRequest, *, model: str, salt: str) -> dict[str, Any]:
        """Return the JSON of a request for one turn; `salt` separates the prefix caches of different weights."""
        ...

    def sampled(self, answer: Any, weight_version: int) -> Sampled:
        """Return the turn in a server's answer."""
        ...


class VLLMFormat:
    """`vllm serve`: its completions endpoint takes token ids and returns them."""

    sample_path = "/v1/completions"

    def request(self, turn: TurnRequest, *, model: str, salt: str) -> dict[str, Any]:
        """Return the JSON of a request."""
        params = turn.params
        body: dict[str, Any] = turn.common() | {
            "model": model,
            "prompt": turn.prompt_ids.tolist(),
            "max_tokens": turn.max_tokens,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "seed": turn.seed & _SEED_MASK,
            "logprobs": 0,  # only that of the sampled token
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # texts could lose information, and take time to look up
        }
        return body | ({"cache_salt": salt} if salt else {}) | dict(params.extra)

    def sampled(self, answer: Any, weight_version: int) -> Sampled:
        """Return the turn."""
        choice = _first_choice(answer)
        ids, logprobs = choice.get("token_ids"), choice.get("logprobs") or {}
        logps = logprobs.get("token_logprobs")
        if ids is None or logps is None or len(ids) != len(logps) or None in logps:
            raise ModelError(
                "the server's answer lacks a token id or a log-probability for some token: the server must be vLLM "
                "0.10.2 or later, which has `return_token_ids`."
            )
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        return _sampled(ids, logps, _finish_reason(reason, stop), weight_version)


class SGLangFormat:
    """SGLang's own endpoint. Untested: written from its documentation."""

    sample_path = "/generate"

    def request(self, turn: TurnRequest, *, model: str, salt: str) -> dict[str, Any]:
        """Return the JSON of a request.

        Raises:
            InvalidConfigError: If the parameters filter tokens: SGLang reports log-probabilities before the filters.
        """
        params = turn.params
        if params.top_p < 1 or params.top_k > 0 or params.min_p > 0:
            raise InvalidConfigError(
                f"SGLang's log-probabilities ignore top_p, top_k and min_p, so samples with top_p={params.top_p:g}, "
                f"top_k={params.top_k}, min_p={params.min_p:g} cannot be trained on; set 1, 0 and 0."
            )
        sampling = turn.common() | {
            "max_new_tokens": turn.max_tokens,
            "sampling_seed": turn.seed & 0x7FFFFFFF,  # used by a server with --enable-deterministic-inference
        }
        body = {"input_ids": turn.prompt_ids.tolist(), "sampling_params": sampling, "return_logprob": True}
        return body | ({"extra_key": salt} if salt else {}) | dict(params.extra)

    def sampled(self, answer: Any, weight_version: int) -> Sampled:
        """Return the turn."""
        meta = answer.get("meta_info", {}) if isinstance(answer, Mapping) else {}
        entries = meta.get("output_token_logprobs")
        if entries is None:
            raise ModelError("the server's answer has no output_token_logprobs: is it SGLang, with return_logprob?")
        finish = meta.get("finish_reason") or {}
        ids, logps = [entry[1] for entry in entries], [entry[0] for entry in entries]
        return _sampled(ids, logps, _finish_reason(finish.get("type"), finish.get("matched")), weight_version)


def _first_choice(answer: Any) -> Mapping[str, Any]:
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not choices:
        raise ModelError(f"the server's answer has no choices: {str(answer)[:200]}")
    first: Mapping[str, Any] = choices[0]
    return first


def _sampled(ids: Sequence[int], logps: Sequence[float], reason: FinishReason, weight_version: int) -> Sampled:
    return Sampled(np.array(ids, dtype=np.int32), np.array(logps, dtype=np.float32), reason, weight_version)


def _finish_reason(reason: str | None, stopped_at: object) -> FinishReason:
    if reason == "length":
        return FinishReason.LENGTH
    if reason == "stop":
        return FinishReason.STOP_STRING if isinstance(stopped_at, str) else FinishReason.STOP
    return FinishReason.ABORT
