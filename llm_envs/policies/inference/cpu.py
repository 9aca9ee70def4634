"""Defaults on a CPU: the data type, and whether vLLM compiles the model."""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

__all__ = ["allow_amx", "cpu_dtype", "has_bf16", "has_linear_attention", "skips_compilation"]

_FLAGS = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})

_COMPILATION_SETTINGS = frozenset({"enforce_eager", "no_enforce_eager", "compilation_config", "optimization_level"})

_told: set[str] = set()


def allow_amx() -> None:
    """Ask the kernel for the registers of AMX; without effect on a processor without them.

    vLLM's attention in bfloat16 uses them without asking. A process in which nothing else has asked before, as with a
    small model, ends by an illegal instruction.
    """
    import torch

    getattr(torch.cpu, "_init_amx", bool)()


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
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # not Linux
        return None
    if platform.machine() not in ("x86_64", "aarch64") or has_bf16(cpuinfo):
        return None
    _tell_once(
        "this processor has no bfloat16 instructions, so the model computes in float32, which is faster here and takes "
        "twice the memory; dtype='bfloat16' (--dtype bfloat16 for servers) chooses otherwise."
    )
    return "float32"


def skips_compilation(settings: Iterable[str]) -> bool:
    """Return whether a vLLM engine on a CPU starts without compiling the model. Warns once.

    It does, unless a setting of the caller is about compilation.

    Args:
        settings: Names of the caller's settings (`enforce_eager`), or options (`--enforce-eager`, `-O3`).
    """
    for setting in settings:
        name = setting.partition("=")[0].lstrip("-").replace("-", "_")
        if name in _COMPILATION_SETTINGS or setting.startswith(("-O", "-cc")):
            return False
    _tell_once(
        "vLLM starts on this CPU without compiling the model, which would take up to minutes; for a long run "
        "enforce_eager=False (--no-enforce-eager for servers) may be worth it."
    )
    return True


def has_linear_attention(name_or_path: str) -> bool:
    """Return whether some layers of a model are linear attention, as in Qwen 3.5.

    For these, vLLM caches prefixes only if it reads prompts in chunks, which crashes it on a CPU.
    """
    from transformers import AutoConfig

    try:
        layers = getattr(AutoConfig.from_pretrained(name_or_path).get_text_config(), "layer_types", None)
    except Exception:  # unknown here: vLLM reports why
        return False
    return "linear_attention" in (layers or ())


def _tell_once(message: str) -> None:
    if message not in _told:
        _told.add(message)
        warnings.warn(message, stacklevel=4)
