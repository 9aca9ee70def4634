"""Keys and values of tokens that a model has read, for prompts that begin with the same tokens.

The next prompt of an episode begins with its last one and the reply; the prompts of a task begin with the same
instructions. Neither is read again. Log-probabilities equal those computed from full prompts, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_envs.errors import extra_needed
from llm_envs.policies.inference.caches import Prefix
from llm_envs.policies.inference.padding import PaddedBatch
from llm_envs.types import IdArray

with extra_needed("a cache of prefixes needs torch: pip install 'llm-envs[train]'."):
    import torch

__all__ = ["PrefixCache", "depends_on_length"]

_MIN_KNOWN = 16
"""Tokens. All prompts begin with the same few tokens of the template."""
_MIN_SAVED = 32
"""Tokens. A separate pass over a shared beginning must save more than this."""
_MOST = 1024
"""Prefixes. Each is compared with each prompt."""


def depends_on_length(model: torch.nn.Module) -> bool:
    """Return whether keys depend on the length of the full sequence, as with the RoPE types longrope and dynamic."""
    kinds: set[str] = set()
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds |= set(kind.values()) if isinstance(kind, dict) else {str(kind)}
    return bool(kinds & {"longrope", "dynamic"})


class PrefixCache:
    """The prefixes that were used last.

    Args:
        max_bytes: Most memory of the keys and values, in bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._prefixes: list[Prefix] = []  # the last one was used last
        self._model: tuple[object, ...] = ()
        self._weights: list[int] | None = None
        self._is_of_use = True
        self.n_clears = 0
        """Keys and values that were begun before a clear do not belong in here."""

    def clear(self) -> None:
        """Forget everything, because the weights have changed."""
        self._prefixes, self._weights = [], None
        self.n_clears += 1

    def check_model(self, model: torch.nn.Module) -> None:
        """Clear if a weight was changed since the last call (except through `.data`), or an adapter switched."""
        versions = [0 if value.is_inference() else value._version for value in model.parameters()]
        layers: list[Any] = [m for m in model.modules() if hasattr(m, "active_adapters") and hasattr(m, "scaling")]
        adapters = [(layer.active_adapters, layer.disable_adapters, layer.scaling) for layer in layers]
        now = (versions, repr(adapters))
        if now != self._model:
            self.clear()
        self._model = now

    def check_weights(self, model: torch.nn.Module) -> None:
        """Clear if the weights' checksums have changed since the last call, whoever changed them.

        Reads all weights once: 0.05 s for 0.5 GB on a CPU.
        """
        self.check_model(model)
        sums = [_checksum(parameter) for parameter in (*model.parameters(), *model.buffers())]
        weights = torch.stack([one.to(sums[0].device) for one in sums]).tolist()  # one copy from the device
        if weights != self._weights:
            self.clear()
        self._weights = weights

    def add(self, prefix: Prefix) -> None:
        """Keep a prefix, if there is room for it; those that it begins with are not needed any more."""
        if prefix.n_bytes > self._max_bytes:
            return
        self._prefixes = [p for p in self._prefixes if _n_common(p.ids, prefix.ids) < len(p.ids)] + [prefix]
        n_bytes = sum(p.n_bytes for p in self._prefixes)
        while n_bytes > self._max_bytes or len(self._prefixes) > _MOST:
            n_bytes -= self._prefixes.pop(0).n_bytes

    def find(self, ids: IdArray) -> Prefix | None:
        """Return the longest known prefix of a prompt that leaves at least one token to read."""
        lengths = [_n_common(p.ids, ids[:-1]) for p in self._prefixes]
        if max(lengths, default=0) < _MIN_KNOWN:
            return None
        place = max(range(len(lengths)), key=lambda place: (lengths[place], place))
        self._prefixes.append(self._prefixes.pop(place))
        return self._prefixes[-1].first(lengths[place])

    @torch.no_grad()
    def read(self, model: Any, prompts: Sequence[IdArray]) -> tuple[PaddedBatch, torch.Tensor]:
        """Read the unknown part of each prompt, and once only a beginning that all new ones share.

        Args:
            model: A causal language model in eval mode.
            prompts: B arrays of token ids, each of shape (T_b,), T_b at least 1.

        Returns:
            The batch, and the logits of the next tokens, shape (B, V).
        """
        prefixes = [self.find(prompt) for prompt in prompts]
        is_new = [2 * (len(f.ids) if f else 0) < len(prompt) for f, prompt in zip(prefixes, prompts, strict=True)]
        new = [place for place, flag in enumerate(is_new) if flag]
        if self._is_of_use and (prefix := self._read_shared(model, [prompts[place] for place in new])) is not None:
            for place in new:
                known = prefixes[place]
                if known is None or len(known.ids) < len(prefix.ids):
                    prefixes[place] = prefix
        # All rows of a batch read as many tokens as its newest: those that are mostly known are another batch.
        parts = [[p for p, flag in enumerate(is_new) if flag is kind] for kind in (False, True)]
        batches, logits = [], []
        for part in filter(None, parts):
            batch = PaddedBatch([prompts[place] for place in part], model.device)
            logits.append(batch.read_on(model, [prefixes[place] for place in part]))
            batches.append(batch)
        if len(batches) < 2:
            return batches[0], logits[0]
        batch, other = batches
        batch.join(other)
        order = np.argsort([*parts[0], *parts[1]]).tolist()
        batch.select(order, batch.width)
        return batch, torch.cat(logits)[order]

    def _read_shared(self, model: Any, prompts: Sequence[IdArray]) -> Prefix | None:
        """Read the beginning that new prompts share, if a separate pass is worth it; return it."""
        if len(prompts) < 2:
            return None
        n_shared = min(_n_common(prompts[0][:-1], prompt[:-1]) for prompt in prompts)
        if n_shared < _MIN_KNOWN or n_shared * (len(prompts) - 1) <= _MIN_SAVED:
            return None
        if (known := self.find(prompts[0][: n_shared + 1])) is not None and len(known.ids) == n_shared:
            return known
        batch = PaddedBatch([prompts[0][:n_shared]], model.device)
        batch.read_on(model, [known and known.first(min(len(known.ids), n_shared - 1))])
        prefix = batch.prefix(0, n_shared)
        if prefix is None:  # as in all other batches of this model
            self._is_of_use = False
        else:
            self.add(prefix)
        return prefix


def _n_common(one: IdArray, other: IdArray) -> int:
    """Return how many tokens two sequences begin with alike."""
    n = min(len(one), len(other))
    differs = one[:n] != other[:n]
    return int(differs.argmax()) if differs.any() else n


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's memory as integers, shape ()."""
    if values.is_meta:  # offloaded: such a model is not in training
        return torch.zeros((), dtype=torch.int64)
    memory = values.detach().contiguous().view(-1).view(torch.uint8)
    n_in_words = memory.numel() // 8 * 8
    return memory[:n_in_words].view(torch.int64).sum() + memory[n_in_words:].sum()
