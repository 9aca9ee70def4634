"""Rollouts: which episodes are played, how one is played, and how many are played at once.

Nothing here imports torch, transformers or datasets.
"""

from llm_envs.rollout.collector import Collector
from llm_envs.rollout.context import Codec, ContextFn, create_window
from llm_envs.rollout.converse import ToolTracker, aconverse, aconverse_batch, converse, converse_batch
from llm_envs.rollout.curriculum import Curriculum
from llm_envs.rollout.episode import play_episode
from llm_envs.rollout.group import play_group, play_member
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.logs import from_messages, read_messages_jsonl
from llm_envs.rollout.prompt_env import PromptSource, PromptTask
from llm_envs.rollout.prompts import PromptBuffer, load_prompts
from llm_envs.rollout.rows import RowBuilder
from llm_envs.rollout.source import EnvChoice, EpisodeSpec, SeedSource, derive_seed, group_specs
from llm_envs.rollout.stats import CollectorStats
from llm_envs.rollout.store import TrajectoryWriter, finished, iter_trajectories, read_run, read_trajectories, remaining

__all__ = [
    "Codec",
    "Collector",
    "CollectorStats",
    "ContextFn",
    "Curriculum",
    "EnvChoice",
    "EpisodeSpec",
    "PromptBuffer",
    "PromptSource",
    "PromptTask",
    "RolloutLimits",
    "RowBuilder",
    "SeedSource",
    "ToolTracker",
    "TrajectoryWriter",
    "aconverse",
    "aconverse_batch",
    "converse",
    "converse_batch",
    "create_window",
    "derive_seed",
    "finished",
    "from_messages",
    "group_specs",
    "iter_trajectories",
    "load_prompts",
    "play_episode",
    "play_group",
    "play_member",
    "read_messages_jsonl",
    "read_run",
    "read_trajectories",
    "remaining",
]
