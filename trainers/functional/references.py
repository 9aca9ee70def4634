"""The reference model of a KL penalty: functions that create it and update it.

There are two hooks. `ref_model_fn(policy) -> reference` creates it before training. `update_fn(reference, policy, *,
step, kl) -> reference` is called after each optimizer step and returns the reference for the next steps; the functions
here change it in place. The reference scores the tokens that the policy sampled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

__all__ = [
    "KLTriggeredUpdate",
    "RefModelFn",
    "ReferenceUpdateFn",
    "copy_weights",
    "create_ema_update",
    "create_periodic_update",
    "freeze",
    "frozen_copy",
    "keep_reference",
]

Model = TypeVar("Model", bound=torch.nn.Module)

RefModelFn = Callable[[torch.nn.Module], torch.nn.Module]
"""`(policy) -> reference`."""


class ReferenceUpdateFn(Protocol):
    """`(reference, policy, *, step, kl) -> reference`."""

    def __call__(self, reference: torch.nn.Module, policy: torch.nn.Module, *, step: int, kl: float) -> torch.nn.Module:
        """Return the reference for the next steps.

        Args:
            reference: The present reference.
            policy: The trained model, after its step.
            step: Optimizer steps done, from 1.
            kl: Mean KL per token of this step's batch, in nats.
        """
        ...


def freeze(model: Model) -> Model:
    """Turn a model into a reference in place, without gradients or dropout. Several runs can share such a model."""
    model.requires_grad_(False)
    return model.eval()


def frozen_copy(policy: Model) -> Model:
    """Return a frozen copy of the policy that shares no weights with it: the usual `ref_model_fn`."""
    return freeze(copy.deepcopy(policy))


def keep_reference(reference: torch.nn.Module, policy: torch.nn.Module, *, step: int, kl: float) -> torch.nn.Module:
    """Return the reference unchanged."""
    return reference


@torch.no_grad()
def copy_weights(reference: torch.nn.Module, policy: torch.nn.Module, *, share: float = 1.0) -> None:
    """Move the reference's weights to the policy's: `rho <- rho + share (pi - rho)`; buffers are copied.

    Args:
        reference: Changed in place.
        policy: Has the same parameters by name.
        share: Between 0 and 1; 1 copies the weights.

    Raises:
        ValueError: If the two have different parameters.
    """
    sources, targets = dict(policy.named_parameters()), dict(reference.named_parameters())
    if sources.keys() != targets.keys():
        odd = sorted(sources.keys() ^ targets.keys())
        raise ValueError(f"policy and reference have different parameters, such as {odd[:3]}.")
    for name, target in targets.items():
        target.lerp_(sources[name].to(target.device, target.dtype), share)
    # Some buffers are integers or caches, whose average has no meaning, so copy them at any share.
    buffers = dict(policy.named_buffers())
    for name, buffer in reference.named_buffers():
        buffer.copy_(buffers[name])


def create_ema_update(decay: float) -> ReferenceUpdateFn:
    """Return an update by an exponential moving average: `rho <- decay rho + (1 - decay) pi` after every step.

    In bfloat16, a change of less than 1/256 of a weight is lost: for a decay near 1 keep the reference in float32.

    Raises:
        ValueError: If the decay is not in [0, 1).
    """
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"decay is {decay}; it must be at least 0 and below 1.")

    def ema_update(reference: torch.nn.Module, policy: torch.nn.Module, *, step: int, kl: float) -> torch.nn.Module:
        copy_weights(reference, policy, share=1.0 - decay)
        return reference

    return ema_update


def create_periodic_update(every: int) -> ReferenceUpdateFn:
    """Return an update that copies the policy's weights after every `every` steps.

    Raises:
        ValueError: If `every` is below 1.
    """
    if every < 1:
        raise ValueError(f"every is {every}; it must be at least 1 step.")

    def periodic_update(
        reference: torch.nn.Module, policy: torch.nn.Module, *, step: int, kl: float
    ) -> torch.nn.Module:
        if step > 0 and step % every == 0:
            copy_weights(reference, policy)
        return reference

    return periodic_update


class KLTriggeredUpdate:
    """Copies the policy's weights when the KL, summed over the steps since the last copy, reaches a threshold.

    Args:
        threshold: Bound on the sum of each step's mean KL per token, in nats.

    The sum is state: checkpoints store the `state_dict`.

    Raises:
        ValueError: If the threshold is not above 0.
    """

    def __init__(self, threshold: float) -> None:
        if not threshold > 0.0:
            raise ValueError(f"threshold is {threshold}; it must be above 0 nats.")
        self.threshold = threshold
        self.accumulated_kl = 0.0

    def __call__(self, reference: torch.nn.Module, policy: torch.nn.Module, *, step: int, kl: float) -> torch.nn.Module:
        """Add this step's KL; if the sum reaches the threshold, copy the weights and reset it."""
        self.accumulated_kl += kl
        if self.accumulated_kl >= self.threshold:
            copy_weights(reference, policy)
            self.accumulated_kl = 0.0
        return reference

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        return {"accumulated_kl": self.accumulated_kl}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.accumulated_kl = float(state["accumulated_kl"])
