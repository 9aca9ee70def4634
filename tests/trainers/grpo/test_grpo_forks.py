"""GRPO on episodes whose history forks: several rows an episode, each sampled token trained once, one credit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from device import spy_on_batches
from families import family_tokenizer
from tiny_folders import save_tiny
from trainings import last_only
from transformers import MixtralConfig, MixtralForCausalLM

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference import load_model, token_logps
from llm_envs.rollout import create_window
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import EnvGRPOTrainer
from llm_envs.trainers.functional.algorithm import GRPO

pytestmark = pytest.mark.trainings

ENV = "test/Say-v0"


@pytest.fixture
def play(tiny_folder, config, keep):
    """Train one step, and return the trainer and its batch."""

    def run(model=tiny_folder, context_fn=None, algorithm=None, **changes):
        trainer = keep(EnvGRPOTrainer(model, ENV, config(**changes), context_fn=context_fn, algorithm=algorithm))
        batches = spy_on_batches(trainer)
        trainer.train()
        return trainer, batches[0]

    return run


def check_batch(trainer, batch, model_folder):
    """Each sampled token stands in one row, unmasked, with its own log-probability and its episode's advantage."""
    rows = [t.rows[0] for t in trainer.last_trajectories] + [r for t in trainer.last_trajectories for r in t.rows[1:]]
    owners = list(range(16)) + [i for i, t in enumerate(trainer.last_trajectories) for _ in t.rows[1:]]
    assert len(rows) > 16
    scores = token_logps(load_model(model_folder), [row.ids for row in rows])
    for index, (row, owner, scored) in enumerate(zip(rows, owners, scores, strict=True)):
        start = row.prompt_length
        completion = batch["completion_ids"][index][batch["completion_mask"][index].bool()]
        assert completion.tolist() == row.ids[start:].tolist()
        mask = batch["tool_mask"][index, : len(completion)].bool().numpy()
        assert mask.tolist() == row.mask[start:].tolist()
        assert batch["advantages"][index] == batch["advantages"][owner]
        sampled = batch["sampling_per_token_logps"][index, : len(completion)].numpy()
        assert np.abs(sampled - scored[start:])[mask].max() < 1e-4
    loss_mask = batch["completion_mask"] * batch["tool_mask"]
    assert loss_mask[len(rows) :].sum() == 0  # fillers
    n_sampled = sum(t.n_sampled_tokens for t in trainer.last_trajectories)
    assert loss_mask.sum() == n_sampled == batch["num_items_in_batch"]
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories]).view(4, 4)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(batch["advantages"][:16], expected.view(-1), atol=1e-5)


@pytest.mark.smoke
def test_a_context_function_gives_every_turn_its_row(play, tiny_folder, caplog):
    trainer, batch = play(context_fn=last_only)
    assert {t.n_forks for t in trainer.last_trajectories} == {1}
    assert len(batch["advantages"]) == 32
    check_batch(trainer, batch, tiny_folder)
    log = next(entry for entry in trainer.state.log_history if "env/forks" in entry)
    assert log["env/forks"] == 1
    assert "All reward functions returned None" not in caplog.text


@pytest.mark.smoke
def test_gradient_accumulation_takes_all_rows(play):
    """Two micro-batches and two steps a generation: the rows beyond the first are split evenly among them."""
    trainer, batch = play(
        context_fn=last_only, per_device_train_batch_size=8, gradient_accumulation_steps=1, steps_per_generation=2,
        max_steps=2,
    )  # fmt: skip
    assert len(batch["advantages"]) == 32
    assert [len(part["advantages"]) for part in trainer._buffered_inputs] == [16, 16]


@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_memory_stays_what_it_was_and_the_gradient_too(play, loss_type):
    """A micro-batch that forks made larger is taken in parts: the same step as with room for all of it."""

    def step(size, accumulation):
        sizes = []
        original = EnvGRPOTrainer._compute_loss

        def watch(self, model, inputs):
            sizes.append(len(inputs["prompt_ids"]))
            return original(self, model, inputs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EnvGRPOTrainer, "_compute_loss", watch)
            patch.setattr("trl.trainer.grpo_trainer.shuffle_sequence_dict", lambda batch: batch)
            trainer, _ = play(
                context_fn=last_only, loss_type=loss_type, per_device_train_batch_size=size,
                gradient_accumulation_steps=accumulation, max_grad_norm=1e9,
                epsilon_high=5.0 if loss_type == "cispo" else None,
            )  # fmt: skip
        return sizes, [parameter.detach().clone() for parameter in trainer.model.parameters()]

    whole_sizes, whole = step(16, 1)
    assert whole_sizes == [16, 16]
    small_sizes, small = step(4, 4)
    assert set(small_sizes) == {4} and len(small_sizes) == 8
    assert max((a - b).abs().max().item() for a, b in zip(whole, small, strict=True)) < 2e-4


@pytest.mark.parametrize("what", ["entropies", "a router"])
def test_means_over_a_micro_batch_are_not_taken_in_parts(play, what, tmp_path, monkeypatch):
    """Each part would add the loss that balances experts once more, and have its own quantile of entropies."""
    folder, sizes, original = None, [], EnvGRPOTrainer._compute_loss
    if what == "a router":
        tokenizer, folder = tiny_tokenizer(), str(tmp_path)
        sizes_of = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = MixtralConfig(
            vocab_size=len(tokenizer), num_key_value_heads=1, num_local_experts=2, router_aux_loss_coef=0.1, **sizes_of
        )
        MixtralForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def watch(self, model, inputs):
        sizes.append(len(inputs["prompt_ids"]))
        return original(self, model, inputs)

    monkeypatch.setattr(EnvGRPOTrainer, "_compute_loss", watch)
    trainer, _ = play(
        *([] if folder is None else [folder]), context_fn=last_only, loss_type="dapo", per_device_train_batch_size=16,
        top_entropy_quantile=0.5 if folder is None else 1.0,
    )  # fmt: skip
    assert trainer.aux_loss_enabled == (what == "a router")
    assert sizes == [32]
    if what == "a router":
        trainer, _ = play(folder, context_fn=last_only, algorithm=replace(GRPO, normalisation="token"))
        assert trainer.state.log_history[0]["aux_loss"] > 0.0
        assert trainer.state.log_history[0]["policy/ratio"] == 1.0


def test_groups_of_equal_reward_are_counted_by_episodes(play):
    trainer, _ = play(context_fn=last_only, max_turn_tokens=1)
    rewards = np.array([t.reward for t in trainer.last_trajectories]).reshape(4, 4)
    equal = float(np.mean([np.ptp(group) == 0 for group in rewards]))
    log = next(entry for entry in trainer.state.log_history if "frac_reward_zero_std" in entry)
    assert log["frac_reward_zero_std"] == pytest.approx(equal)


def test_nothing_forks_where_nothing_is_dropped(play):
    trainer, batch = play(context_fn=create_window(2))
    assert {t.n_forks for t in trainer.last_trajectories} == {0}
    assert len(batch["advantages"]) == 16
    assert not any("env/forks" in entry for entry in trainer.state.log_history)


@pytest.fixture(scope="module")
def qwen3_folder(tmp_path_factory):
    tokenizer = family_tokenizer("qwen3")
    tokenizer.pad_token = "<|endoftext|>"
    sizes = {"hidden_size": 64, "n_heads": 2, "max_length": 256, "seed": 3}
    return str(save_tiny(tmp_path_factory.mktemp("qwen3"), tokenizer, **sizes))


def test_a_template_that_drops_thinking_forks_and_its_training_version_does_not(play, qwen3_folder):
    """With thinking off, the prompt for a turn has an empty thinking block, which Qwen3 drops from earlier turns."""
    trainer, batch = play(qwen3_folder, history="template", thinking=False)
    assert all(t.n_forks == 1 for t in trainer.last_trajectories)
    check_batch(trainer, batch, qwen3_folder)
    appended, _ = play(qwen3_folder, thinking=False)
    assert {t.n_forks for t in appended.last_trajectories} == {0}
    kept, _ = play(qwen3_folder, history="template", thinking=False, use_training_template=True)
    # A turn that begins or ends with white space is trimmed by the template: that forks as well.
    assert sum(t.n_forks for t in kept.last_trajectories) <= 4


def test_what_cannot_take_several_rows_is_refused(config, tiny_folder):
    with pytest.raises(InvalidConfigError, match="'trl_grpo'"):
        EnvGRPOTrainer(tiny_folder, ENV, config(history="template", loss_type="grpo"))
    with pytest.raises(InvalidConfigError, match=r"history='both'.*append, template"):
        config(history="both")
    with pytest.raises(InvalidConfigError, match="'trl_dr_grpo'"):
        EnvGRPOTrainer(tiny_folder, ENV, config(loss_type="dr_grpo"), context_fn=last_only)
    with pytest.raises(InvalidConfigError, match="use_training_template"):
        EnvGRPOTrainer(tiny_folder, ENV, config(use_training_template=True))
