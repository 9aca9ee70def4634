"""The seed of a turn that is sampled by hand."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llm_envs.types import SamplingParams

__all__ = ["turn_seed"]


def turn_seed(params: SamplingParams, prompt_ids: Sequence[int] | npt.NDArray[np.int32], index: int = 0) -> int:
    """Return the seed of one turn: hashed from `params.seed`, the prompt and an index; without a seed, a random one.

    Args:
        params: Its `seed` decides; the rest is not looked at.
        prompt_ids: Shape (T,): so the turns of a conversation draw different numbers.
        index: Tells equal prompts of a batch apart.

    Returns:
        A number of 63 bits.
    """
    if params.seed is None:
        return secrets.randbits(63)
    data = f"{params.seed}/{index}/".encode() + np.asarray(prompt_ids, dtype=np.int32).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1
