"""Data types that this machine's processor computes quickly."""

from __future__ import annotations

import platform
import re
import warnings
from pathlib import Path

__all__ = ["cpu_dtype", "has_bf16"]

_FLAGS = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})

_told = False


def has_bf16(cpuinfo: str) -> bool:
    """Return whether a processor has instructions for bfloat16.

    Args:
        cpuinfo: The content of Linux's `/proc/cpuinfo`, on x86 or ARM.
    """
    lines = _FLAGS.findall(cpuinfo)
    return bool(lines) and all(_BF16_FLAGS & set(line.split()) for line in lines)


def cpu_dtype() -> str | None:
    """Return "float32" if this processor has no bfloat16 instructions, else None (any dtype is fine). Warns once.

    vLLM computes in bfloat16 on every CPU, even if the weights are float32. Without instructions for it, that is five
    to seven times slower than float32.
    """
    global _told
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # not Linux
        return None
    if platform.machine() not in ("x86_64", "aarch64") or has_bf16(cpuinfo):
        return None
    if not _told:
        _told = True
        warnings.warn(
            "this processor has no bfloat16 instructions, so vLLM computes in float32, which is faster here and takes "
            "twice the memory; dtype='bfloat16' (--dtype bfloat16 for servers) chooses otherwise.",
            stacklevel=3,
        )
    return "float32"
