"""The embedded default: a transformers model in this process, on any machine, sampling concurrent requests in batches.

Invariants:
1. A request is answered exactly once: with its turn, with an error, or not at all if its caller was cancelled.
2. One batch runs at a time, in the policy's own thread; the event loop is never blocked.
3. A batch holds requests of equal sampling parameters only; requests keep their order of arrival.
4. A failing batch fails its own requests and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.chat import ChatCodec
from llm_envs.errors import ContextFullError, ModelError
from llm_envs.policies.inference import batch_generate, context_length, load_model, load_tokenizer
from llm_envs.types import Sampled, SamplingParams

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["TransformersPolicy"]


@dataclass(eq=False)
class _Request:
    prompt_ids: npt.NDArray[np.int32]
    params: SamplingParams
    seed: int
    answer: asyncio.Future[Sampled]

    @property
    def batch_key(self) -> SamplingParams:
        """What all requests of a batch share. The limits and seeds are each request's own."""
        return replace(self.params, max_new_tokens=1, seed=None)


class TransformersPolicy:
    """A token policy on a transformers model.

    Args:
        model: A causal language model. It may be the one that is being trained: it is put into eval mode while
            sampling.
        tokenizer: Its tokenizer, with a chat template.
        max_batch_size: Requests sampled together.
        gather_s: Seconds to wait for more requests before a batch starts.
        weight_version: Version of the weights as loaded.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch_size: int = 128,
        gather_s: float = 0.002,
        weight_version: int = 0,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.max_batch_size = max_batch_size
        self.gather_s = gather_s
        self.weight_version = weight_version
        self.max_model_len = context_length(model)
        self._pending: list[_Request] = []
        self._pump: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm-envs-transformers")

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        loader: Callable[..., PreTrainedModel] | None = None,
        **kwargs: Any,
    ) -> TransformersPolicy:
        """Load model and tokenizer from a folder or a hub; `kwargs` go to the constructor."""
        tokenizer = load_tokenizer(name_or_path)
        return cls(load_model(name_or_path, dtype=dtype, device=device, loader=loader), tokenizer, **kwargs)

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        """Sample one turn; see `policies.base.TokenPolicy`. `session` is not needed here."""
        if len(prompt_ids) >= self.max_model_len:
            raise ContextFullError(f"a prompt of {len(prompt_ids)} tokens fills the context of {self.max_model_len}.")
        loop = asyncio.get_running_loop()
        request = _Request(prompt_ids, params, seed, loop.create_future())
        self._pending.append(request)
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._serve())
        return await request.answer

    def update_weights(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy `named_parameters` (name, tensor) into the model.

        Raises:
            ModelError: If a name or a shape does not fit; nothing is changed then.
        """
        own = dict(self.model.named_parameters())
        new = dict(named_parameters)
        wrong = [name for name, value in new.items() if name not in own or own[name].shape != value.shape]
        missing = [name for name in own if name not in new]
        if wrong or missing:
            raise ModelError(
                f"weights do not fit the model: {len(wrong)} unknown or of another shape ({wrong[:3]}), {len(missing)} "
                f"missing ({missing[:3]}). Send every parameter of model.named_parameters()."
            )
        for name, value in new.items():
            own[name].data.copy_(value)
        self.weight_version = version

    async def aclose(self) -> None:
        """Drop what has not started, wait for the running batch, and end the thread."""
        # A pump of another loop ended with that loop.
        if self._pump is not None and self._pump.get_loop() is asyncio.get_running_loop():
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._thread.shutdown(wait=True)

    async def _serve(self) -> None:
        """Answer pending requests until there are none."""
        try:
            while self._pending:
                await asyncio.sleep(self.gather_s)
                batch = self._take_batch()
                if batch:
                    await self._run(batch)
        finally:
            for request in self._pending:
                request.answer.cancel()
            self._pending.clear()

    def _take_batch(self) -> list[_Request]:
        self._pending = [request for request in self._pending if not request.answer.done()]
        if not self._pending:
            return []
        key = self._pending[0].batch_key
        batch = [request for request in self._pending if request.batch_key == key][: self.max_batch_size]
        taken = set(map(id, batch))
        self._pending = [request for request in self._pending if id(request) not in taken]
        return batch

    async def _run(self, batch: list[_Request]) -> None:
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, self._generate, batch)
        try:
            results = await asyncio.shield(running)
        except asyncio.CancelledError:
            for request in batch:
                request.answer.cancel()  # stops the rows at their next token
            await asyncio.gather(running, return_exceptions=True)
            raise
        except Exception as error:
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        for request, sampled in zip(batch, results, strict=True):
            if not request.answer.done():
                request.answer.set_result(sampled)

    def _generate(self, batch: list[_Request]) -> list[Sampled]:
        was_training = self.model.training
        self.model.eval()
        try:
            return batch_generate(
                self.model,
                [request.prompt_ids for request in batch],
                batch[0].params,
                max_new_tokens=[request.params.max_new_tokens for request in batch],
                seeds=[request.seed for request in batch],
                stop_token_ids=self.codec.stop_token_ids,
                pad_id=self.codec.stop_token_ids[0],
                weight_version=self.weight_version,
                detokenize=lambda ids: str(self.tokenizer.decode(ids)),
                is_aborted=lambda index: batch[index].answer.cancelled(),
            )
        finally:
            if was_training:
                self.model.train()
