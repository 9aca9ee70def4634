"""Environments of ours as a taskset of verifiers (0.4, and the new API of 0.3), for those who train on tasksets.

A taskset is an installed module with its own name. Two lines make one, here `llm_envs_taskset.py`:

    from llm_envs.bridges.verifiers_taskset import EpisodeEnv, EpisodeTaskset
    __all__ = ["EpisodeEnv", "EpisodeTaskset"]

    vf-eval llm-envs-taskset --env.taskset.env-id llm/Wordle-v0 ...
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from llm_envs.errors import extra_needed
from llm_envs.rollout.checks import check_success
from llm_envs.rollout.workers.runner import Env, EnvMaker, check_reset, check_step, env_attribute
from llm_envs.sources.source import SeedSource

with extra_needed("a taskset needs `verifiers`: pip install 'llm-envs[verifiers]'."):
    import verifiers.v1 as vf

__all__ = ["EpisodeEnv", "EpisodeTaskset"]

_TOOLS = """You can call tools. Their JSON Schemas:
{schemas}
Write a call in this form: <tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>"""


class EpisodeData(vf.TaskData):
    """One episode as data: its environment and its seed."""

    env_id: str
    env_kwargs: dict[str, Any]
    seed: int


class EpisodeTask(vf.Task[EpisodeData]):
    """One episode."""


class EpisodeConfig(vf.TasksetConfig):
    """Which episodes: those that `llm_envs.evaluate` plays with this seed."""

    env_id: str = ""
    """A registered id, or "module:id"."""
    env_kwargs: dict[str, Any] = {}
    """Arguments of the environment."""
    n: int = 1000
    """Number of episodes."""
    split: str | None = "train"
    """The environment's split; None for one without splits."""
    run_seed: int = 0
    """Decides which problems are played."""


class EpisodeTaskset(vf.Taskset[EpisodeTask, EpisodeConfig]):
    """Episodes of one environment."""

    def load(self) -> Iterator[EpisodeTask]:
        """Yield the episodes, each with its first observation as the prompt."""
        config = self.config
        kwargs = config.env_kwargs if config.split is None else {**config.env_kwargs, "split": config.split}
        source = SeedSource(config.env_id, seed=config.run_seed, env_kwargs=kwargs)
        for index in range(config.n):
            spec = source.spec(index)
            with closing(EnvMaker(spec.env_id, spec.env_kwargs)()) as env:
                observation, _ = check_reset(env.reset(seed=spec.seed))
                data = EpisodeData(
                    name=f"{config.env_id}#{spec.seed}",
                    prompt=observation,
                    system_prompt=_system_prompt(env),
                    env_id=spec.env_id,
                    env_kwargs=dict(spec.env_kwargs),
                    seed=spec.seed,
                )
            yield EpisodeTask(data, config.task)


class EpisodeEnvConfig(vf.EnvConfig):
    """The one player: a plain chat without a shell, so it runs in a process here and needs no account."""

    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})


class EpisodeEnv(vf.Env[EpisodeEnvConfig]):
    """Play an episode: the environment, in this process, answers each reply."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play to the end, and record the return, the components of the reward, and the success."""
        data = task.data
        total, components, is_success = 0.0, dict[str, float](), False
        with closing(await asyncio.to_thread(EnvMaker(data.env_id, data.env_kwargs))) as env:
            await asyncio.to_thread(env.reset, seed=data.seed)
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn()  # the task's prompt is the first observation
                while not segment.terminated:
                    stepped = check_step(await asyncio.to_thread(env.step, segment.last_reply))
                    observation, reward, terminated, truncated, info = stepped
                    total += reward
                    for name, value in (info.get("reward_components") or {}).items():
                        components[name] = components.get(name, 0.0) + float(value)
                    if terminated or truncated:
                        is_success = check_success(info)
                        break
                    segment = await interaction.turn(observation)
        interaction.trace.record_reward("return", total)
        interaction.trace.record_metrics({**components, "success": float(is_success)})


def _system_prompt(env: Env) -> str | None:
    """Return the system prompt; tools stand in it, since a task of verifiers has none but MCP servers."""
    prompt, tools = env_attribute(env, "system_prompt", None), env_attribute(env, "tools", ()) or ()
    if not tools:
        return prompt
    schemas = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
    return "\n\n".join([*([prompt] if prompt else []), _TOOLS.format(schemas=schemas)])
