"""Inspect AI plays a policy of ours on its tasks, and its models play our environments."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import evaluate
from llm_envs.policies import ConstantPolicy, TransformersPolicy
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import Message

pytestmark = pytest.mark.doors("inspect_ai")


def run(task: Any, model: Any, tmp_path: Path, **settings: Any) -> Any:
    from inspect_ai import eval as inspect_eval

    [log] = inspect_eval(task, model=model, log_dir=str(tmp_path), display="none", **settings)
    return log


def said(text: str) -> Any:
    """An answer of Inspect's mock model. Without a usage it would count tokens with a tokenizer from the network."""
    from inspect_ai.model import ModelOutput, ModelUsage

    output = ModelOutput.from_content("mockllm", text)
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def oracle_model(env_id: str, **kwargs: Any) -> Any:
    """A model of Inspect that answers as the oracle: it plays the conversation along."""
    from inspect_ai.model import get_model

    def reply(input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        env = gym.make(env_id, **kwargs)
        first = next(message.text for message in input if message.role == "user")
        earlier = [message.text for message in input if message.role == "assistant"]
        for seed in SEEDS:
            if env.reset(seed=seed)[0] == first:
                break
        else:
            raise AssertionError(f"no seed begins with {first!r}")
        for action in earlier:
            env.step(action)
        return said(env.get_wrapper_attr("oracle")())

    from llm_envs.sources.source import SeedSource

    source = SeedSource(env_id, seed=0, env_kwargs=kwargs)
    SEEDS = [source.spec(index).seed for index in range(4)]
    return get_model("mockllm/model", custom_outputs=reply, memoize=False)


@pytest.mark.smoke
def test_the_oracle_wins_every_episode(tmp_path: Path) -> None:
    from llm_envs.bridges.inspect_ai import episodes

    model = oracle_model("llm/Sokoban-v0", split="test")
    log = run(episodes("llm/Sokoban-v0", n=4), model, tmp_path)
    assert log.status == "success", log.error
    assert len(log.samples) == 4
    for sample in log.samples:
        assert sample.scores["return_and_success"].value == {"success": 1.0, "return": pytest.approx(1.0)}
    assert max(len(sample.messages) for sample in log.samples) > 3  # several turns
    metrics = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert metrics == {"success": 1.0, "return": pytest.approx(1.0)}


def test_rewards_equal_those_of_evaluate(tmp_path: Path) -> None:
    from inspect_ai.model import get_model

    from llm_envs.bridges.inspect_ai import episodes

    def reply(input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        return said("<answer>50</answer>")

    model = get_model("mockllm/model", custom_outputs=reply, memoize=False)
    log = run(episodes("llm/GuessNumber-v0", n=6, max_turns=3), model, tmp_path)
    ours = evaluate("llm/GuessNumber-v0", ConstantPolicy("<answer>50</answer>"), n=6, env_kwargs={"max_turns": 3})
    theirs = {sample.metadata["seed"]: sample.scores["return_and_success"].value["return"] for sample in log.samples}
    assert theirs == {t.seed: t.reward for t in ours.trajectories}


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    tokenizer = tiny_tokenizer()
    return TransformersPolicy(tiny_model(tokenizer, seed=0), tokenizer)


@pytest.mark.smoke
def test_a_policy_answers_their_task(policy: TransformersPolicy, tmp_path: Path) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import includes

    model = get_model("llm-envs/policy", policy=policy, memoize=False)
    samples = [Sample(input=f"What is {n} + 1?", target="zzz") for n in range(3)]
    task = Task(dataset=MemoryDataset(samples), scorer=includes())
    log = run(task, model, tmp_path, max_tokens=8, temperature=0, seed=1)
    assert log.status == "success", log.error
    for sample in log.samples:
        message = sample.output.choices[0].message
        assert sample.output.usage.output_tokens <= 8
        prompt = policy.codec.encode_prompt([Message("user", sample.input)])
        assert sample.output.usage.input_tokens == len(prompt)
        assert message.text in message.metadata["text"]
    again = run(task, model, tmp_path, max_tokens=8, temperature=0, seed=1)
    assert [s.output.completion for s in again.samples] == [s.output.completion for s in log.samples]


def test_epochs_differ_unless_a_seed_is_given(policy: TransformersPolicy, tmp_path: Path) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import get_model

    model = get_model("llm-envs/policy", policy=policy, memoize=False)
    task = Task(dataset=MemoryDataset([Sample(input="What is 1 + 1?")]))

    def replies(**settings: Any) -> set[str]:
        log = run(task, model, tmp_path, max_tokens=8, temperature=1, epochs=4, **settings)
        return {sample.output.choices[0].message.metadata["text"] for sample in log.samples}

    assert len(replies()) > 1
    assert len(replies(seed=3)) == 1


def test_a_policy_plays_our_environment_through_inspect(policy: TransformersPolicy, tmp_path: Path) -> None:
    from inspect_ai.model import get_model

    from llm_envs.bridges.inspect_ai import episodes

    model = get_model("llm-envs/policy", policy=policy, memoize=False)
    log = run(episodes("llm/Calculator-v0", n=2, max_turns=2), model, tmp_path, max_tokens=8)
    assert log.status == "success", log.error
    for sample in log.samples:
        value = sample.scores["return_and_success"].value
        assert value["success"] == 0.0 and np.isclose(value["return"], -0.1 * 2)


def test_the_entry_point_finds_a_checkpoint(policy: TransformersPolicy, tmp_path: Path) -> None:
    """As `inspect eval TASK --model llm-envs/PATH` does: nothing of ours is imported by name."""
    import subprocess
    import sys

    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "inspect_ai", "eval", "llm_envs/episodes", "-T", "env_id=llm/Arithmetic-v0"]
    command += ["-T", "n=2", "--model", f"llm-envs/{tmp_path / 'model'}", "--max-tokens", "4", "--display", "plain"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "success" in done.stdout and "return" in done.stdout


def test_requests_that_a_policy_cannot_answer(policy: TransformersPolicy) -> None:
    import asyncio

    from inspect_ai.model import ChatMessageUser, GenerateConfig

    from llm_envs.bridges.inspect_ai import PolicyModel

    model = PolicyModel("policy", policy=policy)
    message = ChatMessageUser(content="Hello")
    with pytest.raises(InvalidConfigError, match=r"frequency_penalty=0\.5 is not supported"):
        asyncio.run(model.generate([message], [], "auto", GenerateConfig(frequency_penalty=0.5)))
    with pytest.raises(InvalidConfigError, match="tool_choice"):
        asyncio.run(model.generate([message], [], "any", GenerateConfig()))
    with pytest.raises(InvalidConfigError, match="policy is a ConstantPolicy; it must be a token policy"):
        PolicyModel("policy", policy=ConstantPolicy("x"))
    with pytest.raises(InvalidConfigError, match="known are transformers and vllm"):
        PolicyModel("nowhere", engine="other")
