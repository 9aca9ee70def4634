"""A backend of vLLM's weight transfer for CPUs: its NCCL engines, with torch's gloo for the process group.

Loaded in a server's worker by `worker.py`, and in the process that trains by `transfer.py`. Like NCCL's, weights go in
packed buffers, which vLLM's `pack_tensors` fills and `unpack_tensor` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
    NCCLWeightTransferInitInfo,
)
from vllm.distributed.weight_transfer.packed_tensor import pack_tensors, unpack_tensor

from llm_envs.policies.vllm.weights import repacking

__all__ = ["GlooInitInfo", "GlooTrainerEngine", "GlooWorkerEngine", "register_gloo"]

_TIMEOUT = timedelta(minutes=10)
"""Of joining, and of one buffer: a process that is lost without closing its connections is noticed after it."""


def register_gloo() -> None:
    """Make `--weight-transfer-config '{"backend": "gloo"}'` known to vLLM in this process."""
    if "gloo" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("gloo", GlooWorkerEngine)


@dataclass
class GlooInitInfo(NCCLTrainerInitInfo):
    """The sender's settings, as for NCCL."""

    backend: ClassVar[str] = "gloo"


class GlooWorkerEngine(NCCLWeightTransferEngine):
    """Receives weights in a server's worker."""

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        """Join the group of the sender, which is rank 0."""
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self.packed_buffer_size_bytes = init_info.packed_buffer_size_bytes
        self.model_update_group = _join(init_info, rank)
        self._repacking = ExitStack()

    def start_weight_update(self) -> None:
        """Begin to load weights."""
        self._repacking.close()  # of an update that failed
        self._repacking.enter_context(repacking(self.model))
        super().start_weight_update()

    def finish_weight_update(self) -> None:
        """Pack the layers that were loaded."""
        super().finish_weight_update()
        self._repacking.close()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive all weights. Without the base's last line, which waits for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        """Receive buffers, and load the tensors in each."""
        if self.model_update_group is None:
            raise RuntimeError("this worker has not joined a group: call /init_weight_transfer_engine first.")
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        tensors = zip(update_info.names, update_info.shapes, dtypes, strict=True)
        for names, shapes, kinds, sizes in _buffers(tensors, self.packed_buffer_size_bytes):
            packed = torch.empty(sum(sizes), dtype=torch.uint8)
            self.model_update_group.broadcast(packed, 0).wait()
            self.model.load_weights(unpack_tensor(packed, names, shapes, kinds, sizes))


class GlooTrainerEngine(NCCLTrainerWeightTransferEngine):
    """Sends weights from the process that trains."""

    @classmethod
    def trainer_init(cls, init_info: GlooInitInfo, *, client: Any, source: Any = None) -> GlooTrainerEngine:
        """Form the group, while the servers' workers join it."""
        engine = cls(client=client, source=source, packed_buffer_size_bytes=init_info.packed_buffer_size_bytes)
        wanted = asdict(init_info)
        del wanted["rank"]
        with ThreadPoolExecutor(1) as threads:
            joined = threads.submit(client.init_weight_transfer_engine, wanted | {"rank_offset": 1})
            engine.model_update_group = _join(init_info, 0)
            joined.result()
        return engine

    def _broadcast(self, source: Any, meta: Any) -> None:
        pairs = self._checked_iter(source, meta)
        while chunk := pack_tensors(pairs, lambda pair: pair[1], self.packed_buffer_size_bytes):
            self.model_update_group.broadcast(chunk.packed_tensor, 0).wait()


def _join(info: Any, rank: int) -> Any:
    address = info.master_address, info.master_port
    store = TCPStore(*address, info.world_size, is_master=rank == 0, timeout=_TIMEOUT, wait_for_workers=False)
    return ProcessGroupGloo(PrefixStore("weights", store), rank, info.world_size, _TIMEOUT)


def _buffers(
    tensors: Iterator[tuple[str, list[int], torch.dtype]], size_bytes: int
) -> Iterator[tuple[list[Any], list[Any], list[Any], list[int]]]:
    """Yield names, shapes, dtypes and bytes of the tensors in each buffer, divided as `pack_tensors` does."""
    buffer: list[tuple[Any, ...]] = []
    for name, shape, dtype in tensors:
        buffer.append((name, shape, dtype, math.prod(shape) * dtype.itemsize))
        if sum(one[3] for one in buffer) > size_bytes:
            yield tuple(map(list, zip(*buffer, strict=True)))  # type: ignore[misc]
            buffer = []
    if buffer:
        yield tuple(map(list, zip(*buffer, strict=True)))  # type: ignore[misc]
