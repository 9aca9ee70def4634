"""Models with absolute positions: no trainer lets the padding of a batch change a token's log-probability."""

import numpy as np
import pytest
import torch
from dense_env import DenseEnv
from device import on_cpu, rounding, spy_on_batches, to_device
from trainings import PLAYED, QUIET
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
)

from llm_envs.chat import ChatCodec
from llm_envs.cli.main import main
from llm_envs.errors import ModelError
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import token_logps
from llm_envs.rollout import Collector, EnvChoice
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
)
from llm_envs.trainers.episodes.batches import make_batch
from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes
from llm_envs.trainers.loop import create_training_state
from llm_envs.trainers.loop.batch import score_batch, score_rows
from llm_envs.trainers.ppo.critic import load_critic
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]


class UnevenEnv(DenseEnv):
    """Two turns behind prompts of 1 to 40 characters, so that rows are padded on the left."""

    def question(self):
        return "x" * int(self.np_random.integers(1, 41))


UNEVEN = EnvChoice("uneven", factory=UnevenEnv)
NO_DROPOUT = {"GPT2Config": ("resid_pdrop", "embd_pdrop", "attn_pdrop"), "OPTConfig": ("dropout",)}


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(params=["gpt2", "opt"])
def model(request, tokenizer):
    """A model whose learned positions weigh as much as its tokens."""
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if request.param == "gpt2":
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=160, n_embd=32, n_layer=2, n_head=2, **ids)
    else:
        sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2}
        config = OPTConfig(
            vocab_size=len(tokenizer), num_attention_heads=2, max_position_embeddings=160, **sizes, **ids
        )
    for name in NO_DROPOUT[type(config).__name__]:
        setattr(config, name, 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = {"gpt2": GPT2LMHeadModel, "opt": OPTForCausalLM}[request.param](config)
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.3)
    return made.eval()


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def common(tmp_path, **changes):
    sizes = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 0.0, "lr_scheduler_type": "constant"}
    return QUIET | sizes | {"output_dir": str(tmp_path / "out")} | changes


def alone(model, row, temperature=1.0):
    """Return what the model itself says of a row without any padding."""
    with torch.no_grad():
        ids = torch.from_numpy(row.ids.astype(np.int64))
        logps = on_cpu((model(ids[None].to(model.device)).logits[0, :-1] / temperature).log_softmax(-1))
    return np.append(0.0, logps.gather(-1, ids[1:, None])[:, 0].numpy())


def play(model, tokenizer, n_groups=6, group_size=2):
    policy, codec = TransformersPolicy(model, tokenizer), ChatCodec(tokenizer)
    sampling = SamplingParams(max_new_tokens=8)
    with Collector(UNEVEN, policy, codec=codec, sampling=sampling, seed=5, progress=False) as collector:
        return [t for group in collector.collect(n_groups, group_size) for t in group]


def test_the_policy_and_token_logps_see_each_row_as_if_alone(model, tokenizer):
    rows = [t.rows[0] for t in play(model, tokenizer)]
    assert len({row.prompt_length for row in rows}) > 3
    for row, scored in zip(rows, token_logps(model, [row.ids for row in rows]), strict=True):
        expected = alone(model, row)
        np.testing.assert_allclose(scored, expected, rtol=0, atol=rounding(2e-5))
        np.testing.assert_allclose(row.logps[row.mask], expected[row.mask], rtol=0, atol=rounding(2e-5))


@pytest.mark.parametrize("kind", ["grpo", "ppo", "ppo with a critic of its own"])
def test_without_learning_no_ratio_moves_and_the_kl_is_zero(model, folder, config, tmp_path, kind):
    """Several steps a generation: old log-probabilities see its whole padding, the loss that of a micro-batch."""
    changes = PLAYED | {"beta": 0.1, "steps_per_generation": 2, "num_iterations": 2, "logps_tolerance": 1e-4}
    changes = common(tmp_path, max_steps=4, **changes)
    if kind == "grpo":
        trainer = EnvGRPOTrainer(folder, UNEVEN, config(**changes, num_generations=2))
    else:
        args = EnvPPOConfig(**changes, value_learning_rate=0.0)
        critic = None if kind == "ppo" else AutoModelForCausalLM.from_config(model.config)
        trainer = EnvPPOTrainer(folder, UNEVEN, args, critic=critic)
        with torch.no_grad():
            trainer.critic.head.weight.normal_()
    kept = spy_on_batches(trainer)
    trainer.train()
    trainer.close()
    logs = [entry for entry in trainer.state.log_history if "kl" in entry]
    assert len(logs) == 4 and all(abs(entry["kl"]) < 1e-6 for entry in logs)
    assert all(
        entry[name] == 0.0 for entry in logs for name in entry if name.startswith("clip_ratio/") and "mean" in name
    )
    batch = kept[-1]
    assert batch["prompt_mask"].sum(1).unique().numel() > 1
    for row, trajectory in enumerate(trainer.last_trajectories):
        (tokens,) = trajectory.rows
        expected = alone(model, tokens)[tokens.prompt_length :]
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            np.testing.assert_allclose(batch[name][row, : len(expected)].numpy(), expected, rtol=0, atol=rounding(2e-5))
    if kind != "grpo":
        for row in range(len(batch["prompt_ids"])):
            one = {name: value[row : row + 1] for name, value in batch.items() if getattr(value, "ndim", 0)}
            n_prompt, n = int(one["prompt_mask"].sum()), int(one["completion_mask"].sum())
            one |= {name: one[name][:, -n_prompt:] for name in ("prompt_ids", "prompt_mask")}
            one |= {name: one[name][:, :n] for name in ("completion_ids", "completion_mask", "tool_mask")}
            values, _, _ = trainer._values(to_device(one, trainer.model.device))
            torch.testing.assert_close(batch["old_values"][row, :n], on_cpu(values[0]), rtol=0, atol=1e-4)


def test_dpo_sums_what_the_model_says_of_each_row_alone(model, folder, tokenizer, tmp_path):
    trajectories = play(model, tokenizer)
    trainer = EnvDPOTrainer(folder, args=EnvDPOConfig(**common(tmp_path)), source=trajectories)
    expected = {tuple(t.rows[0].ids.tolist()): alone(model, t.rows[0])[t.rows[0].mask].sum() for t in trajectories}
    batch = trainer.data_collator(trainer.pairs[:4])
    chosen, rejected = trainer.compute_ref_log_probs(trainer.model, trainer._prepare_inputs(batch))
    for name, scored in (("chosen", chosen), ("rejected", rejected)):
        for pair, value in zip(trainer.pairs[:4], scored.tolist(), strict=True):
            assert value == pytest.approx(expected[(*pair["prompt_ids"], *pair[f"{name}_ids"])], abs=rounding(1e-4))


def test_the_loss_of_a_warm_start_is_that_of_the_rows_alone(model, tokenizer, tmp_path):
    trajectories = play(model, tokenizer)
    settings = common(tmp_path, per_device_train_batch_size=len(trajectories), max_steps=1)
    trainer = EnvSFTTrainer(model, args=EnvSFTConfig(**settings), source=trajectories, processing_class=tokenizer)
    trainer.train()
    own = np.concatenate([alone(model, t.rows[0])[t.rows[0].mask] for t in trajectories])
    assert trainer.state.log_history[0]["loss"] == pytest.approx(-own.mean(), abs=rounding(1e-4))


def test_the_loop_scores_parts_of_a_batch_as_the_whole(model, tokenizer):
    trajectories = play(model, tokenizer)
    batch = make_batch(score_episodes(trajectories, RewardSettings(), {}), pad_id=0)
    whole = score_batch(model, batch)
    for row, trajectory in enumerate(trajectories):
        (tokens,) = trajectory.rows
        expected = alone(model, tokens)[tokens.prompt_length :]
        np.testing.assert_allclose(whole[row, : len(expected)].numpy(), expected, rtol=0, atol=rounding(2e-5))
        part = batch.select(torch.tensor([row]))
        scored, _ = score_rows(model, part)
        np.testing.assert_allclose(scored[0].detach().numpy(), expected, rtol=0, atol=rounding(2e-5))


def test_a_model_without_position_ids_is_refused(tokenizer, tmp_path, config, capsys):
    sizes = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    made = BartForCausalLM(BartConfig(vocab_size=len(tokenizer), max_position_embeddings=160, is_decoder=True, **sizes))
    with pytest.raises(ModelError, match=r"BartForCausalLM .*position_ids"):
        TransformersPolicy(made, tokenizer)
    with pytest.raises(ModelError, match="position_ids"):
        token_logps(made, [np.array([1, 2, 3]), np.array([4, 5])])
    with pytest.raises(ModelError, match="position_ids"):
        create_training_state(made)
    with pytest.raises(ModelError, match="position_ids"):
        EnvGRPOTrainer(made, UNEVEN, config(), processing_class=tokenizer)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=160, n_embd=32, n_layer=1, n_head=2))
    with pytest.raises(ModelError, match="position_ids"):
        load_critic(made, gpt2, tokenizer)
    with pytest.raises(ModelError, match="position_ids"):
        EnvGRPOTrainer(gpt2, UNEVEN, config(beta=0.1), processing_class=tokenizer,
                       ref_model_fn=lambda policy: made)  # fmt: skip
    assert len(token_logps(made, [np.array([1, 2, 3])])[0]) == 3  # a row alone has no padding
    made.save_pretrained(tmp_path / "bart")
    tokenizer.save_pretrained(tmp_path / "bart")
    assert main(["doctor", str(tmp_path / "bart")]) == 1
    assert "takes no position_ids" in capsys.readouterr().out
