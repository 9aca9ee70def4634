"""Sample turns from a model in this process, one or a batch, each with its log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.policies.inference.loading import context_length, eos_token_ids
from llm_envs.policies.inference.padding import IdArray, PaddedBatch, check_token_ids
from llm_envs.policies.inference.positions import check_positions
from llm_envs.policies.inference.seeds import turn_seed
from llm_envs.types import FinishReason, KeptTokens, Sampled, SamplingParams

try:
    import torch
except ImportError as error:
    raise MissingExtraError("sampling from a model needs torch: pip install 'llm-envs[train]'.") from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["batch_generate", "create_generator", "generate", "has_filters", "logits_processor"]


# Their causal mask or position bias is a table of the context's size, indexed by the place in the padded batch.
_WIDTH_BOUND_TYPES = ("gpt_neo", "mpt")


def generate(
    model: PreTrainedModel,
    prompt_ids: IdArray,
    params: SamplingParams | None = None,
    *,
    seed: int | None = None,
    stop_token_ids: Sequence[int] | None = None,
    weight_version: int = 0,
    detokenize: Callable[[list[int]], str] | None = None,
) -> Sampled:
    """Sample one turn: `batch_generate` for a single prompt.

    Args:
        model: A causal language model in eval mode.
        prompt_ids: Shape (T,), T at least 1.
        params: How to sample.
        seed: The same seed and prompt give the same turn; None takes it from `params.seed` and the prompt.
        stop_token_ids: Ids that end the turn and are kept as its last token; None takes the model's own.
        weight_version: Recorded in the result.
        detokenize: Ids to text; required if `params.stop_strings` is not empty.

    Returns:
        The turn; without a token, and with `FinishReason.CONTEXT_FULL`, if the prompt leaves no room.

    Raises:
        InvalidConfigError: If the prompt is empty or has ids that the model does not have.
    """
    sampled = batch_generate(
        model,
        [prompt_ids],
        params,
        seeds=None if seed is None else [seed],
        stop_token_ids=stop_token_ids,
        weight_version=weight_version,
        detokenize=detokenize,
    )
    return sampled[0]


def create_generator(
    model: PreTrainedModel,
    *,
    stop_token_ids: Sequence[int] | None = None,
    detokenize: Callable[[list[int]], str] | None = None,
) -> Callable[[IdArray, SamplingParams], Sampled]:
    """Return `generate` of one model as a function of prompt and parameters: a `conversation.GenerateFn`.

    Args:
        model: A causal language model in eval mode.
        stop_token_ids: Ids that end a turn (`ChatCodec.stop_token_ids`); None takes the model's own.
        detokenize: Ids to text; required for stop strings.
    """

    def generate_fn(prompt_ids: IdArray, params: SamplingParams) -> Sampled:
        return generate(model, prompt_ids, params, stop_token_ids=stop_token_ids, detokenize=detokenize)

    return generate_fn


@torch.no_grad()
def batch_generate(
    model: PreTrainedModel,
    prompts: Sequence[IdArray],
    params: SamplingParams | None = None,
    *,
    max_new_tokens: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    weight_version: int = 0,
    detokenize: Callable[[list[int]], str] | None = None,
    is_aborted: Callable[[int], bool] = lambda index: False,
    micro_batch_size: int | None = None,
) -> list[Sampled]:
    """Sample one turn for each prompt, in one padded batch that shrinks as turns end.

    Each row draws with uniform numbers from its own seed by inverting the cumulative distribution. So its tokens do not
    depend on the rest of the batch (up to rounding in the model's kernels; `scoring` names the one kind of model that
    is an exception).

    Args:
        model: A causal language model in eval mode.
        prompts: B arrays of token ids, each of shape (T_b,), T_b at least 1.
        params: How to sample, the same for all rows.
        max_new_tokens: B limits, each lowered to the room that the context leaves; None takes `params.max_new_tokens`.
        seeds: B seeds; None takes them from `params.seed`, each row's prompt and its index.
        stop_token_ids: Ids that end a turn and are kept as its last token; None takes the model's own.
        weight_version: Recorded in the results.
        detokenize: Ids to text; required if `params.stop_strings` is not empty.
        is_aborted: Called once per step for each running row; the row stops if it returns true.
        micro_batch_size: Rows sampled at once; None takes all. The result does not depend on it.

    Returns:
        B results in the order of `prompts`. Log-probabilities are those of the distribution that was drawn from; at
        temperature 0 (greedy) those of the model's own distribution. If a prompt leaves no room for a token, its result
        has no tokens and the reason `FinishReason.CONTEXT_FULL`; the other prompts are sampled.

    Raises:
        InvalidConfigError: If a prompt is empty or has ids that the model does not have, or an argument is out of
            range.
        ModelError: If there are several prompts and the model's log-probabilities depend on the padding of a batch.
    """
    params = params or SamplingParams()
    if params.extra:
        raise InvalidConfigError(f"extra={dict(params.extra)!r}: sampling by transformers has no further settings.")
    if params.stop_strings and detokenize is None:
        raise InvalidConfigError("stop_strings need `detokenize`, which turns token ids into text.")
    if micro_batch_size is not None and micro_batch_size < 1:
        raise InvalidConfigError(f"micro_batch_size={micro_batch_size!r}: it must be at least 1.")
    if len(prompts) > 1:
        check_positions(model)
    prompts = [check_token_ids(model, prompt, f"prompt {index}") for index, prompt in enumerate(prompts)]
    if max_new_tokens is None:
        max_new_tokens = [params.max_new_tokens] * len(prompts)
    limits = _limits(model, prompts, max_new_tokens)
    if seeds is None:
        seeds = [turn_seed(params, prompt, index) for index, prompt in enumerate(prompts)]
    if len(seeds) != len(prompts):
        raise InvalidConfigError(f"{len(seeds)} seeds for {len(prompts)} prompts.")
    ends = _Ends(
        tuple(eos_token_ids(model) if stop_token_ids is None else stop_token_ids), params, detokenize, is_aborted
    )
    drafts = [_Draft(index, limit, seed) for index, (limit, seed) in enumerate(zip(limits, seeds, strict=True))]
    open_drafts = [draft for draft in drafts if draft.finish_reason is None]
    size = micro_batch_size or max(len(open_drafts), 1)
    if _is_bound_by_width(model, prompts, limits):
        size = 1
    for start in range(0, len(open_drafts), size):
        some = open_drafts[start : start + size]
        _sample_rows(model, PaddedBatch([prompts[draft.index] for draft in some], model.device), some, ends)
    return [draft.sampled(weight_version) for draft in drafts]


class _Draft:
    """One turn while it is being sampled."""

    def __init__(self, index: int, limit: int, seed: int) -> None:
        self.index = index
        self.limit = limit
        self.uniforms = np.random.default_rng(seed).random(limit)
        self.ids: list[int] = []
        self.logps: list[float] = []
        self.kept: list[Any] = []
        self.finish_reason: FinishReason | None = None if limit else FinishReason.CONTEXT_FULL

    def sampled(self, weight_version: int) -> Sampled:
        return Sampled(
            token_ids=np.array(self.ids, dtype=np.int32),
            logps=np.array(self.logps, dtype=np.float32),
            finish_reason=self.finish_reason or FinishReason.ABORT,
            weight_version=weight_version,
            kept=_kept_tokens(self.kept) if self.kept else None,
        )


@dataclass
class _Ends:
    """The conditions that end a turn."""

    stop_token_ids: tuple[int, ...]
    params: SamplingParams
    detokenize: Callable[[list[int]], str] | None
    is_aborted: Callable[[int], bool]

    def reason(self, draft: _Draft) -> FinishReason | None:
        """Return why a turn ends after its newest token, or None if it continues."""
        if draft.ids[-1] in self.stop_token_ids:
            return FinishReason.STOP
        if draft.ids[-1] in self.params.stop_token_ids:
            return FinishReason.STOP_STRING
        if self.params.stop_strings and self.detokenize is not None:
            text = self.detokenize(draft.ids)
            if any(stop in text for stop in self.params.stop_strings):
                return FinishReason.STOP_STRING
        if len(draft.ids) >= draft.limit:
            return FinishReason.LENGTH
        return FinishReason.ABORT if self.is_aborted(draft.index) else None


def _sample_rows(model: PreTrainedModel, batch: PaddedBatch, drafts: Sequence[_Draft], ends: _Ends) -> None:
    """Sample the rows of a batch to their ends, into `drafts`."""
    process = logits_processor(ends.params)
    is_greedy = ends.params.temperature == 0
    keeps_mask = ends.params.keep_mask and has_filters(ends.params)
    while batch.rows:
        logits = process(batch.input_ids, batch.forward(model))
        rows = [drafts[row] for row in batch.rows]
        next_ids, next_logps = _draw(
            logits, [draft.uniforms[min(len(draft.ids), draft.limit - 1)] for draft in rows], greedy=is_greedy
        )
        if keeps_mask:
            for draft, row_V in zip(rows, torch.isfinite(logits).cpu().numpy(), strict=True):
                if draft.finish_reason is None:
                    draft.kept.append(np.flatnonzero(row_V))
        for draft, token, logp in zip(rows, next_ids.tolist(), next_logps.tolist(), strict=True):
            if draft.finish_reason is None:
                draft.ids.append(token)
                draft.logps.append(logp)
                draft.finish_reason = ends.reason(draft)
        running = [draft.finish_reason is None for draft in rows]
        batch.extend(next_ids, running)
        # Copying the cache pays off once a quarter of the rows has ended; until then those rows run on, ignored.
        if sum(running) <= 0.75 * len(running):
            batch.keep([place for place, is_running in enumerate(running) if is_running])


def _is_bound_by_width(model: PreTrainedModel, prompts: Sequence[IdArray], limits: Sequence[int]) -> bool:
    """Return whether padding could make a batch exceed a table of the model's attention."""
    width = max(map(len, prompts), default=0) + max(limits, default=0)
    return model.config.get_text_config().model_type in _WIDTH_BOUND_TYPES and width > context_length(model)


def _limits(model: PreTrainedModel, prompts: Sequence[IdArray], max_new_tokens: Sequence[int]) -> list[int]:
    """Return how many tokens each turn may have: 0 if the prompt fills the context."""
    if len(max_new_tokens) != len(prompts):
        raise InvalidConfigError(f"max_new_tokens has {len(max_new_tokens)} entries for {len(prompts)} prompts.")
    for index, (prompt, limit) in enumerate(zip(prompts, max_new_tokens, strict=True)):
        if not len(prompt):
            raise InvalidConfigError(f"prompt {index} is empty: a model needs at least one token to continue from.")
        if limit < 1:
            raise InvalidConfigError(f"max_new_tokens[{index}]={limit!r}: it must be at least 1.")
    context = context_length(model)
    return [max(min(limit, context - len(prompt)), 0) for prompt, limit in zip(prompts, max_new_tokens, strict=True)]


def has_filters(params: SamplingParams) -> bool:
    """Return whether sampling changes the distribution by more than its temperature."""
    return (params.top_p, params.top_k, params.min_p, params.repetition_penalty) != (1.0, 0, 0.0, 1.0)


def _kept_tokens(parts: Sequence[Any]) -> KeptTokens:
    stops = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return KeptTokens(np.concatenate(parts).astype(np.int32), stops)


def logits_processor(params: SamplingParams) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return (ids (B, T), logits (B, V)) -> logits (B, V), from transformers' own processors, in vLLM's order."""
    from transformers import LogitsProcessorList
    from transformers.generation import logits_process

    processors: Any = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        processors.append(logits_process.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature not in (0, 1):
        processors.append(logits_process.TemperatureLogitsWarper(float(params.temperature)))
    if params.min_p > 0:
        processors.append(logits_process.MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        processors.append(logits_process.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(logits_process.TopPLogitsWarper(params.top_p))
    return processors


def _draw(logits: torch.Tensor, uniforms: Sequence[float], *, greedy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one id per row by inverting the cumulative distribution at `uniforms`. Returns ids (B,) and logps (B,)."""
    logps = torch.log_softmax(logits, dim=-1)
    if greedy:
        ids = logits.argmax(-1)
    else:
        cumulative = logps.double().exp().cumsum(-1)
        # Scaled by the total, so that rounding never points past the last token with any probability.
        points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, points, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return ids, logps.gather(-1, ids[:, None])[:, 0]
