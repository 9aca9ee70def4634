"""The state of a run: `live-0.json` in its folder, a small file that is replaced every second, one for each process.

`llm-envs watch` reads it. All else about a run is in its episodes and metrics.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from llm_envs.data.files import replacing
from llm_envs.data.storage import is_remote
from llm_envs.tracking.describing import describing
from llm_envs.tracking.progress import repeating
from llm_envs.tracking.stats import CollectorStats

__all__ = ["EVERY_S", "LIVE_NAME", "collector_facts", "live_file"]

LIVE_NAME = re.compile(r"live-\d+\.json")
EVERY_S = 1.0
"""Seconds between two writes: some 0.2 ms each, without a sync."""
MAX_OPEN = 32
"""Running episodes that the file names: the oldest."""


def collector_facts(stats: CollectorStats) -> dict[str, Any]:
    """Return the counts of a running collector as JSON types.

    Keys: `done`, `failed`, `success` and `reward` (sums over episodes), `running`, `tokens`; `playing_s`, `policy_s`
    and `env_s` (seconds in which at least one episode is played, waits for the policy, or for an environment); `open`:
    [environment, seed, group, member, seconds] of the oldest running episodes.
    """
    now = time.monotonic()
    oldest = islice(list(stats.open_episodes.items()), MAX_OPEN)
    return {
        "done": stats.accepted,
        "failed": stats.errored + stats.unscored,
        "success": stats.successes,
        "reward": stats.reward,
        "running": stats.running,
        "tokens": stats.live_tokens,
        "playing_s": stats.elapsed_s,
        "policy_s": stats.policy_time.seconds,
        "env_s": stats.env_time.seconds,
        "open": [[env, seed, *key, round(now - began, 1)] for key, (env, seed, began) in oldest],
    }


@contextmanager
def live_file(folder: str | Path, facts: Callable[[], Mapping[str, Any]], *, process: int = 0) -> Iterator[None]:
    """Write the live file every second while the block lasts, and how it ended. An error of writing is a warning.

    Args:
        folder: The run's; on object storage nothing is written.
        facts: Returns what to write, as JSON types; called from a thread.
        process: Number of this process.
    """
    if is_remote(folder):
        yield
        return
    path, began, works = Path(folder) / f"live-{process}.json", time.time(), [True]

    def write(ended: str | None = None) -> None:
        if not works[0]:
            return
        works[0] = False
        with describing(f"{path}, which llm-envs watch reads,"):
            record = {"began": began, "updated": time.time(), "pid": os.getpid(), "ended": ended, **facts()}
            temporary = path.with_name(path.name + ".tmp")
            with open(temporary, "w", encoding="utf-8", opener=replacing) as file:
                json.dump(record, file)
            temporary.replace(path)
            works[0] = True

    Path(folder).mkdir(parents=True, exist_ok=True)
    write()
    try:
        with repeating(write, EVERY_S, name="llm-envs-live"):
            yield
    except BaseException as error:
        write(f"{type(error).__name__}: {error}"[:300])
        raise
    write("finished")
