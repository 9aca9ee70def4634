"""`Batch`: the tensors used from episodes to loss, in rows of tokens.

`episodes.batches` creates it from episodes (`make_batch`) or from TRL's inputs (`batch_from_trl`); `with_advantages`
adds the advantages. A driver adds fresh log-probabilities, and `algorithm_loss` computes the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from llm_envs.trainers.functional.masking import trim_padding

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of a generation, or some of them. Masked places of (B, T) tensors may hold anything.

    The first rows are the episodes in order; then come the further rows of episodes whose history forked. Prompts are
    padded on the left and completions on the right, so the T columns begin where the policy first wrote. A field may be
    None if nothing that is called with the batch needs it.
    """

    mask_BT: torch.Tensor
    """Bool or 0/1: the policy's tokens that are trained on. All False for an episode without a score."""
    logps_BT: torch.Tensor | None = None
    """The policy's log-probabilities of the tokens, freshly computed, with gradient."""
    advantages: torch.Tensor | None = None
    """Shape (B,), (B, 1) or (B, T). Needed by a loss on tokens."""
    old_logps_BT: torch.Tensor | None = None
    """Denominators of the ratios: at sampling, or before the first of several epochs. None: those of now, without
    gradient (on-policy)."""
    ref_logps_BT: torch.Tensor | None = None
    """The reference's log-probabilities. Needed for a KL; a loss on pairs takes `old_logps_BT` without it."""
    policy_logps_BT: torch.Tensor | None = None
    """The policy's log-probabilities before the first step, over the full vocabulary like the reference's, whereas
    those from sampling may be filtered (top_p, ...). Needed for a KL in the reward."""
    sampled_logps_BT: torch.Tensor | None = None
    """Float32: log-probabilities from sampling, under its filters. NaN if a token of the mask was not sampled (an
    oracle's)."""
    entropies_BT: torch.Tensor | None = None
    """With gradient. Needed for an entropy bonus."""
    entropy_floor: torch.Tensor | None = None
    """A scalar: the least entropy at which a token's loss counts (`Algorithm.top_entropy_quantile`) if this batch is a
    part of one; None: the batch's own."""
    weights: torch.Tensor | None = None
    """Importance weights, shape (B, T) or (B, 1), from `importance.importance_weights`; None: 1."""

    prompt_ids: torch.Tensor | None = None
    """Shape (B, P), int64, padded on the left."""
    prompt_mask: torch.Tensor | None = None
    """Shape (B, P), int64: 1 at tokens."""
    completion_ids: torch.Tensor | None = None
    """Shape (B, T), int64, padded on the right: from the first token that the policy wrote to the last one it saw."""
    completion_mask: torch.Tensor | None = None
    """Shape (B, T), int64: 1 at tokens, the environment's too."""
    sampling: Any = None
    """The `llm_envs.types.SamplingParams` behind `sampled_logps_BT`; None: all of their defaults."""
    kept: tuple[Any, ...] | None = None
    """By row, `llm_envs.types.KeptTokens` or None: the tokens that the sampling filters kept at each sampled token
    (`SamplingParams.keep_mask`). Every log-probability is then over those tokens. None: over the full vocabulary."""

    rewards_B: torch.Tensor | None = None
    """Float32: the episode's reward; NaN without a score or a trained token, and in rows beyond its first. Needed to
    select pairs."""
    group_ids_B: torch.Tensor | None = None
    """Ints: the episode's group. Needed to select pairs, and for `normalisation="prompt"`."""
    owners_B: torch.Tensor | None = None
    """Int64: index of each row's episode in the generation; None: each row is an episode."""

    group_tokens_B: torch.Tensor | None = None
    """How many tokens each row's group has in the generation (`masking.group_token_counts`), for
    `normalisation="prompt"` if this batch is a part of one; None: those here."""
    denominator: float | torch.Tensor | None = None
    """The divisor of `masking.aggregate_loss` if this batch is a part of one; None: the batch's own."""
    max_length: float | None = None
    """Greatest completion length in tokens, for `normalisation="constant"`."""
    pair_losses_B: torch.Tensor | None = None
    """With `pair_slopes_B`, in place of selecting pairs: each row's part of the pairs' mean loss."""
    pair_slopes_B: torch.Tensor | None = None
    """Derivative of that mean by each row's log-ratio (`pairs.pair_slopes`): for pairs that reach beyond this batch."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.mask_BT)

    @property
    def temperature(self) -> float:
        """The sampling temperature, by which logits are divided."""
        return 1.0 if self.sampling is None else float(self.sampling.temperature)

    @property
    def n_episodes(self) -> int:
        """Number of episodes that the rows belong to."""
        return len(self) if self.owners_B is None else len(self.owners_B.unique())

    @property
    def n_tokens(self) -> int:
        """Number of trained tokens."""
        return int(self.mask_BT.sum())

    def need(self, name: str) -> torch.Tensor:
        """Return the tensor of a field.

        Raises:
            ValueError: If it is None.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"the batch has no {name}, which is needed here.")
        assert isinstance(value, torch.Tensor)
        return value

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the fields that are tensors, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def select(self, rows: torch.Tensor) -> Batch:
        """Return some rows, without columns that are padding in all of them.

        Args:
            rows: Indices, shape (n,), n at least 1.
        """
        chosen: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen |= {name: value[rows.to(value.device)] for name, value in self.tensors().items() if value.ndim}
        if self.kept is not None:
            chosen["kept"] = tuple(self.kept[row] for row in rows.tolist())
        return Batch(**(chosen if self.completion_mask is None else trim_padding(chosen)))
