"""One pass over each prompt of a batch, however many rows begin with it.

The rows of a group begin with the same prompt. A causal model's keys and values of a prompt do not depend on what
follows, so they are computed once, with gradients, and all rows of the group continue from them. Log-probabilities and
gradients equal those of full rows, up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from llm_envs.errors import ModelError
from llm_envs.policies.inference.positions import cache_argument, output_cache, position_ids

__all__ = ["SharedPrompts"]


class SharedPrompts:
    """A model for TRL's `_get_per_token_logps_and_entropies` to call.

    Args:
        model: A causal language model, perhaps with a PEFT adapter or wrapped for several processes.
        n_completion: Tokens at the end of each row that do not belong to the prompt.
    """

    def __init__(self, model: Any, n_completion: int) -> None:
        self.model, self.n_completion = model, n_completion

    def __call__(
        self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, **kwargs: Any
    ) -> Any:
        """Return the model's output for the last `n_completion` + 1 tokens of each row, or for all tokens.

        Args:
            input_ids: Shape (B, L).
            attention_mask: Shape (B, L). Prompts are padded on the left.
            labels: Shape (B, L).
            **kwargs: Further arguments of the model's forward.

        Raises:
            ModelError: If a layer of the model caches anything but the keys and values of all tokens, or for a router's
                loss.
        """
        if kwargs.get("output_router_logits"):
            raise ModelError("share_prompts=True: the router's loss of a mixture of experts counts full rows.")
        # The prompt's last token predicts the first token of the completion, so the second pass begins with it.
        n = input_ids.shape[1] - self.n_completion - 1
        if n < 1:
            return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)
        prompts = torch.stack([input_ids[:, :n], attention_mask[:, :n]], dim=1)
        prompts, rows_B = prompts.unique(dim=0, return_inverse=True)
        ids, mask = prompts.unbind(dim=1)
        # Only the cache is needed: one logit is the least that a model can be asked for.
        prefix = {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids(mask)}
        outputs = self.model(**prefix, use_cache=True, logits_to_keep=1)
        # Recurrent models return no such cache, or a subclass with further states.
        cache: Any = output_cache(outputs)
        parts = [cache, *getattr(cache, "layers", ())]
        kinds = {type(part).__name__ for part in parts} - {DynamicLayer.__name__, DynamicCache.__name__}
        if kinds:
            raise ModelError(
                f"share_prompts=True: rows can continue only from keys and values of all tokens; this model's cache "
                f"is, or has, {', '.join(sorted(kinds))} (sliding windows, recurrent layers). Set share_prompts=False."
            )
        cache.batch_select_indices(rows_B)
        rest = {"input_ids": input_ids[:, n:], "position_ids": position_ids(attention_mask)[:, n:]}
        return self.model(
            **rest,
            **cache_argument(self.model, cache),
            attention_mask=attention_mask,
            labels=labels[:, n:],
            use_cache=True,
            **kwargs,
        )
