"""Measures a step from inside: kernels on the card, floating-point operations, and waits of the host for the card."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

PEAKS = {
    # Dense bfloat16 on tensor cores, and float32 without TF32, in 1e12 operations a second: NVIDIA's data sheets.
    "H100 PCIe": (756, 51),
    "H100": (989, 67),
    "H200": (989, 67),
    "A100": (312, 19.5),
    "L40S": (362, 91.6),
    "L4": (121, 30.3),
}
"""Part of a card's name -> its peaks; the first that fits."""
TENSOR_CORES = re.compile(r"tensorop|hmma|wgmma|xmma|nvjet|s\d{4,5}(?:gemm|bf16|f16)|flash|fmha", re.IGNORECASE)
"""Kernels that compute on tensor cores, by the names that cuBLAS, CUTLASS and FlashAttention give them."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_READS = {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select"}
_READS |= {"__bool__", "__int__", "__float__", "__index__", "__contains__"}


def peak_flops(card: str, dtype: str) -> float | None:
    """Return the operations a second that a card can do at most, or None if it is not in the table."""
    for name, (half, single) in PEAKS.items():
        if name in card:
            return 1e12 * (half if dtype == "bfloat16" else single)
    return None


class HostReads(TorchFunctionMode):
    """Counts the calls that make the host wait for a card, on any device: it needs a tensor's values.

    These are the methods in `_READS`, and a tensor indexed by a mask, whose shape depends on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            self.counts[name] += 1
        elif name in ("__getitem__", "__setitem__") and any(_is_mask(part) for part in _parts(args[1])):
            self.counts["mask"] += 1
        return func(*args, **(kwargs or {}))


def traced(profile: Any) -> list[dict[str, Any]]:
    """Return the events of a profile, by its export for Chrome."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def summarise(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise the kernels of a trace; an empty result if none ran.

    Returns:
        `kernels`: their number. `tensor_core_share`: of the kernels' time. `idle_share`: of the time from the first
        kernel to the last, in which none ran. `waits`: calls in which the host waited for the card.
    """
    kernels = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    if not kernels:
        return {}
    busy, end = 0.0, kernels[0]["ts"]
    for event in kernels:  # kernels on several streams overlap
        stop = event["ts"] + event["dur"]
        busy += max(stop - max(event["ts"], end), 0.0)
        end = max(end, stop)
    whole = sum(event["dur"] for event in kernels)
    on_tensor_cores = sum(event["dur"] for event in kernels if TENSOR_CORES.search(event["name"]))
    return {
        "kernels": len(kernels),
        "tensor_core_share": on_tensor_cores / whole,
        "idle_share": 1 - busy / (end - kernels[0]["ts"]),
        "waits": sum(event.get("name") in WAITS for event in events),
    }


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype == torch.bool
