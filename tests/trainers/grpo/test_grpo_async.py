"""Training on generations that were played ahead, with a real vLLM engine: the same episodes where the weights stay, a
bound on how old weights may be, and a resume from the middle."""

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from peft import LoraConfig  # noqa: E402  (after the skip)
from transformers import TrainerCallback  # noqa: E402

from llm_envs.policies.inference import token_logps  # noqa: E402
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer  # noqa: E402
from llm_envs.trainers.episodes.generation import GenerationPlayer  # noqa: E402

ENV, GAP = "test/Say-v0", "sampling/guard_logps_gap"


class Finish(TrainerCallback):
    """Waits after each step until all that has begun is played: then no episode sees a change of weights."""

    def on_step_end(self, args, state, control, **_):
        for begun in self.trainer._player._begun:
            begun.wait()


class SecondThread(GenerationPlayer):
    def __init__(self, *args, is_ahead, **kwargs):
        super().__init__(*args, is_ahead=True, **kwargs)


@pytest.fixture
def train(tiny_folder, config):
    trainers = []

    def run(n, resume=None, trainer_class=EnvGRPOTrainer, **changes):
        settings = {"use_vllm": True, "vllm_max_model_length": 192, "vllm_gpu_memory_utilization": 0.3, "max_steps": 6}
        trainer = trainer_class(tiny_folder, ENV, config(**settings | changes, async_generations=n))
        finish = Finish()
        finish.trainer = trainer
        trainer.add_callback(finish)
        trainers.append(trainer)
        trainer.played, trainer.ages = [], []
        original = trainer._generate_and_score_completions

        def look(inputs):
            output = original(inputs)
            spans = [s for t in trainer.last_trajectories for turn in t.turns for s in turn.weight_versions]
            trainer.played.append([(t.group_id, t.seed, t.rows[0].ids.tolist()) for t in trainer.last_trajectories])
            trainer.ages.append({trainer.state.global_step - span.version for span in spans})
            return output

        trainer._generate_and_score_completions = look
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    yield run
    for trainer in trainers:
        trainer.close()


def test_bound_0_in_a_second_thread_is_the_run_without_one_bit_for_bit_over_20_steps(train, monkeypatch):
    settings = {"max_steps": 20, "learning_rate": 3e-3}
    plain = train(0, **settings)
    monkeypatch.setattr("llm_envs.trainers.grpo.trainer.GenerationPlayer", SecondThread)
    threaded = train(0, **settings)
    assert threaded._player._loop is not None and plain._player._loop is None
    assert len(plain.played) == 20 and threaded.played == plain.played
    for one, other in zip(plain.model.parameters(), threaded.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_without_learning_every_bound_plays_the_same_and_no_weights_are_older_than_it(train):
    """A learning rate of 0; with two steps for each generation."""
    runs = {n: train(n, learning_rate=0.0) for n in (0, 1, 4)}
    for n, trainer in runs.items():
        assert trainer.played == runs[0].played
        assert [max(ages) for ages in trainer.ages] == [min(step, n) for step in range(6)]
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert [entry.get("sampling/staleness_max") for entry in logs] == (
            [None] * 6 if n == 0 else [min(step, n) for step in range(6)]
        )


@pytest.mark.parametrize("accumulated", [2, 3])
def test_several_generations_of_a_step_are_those_of_a_synchronous_run(train, accumulated):
    """Generations of 2 micro-batches: one a step, or one that begins inside a step."""
    batch = {"per_device_train_batch_size": 8, "steps_per_generation": 1 if accumulated == 2 else 2}
    settings = batch | {"gradient_accumulation_steps": accumulated, "max_steps": 4, "learning_rate": 0.0}
    assert train(1, **settings).played == train(0, **settings).played


def test_a_run_with_several_generations_of_a_step_resumes(train, tmp_path):
    batch = {"per_device_train_batch_size": 8, "steps_per_generation": 1, "gradient_accumulation_steps": 2}
    saves = {"save_strategy": "steps", "save_steps": 1, "output_dir": str(tmp_path), "learning_rate": 3e-3}
    whole = train(1, max_steps=4, **batch, **saves)
    resumed = train(1, resume=str(tmp_path / "checkpoint-2"), max_steps=4, **batch, **saves)
    assert resumed.played == whole.played[4:]
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_run_that_was_killed_goes_on_with_the_episodes_that_it_had_played_ahead(train, tmp_path):
    saves = {"save_strategy": "steps", "save_steps": 2, "output_dir": str(tmp_path), "learning_rate": 3e-3}
    whole = train(2, **saves)
    resumed = train(2, resume=str(tmp_path / "checkpoint-2"), **saves)
    assert resumed.played == whole.played[2:]
    assert resumed.ages == whole.ages[2:] and 0 not in set().union(*resumed.ages)
    # All that it trains on is of older weights, so it has compared the episodes that it plays for later.
    gaps = {e["step"]: e[GAP] for e in resumed.state.log_history if GAP in e}  # the first, of the run before
    assert gaps.keys() == {1, 3} and max(gaps.values()) < 1e-4
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_ppo_plays_ahead_too(train, tiny_folder, tmp_path):
    trainer = EnvPPOTrainer(
        tiny_folder,
        ENV,
        EnvPPOConfig(
            str(tmp_path),
            use_vllm=True,
            vllm_max_model_length=192,
            async_generations=1,
            max_steps=3,
            max_completion_length=16,
            per_device_train_batch_size=4,
            report_to="none",
            logging_steps=1,
            save_strategy="no",
        ),
    )
    trainer.train()
    assert np.isfinite([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]).all()
    assert [entry["sampling/staleness_max"] for entry in trainer.state.log_history if "loss" in entry] == [0, 1, 1]
    trainer.close()


def test_each_token_that_is_played_ahead_is_of_the_adapter_of_its_version(tiny_folder, config):
    """Scored again with the adapter of each version; a turn has one, and old ones are unloaded."""
    adapter = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    settings = {"use_vllm": True, "vllm_max_model_length": 192, "vllm_gpu_memory_utilization": 0.3, "max_steps": 6}
    settings |= {"lora_sync": "adapter", "learning_rate": 1e-2, "async_generations": 2}
    trainer = EnvGRPOTrainer(tiny_folder, ENV, config(**settings), peft_config=adapter)
    model, original = trainer.accelerator.unwrap_model(trainer.model), trainer._generate_and_score_completions
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    adapters, played = [], []

    def look(inputs):
        adapters.append({name: value.detach().clone() for name, value in trained.items()})
        output = original(inputs)
        played.append(trainer.last_trajectories)
        return output

    trainer._generate_and_score_completions = look
    trainer.train()
    assert trainer.vllm_generation._sends_adapter
    assert (
        len(trainer.vllm_generation.llm.llm_engine.list_loras()) <= 2
    )  # one may have had a turn until the last update
    model.eval()
    ages, others = set(), []
    for version, tensors in enumerate(adapters):
        with torch.no_grad():
            for name, value in tensors.items():
                trained[name].copy_(value)
        for step, trajectories in enumerate(played):
            for trajectory in trajectories:
                assert all(len(turn.weight_versions) == 1 for turn in trajectory.turns)
                ((row,), spans) = trajectory.rows, [turn.weight_versions[0] for turn in trajectory.turns]
                of_token = np.concatenate([np.full(span.stop - span.start, span.version) for span in spans])
                gaps = np.abs(token_logps(model, [row.ids])[0] - row.logps)[row.mask]
                assert gaps[of_token == version].max(initial=0) < 1e-4
                others.append(gaps[of_token != version].max(initial=0))
                ages |= {step - span.version for span in spans}
    assert ages <= {0, 1, 2} and max(ages) > 0
    assert max(others) > 0.01
    trainer.close()
