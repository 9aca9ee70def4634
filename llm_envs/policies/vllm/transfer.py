"""vLLM's own weight transfer: weights go through a process group of this process and the workers of all servers.

With NCCL both ends are vLLM's classes; with gloo, for CPUs, they are in `gloo.py`. All else is the same.

Invariants:
1. A group has the servers that it was made with. If one is restarted, joins or leaves, the next transfer makes another.
2. A transfer that fails leaves no group, and no server in the middle of an update. The caller sends these weights
   otherwise.
3. No caller waits for a lost server: a collective call may hang, and runs in a thread that can be left behind.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

from llm_envs.errors import BridgeError, InvalidConfigError, LLMEnvsError, MissingExtraError, ModelError
from llm_envs.policies.vllm.control import ServerControl, ServerFacts, ServerState, VLLMControl, check_updatable
from llm_envs.policies.vllm.exchange import GROUP_TRANSPORTS, TRANSPORTS, ServedCheckpoint
from llm_envs.policies.vllm.formats import EXTENSION, SERVE_COMMAND
from llm_envs.policies.vllm.http import is_local

__all__ = [
    "GROUP_TRANSPORTS",
    "TRANSPORTS",
    "WeightTransfer",
    "check_transport",
    "make_transfer",
    "transfer_args",
    "warn_of_slow_transport",
]

MAX_CHECKPOINT_SERVERS = 16
"""Servers for full checkpoints. With 32, all nodes' reading of them costs a tenth of a run, and ever more after that
(docs/results/scale.md)."""

_LOG = logging.getLogger(__name__)
_ENGINES = {
    "nccl": ("vllm.distributed.weight_transfer.nccl_engine", "NCCLTrainerInitInfo", "NCCLTrainerWeightTransferEngine"),
    "gloo": ("llm_envs.policies.vllm.gloo", "GlooInitInfo", "GlooTrainerEngine"),
}
_BUFFER_BYTES = 1 << 28
_TRANSFER_S, _RESET_S = 1800.0, 60.0
# After a server's error, the time for the collective call to notice it too.
_GRACE_S = 10.0


def transfer_args(transport: str) -> list[str]:
    """Return the arguments of `vllm serve` for a transport."""
    if transport not in GROUP_TRANSPORTS:
        return []
    return ["--weight-transfer-config", f'{{"backend": "{transport}"}}']


def warn_of_slow_transport(transport: str, n_servers: int) -> None:
    """Warn if full checkpoints go to so many servers that reading them holds a training up."""
    if transport == "checkpoint" and n_servers > MAX_CHECKPOINT_SERVERS:
        warnings.warn(
            f"after each step {n_servers} servers read all weights, and the trainer waits. Set vllm_transport='delta', "
            "which sends what has changed, or 'nccl' where the trainer has a GPU.",
            stacklevel=2,
        )


def check_transport(transport: str, address: str | None = None, server: str = "vllm") -> None:
    """Check that this process can send weights so.

    Raises:
        InvalidConfigError: If the transport is unknown or not for these servers, the address is not one, or NCCL finds
            no GPU here.
        MissingExtraError: If vLLM is not installed.
    """
    if transport not in TRANSPORTS:
        raise InvalidConfigError(f"the transport of weights is {transport!r}; it must be one of {TRANSPORTS}.")
    if transport != "checkpoint" and server != "vllm":
        raise InvalidConfigError(f"transport={transport!r} is for vLLM, and server={server!r}: use 'checkpoint'.")
    if address is not None and not re.fullmatch(r"[^:/\s]+(:[1-9]\d{0,4})?", address):
        raise InvalidConfigError(f"transfer_address is {address!r}; it must be HOST or HOST:PORT of this machine.")
    if transport not in GROUP_TRANSPORTS:
        return
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError(f"transport={transport!r} needs vllm here too: pip install 'llm-envs[vllm]'.")
    import torch

    if transport == "nccl" and not torch.cuda.is_available():
        raise InvalidConfigError(
            "transport='nccl' needs a GPU in this process, and torch finds none. Use 'checkpoint', 'delta', or 'gloo', "
            "which does the same on CPUs."
        )


def make_transfer(transport: str, address: str | None, control: ServerControl) -> WeightTransfer | None:
    """Return the transfer of a transport; None for those by files."""
    if transport not in GROUP_TRANSPORTS or not isinstance(control, VLLMControl):
        return None
    return WeightTransfer(transport, address, control)


class WeightTransfer:
    """Sends weights from this process to servers, by a process group that is made when it is needed.

    Args:
        backend: "nccl" or "gloo".
        address: HOST or HOST:PORT by which servers reach this machine. None finds the host by the route to them; a
            free port is chosen for each group.
        control: Sends the requests.
    """

    def __init__(self, backend: str, address: str | None, control: VLLMControl) -> None:
        self.backend, self._address, self._control = backend, address, control
        self._source = _Tensors()
        self._members: tuple[str | None, ...] = ()
        self._engine: Any = None

    def check(self, facts: ServerFacts) -> None:
        """Check that a server takes weights so.

        Raises:
            ModelError: If it was not started for that. The message has the right command.
        """
        if facts.device == "cpu" and self.backend == "nccl":
            raise ModelError(
                f"{facts.url} runs on a CPU, and transport='nccl' needs GPUs. Use 'checkpoint', 'delta' or 'gloo'."
            )
        option, config = transfer_args(self.backend)
        actual, wanted = (facts.transfer, facts.extension), (self.backend, EXTENSION)
        if actual != wanted:
            raise ModelError(
                f"{facts.url} takes no weights by {self.backend!r}: its weight transfer and worker extension are "
                f"{actual}, not {wanted}. Start it as: {SERVE_COMMAND.format(model=facts.root)} {option} '{config}' "
                f"--worker-extension-cls {EXTENSION}"
            )

    def send(
        self,
        endpoints: Sequence[ServerState],
        checkpoint: ServedCheckpoint,
        tensors: Mapping[str, Any],
        check_fn: Callable[[ServerState, ServerFacts], None],
    ) -> None:
        """Send weights to all servers in parallel. Never raises: a server without their tag did not get them.

        Args:
            endpoints: The servers.
            checkpoint: The weights' names.
            tensors: The weights, on the CPU.
            check_fn: Raises if a server must not get them.
        """
        with ExitStack() as held:
            there: dict[ServerState, ServerFacts] = {}
            for endpoint in endpoints:
                held.enter_context(endpoint.lock)
                held.enter_context(endpoint.loading())
                with suppress(LLMEnvsError):
                    facts = self._control.facts(endpoint.url)
                    check_fn(endpoint, facts)
                    check_updatable(facts)
                    there[endpoint] = facts
            servers = list(there.values())
            try:
                with self._control.all_changing(servers, checkpoint.tag):
                    self._load(servers, tensors)
            except LLMEnvsError as error:
                _LOG.warning("Weights of version %d are sent as a file. %s", checkpoint.version, error)
                return
            for endpoint in there:
                endpoint.version, endpoint.salt = checkpoint.version, checkpoint.tag

    def _load(self, servers: Sequence[ServerFacts], tensors: Mapping[str, Any]) -> None:
        """Load tensors into all workers of paused servers.

        Raises:
            BridgeError: If that failed at a server. Any of them may have any part of the weights then.
        """
        if not servers:
            raise BridgeError("no server answers.")
        requests = _Requests(self._control.ask, [facts.url for facts in servers])
        self._source.tensors = tensors
        try:
            members = tuple(facts.process for facts in servers)
            if self._engine is None or members != self._members:
                self.close()
                self._engine, self._members = self._unless_lost(requests, lambda: self._join(requests)), members
            self._engine.client = requests
            self._unless_lost(requests, self._engine.send_weights)
        except Exception as error:
            self.close()
            requests.reset()
            raise BridgeError(f"weights by {self.backend} failed: {error}") from error
        finally:
            self._source.tensors = {}

    def close(self) -> None:
        """Leave the group."""
        engine, self._engine = self._engine, None
        group = None if engine is None else engine.model_update_group
        if group is not None:
            (group.destroy if self.backend == "nccl" else group.abort)()  # also if another process hangs
            engine.model_update_group = None  # vLLM 0.32 would end it again, and knows NCCL's groups only
            engine.shutdown()

    def _join(self, requests: _Requests) -> Any:
        module, info_name, engine_name = _ENGINES[self.backend]
        engines = importlib.import_module(module)
        host, port = _address(self._address, requests.urls)
        info = getattr(engines, info_name)(
            rank=0,
            master_address=host,
            master_port=port,
            world_size=1 + requests.count_workers(),
            packed_buffer_size_bytes=_BUFFER_BYTES,
        )
        return getattr(engines, engine_name).trainer_init(info, client=requests, source=self._source)

    def _unless_lost(self, requests: _Requests, function: Callable[[], Any]) -> Any:
        """Return a function's result, unless a server fails and the function does not notice it."""
        import torch

        future: Future[Any] = Future()
        if self.backend == "nccl":
            self._source.device = torch.device("cuda", torch.cuda.current_device())

        def run() -> None:
            try:
                if self.backend == "nccl":
                    torch.cuda.set_device(self._source.device)  # a thread has its own
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="llm-envs-transfer", daemon=True).start()
        until_s = time.monotonic() + _TRANSFER_S
        while not wait([future], timeout=0.2).done:
            if requests.error is not None:
                until_s = min(until_s, time.monotonic() + _GRACE_S)
            if time.monotonic() > until_s:
                raise requests.error or BridgeError(f"the transfer did not end within {_TRANSFER_S:g} s.")
        if future.exception() is not None and requests.error is not None:
            raise requests.error  # the cause: the collective call tells only that a connection was closed
        return future.result()


class _Requests:
    """The client that vLLM's trainer engines call, for several servers: each phase at all of them in parallel."""

    def __init__(self, ask: Callable[..., Any], urls: Sequence[str]) -> None:
        self._ask, self.urls, self._n_workers = ask, urls, [0] * len(urls)
        self.error: LLMEnvsError | None = None

    def count_workers(self) -> int:
        """Ask for the number of workers of all servers."""
        self._n_workers = [self._ask(f"{url}/get_world_size")["world_size"].whole(1) for url in self.urls]
        return sum(self._n_workers)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Make the workers join; each server's ranks follow the previous server's."""
        ranks = [init_info["rank_offset"] + sum(self._n_workers[:place]) for place in range(len(self.urls))]
        self._all("init_weight_transfer_engine", [{"init_info": init_info | {"rank_offset": rank}} for rank in ranks])

    def start_weight_update(self) -> None:
        self._all("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._all("update_weights", [{"update_info": update_info}] * len(self.urls))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End an update. The caller sets the version."""
        self._all("finish_weight_update")

    def reset(self) -> None:
        """Bring workers out of an update that failed: otherwise the next load would continue with its layers."""
        for path in ("start_weight_update", "finish_weight_update"):
            with suppress(LLMEnvsError):
                self._all(path, timeout_s=_RESET_S)

    def _all(
        self, path: str, bodies: Sequence[Mapping[str, Any]] | None = None, timeout_s: float = _TRANSFER_S
    ) -> None:
        def call(url: str, body: Mapping[str, Any]) -> None:
            try:
                self._ask(f"{url}/{path}", body, timeout_s=timeout_s)
            except LLMEnvsError as error:
                self.error = self.error or error
                raise

        with ThreadPoolExecutor(len(self.urls)) as threads:
            list(threads.map(call, self.urls, bodies or [{}] * len(self.urls)))


class _Tensors:
    """A `WeightSource` of vLLM: the tensors of one transfer, moved to the device one by one."""

    def __init__(self) -> None:
        import torch

        self.device = torch.device("cpu")
        self.tensors: Mapping[str, Any] = {}

    def metadata(self) -> list[Any]:
        """Return names, dtypes and shapes."""
        from vllm.distributed.weight_transfer import ParamMeta

        return [ParamMeta(name, value.dtype, tuple(value.shape)) for name, value in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.tensors.items():
            yield name, value.to(self.device)


def _address(text: str | None, urls: Sequence[str]) -> tuple[str, int]:
    """Return the host and port at which this process waits for the workers."""
    host, _, port = (text or "").partition(":")
    elsewhere = [urlsplit(url) for url in urls if not is_local(url)]
    if not host and not elsewhere:
        host = "127.0.0.1"
    elif not host:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:  # which sends nothing
            route.connect((elsewhere[0].hostname, elsewhere[0].port or 80))
            host = route.getsockname()[0]
    if port:
        return host, int(port)
    with socket.socket() as free:
        free.bind(("", 0))
        return host, free.getsockname()[1]
