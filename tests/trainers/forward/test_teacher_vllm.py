"""A teacher on a real vLLM server: its opinion of the student's tokens is that of the same model in this process."""

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from dense_env import DenseEnv  # noqa: E402  (after the skip)
from tiny_folders import save_tiny  # noqa: E402

from llm_envs.errors import InvalidConfigError, ModelError  # noqa: E402
from llm_envs.policies import TransformersPolicy, start_servers  # noqa: E402
from llm_envs.policies.inference import load_model, load_tokenizer, token_logps  # noqa: E402
from llm_envs.policies.vllm.scoring import TokenScorer  # noqa: E402
from llm_envs.rollout import Collector, EnvChoice  # noqa: E402
from llm_envs.tiny_model import tiny_tokenizer  # noqa: E402
from llm_envs.trainers import EnvGRPOTrainer, load_teacher  # noqa: E402
from llm_envs.trainers.functional.algorithm import DISTILL, DISTILL_LOSS  # noqa: E402
from llm_envs.trainers.loop import (  # noqa: E402
    create_training_state,
    load_training_state,
    save_training_state,
    training_iteration,
)
from llm_envs.types import SamplingParams  # noqa: E402

DENSE = EnvChoice("dense", factory=DenseEnv)
# Neither developer mode nor a mode of log-probabilities: what anybody's server is.
ARGS = ("--dtype", "float32", "--max-model-len", "200", "--max-num-seqs", "32", "--enforce-eager")


@pytest.fixture(scope="module")
def server(teacher_folder, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # one process less, whose imports take as long again
    with start_servers(teacher_folder, 1, args=ARGS, env=env, log_dir=logs, start_timeout_s=1200) as servers:
        yield servers.urls[0]


def test_its_log_probabilities_are_those_of_the_model_in_process(server, teacher_folder):
    generator = np.random.default_rng(0)
    size = load_model(teacher_folder).config.vocab_size
    rows = [generator.integers(0, size, n).astype(np.int32) for n in (2, 3, 40, 199, *range(5, 40))]
    scorer = TokenScorer(server + "/v1", max_retries=2)
    given = scorer.score_tokens(rows)
    again = scorer.score_tokens(rows)  # what the server has read before does not change an answer
    scorer.close()
    expected = token_logps(load_model(teacher_folder), rows)
    for one, other, third in zip(given, expected, again, strict=True):
        assert np.isnan(one[0])
        np.testing.assert_allclose(one[1:], other[1:], atol=1e-4)
        np.testing.assert_allclose(one[1:], third[1:], atol=1e-5)
    assert scorer.facts.max_model_len == 200


def test_what_does_not_fit_or_is_no_word_of_it_is_refused(server, tmp_path):
    scorer = TokenScorer(server, max_retries=2)
    with pytest.raises(InvalidConfigError, match=r"200 tokens .*--max-model-len 201"):
        scorer.score_tokens([np.zeros(200, np.int64)])
    with pytest.raises(InvalidConfigError, match="out of vocabulary"):
        scorer.score_tokens([np.array([5, 100_000, 6])])
    scorer.close()
    tokenizer = tiny_tokenizer(["Answer: 3141 Answer: 3141"] * 3, vocab_size=400)
    save_tiny(tmp_path, tokenizer, hidden_size=32, n_heads=2)
    with pytest.raises(ModelError, match="tokenizer"):
        create_training_state(load_model(tmp_path), ref_model_fn=load_teacher(server))


@pytest.mark.parametrize("name", ["distill", "distill_loss"])
def test_a_step_of_the_trainer_is_that_with_the_teacher_in_process(server, teacher_folder, tiny_folder, config, name):
    """The same episodes of two turns, the same KL, and the same weights after two steps."""
    trained = []
    for teacher in (server, teacher_folder):
        args = config(max_steps=2, optim="sgd", learning_rate=0.1)
        trainer = EnvGRPOTrainer(tiny_folder, DENSE, args, algorithm=name, ref_model_fn=load_teacher(teacher))
        trainer.train()
        trainer.close()
        trained.append(trainer)
    served, local = trained
    logs = [[entry["kl"] for entry in trainer.state.log_history if "kl" in entry] for trainer in trained]
    assert logs[0] == pytest.approx(logs[1], abs=1e-4) and len(logs[0]) == 2
    start, moved = load_model(tiny_folder).state_dict(), 0.0
    for key, value in served.model.state_dict().items():
        torch.testing.assert_close(value, local.model.state_dict()[key], rtol=0, atol=1e-5)
        moved = max(moved, (value - start[key]).abs().max().item())
    assert moved > 1e-3


def test_generations_that_are_played_ahead_are_scored_by_the_weights_of_now(server, tiny_folder, config):
    """From the second step on the episodes are of older weights, and their KL is that of the weights of now."""
    settings = {"use_vllm": True, "vllm_max_model_length": 192, "async_generations": 1}
    args = config(**settings, max_steps=3, optim="sgd", learning_rate=0.5)
    trainer = EnvGRPOTrainer(tiny_folder, DENSE, args, algorithm="distill", ref_model_fn=load_teacher(server))
    batches, original = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: batches.append(original(inputs)) or batches[-1]
    trainer.train()
    trainer.close()
    kl = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    assert len(kl) == len(batches) == 3
    for step, batch in enumerate(batches):
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        sampled = (batch["sampling_per_token_logps"] - batch["ref_per_token_logps"])[mask].mean().item()
        assert batch["advantages"][mask].mean().item() == pytest.approx(-kl[step], abs=1e-5)
        assert (abs(kl[step] - sampled) > 1e-3) == (step > 0)


@pytest.mark.parametrize("algorithm", [DISTILL, DISTILL_LOSS], ids=lambda algorithm: algorithm.name)
def test_a_step_of_the_loop_is_that_with_the_teacher_in_process(
    server, teacher_folder, tiny_folder, tmp_path, algorithm
):
    policy = TransformersPolicy(load_model(tiny_folder), load_tokenizer(tiny_folder))
    sampling = SamplingParams(max_new_tokens=8)
    with Collector(DENSE, policy, codec=policy.codec, sampling=sampling, progress=False) as collector:
        groups = collector.collect(2, group_size=4)
    metrics, states = [], []
    for teacher in (server, teacher_folder):
        state = create_training_state(load_model(tiny_folder), ref_model_fn=load_teacher(teacher), learning_rate=1e-3)
        state, one = training_iteration(state, groups, algorithm=algorithm, sampling=sampling)
        metrics.append(one)
        states.append(state)
    assert metrics[0]["kl"] == pytest.approx(metrics[1]["kl"], abs=1e-4) and abs(metrics[0]["kl"]) > 1e-2
    assert metrics[0]["grad_norm"] == pytest.approx(metrics[1]["grad_norm"], rel=1e-3)
    folder = save_training_state(tmp_path / "state", states[0])
    again = create_training_state(load_model(tiny_folder), ref_model_fn=load_teacher(server))
    assert load_training_state(folder, again).step == 1
