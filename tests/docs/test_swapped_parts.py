"""Arguments for which no other test passes a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_envs.judges import LLMJudge, Question, RewardModel
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, PromptTask
from llm_envs.types import Message, SamplingParams, StopReason, Trajectory, Turn

pytestmark = [pytest.mark.pages, pytest.mark.smoke]


def said(text: str) -> Trajectory:
    messages = (Message("user", "Speak."), Message("assistant", text), Message("tool", "noted"))
    turn = Turn(0.0, {"reward": 0.0})
    return Trajectory(
        "test", {}, 0, "g", 0, messages, (), (), (turn,), True, False, StopReason.TERMINATED, "ok", None
    )  # fmt: skip


def test_how_the_oracle_of_prompts_answers() -> None:
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(20)]
    task = PromptTask(
        rows,
        lambda row, reply: float(reply.content == f"= {row['answer']}"),
        format_answer=lambda answer: f"= {answer}",
    )
    with Collector(task, OraclePolicy(), progress=False) as collector:
        (group,) = collector.collect(1)
    (episode,) = group
    asked, answered = (message.content for message in episode.messages[-2:])
    assert answered == f"= {int(asked.split()[0]) + 1}" and episode.reward == 1.0


class Yes:
    """A chat policy that says how often the question has an a."""

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        reply = messages[-1].content.split("======== REPLY")[1]
        return Message("assistant", f"I count {reply.count('@')}")


def test_what_a_judge_is_asked_and_how_it_is_read() -> None:
    judge = LLMJudge(
        Yes(),
        "Count.",
        question_fn=lambda trajectory: Question("any", "@" * len(trajectory.messages)),
        parser=lambda text: {"score": int(text.split()[-1]) / 10},
    )
    assert judge(said("whatever")) == pytest.approx(0.3)  # three messages


def test_what_a_reward_model_reads() -> None:
    from llm_envs.tiny_model import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    seen: list[str] = []

    def scorer(rows: Sequence[Any]) -> Any:
        seen.extend(tokenizer.decode(row) for row in rows)
        return np.ones(len(rows))

    RewardModel(tokenizer, scorer)(said("Hello."))
    RewardModel(tokenizer, scorer, messages_fn=lambda trajectory: trajectory.messages[1:])(said("Hello."))
    assert "Speak." in seen[0] and "Hello." in seen[0] and "noted" not in seen[0]
    assert "Speak." not in seen[1] and "Hello." in seen[1] and "noted" in seen[1]


@pytest.mark.examples
def test_weights_go_to_the_policy_by_a_function(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from logged_runs import DENSE, make_model

    from llm_envs.policies import TransformersPolicy
    from llm_envs.policies.inference import load_model, load_tokenizer
    from llm_envs.trainers.loop import TrainingState, create_training_state, train

    folder = make_model(tmp_path / "model")
    policy = TransformersPolicy(load_model(folder), load_tokenizer(folder))  # a copy: not what is trained
    state = create_training_state(load_model(folder), learning_rate=1e-2)
    versions: list[int] = []

    def sync(player: Any, present: TrainingState) -> None:
        player.model.load_state_dict(present.model.state_dict())
        player.weight_version = 100 + present.step
        versions.append(player.weight_version)

    sampling = SamplingParams(max_new_tokens=6)
    with Collector(DENSE, policy, codec=policy.codec, sampling=sampling, progress=False) as collector:
        state = train(state, collector, n_iterations=2, n_groups=2, group_size=4, weight_sync_fn=sync)
    assert versions == [100, 101, 102]
    for name, value in state.model.state_dict().items():
        torch.testing.assert_close(policy.model.state_dict()[name], value)
