"""The device of the tests: the CPU, or a card where `LLM_ENVS_TEST_DEVICE=cuda` asks for it (tests/conftest.py).

A test does not name a device. It moves a model's input to the model's device, and results to the CPU before it
compares them with its own numbers (`on_cpu`, `spy_on_batches`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_on_card() -> bool:
    """Whether this run of the tests uses a card."""
    return os.environ.get("LLM_ENVS_TEST_DEVICE", "cpu") == "cuda"


@contextmanager
def exact_kernels() -> Iterator[None]:
    """Compute in float32 what is float32, and the same bits in every run; the CPU does so by itself.

    On a card, matrix products might be rounded to TF32, and the memory-efficient attention adds gradients in the order
    in which its blocks finish. An operation that has no deterministic form only warns: sampling uses one, `cumsum`,
    whose result does not vary in practice.
    """
    if not is_on_card():
        yield
        return
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    precision, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = tf32
        torch.use_deterministic_algorithms(was_deterministic)


def placed(module: torch.nn.Module) -> Any:
    """Move a module to the device of this run of the tests."""
    return module.to("cuda" if is_on_card() else "cpu")


def rounding(tolerance: float) -> float:
    """Return a tolerance for float32 on this run's device, given that on the CPU.

    It is ten times as much on a card, whose kernels add in another order for another batch.
    """
    return 10 * tolerance if is_on_card() else tolerance


def to_device(value: Any, device: torch.device | str) -> Any:
    """Move a tensor, or the tensors in mappings, lists and tuples, to a device; other values stay as they are."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_device(item, device) for item in value)
    return value


def on_cpu(value: Any) -> Any:
    """Move a tensor, or the tensors in mappings, lists and tuples, to the CPU."""
    return to_device(value, "cpu")


def spy_on_batches(trainer: Any) -> list[Any]:
    """Keep, on the CPU, what `_generate_and_score_completions` of a trainer returns from now on."""
    kept: list[Any] = []
    original = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        batch = original(inputs)
        kept.append(on_cpu(batch))
        return batch

    trainer._generate_and_score_completions = keep
    return kept
