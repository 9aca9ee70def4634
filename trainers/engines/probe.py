"""Probes before training: does what is trained reach a sampling engine, and does the reference stay as it is?

Each kind of trained parameters (an adapter, its biases, token rows, fully trained modules) is changed for a moment, far
enough to change the log-probabilities of some tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import is_peft_model

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference import token_logps
from llm_envs.trainers.engines.engine_weights import describe_adapter

__all__ = ["check_engine_follows", "mean_gap", "probe_ids", "probe_logps", "shifted", "trained_kinds"]

Logps = npt.NDArray[np.float32]

_N_TOKENS = 32
_SIZES = [1e-3 * 3**n for n in range(9)]
"""Standard deviations to try: models differ in how far a change moves their log-probabilities."""
_MOVE = 0.5
"""Nats per token, far above the rounding of bfloat16 (0.01 to 0.05)."""
_MIN_MOVE = 0.01
"""Below it, the tokens do not depend on the parameters, or rounding hides that they do."""
_SHARE = 0.25
"""An engine may miss the move by this share, for rounding. One that lacks the change misses all of it."""


def probe_ids(model: Any) -> npt.NDArray[np.int32]:
    """Return ids to score, shape (T,): some of the full vocabulary, and those whose rows an adapter trains."""
    own: list[int] = []
    for config in model.peft_config.values() if is_peft_model(model) else ():
        rows = getattr(config, "trainable_token_indices", None) or getattr(config, "token_indices", None) or []
        own += [row for some in (rows.values() if isinstance(rows, Mapping) else [rows]) for row in some]
    base = model.get_base_model() if is_peft_model(model) else model
    n_vocabulary = base.get_input_embeddings().weight.shape[0]
    ids = np.random.default_rng(0).integers(0, n_vocabulary, _N_TOKENS)
    return np.concatenate([ids, own[:_N_TOKENS]]).astype(np.int32)


def probe_logps(model: Any, ids: npt.NDArray[np.int32]) -> Logps:
    """Return a model's log-probabilities of the ids, shape (T,), without dropout."""
    was_training = model.training
    model.eval()
    try:
        return token_logps(model, [ids])[0]
    finally:
        model.train(was_training)


def mean_gap(logps: Logps, others: Logps) -> float:
    """Return the mean absolute difference in nats per token; the first token has none."""
    return float(np.abs(logps[1:] - others[1:]).mean())


def trained_kinds(model: Any) -> dict[str, list[torch.nn.Parameter]]:
    """Return the trained parameters of a PEFT model by the setting that makes them trained."""
    kinds: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        kind = "the adapter"
        if "trainable_tokens_" in name:
            kind = "trainable_token_indices"
        elif "modules_to_save" in name:
            kind = "modules_to_save"
        elif name.endswith("base_layer.bias") or (
            name.endswith(".bias") and getattr(model, "prefix", "\0") not in name
        ):
            kind = "bias"
        kinds.setdefault(kind, []).append(parameter)
    return kinds


@contextmanager
def shifted(parameters: Sequence[torch.nn.Parameter], logps_fn: Callable[[], Logps]) -> Iterator[tuple[Logps, float]]:
    """Change parameters inside the block, so that log-probabilities move by half a nat or more.

    Yields:
        The log-probabilities in the block, and by how much they moved: the mean in nats per token.
    """
    kept = [parameter.detach().clone() for parameter in parameters]
    before = logps_fn()
    try:
        for size in _SIZES:
            generator = torch.Generator().manual_seed(0)  # the same change on every process
            with torch.no_grad():
                for parameter, value in zip(parameters, kept, strict=True):
                    noise = size * torch.randn(value.shape, generator=generator)
                    parameter.copy_(value + noise.to(value))
            logps = logps_fn()
            if not (moved := mean_gap(logps, before)) < _MOVE:
                break
        yield logps, moved
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


def check_engine_follows(model: Any, send: Callable[[], None], score: Callable[[npt.NDArray[np.int32]], Logps]) -> None:
    """Check that an engine has what a PEFT model trains, after it was sent.

    Args:
        model: It is unchanged afterwards. The engine has other weights then: send again.
        send: Sends the model's weights.
        score: Returns the engine's log-probabilities of ids, shape (T,).

    Raises:
        InvalidConfigError: If the engine samples from another distribution than the trained one, or merging the adapter
            changes the model.
    """
    ids = probe_ids(model)

    def own() -> Logps:
        return probe_logps(model, ids)

    for kind, parameters in trained_kinds(model).items():
        with shifted(parameters, own) as (logps, moved):
            if moved < _MIN_MOVE:
                continue
            send()
            gap = max(mean_gap(score(ids), logps), mean_gap(own(), logps), key=lambda value: (value != value, value))
        if not gap <= _SHARE * moved:
            raise InvalidConfigError(
                f"peft_config={describe_adapter(model)}: what {kind} trains does not reach vLLM as the model has it. A "
                f"change that moves the model's log-probabilities by {moved:.2g} nats a token leaves the engine's "
                f"{gap:.2g} nats from them. vLLM cannot have a tied embedding and output layer with different weights, "
                "nor an adapter whose merge is inexact: leave that setting out, or set use_vllm=False."
            )
