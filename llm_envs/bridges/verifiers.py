"""verifiers 0.3: environments of its classic API as ours. For 0.4 see `verifiers_env`.

Its own loop plays an episode; a policy of ours answers its requests, and its rubric gives the reward:

    env = verifiers_env("wordle")   # an `AgentEnv`, for collectors, trainers and `evaluate`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llm_envs.agents.env import AgentEnv
from llm_envs.agents.job import create_openai_client
from llm_envs.agents.server import Endpoint
from llm_envs.errors import BridgeError, InvalidConfigError, extra_needed
from llm_envs.types import Trajectory

__all__ = ["verifiers_env"]


def verifiers_env(env: Any, *, n: int = -1, n_test: int = -1, success_at: float = 1.0, **kwargs: Any) -> AgentEnv:
    """Return an environment of verifiers 0.3 (its classic API) as an environment of ours.

    Its own loop plays: turns, tools and state are its business, and its rubric gives the reward. The policy answers its
    requests, so every reply is recorded token by token. An episode that a limit of ours cuts earns 0.

    Args:
        env: An environment, or the id of an installed one.
        n: Rows of its data set to use for training; −1: all.
        n_test: Rows of its evaluation data set to use; −1: all, 0: none.
        success_at: Lowest reward that counts as a success.
        **kwargs: Arguments of `load_environment`, if `env` is an id.

    Raises:
        InvalidConfigError: If its rubric compares the members of a group, which single episodes do not have.
        MissingExtraError: If verifiers 0.3 is not installed.
    """
    with extra_needed(
        "verifiers_env needs verifiers 0.3, whose classic API 0.4 has no longer: pip install "
        "'verifiers<0.4'. For 0.4 there is llm_envs.bridges.verifiers_env.VerifiersEnv."
    ):
        import verifiers.legacy as vf
    if isinstance(env, str):
        name, loaded = env, vf.load_environment(env, **kwargs)
    else:
        name, loaded = type(env).__name__, env
    if loaded.requires_group_rollouts:
        raise InvalidConfigError(
            f"{name}: its rubric scores a group of episodes together; an episode has its own reward."
        )
    test = None if n_test == 0 else _rows(loaded.get_eval_dataset(n_test))
    rows = _rows(loaded.get_dataset(n))

    async def play(row: Mapping[str, Any], client: Any) -> dict[str, Any]:
        output = await loaded.run_rollout(dict(row), client, "policy", {})
        if output.get("error") is not None:
            raise BridgeError(f"{name}: {output['error']}")
        return {"reward": float(output["reward"]), "metrics": dict(output.get("metrics") or {})}

    def create_client(endpoint: Endpoint) -> Any:
        from verifiers.legacy.clients import OpenAIChatCompletionsClient

        return OpenAIChatCompletionsClient(create_openai_client(endpoint, is_async=True))

    return AgentEnv(
        play,
        rows,
        _reward,
        test_tasks=test,
        env_id=f"verifiers/{name}",
        success_at=success_at,
        create_client=create_client,
    )


def _reward(result: Any, trajectory: Trajectory) -> float:
    return 0.0 if result is None else float(result["reward"])


def _rows(data: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the columns that a data set fills with None."""
    return [{name: value for name, value in row.items() if value is not None} for row in data]
