"""NeMo Gym: an environment of ours as one of its servers, for NeMo-RL, verl and others that train on them.

    write_nemo_gym_server("resources_servers/wordle_llm", "llm/Wordle-v0", n=1000)

writes the files of a server in NeMo Gym's own layout. Its `gymnasium_agent` plays them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from llm_envs.chat.context import observed_messages, render_reply
from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.rollout.workers.runner import Env, EnvMaker, check_reset, check_step, env_attribute
from llm_envs.sources.source import SeedSource
from llm_envs.types import Message, ToolCall

__all__ = ["create_nemo_gym_server", "write_nemo_gym_server"]

_APP = '''"""{env_id} as a server of NeMo Gym, written by `llm_envs.bridges.nemo_gym`."""

from llm_envs.bridges.nemo_gym import create_nemo_gym_server

Server = create_nemo_gym_server({env_id!r}, {kwargs!r})

if __name__ == "__main__":
    Server.run_webserver()
'''
_CONFIG = """{name}:
  resources_servers:
    {name}:
      allowed_agents: [gymnasium_agent]
      entrypoint: app.py
      domain: {domain}
      verified: false
      description: {env_id}
{name}_gymnasium_agent:
  responses_api_agents:
    gymnasium_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: {name}
      model_server:
        type: responses_api_models
        name: policy_model
      max_steps: {max_steps}
      datasets:
      - name: train
        type: train
        license: MIT
        jsonl_fpath: {folder}/data/train.jsonl
{name}_environment_server:
  environment_servers:
    legacy_agent:
      entrypoint: app.py
      agent_server:
        type: responses_api_agents
        name: {name}_gymnasium_agent
"""


def write_nemo_gym_server(
    folder: str | Path,
    env_id: str,
    *,
    n: int = 1000,
    seed: int = 0,
    max_steps: int = 32,
    domain: str = "other",
    **kwargs: Any,
) -> Path:
    """Write a server: `app.py`, `configs/NAME.yaml`, `requirements.txt` and `data/train.jsonl`, a row for each episode.

    Args:
        folder: A new folder, in `resources_servers/` of a checkout of NeMo Gym. Its name is the server's.
        env_id: A registered id, or "module:id".
        n: Number of episodes.
        seed: Decides which problems are played: those that a `Collector` plays with this seed.
        max_steps: Replies after which the agent stops.
        domain: NeMo Gym's name for the kind of task.
        **kwargs: Arguments of the environment.

    Returns:
        The folder.

    Raises:
        InvalidConfigError: If the folder exists, or its name is not a Python name.
    """
    folder = Path(folder)
    name = folder.name
    if folder.exists() or not name.isidentifier():
        raise InvalidConfigError(
            f"write_nemo_gym_server: {folder} must be a new folder, and its name letters, digits and underscores."
        )
    source = SeedSource(env_id, seed=seed, env_kwargs=kwargs)
    rows = [_row(env_id, kwargs, source.spec(index).seed, f"{name}_gymnasium_agent") for index in range(n)]
    shown = folder.as_posix()
    config = _CONFIG.format(name=name, env_id=env_id, max_steps=max_steps, domain=domain, folder=shown)
    files = {
        "app.py": _APP.format(env_id=env_id, kwargs=kwargs),
        f"configs/{name}.yaml": config,
        "requirements.txt": "-e nemo-gym[dev] @ ../../\nllm-envs\n",
        "data/train.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def create_nemo_gym_server(env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """Return the class of a server, a subclass of NeMo Gym's `GymnasiumServer`.

    A row's `seed` begins an episode. Results of tools go back as outputs of the calls, and everything else that the
    environment answers as a message of the user.

    Args:
        env_id: A registered id, or "module:id".
        kwargs: Arguments of the environment.

    Raises:
        MissingExtraError: If NeMo Gym is not installed.
    """
    with extra_needed("a server of NeMo Gym needs `nemo-gym` (Python 3.13.14 or later): pip install nemo-gym."):
        from nemo_gym.server_utils import SESSION_ID_KEY
        from resources_servers.gymnasium import GymnasiumServer

    class EpisodeServer(GymnasiumServer):
        ray_enabled = False

        def setup_webserver(self) -> Any:
            app = super().setup_webserver()
            app.add_route("/close", self._close_endpoint, methods=["POST"])
            return app

        async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str, dict[str, Any]]:
            await self.close_session(session_id)
            self.session_state[session_id] = env = await asyncio.to_thread(EnvMaker(env_id, kwargs))
            observation, _ = check_reset(await asyncio.to_thread(env.reset, seed=int(metadata["seed"])))
            return observation, {"supports_explicit_close": True}

        async def step(
            self, action: Any, metadata: dict[str, Any], session_id: str | None = None
        ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
            env: Env = self.session_state[session_id]
            text, call_ids = _read(action.output)
            observation, reward, terminated, truncated, info = check_step(await asyncio.to_thread(env.step, text))
            kept = {key: info[key] for key in ("reward_components", "is_success") if key in info}
            text_back, outputs = _answers(observation, info, call_ids)
            return text_back, reward, terminated, truncated, {**kept, "tool_outputs": outputs}

        async def close_session(self, session_id: str | None) -> None:
            env = self.session_state.pop(session_id, None)
            if env is not None:
                await asyncio.to_thread(env.close)

        async def _close_endpoint(self, request: Any) -> Any:
            from starlette.responses import JSONResponse

            await self.close_session(request.session.get(SESSION_ID_KEY))
            return JSONResponse({})

    return EpisodeServer


def _row(env_id: str, kwargs: Mapping[str, Any], seed: int, agent: str) -> dict[str, Any]:
    with closing(EnvMaker(env_id, kwargs)()) as env:
        env.reset(seed=seed)
        prompt, tools = env_attribute(env, "system_prompt", None), env_attribute(env, "tools", ()) or ()
    functions = [tool.get("function", tool) for tool in tools]
    params = {
        "input": [{"role": "system", "content": prompt}] if prompt else [],
        "tools": [{"type": "function", "strict": False, **function} for function in functions],
    }
    return {
        "responses_create_params": params,
        "seed": seed,
        "agent_ref": {"type": "responses_api_agents", "name": agent},
    }


def _read(output: Any) -> tuple[str, list[str]]:
    """Return a response's text, with its calls as the environment reads them, and the ids of the calls."""
    texts: list[str] = []
    calls, ids = [], []
    for item in output:
        if item.type == "message":
            parts = [item.content] if isinstance(item.content, str) else [getattr(c, "text", "") for c in item.content]
            texts += parts
        elif item.type == "function_call":
            calls.append(ToolCall(item.name, _arguments(item.arguments)))
            ids.append(item.call_id)
    return render_reply(Message("assistant", "".join(texts), tuple(calls))), ids


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return {"arguments": text}  # the tool refuses it with its reason
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _answers(observation: str, info: Mapping[str, Any], call_ids: list[str]) -> tuple[str | None, list[dict[str, str]]]:
    """Return the user's message, and an output for each call, as OpenAI's API requires."""
    texts, outputs = list[str](), list[dict[str, str]]()
    for message in observed_messages(observation, info):
        if message.role == "tool" and len(outputs) < len(call_ids):
            outputs.append({"call_id": call_ids[len(outputs)], "output": message.content})
        else:
            texts.append(message.content)
    outputs += [{"call_id": id_, "output": "The call was not run."} for id_ in call_ids[len(outputs) :]]
    return "\n".join(texts) or None, outputs
