"""What processes that train together agree on, and how long they wait for one another.

A process that does not come to a collective lets the others wait until the process group's timeout (1,800 s, if
`ddp_timeout` says nothing else) ends the run with an error that says nothing. So what can fail on one process alone is
told to all before the next collective, and a rollout, in which nothing is gathered, must be over before that timeout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from llm_envs.errors import InvalidConfigError, MissingExtraError, ProcessFailedError

try:
    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object
    from torch.distributed.constants import default_pg_timeout
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

__all__ = ["check_same_rows", "episode_limit", "set_for_cpu", "together"]


@contextmanager
def together() -> Iterator[None]:
    """Let what fails in the block on one process fail on all of them at its end. Nothing may be gathered inside.

    Raises:
        ProcessFailedError: If another process failed and this one did not; its own error is raised where it happened.
    """
    if PartialState().num_processes == 1:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    told = gather_object([None if failure is None else f"{type(failure).__name__}: {failure}"])
    if failure is not None:
        raise failure
    if failed := [f"process {rank}: {message}" for rank, message in enumerate(told) if message is not None]:
        raise ProcessFailedError(f"training cannot go on without {'; '.join(failed)}")


def check_same_rows(rows: Sequence[Mapping[str, Any]], what: str) -> None:
    """Check that every process has the same rows of token ids to learn from, in the same order.

    Each process takes its share of what it takes for one list; with lists of different lengths one would go on when
    another has ended.

    Args:
        rows: Columns of numbers or lists of numbers; other columns are not looked at.
        what: What the rows are, for the error.

    Raises:
        InvalidConfigError: If they differ; on every process.
    """
    if PartialState().num_processes == 1:
        return
    digest = hashlib.sha256()
    for row in rows:
        for name in sorted(row):
            if isinstance(row[name], list | int | float):
                digest.update(name.encode() + np.asarray(row[name], dtype=np.float64).tobytes())
    told = gather_object([(len(rows), digest.hexdigest())])
    if len(set(told)) > 1:
        raise InvalidConfigError(
            f"the processes have different {what} to learn from ({', '.join(str(n) for n, _ in told)} rows, process by "
            "process, and not the same): give all of them the same data in the same order. What is played anew on each "
            "may differ where an environment looks at the clock or at other services: collect it once, to disk, and "
            "give the folder as source=."
        )


def episode_limit(args: Any, n_episodes: int) -> float | None:
    """Return the seconds that an episode may take: in one process what the settings say, else never None.

    Who has played his share waits for the others, and the process group's timeout must not end that. It is
    `args.ddp_timeout`, and on CPUs, where transformers does not hand that on, torch's 1,800 s. Without a limit in the
    settings an episode may take half of it, shared by as many episodes as a process plays one after the other.

    Args:
        args: A trainer's settings.
        n_episodes: What one process plays at a time; more than `args.max_concurrency` wait for one another.

    Raises:
        InvalidConfigError: If the settings allow a rollout as long as the timeout, or longer.
    """
    limit: float | None = args.max_episode_s
    if args.world_size == 1:
        return limit
    timeout_s = default_pg_timeout.total_seconds() if args.use_cpu else float(args.ddp_timeout)
    n_turns = max(1, -(-n_episodes // args.max_concurrency))
    if limit is None:
        return timeout_s / (2 * n_turns)
    longest = n_turns * (limit + (args.max_step_s or 0.0))
    if longest >= timeout_s:
        instead = "" if args.use_cpu else ", or raise ddp_timeout"
        raise InvalidConfigError(
            f"a rollout may take {longest:g} s ({n_turns} times max_episode_s={limit:g}, and max_step_s for a step "
            f"under way), and a process that waits for it gives up after {timeout_s:g} s: lower max_episode_s{instead}."
        )
    return limit


def set_for_cpu(args: Any) -> None:
    """On a machine without an accelerator, leave bf16 off, and tell accelerate that processes are meant to be on CPUs.

    Untold, accelerate takes each of several processes on such a machine for the only one.
    """
    if torch.accelerator.is_available():
        return
    args.use_cpu = True
    if args.bf16 is None:
        args.bf16 = False
