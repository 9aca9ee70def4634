"""A token policy on one or many model servers: `vllm serve`, started by you or by `launcher.start_servers`.

Invariants:
1. The process that samples a turn is always known. A server is identified before its first turn, after each failure,
   and after each new connection (it may have been restarted). If another process answers than the one that was asked,
   the answer is dropped and the request repeated. A restarted process gets the current weights before any request.
2. A turn is retried only if that can help: no connection, 429, 5xx. It waits longer each time, and goes to another
   server if there is one. Cancelling a turn closes its connection, and the server then aborts the turn.
3. Weights are compared by name and shape before they are sent to any server, and are sent to all servers in parallel.
   No turn begins on a server that is loading. A running turn is frozen and continues under the new weights. With our
   worker extension its tokens carry the versions that sampled them; otherwise, the one at which it began. A running
   turn keeps its adapter (`server_adapters.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import BridgeError, InvalidConfigError, LLMEnvsError, ModelError
from llm_envs.policies.answers import Answer
from llm_envs.policies.vllm.adapters import Adapter, AdapterShelf
from llm_envs.policies.vllm.checkpoints import Shapes, check_same_tensors, n_vocabulary, served_folder, tensor_shapes
from llm_envs.policies.vllm.control import (
    CHANGING,
    CONTROLS,
    ServerFacts,
    ServerState,
    check_facts,
    check_settings,
    check_updatable,
    side_by_side,
)
from llm_envs.policies.vllm.exchange import ServedCheckpoint, WeightStore, new_tag, version_of
from llm_envs.policies.vllm.formats import FORMATS, TurnRequest
from llm_envs.policies.vllm.http import API_KEY, AsyncClients, RetryableError, bearer, is_local, server_root
from llm_envs.policies.vllm.routing import Backoff, Router
from llm_envs.policies.vllm.server_adapters import ServesAdapters
from llm_envs.policies.vllm.transfer import check_transport, make_transfer
from llm_envs.types import FinishReason, Sampled, SamplingParams
from llm_envs.types.sampling import spans_of_changes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["VLLMServerPolicy", "open_client"]

_LOG = logging.getLogger(__name__)

_LOADING_POLL_S = 0.01
_PREEMPTIONS = re.compile(r"^vllm:num_preemptions_total\S* (\S+)$", re.MULTILINE)


class VLLMServerPolicy(ServesAdapters):
    """A token policy on model servers, whose weights can be changed.

    Args:
        urls: Addresses of the servers: `"http://127.0.0.1:8000"`, or several. All must have the same model.
        tokenizer: The model's tokenizer, with a chat template.
        model: The model that they must have: a folder or a name on a hub. None takes the first server's.
        server: "vllm", or "sglang" (not tried with its engine).
        api_key: Sent as a bearer token.
        max_concurrency: Maximum number of concurrent turns over all servers.
        timeout_s: Seconds that one attempt at a turn may take.
        max_retries: Attempts at a turn after the first. The default retries for about ten minutes, because a dead
            server may be restarted.
        connect_timeout_s: Seconds to wait for servers that do not answer yet, on construction.
        health_s: Seconds without an answer after which the health of a server with running turns is checked.
        backoff: Waits between attempts.
        weight_version: Version of the current weights.
        exchange_dir: Folder for weights, which we can write and all servers can read under the same path. None: a
            temporary one, for servers on this machine.
        transport: How `update_weights` sends weights: "checkpoint", or "delta": only the elements that have changed,
            where these are few. "nccl": by vLLM's weight transfer, from a GPU to GPUs; "gloo": the same on CPUs. With
            all but "checkpoint" this process keeps a copy of the weights in memory, with "delta" each worker too.
        transfer_address: With "nccl" and "gloo": HOST or HOST:PORT of this machine for the servers' workers. None:
            the host by which this machine reaches the servers, and a free port.

    Raises:
        InvalidConfigError: If a setting is wrong, or a server refuses the API key.
        BridgeError: If a server does not answer.
        ModelError: If a server has another model or tokenizer, or does not report log-probabilities of the sampled
            distribution. The message has the right command.
        MissingExtraError: If no HTTP client is installed.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        model: str | Path | None = None,
        server: Literal["vllm", "sglang"] = "vllm",
        api_key: str | None = None,
        max_concurrency: int = 256,
        timeout_s: float = 1800.0,
        max_retries: int = 40,
        connect_timeout_s: float = 10.0,
        health_s: float = 15.0,
        backoff: Backoff | None = None,
        weight_version: int = 0,
        exchange_dir: str | Path | None = None,
        transport: Literal["checkpoint", "delta", "nccl", "gloo"] = "checkpoint",
        transfer_address: str | None = None,
    ) -> None:
        addresses = [urls] if isinstance(urls, str) else list(urls)
        check_settings(addresses, server, max_concurrency, timeout_s, max_retries, health_s)
        check_transport(transport, transfer_address, server)
        self.tokenizer, self.codec = tokenizer, ChatCodec(tokenizer)
        self.model = None if model is None else str(model)
        self.timeout_s, self.max_retries, self.health_s = timeout_s, max_retries, health_s
        self.backoff, self.weight_version = backoff or Backoff(), weight_version
        self.router = Router(len(addresses))
        headers = bearer(api_key)
        self._format = FORMATS[server]
        use_proxy = not any(map(is_local, addresses))
        self._control = CONTROLS[server](headers, health_s, use_proxy=use_proxy)
        self._clients = AsyncClients(headers, max_concurrency, use_proxy=use_proxy, n_more=len(addresses))
        self._threads = ThreadPoolExecutor(len(addresses), thread_name_prefix="llm-envs-identify")
        self._endpoints = [ServerState(server_root(url), version=weight_version) for url in addresses]
        self.urls = [endpoint.url for endpoint in self._endpoints]
        """Addresses of the servers."""
        self.checkpoint: ServedCheckpoint | None = None
        """The weights that the servers have loaded last, for `follow`; None before the first."""
        self._exchange, self.shelf = WeightStore(exchange_dir, transport), AdapterShelf()
        self._transfer = make_transfer(transport, transfer_address, self._control)
        self._needs_folder = exchange_dir is None and not all(map(is_local, addresses))
        self._own_tags: set[str | None] = set()
        self.followers: list[Callable[[ServedCheckpoint | Adapter], None]] = []
        """`follow` of clients in other processes, which `send` and `follow` call before the servers change."""
        self._whole_lock = threading.Lock()
        self.max_model_len: int = self._connect(connect_timeout_s)
        self._n_vocabulary = max(len(tokenizer), n_vocabulary(self.model or self._facts().root))

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        """Sample one turn; see `policies.base.TokenPolicy`. A session stays on one server until that fails.

        Raises:
            ContextFullError: If the prompt fills the context.
            BridgeError: If no attempt succeeded.
        """
        return await self.sample_with(None, prompt_ids, params, seed=seed, session=session)

    def load_checkpoint(self, path: str | Path, version: int) -> None:
        """Make all servers load the weights of a checkpoint, in parallel; later turns carry `version`.

        Blocks until all have loaded; in asynchronous code, `await asyncio.to_thread(policy.load_checkpoint, ...)`. A
        server that is down gets the weights when it is back, so keep the folder until the next checkpoint is loaded.

        Args:
            path: A folder with `*.safetensors`, which every server can read under this path.
            version: Version of the weights.

        Raises:
            ModelError: If names or shapes differ from the served model's, or a server cannot change its weights. No
                server was changed then.
            BridgeError: If no server could be reached.
        """
        checkpoint = ServedCheckpoint(Path(path).resolve(), version, new_tag(version))
        self._check_sendable(tensor_shapes(Path(path)), str(path))
        self._exchange.forget()
        self.send(checkpoint)

    def update_weights(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> None:
        """Replace the weights by (name, tensor) pairs: `prepare`, then `send`."""
        self.send(self.prepare(named_parameters, version))

    def prepare(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> ServedCheckpoint:
        """Write or copy weights for the servers, which do not have them before `send`.

        Raises:
            InvalidConfigError: If servers are on other machines, without an `exchange_dir`.
            ModelError: As for `load_checkpoint`.
        """
        if self._needs_folder and self._transfer is None:
            raise InvalidConfigError(
                "new weights are written to a folder of this machine, which servers on other machines cannot read: set "
                "exchange_dir (vllm_exchange_dir in a trainer) to a shared folder with the same path."
            )
        facts = self._facts()
        return self._exchange.write(
            named_parameters,
            version,
            self.checkpoint,
            like=self.served_checkpoint,
            computed=facts.dtype,
            sparse_allowed=all(e.facts is None or e.facts.has_extension for e in self._endpoints),
            check_fn=self._check_sendable,
        )

    def send(self, checkpoint: ServedCheckpoint) -> None:
        """Make all servers load prepared weights, in parallel, and delete those before."""
        self._take(checkpoint)
        if self._transfer is not None and (tensors := self._exchange.tensors(checkpoint)) is not None:
            self._transfer.send(self._endpoints, checkpoint, tensors, self._check_owner)
        errors = side_by_side(self._load_checkpoint, self._endpoints)
        if self.checkpoint is not checkpoint and self.checkpoint is not None:
            self._take(self.checkpoint)  # a server that refused a delta has a full checkpoint now
        self._exchange.keep_only(self.checkpoint)
        if len(errors) == len(self._endpoints):
            raise BridgeError(f"no server loaded the weights of version {checkpoint.version}: {errors[0]}")

    def follow(self, checkpoint: ServedCheckpoint | Adapter) -> None:
        """Take over a checkpoint or an adapter that another client of the same servers makes them load.

        A server that does not have it yet, or is restarted later, loads it at this client's next request.
        """
        if isinstance(checkpoint, Adapter):
            self.follow_adapter(checkpoint)
            return
        self._take(checkpoint)
        for endpoint in self._endpoints:
            if endpoint.facts is not None and endpoint.facts.tag == checkpoint.tag:
                endpoint.version, endpoint.salt = checkpoint.version, checkpoint.tag
            else:
                endpoint.is_trusted = False

    def _take(self, checkpoint: ServedCheckpoint) -> None:
        self._own_tags |= {checkpoint.whole_tag, *(delta.tag for delta in checkpoint.deltas)}
        self.checkpoint, self.weight_version, self.shelf.present = checkpoint, checkpoint.version, None
        for follow in self.followers:
            follow(checkpoint)

    def look_after(self) -> None:
        """Bring restarted servers up to date now; other clients may lack the weights (`transport="nccl"`)."""
        for endpoint in self._endpoints:
            with suppress(LLMEnvsError):
                endpoint.is_trusted &= self._control.facts(endpoint.url).process == endpoint.process
                self._identify(endpoint)

    def _check_sendable(self, shapes: Shapes, where: str = "this update") -> None:
        check_same_tensors(shapes, self.served_shapes, where)
        for endpoint in self._endpoints:
            if endpoint.facts is not None:
                check_updatable(endpoint.facts)

    async def count_preemptions(self) -> int:
        """Return how many turns the servers have preempted since they started; one that does not answer counts 0."""
        pages = [self._clients.get(f"{endpoint.url}/metrics", self.health_s) for endpoint in self._endpoints]
        counts = [_PREEMPTIONS.findall(page or "") for page in await asyncio.gather(*pages)]
        return sum(int(float(number)) for numbers in counts for number in numbers)

    async def aclose(self) -> None:
        """Close the connections, which aborts running requests, and unload the adapters that this client has loaded.

        The servers belong to their owner.
        """
        await self._clients.aclose()
        if adapters := self.shelf.clear():
            await asyncio.to_thread(self._unload, adapters)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._control.close()
        self._exchange.close()
        if self._transfer is not None:
            self._transfer.close()

    # One turn.

    async def _try(self, turn: TurnRequest, session: str, adapter: Adapter | None) -> Sampled:
        last: RetryableError | None = None
        for attempt in range(self.max_retries + 1):
            if last is not None:
                await asyncio.sleep(self.backoff.delay_s(attempt - 1, turn.seed, last.asked_s))
            while (index := self.router.pick(session, time.monotonic())) is None:
                await asyncio.sleep(max(self.router.wait_s(time.monotonic()), _LOADING_POLL_S))
            try:
                with self.shelf.using(adapter) as used:
                    return await self._ask(index, turn, used)
            except RetryableError as error:
                last = error
                if error.is_busy:
                    self.router.forget(session)
            finally:
                self.router.done(index)
        raise BridgeError(f"a turn failed {self.max_retries + 1} times; at last: {last}") from last

    async def _ask(self, index: int, turn: TurnRequest, adapter: Adapter | None) -> Sampled:
        """Make one attempt at one server, and report a failure to the router."""
        endpoint = self._endpoints[index]
        try:
            await self._ready(endpoint)
            if adapter is not None and (endpoint.facts is None or adapter.name not in endpoint.facts.adapters):
                await asyncio.to_thread(self._load_adapter, endpoint, adapter)
            facts, version = endpoint.facts, endpoint.version if adapter is None else adapter.version
            assert facts is not None
            body = self._format.request(turn, model=self._model_of(facts, adapter), salt=endpoint.salt)
            answer = await self._post(endpoint, body)
            while endpoint.checked < endpoint.connects:
                await self._identified(endpoint)
            if endpoint.process != facts.process:
                raise RetryableError(f"{endpoint.url} was restarted during a turn.")
            sampled = self._format.sampled(answer, version, self._n_vocabulary)
            if adapter is None and self.weight_version != version and facts.has_extension:
                sampled = await self._with_changes(endpoint, answer, sampled)
            if sampled.finish_reason is FinishReason.ABORT:
                raise RetryableError(f"{endpoint.url} aborted a turn.")
        except RetryableError as error:
            if not error.is_busy:
                self._failed(index, error)
            raise
        except ModelError as error:  # this server is no longer suitable; others may still be
            self._failed(index, error)
            if not any(self.router.is_well(other) for other in range(len(self._endpoints)) if other != index):
                raise
            raise RetryableError(str(error)) from error
        if not self.router.is_well(index):
            _LOG.warning("%s is back.", endpoint.url)
        self.router.succeeded(index)
        return sampled

    async def _with_changes(self, endpoint: ServerState, answer: Answer, sampled: Sampled) -> Sampled:
        """Return a turn with the versions that its server's worker has noted for it."""
        body = {"method": "llm_envs_versions", "args": [answer["id"].text()]}
        answered = await self._clients.post(f"{endpoint.url}/collective_rpc", body)
        noted = [change.items(least=2) for change in answered["results"].items()[0].items(least=0)]
        changes = [(n_tokens.whole(), version_of(tag.text())) for n_tokens, tag in noted]
        versions = spans_of_changes(sampled.weight_version, changes, len(sampled.token_ids))
        return replace(sampled, versions=versions)

    async def _ready(self, endpoint: ServerState) -> None:
        """Wait until a server is not loading weights and has been identified."""
        while endpoint.is_loading or not endpoint.is_trusted:
            if endpoint.is_loading:
                await asyncio.sleep(_LOADING_POLL_S)
            else:
                await self._identified(endpoint)

    async def _identified(self, endpoint: ServerState) -> None:
        """Wait until a server is identified; the first turn that needs it does it for all."""
        if endpoint.asking is None or endpoint.asking.done():
            endpoint.asking = self._threads.submit(self._identify, endpoint)
        await asyncio.shield(asyncio.wrap_future(endpoint.asking))

    async def _post(self, endpoint: ServerState, body: Mapping[str, Any]) -> Answer:
        """Send a request and check the server's health meanwhile, to notice a hung server before the turn's timeout."""
        url = f"{endpoint.url}{self._format.sample_path}"
        asking = self._clients.post(url, body, timeout_s=self.timeout_s, trace=endpoint.note_connection)
        post = asyncio.ensure_future(asking)
        try:
            while not (await asyncio.wait({post}, timeout=self.health_s))[0]:
                await self._check_health(endpoint)
            endpoint.seen_s = time.monotonic()
            return post.result()
        finally:
            if not post.done():
                post.cancel()
                await asyncio.wait({post})

    async def _check_health(self, endpoint: ServerState) -> None:
        now_s = time.monotonic()
        if now_s - endpoint.seen_s < self.health_s:
            return
        url = f"{endpoint.url}/health"
        if await self._clients.get(url, self.health_s, trace=endpoint.note_connection) is None:
            raise RetryableError(f"{endpoint.url} has stopped answering.")
        endpoint.seen_s = time.monotonic()

    def _failed(self, index: int, error: Exception) -> None:
        endpoint = self._endpoints[index]
        if self.router.is_well(index):
            _LOG.warning("%s failed; its turns are tried again. %s", endpoint.url, error)
        endpoint.is_trusted = False
        self.router.failed(index, time.monotonic())

    # All servers: blocking, in threads.

    def _connect(self, timeout_s: float) -> int:
        """Identify all servers; return the smallest context."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            errors = side_by_side(self._identify, self._endpoints)
            if not errors:
                break
            fatal = [error for error in errors if not isinstance(error, RetryableError)]
            if fatal or time.monotonic() > deadline_s:
                raise (fatal or errors)[0]
            time.sleep(0.25)
        facts = self.facts
        for one in facts if self.model is None else ():
            check_facts(one, facts[0].root)
        return min(one.max_model_len for one in facts)

    def _identify(self, endpoint: ServerState) -> None:
        """Query and check a server's facts, and send it the current weights if it lacks them.

        Raises:
            RetryableError: If it does not answer.
            ModelError: If it is not the server that we need.
        """
        with endpoint.lock:
            connects = endpoint.connects
            if endpoint.is_trusted and endpoint.checked >= connects:
                return  # another turn has identified it
            facts = self._control.facts(endpoint.url)
            if facts.process is None or facts.process != endpoint.process or not endpoint.is_trusted:
                self._control.check(facts, self.model, self.tokenizer)
                if self._transfer is not None:
                    self._transfer.check(facts)
                known = getattr(self, "max_model_len", 0)
                if facts.max_model_len < known:
                    raise ModelError(
                        f"{facts.url} came back with a context of {facts.max_model_len} tokens; it was {known}."
                    )
            self._check_owner(endpoint, facts)
            wanted = self.checkpoint
            if wanted is not None and facts.tag != wanted.tag:
                self._load(endpoint, facts, wanted)
                facts = self._control.facts(endpoint.url)
            elif not endpoint.is_trusted and facts.is_dev:
                self._control.resume(facts)
            if wanted is not None:
                endpoint.version, endpoint.salt = wanted.version, wanted.tag
            endpoint.facts, endpoint.checked, endpoint.is_trusted = facts, connects, True

    def _check_owner(self, endpoint: ServerState, facts: ServerFacts) -> None:
        """Raise if a process has weights that another client gave it since we saw it."""
        known = endpoint.facts
        if facts.tag is None or known is None or facts.process is None or known.process != facts.process:
            self._own_tags.add(facts.tag and facts.tag.removesuffix(CHANGING))  # a load that failed leaves the mark
        elif facts.tag.removesuffix(CHANGING) not in self._own_tags:
            raise ModelError(
                f"another client has changed the weights of {facts.url} (from {known.tag!r} to {facts.tag!r}). Use "
                "one trainer at a time: create the policy again when the other is done."
            )

    def _load_checkpoint(self, endpoint: ServerState) -> None:
        checkpoint = self.checkpoint
        assert checkpoint is not None
        try:
            with endpoint.lock:
                facts = self._control.facts(endpoint.url)
                self._check_owner(endpoint, facts)
                if facts.tag != checkpoint.tag:
                    self._load(endpoint, facts, checkpoint)
                    facts = self._control.facts(endpoint.url)
                endpoint.version, endpoint.salt, endpoint.facts = checkpoint.version, checkpoint.tag, facts
        except LLMEnvsError as error:
            self._failed(self._endpoints.index(endpoint), error)
            raise

    def _load(self, endpoint: ServerState, facts: ServerFacts, checkpoint: ServedCheckpoint) -> None:
        """Make a server load weights. The caller holds its lock."""
        check_updatable(facts)
        with endpoint.loading():
            self._control.update_to(facts, checkpoint, self._write_whole)
            endpoint.version, endpoint.salt = checkpoint.version, checkpoint.tag

    def _write_whole(self, checkpoint: ServedCheckpoint) -> ServedCheckpoint | None:
        if self._needs_folder and self._exchange.tensors(checkpoint) is not None:
            raise RetryableError(
                f"a server without the weights of version {checkpoint.version} gets the next ones. "
                "With an exchange_dir (vllm_exchange_dir in a trainer) that it can read, it gets a file immediately."
            )
        with self._whole_lock:
            now = self.checkpoint
            if now is not None and now.tag == checkpoint.tag and now.is_whole:  # written for another server
                return now
            whole = self._exchange.write_checkpoint(checkpoint)
            if whole is not None:
                self.checkpoint = whole
            return whole

    def _facts(self) -> ServerFacts:
        return self.facts[0]

    @property
    def served_checkpoint(self) -> Path:
        """Folder on this machine of the model that the servers were started on.

        Raises:
            ModelError: If it is not here.
        """
        return served_folder(self.model, self._facts().root)

    @cached_property
    def served_shapes(self) -> Shapes:
        """Names and shapes of the tensors of `served_checkpoint`."""
        return tensor_shapes(self.served_checkpoint)


def open_client(urls: Sequence[str], codec: ChatCodec, **settings: Any) -> tuple[VLLMServerPolicy, ChatCodec]:
    """Return a policy on these servers and its codec, for actors that only play and `follow` a trainer's weights.

    An actor may take another one's place while a server is being restarted, and waits for it as long as turns do.
    """
    settings |= {"api_key": os.environ.get(API_KEY), "connect_timeout_s": 600.0}
    return VLLMServerPolicy(urls, codec.tokenizer, **settings), codec
