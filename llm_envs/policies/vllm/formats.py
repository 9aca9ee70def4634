"""Requests to a model server and its answers: plain functions from our types to JSON and back.

vLLM's format is tested with a real server, SGLang's against the contract of its server module, without its engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.answers import Answer
from llm_envs.policies.base import refuse_keep_mask
from llm_envs.types import FinishReason, Sampled, SamplingParams

__all__ = [
    "EXTENSION",
    "FORMATS",
    "SERVE_COMMAND",
    "SGLangFormat",
    "ServerFormat",
    "TurnRequest",
    "VLLMFormat",
    "finish_reason",
]

SERVE_COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve {model} --logprobs-mode processed_logprobs"
"""The command for a server whose samples can be trained on; `{model}` is the model."""
EXTENSION = "llm_envs.policies.vllm.worker.WorkerExtension"
"""The value for `--worker-extension-cls`."""

# A request's seed is read as a signed 64-bit number.
SEED_MASK = (1 << 63) - 1


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
    """Ids that end a turn of this model, together with the ids in `params`."""

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


class VLLMFormat:
    """`vllm serve`: its completions endpoint takes token ids and returns them."""

    sample_path = "/v1/completions"

    def request(self, turn: TurnRequest, *, model: str, salt: str) -> dict[str, Any]:
        """Return the JSON of a request for one turn; `salt` separates the prefix caches of different weights."""
        params = turn.params
        body: dict[str, Any] = turn.common() | {
            "model": model,
            "prompt": turn.prompt_ids.tolist(),
            "max_tokens": turn.max_tokens,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "seed": turn.seed & SEED_MASK,
            "logprobs": 0,  # only the sampled token's
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # texts could lose information, and take time to look up
        }
        return body | ({"cache_salt": salt} if salt else {}) | dict(params.extra)

    def sampled(self, answer: Answer, weight_version: int, n_vocabulary: int | None = None) -> Sampled:
        """Return the turn in a server's answer; `n_vocabulary` is the number of the model's ids, if that is known.

        Raises:
            ModelError: If a field breaks the format. The message has its name.
        """
        choice = answer["choices"].items()[0]
        if not choice["token_ids"]:
            raise choice["token_ids"].wrong("there: vLLM has `return_token_ids` from version 0.10.2 on")
        reason = finish_reason(_name(choice["finish_reason"]), choice["stop_reason"].value)
        if reason is FinishReason.ABORT:
            return Sampled.empty(reason, weight_version)
        ids = choice["token_ids"].ids(n_vocabulary)
        return _sampled(ids, choice["logprobs"]["token_logprobs"].logps(len(ids)), reason, weight_version)


class SGLangFormat:
    """SGLang's own endpoint, tested against the contract of its HTTP server."""

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

    def sampled(self, answer: Answer, weight_version: int, n_vocabulary: int | None = None) -> Sampled:
        """Return the turn; see `VLLMFormat.sampled`."""
        meta = answer["meta_info"]
        finish = meta["finish_reason"]
        reason = finish_reason(_name(finish["type"]), finish["matched"].value) if finish else FinishReason.ABORT
        if reason is FinishReason.ABORT:
            return Sampled.empty(reason, weight_version)
        listed = meta["output_token_logprobs"]
        pairs = [entry.items(least=2) for entry in listed.items()]
        ids = Answer(answer.url, [one.value for _, one, *_ in pairs], f"{listed.field}: ids").ids(n_vocabulary)
        logps = Answer(answer.url, [one.value for one, *_ in pairs], f"{listed.field}: values").logps(len(ids))
        return _sampled(ids, logps, reason, weight_version)


ServerFormat = VLLMFormat | SGLangFormat
FORMATS: Mapping[str, ServerFormat] = {"vllm": VLLMFormat(), "sglang": SGLangFormat()}
"""By the kind of server."""


def _sampled(ids: Sequence[int], logps: Sequence[float], reason: FinishReason, weight_version: int) -> Sampled:
    return Sampled(np.array(ids, dtype=np.int32), np.array(logps, dtype=np.float32), reason, weight_version)


def _name(reason: Answer) -> str | None:
    return reason.text() if reason else None


def finish_reason(name: str | None, stopped_at: int | str | None) -> FinishReason:
    """Return why a turn ended.

    Args:
        name: The server's or the engine's word for it.
        stopped_at: The stop string, or the id of the token, that ended it.
    """
    if name == "length":
        return FinishReason.LENGTH
    if name == "stop":
        return FinishReason.STOP_STRING if isinstance(stopped_at, str) else FinishReason.STOP
    return FinishReason.ABORT
