"""Servers of models, on other devices than training, and where environments run.

Every process is a client of `vllm serve`: it plays its own episodes. Only new weights are sent together, by the first
process.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from accelerate.utils import broadcast_object_list

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.vllm.checkpoints import read_tensors
from llm_envs.policies.vllm.exchange import is_ours
from llm_envs.policies.vllm.http import API_KEY
from llm_envs.policies.vllm.launcher import start_servers
from llm_envs.policies.vllm.scoring import TokenScorer
from llm_envs.policies.vllm.server import VLLMServerPolicy
from llm_envs.policies.vllm.transfer import GROUP_TRANSPORTS, check_transport, transfer_args, warn_of_slow_transport
from llm_envs.trainers.engines.adapter_sync import SLOTS, adapter_rank, has_base, unmerged_base
from llm_envs.trainers.engines.weight_sync import NO_IMAGES, ColocatedEngine
from llm_envs.trainers.run.ranks import raise_on_all_ranks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["SERVER_SETTINGS", "ServerEngines", "ServerSettings", "WorkerSettings"]


@dataclass
class WorkerSettings:
    """The fields of a trainer's configuration for environments in other processes."""

    workers: int = field(
        default=0,
        metadata={"help": "Run tasks in N processes beside each of the trainer's, in case they hang or crash."},
    )
    env_servers: list[str] | None = field(
        default=None,
        metadata={"help": "Addresses (HOST:PORT) of `llm-envs serve-envs`, which run tasks; `workers` limits them."},
    )


@dataclass
class ServerSettings:
    """The fields of a trainer's configuration for `vllm_mode="server"`."""

    vllm_server_urls: list[str] | None = field(
        default=None,
        metadata={"help": "Addresses of running `vllm serve` processes; None: start some on this machine."},
    )
    vllm_num_servers: int = field(
        default=1,
        metadata={"help": "Servers to start, on the GPUs behind those that train, an equal number each."},
    )
    server_args: str = field(
        default="", metadata={"help": "Arguments of `vllm serve` for started servers: '--tensor-parallel-size 2'."}
    )
    vllm_exchange_dir: str | None = field(
        default=None,
        metadata={"help": "Folder that all servers can read, for new weights; None: this machine's shared memory."},
    )
    vllm_transport: str = field(
        default="checkpoint",
        metadata={
            "help": "How new weights are sent: checkpoint; delta: only what has changed, where that is little; nccl: "
            "from GPU to GPU by vLLM's weight transfer; gloo: the same on CPUs."
        },
    )
    vllm_transfer_address: str | None = field(
        default=None,
        metadata={
            "help": "With nccl and gloo, HOST or HOST:PORT by which servers reach the first process; None: the host is "
            "found by the route to them."
        },
    )
    ray: str | None = field(
        default=None,
        metadata={
            "help": "Play in Ray actors, which are clients of the servers: address of the Ray cluster, or auto for the "
            "one found here."
        },
    )


# A process waits longer for another one to bring a restarted server up to date.
_LOOK_S = 15.0

SERVER_SETTINGS = tuple(field.name for field in fields(ServerSettings))


class ServerEngines(ColocatedEngine):
    """Has the methods of `ColocatedEngine`, for servers that all processes share.

    Args:
        model: The trained model.
        accelerator: The trainer's accelerator.
        processing_class: The tokenizer.
        settings: Where the servers are.
        version: Returns the version of the trainer's current weights: its step.
        max_concurrency: Concurrent turns on each process.
        **kwargs: Arguments of `ColocatedEngine`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        accelerator: Accelerator,
        processing_class: PreTrainedTokenizerBase,
        *,
        settings: ServerSettings,
        version: Callable[[], int],
        max_concurrency: int,
        **kwargs: Any,
    ) -> None:
        self._settings, self._max_concurrency, self._opened = settings, max_concurrency, ExitStack()
        self.policy: Any
        super().__init__(model, accelerator, processing_class, version=version, **kwargs)

    def _init_vllm(self) -> None:
        self._check_adapter()
        settings = self._settings
        urls: Sequence[str] | None = settings.vllm_server_urls
        check_transport(settings.vllm_transport, settings.vllm_transfer_address)  # before servers start
        is_on_nodes = self.accelerator.num_processes > int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if urls is None and is_on_nodes:
            raise InvalidConfigError(
                "servers are started on one machine, and this run has processes on others: start the servers yourself, "
                "and set vllm_server_urls and vllm_exchange_dir."
            )
        try:
            with raise_on_all_ranks():
                if urls is None and self.accelerator.is_main_process:
                    urls = self._start()
            (urls,) = broadcast_object_list([urls])
            if self.accelerator.is_main_process:
                warn_of_slow_transport(settings.vllm_transport, len(urls))
            with raise_on_all_ranks():
                self.policy = VLLMServerPolicy(
                    urls,
                    self.processing_class,
                    max_concurrency=self._max_concurrency,
                    api_key=os.environ.get(API_KEY),
                    exchange_dir=settings.vllm_exchange_dir,
                    transport=cast("Literal['checkpoint', 'delta', 'nccl', 'gloo']", settings.vllm_transport),
                    transfer_address=settings.vllm_transfer_address,
                )
        except BaseException:
            self._opened.__exit__(*sys.exc_info())  # the servers' logs are kept
            raise
        with suppress(ModelError):  # refused when weights are sent
            self._served = self.policy.served_shapes
        if self._sends_adapter:
            self._check_adapter_servers()
        is_first_of_many = self.accelerator.is_main_process and self._has_others
        if settings.vllm_transport in GROUP_TRANSPORTS and is_first_of_many:
            self._look_after_servers()

    @property
    def _has_others(self) -> bool:
        """Whether further clients of the servers play: other processes, or Ray's actors."""
        return self.accelerator.num_processes > 1 or self._settings.ray is not None

    def _check_adapter_servers(self) -> None:
        """Merge if a server takes no such adapters; else find out whether the servers have the trained model's base."""
        found = None
        with raise_on_all_ranks():
            # The other processes may lack the checkpoint, or may have asked a server before it was restarted.
            if self.accelerator.is_main_process:
                found = self._why_servers_merge(), self._servers_have_base()
        ((why, self._has_base),) = broadcast_object_list([found])
        self.policy.n_adapters_kept = 1 + self._has_others * (1 + getattr(self._settings, "async_generations", 0))
        if why is not None:
            self._merge_instead(why)

    def _why_servers_merge(self) -> str | None:
        rank = adapter_rank(self.accelerator.unwrap_model(self.model))
        for one in self.policy.facts:
            if one.max_lora_rank is None:
                return f"{one.url} was started without --enable-lora"
            if one.max_lora_rank < rank:
                return f"{one.url} has --max-lora-rank {one.max_lora_rank}, and the rank is {rank}"
        return None

    def _servers_have_base(self) -> bool:
        if any(is_ours(one.tag) for one in self.policy.facts):
            return False
        try:
            return has_base(self.policy.served_checkpoint, unmerged_base(self.accelerator.unwrap_model(self.model)))
        except ModelError:  # the checkpoint is on other machines
            return False

    def _look_after_servers(self) -> None:
        """Bring restarted servers up to date until `close`: the other processes, which cannot, may wait for them."""
        closed = threading.Event()

        def run() -> None:
            while not closed.wait(_LOOK_S):
                self.policy.look_after()

        threading.Thread(target=run, name="llm-envs-look-after", daemon=True).start()
        self._opened.callback(closed.set)

    def _start(self) -> Sequence[str]:
        """Start servers of the model on this machine, until `close`."""
        settings = self._settings
        scratch = self._opened.enter_context(TemporaryDirectory())
        args = ["--dtype", str(self.model.dtype).removeprefix("torch."), *transfer_args(settings.vllm_transport)]
        if self._sends_adapter:
            args += ["--enable-lora", "--max-lora-rank", str(self._rank_setting()), "--max-loras", str(SLOTS)]
        args += ["--limit-mm-per-prompt", json.dumps(NO_IMAGES), *shlex.split(settings.server_args)]
        if self.max_model_length is not None:
            args += ["--max-model-len", str(self.max_model_length)]
        devices = _free_devices(settings.vllm_num_servers)
        servers = start_servers(self._source(Path(scratch)), settings.vllm_num_servers, args=args, devices=devices)
        return self._opened.enter_context(servers).urls

    def _send_adapter(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Send the trainer's adapter to all servers. All processes call this, before the first episode."""
        adapter = None
        with raise_on_all_ranks():
            if self.accelerator.is_main_process:
                adapter = self.policy.prepare_adapter(tensors, self._version())
                self.policy.send_adapter(adapter)
        self._follow(adapter)

    def _send_weights(self, named_parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Send weights to all servers. All processes call this, before the first episode."""
        # A sharded weight is gathered by all processes together, so each goes through all of them, whatever fails.
        kept = [
            (name, value.detach().cpu()) if self.accelerator.is_main_process else (name, None)
            for name, value in named_parameters
        ]
        checkpoint = None
        with raise_on_all_ranks():
            if self.accelerator.is_main_process:
                kept += self._untrained({name for name, _ in kept})
                checkpoint = self.policy.prepare(kept, self._version())
        # All follow before the servers change: a process whose episodes are running would send the old weights back.
        self._follow(checkpoint)
        with raise_on_all_ranks():
            if self.accelerator.is_main_process:
                self.policy.send(checkpoint)
        self._follow(self.policy.checkpoint)  # a server that refused a delta has a full checkpoint now

    def _untrained(self, names: set[str]) -> list[tuple[str, torch.Tensor]]:
        """Return the served checkpoint's tensors that the trained model lacks: servers load full checkpoints."""
        missing = [name for name in self._served or {} if name not in names and not name.endswith("lm_head.weight")]
        return read_tensors(self.policy.served_checkpoint, missing) if missing else []

    def _score(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Return the first server's log-probabilities of ids, shape (T,). All processes call this."""
        adapter = self.policy.shelf.present
        with raise_on_all_ranks():  # no process sends other weights before all have asked
            scorer = TokenScorer(self.policy.urls[0], model=adapter and adapter.name, api_key=os.environ.get(API_KEY))
            (logps,) = scorer.score_tokens([ids])
            scorer.close()
        return logps

    def _follow(self, checkpoint: Any) -> None:
        (checkpoint,) = broadcast_object_list([checkpoint])
        with raise_on_all_ranks():
            if not self.accelerator.is_main_process:
                self.policy.follow(checkpoint)

    def close(self) -> None:
        """End the servers that were started."""
        self._opened.close()


def _free_devices(n_servers: int) -> list[str] | None:
    """Return the GPUs of each server: those behind the GPUs of the training processes. None on a machine without GPUs.

    Raises:
        InvalidConfigError: If they cannot be shared out equally.
    """
    n_found = torch.cuda.device_count()
    if not n_found:
        return None
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(n_found)))).split(",")
    free = names[int(os.environ.get("LOCAL_WORLD_SIZE", "1")) :]
    if not free or len(free) % n_servers:
        raise InvalidConfigError(
            f"vllm_num_servers={n_servers}: {len(names) - len(free)} of {len(names)} GPUs train, so "
            f"{len(free)} are left, which must be a multiple of the number of servers. Start fewer processes, or start "
            "the servers yourself and set vllm_server_urls."
        )
    each = len(free) // n_servers
    return [",".join(free[place : place + each]) for place in range(0, len(free), each)]
