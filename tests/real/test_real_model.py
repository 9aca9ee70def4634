"""A pretrained model of 135 M parameters: its tokens, the doctor, and two steps of GRPO on both engines.

`make test-real-model` makes the model first; elsewhere these tests are skipped without it.
"""

import importlib.util

import numpy as np
import pytest

from llm_envs.chat import ChatCodec
from llm_envs.cli.main import main
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import generate_text, load_model, load_tokenizer, token_logps
from llm_envs.rollout import Collector
from llm_envs.testing import real_model
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, RewardSettings
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.real, pytest.mark.alone]

ENV = "llm/Calculator-v0"
has_vllm = importlib.util.find_spec("vllm") is not None


@pytest.fixture(scope="module")
def folder():
    return real_model()


@pytest.mark.smoke
def test_it_answers(folder):
    params = SamplingParams(max_new_tokens=24, temperature=0.0)
    reply, _ = generate_text(load_model(folder), load_tokenizer(folder), "What is the capital of France?", params)
    assert "Paris" in reply


@pytest.mark.smoke
def test_every_sampled_token_is_scored_as_it_was_sampled(folder):
    """Several turns with a tool, in a template that knows no tools: one row an episode, the same log-probabilities."""
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    sampling = SamplingParams(max_new_tokens=24)
    with Collector(
        ENV, TransformersPolicy(model, tokenizer), codec=ChatCodec(tokenizer), sampling=sampling, progress=False
    ) as collector:
        rows = [trajectory.rows for group in collector.collect(6) for trajectory in group]
    assert all(len(parts) == 1 for parts in rows)
    scored = token_logps(model, [row.ids for (row,) in rows])
    gaps = [np.abs(a - row.logps)[row.mask].max() for a, (row,) in zip(scored, rows, strict=True)]
    assert max(gaps) < 1e-4


def test_the_doctor_passes_it(folder, capsys):
    assert main(["doctor", folder, "--env", ENV]) == 0
    assert "This model can be trained on as it is." in capsys.readouterr().out


def vowels(trajectory):
    """Return how many vowels the agent wrote: no two replies are alike."""
    replies = [message.content for message in trajectory.messages if message.role == "assistant"]
    return float(sum(character in "aeiou" for reply in replies for character in reply))


@pytest.mark.parametrize(
    "engine",
    ["transformers", pytest.param("vllm", marks=pytest.mark.skipif(not has_vllm, reason="vLLM is not installed"))],
)
def test_two_steps_of_grpo(folder, engine, tmp_path):
    """The guard stops at once if the engine's log-probabilities differ by 1e-4 from the trainer's."""
    args = EnvGRPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=64,
        max_turn_tokens=16,
        learning_rate=1e-6,
        gradient_checkpointing=False,
        logging_steps=1,
        logps_tolerance=1e-4,
        save_strategy="no",
        report_to="none",
        use_vllm=engine == "vllm",
        vllm_max_model_length=512 if engine == "vllm" else None,
        vllm_gpu_memory_utilization=0.3,
    )
    rewards = RewardSettings(reward_fns=vowels)  # the task pays for well-formed replies only, and this model writes few
    trainer = EnvGRPOTrainer(folder, "llm/GuessNumber-v0", args, rewards=rewards)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    gaps, original = [], trainer._generate_and_score_completions

    def compare(inputs):
        """Compare the log-probabilities at sampling with those of the present weights: after an update too."""
        output = original(inputs)
        rows = [t.rows[0] for t in trainer.last_trajectories]
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        scored = token_logps(model, [row.ids for row in rows])
        model.train()
        gaps.append(max(np.abs(a - row.logps)[row.mask].max() for a, row in zip(scored, rows, strict=True)))
        return output

    trainer._generate_and_score_completions = compare
    try:
        trainer.train()
    finally:
        trainer.close()
    assert len(gaps) == 2 and max(gaps) < 1e-4
    assert any((value - before[name]).abs().max() > 0 for name, value in trainer.model.named_parameters())
