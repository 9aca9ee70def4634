"""Rows without their padding in one row of the forward pass: the same step as with padded rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    BioGptConfig,
    BloomConfig,
    FalconConfig,
    GPT2Config,
    GptOssConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    XGLMConfig,
)
from trl.trainer.utils import add_fused_lm_head

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.inference.positions import pass_positions, position_ids
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvPPOConfig
from llm_envs.trainers.bridge.packed_rows import PackedRows, check_packing, pack
from tests.trainers.bridge.test_shared_prompts import SIZES, llama_like, model_of, step_of

pytestmark = [pytest.mark.transformers, pytest.mark.trainings]
TOKENIZER = tiny_tokenizer()


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(0, 20))
def test_packing_loses_no_row_and_fits(lengths, more):
    capacity = max(lengths) + more
    packed = pack(lengths, capacity)
    assert sorted(row for rows in packed for row in rows) == list(range(len(lengths)))
    sizes = [sum(lengths[row] for row in rows) for rows in packed]
    assert max(sizes) <= capacity
    # First fit leaves at most one packed row half empty.
    assert sum(size <= capacity / 2 for size in sizes) <= 1


def rows():
    """Six rows of 3 to 14 tokens, padded on both sides of their 5-token completions' start."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 90, (6, 14), generator=generator)
    mask = torch.ones_like(ids)
    for row, (left, right) in enumerate([(0, 0), (7, 1), (3, 4), (8, 3), (0, 4), (6, 2)]):
        mask[row, :left] = 0
        mask[row, len(mask[row]) - right :] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-5] = -100
    return ids, mask, labels


@pytest.mark.smoke
@pytest.mark.parametrize(
    "config",
    [
        llama_like(),
        GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2),
        MistralConfig(vocab_size=len(TOKENIZER), sliding_window=4, num_key_value_heads=1, **SIZES),
    ],
    ids=["qwen3", "gpt2", "sliding windows"],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_log_probabilities_and_gradients_are_those_of_padded_rows(config, attention):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    seen = []
    model.register_forward_pre_hook(lambda module, args, given: seen.append(given["input_ids"].shape), with_kwargs=True)
    ids, mask, labels = rows()
    found = []
    packs = PackedRows(model, model, {model})
    for given_model, positions in ((model, {"position_ids": position_ids(mask)}), (packs, {})):
        model.zero_grad()
        outputs = given_model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, **positions)
        scored = labels[:, -5:] != -100
        logps, entropies = (value[:, -5:] * scored for value in (outputs.log_probs, outputs.entropy))
        (logps * torch.linspace(1, 2, 5)).sum().backward()
        found.append([logps.detach(), entropies.detach(), *[p.grad.clone() for p in model.parameters()]])
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-5)
    assert seen == [(6, 14), (4, 14)]  # 53 tokens


def test_flash_attention_gets_one_row():
    model = model_of(llama_like())
    model.config._attn_implementation = "flash_attention_2"
    shapes = []

    def forward(**kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        assert "attention_mask" not in kwargs
        return {"log_probs": kwargs["input_ids"][:, 1:].float()}

    ids, mask, labels = rows()
    outputs = PackedRows(forward, model, {model})(input_ids=ids, attention_mask=mask, labels=labels)
    assert shapes == [(1, int(mask.sum()))]
    # Each token is at its place again.
    scored = labels[:, 1:] != -100
    assert torch.equal(outputs.log_probs, ids[:, 1:] * scored)


OTHER_NAMES = {"vocab_size": len(TOKENIZER), "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
VISION = {"hidden_size": 32, "out_hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 64}


def vision_language_model():
    text = {"vocab_size": len(TOKENIZER), "num_key_value_heads": 1, **SIZES}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=VISION))


MIXING = {
    "gpt_oss": lambda: model_of(
        GptOssConfig(**OTHER_NAMES, head_dim=16, num_key_value_heads=1, intermediate_size=32, num_local_experts=4)
    ),
    "opt": lambda: model_of(OPTConfig(**OTHER_NAMES, ffn_dim=64, word_embed_proj_dim=32)),
    "falcon": lambda: model_of(FalconConfig(**OTHER_NAMES)),
    "xglm": lambda: model_of(
        XGLMConfig(vocab_size=len(TOKENIZER), d_model=32, num_layers=2, attention_heads=2, ffn_dim=64)
    ),
    "biogpt": lambda: model_of(BioGptConfig(**OTHER_NAMES, intermediate_size=64)),
    "qwen2_5_vl": vision_language_model,
}


@pytest.mark.parametrize("name", MIXING)
def test_models_that_do_not_look_at_positions_are_refused(name):
    """Their masks never see `position_ids`, so a row reads the rows before it."""
    model = MIXING[name]()
    ids, mask, labels = rows()
    with pytest.raises(ModelError, match=rf"packing=True: {type(model).__name__} .*mixes packed rows"):
        PackedRows(model, pass_positions(model), set())(input_ids=ids, attention_mask=mask, labels=labels)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_keep_rows_apart_pass_whatever_the_dtype(dtype):
    for config in (
        llama_like(),
        GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2),
        MistralConfig(vocab_size=len(TOKENIZER), sliding_window=4, num_key_value_heads=1, **SIZES),
        Qwen3MoeConfig(vocab_size=len(TOKENIZER), head_dim=16, num_key_value_heads=1, **SIZES, **EXPERTS),
    ):
        model = model_of(config).to(dtype).train()  # GPT-2 has dropout
        check_packing(model, model, torch.device("cpu"))
        assert model.training


def test_models_without_attention_or_positions_are_refused():
    recurrent = MambaConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=1, state_size=4)
    hybrid = Qwen3NextConfig(vocab_size=len(TOKENIZER), num_key_value_heads=1, num_experts=2, **SIZES)
    for config in (recurrent, hybrid):
        model = model_of(config)
        with pytest.raises(ModelError, match=r"packing=True: .*linear_attention"):
            check_packing(model, model, torch.device("cpu"))
    relative = model_of(BloomConfig(vocab_size=len(TOKENIZER), hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(ModelError, match="takes no position_ids"):
        check_packing(relative, pass_positions(relative), torch.device("cpu"))
    ids, mask, labels = rows()
    model = model_of(llama_like())
    with pytest.raises(ModelError, match="router's loss"):
        PackedRows(model, model, {model})(input_ids=ids, attention_mask=mask, labels=labels, output_router_logits=True)


def test_the_guard_compares_packed_rows_even_if_the_first_batch_packs_none(tiny_folder, config):
    """A model that mixes rows only beyond a length that the check on short rows does not reach."""

    def forget_positions(module, args, kwargs):
        positions = kwargs.get("position_ids")
        if positions is None or kwargs.get("attention_mask") is not None or positions.shape[1] <= 32:
            return None
        return args, kwargs | {"position_ids": torch.arange(positions.shape[1])[None].expand_as(positions)}

    # All turns have 8 tokens, so no two rows fit into the longest.
    args = config(packing=True, max_steps=1, logps_tolerance=1e-3, per_device_train_batch_size=8, max_turn_tokens=1)
    trainer = EnvGRPOTrainer(tiny_folder, "test/Say-v0", args)
    trainer.model.register_forward_pre_hook(forget_positions, with_kwargs=True)
    with pytest.raises(ModelError, match=r"logps_tolerance=0\.001"):
        trainer.train()
    trainer.close()


def test_settings_that_cannot_be_together_are_refused():
    with pytest.raises(InvalidConfigError, match="replace the forward pass too"):
        EnvGRPOConfig(output_dir="x", packing=True, share_prompts=True, gradient_checkpointing=False, bf16=False)
    with pytest.raises(InvalidConfigError, match="packing=True: a critic reads"):
        EnvPPOConfig(output_dir="x", packing=True, bf16=False)


@pytest.mark.parametrize(
    "settings", [{}, {"beta": 0.1, "num_iterations": 2, "gradient_checkpointing": True}, {"algorithm": "pairwise"}]
)
def test_a_training_ends_with_the_same_weights(tiny_folder, config, settings):
    kwargs = {name: value for name, value in settings.items() if name == "algorithm"}
    kwargs["env"] = {"test/Say-v0": 2.0, "llm/Unanswerable-v0": 1.0}  # a short prompt, and a long one
    changes = {"max_steps": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "optim": "sgd",
               "learning_rate": 0.1, **settings}  # fmt: skip
    changes.pop("algorithm", None)
    padded, n_padded = step_of(tiny_folder, config(**changes), **kwargs)
    packed, n_packed = step_of(tiny_folder, config(**changes, packing=True), **kwargs)
    for name, value in padded.items():
        torch.testing.assert_close(packed[name], value, rtol=0, atol=1e-5, msg=name)
    assert n_packed < 0.8 * n_padded
