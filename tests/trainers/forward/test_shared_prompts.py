"""Rows of a group that share one pass over their prompt: the same step as with whole rows."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, MambaConfig, MiniMaxConfig, MistralConfig, Qwen3Config

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvPPOConfig
from llm_envs.trainers.forward.shared_prompts import SharedPrompts

pytestmark = [pytest.mark.transformers, pytest.mark.trainings, pytest.mark.smoke]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TOKENIZER = tiny_tokenizer()


def llama_like(**changes):
    return Qwen3Config(vocab_size=len(TOKENIZER), head_dim=16, num_key_value_heads=1, **SIZES | changes)


def model_of(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config)


def rows():
    """Six rows of three prompts, in no order, of 9, 6 and 9 tokens."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(5, 90, (3, 9), generator=generator)
    masks = torch.ones_like(prompts)
    masks[1, :3] = 0
    order = torch.tensor([0, 2, 1, 0, 1, 0])
    completions = torch.randint(5, 90, (6, 5), generator=generator)
    mask = torch.cat([masks[order], torch.tensor([[1] * 5] * 5 + [[1, 1, 0, 0, 0]])], dim=1)
    return torch.cat([prompts[order], completions], dim=1), mask


class Counted:
    """A model, and how many tokens it has read."""

    def __init__(self, model):
        self.model, self.n_tokens = model, 0

    def __call__(self, **kwargs):
        self.n_tokens += kwargs["input_ids"].numel()
        kwargs.pop("labels", None)
        return self.model(**kwargs)


@pytest.mark.parametrize(
    "config",
    [llama_like(), GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2)],
    ids=["qwen3", "gpt2"],
)
def test_logits_and_gradients_are_those_of_whole_rows(config):
    from llm_envs.policies.inference.positions import position_ids

    model, (ids, mask) = model_of(config).eval(), rows()
    counted = Counted(model)
    found = []
    for call in (
        lambda: model(input_ids=ids, attention_mask=mask, position_ids=position_ids(mask)),
        lambda: SharedPrompts(counted, 5)(input_ids=ids, attention_mask=mask, labels=ids),
    ):
        model.zero_grad()
        logits = call().logits[:, -6:]
        (logits.log_softmax(-1)[..., 7] * mask[:, -6:]).sum().backward()
        found.append([logits.detach() * mask[:, -6:, None], *[p.grad.clone() for p in model.parameters()]])
    for whole, shared in zip(*found, strict=True):
        torch.testing.assert_close(shared, whole, rtol=1e-4, atol=1e-5)
    assert counted.n_tokens == 3 * 8 + 6 * 6


def test_a_prompt_of_one_token_is_no_pass_of_its_own():
    counted, (ids, mask) = Counted(model_of(llama_like())), rows()
    assert SharedPrompts(counted, 13)(input_ids=ids, attention_mask=mask, labels=ids).logits.shape[1] == 14


def test_a_model_that_forgets_is_refused():
    sliding = MistralConfig(vocab_size=len(TOKENIZER), sliding_window=4, num_key_value_heads=1, **SIZES)
    recurrent = MambaConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=1, state_size=4)
    kinds = ["linear_attention", "full_attention"]
    hybrid = MiniMaxConfig(vocab_size=len(TOKENIZER), num_key_value_heads=1, layer_types=kinds, **SIZES)
    ids, mask = rows()
    for config, kind in ((sliding, "DynamicSlidingWindowLayer"), (recurrent, "NoneType"), (hybrid, "MiniMaxCache")):
        with pytest.raises(ModelError, match=f"share_prompts=True.* {kind}"):
            SharedPrompts(model_of(config), 5)(input_ids=ids, attention_mask=mask, labels=ids)
    with pytest.raises(ModelError, match="router's loss"):
        SharedPrompts(None, 5)(input_ids=ids, attention_mask=mask, labels=ids, output_router_logits=True)


def test_settings_that_cannot_be_together_are_refused():
    with pytest.raises(InvalidConfigError, match="gradient_checkpointing=True"):
        EnvGRPOConfig(output_dir="x", share_prompts=True, bf16=False)
    with pytest.raises(InvalidConfigError, match=r"share_prompts=True.*critic"):
        EnvPPOConfig(output_dir="x", share_prompts=True, gradient_checkpointing=False, bf16=False)


def step_of(folder, args, env="test/Say-v0", **kwargs):
    """Train; return the weights, and how many tokens the model read for the losses."""
    trainer, n_tokens = EnvGRPOTrainer(folder, env, args, **kwargs), []
    compute = trainer._compute_loss

    def counted(*given):
        hook = trainer.model.register_forward_pre_hook(
            lambda module, positional, given: n_tokens.append(given["input_ids"].numel()), with_kwargs=True
        )
        loss = compute(*given)
        hook.remove()
        return loss

    trainer._compute_loss = counted
    trainer.train()
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.close()
    return weights, sum(n_tokens)


@pytest.mark.parametrize("settings", [{}, {"beta": 0.1, "num_iterations": 2}, {"algorithm": "pairwise"}])
def test_a_training_ends_with_the_same_weights(tiny_folder, config, settings):
    kwargs = {name: value for name, value in settings.items() if name == "algorithm"}
    changes = {"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "optim": "sgd",
               "learning_rate": 0.1, "gradient_checkpointing": False, **settings}  # fmt: skip
    changes.pop("algorithm", None)
    whole, n_whole = step_of(tiny_folder, config(**changes), **kwargs)
    shared, n_shared = step_of(tiny_folder, config(**changes, share_prompts=True), **kwargs)
    for name, value in whole.items():
        torch.testing.assert_close(shared[name], value, rtol=0, atol=1e-5, msg=name)
    assert n_shared < 0.8 * n_whole
