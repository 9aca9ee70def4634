"""Plays one episode: asks the policy, steps the environment, and records tokens, rewards and failures.

Every trajectory satisfies:

1. Sampled ids are appended unchanged; after the first prompt only new observations are encoded. If the model must see
   a changed history, a new row begins. Each turn's tokens are in exactly one row.
2. A failure of the environment or the policy is data (`status="errored"`), and so is one of a judge (`JudgeError`,
   `status="unscored"`). A failure is never a reward. `CancelledError` propagates.
3. A turn cut by a token limit is still stepped.
4. A summary (`Summarize`) is a turn that the environment never sees: its reward is 0, and limits of turns leave it out.
5. If a limit or the environment truncates, the final observation is in the row with mask False. If the task
   terminates, the model never reads it: it is in `metadata["final_observation"]` instead.
6. Each span of a row has its turn and each turn its span, except summaries that are not trained on. A reply whose step
   failed is in `messages`, not in the row.
7. The environment is always closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from llm_envs.chat.context import Codec, ContextFn, observed_messages, seen_by, with_call_ids
from llm_envs.chat.summarize import Summarize
from llm_envs.errors import (
    ContextFullError,
    EnvContractError,
    InvalidConfigError,
    JudgeError,
    NoEnvServerError,
    TimeLimitError,
)
from llm_envs.parsers import parse_reply
from llm_envs.policies.base import EpisodicPolicy, Policy
from llm_envs.rollout.checks import (
    check_components,
    check_results,
    check_success,
    check_tools,
    count_quirks,
    note_expected,
)
from llm_envs.rollout.fork_policy import fork_policy, from_turn
from llm_envs.rollout.limits import RolloutLimits, row_limit, turn_budget
from llm_envs.rollout.pause_gate import PauseGate, Stopwatch
from llm_envs.rollout.token_transcript import History, TokenTranscript
from llm_envs.rollout.turn import SampledTurn, TimeIsUp, TurnSampler
from llm_envs.rollout.workers.pool import WorkerPool
from llm_envs.rollout.workers.runner import Env, EnvRunner, Runner, env_attribute
from llm_envs.rollout.workers.wire import error_text
from llm_envs.sources.mixture import derive_seed
from llm_envs.sources.source import EpisodeSpec
from llm_envs.tracking.spans import current_tracing, turn_span, write_tool_spans
from llm_envs.tracking.stats import CollectorStats
from llm_envs.types import Message, RolloutError, SamplingParams, Status, StopReason, Trajectory, Turn

__all__ = ["errored_trajectory", "play_episode", "policy_kind"]


def policy_kind(
    policy: Policy, codec: Codec | None, context_fn: ContextFn | None = None
) -> Literal["token", "chat", "env"]:
    """Return which of the three protocols a policy follows.

    Raises:
        InvalidConfigError: If it follows none, is a token policy without a codec, or cannot write the summaries that
            `context_fn` asks for.
    """
    if isinstance(context_fn, Summarize):
        if codec is None:
            raise InvalidConfigError(
                f"Summarize(history_tokens={context_fn.history_tokens}) counts tokens: pass codec=ChatCodec(tokenizer) "
                "(for a chat API, a tokenizer like its model's), or use create_window."
            )
        if not (hasattr(policy, "sample") or hasattr(policy, "reply")):
            raise InvalidConfigError(
                f"{type(policy).__name__} reads the environment and no messages, so it cannot be asked for a summary: "
                "take a token or chat policy, or leave out context_fn."
            )
    # Not `isinstance`: on Python 3.11 a runtime protocol takes 25 µs to check, a fifth of a scripted episode.
    if hasattr(policy, "sample"):
        if codec is None:
            raise InvalidConfigError(f"{type(policy).__name__} takes token ids: pass codec=ChatCodec(tokenizer).")
        return "token"
    if hasattr(policy, "reply"):
        return "chat"
    if hasattr(policy, "act"):
        return "env"
    raise InvalidConfigError(f"{policy!r} is not a policy: it has none of the methods `sample`, `reply` and `act`.")


async def play_episode(
    env: Env | Callable[[], Env] | Runner,
    spec: EpisodeSpec,
    policy: Policy,
    *,
    codec: Codec | None = None,
    sampling: SamplingParams | None = None,
    limits: RolloutLimits | None = None,
    history: History = "append",
    context_fn: ContextFn | None = None,
    run_seed: int = 0,
    gate: PauseGate | None = None,
    workers: WorkerPool | None = None,
    stats: CollectorStats | None = None,
) -> Trajectory:
    """Play one episode to its end.

    Args:
        env: The environment, a function that makes it, or what runs it (`Runner`). It is closed afterwards.
        spec: Which episode: seed, group, member, options, and the stored turns that it repeats first.
        policy: A token, chat or env policy. If it has `for_episode`, that gives the policy of this episode.
        codec: Encodes observations. Without one, text-only policies leave no rows; with one, their replies become rows
            with mask True and NaN log-probabilities.
        sampling: How token and chat policies sample; the budgets lower its `max_new_tokens`.
        limits: The episode's budgets.
        history: "append": the model sees its earlier replies exactly as it wrote them. "template": it sees them as the
            chat template renders them, in a new row where that differs.
        context_fn: Chooses which messages the model sees, or asks the policy for a summary of them (`Summarize`). A new
            row begins where the model sees a changed history.
        run_seed: Turn seeds are hashed from (`sampling.seed` or else this, group, member, turn).
        gate: Pauses the policy. While it is closed, the episode keeps its state and its clock pauses.
        workers: Processes to run environments in; None runs them in this process.
        stats: Counts the sampled tokens after each piece of a turn, and the times of policy and environment.

    Returns:
        The trajectory; a failure is in its `error`.
    """
    kind = policy_kind(policy, codec, context_fn)
    sampling, limits = sampling or SamplingParams(), limits or RolloutLimits()
    seed_base = run_seed if sampling.seed is None else sampling.seed
    if hasattr(policy, "for_episode"):
        episodic = cast("EpisodicPolicy", policy)
        policy = episodic.for_episode(derive_seed(seed_base, spec.group_id, spec.member))
    if spec.fork is not None:
        policy = fork_policy(policy, kind, *spec.fork)
    transcript = TokenTranscript(codec, history)
    target: Any = env  # workers take only an `EnvMaker`, and raise otherwise
    is_run = hasattr(env, "open")
    runner: Runner = target if is_run else (EnvRunner if workers is None else workers.runner)(target, limits.max_step_s)
    stats = stats or CollectorStats()
    sampler = TurnSampler(policy, spec, codec, limits, seed_base, gate, stats.add_tokens)
    episode = _Episode(spec, kind, transcript, sampling, limits, runner, sampler, context_fn, stats)
    try:
        await episode.run()
    except _Failure as failure:
        episode.fail(failure)
    finally:
        episode.runner.close()  # not awaited: a second cancellation could otherwise leave the environment open
    return episode.trajectory() if spec.fork is None else from_turn(episode.trajectory(), *spec.fork)


def errored_trajectory(spec: EpisodeSpec, error: BaseException, where: str) -> Trajectory:
    """Return the trajectory of an episode that failed before it left any data."""
    return Trajectory(
        env_id=spec.env_id,
        env_kwargs=dict(spec.env_kwargs),
        seed=spec.seed,
        group_id=spec.group_id,
        member=spec.member,
        messages=(),
        tools=(),
        rows=(),
        turns=(),
        terminated=False,
        truncated=False,
        stop_reason=StopReason.ERROR,
        status="errored",
        is_success=None,
        error=_as_data(error, where),
    )


def _as_data(error: BaseException, where: str) -> RolloutError:
    kind = type(error).__name__
    return RolloutError(kind, error_text(error) or kind, where)


class _Failure(Exception):
    """An exception of the environment or the policy, on its way to becoming data."""

    def __init__(self, error: BaseException, where: str) -> None:
        super().__init__(error_text(error))
        self.error, self.where = error, where


class _OutOfTokens(Exception):
    """A token budget has no room for the next turn: the episode ends before it."""


@contextmanager
def _attribute_errors_to(where: str) -> Iterator[None]:
    """Turn exceptions raised inside the block into a `_Failure` there, except a policy's lack of room or time.

    A lack of environment servers passes too: every other episode lacks them as well, so the run must end. So does
    a context function that exceeds `max_function_s`.
    """
    try:
        yield
    # Only exceptions from outside pass: Ctrl-C, a cancellation, and GeneratorExit when this coroutine is closed (the
    # runner has already converted one that an environment raised).
    except (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # also SystemExit: a tool that calls exit() ends its episode, not the run
        # Not a subclass: an error of this name that a worker reports (`wire.revive`) ends its episode, not the run.
        ends_the_run = (NoEnvServerError, "env.make"), (TimeLimitError, "policy")
        has_no_room = where == "policy" and isinstance(error, ContextFullError | TimeIsUp)
        if has_no_room or (type(error), where) in ends_the_run:
            raise
        raise _Failure(error, where) from error


@dataclass(slots=True)
class _Episode:
    """The state of a running episode between turns."""

    spec: EpisodeSpec
    kind: Literal["token", "chat", "env"]
    transcript: TokenTranscript
    sampling: SamplingParams
    limits: RolloutLimits
    runner: Runner
    sampler: TurnSampler
    context_fn: ContextFn | None = None
    stats: CollectorStats = field(default_factory=CollectorStats)
    env: Env | None = None
    observation: str = ""
    messages: list[Message] = field(default_factory=list)
    view: tuple[Message, ...] | None = None
    """The messages that the policy sees; None is all of them."""
    n_first: int = 0
    """Messages before the first turn."""
    observed: tuple[Message, ...] = ()
    """The last observation, as messages."""
    observed_by_policy: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason = StopReason.ERROR
    is_success: bool = False
    error: RolloutError | None = None
    is_unjudged: bool = False
    """Whether the error came from a judge."""
    metadata: dict[str, Any] = field(default_factory=dict)
    policy_s: float = 0.0
    env_s: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    async def run(self) -> None:
        await self._reset()
        while not (reason := self._limit_reached()):
            with turn_span(len(self.turns)):
                self.sampler.within = current_tracing()
                if await self._play_turn():
                    return None
        return self._cut(*reason)

    async def _play_turn(self) -> bool:
        """Ask the policy and step the environment; return whether the episode is over."""
        try:
            # Inside the `try`: an asynchronous context function can use up the episode's time too.
            await self._show_observation()
            budget = turn_budget(self.limits, self.sampling.max_new_tokens, *self._row_use())
            reply = await self._ask(budget)
        except _OutOfTokens as error:
            self._cut(StopReason.MAX_TOKENS, str(error))
        except ContextFullError as error:
            self._cut(StopReason.CONTEXT_FULL if self.turns else StopReason.PROMPT_TOO_LONG, str(error))
        except TimeIsUp as error:
            self._cut(StopReason.TIMEOUT, str(error))
        else:
            return await self._step(reply)
        return True

    async def _reset(self) -> None:
        started = time.perf_counter()
        with self.stats.env_time, _attribute_errors_to("env.make"):
            self.env = await self.runner.open()
        with self.stats.env_time, _attribute_errors_to("env.reset"):
            options = None if self.spec.options is None else dict(self.spec.options)
            self.observation, info = await self.runner.reset(self.spec.seed, options)
            system_prompt = env_attribute(self.env, "system_prompt", None)
            if system_prompt and not isinstance(system_prompt, str):
                raise EnvContractError(f"system_prompt is {system_prompt!r:.80}; it must be a str.")
            self.messages = [Message("system", system_prompt)] if system_prompt else []
            self.messages += observed_messages(self.observation, info)
            self.n_first = len(self.messages)
            self.tools = check_tools(env_attribute(self.env, "tools", ()) or ())
        self.env_s += time.perf_counter() - started
        with _attribute_errors_to("policy"):
            self.transcript.begin(self.messages, self.tools)

    def _limit_reached(self) -> tuple[StopReason, str] | None:
        limits = self.limits
        n_steps = sum(not turn.is_summary for turn in self.turns)
        if limits.max_turns is not None and n_steps >= limits.max_turns:
            return StopReason.MAX_TURNS, f"max_turns={limits.max_turns}"
        if limits.max_episode_s is not None and self.sampler.clock.seconds > limits.max_episode_s:
            return StopReason.TIMEOUT, f"max_episode_s={limits.max_episode_s:g}"
        return None

    async def _show_observation(self) -> None:
        """Pass the last observation on to the policy's context, after the context function."""
        # Compared by identity, because two observations may be equal. Not done in `_step`: an observation that ends the
        # episode is encoded without a generation prompt (see `_cut`).
        if self.observed is self.observed_by_policy:
            return
        context_fn, view = self.context_fn, None
        with _attribute_errors_to("policy"):
            if context_fn is not None and not isinstance(context_fn, Summarize):
                view = await self.sampler.in_time(lambda: seen_by(context_fn, self.messages))
            self.transcript.append_observation(self.observed, view)
        self.view = view
        if isinstance(context_fn, Summarize):
            await self._summarize(context_fn)
        self.observed_by_policy = self.observed

    async def _summarize(self, summarize: Summarize) -> None:
        """Ask the policy for a summary of its history if that has grown too long, and begin a new row with it."""
        transcript = self.transcript
        view = transcript.view
        if not summarize.is_due(len(transcript.row), sum(m.role == "assistant" for m in view[self.n_first :])):
            self.view = view
            return
        request = Message("user", summarize.prompt)
        with _attribute_errors_to("policy"):
            transcript.append_request(self.observed, request)
        self.view = (*view, request)
        reply = await self._ask(turn_budget(RolloutLimits(), summarize.summary_tokens, *self._row_use()))
        self.messages += [request, reply.message]
        transcript.append_reply(reply.message, reply.ids, reply.logps, reply.kept, trained=summarize.trained)
        fields = {"reward": 0.0, "components": {}, "is_summary": True, "seconds": {"policy": reply.seconds}}
        self._add_turn(reply, has_span=summarize.trained, **fields)
        parsed = parse_reply(reply.text)  # without the thinking before it
        self.view = summarize.shorten(view[: self.n_first], view[self.n_first :], parsed.content or reply.text)
        with _attribute_errors_to("policy"):
            transcript.begin_compacted(self.view)

    def _row_use(self) -> tuple[int, int | None]:
        """Return the tokens of the row so far, and the most that it may have."""
        row = self.transcript.row
        return len(row), row_limit(self.limits, row.prompt_length, self.transcript.earlier_tokens)

    async def _ask(self, budget: int) -> SampledTurn:
        """Ask the policy for a turn of at most so many tokens.

        Raises:
            _OutOfTokens: If no turn, or not this one, fits in the episode's budgets.
        """
        n_tokens, limit = self._row_use()
        limits = self.limits
        named = f"max_episode_tokens={limits.max_episode_tokens}, max_completion_tokens={limits.max_completion_tokens}"
        if budget < 1:
            raise _OutOfTokens(f"{n_tokens} tokens before the turn, {named}")
        clock = Stopwatch(self.sampler.gate)
        params = self.sampling
        if params.max_new_tokens != budget:
            params = replace(params, max_new_tokens=budget)
        with self.stats.policy_time, _attribute_errors_to("policy"):
            reply = await self._sample_turn(params)
        reply.seconds = clock.seconds
        self.policy_s += reply.seconds
        # A token policy has kept to its budget. The reply of another policy is encoded afterwards, and may not fit.
        if limit is not None and reply.ids is not None and n_tokens + len(reply.ids) > limit:
            raise _OutOfTokens(f"the reply does not fit in {named}")
        return reply

    async def _sample_turn(self, params: SamplingParams) -> SampledTurn:
        turn = len(self.turns)
        if self.kind == "token":
            return await self.sampler.sample(self.transcript.row.ids, params, turn)
        if self.kind == "chat":
            return await self.sampler.reply(self.view or tuple(self.messages), self.tools, params, turn)
        return await self.sampler.act(cast("Env", self.env), self.observation)

    async def _step(self, reply: SampledTurn) -> bool:
        """Step the environment; return whether the episode is over."""
        self.messages.append(reply.message)
        # Before the step, because `_add_turn` records the row and span of this reply.
        self.transcript.append_reply(reply.message, reply.ids, reply.logps, reply.kept)
        started, began_s = time.perf_counter(), time.time()
        try:
            with self.stats.env_time, _attribute_errors_to("env.step"):
                observation, reward, terminated, truncated, info = await self.runner.step(reply.text)
                observed = observed_messages(observation, info)
                is_success = check_success(info)
                seconds = {"policy": reply.seconds, "env": time.perf_counter() - started}
                components = check_components(info, reward)
                results = check_results(env_attribute(cast("Env", self.env), "tool_results", ()) or ())
                self._add_turn(reply, reward=reward, components=components, tool_results=results, seconds=seconds)
                self.env_s += seconds["env"]
        except _Failure:
            self.transcript.drop_reply()  # keeps invariant 6: no span without its turn
            raise
        write_tool_spans(self.turns[-1].tool_results, began_s)
        count_quirks(info, self.metadata)
        self.observation = observation
        if terminated:
            self.stop_reason = StopReason.TERMINATED
            note_expected(info, self.metadata)
            if observation:
                self.metadata["final_observation"] = observation
        else:
            observed = with_call_ids(observed, reply.message)
            self.messages += observed
            self.observed = observed
        if truncated and not terminated:
            self._cut(StopReason.ENV_TRUNCATED, "")
        self.is_success = is_success
        return terminated or truncated

    def _add_turn(self, reply: SampledTurn, *, has_span: bool = True, **fields: Any) -> None:
        """Add the turn of the reply that was appended last; `fields` are the fields of `Turn` that it does not know."""
        has_span = has_span and reply.ids is not None
        turn = Turn(
            row=self.transcript.row_index if has_span else -1,
            span=self.transcript.row.n_spans - 1 if has_span else -1,
            finish_reason=reply.finish_reason,
            weight_versions=reply.weight_versions,
            **fields,
        )
        self.turns.append(turn)

    def _cut(self, reason: StopReason, why: str) -> None:
        self.stop_reason = reason
        with _attribute_errors_to("policy"):
            self.transcript.append_final_observation(self.observed)
            self.transcript.cut(self._row_use()[1])
            # Also at the model's limit: a trainer could not score a longer row.
            self.transcript.cut(getattr(self.sampler.policy, "max_model_len", None))
        if why and not self.turns:
            self.metadata["unscored_because"] = why

    def fail(self, failure: _Failure) -> None:
        self.stop_reason = StopReason.ERROR
        self.error = _as_data(failure.error, failure.where)
        # The episode itself went well and is kept; only its score is missing.
        self.is_unjudged = isinstance(failure.error, JudgeError) and failure.where in ("env.reset", "env.step")

    def trajectory(self) -> Trajectory:
        spec, is_errored = self.spec, self.error is not None and not self.is_unjudged
        is_scored = bool(self.turns) and not self.is_unjudged
        status: Status = "errored" if is_errored else "ok" if is_scored else "unscored"
        if spec.options is not None:
            self.metadata["options"] = dict(spec.options)
        terminated = self.stop_reason is StopReason.TERMINATED
        return Trajectory(
            env_id=spec.env_id,
            env_kwargs=dict(spec.env_kwargs),
            seed=spec.seed,
            group_id=spec.group_id,
            member=spec.member,
            messages=tuple(self.messages),
            tools=self.tools,
            rows=self.transcript.rows(),
            turns=tuple(self.turns),
            terminated=terminated,
            truncated=not terminated and self.error is None,
            stop_reason=self.stop_reason,
            status=status,
            is_success=self.is_success if status == "ok" else None,
            error=self.error,
            timings={"total": time.perf_counter() - self.started, "policy": self.policy_s, "env": self.env_s},
            metadata=self.metadata,
        )
