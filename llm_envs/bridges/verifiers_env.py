"""verifiers 0.4: its environments (a taskset, the agents that play it, its rewards) as ours.

    env = VerifiersEnv("my-taskset")                                    # an installed taskset
    env = VerifiersEnv({"taskset": {"id": "my-taskset", "level": 3}})   # its settings, as in a TOML file for `vf-eval`

verifiers drives an episode itself and asks a model; here the environment answers these requests with the actions of
`step`. So an episode runs on the background event loop of this process, and waits there for each action.

1. A request is answered by exactly one action. The next request of the same conversation, or the end of the episode, is
   the result of that action.
2. A conversation only grows. An episode whose harness rewrites its history, or asks twice concurrently, fails.
3. An episode that fails is an exception of `reset` or `step`. It never counts as reward 0.
4. `reset` and `close` cancel an unfinished episode and wait until it has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium as gym

from llm_envs.errors import BridgeError, InvalidConfigError, ResetNeededError, extra_needed
from llm_envs.parsers import parse_reply, typed_calls
from llm_envs.problems import SPLITS, check_choice, split_of
from llm_envs.registration import register_task
from llm_envs.spaces import TextSpace, encodable
from llm_envs.tools.background_loop import LimitReached, capture, wait
from llm_envs.types import ToolCall, ToolResult

with extra_needed("VerifiersEnv needs verifiers 0.4: pip install 'llm-envs[verifiers]'."):
    import verifiers.v1 as vf
    from aiohttp import web
    from verifiers.v1.clients.client import SESSION_ID_HEADER
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ChatHarness", "VerifiersEnv"]

HARNESS = "llm_envs_chat"
"""Id of `ChatHarness`. verifiers finds a harness by the name of a module without dots."""
_END_S = 30.0
"""Seconds for a cancelled episode, and for the servers of a taskset, to end."""


class VerifiersEnv(gym.Env[str, str]):
    """An environment of verifiers 0.4.

    The observation is what the harness shows to its model: the task's prompt, then results of tools or the next turn of
    the user. verifiers scores a finished episode, so the last step has all of the reward.

    Args:
        config: The id of an installed taskset, or the settings of an environment in verifiers' own form: a mapping, or
            an `EnvConfig`. A role without its own harness is played by `ChatHarness`, a plain chat with the task's
            tools in this process; a role without its own runtime runs in a folder of this machine.
        split: "train" or "test".
        test_config: Settings of the taskset for "test", for one that has splits: {"split": "test"}. None: tasks are
            divided by a hash of their key, one in five for the test.
        n_tasks: How many tasks of an endless taskset, or of a long one, are used.
        timeout_s: Seconds that one step may take.
        success_at: Lowest reward that counts as a success.

    Raises:
        InvalidConfigError: If the settings are wrong, several roles would play with the policy, or a split has no task.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    blocking = True

    def __init__(
        self,
        config: str | Mapping[str, Any] | vf.EnvConfig,
        *,
        split: str = "train",
        test_config: Mapping[str, Any] | None = None,
        n_tasks: int = 1000,
        timeout_s: float = 600.0,
        success_at: float = 1.0,
    ) -> None:
        check_choice("VerifiersEnv", "split", split, SPLITS)
        settings = _with_taskset(config, test_config if split == "test" else None)
        self.config = _playable(settings)
        self.split, self.timeout_s, self.success_at = split, timeout_s, success_at
        self.observation_space, self.action_space = TextSpace(), TextSpace()
        self.system_prompt: str | None = None
        self.tools: list[dict[str, Any]] = []
        self.tool_results: tuple[ToolResult, ...] = ()
        self._env = vf.load_environment(self.config)
        kind: Any = type(self.config.taskset)
        tasks = _tasks(self.config.taskset.model_dump_json(), kind, n_tasks)
        self.tasks = tasks if test_config is not None else tuple(t for t in tasks if split_of(t.key) == split)
        if not self.tasks:
            raise InvalidConfigError(
                f"VerifiersEnv: of {len(tasks)} tasks of {self.config.env_id} none is in the split {split!r}: pass "
                "test_config=..., the taskset's settings for the test ({} for the same tasks)."
            )
        self._model = _Model(self._env)
        self._is_playing = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode of a task that the seed draws, or of `options={"problem": {"idx": 3}}`, by its index.

        Raises:
            BridgeError: If the episode fails, or ends before it asks the model.
        """
        super().reset(seed=seed)
        task = self._task(options)
        self._is_playing, self.tool_results = False, ()
        turn = self._wait(self._model.begin(task))
        if turn.episode is not None:
            raise BridgeError(f"{self.config.env_id}: the episode ended before it asked the model anything.")
        shown = list(turn.messages)
        self.system_prompt = shown.pop(0)["content"] if shown and shown[0]["role"] == "system" else None
        self.tools = list(turn.tools)
        self._is_playing = True
        return _observed(shown)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the model's request with the reply; see Gymnasium's `Env.step`.

        Raises:
            BridgeError: If the episode fails, or takes too long.
        """
        if not self._is_playing:
            raise ResetNeededError("VerifiersEnv.step was called outside an episode: call reset() first.")
        self._is_playing = False  # until there is a result
        reply, calls = _reply_message(encodable(action), self.tools)
        turn = self._wait(self._model.answer(reply))
        self.tool_results = _results(calls, turn.messages)
        observation, info = _observed(turn.messages)
        if turn.episode is None:
            self._is_playing = True
            self.tools = list(turn.tools)
            return observation, 0.0, False, False, info
        reward, truncated, about = _outcome(turn.episode)
        about["is_success"] = not truncated and reward >= self.success_at
        return observation, reward, not truncated, truncated, {**info, **about}

    def close(self) -> None:
        """End the episode and the taskset's servers."""
        self._is_playing = False
        with suppress(LimitReached):
            wait(capture(self._model.stop(), _END_S), 2 * _END_S)

    def _task(self, options: Mapping[str, Any] | None) -> vf.Task[Any]:
        if not options:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        problem = options.get("problem")
        if set(options) != {"problem"} or not isinstance(problem, Mapping) or set(problem) != {"idx"}:
            raise InvalidConfigError(
                f'VerifiersEnv: options are {options!r:.80}; known is {{"problem": {{"idx": 3}}}}.'
            )
        for task in self.tasks:
            if task.data.idx == problem["idx"]:
                return task
        raise InvalidConfigError(f"VerifiersEnv: no task of the split {self.split!r} has the index {problem['idx']!r}.")

    def _wait(self, coroutine: Any) -> _Turn:
        try:
            turn, failure = wait(capture(coroutine, self.timeout_s), self.timeout_s + _END_S)
        except LimitReached as reached:
            turn, failure = None, reached
        if failure is None:
            assert isinstance(turn, _Turn)
            return turn
        self.close()
        if isinstance(failure, BridgeError):
            raise failure
        if isinstance(failure, LimitReached):
            raise BridgeError(f"{self.config.env_id}: a step took over {self.timeout_s:g} s.") from failure
        raise BridgeError(f"{self.config.env_id}: {type(failure).__name__}: {failure}") from failure


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """A chat with the task's tools, in this process: verifiers' `null` starts a process for every turn of a user."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
        **ignored: Any,
    ) -> vf.ProgramResult:
        """Chat until a reply calls no tool."""
        import httpx
        from verifiers.v1.dialects.chat import message_to_wire

        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers_of = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            schemas, dispatch, servers = await connect_mcp({"mcpServers": servers_of}, stack)
            while True:
                body = {"model": ctx.model, "messages": messages} | ({"tools": schemas} if schemas else {})
                headers = {"Authorization": f"Bearer {secret}"}
                response = await http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if response.is_error:
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=response.text)
                reply = response.json()["choices"][0]["message"]
                messages.append({name: value for name, value in reply.items() if value is not None})
                if not reply.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                messages += [await _run_call(call, servers, dispatch) for call in reply["tool_calls"]]


async def _run_call(call: Mapping[str, Any], servers: Any, dispatch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with a tool's result, or with an error for the model."""
    name = call["function"]["name"]
    if name not in dispatch:
        content: Any = f"Error: the tool {name!r} is unknown; known are {', '.join(dispatch)}."
    else:
        try:
            content = await call_mcp(servers, dispatch, name, json.loads(call["function"]["arguments"]))
        except Exception as failure:
            content = f"Error: {type(failure).__name__}: {failure}"
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


class _Turn(NamedTuple):
    """The result of a reset or an action: the next request to the model, or the finished episode."""

    messages: Sequence[dict[str, Any]] = ()
    """New ones since the last request; all of them at the start."""
    tools: Sequence[dict[str, Any]] = ()
    episode: vf.Episode | None = None


class _Model:
    """The model behind an environment of verifiers: an API, on the background loop, whose replies `answer` gives."""

    def __init__(self, env: vf.Env[Any]) -> None:
        self._env = env
        self._key = secrets.token_urlsafe(16)
        self._serving: asyncio.Task[None] | None = None
        self._forget()

    def _forget(self) -> None:
        self._episode: asyncio.Task[Any] | None = None
        self._trace_ids: set[str] = set()
        self._requests: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = asyncio.Queue()
        self._waiting: asyncio.Future[dict[str, Any]] | None = None
        self._known: list[dict[str, Any]] = []
        """The messages of the last request, and the reply to it."""

    async def begin(self, task: vf.Task[Any]) -> _Turn:
        """Start an episode and return its first request."""
        await self._end_episode()
        if self._serving is None:
            url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(url))
            waited: list[asyncio.Future[Any]] = [url, self._serving]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not url.done():
                failed, self._serving = self._serving, None
                await failed  # raises its failure
            self._url = url.result()
        client = vf.EvalClientConfig(base_url=self._url, api_key_var="LLM_ENVS_NO_KEY")
        context = vf.ModelContext(model="policy", client=client)
        playing = self._env.run_episode(task, context, on_trace=lambda trace: self._trace_ids.add(trace.id))
        self._episode = asyncio.create_task(playing)
        return await self._next()

    async def answer(self, reply: dict[str, Any]) -> _Turn:
        """Give the reply to the last request, and return what follows."""
        assert self._waiting is not None
        self._known.append(reply)
        self._waiting.set_result(reply)
        self._waiting = None
        return await self._next()

    async def stop(self) -> None:
        """End the episode, and all servers."""
        await self._end_episode()
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait([serving])

    async def _next(self) -> _Turn:
        assert self._episode is not None
        asked = asyncio.ensure_future(self._requests.get())
        try:
            await asyncio.wait([asked, self._episode], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                return _Turn(episode=self._episode.result())
            body, self._waiting = asked.result()
        finally:
            asked.cancel()
        messages = [_plain(message) for message in body["messages"]]
        n_known = len(self._known)
        if not _same(messages[:n_known], self._known):
            await self._end_episode()
            raise BridgeError(
                f"{self._env.config.env_id}: the harness rewrote the conversation, or began another: an action then "
                "has no place in it. Play it with `AgentEnv`, or turn compaction off."
            )
        new, self._known = messages[n_known:], messages
        return _Turn(new, body.get("tools") or ())

    async def _end_episode(self) -> None:
        episode = self._episode
        if self._waiting is not None:
            self._waiting.cancel()
        if episode is not None and not episode.done():
            episode.cancel()
            await asyncio.wait([episode])
        self._forget()

    async def _serve(self, url: asyncio.Future[str]) -> None:
        """Hold the API and verifiers' servers until it is cancelled: each must end in the task that began it."""
        app = web.Application(client_max_size=2**30)
        app.router.add_post(f"/{self._key}/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            async with self._env.serving():
                url.set_result(f"http://127.0.0.1:{port}/{self._key}/v1")
                await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        is_current = request.headers.get(SESSION_ID_HEADER) in self._trace_ids
        if not is_current or self._waiting is not None or not self._requests.empty():
            # 400, which is not tried again.
            why = "a reply is still awaited" if is_current else "the episode is over"
            return web.json_response({"error": {"message": f"{why}: one request at a time."}}, status=400)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((body, answer))
        await asyncio.wait([answer])
        if answer.cancelled():
            return web.json_response({"error": {"message": "the episode is over."}}, status=400)
        return _completion(answer.result(), bool(body.get("stream")))


def _completion(message: Mapping[str, Any], is_stream: bool) -> web.Response:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    frame = {"id": "reply", "created": 0, "model": "policy"}
    choice = {"index": 0, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
    if not is_stream:
        choices = [{**choice, "message": message}]
        return web.json_response({**frame, "object": "chat.completion", "choices": choices, "usage": usage})
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or ())]
    delta = {**message, "tool_calls": calls} if calls else message
    frame["object"] = "chat.completion.chunk"
    events = [{**frame, "choices": [{**choice, "delta": delta}]}, {**frame, "choices": [], "usage": usage}]
    lines = [*map(json.dumps, events), "[DONE]"]
    return web.Response(text="".join(f"data: {line}\n\n" for line in lines), content_type="text/event-stream")


_call_numbers = itertools.count()


def _reply_message(action: str, tools: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
    """Return a reply as a message of the API, and its calls with ids. A reply that cannot be read is all text."""
    reply = parse_reply(action)
    if reply.problems or not reply.tool_calls:
        return {"role": "assistant", "content": action if reply.problems else reply.content}, ()
    typed = typed_calls(reply.tool_calls, tools)
    calls = tuple(ToolCall(c.name, c.arguments, f"call_{next(_call_numbers)}") for c in typed)
    listed = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(dict(c.arguments))}}
        for c in calls
    ]
    return {"role": "assistant", "content": reply.content, "tool_calls": listed}, calls


def _results(calls: Sequence[ToolCall], messages: Sequence[Mapping[str, Any]]) -> tuple[ToolResult, ...]:
    outputs = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    return tuple(
        ToolResult(c.name, c.arguments, outputs[c.id], success=not outputs[c.id].startswith("Error"))
        for c in calls
        if c.id in outputs
    )


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose content is one text.

    Raises:
        BridgeError: If it has an image, or anything else that is not text.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        if any(part.get("type") != "text" for part in content):
            raise BridgeError(f"a message has {[part.get('type') for part in content]}; a policy here reads only text.")
        content = "\n".join(part["text"] for part in content)
    return {**{name: value for name, value in message.items() if value is not None}, "content": encodable(content)}


def _same(messages: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether messages are the known ones; a harness may add or drop fields such as `name`."""

    def essence(message: Mapping[str, Any]) -> tuple[Any, ...]:
        return message["role"], message["content"].strip(), [call["id"] for call in message.get("tool_calls") or ()]

    return [essence(m) for m in messages] == [essence(m) for m in known]


def _observed(messages: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return messages as an observation and an info."""
    kept = ("role", "content", "name", "tool_call_id")
    listed = [{name: message[name] for name in kept if name in message} for message in messages]
    observation = "\n".join(message["content"] for message in listed)
    return observation, {"messages": listed} if listed else {}


def _outcome(episode: vf.Episode) -> tuple[float, bool, dict[str, Any]]:
    """Return the reward of a finished episode, whether a limit of verifiers ended it, and its parts.

    Raises:
        BridgeError: If it failed.
    """
    failures = [*episode.errors, *(failure for trace in episode.traces for failure in trace.errors)]
    if not episode.ok or failures:
        told = "; ".join(f"{failure.type}: {failure.message}" for failure in failures) or "it did not complete"
        raise BridgeError(f"{episode.env.id}: {told}")
    rewards = {name: r.value for trace in episode.traces for name, r in trace.rewards.items() if r is not None}
    metrics = {name: m for trace in episode.traces for name, m in trace.metrics.items() if m is not None}
    about = {"reward_components": rewards} if rewards else {}
    is_truncated = any(trace.is_truncated for trace in episode.traces)
    return sum(trace.reward for trace in episode.traces), is_truncated, {**about, "metrics": metrics}


def _with_taskset(config: str | Mapping[str, Any] | vf.EnvConfig, changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of an environment as a mapping, with changes to its taskset."""
    if not isinstance(config, str | Mapping | vf.EnvConfig) or not config:
        raise InvalidConfigError(
            f"VerifiersEnv: config is {config!r:.80}; it must be the id of a taskset, an EnvConfig, or its settings."
        )
    if isinstance(config, str):
        settings: dict[str, Any] = {"taskset": {"id": config}}
    else:
        settings = dict(config.model_dump(exclude_unset=True) if isinstance(config, vf.EnvConfig) else config)
    taskset = settings.get("taskset") or {}
    taskset = taskset.model_dump(exclude_unset=True) if isinstance(taskset, vf.TasksetConfig) else dict(taskset)
    return {**settings, "taskset": {**taskset, **(changes or {})}}


def _playable(settings: Mapping[str, Any]) -> vf.EnvConfig:
    """Return the configuration of an environment whose roles can be played here."""
    sys.modules.setdefault(HARNESS, sys.modules[__name__])
    try:
        config = vf.resolve_env_config(dict(settings))
    except (ImportError, ValueError, AttributeError, TypeError) as failure:
        raise InvalidConfigError(f"VerifiersEnv: {failure}") from failure
    roles = {name: role for name, role in config if isinstance(role, vf.AgentConfig)}
    ours = [name for name, role in roles.items() if role.client is None]
    if len(ours) != 1:
        raise InvalidConfigError(
            f"VerifiersEnv: {config.env_id} has the roles {', '.join(roles)}, and the policy would play "
            f"{', '.join(ours) or 'none'}; it can play one. Give the others a `client` and a `model`."
        )
    changes: dict[str, Any] = {}
    bundled = vf.default_harness_id(config.taskset.id) != "bash"
    if roles[ours[0]].harness is None and not bundled:
        changes["harness"] = vf.HarnessConfig(id=HARNESS)
    if "runtime" not in roles[ours[0]].model_fields_set:
        changes["runtime"] = vf.SubprocessConfig()
    return config.model_copy(update={ours[0]: roles[ours[0]].model_copy(update=changes)})


@lru_cache(maxsize=8)
def _tasks(config: str, kind: type[vf.TasksetConfig], n_tasks: int) -> tuple[vf.Task[Any], ...]:
    """Return the tasks of a taskset, loaded once in a process: verifiers plays one task object many times too."""
    taskset = vf.load_taskset(kind.model_validate_json(config))
    return tuple(taskset.take(n_tasks))


register_task("verifiers/Taskset-v0", VerifiersEnv)
