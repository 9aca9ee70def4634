"""From 1 to 1,024 GPUs: a model of 8 B parameters on published rates, and where a shared part becomes the limit.

A cluster is simulated through a slice of at most `MOST_ENGINES` engines. The slice has its share of the players, and of
each step's episodes an evenly spaced part that includes the longest. Training and weights are those of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from .parts import EngineRates
from .systems import Failure, PlayerRates, Result, Schedule, System, Training, TrainingRates
from .work import Episodes, Workload, draw

N_PARAMETERS = 8.03e9
WEIGHTS_GB = 2 * N_PARAMETERS / 1e9
MEMORY_GB_PER_S = 0.77 * 3350
"""H100 SXM: 3.35 TB/s (datasheet). Decoding one row reaches 77% (johnmusgrave.com: vLLM 0.23, 8 B, an A100)."""
KV_GB = 131_072 / 1e9
"""Cache of a token: 32 layers, 8 heads of 128, keys and values, bfloat16."""
FLOPS = 0.5 * 989e12
"""H100 SXM: 989 TFLOP/s dense in bfloat16 (datasheet); half of it is assumed for matrix products."""
ENGINE = EngineRates(
    step_s=WEIGHTS_GB / MEMORY_GB_PER_S,
    row_s=2 * N_PARAMETERS / FLOPS,
    token_s=KV_GB / MEMORY_GB_PER_S,
    read_s=2 * N_PARAMETERS / FLOPS,
    max_rows=256,
    max_tokens=(0.9 * 80 - WEIGHTS_GB - 2) / KV_GB,
)
TRAINED_PER_S = 7500 * 7 / 8 * 3 / 4
"""Tokens/s of a training GPU: 7,500 for 7 B on 96 H100 (fms-fsdp), and a third more work to score the old policy."""
DOLLARS = 2.94
"""An H100 for an hour (gpu.blog, the highest of its three providers)."""
FOLDER_GB_PER_S = 10.0
"""Assumed: what all nodes together read from a shared folder, and one can write at a fifth of it."""
COPY_GB_PER_S = 25.0
"""Assumed: from a host's memory to its GPU."""
BROADCAST_GB_PER_S = 8.6
"""60 GB in 7 s by NCCL (verl's checkpoint engine, 30B-A3B)."""
DELTA_SHARE = 0.03
"""Of the bytes, at a learning rate of 1e-6 (docs/guides/servers.md)."""
GPUS_PER_NODE = 8
EPISODES_PER_GPU = 32
GROUP_SIZE = 8
MOST_ENGINES = 8
BASE = Workload(n_turns=4, n_tokens=256, spread=0.8, tool_s=1.0)


@dataclass(frozen=True)
class Measured:
    """Rates of our own code, from `playing.json`."""

    turn_s: float
    token_s: float
    """For each token of a turn's prompt."""
    write_s: float
    write_token_s: float
    made_gb_per_s: float
    applied_gb_per_s: float

    @property
    def player(self) -> PlayerRates:
        """Rates of a process that plays; its episodes are written in the same process."""
        return PlayerRates(self.turn_s, self.write_s, self.token_s)


@dataclass(frozen=True)
class Setting:
    """What a run has: GPUs, schedule and transport of the weights."""

    n_gpus: int
    bound: int = 0
    transport: str = "whole"
    over_sampling: float = 1.0

    @property
    def n_training(self) -> int:
        """GPUs that train; a single one does both."""
        return max(1, self.n_gpus // 2)

    @property
    def n_engines(self) -> int:
        """GPUs that sample."""
        return max(1, self.n_gpus - self.n_training)


def weight_times(setting: Setting, measured: Measured) -> tuple[float, float]:
    """Return the seconds to write new weights, while engines play, and to load them, while they stand still."""
    if setting.n_gpus == 1:  # in memory
        return 0.0, WEIGHTS_GB / COPY_GB_PER_S
    n_nodes = math.ceil(setting.n_engines / GPUS_PER_NODE)
    fetch = n_nodes * WEIGHTS_GB / FOLDER_GB_PER_S
    copy = WEIGHTS_GB / COPY_GB_PER_S
    if setting.transport == "whole":
        return copy + 5 * WEIGHTS_GB / FOLDER_GB_PER_S, fetch + copy
    if setting.transport == "delta":
        made = WEIGHTS_GB / measured.made_gb_per_s
        return copy + made, DELTA_SHARE * fetch + WEIGHTS_GB / measured.applied_gb_per_s + copy
    return 0.0, WEIGHTS_GB / BROADCAST_GB_PER_S


def draw_steps(work: Workload, n_steps: int, n_whole: int, n_part: int, seed: int) -> Episodes:
    """Draw each step's episodes, and take the part of them that is simulated."""
    parts = [draw(work, n_whole, seed + step).part(n_part) for step in range(n_steps)]
    rng = np.random.default_rng(seed)  # a group's members are not alike in length
    orders = [rng.permutation(n_part) for _ in parts]
    tokens = np.concatenate([part.tokens_NT[order] for part, order in zip(parts, orders, strict=True)])
    tools = np.concatenate([part.tools_NT[order] for part, order in zip(parts, orders, strict=True)])
    return Episodes(tokens, tools, work.n_prompt, work.n_added)


def simulate(
    setting: Setting,
    work: Workload,
    measured: Measured,
    *,
    n_steps: int = 6,
    seed: int = 0,
    n_players: int | None = None,
    failures: tuple[Failure, ...] = (),
) -> Result:
    """Simulate some steps of a training."""
    n_engines = min(setting.n_engines, MOST_ENGINES)
    slice_of = setting.n_engines / n_engines
    n_whole = EPISODES_PER_GPU * setting.n_gpus
    n_part = max(GROUP_SIZE, round(n_whole / slice_of / GROUP_SIZE) * GROUP_SIZE)
    n_steps_drawn = math.ceil(n_steps * setting.over_sampling)
    episodes = draw_steps(work, n_steps_drawn, n_whole, n_part, seed)
    all_players = setting.n_training if n_players is None else n_players
    players = max(1, round(all_players / slice_of))
    slower = slice_of * players / all_players  # a player of the slice does the work of so many
    player = measured.player
    player = PlayerRates(*(slower * value for value in (player.turn_s, player.episode_s, player.token_s)))
    write_s, load_s = weight_times(setting, measured)
    n_tokens = n_whole * episodes.n_context
    rates = TrainingRates(n_tokens / setting.n_training / TRAINED_PER_S, write_s, load_s)
    system = System(ENGINE, player, n_engines, players, width=4 * n_part, group_size=GROUP_SIZE, failures=failures)
    if setting.n_gpus == 1:  # the engine shares the GPU's memory
        system = replace(system, engine=replace(ENGINE, max_tokens=(0.3 * 80 - WEIGHTS_GB) / KV_GB))
    schedule = Schedule(n_steps, GROUP_SIZE, setting.bound, setting.over_sampling)
    return Training(system, episodes, rates, schedule).run()


def step_s(result: Result) -> float:
    """Return the mean seconds of a step, the first left out."""
    ends = result.steps_s
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def describe(setting: Setting, result: Result) -> dict[str, float]:
    """Return what a step of the whole cluster takes, and what it costs."""
    seconds = step_s(result)
    n_episodes = EPISODES_PER_GPU * setting.n_gpus
    return {
        "gpus": setting.n_gpus,
        "step_s": seconds,
        "episodes_per_s": n_episodes / seconds,
        "engine": result.engine_busy,
        "trainer": result.trainer_busy,
        "player": result.player_busy,
        "dollars": setting.n_gpus * DOLLARS / 3600 * seconds / n_episodes * 1000,
        "oldest": result.oldest,
        "preempted": result.n_preempted,
        "replayed": result.n_replayed,
    }


def sampled_per_s(n_context: float, n_rows: int = 64) -> float:
    """Return the tokens/s of an engine with so many rows of so many tokens."""
    return n_rows / (ENGINE.step_s + n_rows * (ENGINE.row_s + ENGINE.token_s * n_context))


def most_engines(work: Workload, measured: Measured) -> dict[str, float]:
    """Return how many engines fully busy at 64 rows one playing process and one writer keep up with."""
    n_context = work.n_prompt + (work.n_turns - 1) / 2 * (work.n_tokens + work.n_added)
    whole = work.n_prompt + work.n_turns * work.n_tokens + (work.n_turns - 1) * work.n_added
    turns_per_s = sampled_per_s(n_context) / work.n_tokens
    write_s = measured.write_s + measured.write_token_s * whole
    turn_s = measured.turn_s + measured.token_s * n_context
    return {
        "turns": work.n_turns,
        "turn_tokens": work.n_tokens,
        "player": 1 / (turn_s + write_s / work.n_turns) / turns_per_s,
        "writer": 1 / write_s / turns_per_s * work.n_turns,
    }


def limits(n_gpus: int, measured: Measured) -> dict[str, float]:
    """Return the seconds in which the trainer stands still for new weights, by transport."""
    row: dict[str, float] = {"gpus": n_gpus}
    for transport in ("whole", "delta", "nccl"):
        row[transport] = sum(weight_times(Setting(n_gpus, transport=transport), measured))
    return row
