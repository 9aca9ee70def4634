"""OpenEnv: its servers as our environments, and ours as its servers.

    env = OpenEnvEnv("http://localhost:8000")                                       # theirs as ours
    uvicorn.run(create_openenv_app("llm/Wordle-v0"), host="127.0.0.1", port=8000)   # ours as theirs

1. A connection carries one session. Each request waits for its own reply before the next one is sent.
2. After a timeout or an error the connection is closed, so a late reply is never read as the reply to a later request.
   The episode is over; the next `reset` opens a new session.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import gymnasium as gym

from llm_envs.chat.context import observed_messages
from llm_envs.errors import BridgeError, InvalidConfigError, ResetNeededError, extra_needed
from llm_envs.policies.vllm.http import check_url
from llm_envs.problems import as_flag, as_number
from llm_envs.registration import register_task
from llm_envs.rollout.workers.runner import Env, EnvMaker, env_attribute
from llm_envs.spaces import TextSpace, encodable

__all__ = ["OpenEnvEnv", "create_openenv_app"]

_MAX_MESSAGE_BYTES = 2**26
"""A text of the greatest length, escaped as JSON, fits many times."""
_CLOSE_S = 1.0
"""Seconds for the server to agree to a close."""
_seeds_checked: set[str] = set()
"""Servers whose seeds were tried in this process."""


class OpenEnvEnv(gym.Env[str, str]):
    """An environment of an OpenEnv server, over its WebSocket.

    The reply of the policy becomes the one text field of the server's action. The one text field of its observation is
    what the policy sees; an observation with several is shown as JSON.

    Args:
        base_url: The server, "http://host:8000".
        to_action: Reply -> the server's action, for a server whose action is not one text.
        to_text: Observation, a dict -> text, for a server whose observation is better shown in another way.
        instructions: The system prompt. None: the observation's field `system_prompt`, if it has one.
        reset_kwargs: Arguments of the server's reset, beside the seed.
        timeout_s: Seconds that one reply may take.
        success_at: Lowest return that counts as a success, if the server's metadata do not say `is_success`.
        check_seed: Whether the first reset of a server is made twice, to see whether it uses the seed.

    Raises:
        InvalidConfigError: If the server's action is not one text and `to_action` is missing.
        MissingExtraError: If `websockets` is not installed.
        BridgeError: If the server cannot be reached.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    blocking = True

    def __init__(
        self,
        base_url: str,
        *,
        to_action: Callable[[str], Mapping[str, Any]] | None = None,
        to_text: Callable[[Mapping[str, Any]], str] | None = None,
        instructions: str | None = None,
        reset_kwargs: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        success_at: float = 1.0,
        check_seed: bool = True,
    ) -> None:
        check_url(base_url, "OpenEnvEnv: base_url")
        with extra_needed("OpenEnvEnv needs `websockets`: pip install 'llm-envs[openenv]'."):
            import websockets.exceptions
            import websockets.sync.client
        self._websockets = websockets
        self.base_url, self.timeout_s, self.success_at = base_url.rstrip("/"), timeout_s, success_at
        self.observation_space, self.action_space = TextSpace(), TextSpace()
        self.instructions = self.system_prompt = instructions
        self.tools: list[dict[str, Any]] = []
        self._to_action = to_action or _text_action(self.base_url, timeout_s)
        self._to_text = to_text or observation_text
        self._reset_kwargs = dict(reset_kwargs or {})
        self._check_seed = check_seed
        self._connection: Any = None
        self._closing = ExitStack()
        self._is_playing = False
        self._return = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; `options` are further arguments of the server's reset.

        Raises:
            BridgeError: If the server fails, or begins differently with the same seed.
        """
        super().reset(seed=seed)
        data = self._reset_kwargs | (options or {}) | ({} if seed is None else {"seed": seed})
        self._is_playing, self._return = False, 0.0
        reply = self._ask("reset", data)
        if self._check_seed and seed is not None and self.base_url not in _seeds_checked:
            again = self._ask("reset", data)
            if self._text(reply) != self._text(again):
                raise BridgeError(
                    f"{self.base_url} begins differently with the same seed ({seed}), so groups and resumed runs would "
                    "mix problems. Pass check_seed=False to play it all the same."
                )
            _seeds_checked.add(self.base_url)
        observation = reply["observation"]
        self.system_prompt = self.instructions or observation.get("system_prompt")
        self.tools = list(observation.get("tools") or ())
        self._is_playing = not reply.get("done")
        return self._text(reply), _info(observation)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the server the policy's reply; see Gymnasium's `Env.step`.

        Raises:
            BridgeError: If the server fails, or takes too long. The episode is over then.
        """
        if not self._is_playing:
            raise ResetNeededError("OpenEnvEnv.step was called outside an episode: call reset() first.")
        self._is_playing = False  # until there is a reply
        reply = self._ask("step", dict(self._to_action(action)))
        reward = 0.0 if reply.get("reward") is None else as_number(reply["reward"])
        about = reply.get("metadata") or {}
        done = as_flag(reply.get("done") or False)
        truncated = done and as_flag(about.get("truncated") or False)
        self._is_playing, self._return = not done, self._return + reward
        info = _info(reply["observation"])
        if done:
            info["is_success"] = as_flag(about.get("is_success", self._return >= self.success_at))
        return self._text(reply), reward, done and not truncated, truncated, info

    def close(self) -> None:
        """Close the connection, which ends the session on the server."""
        self._connection, self._is_playing = None, False
        self._closing.close()

    def _text(self, reply: Mapping[str, Any]) -> str:
        return encodable(self._to_text(reply["observation"]))

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return the data of its reply. If anything fails, close the connection."""
        try:
            if self._connection is None:
                url = f"ws{self.base_url.removeprefix('http')}/ws"
                connecting = self._websockets.sync.client.connect(
                    url, open_timeout=self.timeout_s, close_timeout=_CLOSE_S, max_size=_MAX_MESSAGE_BYTES
                )
                self._connection = self._closing.enter_context(connecting)
            with suppress(
                self._websockets.exceptions.ConnectionClosed
            ):  # what it said before it closed can still be read
                self._connection.send(json.dumps({"type": kind, "data": data}))
            reply = json.loads(self._connection.recv(timeout=self.timeout_s))
            if reply.get("type") != "observation" or not isinstance(reply["data"].get("observation"), dict):
                raise BridgeError(f"{self.base_url} refused a {kind}: {json.dumps(reply)[:500]}")
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise BridgeError(f"{self.base_url} did not answer a {kind} within {self.timeout_s} s.") from error
            if isinstance(error, BridgeError) or not isinstance(error, Exception):
                raise
            raise BridgeError(f"{self.base_url}, {kind}: {type(error).__name__}: {error}") from error
        return dict(reply["data"])


def observation_text(observation: Mapping[str, Any]) -> str:
    """Return the one text field of a server's observation; if there is not exactly one, all of it as JSON."""
    shown = {name: value for name, value in observation.items() if name not in _NOT_SHOWN}
    texts = [value for value in shown.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else json.dumps(shown, ensure_ascii=False)


_NOT_SHOWN = ("metadata", "system_prompt", "tools", "messages")


def create_openenv_app(env_id: str, *, max_sessions: int = 64, **kwargs: Any) -> Any:
    """Return an OpenEnv server of one of our environments, an application for uvicorn.

    Its action is `{"message": reply}`. Its observation has `message` (the text), `messages` (the same as chat
    messages, with roles), and after a reset `system_prompt` and `tools`. The metadata have `terminated`, `truncated`,
    `reward_components` and, at the end, `is_success`. The reset takes `seed` and `options`.

    Args:
        env_id: A registered id, or "module:id".
        max_sessions: How many clients may play concurrently, each in a separate environment.
        **kwargs: Arguments of the environment.

    Raises:
        MissingExtraError: If `openenv` is not installed.
    """
    with extra_needed("an OpenEnv server needs `openenv`: pip install 'llm-envs[openenv]'."):
        from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class TextAction(Action):
        message: str

    class TextObservation(Observation):
        message: str
        messages: tuple[dict[str, Any], ...] = ()
        system_prompt: str | None = None
        tools: tuple[dict[str, Any], ...] = ()

    class TextEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.env: Env = EnvMaker(env_id, kwargs)()
            self._state = State()

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            options: dict[str, Any] | None = None,
            **ignored: Any,
        ) -> Observation:
            observation, info = self.env.reset(seed=seed, options=options)
            self._state = State(episode_id=episode_id)
            return TextObservation(
                message=observation,
                messages=_listed(observation, info),
                system_prompt=env_attribute(self.env, "system_prompt", None),
                tools=tuple(dict(tool) for tool in env_attribute(self.env, "tools", ()) or ()),
            )

        def step(self, action: Any, timeout_s: float | None = None, **ignored: Any) -> Observation:
            observation, reward, terminated, truncated, info = self.env.step(action.message)
            self._state.step_count += 1
            told = ("reward_components", "is_success")
            about = {"terminated": terminated, "truncated": truncated} | {k: info[k] for k in told if k in info}
            return TextObservation(
                message=observation,
                messages=_listed(observation, info),
                reward=float(reward),
                done=terminated or truncated,
                metadata=about,
            )

        @property
        def state(self) -> State:
            return self._state

        def close(self) -> None:
            self.env.close()

    return create_fastapi_app(
        TextEnvironment, TextAction, TextObservation, max_concurrent_envs=max_sessions, env_name=env_id
    )


def _listed(observation: str, info: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    if info.get("messages"):
        return tuple(dict(message) for message in info["messages"])
    return tuple(message.to_dict() for message in observed_messages(observation, info))


def _info(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the messages of an observation, if the server gives them with roles."""
    return {"messages": observation["messages"]} if observation.get("messages") else {}


def _text_action(base_url: str, timeout_s: float) -> Callable[[str], dict[str, Any]]:
    """Return the function that puts a reply into the one text field of the server's action."""
    try:
        with urllib.request.urlopen(f"{base_url}/schema", timeout=timeout_s) as response:
            schema = json.load(response)["action"]
    except (OSError, ValueError, KeyError) as error:
        raise BridgeError(f"{base_url}/schema cannot be read: {type(error).__name__}: {error}") from error
    required = schema.get("required", [])
    if len(required) != 1 or schema["properties"][required[0]].get("type") != "string":
        raise InvalidConfigError(
            f"{base_url}: an action is not one text: it has the required fields {required}, of "
            f"{json.dumps(schema.get('properties', {}))[:500]}. Pass to_action, a function from a reply to an action."
        )
    return lambda reply: {required[0]: reply}


register_task("openenv/Server-v0", OpenEnvEnv)
