"""Sample turns from a model in this process, one or a batch, each with its log-probabilities.

A `RunningBatch` has one row per turn. Turns join it between two steps, with the key-value cache of their prompts, and
leave it when they end; so a new turn never waits for the longest of the others.

(transformers' own continuous batching, `generate_batch`, draws all rows from the process's one generator, so a
turn's tokens would depend on the turns beside it. It is not used on any device.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.policies.inference.loading import context_length, eos_token_ids
from llm_envs.policies.inference.padding import IdArray, PaddedBatch, check_token_ids
from llm_envs.policies.inference.positions import check_positions
from llm_envs.policies.inference.prefixes import PrefixCache
from llm_envs.policies.inference.seeds import turn_seed
from llm_envs.types import FinishReason, KeptTokens, Sampled, SamplingParams

with extra_needed("sampling from a model needs torch: pip install 'llm-envs[train]'."):
    import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "RunningBatch",
    "Turn",
    "batch_generate",
    "generate",
    "has_filters",
    "logits_processor",
]

_COMPACT_BELOW = 0.75
"""A batch is compacted if that leaves less than this share of its rows times columns. It copies the cache, so until
then rows that have ended run on, ignored."""


def generate(
    model: PreTrainedModel,
    prompt_ids: IdArray,
    params: SamplingParams | None = None,
    *,
    seed: int | None = None,
    stop_token_ids: Sequence[int] | None = None,
    detokenize: Callable[[list[int]], str] | None = None,
) -> Sampled:
    """Sample one turn: `batch_generate` for a single prompt.

    Args:
        model: A causal language model in eval mode.
        prompt_ids: Shape (T,), T at least 1.
        params: How to sample.
        seed: The same seed and prompt give the same turn; None takes it from `params.seed` and the prompt.
        stop_token_ids: Ids that end the turn and are kept as its last token; None takes the model's own.
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
        detokenize=detokenize,
    )
    return sampled[0]


@torch.no_grad()
def batch_generate(
    model: PreTrainedModel,
    prompts: Sequence[IdArray],
    params: SamplingParams | None = None,
    *,
    max_new_tokens: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    detokenize: Callable[[list[int]], str] | None = None,
    micro_batch_size: int | None = None,
) -> list[Sampled]:
    """Sample one turn for each prompt, in one padded batch that turns leave as they end.

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
        detokenize: Ids to text; required if `params.stop_strings` is not empty.
        micro_batch_size: Most rows sampled together; None takes all. When one ends, the next joins. The result does not
            depend on it.

    Returns:
        B results in the order of `prompts`. Log-probabilities are from the distribution that was drawn from; at
        temperature 0 (greedy) from the model's own distribution. If a prompt leaves no room for a token, its result
        has no tokens and the reason `FinishReason.CONTEXT_FULL`; the other prompts are sampled.

    Raises:
        InvalidConfigError: If a prompt is empty or has ids that the model does not have, or an argument is out of
            range.
        ModelError: If there are several prompts and the model's log-probabilities depend on the padding of a batch.
    """
    params = params or SamplingParams()
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
    stop_token_ids = tuple(eos_token_ids(model) if stop_token_ids is None else stop_token_ids)
    turns = [
        Turn(prompt, params, limit=limit, seed=seed, stop_token_ids=stop_token_ids, detokenize=detokenize)
        for prompt, limit, seed in zip(prompts, limits, seeds, strict=True)
    ]
    waiting = deque(turn for turn in turns if turn.finish_reason is None)
    running = RunningBatch(model, max_rows=micro_batch_size or max(len(turns), 1))
    while waiting or running.n_turns:
        joining = [waiting.popleft() for _ in range(min(running.n_free, len(waiting)))]
        if joining:
            running.join(joining)
        running.step()
    return [turn.sampled(0) for turn in turns]


class Turn:
    """One turn while it is sampled: its prompt, the conditions that end it, and its tokens so far.

    Args:
        prompt_ids: Shape (T,), T at least 1; checked ids.
        params: How to sample; its `max_new_tokens` and `seed` are not used.
        limit: Most tokens of the turn. 0: the prompt fills the context.
        seed: Of the turn's uniform numbers.
        stop_token_ids: Ids that end the turn and are kept as its last token, besides those in `params`.
        detokenize: Ids to text; required if `params.stop_strings` is not empty.
        is_aborted: Called after each token; the turn ends if it returns true.

    Raises:
        InvalidConfigError: If `params` has something that this sampler does not know, or `detokenize` is missing.
    """

    def __init__(
        self,
        prompt_ids: IdArray,
        params: SamplingParams,
        *,
        limit: int,
        seed: int,
        stop_token_ids: Sequence[int] = (),
        detokenize: Callable[[list[int]], str] | None = None,
        is_aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        if params.extra:
            raise InvalidConfigError(f"extra={dict(params.extra)!r}: sampling by transformers has no further settings.")
        if params.stop_strings and detokenize is None:
            raise InvalidConfigError("stop_strings need `detokenize`, which turns token ids into text.")
        self.prompt_ids = prompt_ids
        self.params = params
        self.finish_reason: FinishReason | None = None if limit else FinishReason.CONTEXT_FULL
        self._limit = limit
        self._uniforms = np.random.default_rng(seed).random(limit)
        self._stop_token_ids = stop_token_ids
        self._detokenize = detokenize
        self._is_aborted = is_aborted
        self._ids: list[int] = []
        self._logps: list[float] = []
        self._kept: list[Any] = []
        self.n_clears = 0  # of the prefix cache, when the prompt was read

    @property
    def length(self) -> int:
        """Tokens so far, the prompt's included."""
        return len(self.prompt_ids) + len(self._ids)

    @property
    def uniform(self) -> float:
        """The number in [0, 1) that decides the next token."""
        return float(self._uniforms[min(len(self._ids), self._limit - 1)])

    def add(self, token: int, logp: float, kept: Any = None) -> None:
        """Append a token, and set the finish reason if it is the last one."""
        self._ids.append(token)
        self._logps.append(logp)
        if kept is not None:
            self._kept.append(kept)
        self.finish_reason = self._reason()

    def sampled(self, weight_version: int) -> Sampled:
        """Return the tokens so far; without a finish reason as an aborted turn."""
        return Sampled(
            token_ids=np.array(self._ids, dtype=np.int32),
            logps=np.array(self._logps, dtype=np.float32),
            finish_reason=self.finish_reason or FinishReason.ABORT,
            weight_version=weight_version,
            kept=_kept_tokens(self._kept) if self._kept else None,
        )

    def _reason(self) -> FinishReason | None:
        """Return why the turn ends after its newest token, or None if it continues."""
        if self._ids[-1] in self._stop_token_ids:
            return FinishReason.STOP
        if self._ids[-1] in self.params.stop_token_ids:
            return FinishReason.STOP_STRING
        if self.params.stop_strings and self._detokenize is not None:
            text = self._detokenize(self._ids)
            if any(stop in text for stop in self.params.stop_strings):
                return FinishReason.STOP_STRING
        if len(self._ids) >= self._limit:
            return FinishReason.LENGTH
        return FinishReason.ABORT if self._is_aborted() else None


class RunningBatch:
    """Turns that are sampled together: each step gives every running turn one token.

    The parameters of the turns may differ. A turn's tokens do not depend on the others, nor on when it joined, up to
    rounding in the model's kernels: a matrix product of another number of rows may be summed in another order.

    Args:
        model: A causal language model in eval mode.
        max_rows: Most concurrent turns.
        prefixes: Known beginnings of prompts, which are not read again. Turns that have ended are added to it.
    """

    def __init__(self, model: PreTrainedModel, max_rows: int, prefixes: PrefixCache | None = None) -> None:
        self._model = model
        self._max_rows = max_rows
        self._prefixes = prefixes
        self._batch: PaddedBatch | None = None
        self._turns: list[Turn] = []  # of each row; some may have ended

    @property
    def n_turns(self) -> int:
        """Turns that have not ended."""
        return sum(turn.finish_reason is None for turn in self._turns)

    @property
    def n_free(self) -> int:
        """How many turns may join now."""
        return 0 if self.join_problem is not None else self._max_rows - self.n_turns

    @property
    def join_problem(self) -> str | None:
        """Why no turn can join before all of these have ended, or None if turns can join at any time."""
        return None if self._batch is None else self._batch.join_problem

    @torch.no_grad()
    def join(self, turns: Sequence[Turn]) -> list[Turn]:
        """Read the prompts of new turns, sample their first tokens, and add them to the batch.

        Equal prompts are read once. If the model fails here, the batch is as it was before.

        Returns:
            Those that have ended with their first token.
        """
        places: dict[bytes, int] = {}
        index = [places.setdefault(turn.prompt_ids.tobytes(), len(places)) for turn in turns]
        prompts = [turns[index.index(place)].prompt_ids for place in range(len(places))]
        if self._prefixes is None:
            batch = PaddedBatch(prompts, self._model.device)
            logits = batch.forward(self._model)
        else:
            self._prefixes.check_model(self._model)
            batch, logits = self._prefixes.read(self._model, prompts)
            for turn in turns:
                turn.n_clears = self._prefixes.n_clears
        if len(prompts) < len(turns):
            logits = logits[index]
            batch.select(index, batch.width)
        ended = self._add_tokens(batch, turns, logits)
        running = [place for place, turn in enumerate(turns) if turn.finish_reason is None]
        if not running:
            return ended
        if ended:
            batch.select(running, max(turns[place].length for place in running))
        self._compact(least_gain=0.0)
        if self._batch is None:
            self._batch = batch
        else:
            self._batch.join(batch)
        self._turns += [turns[place] for place in running]
        return ended

    @torch.no_grad()
    def step(self) -> list[Turn]:
        """Sample one token for each running turn; return those that have ended with it."""
        if self._batch is None:
            return []
        ended = self._add_tokens(self._batch, self._turns, self._batch.forward(self._model))
        # Some types of model (GPT-Neo, MPT) have a table of the context's size, indexed by the column.
        is_too_wide = self._batch.width > context_length(self._model)
        self._compact(least_gain=0.0 if is_too_wide else 1 - _COMPACT_BELOW)
        return ended

    def clear(self) -> None:
        """Drop all turns, as they are."""
        self._batch, self._turns = None, []

    def _add_tokens(self, batch: PaddedBatch, turns: Sequence[Turn], logits: torch.Tensor) -> list[Turn]:
        """Draw the next token of each row; return the turns that have ended with it, and keep what was read of them."""
        ended = _add_tokens(batch, turns, logits)
        if self._prefixes is not None:
            for turn in ended:
                # The model has not read the last token.
                prefix = batch.prefix(turns.index(turn), turn.length - 1)
                if prefix is not None and turn.n_clears == self._prefixes.n_clears:
                    self._prefixes.add(prefix)
        return ended

    def _compact(self, least_gain: float) -> None:
        """Remove ended rows and columns that are only padding, if that saves more than a share of the batch."""
        running = [place for place, turn in enumerate(self._turns) if turn.finish_reason is None]
        if not running or self._batch is None:
            return self.clear()
        columns = self._batch.width
        width = columns if self.join_problem else max(self._turns[place].length for place in running)
        if len(running) * width < (1 - least_gain) * len(self._turns) * columns:
            self._batch.select(running, width)
            self._turns = [self._turns[place] for place in running]


def _add_tokens(batch: PaddedBatch, turns: Sequence[Turn], logits: torch.Tensor) -> list[Turn]:
    """Draw the next token of each row, add it to its turn, and return the turns that have ended with it."""
    alike: dict[tuple[float, ...], list[int]] = {}
    for place, turn in enumerate(turns):
        p = turn.params
        settings = (p.temperature, p.top_p, p.top_k, p.min_p, p.repetition_penalty, p.keep_mask)
        alike.setdefault(settings, []).append(place)
    next_ids = torch.zeros(len(turns), dtype=torch.int64, device=logits.device)
    running = [turn for turn in turns if turn.finish_reason is None]
    for places in alike.values():
        params, some = turns[places[0]].params, [turns[place] for place in places]
        rows = slice(None) if len(some) == len(turns) else places
        scores = logits_processor(params)(batch.input_ids[rows], logits[rows])
        ids, logps = _draw(scores, [turn.uniform for turn in some], greedy=params.temperature == 0)
        next_ids[rows] = ids
        keeps_mask = params.keep_mask and has_filters(params)
        masks = torch.isfinite(scores).cpu().numpy() if keeps_mask else [None] * len(some)
        for turn, token, logp, mask in zip(some, ids.tolist(), logps.tolist(), masks, strict=True):
            if turn.finish_reason is None:
                turn.add(token, logp, None if mask is None else np.flatnonzero(mask))
    batch.extend(next_ids, [turn.finish_reason is None for turn in turns])
    return [turn for turn in running if turn.finish_reason is not None]


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
