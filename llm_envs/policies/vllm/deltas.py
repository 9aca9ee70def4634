"""Changes between two versions of a model's weights: the elements whose bits differ, compressed.

At learning rates near 1e-6, a step changes about one element in a hundred of bfloat16 weights. A delta is applied to
the version before it, and gives the next version bit for bit.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_envs.errors import ModelError

__all__ = ["Delta", "apply_delta", "encode_delta", "write_delta"]

Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Delta:
    """A file with the changes of one version."""

    path: Path
    sha256: str
    tag: str
    """Of the version that it makes."""
    n_bytes: int


def encode_delta(old: Tensors, new: Tensors, *, max_bytes: float = math.inf) -> bytes | None:
    """Return the changes from `old` to `new`, tensors on the CPU.

    None if their names, shapes or dtypes differ, or as soon as the changes have more than `max_bytes`.
    """
    import torch
    from safetensors.torch import save

    if old.keys() != new.keys():
        return None
    parts: dict[str, Any] = {}
    for name, values in new.items():
        before = old[name]
        if before.shape != values.shape or before.dtype != values.dtype:
            return None
        bits, old_bits = _bits(values), _bits(before)
        (places,) = torch.nonzero(bits != old_bits, as_tuple=True)
        if not len(places):
            continue
        gaps = np.diff(places.numpy(), prepend=0).astype("<u4")
        for part, numbers in (("gaps", gaps), ("bits", (bits ^ old_bits)[places].numpy())):
            parts[f"{name}/{part}"] = torch.from_numpy(_pack(numbers))
            max_bytes -= parts[f"{name}/{part}"].numel()
        if max_bytes < 0:
            return None
    return bytes(save(parts))


def apply_delta(weights: Tensors, data: bytes) -> None:
    """Change tensors on the CPU in place.

    Raises:
        ModelError: If the delta does not belong to these tensors. Nothing was changed.
    """
    import torch
    from safetensors.torch import load

    parts, changes = load(data), []
    for name in {key.rpartition("/")[0] for key in parts}:
        if name not in weights:
            raise ModelError(f"a delta changes {name!r}, which the model does not have.")
        bits = _bits(weights[name])
        places = torch.from_numpy(_unpack(parts[f"{name}/gaps"].numpy(), "<u4").astype(np.int64).cumsum())
        flips = torch.from_numpy(_unpack(parts[f"{name}/bits"].numpy(), str(bits.numpy().dtype)))
        if len(places) != len(flips) or places[-1] >= len(bits):
            raise ModelError(f"a delta of {name!r} does not fit a tensor of {len(bits)} elements.")
        changes.append((bits, places, flips))
    for bits, places, flips in changes:
        bits[places] ^= flips


def _pack(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Compress integers whose upper bytes are nearly all alike, such as gaps and small changes."""
    planes = values.view(np.uint8).reshape(len(values), -1).T
    return np.frombuffer(zlib.compress(planes.tobytes(), 1), np.uint8).copy()


def _unpack(packed: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    planes, size = np.frombuffer(zlib.decompress(packed.tobytes()), np.uint8), np.dtype(dtype).itemsize
    planes = planes[: len(planes) // size * size].reshape(size, -1)  # of another dtype: another number of elements
    return planes.T.copy().view(dtype)[:, 0]


def write_delta(data: bytes, path: Path, tag: str) -> Delta:
    """Write a delta. The file appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.rename(path)
    return Delta(path, hashlib.sha256(data).hexdigest(), tag, len(data))


def _bits(values: Any) -> Any:
    """Return the memory of a contiguous tensor as integers, shape (n,)."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.detach().view(-1).view(kinds[values.element_size()])
