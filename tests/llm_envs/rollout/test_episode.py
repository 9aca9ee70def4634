"""One episode: rows, budgets, failures and time limits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.chat import observed_messages, render_reply, with_call_ids
from llm_envs.errors import InvalidConfigError, JudgeError
from llm_envs.policies import ConstantPolicy, OraclePolicy, RandomPolicy, ReplayPolicy
from llm_envs.rollout import EpisodeSpec, RolloutLimits, play_episode
from llm_envs.rollout.limits import row_limit
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures, with_hangs
from llm_envs.types import (
    FinishReason,
    Message,
    RolloutError,
    Sampled,
    SamplingParams,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    validate_batch,
)

CODEC = ByteCodec()
EOT, SYSTEM, USER, ASSISTANT, TOOL = 256, 257, 258, 259, 260
SPEC = EpisodeSpec("Numbers", {}, seed=7, group_id="g", member=1)
DIGITS = {"problem": {"digits": [4, 2]}}
SPEC_42 = EpisodeSpec("Numbers", {}, seed=7, group_id="g", member=1, options=DIGITS)


def play(env: Any, policy: Any, spec: EpisodeSpec = SPEC_42, **settings: Any) -> Trajectory:
    trajectory = asyncio.run(play_episode(env, spec, policy, **settings))
    assert validate_batch([trajectory]) == []
    return trajectory


def text_of(ids: Sequence[int]) -> list[int | str]:
    """Return ids with runs of bytes as strings."""
    out: list[int | str] = []
    for token in ids:
        if token >= 256:
            out.append(int(token))
        elif out and isinstance(out[-1], str):
            out[-1] += chr(token)
        else:
            out.append(chr(token))
    return out


def right_digit(prompt_ids: np.ndarray, random: Any) -> str:
    """Answer the last 'Say N.' of the prompt."""
    return CODEC.decode_reply(prompt_ids).rsplit("Say ", 1)[1][0]


class TestRows:
    def test_token_policy_by_hand(self) -> None:
        env = NumbersEnv(as_tool=True)
        trajectory = play(env, HashingTokenPolicy(CODEC, right_digit), codec=CODEC, run_seed=3)
        (row,) = trajectory.rows
        assert text_of(row.ids) == [
            *[SYSTEM, "Repeat.", EOT, USER, "Say 4.", EOT, ASSISTANT],
            *["4", EOT],
            *[TOOL, "Say 2.", EOT, ASSISTANT],
            *["2", EOT],
        ]
        assert text_of(row.ids[row.mask]) == ["4", EOT, "2", EOT]
        assert [row.ids[start:stop].tolist() for start, stop in row.spans] == [[ord("4"), EOT], [ord("2"), EOT]]
        assert (row.logps[row.mask] < 0).all()
        assert (row.logps[~row.mask] == 0).all()
        assert [(turn.row, turn.span, turn.reward) for turn in trajectory.turns] == [(0, 0, 0.5), (0, 1, 0.5)]
        assert trajectory.turns[0].components == {"right": 0.5}
        assert trajectory.turns[1].weight_versions[0].stop == 2
        assert [message.role for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert trajectory.is_success is True and trajectory.status == "ok"
        assert trajectory.terminated and not trajectory.truncated
        assert trajectory.metadata == {"final_observation": "Done.", "options": DIGITS}
        assert env.closed

    def test_a_cut_turn_is_stepped_and_closed_with_mask_0(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["123456"])
        trajectory = play(NumbersEnv(), policy, codec=CODEC, limits=RolloutLimits(max_turn_tokens=3))
        (row,) = trajectory.rows
        assert [turn.finish_reason for turn in trajectory.turns] == [FinishReason.LENGTH] * 2
        assert trajectory.messages[2].content == "123"
        assert text_of(row.ids[row.spans[0][0] :]) == ["123", EOT, USER, "Say 2.", EOT, ASSISTANT, "123"]
        first_eot = row.spans[0][1]
        assert row.ids[first_eot] == EOT and not row.mask[first_eot]
        assert trajectory.stop_reason is StopReason.TERMINATED

    def test_an_env_policys_words_are_rows_without_logps(self) -> None:
        trajectory = play(NumbersEnv(), OraclePolicy(), codec=CODEC)
        (row,) = trajectory.rows
        assert text_of(row.ids[row.mask]) == ["4", EOT, "2", EOT]
        assert np.isnan(row.logps[row.mask]).all()
        assert trajectory.turns[0].weight_versions == ()

    def test_without_a_codec_there_are_no_rows(self) -> None:
        trajectory = play(NumbersEnv(), OraclePolicy())
        assert trajectory.rows == ()
        assert [turn.row for turn in trajectory.turns] == [-1, -1]
        assert trajectory.reward == 1.0

    def test_oracle_and_sampler_write_the_same_ids(self) -> None:
        oracle = play(NumbersEnv(), OraclePolicy(), codec=CODEC)
        sampled = play(NumbersEnv(), HashingTokenPolicy(CODEC, right_digit), codec=CODEC)
        assert oracle.rows[0].ids.tolist() == sampled.rows[0].ids.tolist()
        assert oracle.rows[0].spans == sampled.rows[0].spans


class TestSeeds:
    def test_turn_seeds_depend_on_run_group_member_and_turn(self) -> None:
        def seeds(spec: EpisodeSpec, run_seed: int, **sampling: Any) -> list[int]:
            policy = HashingTokenPolicy(CODEC, ["1"])
            play(NumbersEnv(2), policy, spec, codec=CODEC, run_seed=run_seed, sampling=SamplingParams(**sampling))
            return [seed for _, seed, _ in policy.calls]

        base = seeds(EpisodeSpec("N", group_id="a", member=0), 0)
        assert base == seeds(EpisodeSpec("N", group_id="a", member=0, seed=99), 0)
        others = [
            seeds(EpisodeSpec("N", group_id="a", member=1), 0),
            seeds(EpisodeSpec("N", group_id="b", member=0), 0),
            seeds(EpisodeSpec("N", group_id="a", member=0), 1),
        ]
        assert len({*base, *(seed for other in others for seed in other)}) == 8
        assert seeds(EpisodeSpec("N", group_id="a", member=0), 5, seed=1) == others[2]

    def test_a_session_is_the_episode(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["1"])
        play(NumbersEnv(2), policy, codec=CODEC)
        assert {session for session, _, _ in policy.calls} == {"g/1"}

    def test_a_random_policy_depends_on_the_episode_alone(self) -> None:
        policy = RandomPolicy([str(digit) for digit in range(10)])
        first = [play(NumbersEnv(20), policy, EpisodeSpec("N", member=m)).messages for m in (0, 1)]
        second = [play(NumbersEnv(20), policy, EpisodeSpec("N", member=m)).messages for m in (1, 0)]
        assert first == second[::-1]
        assert first[0] != first[1]


class TestLimits:
    def test_env_truncation_puts_the_final_observation_into_the_row(self) -> None:
        trajectory = play(NumbersEnv(truncate_at=1), HashingTokenPolicy(CODEC, right_digit), codec=CODEC)
        (row,) = trajectory.rows
        assert text_of(row.ids[row.spans[-1][0] :]) == ["4", EOT, USER, "Say 2.", EOT]  # no generation prompt
        assert not row.mask[row.spans[-1][1] :].any()
        assert trajectory.stop_reason is StopReason.ENV_TRUNCATED
        assert trajectory.truncated and not trajectory.terminated
        assert trajectory.is_success is False
        assert trajectory.messages[-1] == Message("user", "Say 2.")

    def test_max_turns(self) -> None:
        policy = HashingTokenPolicy(CODEC, right_digit)
        trajectory = play(NumbersEnv(), policy, codec=CODEC, limits=RolloutLimits(max_turns=1))
        assert trajectory.stop_reason is StopReason.MAX_TURNS
        assert trajectory.status == "ok" and trajectory.is_success is False and trajectory.reward == 0.5
        assert text_of(trajectory.rows[0].ids[-9:]) == [EOT, USER, "Say 2.", EOT]

    def test_the_turn_budget_is_the_least_of_three(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["1"])
        # Prompt: 1+7+1 + 1+6+1 + 1 = 18 tokens; the turn has 2, the next observation 1+6+1+1 = 9.
        limits = RolloutLimits(max_turn_tokens=40, max_episode_tokens=50)
        play(NumbersEnv(), policy, codec=CODEC, limits=limits, sampling=SamplingParams(max_new_tokens=30))
        assert [budget for _, _, budget in policy.calls] == [30, 21]

    def test_max_episode_tokens_is_never_exceeded(self) -> None:
        for limit in range(1, 40):
            policy = HashingTokenPolicy(CODEC, ["1", "333", "55555"])
            trajectory = play(NumbersEnv(3), policy, SPEC, codec=CODEC, limits=RolloutLimits(max_episode_tokens=limit))
            if limit <= 18:  # the prompt leaves no room
                assert trajectory.status == "unscored" and trajectory.is_success is None
                assert trajectory.stop_reason is StopReason.MAX_TOKENS
                assert f"max_episode_tokens={limit}" in trajectory.metadata["unscored_because"]
            else:
                assert trajectory.n_tokens <= limit
                assert trajectory.status == "ok" and trajectory.turns
                assert trajectory.stop_reason in (StopReason.MAX_TOKENS, StopReason.TERMINATED)

    def test_max_completion_tokens_counts_what_follows_the_prompt(self) -> None:
        for limit in (2, 11, 13, 25):
            policy = HashingTokenPolicy(CODEC, ["1", "333", "55555"])
            limits = RolloutLimits(max_completion_tokens=limit)
            trajectory = play(NumbersEnv(3), policy, SPEC, codec=CODEC, limits=limits)
            assert trajectory.turns and trajectory.n_tokens - trajectory.rows[0].prompt_length <= limit
        assert row_limit(RolloutLimits(), 18) is None
        assert row_limit(RolloutLimits(max_completion_tokens=10), 18) == 28
        assert row_limit(RolloutLimits(max_completion_tokens=10, max_episode_tokens=20), 18) == 20

    def test_an_oracle_that_does_not_fit_ends_before_its_turn(self) -> None:
        trajectory = play(NumbersEnv(), OraclePolicy(), codec=CODEC, limits=RolloutLimits(max_episode_tokens=30))
        assert len(trajectory.turns) == 1  # 18 + 2 + 9 = 29, and the reply "2" needs 2
        assert trajectory.stop_reason is StopReason.MAX_TOKENS
        assert trajectory.n_tokens == 28  # without the generation prompt
        assert [message.role for message in trajectory.messages].count("assistant") == 1

    def test_context_full_later_and_at_once(self) -> None:
        later = play(NumbersEnv(), HashingTokenPolicy(CODEC, right_digit, context_length=25), codec=CODEC)
        assert later.stop_reason is StopReason.CONTEXT_FULL
        assert later.status == "ok" and later.reward == 0.5 and len(later.turns) == 1
        assert text_of(later.rows[0].ids[-9:]) == [EOT, USER, "Say 2.", EOT]
        at_once = play(NumbersEnv(), HashingTokenPolicy(CODEC, right_digit, context_length=18), codec=CODEC)
        assert at_once.stop_reason is StopReason.PROMPT_TOO_LONG
        assert at_once.status == "unscored" and at_once.turns == () and at_once.is_success is None
        assert at_once.metadata["unscored_because"] == "the prompt has 18 tokens, the context 18."
        assert at_once.error is None and len(at_once.rows[0]) == 18 and not at_once.rows[0].mask.any()

    def test_seconds_in_all_are_looked_at_between_turns(self) -> None:
        policy = HashingTokenPolicy(CODEC, right_digit, latency_s=0.03)
        trajectory = play(NumbersEnv(50), policy, SPEC, codec=CODEC, limits=RolloutLimits(max_episode_s=0.1))
        assert trajectory.stop_reason is StopReason.TIMEOUT
        assert trajectory.status == "ok" and 1 <= len(trajectory.turns) <= 5
        assert trajectory.reward == pytest.approx(len(trajectory.turns) / 50)

    @pytest.mark.parametrize("kind", ["token", "chat", "env", "context"])
    def test_seconds_in_all_end_a_turn_that_is_waited_for_and_keep_the_turns_before(self, kind: str) -> None:
        """A policy, or a context function, that hangs in the second turn: the first stays, graded."""

        async def hang(*args: Any) -> Any:
            await asyncio.Event().wait()

        class Second(HashingTokenPolicy):
            async def sample(self, prompt_ids: Any, params: Any, *, seed: int, session: str) -> Any:
                if len(self.calls) == 1:
                    await hang()
                return await super().sample(prompt_ids, params, seed=seed, session=session)

        class Chat:
            async def reply(self, messages: Any, tools: Any, params: Any) -> Message:
                return Message("assistant", "4") if len(messages) == 2 else await hang()

        class Acts:
            def act(self, env: Any, observation: str) -> Any:
                return "4" if env.turn == 0 else hang()

        policy: Any = {"token": Second(CODEC, right_digit), "chat": Chat(), "env": Acts()}.get(kind, OraclePolicy())
        context_fn = hang if kind == "context" else None
        limits = RolloutLimits(max_episode_s=0.2, max_policy_s=30.0)
        trajectory = play(NumbersEnv(), policy, codec=CODEC, limits=limits, context_fn=context_fn)
        assert trajectory.stop_reason is StopReason.TIMEOUT and trajectory.truncated
        assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == ("ok", 0.5, 1)
        assert text_of(trajectory.rows[0].ids[-9:]) == [EOT, USER, "Say 2.", EOT]  # the last observation, unanswered

    def test_seconds_in_all_without_a_turn_leave_the_episode_unscored(self) -> None:
        policy = HashingTokenPolicy(CODEC, right_digit, latency_s=60)
        trajectory = play(NumbersEnv(), policy, codec=CODEC, limits=RolloutLimits(max_episode_s=0.05))
        assert (trajectory.status, trajectory.stop_reason) == ("unscored", StopReason.TIMEOUT)
        assert trajectory.metadata["unscored_because"] == "max_episode_s=0.05" and policy.running == 0

    def test_the_lower_of_two_limits_of_time_strikes(self) -> None:
        policy = HashingTokenPolicy(CODEC, right_digit, latency_s=60)
        limits = RolloutLimits(max_policy_s=0.05, max_episode_s=30)
        trajectory = play(NumbersEnv(), policy, codec=CODEC, limits=limits)
        assert trajectory.error is not None and "max_policy_s=0.05" in trajectory.error.message

    def test_an_asynchronous_context_function_has_the_policys_time(self) -> None:
        async def hang(messages: Any) -> Any:
            await asyncio.Event().wait()

        trajectory = play(NumbersEnv(), OraclePolicy(), limits=RolloutLimits(max_policy_s=0.05), context_fn=hang)
        assert trajectory.error is not None and "max_policy_s=0.05" in trajectory.error.message

    @pytest.mark.parametrize(
        ("limits", "reason", "n_turns"),
        [
            ({"max_turns": 1}, StopReason.MAX_TURNS, 1),
            ({"max_turn_tokens": 1}, StopReason.TERMINATED, 2),  # a cut turn is stepped: "4" without its end
            ({"max_episode_tokens": 28}, StopReason.MAX_TOKENS, 1),
            ({"max_completion_tokens": 10}, StopReason.MAX_TOKENS, 1),
            ({"max_step_s": 30.0, "max_policy_s": 30.0, "max_episode_s": 30.0}, StopReason.TERMINATED, 2),
        ],
    )
    def test_what_was_earned_before_a_limit_stays(self, limits: Any, reason: StopReason, n_turns: int) -> None:
        policy = HashingTokenPolicy(CODEC, right_digit)
        trajectory = play(NumbersEnv(), policy, codec=CODEC, limits=RolloutLimits(**limits))
        assert (trajectory.status, trajectory.stop_reason) == ("ok", reason)
        assert (len(trajectory.turns), trajectory.reward) == (n_turns, 0.5 * n_turns)

    @pytest.mark.parametrize("setting", [{"max_turns": 0}, {"max_turn_tokens": 0}, {"max_step_s": -1.0}])
    def test_bad_limits_are_named(self, setting: dict[str, Any]) -> None:
        with pytest.raises(InvalidConfigError, match=next(iter(setting))):
            RolloutLimits(**setting)


class TestFailures:
    def test_a_raising_step_is_data_and_pays_nothing(self) -> None:
        env = NumbersEnv(raise_at=2)
        trajectory = play(env, HashingTokenPolicy(CODEC, right_digit), codec=CODEC)
        assert trajectory.status == "errored" and trajectory.stop_reason is StopReason.ERROR
        assert trajectory.error is not None
        assert (trajectory.error.kind, trajectory.error.where) == ("RuntimeError", "env.step")
        assert trajectory.error.message == "the environment broke"
        assert trajectory.is_success is None and not trajectory.truncated
        assert len(trajectory.turns) == len(trajectory.rows[0].spans) == 1
        assert trajectory.messages[-1] == Message("assistant", "2")  # the words that broke it can be read
        assert env.closed

    @pytest.mark.parametrize(
        ("method", "returned", "kind"),
        [
            ("reset", (5, {}), "EnvContractError"),
            ("reset", "text", "EnvContractError"),
            ("step", ("x", None, True, False, {}), "EnvContractError"),
            ("step", ("x", float("nan"), True, False, {}), "EnvContractError"),
            ("step", (None, 1.0, True, False, {}), "EnvContractError"),
            ("step", ("x", 1.0, True, False), "EnvContractError"),
            ("step", ("x", 1.0, True, False, {"reward_components": 3}), "EnvContractError"),
            ("step", ("x", 1.0, True, False, {"messages": [{"role": "user"}]}), "EnvContractError"),
        ],
    )
    def test_a_broken_contract_is_data(self, method: str, returned: Any, kind: str) -> None:
        class Broken(NumbersEnv):
            pass

        setattr(Broken, method, lambda self, *args, **kwargs: returned)
        trajectory = play(Broken(), ConstantPolicy("1"))
        assert trajectory.error is not None
        assert (trajectory.error.kind, trajectory.error.where) == (kind, f"env.{method}")
        assert trajectory.turns == ()

    def test_failing_to_be_made_is_data(self) -> None:
        def make() -> gym.Env[str, str]:
            raise OSError("no such thing")

        trajectory = play(make, OraclePolicy())
        assert trajectory.error is not None
        assert (trajectory.error.kind, trajectory.error.where) == ("OSError", "env.make")

    def test_a_tool_that_exits_ends_its_episode_alone(self) -> None:
        class Exits(NumbersEnv):
            def step(self, action: str) -> Any:
                raise SystemExit(1)

        trajectory = play(Exits(), OraclePolicy())
        assert trajectory.error is not None and trajectory.error.kind == "SystemExit"

    def test_a_failing_policy_is_data(self) -> None:
        trajectory = play(NumbersEnv(), with_failures(HashingTokenPolicy(CODEC, ["1"]), rate=1.0), codec=CODEC)
        assert trajectory.error is not None
        assert (trajectory.error.kind, trajectory.error.where) == ("RuntimeError", "policy")

    def test_a_script_that_ends_too_soon_is_data(self) -> None:
        trajectory = play(NumbersEnv(), ReplayPolicy(["4"]))
        assert trajectory.error is not None and trajectory.error.kind == "IndexError"
        assert trajectory.reward == 0.5 and trajectory.status == "errored"

    def test_a_policy_that_overdraws_its_budget_is_data(self) -> None:
        class Talks(HashingTokenPolicy):
            async def sample(self, prompt_ids: Any, params: Any, *, seed: int, session: str) -> Any:
                return self._reply(prompt_ids, 100, seed, 0)

        limits = RolloutLimits(max_turn_tokens=4)
        trajectory = play(NumbersEnv(), Talks(CODEC, ["123456789"]), codec=CODEC, limits=limits)
        assert trajectory.error is not None and "10 tokens of at most 4" in trajectory.error.message

    def test_a_policy_without_a_method_or_codec_is_refused(self) -> None:
        with pytest.raises(InvalidConfigError, match="is not a policy"):
            play(NumbersEnv(), object())
        with pytest.raises(InvalidConfigError, match="codec="):
            play(NumbersEnv(), HashingTokenPolicy(CODEC, ["1"]))


class Judged(NumbersEnv):
    """Its reward asks somebody, who gives no verdict at `at` ("reset", or the number of the turn)."""

    def __init__(self, at: Any, error: BaseException | None = None) -> None:
        super().__init__(n_turns=2)
        self.at, self.error = at, error or JudgeError("no verdict in 3 tries")

    def reset(self, **settings: Any) -> Any:
        if self.at == "reset":
            raise self.error
        return super().reset(**settings)

    def step(self, action: str) -> Any:
        if self.turn + 1 == self.at:
            raise self.error
        return super().step(action)


class TestJudge:
    @pytest.mark.parametrize(("at", "n_turns"), [("reset", 0), (1, 0), (2, 1)])
    def test_a_judge_that_fails_leaves_the_episode_unscored(self, at: Any, n_turns: int) -> None:
        trajectory = asyncio.run(play_episode(Judged(at), SPEC_42, HashingTokenPolicy(CODEC, right_digit), codec=CODEC))
        assert (trajectory.status, trajectory.is_success) == ("unscored", None)
        assert trajectory.stop_reason is StopReason.ERROR and not trajectory.truncated and not trajectory.terminated
        where = "env.reset" if at == "reset" else "env.step"
        assert trajectory.error == RolloutError("JudgeError", "no verdict in 3 tries", where)
        assert len(trajectory.turns) == n_turns  # the turn that nobody judged has no reward, and none is made up
        assert sum(len(row.spans) for row in trajectory.rows) == n_turns
        assert Trajectory.from_json(trajectory.to_json()) == trajectory

    def test_a_kind_of_judge_error_is_one_and_another_error_is_not(self) -> None:
        class Late(JudgeError):
            pass

        kinds = [play_status(Judged(1, error)) for error in (Late("x"), RuntimeError("x"), TimeoutError("x"))]
        assert kinds == ["unscored", "errored", "errored"]

    def test_a_policy_that_raises_one_has_errored(self) -> None:
        policy = with_failures(ConstantPolicy("1"), 1.0, lambda: JudgeError("x"))
        assert play(NumbersEnv(), policy).status == "errored"


def play_status(env: Any) -> str:
    return asyncio.run(play_episode(env, SPEC_42, ConstantPolicy("1"))).status


class TestTime:
    def test_a_slow_policy_is_cancelled(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["1"], latency_s=60)
        trajectory = play(NumbersEnv(), policy, codec=CODEC, limits=RolloutLimits(max_policy_s=0.05))
        assert trajectory.error is not None
        assert (trajectory.error.kind, trajectory.error.where) == ("TimeoutError", "policy")
        assert "max_policy_s=0.05" in trajectory.error.message
        assert policy.aborted == 1 and policy.running == 0

    def test_a_policys_own_timeout_is_told_apart(self) -> None:
        policy = with_failures(ConstantPolicy("1"), 1.0, lambda: TimeoutError("upstream"))
        trajectory = play(NumbersEnv(), policy, limits=RolloutLimits(max_policy_s=120))
        assert trajectory.error is not None and trajectory.error.message == "upstream"

    def test_a_hung_step_costs_its_own_episode(self) -> None:
        release = threading.Event()

        class Hangs(NumbersEnv):
            def step(self, action: str) -> Any:
                assert release.wait(600)
                return super().step(action)

        env = Hangs()

        async def main() -> list[Trajectory]:
            return await asyncio.gather(
                play_episode(env, SPEC, OraclePolicy(), limits=RolloutLimits(max_step_s=1)),
                play_episode(NumbersEnv(), SPEC_42, OraclePolicy(), limits=RolloutLimits(max_step_s=120)),
            )

        hung, well = asyncio.run(main())
        assert hung.error is not None
        assert (hung.error.kind, hung.error.where) == ("TimeoutError", "env.step")
        assert "max_step_s=1 s" in hung.error.message
        assert well.reward == 1.0 and not env.closed  # both are over while the step still hangs
        release.set()
        deadline = time.perf_counter() + 120
        while not env.closed and time.perf_counter() < deadline:
            time.sleep(0.01)
        assert env.closed  # by its own thread, when it came back

    def test_blocking_environments_run_beside_the_loop(self) -> None:
        """Each step waits for the others: one after another, they would give up."""
        together = threading.Barrier(8, timeout=120)

        class Meets(NumbersEnv):
            def step(self, action: str) -> Any:
                together.wait()
                return super().step(action)

        async def main() -> list[Trajectory]:
            envs = [Meets(blocking=True) for _ in range(8)]
            return await asyncio.gather(*(play_episode(env, SPEC, OraclePolicy()) for env in envs))

        assert [t.reward for t in asyncio.run(main())] == [1.0] * 8

    def test_light_environments_start_no_thread(self) -> None:
        used = []

        class Where(NumbersEnv):
            def step(self, action: str) -> Any:
                used.append(threading.current_thread())
                return super().step(action)

        play(Where(), OraclePolicy())
        assert set(used) == {threading.main_thread()}

    def test_hangs_are_cancellable(self) -> None:
        trajectory = play(NumbersEnv(), with_hangs(OraclePolicy(), 1.0), limits=RolloutLimits(max_policy_s=0.02))
        assert trajectory.error is not None and trajectory.error.kind == "TimeoutError"


class ScriptedChat:
    """A chat policy that gives prepared messages and remembers what it was shown."""

    def __init__(self, *replies: Message) -> None:
        self.replies, self.seen = list(replies), []  # type: ignore[var-annotated]

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        self.seen.append(list(messages))
        return self.replies[len(self.seen) - 1]


class TestChat:
    def test_structured_calls_reach_the_environment_as_text_and_their_ids_come_back(self) -> None:
        heard: list[str] = []

        class Listens(NumbersEnv):
            def step(self, action: str) -> Any:
                heard.append(action)
                return super().step(action)

        call = ToolCall("calculator", {"expression": "ü+1"}, "call-9")
        policy = ScriptedChat(Message("assistant", "Let me see.", (call,)), Message("assistant", "2"))
        trajectory = play(Listens(as_tool=True), policy)
        markup = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "ü+1"}}\n</tool_call>'
        assert heard == ["Let me see.\n" + markup, "2"]
        assert [m.role for m in policy.seen[1]] == ["system", "user", "assistant", "tool"]
        assert policy.seen[1][2].tool_calls == (call,)
        assert policy.seen[1][3].tool_call_id == "call-9"
        assert trajectory.reward == 0.5 and trajectory.rows == ()

    def test_render_reply_without_content_or_calls(self) -> None:
        assert render_reply(Message("assistant", "plain")) == "plain"
        rendered = render_reply(Message("assistant", "", (ToolCall("f", {}),)))
        assert rendered == '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'

    def test_call_ids_go_to_results_in_order_and_never_replace_one(self) -> None:
        reply = Message("assistant", "", (ToolCall("f", {}, "a"), ToolCall("g", {}, "b")))
        messages = (Message("tool", "1"), Message("user", "and"), Message("tool", "2", tool_call_id="own"))
        assert [m.tool_call_id for m in with_call_ids(messages, reply)] == ["a", None, "own"]


class TestChatSeeds:
    def test_each_turn_has_the_seed_that_a_token_policys_has(self) -> None:
        class Listens(ScriptedChat):
            async def reply(self, messages: Any, tools: Any, params: SamplingParams) -> Message:
                seeds.append(params.seed)
                assert (params.temperature, params.max_new_tokens) == (0.3, 20)
                return await super().reply(messages, tools, params)

        seeds: list[int | None] = []
        sampling = SamplingParams(temperature=0.3, max_new_tokens=20)
        play(NumbersEnv(), Listens(*[Message("assistant", "1")] * 2), run_seed=5, sampling=sampling)
        tokens = HashingTokenPolicy(CODEC, ["1"])
        play(NumbersEnv(), tokens, codec=CODEC, run_seed=5, sampling=sampling)
        assert seeds == [seed for _, seed, _ in tokens.calls] and len(set(seeds)) == 2


class TestObservations:
    def test_messages_count_while_they_are_the_observation(self) -> None:
        info = {"messages": [{"role": "tool", "content": "a", "name": "f"}, {"role": "user", "content": "b"}]}
        messages = observed_messages("a\nb", info)
        assert [(m.role, m.content) for m in messages] == [("tool", "a"), ("user", "b")]
        assert messages[0].metadata == {"name": "f"}
        assert observed_messages("A\nB", info) == (Message("user", "A\nB"),)
        assert observed_messages("a", {}) == (Message("user", "a"),)

    def test_a_wrapper_that_changes_the_observation_wins(self) -> None:
        class Shout(gym.ObservationWrapper[str, str, str]):
            def observation(self, observation: str) -> str:
                return observation.upper()

        trajectory = play(Shout(NumbersEnv(as_tool=True)), OraclePolicy())
        assert trajectory.messages[3] == Message("user", "SAY 2.")

    def test_a_foreign_environment_has_one_component_and_no_success(self) -> None:
        class Foreign(gym.Env[str, str]):
            def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
                return "Hi.", {}

            def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
                return "", 2, True, False, {}  # type: ignore[return-value]

        trajectory = play(Foreign(), ConstantPolicy("x"), SPEC)
        assert trajectory.turns[0].components == {"reward": 2.0}
        assert trajectory.is_success is False and trajectory.status == "ok"
        assert [m.role for m in trajectory.messages] == ["user", "assistant"]
        assert trajectory.metadata == {}


class Odd(NumbersEnv):
    """Raises or says `what` in its first step."""

    def __init__(self, what: BaseException | Mapping[str, Any], **attributes: Any) -> None:
        super().__init__()
        self.what = what
        for name, value in attributes.items():
            setattr(self, name, value)

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if isinstance(self.what, BaseException):
            raise self.what
        return observation, reward, terminated, truncated, {**info, **self.what}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Unlisted(BaseException):
    pass


class TestWhatCannotBeRecorded:
    @pytest.mark.parametrize("limits", [RolloutLimits(), RolloutLimits(max_step_s=5)])
    @pytest.mark.parametrize(
        ("raised", "kind"),
        [
            (StopIteration(), "RuntimeError"),
            (GeneratorExit(), "RuntimeError"),
            (Unlisted(), "Unlisted"),
            (SystemExit(1), "SystemExit"),
            (Mute(), "Mute"),
        ],
    )
    def test_whatever_is_raised_is_data(self, raised: BaseException, kind: str, limits: RolloutLimits) -> None:
        trajectory = play(Odd(raised), ConstantPolicy("1"), limits=limits)
        assert trajectory.error is not None and trajectory.error.kind == kind
        assert trajectory.error.message and trajectory.error.where == "env.step"

    def test_stop_iteration_does_not_hang_a_blocking_environment(self) -> None:
        trajectory = play(Odd(StopIteration(), blocking=True), ConstantPolicy("1"))
        assert trajectory.error is not None and "StopIteration" in trajectory.error.message

    @pytest.mark.parametrize(
        ("info", "attributes"),
        [
            ({"reward_components": {"a": float("nan")}}, {}),
            ({"reward_components": {"a": float("inf")}}, {}),
            ({"is_success": np.array([1, 2])}, {}),
            ({"is_success": "maybe"}, {}),
            ({"reward_components": {"a": "0.5"}}, {}),
            ({"messages": [{"role": "user", "content": "x", "metadata": {"a": {1}}}]}, {}),
            ({}, {"tools": [{"a": {1, 2}}]}),
            ({}, {"tools": "abc"}),
            ({}, {"tools": [5]}),
            ({}, {"system_prompt": 5}),
            ({}, {"tool_results": [ToolResult("f", {"x": float("nan")}, "o", True)]}),
            ({}, {"tool_results": [ToolResult("f", {"x": {1}}, "o", True)]}),
        ],
    )
    def test_of_the_environment(self, info: Mapping[str, Any], attributes: dict[str, Any]) -> None:
        trajectory = play(Odd(info, **attributes), ConstantPolicy("1"))
        assert trajectory.error is not None and trajectory.error.kind == "EnvContractError"
        assert Trajectory.from_json(trajectory.to_json()) == trajectory

    @pytest.mark.parametrize("logp", [-np.inf, np.nan, 0.5, -1e9])
    def test_of_a_token_policy(self, logp: float) -> None:
        class Policy:
            async def sample(self, *args: object, **settings: object) -> Sampled:
                return Sampled(np.array([65], np.int32), np.array([logp], np.float32), FinishReason.STOP)

        trajectory = play(NumbersEnv(), Policy(), codec=CODEC)
        assert trajectory.error is not None and trajectory.error.where == "policy"
        assert Trajectory.from_json(trajectory.to_json()) == trajectory

    @pytest.mark.parametrize("argument", [float("nan"), {1, 2}])
    def test_of_a_chat_policy(self, argument: object) -> None:
        class Policy:
            async def reply(self, *args: object) -> Message:
                return Message("assistant", "", (ToolCall("f", {"x": argument}),))

        trajectory = play(NumbersEnv(), Policy())
        assert trajectory.error is not None and trajectory.error.where == "policy"
        assert Trajectory.from_json(trajectory.to_json()) == trajectory

    @pytest.mark.parametrize("name", ["env_kwargs", "options"])
    def test_a_spec_is_refused_at_once(self, name: str) -> None:
        with pytest.raises(InvalidConfigError, match=f"{name}.*JSON"):
            EpisodeSpec("Numbers", **{name: {"x": object()}})


def test_a_turn_without_tokens_keeps_its_span() -> None:
    class Silent:
        async def sample(self, *args: object, **settings: object) -> Sampled:
            return Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), FinishReason.LENGTH)

    for limits in (RolloutLimits(max_turns=1), RolloutLimits(max_turns=2), RolloutLimits()):
        trajectory = play(NumbersEnv(n_turns=3), Silent(), codec=CODEC, limits=limits)
        assert trajectory.status == "ok" and len(trajectory.rows[0].spans) == len(trajectory.turns)
    failed = play(Odd(ValueError("x")), Silent(), codec=CODEC)
    assert failed.status == "errored" and failed.rows[0].spans == ()
