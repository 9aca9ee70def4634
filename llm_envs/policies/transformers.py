"""The embedded default: a transformers model in this process, on any machine, sampling concurrent requests in batches.

Invariants:
1. A request gets exactly one answer: its turn (or a part, if it was interrupted) or an error. A cancelled caller gets
   none.
2. One batch runs at a time, in the policy's own thread; the event loops are never blocked. Each event loop has its own
   queue and pump, which end with that loop.
3. All requests of a batch have equal sampling parameters; requests keep their order of arrival.
4. If a batch fails, only its own requests fail.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError
from llm_envs.policies.inference.loading import context_length, load_model, load_tokenizer
from llm_envs.policies.inference.padding import check_token_ids
from llm_envs.policies.inference.positions import check_positions
from llm_envs.policies.inference.sampling import batch_generate
from llm_envs.types import FinishReason, Sampled, SamplingParams

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["TransformersPolicy"]


@dataclass(eq=False)
class _Request:
    prompt_ids: npt.NDArray[np.int32]
    params: SamplingParams
    seed: int
    session: str
    answer: asyncio.Future[Sampled]
    is_interrupted: bool = False

    @property
    def batch_key(self) -> SamplingParams:
        """The parameters that all requests of a batch share. Limits and seeds belong to each request."""
        return replace(self.params, max_new_tokens=1, seed=None)


@dataclass(eq=False)
class _Queue:
    """The requests of one event loop, and the task that serves them."""

    pending: list[_Request] = field(default_factory=list)
    running: list[_Request] = field(default_factory=list)
    """The batch that is being sampled."""
    pump: asyncio.Task[None] | None = None

    def take(self, limit: int) -> list[_Request]:
        """Remove and return the next batch: the first request and later ones with equal parameters."""
        self.pending = [request for request in self.pending if not request.answer.done()]
        if not self.pending:
            return []
        key = self.pending[0].batch_key
        batch = [request for request in self.pending if request.batch_key == key][:limit]
        taken = set(map(id, batch))
        self.pending = [request for request in self.pending if id(request) not in taken]
        return batch


class TransformersPolicy:
    """A token policy on a transformers model.

    Args:
        model: A causal language model. It may be the model in training: it is put into eval mode while sampling.
        tokenizer: Its tokenizer, with a chat template.
        max_batch_size: Requests sampled together.
        gather_s: Seconds to wait for more requests before a batch starts.
        weight_version: Version of the weights as loaded.

    Raises:
        ModelError: If its log-probabilities depend on the padding of a batch.
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
        check_positions(model)
        self.model = model
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.max_batch_size = max_batch_size
        self.gather_s = gather_s
        self.weight_version = weight_version
        self.max_model_len = context_length(model)
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = weakref.WeakKeyDictionary()
        self._closed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm-envs-transformers")

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        loader: Callable[..., PreTrainedModel] | None = None,
        trust_remote_code: bool = False,
        load_settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> TransformersPolicy:
        """Load model and tokenizer from a folder or a hub.

        Args:
            name_or_path: A folder, or a name on a model hub.
            dtype: As for `load_model`.
            device: As for `load_model`.
            loader: As for `load_model`.
            trust_remote_code: Whether code from the model's or tokenizer's repository may run.
            load_settings: Further settings of `load_model` (`adapter`, `device_map`, `attention`, ...).
            **kwargs: Passed to the constructor.
        """
        tokenizer = load_tokenizer(name_or_path, trust_remote_code=trust_remote_code)
        settings = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code} | dict(
            load_settings or {}
        )
        return cls(load_model(name_or_path, loader=loader, **settings), tokenizer, **kwargs)

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        """Sample one turn; see `policies.base.TokenPolicy`. `session` only identifies the target of an interrupt.

        Raises:
            ContextFullError: If the prompt leaves no room for a token.
            InvalidConfigError: If the prompt is empty or has ids that the model does not have.
        """
        prompt_ids = check_token_ids(self.model, prompt_ids, "the prompt")
        if not len(prompt_ids):
            raise InvalidConfigError("the prompt is empty: a model needs at least one token to continue from.")
        if len(prompt_ids) >= self.max_model_len:
            raise ContextFullError(f"a prompt of {len(prompt_ids)} tokens fills the context of {self.max_model_len}.")
        if self._closed:
            raise RuntimeError("the transformers policy was closed: make a new one")
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(loop, _Queue())
        request = _Request(prompt_ids, params, seed, session, loop.create_future())
        queue.pending.append(request)
        if queue.pump is None or queue.pump.done():
            queue.pump = loop.create_task(self._serve(queue))
        return await request.answer

    def interrupt(self, session: str) -> None:
        """End a session's turns with the tokens so far; see `policies.base.InterruptiblePolicy`.

        They end at their next token. The answer comes when the whole batch has ended, so interrupt all of its turns.
        """
        queue = self._queues.get(asyncio.get_running_loop())
        if queue is None:
            return
        for request in [*queue.pending, *queue.running]:
            request.is_interrupted = request.is_interrupted or request.session == session
        for request in queue.pending:
            if request.is_interrupted and not request.answer.done():
                request.answer.set_result(_nothing(self.weight_version))

    def update_weights(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy `named_parameters` (name, tensor) into the model.

        Raises:
            ModelError: If a name or a shape does not fit; then nothing is changed.
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
        """Drop requests that have not started, wait for the running batch, and end the thread."""
        self._closed = True
        queue = self._queues.get(asyncio.get_running_loop())
        if queue is not None and queue.pump is not None:
            queue.pump.cancel()
            await asyncio.gather(queue.pump, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown, wait=True)

    async def _serve(self, queue: _Queue) -> None:
        """Answer the pending requests of one loop until none are left."""
        try:
            while queue.pending:
                await asyncio.sleep(self.gather_s)
                batch = queue.take(self.max_batch_size)
                if batch:
                    queue.running = batch
                    await self._run(batch)
        finally:
            queue.running = []
            for request in queue.pending:
                request.answer.cancel()
            queue.pending.clear()

    async def _run(self, batch: list[_Request]) -> None:
        running: asyncio.Future[list[Sampled]] | None = None
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, self._generate, batch)
            # Shielded: a thread cannot be cancelled, so a cancellation waits below until it has stopped.
            results = await asyncio.shield(running)
        except asyncio.CancelledError:
            for request in batch:
                request.answer.cancel()  # its row stops at the next token
            if running is not None:
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
        # The model may be the one in training, whose mode must be restored.
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
                weight_version=self.weight_version,
                detokenize=lambda ids: str(self.tokenizer.decode(ids)),
                is_aborted=lambda index: batch[index].is_interrupted or batch[index].answer.cancelled(),
            )
        finally:
            if was_training:
                self.model.train()


def _nothing(weight_version: int) -> Sampled:
    """Return the empty result of a turn that has not begun."""
    return Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), FinishReason.ABORT, weight_version)
