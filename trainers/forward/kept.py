"""The mask of kept tokens: training over the tokens that the sampling filters kept.

With `SamplingParams(keep_mask=True)`, rows store which tokens the filters kept at each sampled token. In training,
every log-probability is then over those tokens: for the old and current policy and the reference. So ratios and the KL
compare the same distributions. The log-probabilities from sampling already use this distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.forward.head import score_tokens
from llm_envs.types import KeptTokens, Row, Trajectory

__all__ = ["KeptRows", "check_kept"]


def check_kept(trajectories: Sequence[Trajectory]) -> None:
    """Refuse sampled rows without a mask of kept tokens.

    Raises:
        InvalidConfigError: If there is such a row, because the policy does not support `keep_mask`.
    """
    for trajectory in trajectories:
        if any(row.kept is None and row.mask.any() for row in trajectory.rows):
            raise InvalidConfigError(
                "keep_mask=True, and the policy returned tokens without what its filters kept: sample with the "
                "transformers policy, or leave keep_mask out."
            )


class KeptRows:
    """The kept tokens of a generation's rows, looked up by a row's token ids.

    TRL shuffles rows and splits them into micro-batches, and we trim them. Equal tokens under equal weights have equal
    masks, so the token ids are enough to find a row.

    Args:
        trajectories: The episodes of the generation.

    Raises:
        InvalidConfigError: If a row has no mask.
    """

    def __init__(self, trajectories: Sequence[Trajectory] = ()) -> None:
        check_kept(trajectories)
        self._rows: dict[bytes, Row] = {
            _key(row.ids): row for t in trajectories for row in t.rows if row.kept is not None
        }

    def state(self) -> list[list[torch.Tensor]]:
        """Return the rows as tensors, for a checkpoint inside a generation."""
        arrays = [(row.ids, row.mask, row.kept.ids, row.kept.stops) for row in self._rows.values() if row.kept]
        return [[torch.from_numpy(np.array(values)) for values in row] for row in arrays]

    def load(self, state: Sequence[Sequence[torch.Tensor]]) -> None:
        """Load rows from `state`."""
        for ids, mask, kept_ids, stops in ([part.cpu().numpy() for part in row] for row in state):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
            spans = tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
            # Only ids, mask and kept tokens are read from here on, so the log-probabilities may be 0.
            row = Row(ids, mask, np.zeros(len(ids), np.float32), spans, KeptTokens(kept_ids, stops))
            self._rows[_key(ids)] = row

    def scores(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        n_tokens: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        *,
        causal: Any,
        is_tree: bool,
        temperature: float,
        accelerator: Accelerator,
        **images: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Do the same as TRL's `_get_per_token_logps_and_entropies`, over the kept tokens.

        Args:
            model: The model to score with: the policy or the reference.
            input_ids: Shape (B, L): prompts and completions.
            attention_mask: Shape (B, L).
            n_tokens: Number of tokens at the end to score.
            batch_size: Rows per forward pass; None: all.
            compute_entropy: Whether to return entropies.
            compute_aux_loss: Whether to return the load-balancing loss of a mixture of experts.
            causal: The language model inside.
            is_tree: Whether to compute the rows as a prefix tree.
            temperature: The sampling temperature.
            accelerator: The trainer's, for mixed precision.
            **images: TRL's arguments for image models; unused.
        """
        logps: list[torch.Tensor] = []
        entropies: list[Any] = []
        aux_losses: list[torch.Tensor] = []
        size = batch_size or len(input_ids)
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            # As TRL does: a model without experts does not take the argument.
            further: dict[str, Any] = {"output_router_logits": True} if compute_aux_loss else {}
            mask_BT, kept = self._find(ids, mask, n_tokens)
            further |= {"mask_BT": mask_BT, "kept": kept, "temperature": temperature, "is_tree": is_tree}
            with accelerator.autocast():
                logps_BT, entropies_BT, output = score_tokens(
                    model, causal, ids, mask, n_tokens, compute_entropy=compute_entropy, **further
                )
            logps.append(logps_BT)
            entropies.append(entropies_BT)
            if compute_aux_loss:
                aux_losses.append(output.aux_loss)
        return (
            torch.cat(logps),
            torch.cat(entropies) if compute_entropy else None,
            torch.stack(aux_losses).mean() if compute_aux_loss else None,
        )

    def _find(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, n_tokens: int
    ) -> tuple[torch.Tensor, list[KeptTokens | None]]:
        """Return a mask of the sampled tokens, (B, T), and the kept tokens by row; None for an unknown row."""
        sampled = torch.zeros(input_ids.shape, dtype=torch.bool)
        kept: list[KeptTokens | None] = []
        for place, (ids, mask) in enumerate(zip(input_ids.cpu(), attention_mask.cpu().bool(), strict=True)):
            row = self._rows.get(_key(ids[mask].numpy()))
            if row is not None:
                sampled[place, mask] = torch.from_numpy(row.mask)
            # A critic's pass asks for the last token only and ignores its log-probability, so it needs no mask.
            is_whole = row is not None and int(sampled[place, -n_tokens:].sum()) == int(row.mask.sum())
            kept.append(row.kept if row is not None and is_whole else None)
        return sampled[:, -n_tokens:].to(input_ids.device), kept


def _key(ids: Any) -> bytes:
    return np.asarray(ids, dtype=np.int32).tobytes()
