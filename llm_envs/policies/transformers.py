"""The embedded default: a transformers model in this process, on any machine. Concurrent requests share one batch.

Invariants:
1. A request gets exactly one answer: its turn (or a part, if it was interrupted) or an error. A cancelled caller gets
   none.
2. One batch runs at a time, in the policy's own thread; the event loops are never blocked. A request joins the batch at
   its next step, if there is a free row, and is answered when its own turn ends. Requests keep their order of arrival.
3. If a prompt cannot be read, only the requests that joined with it fail. If a step fails, the requests that are
   running fail. Later ones start with a new batch.
4. `update_weights` replaces the weights between two steps. A running turn continues under the new weights, with the
   keys and values that the old ones computed, and is marked with the version at which it began. A caller that does not
   want this must first wait for its turns, or interrupt them.
5. The model is in eval mode while turns run. Its mode is restored before the last of them is answered.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError
from llm_envs.policies.inference.loading import context_length, load_model, load_tokenizer
from llm_envs.policies.inference.padding import check_token_ids
from llm_envs.policies.inference.positions import check_positions
from llm_envs.policies.inference.prefixes import PrefixCache, depends_on_length
from llm_envs.policies.inference.sampling import RunningBatch, Turn
from llm_envs.types import FinishReason, Sampled, SamplingParams

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["TransformersPolicy"]


@dataclass(eq=False)
class _Request:
    turn: Turn
    session: str
    answer: asyncio.Future[Sampled]
    loop: asyncio.AbstractEventLoop
    weight_version: int = 0
    is_interrupted: bool = False

    def is_aborted(self) -> bool:
        """Return whether no caller wants further tokens."""
        return self.is_interrupted or self.answer.done() or self.loop.is_closed()


_MAX_WAIT_S = 0.1
"""A step waits no longer than this for the requests that the last answers set off."""
_ROUNDS_OF_THE_LOOP = 8
"""Iterations of an event loop from an answer to the next request, generously: a few awaits and tasks lie between."""


def _settle(answers: Mapping[_Request, Sampled | Exception], wait_s: float = 0.0) -> None:
    """Give answers, from any thread. All of one event loop arrive in one call, so that the next requests come together.

    Args:
        answers: Request -> its answer.
        wait_s: Most seconds to wait until the event loops have run what the answers set off. Environments that do not
            block have asked again by then, so that the same requests join at the same step in every run.
    """

    def put(some: list[_Request], is_done: threading.Event) -> None:
        for request in some:
            answer = answers[request]
            if request.answer.done():
                continue
            if isinstance(answer, Exception):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        follow(some[0].loop, _ROUNDS_OF_THE_LOOP, is_done)

    def follow(loop: asyncio.AbstractEventLoop, n: int, is_done: threading.Event) -> None:
        if n:
            loop.call_soon(follow, loop, n - 1, is_done)
        else:
            is_done.set()

    waits = []
    for loop in {request.loop for request in answers}:
        with suppress(RuntimeError):  # the event loop is closed: no caller waits for the answers
            is_done = threading.Event()
            loop.call_soon_threadsafe(put, [request for request in answers if request.loop is loop], is_done)
            waits.append(is_done)
    for is_done in waits if wait_s else ():
        is_done.wait(wait_s)


class TransformersPolicy:
    """A token policy on a transformers model.

    Args:
        model: A causal language model. It may be the model in training: it is put into eval mode while sampling.
        tokenizer: Its tokenizer, with a chat template.
        max_batch_size: Most requests sampled together. With 1, a turn's tokens and log-probabilities are the same to
            the last bit whatever else is asked; with more, up to rounding in the model's kernels.
        gather_s: Seconds to wait for more requests before the first ones of a batch start.
        weight_version: Version of the weights as loaded.
        prefix_cache_gib: Most memory (GiB) for the keys and values of turns that have ended, so that the next turn of
            an episode reads only what is new. 0, a `max_batch_size` of 1, or a model whose keys depend on the length of
            the prompt's full length (RoPE types longrope, dynamic): every prompt is read from its start.

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
        prefix_cache_gib: float = 2.0,
    ) -> None:
        check_positions(model)
        self.model = model
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.max_batch_size = max_batch_size
        self.gather_s = gather_s
        self.weight_version = weight_version
        self.max_model_len = context_length(model)
        is_caching = prefix_cache_gib > 0 and max_batch_size > 1 and not depends_on_length(model)
        self._prefixes = PrefixCache(int(prefix_cache_gib * 2**30)) if is_caching else None
        self._lock = threading.Lock()  # guards the four below
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._is_working = False
        self._closed = False
        self._model_lock = threading.Lock()  # held while the model computes, and while its weights change
        self._next_lock = threading.Lock()
        self._told = False
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
            load_settings: Further settings of `load_model` (`adapter`, `device_map`, `attn_implementation`, ...).
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
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ContextFullError(f"a prompt of {len(prompt_ids)} tokens fills the context of {self.max_model_len}.")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sampled] = loop.create_future()
        turn = Turn(
            prompt_ids,
            params,
            limit=min(params.max_new_tokens, room),
            seed=seed,
            stop_token_ids=self.codec.stop_token_ids,
            detokenize=lambda ids: str(self.tokenizer.decode(ids)),
            is_aborted=lambda: request.is_aborted(),
        )
        request = _Request(turn, session, answer, loop)
        with self._lock:
            if self._closed:
                raise RuntimeError("the transformers policy was closed: make a new one")
            self._waiting.append(request)
            if not self._is_working:
                loop.call_later(self.gather_s, self._start)
        return await answer

    def interrupt(self, session: str) -> None:
        """End a session's turns at their next token; see `policies.base.InterruptiblePolicy`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            waiting, running = list(self._waiting), list(self._running)
        for request in (*waiting, *running):
            if request.loop is loop and request.session == session:
                request.is_interrupted = True
        # The thread may start such a request just now. This answer comes first, and its row stops at its first token.
        for request in waiting:
            if request.is_interrupted and not request.answer.done():
                request.answer.set_result(Sampled.empty(FinishReason.ABORT, self.weight_version))

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
        with self._hold_model():
            if self._prefixes is not None:
                self._prefixes.clear()
            for name, value in new.items():
                own[name].data.copy_(value)
            self.weight_version = version

    def free_memory(self) -> None:
        """Release the memory of the prefix cache; a trainer does so when it has played a generation."""
        if self._prefixes is not None:
            with self._hold_model():
                self._prefixes.clear()

    async def aclose(self) -> None:
        """Cancel all requests, wait until the running step has ended, and end the thread."""
        with self._lock:
            self._closed = True
            requests = [*self._waiting, *self._running]
        for request in requests:
            if request.loop is asyncio.get_running_loop():
                request.answer.cancel()
            else:
                with suppress(RuntimeError):  # that event loop is closed
                    request.loop.call_soon_threadsafe(request.answer.cancel)
        await asyncio.to_thread(self._thread.shutdown, wait=True)
        self.free_memory()

    @contextmanager
    def _hold_model(self) -> Iterator[None]:
        """Hold the model's lock. Whoever asks first is next: one lock would return to the thread that steps."""
        with self._next_lock:
            self._model_lock.acquire()
        try:
            yield
        finally:
            self._model_lock.release()

    def _start(self) -> None:
        """Let the thread sample, unless it does already."""
        with self._lock:
            if self._is_working or self._closed or not self._waiting:
                return
            self._is_working = True
            self._thread.submit(self._work)

    def _work(self) -> None:
        """Sample until no request is left."""
        while True:
            answers: dict[_Request, Sampled | Exception]
            try:
                answers = self._run_batch()
            except Exception as error:  # not from the model, whose failures are answers; no caller may wait for ever
                with self._lock:
                    answers = dict.fromkeys([*self._running, *self._waiting], error)
                    self._running, self._waiting = [], []
            with self._lock:
                is_last = not self._waiting
                self._is_working = not is_last  # before the answers, so that the next requests gather
            _settle(answers)
            if is_last:
                return

    def _run_batch(self) -> dict[_Request, Sampled | Exception]:
        """Sample and answer until no turn is running. Returns the last answers, which are still to be given."""
        # The model may be the one in training, whose mode must be restored.
        was_training = self.model.training
        try:
            self.model.eval()
            if self._prefixes is not None:
                self._prefixes.check_weights(self.model)
            running = RunningBatch(self.model, self.max_batch_size, self._prefixes)
            while True:
                answers = self._step(running)
                if not self._running:
                    return answers
                _settle(answers, wait_s=_MAX_WAIT_S)
        finally:
            if was_training:
                self.model.train()

    def _step(self, running: RunningBatch) -> dict[_Request, Sampled | Exception]:
        """Let requests join and sample a token of each turn. Returns the answers of those that have ended."""
        failed: dict[_Request, Sampled | Exception] = {}
        with self._hold_model():
            joining = self._take(running)
            try:
                if joining:
                    running.join([request.turn for request in joining])
            except Exception as error:
                failed |= dict.fromkeys(joining, error)
            try:
                running.step()
            except Exception as error:
                failed = {request: failed.get(request, error) for request in self._running}
                running.clear()
        answers = failed | {
            request: request.turn.sampled(request.weight_version)
            for request in self._running
            if request not in failed and request.turn.finish_reason is not None
        }
        with self._lock:
            self._running = [request for request in self._running if request not in answers]
        return answers

    def _take(self, running: RunningBatch) -> list[_Request]:
        """Move the requests that may join from waiting to running."""
        with self._lock:
            self._waiting = [request for request in self._waiting if not request.is_aborted()]
            n = max(running.n_free, 0)
            taken, self._waiting = self._waiting[:n], self._waiting[n:]
            self._running += taken
            is_kept_waiting = bool(self._waiting) and running.join_problem is not None
        for request in taken:
            request.weight_version = self.weight_version
        if is_kept_waiting and not self._told:
            self._told = True
            warnings.warn(
                f"new turns wait until all turns of a batch have ended, because {running.join_problem}.", stacklevel=2
            )
        return taken
