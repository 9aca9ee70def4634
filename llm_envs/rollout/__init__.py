"""Rollouts: which episodes are played, how one is played, and how many are played at once.

Nothing here imports torch, transformers or datasets.
"""

from llm_envs.rollout.collector import Collector
from llm_envs.rollout.context import Codec, ContextFn, create_window
from llm_envs.rollout.episode import play_episode
from llm_envs.rollout.group import play_group, play_member
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.rows import RowBuilder
from llm_envs.rollout.source import EnvChoice, EpisodeSpec, SeedSource, derive_seed, group_specs
from llm_envs.rollout.stats import CollectorStats
from llm_envs.rollout.store import TrajectoryWriter, read_run, read_trajectories

__all__ = [
    "Codec",
    "Collector",
    "CollectorStats",
    "ContextFn",
    "EnvChoice",
    "EpisodeSpec",
    "RolloutLimits",
    "RowBuilder",
    "SeedSource",
    "TrajectoryWriter",
    "create_window",
    "derive_seed",
    "group_specs",
    "play_episode",
    "play_group",
    "play_member",
    "read_run",
    "read_trajectories",
]
