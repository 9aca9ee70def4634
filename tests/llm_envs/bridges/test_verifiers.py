"""Environments of verifiers 0.3 played by policies of ours, and scored by its own rubrics."""

from typing import Any

import pytest

from llm_envs.bridges.verifiers import verifiers_env
from llm_envs.errors import InvalidConfigError
from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams

pytestmark = pytest.mark.doors("verifiers.legacy")


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    tokenizer = tiny_tokenizer()
    return TransformersPolicy(tiny_model(tokenizer, seed=0), tokenizer)


def play(env: Any, policy: TransformersPolicy, n: int = 2, **settings: Any) -> list[Any]:
    sampling = SamplingParams(max_new_tokens=6)
    groups = Collector(env, policy, codec=policy.codec, sampling=sampling, **settings).collect(n)
    return [trajectory for group in groups for trajectory in group.trajectories]


def rows(*questions: str) -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"question": question, "answer": "7"} for question in questions])


def text_of(completion: Any) -> str:
    return "|".join(str(message["content"]) for message in completion if message["role"] == "assistant")


@pytest.mark.smoke
def test_a_single_turn_environment(policy: TransformersPolicy) -> None:
    import verifiers.legacy as vf

    def length(completion: Any, answer: str, **kwargs: Any) -> float:
        return len(text_of(completion)) + float(answer)

    env = vf.SingleTurnEnv(
        dataset=rows("What is 3 + 4?", "What is 5 + 2?"), system_prompt="Be brief.", rubric=vf.Rubric(funcs=[length])
    )
    played = play(verifiers_env(env), policy)
    assert [t.status for t in played] == ["ok", "ok"]
    for trajectory in played:
        assert [m.role for m in trajectory.messages] == ["system", "user", "assistant"]
        assert trajectory.messages[0].content == "Be brief."
        assert trajectory.env_id == "verifiers/SingleTurnEnv"
        assert len(trajectory.rows) == 1 and trajectory.rows[0].mask.sum() > 0
        assert trajectory.reward == 7 + len(policy.codec.parser(trajectory.messages[2].content).content)


def test_a_multi_turn_environment_with_state(policy: TransformersPolicy) -> None:
    import verifiers.legacy as vf

    class Count(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["asked"] = state.get("asked", 0) + 1
            return [{"role": "user", "content": f"Again, number {state['asked']}."}]

    def asked(state: Any, **kwargs: Any) -> float:
        return float(state["asked"])

    env = Count(dataset=rows("Begin."), max_turns=3, rubric=vf.Rubric(funcs=[asked], weights=[0.5]))
    [trajectory] = play(verifiers_env(env), policy, 1)
    assert trajectory.status == "ok"
    assert [m.content for m in trajectory.messages if m.role == "user"] == [
        "Begin.",
        "Again, number 1.",
        "Again, number 2.",
    ]
    assert trajectory.reward == 1.0 and trajectory.is_success and len(trajectory.turns) == 3
    [cut] = play(verifiers_env(env), policy, 1, limits=RolloutLimits(max_turns=2))
    assert (cut.status, cut.reward, cut.stop_reason) == ("ok", 0.0, "max_turns")


def test_a_failure_in_it_is_an_error_and_never_a_zero(policy: TransformersPolicy) -> None:
    import verifiers.legacy as vf

    class Broken(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            raise vf.Error("the world has ended")

    def one(**kwargs: Any) -> float:
        return 1.0

    env = Broken(dataset=rows("Begin."), max_turns=3, rubric=vf.Rubric(funcs=[one]))
    [trajectory] = play(verifiers_env(env), policy, 1)
    assert trajectory.status == "errored" and "the world has ended" in trajectory.error.message


def test_a_rubric_of_groups_is_refused() -> None:
    import verifiers.legacy as vf

    def best(completions: Any, **kwargs: Any) -> list[float]:
        return [0.0] * len(completions)

    env = vf.SingleTurnEnv(dataset=rows("Begin."), rubric=vf.Rubric(funcs=[best]))
    with pytest.raises(InvalidConfigError, match="scores a group of episodes"):
        verifiers_env(env)
