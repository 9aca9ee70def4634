"""Requests and answers of vLLM's engine inside this process, as our types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.policies.base import refuse_keep_mask
from llm_envs.policies.vllm.adapters import Adapter
from llm_envs.policies.vllm.formats import SEED_MASK, finish_reason
from llm_envs.types import FinishReason, Sampled, SamplingParams

if TYPE_CHECKING:
    import vllm

__all__ = ["lora_request", "sampled_so_far", "to_logps", "to_sampled", "to_vllm"]


def to_vllm(params: SamplingParams, max_tokens: int, seed: int, stop_ids: Sequence[int]) -> vllm.SamplingParams:
    """Return the sampling parameters of one request.

    Args:
        params: Ours.
        max_tokens: Most tokens of the turn.
        seed: Of the turn.
        stop_ids: Ids that end a turn of the model.
    """
    refuse_keep_mask(params, "vLLM")
    import vllm
    from vllm.sampling_params import RequestOutputKind

    return vllm.SamplingParams(
        max_tokens=max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        stop=list(params.stop_strings) or None,
        stop_token_ids=[*stop_ids, *params.stop_token_ids],
        seed=seed & SEED_MASK,
        logprobs=0,
        flat_logprobs=True,  # avoids a dict for each token
        skip_clone=True,  # this object belongs to this request only
        detokenize=bool(params.stop_strings),
        output_kind=RequestOutputKind.FINAL_ONLY,
        **params.extra,
    )


def lora_request(adapter: Adapter) -> Any:
    """Return the name of an adapter in a request."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.name, adapter.number, str(adapter.path))


def to_sampled(request: vllm.RequestOutput, weight_version: int) -> Sampled:
    """Return an answer as a turn."""
    output = request.outputs[0]
    ids = list(output.token_ids)
    listed: Any = output.logprobs
    if listed is None or listed.token_ids != ids:
        raise RuntimeError(f"vLLM returned {len(ids)} tokens without a log-probability for each.")
    return Sampled(
        token_ids=np.array(ids, dtype=np.int32),
        logps=np.array(listed.logprobs, dtype=np.float32),
        finish_reason=finish_reason(output.finish_reason, output.stop_reason),
        weight_version=weight_version,
    )


def sampled_so_far(engine: Any, request_id: str, weight_version: int) -> Sampled:
    """Return a turn's tokens so far; none, if this version of vLLM stores them elsewhere.

    vLLM has no public function for this. This does what `OutputProcessor.abort_requests` does for a streaming caller
    when a request is aborted.
    """
    from vllm.v1.engine import FinishReason as Reason

    try:
        processor = engine.output_processor
        (internal_id,) = processor.external_req_ids[request_id]
        state = processor.request_states[internal_id]
        output = state.make_request_output([], None, Reason.ABORT, None)
        if output.outputs[0].token_ids:
            return to_sampled(output, weight_version)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    return Sampled.empty(FinishReason.ABORT, weight_version)


def to_logps(
    request: vllm.RequestOutput, weight_version: int, *, ids: npt.NDArray[np.int32], temperature: float
) -> npt.NDArray[np.float32]:
    """Return the log-probabilities of a request's prompt tokens, shape (T,).

    Each position has the given token first, followed by all tokens if the full vocabulary was requested.
    """
    listed: Any = request.prompt_logprobs
    if listed is None or len(listed) != len(ids):
        raise RuntimeError(f"vLLM returned {len(listed or ())} log-probabilities for {len(ids)} given tokens.")
    out = np.zeros(len(ids), np.float32)
    for place in range(1, len(ids)):
        tokens = listed.token_ids[listed.start_indices[place] : listed.end_indices[place]]
        logps = np.array(listed.logprobs[listed.start_indices[place] : listed.end_indices[place]])
        logp = logps[tokens.index(int(ids[place]))] / temperature
        if temperature != 1:
            _, every = np.unique(tokens, return_index=True)  # the given token occurs twice there
            scaled = logps[every] / temperature
            logp -= scaled.max() + np.log(np.exp(scaled - scaled.max()).sum())
        out[place] = logp
    return out
