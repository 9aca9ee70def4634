"""What a collected token takes: in memory, and on disk.

    python benchmarks/memory.py [--check] [--out FILE] [--rows N]

A token policy that needs no model answers an environment that talks, through the collector, until a row has about the
wanted length. Then:

- arrays: what the token arrays of the rows (ids, mask, log-probabilities) hold, their buffers and the array objects,
  divided by the tokens. An array that is a view of a longer buffer is counted with all of that buffer.
- all: what the process has allocated more (`tracemalloc`) after collecting than before, trajectories with messages and
  turns included, divided by the tokens.
- log, and files: bytes on disk of the append log as it is written, and of the folder after it is compacted.

With `--check` the exit code is 1 if the arrays of rows of 1,000 tokens or more take over 12 bytes a token.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from measuring import Column, Figure, Report, finish, make_parser

from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.spaces import TextSpace
from llm_envs.testing import ByteCodec
from llm_envs.types import FinishReason, Sampled, SamplingParams, Trajectory, TrajectoryGroup

MAX_BYTES = 12.0
LENGTHS = (250, 1_000, 4_000, 16_000)
TURN_TOKENS = 100
SAID = "The clerk reads out the next entry of the list, and waits for an answer. " * 2
METHOD = (
    "Rows of a token policy, collected, one episode each, replies of 100 tokens. *Arrays*: ids, mask and "
    "log-probabilities with their objects. *All*: what the process allocated for whole trajectories, messages and "
    "turns included (every token is one character of text). *Log*, *files*: on disk, as written and after compacting. "
    "Held: 12 bytes in arrays, for rows of 1,000 tokens or more."
)
COLUMNS = [
    Column("row_tokens", "tokens a row", ",d"),
    Column("rows", "rows"),
    Column("array_bytes", "arrays, bytes a token", ".2f"),
    Column("all_bytes", "all, bytes a token", ".1f"),
    Column("log_bytes", "log, bytes a token", ".1f"),
    Column("file_bytes", "files, bytes a token", ".1f"),
]


class TalkingEnv(gym.Env[str, str]):
    """Says the same for a number of turns."""

    def __init__(self, n_turns: int) -> None:
        self.observation_space = self.action_space = TextSpace()
        self._n_turns = n_turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self._n_turns
        return SAID, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        is_over = self._left == 0
        return SAID, float(is_over), is_over, False, {}


class NoisePolicy:
    """Samples printable characters, with log-probabilities, in place of a model."""

    def __init__(self, codec: ByteCodec) -> None:
        self._ends = codec.encode_reply("x")[1:]
        self._letters = codec.encode_reply("abcdefghijklmnop")[:16]

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        rng = np.random.default_rng(seed)
        ids = np.concatenate([rng.choice(self._letters, TURN_TOKENS - len(self._ends)), self._ends])
        logps = -rng.exponential(size=len(ids))
        return Sampled(ids.astype(np.int32), logps.astype(np.float32), FinishReason.STOP)


def measure(row_tokens: int, n_rows: int) -> dict[str, Any]:
    """Collect rows of about a length; return what a token takes."""
    codec = ByteCodec()
    turn_tokens = TURN_TOKENS + len(codec.encode_reply(SAID))
    n_turns = -(-row_tokens // turn_tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with Collector(
            lambda **_: TalkingEnv(n_turns), NoisePolicy(codec), codec=codec, max_concurrency=8, progress=False
        ) as collector:
            collector.collect(2)  # what is made once is no token's
            gc.collect()
            tracemalloc.start()
            groups = collector.collect(n_rows)
            gc.collect()
            allocated, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        n_tokens = sum(len(row) for trajectory in trajectories for row in trajectory.rows)
        with TrajectoryWriter(path) as writer:
            for trajectory in trajectories:
                writer.write(trajectory)
            log_bytes = _disk_bytes(path)
        file_bytes = _disk_bytes(path)
    return {
        "row_tokens": n_tokens // n_rows,
        "rows": n_rows,
        "array_bytes": round(count_array_bytes(groups) / n_tokens, 3),
        "all_bytes": round(allocated / n_tokens, 2),
        "log_bytes": round(log_bytes / n_tokens, 2),
        "file_bytes": round(file_bytes / n_tokens, 2),
    }


def count_array_bytes(groups: list[TrajectoryGroup]) -> int:
    """Return the bytes that the rows' arrays keep alive: each buffer once, and every array object on the way to it."""
    seen: dict[int, int] = {}
    trajectories: list[Trajectory] = [trajectory for group in groups for trajectory in group.trajectories]
    for trajectory in trajectories:
        for row in trajectory.rows:
            for array in (row.ids, row.mask, row.logps):
                part: Any = array
                while part is not None:
                    seen[id(part)] = sys.getsizeof(part)
                    part = getattr(part, "base", None)
    return sum(seen.values())


def _disk_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def list_figures(rows: list[Mapping[str, Any]]) -> list[Figure]:
    """Return the bytes in arrays of each length, held from 1,000 tokens on."""
    return [
        Figure(
            f"arrays of rows of about {length:,} tokens",
            row["array_bytes"],
            "bytes a token",
            "lower",
            at_most=MAX_BYTES if length >= 1_000 else None,
        )
        for length, row in zip(LENGTHS, rows, strict=True)
    ]


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--rows", type=int, default=32)
    options = parser.parse_args()
    rows = [measure(length, options.rows) for length in LENGTHS]
    report = Report("memory", "Memory and disk of a token", METHOD, COLUMNS, rows, list_figures(rows))
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
