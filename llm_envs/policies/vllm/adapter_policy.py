"""Several adapters on one engine or on the same servers: the present one, which a trainer updates, and others."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.vllm.adapters import Adapter, AdapterShelf, rank_setting
from llm_envs.policies.vllm.exchange import WeightStore, new_tag
from llm_envs.types import Sampled, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from llm_envs.chat.codec import ChatCodec

__all__ = ["AdapterPolicy", "HasAdapters"]


class HasAdapters(ABC):
    """A policy whose engine or servers can load adapters."""

    tokenizer: PreTrainedTokenizerBase
    codec: ChatCodec
    max_model_len: int
    shelf: AdapterShelf
    _exchange: WeightStore

    @abstractmethod
    async def sample_with(
        self,
        adapter: Adapter | None,
        prompt_ids: npt.NDArray[np.int32],
        params: SamplingParams,
        *,
        seed: int,
        session: str,
    ) -> Sampled:
        """Sample one turn with an adapter; None: the present one."""

    @abstractmethod
    def send_adapter(self, adapter: Adapter) -> None:
        """Load an adapter and make it the present one; unload those that no turn or policy uses."""

    @abstractmethod
    def load_adapter(self, adapter: Adapter) -> None:
        """Load an additional adapter."""

    def prepare_adapter(self, tensors: Mapping[str, Any], version: int) -> Adapter:
        """Write an adapter's tensors (`adapters.write_adapter`) where `send_adapter` finds them."""
        return self._exchange.write_adapter(tensors, version)

    def update_adapter(self, tensors: Mapping[str, Any], version: int) -> None:
        """Replace the present adapter; later turns carry `version`. Running turns keep the adapter they began with.

        Args:
            tensors: See `adapters.write_adapter`; `trainers.engines.adapter_sync.adapter_tensors` returns a model's.
            version: Their version.

        Raises:
            ModelError: If vLLM refuses the adapter. The earlier one stays.
        """
        self.send_adapter(self.prepare_adapter(tensors, version))

    def use_adapter(self, folder: str | Path, version: int = 0) -> None:
        """Make an adapter that PEFT saved the present one; see `with_adapter`."""
        self.send_adapter(_saved(folder, version))

    def with_adapter(self, folder: str | Path | None = None, version: int = 0) -> AdapterPolicy:
        """Return a policy that plays with one adapter on the same engine or servers.

        Args:
            folder: An adapter saved by PEFT, which servers can read under this path, and which stays while the
                policy is used. None: the present adapter, also after it has been replaced here.
            version: Version of the folder's weights.

        Raises:
            InvalidConfigError: If the folder has no adapter for vLLM, or none is present.
            ModelError: If vLLM refuses it.
        """
        given = None if folder is None else _saved(folder, version)
        if (adapter := self.shelf.take(given)) is None:
            raise InvalidConfigError(
                f"{type(self).__name__} has no adapter yet: train with lora_sync='adapter', or name a folder."
            )
        policy = AdapterPolicy(self, adapter)
        if given is not None:
            self.load_adapter(given)
        return policy


def _saved(folder: str | Path, version: int) -> Adapter:
    rank_setting(Path(folder))
    return Adapter(Path(folder).resolve(), version, new_tag(version))


class AdapterPolicy:
    """A token policy with one adapter of an engine or of servers; `HasAdapters.with_adapter` makes it.

    It gives the adapter back, which is unloaded some time after the policy was closed or is no longer referenced.
    """

    def __init__(self, policy: HasAdapters, adapter: Adapter) -> None:
        self.adapter, self.weight_version = adapter, adapter.version
        self.tokenizer, self.codec, self.max_model_len = policy.tokenizer, policy.codec, policy.max_model_len
        self._policy = policy
        self._give_back = weakref.finalize(self, policy.shelf.give_back, adapter)

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        """Sample one turn; see `policies.base.TokenPolicy`."""
        return await self._policy.sample_with(self.adapter, prompt_ids, params, seed=seed, session=session)

    async def aclose(self) -> None:
        """Give the adapter back. The engine or servers stay open."""
        self._give_back()
