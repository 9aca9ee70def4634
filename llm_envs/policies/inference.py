"""Plain functions below the policies: load a model, sample a batch of turns, score given tokens.

Each takes what it needs as an argument: the model, the loader, the seeds. None keeps state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.errors import ContextFullError, InvalidConfigError, MissingExtraError, ModelError
from llm_envs.types import FinishReason, Sampled, SamplingParams

try:
    import torch
except ImportError as error:
    raise MissingExtraError("sampling from a model needs torch: pip install 'llm-envs[train]'.") from error

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["batch_generate", "context_length", "load_model", "load_tokenizer", "token_logps"]

IdArray = npt.NDArray[np.int32]


def load_tokenizer(
    name_or_path: str | Path,
    *,
    loader: Callable[..., PreTrainedTokenizerBase] | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer; one without a pad token pads with its end-of-sequence token.

    Args:
        name_or_path: A folder, or a name on a model hub.
        loader: Replaces `transformers.AutoTokenizer.from_pretrained`.
        trust_remote_code: Whether code that comes with the tokenizer may run.

    Raises:
        ModelError: If nothing can be loaded from there.
    """
    from transformers import AutoTokenizer

    load = loader or AutoTokenizer.from_pretrained
    tokenizer = _load("tokenizer", load, name_or_path, trust_remote_code=trust_remote_code)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    loader: Callable[..., PreTrainedModel] | None = None,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    """Load a causal language model for inference.

    Args:
        name_or_path: A folder, or a name on a model hub.
        dtype: Data type of the weights; "auto" takes the checkpoint's.
        device: Where to put it; None takes the GPU if there is one.
        loader: Replaces `transformers.AutoModelForCausalLM.from_pretrained`.
        trust_remote_code: Whether code that comes with the model may run.
        **kwargs: Handed to the loader (`attn_implementation`, `quantization_config`, ...).

    Raises:
        ModelError: If nothing can be loaded from there.
    """
    from transformers import AutoModelForCausalLM

    load = loader or AutoModelForCausalLM.from_pretrained
    model = _load("model", load, name_or_path, dtype=dtype, trust_remote_code=trust_remote_code, **kwargs)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def _load(what: str, load: Callable[..., Any], name_or_path: str | Path, **kwargs: Any) -> Any:
    try:
        return load(str(name_or_path), **kwargs)
    except (OSError, ValueError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"no {what} could be loaded from {str(name_or_path)!r}: {first_line} "
            "Give a folder that `save_pretrained` wrote, or a name on a model hub."
        ) from error


def context_length(model: PreTrainedModel) -> int:
    """Return how many tokens the model's positions allow."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1_000_000)


@torch.no_grad()
def batch_generate(
    model: PreTrainedModel,
    prompts: Sequence[IdArray],
    params: SamplingParams,
    *,
    max_new_tokens: Sequence[int],
    seeds: Sequence[int],
    stop_token_ids: Sequence[int],
    weight_version: int = 0,
    detokenize: Callable[[list[int]], str] | None = None,
    is_aborted: Callable[[int], bool] = lambda index: False,
) -> list[Sampled]:
    """Sample one turn for each prompt, in one padded batch that shrinks as turns end.

    Each row draws from uniform numbers of its own seed by inverting the cumulative distribution, so a row's tokens do
    not depend on which others share its batch (up to rounding in the model's own kernels).

    Args:
        model: A causal language model in eval mode.
        prompts: B arrays of token ids, each of shape (T_b,), T_b at least 1.
        params: How to sample, the same for all rows (`max_new_tokens` and `seed` are taken from the next two).
        max_new_tokens: B limits, each lowered to the room that the context leaves.
        seeds: B seeds.
        stop_token_ids: Ids that end a turn, kept as its last token.
        weight_version: Written into the results.
        detokenize: Ids to text; needed when `params.stop_strings` is not empty.
        is_aborted: Asked once a step for each running row; a row for which it is true stops there.

    Returns:
        B results in the order of `prompts`. Log-probabilities are those of the distribution that was drawn from; at
        temperature 0 (greedy) those of the model's own distribution.

    Raises:
        ContextFullError: If a prompt leaves no room for one token.
    """
    if params.extra:
        raise InvalidConfigError(f"extra={dict(params.extra)!r}: the transformers policy has no further settings.")
    if params.stop_strings and detokenize is None:
        raise InvalidConfigError("stop_strings need `detokenize`, which turns token ids into text.")
    limits = [_room(model, prompt, limit) for prompt, limit in zip(prompts, max_new_tokens, strict=True)]
    uniforms = [np.random.default_rng(seed).random(limit) for seed, limit in zip(seeds, limits, strict=True)]
    process = _logits_processor(params)
    batch = _PaddedBatch(prompts, model.device)
    rows = [_Draft(limit) for limit in limits]
    while batch.rows:
        logits = batch.forward(model)
        drawn = [uniforms[row][min(len(rows[row].ids), limits[row] - 1)] for row in batch.rows]
        next_ids, next_logps = _draw(process(batch.input_ids, logits), drawn, greedy=params.temperature == 0)
        for row, token, logp in zip(batch.rows, next_ids.tolist(), next_logps.tolist(), strict=True):
            draft = rows[row]
            if draft.finish_reason is None:
                draft.ids.append(token)
                draft.logps.append(logp)
                draft.finish_reason = _finish_reason(draft, stop_token_ids, params, detokenize, is_aborted(row))
        running = [place for place, row in enumerate(batch.rows) if rows[row].finish_reason is None]
        batch.extend(next_ids)
        # Copying the cache pays once a quarter of the rows has ended; until then they run on, unheard.
        if len(running) <= 0.75 * len(batch.rows):
            batch.keep(running)
    return [row.sampled(weight_version) for row in rows]


@torch.no_grad()
def token_logps(
    model: PreTrainedModel,
    sequences: Sequence[IdArray],
    *,
    temperature: float = 1.0,
    micro_batch_size: int = 16,
) -> list[npt.NDArray[np.float32]]:
    """Score given tokens: the log-probability of each under the model, given those before it.

    Args:
        model: A causal language model in eval mode.
        sequences: B arrays of token ids, each of shape (T_b,).
        temperature: Divides the logits first; 1 is the model's own distribution.
        micro_batch_size: Sequences a forward pass.

    Returns:
        B arrays of shape (T_b,). The first token has nothing before it and gets 0.
    """
    out: list[npt.NDArray[np.float32]] = []
    for start in range(0, len(sequences), micro_batch_size):
        chunk = sequences[start : start + micro_batch_size]
        batch = _PaddedBatch(chunk, model.device)
        logits = model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
        ).logits
        logps = torch.log_softmax(logits[:, :-1].float() / temperature, dim=-1)
        scored = logps.gather(-1, batch.input_ids[:, 1:, None])[..., 0].cpu().numpy()
        for ids, row in zip(chunk, scored, strict=True):
            own = row[len(row) - len(ids) + 1 :] if len(ids) > 1 else row[:0]
            out.append(np.concatenate([np.zeros(min(len(ids), 1), np.float32), own.astype(np.float32)]))
    return out


@dataclass
class _Draft:
    """One turn while it is being sampled."""

    limit: int
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def sampled(self, weight_version: int) -> Sampled:
        return Sampled(
            token_ids=np.array(self.ids, dtype=np.int32),
            logps=np.array(self.logps, dtype=np.float32),
            finish_reason=self.finish_reason or FinishReason.ABORT,
            weight_version=weight_version,
        )


class _PaddedBatch:
    """Left-padded sequences with their key-value cache. `rows[i]` is the caller's index of place i.

    A row is padded with its own first token, masked out: any id would do for the model, but a repetition penalty looks
    at the ids, and must not see one that the row does not have.
    """

    def __init__(self, prompts: Sequence[IdArray], device: torch.device) -> None:
        width = max(len(prompt) for prompt in prompts)
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        mask = np.zeros((len(prompts), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row] = prompt[0] if len(prompt) else 0
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        self.rows = list(range(len(prompts)))
        self.input_ids = torch.from_numpy(ids).to(device)
        self.attention_mask = torch.from_numpy(mask).to(device)
        self.position_ids = (self.attention_mask.cumsum(-1) - 1).clamp(min=0)
        self._cache: DynamicCache | None = None

    def forward(self, model: PreTrainedModel) -> torch.Tensor:
        """Return the next token's logits in float32, shape (B, V)."""
        new = slice(None) if self._cache is None else slice(-1, None)
        output = model(
            input_ids=self.input_ids[:, new],
            attention_mask=self.attention_mask,
            position_ids=self.position_ids[:, new],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        return output.logits[:, -1].float()

    def extend(self, next_ids: torch.Tensor) -> None:
        """Append one token to each row; `next_ids` has shape (B,)."""
        self.input_ids = torch.cat([self.input_ids, next_ids[:, None]], dim=1)
        ones = self.attention_mask.new_ones(len(self.rows), 1)
        self.attention_mask = torch.cat([self.attention_mask, ones], dim=1)
        self.position_ids = torch.cat([self.position_ids, self.position_ids[:, -1:] + 1], dim=1)

    def keep(self, places: list[int]) -> None:
        """Keep only the rows at `places`."""
        self.rows = [self.rows[place] for place in places]
        if not places:
            return
        index = torch.tensor(places, device=self.input_ids.device)
        self.input_ids, self.attention_mask = self.input_ids[index], self.attention_mask[index]
        self.position_ids = self.position_ids[index]
        if self._cache is not None:
            self._cache.batch_select_indices(index)


def _room(model: PreTrainedModel, prompt: IdArray, limit: int) -> int:
    room = context_length(model) - len(prompt)
    if room < 1:
        raise ContextFullError(f"a prompt of {len(prompt)} tokens fills the context of {context_length(model)}.")
    return min(limit, room)


def _logits_processor(params: SamplingParams) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
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
    """Draw one id a row by inverting the cumulative distribution at `uniforms`. Returns ids (B,) and logps (B,)."""
    logps = torch.log_softmax(logits, dim=-1)
    if greedy:
        ids = logits.argmax(-1)
    else:
        cumulative = logps.double().exp().cumsum(-1)
        # Scaled by the total, so that rounding can never point past the last token with any probability.
        points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, points, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return ids, logps.gather(-1, ids[:, None])[:, 0]


def _finish_reason(
    draft: _Draft,
    stop_token_ids: Sequence[int],
    params: SamplingParams,
    detokenize: Callable[[list[int]], str] | None,
    aborted: bool,
) -> FinishReason | None:
    if draft.ids[-1] in stop_token_ids:
        return FinishReason.STOP
    if draft.ids[-1] in params.stop_token_ids:
        return FinishReason.STOP_STRING
    if params.stop_strings and detokenize is not None:
        text = detokenize(draft.ids)
        if any(stop in text for stop in params.stop_strings):
            return FinishReason.STOP_STRING
    if len(draft.ids) >= draft.limit:
        return FinishReason.LENGTH
    return FinishReason.ABORT if aborted else None
