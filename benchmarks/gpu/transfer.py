"""Stage `transfer`: a process group and a broadcast of a model's weights, as far as one card goes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measuring import Column
from stages import Plan, Stage

ROUNDS = 5


def broadcast(n_processes: int, plan: Plan) -> dict[str, Any]:
    """Broadcast bfloat16 numbers among processes that share the card."""
    n_bytes = 2**16 if plan.is_tiny else 3 * 2**30  # 1.5 B weights
    with tempfile.TemporaryDirectory() as folder:
        if n_processes == 1:
            _take_part(0, 1, n_bytes, folder)
        else:
            method = "spawn" if _backend() == "nccl" else "fork"  # CUDA works in no fork
            mp.start_processes(_take_part, (n_processes, n_bytes, folder), n_processes, start_method=method)
        start_s, seconds = map(float, (Path(folder) / "found").read_text().split())
    return {
        "backend": _backend(),
        "start_s": start_s,
        "mib": n_bytes / 2**20,
        "seconds": seconds,
        "gib_per_s": n_bytes / 2**30 / seconds,
    }


def _take_part(rank: int, n_processes: int, n_bytes: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    started = time.perf_counter()
    store = dist.FileStore(f"{folder}/store", n_processes)
    dist.init_process_group(_backend(), store=store, rank=rank, world_size=n_processes)
    try:
        weights = torch.ones(n_bytes // 2, dtype=torch.bfloat16, device="cuda" if _backend() == "nccl" else "cpu")
        dist.broadcast(weights[:1], 0)  # the first call connects
        weights[:1].sum().item()
        ready = time.perf_counter()
        for _ in range(ROUNDS):
            dist.broadcast(weights, 0)
        weights[:1].sum().item()
        if rank == 0:
            seconds = (time.perf_counter() - ready) / ROUNDS
            (Path(folder) / "found").write_text(f"{ready - started} {seconds}")
    finally:
        dist.destroy_process_group()


def _backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"


def cases(plan: Plan) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cases."""
    names = {1: "1 process", 2: "2 processes on one card"}
    return {name: partial(broadcast, n, plan) for n, name in names.items()}


STAGES = {
    "transfer": Stage(
        "Transfer of weights",
        f"A broadcast of as many bytes as 1.5 B bfloat16 weights have, the mean of {ROUNDS}; NCCL on a card, gloo "
        "without one. *Start*: until the group's first broadcast is done. NCCL refuses two processes on one card.",
        [
            Column("case", "case"),
            Column("backend", "backend"),
            Column("mib", "MiB", ",.4g"),
            Column("start_s", "start, s", ".2f"),
            Column("seconds", "broadcast, s", ".4f"),
            Column("gib_per_s", "GiB/s", ",.3g"),
        ],
        cases,
    )
}
