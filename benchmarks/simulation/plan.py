"""From 1 to 1,024 GPUs: a model of 8 B parameters on published rates, and where a shared part becomes the limit.

A cluster is simulated through a slice of at most `MAX_ENGINES` engines. The slice has its share of the players, and of
each step's episodes an evenly spaced part that includes the longest. Training and weights are those of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

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
CARD_GB_PER_S = 12.5
"""Assumed: a node's network card for everything but NCCL, 100 Gbit/s."""
GPUS_PER_NODE = 8
EPISODES_PER_GPU = 32
GROUP_SIZE = 8
MAX_ENGINES = 8
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
    turn_bytes: float = 0.0
    """Of a request and its reply, whatever their length."""
    prompt_bytes: float = 0.0
    """For each token of the prompt, in request and reply."""
    sampled_bytes: float = 0.0
    """For each token of the reply."""

    def written_s(self, n_tokens: float) -> float:
        """Return the seconds of writing an episode of so many tokens."""
        return self.write_s + self.write_token_s * n_tokens


@dataclass(frozen=True)
class Setting:
    """What a run has: GPUs, schedule and transport of the weights."""

    n_gpus: int
    bound: int = 0
    transport: str = "whole"
    """"free": weights cost nothing."""
    over_sampling: float = 1.0
    most_training: int = 1024
    """GPUs that train, at most; otherwise half of all."""
    most_players: int = 1024
    """Processes that play, at most; otherwise one for each GPU that trains."""
    has_one_writer: bool = False
    """Whether one process writes all episodes (`--ray`); otherwise each player writes its own."""
    has_one_card: bool = False
    """Whether all turns go through the network card of one node; otherwise each node of players has one."""

    @property
    def n_training(self) -> int:
        """GPUs that train; a single one does both."""
        return max(1, min(self.n_gpus // 2, self.most_training))

    @property
    def n_engines(self) -> int:
        """GPUs that sample."""
        return max(1, self.n_gpus - self.n_training)


def weight_times(setting: Setting, measured: Measured) -> tuple[float, float, float]:
    """Return the seconds to write new weights, while engines play, to load them, while they stand still, and of both
    those in which the weights occupy the network card of the trainer's node. NCCL has other cards.
    """
    if setting.transport == "free":
        return 0.0, 0.0, 0.0
    if setting.n_gpus == 1:  # in memory
        return 0.0, WEIGHTS_GB / COPY_GB_PER_S, 0.0
    sent = WEIGHTS_GB / CARD_GB_PER_S
    n_nodes = math.ceil(setting.n_engines / GPUS_PER_NODE)
    fetch = n_nodes * WEIGHTS_GB / FOLDER_GB_PER_S
    copy = WEIGHTS_GB / COPY_GB_PER_S
    if setting.transport == "whole":
        return copy + 5 * WEIGHTS_GB / FOLDER_GB_PER_S, fetch + copy, sent
    if setting.transport == "delta":
        made = WEIGHTS_GB / measured.made_gb_per_s
        load_s = DELTA_SHARE * fetch + WEIGHTS_GB / measured.applied_gb_per_s + copy
        return copy + made, load_s, DELTA_SHARE * sent
    return 0.0, WEIGHTS_GB / BROADCAST_GB_PER_S, 0.0


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
    failures: tuple[Failure, ...] = (),
) -> Result:
    """Simulate some steps of a training."""
    n_engines = min(setting.n_engines, MAX_ENGINES)
    slice_of = setting.n_engines / n_engines
    n_whole = EPISODES_PER_GPU * setting.n_gpus
    n_part = max(GROUP_SIZE, round(n_whole / slice_of / GROUP_SIZE) * GROUP_SIZE)
    n_steps_drawn = math.ceil(n_steps * setting.over_sampling)
    episodes = draw_steps(work, n_steps_drawn, n_whole, n_part, seed)
    all_players = min(setting.n_training, setting.most_players)
    players = max(1, round(all_players / slice_of))
    slower = slice_of * players / all_players  # a player of the slice does the work of so many
    written_s = measured.written_s(episodes.n_context)
    own_s = 0.0 if setting.has_one_writer else written_s
    player = PlayerRates(slower * measured.turn_s, slower * own_s, slower * measured.token_s)
    n_cards = 1 if setting.has_one_card else math.ceil(all_players / GPUS_PER_NODE)
    per_byte_s = slice_of / n_cards / CARD_GB_PER_S / 1e9
    write_s, load_s, card_s = weight_times(setting, measured)
    n_tokens = n_whole * episodes.n_context
    rates = TrainingRates(n_tokens / setting.n_training / TRAINED_PER_S, write_s, load_s, card_s=card_s)
    system = System(
        ENGINE,
        player,
        n_engines,
        players,
        width=4 * n_part,
        group_size=GROUP_SIZE,
        writer_s=slice_of * written_s if setting.has_one_writer else 0.0,
        turn_card_s=per_byte_s * measured.turn_bytes,
        prompt_card_s=per_byte_s * measured.prompt_bytes,
        sampled_card_s=per_byte_s * measured.sampled_bytes,
        failures=failures,
    )
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


LIMITS: dict[str, dict[str, Any]] = {
    "one process plays": {"most_players": 1},
    "one process writes": {"has_one_writer": True},
    "one node trains": {"most_training": GPUS_PER_NODE},
    "one node's card for all turns": {"has_one_card": True},
    "weights: whole": {"transport": "whole"},
    "weights: delta": {"transport": "delta"},
    "weights: nccl": {"transport": "nccl"},
}
"""By name, settings in which one part is single or takes time, and all others are shared out and free."""
LIMIT_SCALES = (8, 32, 64, 128, 512, 1024)


def limits(work: Workload, measured: Measured) -> list[dict[str, Any]]:
    """Return, for each limit and number of GPUs, what it leaves of the episodes/s without it, one generation ahead."""
    rows: list[dict[str, Any]] = [{"limit": name, "turns": work.n_turns} for name in LIMITS]
    for n_gpus in LIMIT_SCALES:
        free = Setting(n_gpus, 1, "free")
        whole = simulate(free, work, measured, n_steps=4)
        for row, changes in zip(rows, LIMITS.values(), strict=True):
            row[str(n_gpus)] = step_s(whole) / step_s(simulate(replace(free, **changes), work, measured, n_steps=4))
    return rows


def pause_s(n_gpus: int, measured: Measured) -> dict[str, float]:
    """Return the seconds in which the trainer stands still for new weights, by transport."""
    row: dict[str, float] = {"gpus": n_gpus}
    for transport in ("whole", "delta", "nccl"):
        row[transport] = sum(weight_times(Setting(n_gpus, transport=transport), measured)[:2])
    return row
