"""An agent as an environment: the collector, the trainers and `evaluate` take it where they take an environment.

    env = AgentEnv(agent, [{"question": "3 * 4?", "answer": "12"}], reward_fn)
    Collector(env, policy, codec=policy.codec).collect(8, group_size=4)

1. Each episode has its own session, with an address that only its agent knows.
2. The agent runs in a thread, or in one of `workers` (see `worker`). There it ends with the episode; a thread that does
   not is left behind.
3. A failure of the agent, the policy or the environment is data (`status="errored"`), never a reward. An agent that
   never calls the model leaves an unscored episode, and so does a reward function that fails.
4. A limit cuts the episode: the agent is cancelled, and the reward function gets the result None.
5. After the last episode of an event loop, no server is left in it.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar

from llm_envs.agents.job import Agent, AgentJob, AgentRun, Assignment, Playing
from llm_envs.agents.sandboxed import SandboxedAgent
from llm_envs.agents.server import Endpoint, PolicyServer
from llm_envs.agents.session import PolicySession
from llm_envs.agents.task import TaskState, as_rollout_error
from llm_envs.agents.worker import AgentHost, DeclaredEnv, WorkerJob, is_json
from llm_envs.chat.context import Codec, ContextFn
from llm_envs.errors import InvalidConfigError, JudgeError
from llm_envs.policies.base import Policy
from llm_envs.registration import task_spec
from llm_envs.rewards.base import Score
from llm_envs.rewards.functions import check_function
from llm_envs.rollout.converse import score_trajectory
from llm_envs.rollout.episode import errored_trajectory, policy_kind
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.rollout.token_transcript import History
from llm_envs.rollout.workers.pool import WorkerPool, WorkerRunner
from llm_envs.rollout.workers.runner import Env, EnvMaker
from llm_envs.rollout.workers.wire import by_value
from llm_envs.sources.source import EnvFactory, EpisodeSpec, SeedSource
from llm_envs.tracking.stats import CollectorStats
from llm_envs.types import RolloutError, SamplingParams, StopReason, Trajectory

__all__ = ["IDLE_S", "AgentEnv", "AgentReward"]

Job = AgentJob | WorkerJob

AgentReward = Callable[[Any, Trajectory], Score | Awaitable[Score]]
"""(the agent's result, the episode) -> its reward, or components to sum; None leaves it unscored. The result is None
if a limit cut the episode. A plain function runs on the event loop, so it must be quick."""

IDLE_S = 600.0
"""Seconds without a request after which an agent counts as hung, if `RolloutLimits.max_step_s` does not say."""
_END_S = 2.0
"""Seconds that a cancelled agent has to end."""


class AgentEnv:
    """An agent, its tasks, and the reward of its episodes. Pickles if its functions do.

    Args:
        agent: (task, client) -> result, plain or asynchronous; or a command line (see `Agent`); or the name of a
            preset, or a `SandboxedAgent`.
        tasks: A list of tasks, each a dict of JSON types that the agent gets as it is; or an environment (an id, or a
            function that makes one), then the agent gets an `EnvTask` and acts by its `step`. If the agent returns a
            text before the environment is over, that is its last action. A command gets `{"messages": ..., "tools":
            ...}`.
        reward_fn: The reward of an episode, (result, trajectory) -> reward; it goes to the last turn. The task of a
            list is `trajectory.metadata["task"]`. None: the environment's own rewards.
        test_tasks: The list for `split="test"`.
        env_id: Name in trajectories; None: "agent", or the environment's id or name.
        success_at: Lowest reward of `reward_fn` that counts as a success.
        create_client: Makes the client that a function gets, from an `Endpoint`; None: one of the package `openai`.
        trains_children: Whether tokens of the agent's children (a subagent, a title) are trained on (see
            `PolicySession`).

    Raises:
        InvalidConfigError: If an argument is wrong.
        UnknownTaskError: If no environment has the id.
    """

    may_fork: ClassVar[bool] = True
    """Whether an episode may have several rows: an agent may rewrite its history."""
    default_step_s: ClassVar[float] = IDLE_S
    """The limit of time between two requests, if `RolloutLimits.max_step_s` does not say."""

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[Mapping[str, Any]] | str | EnvFactory,
        reward_fn: AgentReward | None = None,
        *,
        test_tasks: Sequence[Mapping[str, Any]] | None = None,
        env_id: str | None = None,
        success_at: float = 1.0,
        create_client: Callable[[Endpoint], Any] | None = None,
        trains_children: bool = False,
    ) -> None:
        if isinstance(agent, str):
            agent = SandboxedAgent(agent)
        _check_agent(agent)
        if reward_fn is not None:
            check_function(reward_fn, "AgentEnv: reward_fn", ("result", "trajectory"), may_wait=True)
        self.trains_children = trains_children
        self.agent, self.reward_fn, self.success_at = agent, reward_fn, success_at
        self.create_client = create_client
        self.tasks: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
        self._task_env: str | EnvFactory | None = None
        if isinstance(tasks, str) or callable(tasks):
            if isinstance(tasks, str):
                task_spec(tasks)
            if test_tasks is not None:
                raise InvalidConfigError("AgentEnv: an environment has its own splits; leave out test_tasks.")
            self._task_env = tasks
        else:
            if reward_fn is None:
                raise InvalidConfigError("AgentEnv: a list of tasks needs reward_fn, (result, trajectory) -> reward.")
            given = {"train": _checked("tasks", tasks)}
            if test_tasks is not None:
                given["test"] = _checked("test_tasks", test_tasks)
            self.tasks = given
        named = "agent" if self._task_env is None else SeedSource(self._task_env).choices[0].env_id
        self.env_id = named if env_id is None else env_id
        self._run = AgentRun(agent, create_client, None if self._task_env is None else self._maker({}).target)
        # One object for all episodes: a worker process loads it once.
        self._host = partial(AgentHost, replace(self._run, target=by_value(self._run.target)), reward_fn is not None)

    def __call__(self, **kwargs: Any) -> Env:
        """Return an environment with the declarations of this one; it cannot be stepped."""
        if self._task_env is not None:
            return self._maker(kwargs)()
        return DeclaredEnv(len(self._tasks_of(kwargs)))

    def check_play(
        self, policy: Policy, codec: Codec | None, context_fn: ContextFn | None, workers: WorkerPool | None
    ) -> None:
        """Check that a collector can play it.

        Raises:
            InvalidConfigError: If the policy takes no token ids, or a setting has no meaning for an agent.
        """
        if policy_kind(policy, codec) != "token":
            raise InvalidConfigError(
                f"{self.env_id}: {type(policy).__name__} takes no token ids, so it cannot answer an agent's requests: "
                "give a token policy (TransformersPolicy, VLLMEnginePolicy, VLLMServerPolicy)."
            )
        if context_fn is not None:
            raise InvalidConfigError(f"{self.env_id}: the agent chooses what the model sees; leave out context_fn.")
        if workers is None:
            return
        if workers.is_remote:
            raise InvalidConfigError(
                f"{self.env_id}: an agent asks a server on this machine; leave out env_servers, and give workers."
            )
        workers.check(self._host_maker)

    async def play_episode(
        self,
        spec: EpisodeSpec,
        policy: Policy,
        *,
        codec: Codec | None = None,
        sampling: SamplingParams | None = None,
        limits: RolloutLimits | None = None,
        history: History = "append",
        run_seed: int = 0,
        gate: PauseGate | None = None,
        workers: WorkerPool | None = None,
        stats: CollectorStats | None = None,
        on_session: Callable[[PolicySession], None] | None = None,
    ) -> Trajectory:
        """Play one episode to its end: `rollout.play_episode` for an agent, with the same arguments.

        The policy is a token policy; requests cannot change its `sampling`. `RolloutLimits.max_step_s` limits the time
        between two requests, `max_turns` the requests. Without `workers` the agent runs in a thread. `on_session` is
        called with the session before the agent starts.
        """
        self.check_play(policy, codec, None, None)
        assert codec is not None
        sampling, limits, stats = sampling or SamplingParams(), limits or RolloutLimits(), stats or CollectorStats()
        runner = None if workers is None else workers.runner(self._host_maker, None)
        try:
            if runner is not None:
                try:
                    await runner.open()  # before the session, whose clock must not count a worker's start
                except Exception as error:
                    return errored_trajectory(spec, error, "agent")
            session = PolicySession(
                spec,
                policy,
                codec,
                sampling,
                limits,
                history,
                run_seed,
                gate,
                stats,
                marks=self.agent.marks if isinstance(self.agent, SandboxedAgent) else None,
                trains_children=self.trains_children,
            )
            if on_session is not None:
                on_session(session)
            return await self._played(session, runner)
        finally:
            if runner is not None:
                runner.close()

    async def _played(self, session: PolicySession, runner: WorkerRunner | None) -> Trajectory:
        spec, name, state = session.spec, secrets.token_urlsafe(16), TaskState(session)
        async with _server(session.policy, session.codec) as server:
            task = {} if self.tasks is None else self._given(spec)
            given = Assignment(server.add(name, session), task, spec.env_kwargs, spec.seed, spec.options)
            job = AgentJob(partial(self._run, given, state)) if runner is None else WorkerJob(runner, given, state)
            try:
                await _watch(job, session)
            finally:
                session.close()
                job.cancel()
                await asyncio.wait({job.done}, timeout=_END_S)
                server.remove(name)
        return await self._finished(job, session, state, task)

    async def _finished(
        self, job: Job, session: PolicySession, state: TaskState, task: Mapping[str, Any]
    ) -> Trajectory:
        error, is_judge = _error_of(job, session, state)
        is_cut = session.limit is not None and (not job.done.done() or job.done.exception() is not None)
        result = job.done.result() if job.done.done() and job.done.exception() is None else None
        reason = StopReason.TERMINATED
        if error is not None:
            reason = StopReason.ERROR
        elif is_cut and session.limit is not None:
            reason = session.limit[0]
        elif state.is_truncated:
            reason = StopReason.ENV_TRUNCATED
        if reason not in (StopReason.TERMINATED, StopReason.ERROR):
            session.final = state.observed
        trajectory = session.trajectory(
            stop_reason=reason,
            is_success=state.is_success,
            error=error,
            unscored_because="a judge failed" if is_judge else None,
            metadata=({"task": task} if task else {})
            | ({"result": result} if result is not None and is_json(result) else {}),
        )
        if self.reward_fn is None or trajectory.status != "ok":
            return trajectory
        return await score_trajectory(trajectory, partial(self.reward_fn, result), self.success_at)

    def _maker(self, kwargs: Mapping[str, Any]) -> EnvMaker:
        env = self._task_env
        assert env is not None
        return EnvMaker(env, kwargs) if isinstance(env, str) else EnvMaker(self.env_id, kwargs, env)

    @property
    def _host_maker(self) -> EnvMaker:
        return EnvMaker(self.env_id, {}, self._host)

    def _given(self, spec: EpisodeSpec) -> Mapping[str, Any]:
        problem = (spec.options or {}).get("problem")
        if problem is not None:
            return dict(problem)
        return dict(Random(spec.seed).choice(self._tasks_of(spec.env_kwargs)))

    def _tasks_of(self, kwargs: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        split = kwargs.get("split", "train")
        assert self.tasks is not None
        if split == "test" and split not in self.tasks:
            raise InvalidConfigError(
                f"{self.env_id} has no test tasks, which split='test' plays: give AgentEnv(test_tasks=...), or play "
                "the split 'train'."
            )
        if set(kwargs) - {"split"} or split not in self.tasks:
            raise InvalidConfigError(
                f"{self.env_id}: the arguments are {dict(kwargs)}, but it takes only split, one of "
                f"{', '.join(self.tasks)}."
            )
        return self.tasks[split]


async def _watch(job: Job, session: PolicySession) -> None:
    """Return when the agent has ended, no request will be answered any more, or a limit of time is reached."""
    over = asyncio.ensure_future(session.is_over.wait())
    clock, limits = session.sampler.clock, session.limits
    idle_s = limits.max_step_s or IDLE_S
    try:
        while not job.done.done() and not over.done():
            left_s = idle_s if session.n_active else session.last_active_s + idle_s - clock.seconds
            episode_left_s = float("inf") if limits.max_episode_s is None else limits.max_episode_s - clock.seconds
            if episode_left_s <= 0:
                session.limit = (StopReason.TIMEOUT, f"max_episode_s={limits.max_episode_s:g}")
                return
            if left_s <= 0:
                session.hung_s = idle_s
                return
            await asyncio.wait(
                {job.done, over}, timeout=min(left_s, episode_left_s), return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        over.cancel()


def _error_of(job: Job, session: PolicySession, state: TaskState) -> tuple[RolloutError | None, bool]:
    """Return the failure of an episode, if any, and whether it is a judge's. The cause comes before its effects."""
    if session.failure is not None:
        return session.failure, False
    if state.error is not None:
        return state.error, state.is_judge
    if session.hung_s is not None:
        message = f"no request for {session.hung_s:g} s, and the agent has not ended."
        return RolloutError("TimeoutError", message, "agent"), False
    if session.limit is None and job.done.done() and (failure := job.done.exception()) is not None:
        return as_rollout_error(failure, "agent"), isinstance(failure, JudgeError)
    return None, False


@asynccontextmanager
async def _server(policy: Policy, codec: Codec) -> AsyncIterator[PolicyServer]:
    """Lend the event loop's server; the first episode starts it and the last one stops it."""
    loop = asyncio.get_running_loop()
    shared = _shared.get(loop)
    if shared is None:
        shared = _shared[loop] = _Shared(PolicyServer(policy, codec=codec, opens_sessions=False))
    shared.n_users += 1
    try:
        async with shared.starting:
            if not shared.is_started:
                await shared.server.start()
                shared.is_started = True
        yield shared.server
    finally:
        shared.n_users -= 1
        if not shared.n_users:
            shared.server.stop()
            _shared.pop(loop, None)


class _Shared:
    """The server of an event loop."""

    def __init__(self, server: PolicyServer) -> None:
        self.server, self.n_users, self.is_started = server, 0, False
        self.starting = asyncio.Lock()


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = weakref.WeakKeyDictionary()


def _check_agent(agent: Any) -> None:
    is_command = isinstance(agent, (list, tuple)) and agent and all(isinstance(word, str) for word in agent)
    if not callable(agent) and not is_command and not isinstance(agent, Playing):
        raise InvalidConfigError(
            f"AgentEnv: the agent is {agent!r:.80}; it must be a function (task, client), the name of a preset, or a "
            'command as a list of words: ["node", "agent.js"].'
        )


def _checked(name: str, tasks: Any) -> tuple[Mapping[str, Any], ...]:
    listed = tuple(tasks) if not isinstance(tasks, Mapping) else ()
    if not listed or not all(isinstance(task, Mapping) and is_json(dict(task)) for task in listed):
        raise InvalidConfigError(f"AgentEnv: {name} is {tasks!r:.80}; it must be a list of dicts of JSON types.")
    return listed
