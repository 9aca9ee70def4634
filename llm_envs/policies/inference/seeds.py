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
    """Return the seed of one turn: a hash of `params.seed`, the prompt and an index, or a random one without a seed.

    Args:
        params: Only its `seed` is used.
        prompt_ids: Shape (T,): the turns of a conversation get different seeds.
        index: Distinguishes equal prompts of a batch.

    Returns:
        A number of 63 bits.
    """
    if params.seed is None:
        return secrets.randbits(63)
    data = f"{params.seed}/{index}/".encode() + np.asarray(prompt_ids, dtype=np.int32).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1
