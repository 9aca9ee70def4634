"""Rollouts: which episodes are played, how one is played, and how many are played concurrently.

Nothing here imports torch, transformers or datasets.
"""

from llm_envs.chat.context import Codec, ContextFn, create_window
from llm_envs.chat.summarize import Summarize
from llm_envs.data.writer import TrajectoryWriter, finished, iter_trajectories, read_run, read_trajectories, remaining
from llm_envs.rollout.chat_logs import from_messages, read_messages_jsonl
from llm_envs.rollout.collect_run import collect_run
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.converse import ToolTracker, aconverse, aconverse_batch, converse, converse_batch
from llm_envs.rollout.episode import play_episode
from llm_envs.rollout.fork import branch, replay_to, state_keys
from llm_envs.rollout.group import play_group, play_member
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.multiplayer import MultiplayerEnv, PastVersions
from llm_envs.rollout.rows import RowBuilder
from llm_envs.rollout.tree import add_branches
from llm_envs.sources.curriculum import Curriculum
from llm_envs.sources.mixture import derive_seed
from llm_envs.sources.prompt_task import PromptSource, PromptTask
from llm_envs.sources.prompts import PromptBuffer, load_prompts
from llm_envs.sources.source import EnvChoice, EpisodeSpec, SeedSource, group_specs
from llm_envs.tracking.stats import CollectorStats

__all__ = [
    "Codec",
    "Collector",
    "CollectorStats",
    "ContextFn",
    "Curriculum",
    "EnvChoice",
    "EpisodeSpec",
    "MultiplayerEnv",
    "PastVersions",
    "PromptBuffer",
    "PromptSource",
    "PromptTask",
    "RolloutLimits",
    "RowBuilder",
    "SeedSource",
    "Summarize",
    "ToolTracker",
    "TrajectoryWriter",
    "aconverse",
    "aconverse_batch",
    "add_branches",
    "branch",
    "collect_run",
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
    "replay_to",
    "state_keys",
]
