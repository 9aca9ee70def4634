"""The collector of a trainer whose episodes are played by Ray actors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.vllm.server import VLLMServerPolicy, open_client
from llm_envs.rollout.episode_player import EpisodePlayer
from llm_envs.rollout.ray_cluster import RayCluster
from llm_envs.rollout.ray_collector import RayCollector
from llm_envs.sources.source import SeedSource

__all__ = ["make_collector"]


def make_collector(
    source: SeedSource, policy: VLLMServerPolicy, codec: ChatCodec, args: Any, others: Mapping[str, Any]
) -> RayCollector:
    """Return a collector whose actors are clients of the policy's servers, and follow the weights that it sends.

    Args:
        source: The training episodes.
        policy: The sampling policy.
        codec: Codec of the trainer's tokenizer.
        args: The trainer's settings.
        others: Other arguments of the collector.

    Raises:
        InvalidConfigError: If an environment plays its episodes itself.
    """
    for env_id, factory in source.factories.items():
        if isinstance(factory, EpisodePlayer):
            raise InvalidConfigError(f"ray={args.ray!r}: {env_id} plays its episodes in this process; leave out ray.")
    with RayCluster(args.ray) as cluster:  # the processes share the actors
        n_actors = max(1, cluster.room({}) // args.world_size)
    each = -(-args.max_concurrency // n_actors)
    settings = {"model": policy.model, "exchange_dir": args.vllm_exchange_dir, "transport": args.vllm_transport}
    make = partial(open_client, policy.urls, codec, max_concurrency=each, **settings)
    collector = RayCollector(source, make, n_actors=n_actors, address=args.ray, max_concurrency=each, **others)
    collector.policy, collector.codec = policy, codec  # they know the version of the weights, and the template
    policy.followers.append(collector.follow)
    return collector
