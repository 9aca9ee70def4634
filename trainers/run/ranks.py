"""Agreement between the ranks of a training, and the time that they wait for one another.

If one rank misses a collective, the others block until the process group's timeout (1,800 s unless `ddp_timeout` is
set), and the error then names no cause. So an error on one rank is raised on all ranks before the next collective, and
a rollout, which has no collectives, must end before the timeout.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed.constants import default_pg_timeout

from llm_envs.errors import InvalidConfigError, ProcessFailedError
from llm_envs.rollout.concurrency import AUTO, FIRST
from llm_envs.tracking.progress import can_draw

__all__ = ["check_same_rows", "episode_limit", "function_limit", "raise_on_all_ranks", "set_for_machine"]


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Raise an error of one rank on all ranks at the end of the block. The block must not contain a collective.

    Raises:
        ProcessFailedError: If another process failed and this one did not. The failed one raises the original error.
    """
    if PartialState().num_processes == 1:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    # All ranks gather here, failed or not. Otherwise the healthy ones would block until the timeout.
    told = gather_object([None if failure is None else f"{type(failure).__name__}: {failure}"])
    if failure is not None:
        raise failure
    if failed := [f"process {rank}: {message}" for rank, message in enumerate(told) if message is not None]:
        raise ProcessFailedError(f"training cannot continue without {'; '.join(failed)}")


def check_same_rows(rows: Sequence[Mapping[str, Any]], what: str) -> None:
    """Check that every process has the same rows of token ids to learn from, in the same order.

    Each process takes its share of the list. With lists of different lengths, some processes would still train after
    others have finished.

    Args:
        rows: Columns of numbers or lists of numbers; other columns are ignored.
        what: Name of the rows, for the error.

    Raises:
        InvalidConfigError: If they differ; raised on every process.
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
            "process, and not the same): give all of them the same data in the same order. Episodes played on each "
            "may differ where an environment looks at the clock or at other services: collect it once, to disk, and "
            "give the folder as source=."
        )


def episode_limit(args: Any, n_episodes: int) -> float | None:
    """Return the time limit of an episode in seconds. With several processes it is never None.

    A rank that finishes early waits for the others, so a rollout must end before the process group's timeout. That
    is `args.ddp_timeout`; on CPUs transformers does not pass it on, and torch's 1,800 s hold. Without a limit in the
    settings an episode may take half of the timeout, divided by the number of episodes that a rank plays in sequence.

    Args:
        args: A trainer's settings.
        n_episodes: Episodes of one process in a rollout; at most `args.max_concurrency` run concurrently ("auto"
            counts as its first number).

    Raises:
        InvalidConfigError: If the settings allow a rollout as long as the timeout, or longer.
    """
    limit: float | None = args.max_episode_s
    if args.world_size == 1:
        return limit
    timeout_s = _group_timeout(args)
    # Only `max_concurrency` episodes run concurrently, so a rollout takes up to this many times an episode's limit.
    n_turns = max(1, -(-n_episodes // (FIRST if args.max_concurrency == AUTO else args.max_concurrency)))
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


def function_limit(args: Any) -> float:
    """Return the time limit of one call of a user's function in seconds: `max_function_s`, or half of `ddp_timeout`.

    Args:
        args: A trainer's settings.

    Raises:
        InvalidConfigError: If other processes would give up waiting before.
    """
    timeout_s = _group_timeout(args)
    limit: float | None = args.max_function_s
    if limit is None:
        return timeout_s / 2
    if args.world_size > 1 and limit >= timeout_s:
        raise InvalidConfigError(
            f"max_function_s={limit:g}, and a process that waits for another one gives up after {timeout_s:g} s: lower "
            f"it{'' if args.use_cpu else ', or raise ddp_timeout'}."
        )
    return limit


def _group_timeout(args: Any) -> float:
    """Return the process group's timeout in seconds."""
    # transformers does not pass ddp_timeout on for CPUs.
    return default_pg_timeout.total_seconds() if args.use_cpu else float(args.ddp_timeout)


def set_for_machine(args: Any) -> None:
    """Set defaults that depend on where a training runs, before transformers sets its own.

    Without an accelerator, turn bf16 off and set `use_cpu`: otherwise accelerate treats each of several processes on
    such a machine as the only one. If standard error is not a terminal, log lines in place of a progress bar.
    """
    if args.disable_tqdm is None:
        args.disable_tqdm = not can_draw(sys.stderr)
    for name in ("checkpointing", "checkpointing_kwargs"):  # TRL sets the old name, and transformers warns
        if getattr(args, f"activation_{name}", 0) is None:
            setattr(args, f"activation_{name}", getattr(args, f"gradient_{name}"))
    if torch.accelerator.is_available():
        return
    args.use_cpu = True
    if args.bf16 is None:
        args.bf16 = False
