"""Rows without their padding in one row of the forward pass: the same step as with padded rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AfmoeConfig,
    AutoModelForCausalLM,
    BambaConfig,
    BioGptConfig,
    BloomConfig,
    FalconConfig,
    FalconH1Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    Llama4TextConfig,
    MambaConfig,
    MiniMaxConfig,
    MistralConfig,
    OPTConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    XGLMConfig,
    Zamba2Config,
)
from trl.trainer.utils import add_fused_lm_head

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.inference.positions import pass_positions, position_ids
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvPPOConfig
from llm_envs.trainers.forward.packed_rows import PackedRows, check_packing, pack
from tests.trainers.forward.test_shared_prompts import SIZES, llama_like, model_of, step_of

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


LLAMA = {"vocab_size": len(TOKENIZER), "num_key_value_heads": 1, "head_dim": 16, **SIZES}
HALF = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {f"linear_{name}": 16 for name in ("key_head_dim", "value_head_dim")}
DELTA |= {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
BLOCKS = {"layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1], "num_mem_blocks": 1, "n_mamba_heads": 4}
MIXING = {
    # Their masks never see `position_ids`.
    "gpt_oss": lambda: GptOssConfig(**LLAMA, num_local_experts=4),
    "afmoe": lambda: AfmoeConfig(**LLAMA, **EXPERTS, num_dense_layers=1),
    "opt": lambda: OPTConfig(**OTHER_NAMES, ffn_dim=64, word_embed_proj_dim=32),
    "falcon": lambda: FalconConfig(**OTHER_NAMES),
    "xglm": lambda: XGLMConfig(vocab_size=len(TOKENIZER), d_model=32, num_layers=2, attention_heads=2, ffn_dim=64),
    "biogpt": lambda: BioGptConfig(**OTHER_NAMES, intermediate_size=64),
    # Their recurrent layers and convolutions run on into the next row.
    "bamba": lambda: BambaConfig(**LLAMA, **MAMBA, attn_layer_indices=[1]),
    "falcon_h1": lambda: FalconH1Config(**LLAMA, **MAMBA | {"mamba_d_head": 8, "mamba_d_ssm": 32}),
    "jamba": lambda: JambaConfig(**LLAMA, num_experts=2, attn_layer_offset=1, attn_layer_period=2, mamba_d_state=4),
    "lfm2": lambda: Lfm2Config(**LLAMA, layer_types=["conv", "full_attention"]),
    "minimax": lambda: MiniMaxConfig(**LLAMA, **HALF, num_local_experts=2),
    "qwen3_5": lambda: Qwen3_5TextConfig(**LLAMA, **HALF, **DELTA),
    "qwen3_next": lambda: Qwen3NextConfig(**LLAMA, **HALF, **DELTA, **EXPERTS, shared_expert_intermediate_size=32),
    "recurrent_gemma": lambda: RecurrentGemmaConfig(**LLAMA, lru_width=32, block_types=["recurrent", "attention"]),
    "zamba2": lambda: Zamba2Config(**LLAMA | BLOCKS, mamba_d_state=8, mamba_headdim=16, mamba_ngroups=1, chunk_size=16),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*MIXING, "qwen2_5_vl"])
def test_models_that_mix_rows_are_refused_whatever_the_dtype(name, dtype):
    """Fresh hybrids carry little from row to row: less than bfloat16 rounds."""
    model = (vision_language_model() if name == "qwen2_5_vl" else model_of(MIXING[name]())).to(dtype)
    ids, mask, labels = rows()
    with torch.no_grad(), pytest.raises(ModelError, match=f"packing=True: {type(model).__name__}"):
        PackedRows(model, pass_positions(model), set())(input_ids=ids, attention_mask=mask, labels=labels)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_keep_rows_apart_pass_whatever_the_dtype(dtype):
    """`test_log_probabilities_and_gradients_are_those_of_padded_rows` shows for some that they do."""
    for config in (
        llama_like(),
        GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2),
        GPTNeoConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_layers=2, num_heads=2,
                     attention_types=[[["global", "local"], 1]]),
        Gemma3TextConfig(**LLAMA),
        MistralConfig(vocab_size=len(TOKENIZER), sliding_window=4, num_key_value_heads=1, **SIZES),
        Llama4TextConfig(**LLAMA, num_local_experts=2, intermediate_size_mlp=64),
        Qwen3MoeConfig(**LLAMA, **EXPERTS),
    ):  # fmt: skip
        model = model_of(config).to(dtype).train()  # GPT-2 has dropout
        check_packing(model, model, torch.device("cpu"))
        assert model.training and not any(parameter.grad is not None for parameter in model.parameters())


def test_models_without_positions_are_refused():
    for config in (
        MambaConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=1, state_size=4),
        BloomConfig(vocab_size=len(TOKENIZER), hidden_size=32, n_layer=1, n_head=2),
    ):
        model = model_of(config)
        with pytest.raises(ModelError, match=r"packing=True: .*position_ids"):
            check_packing(model, pass_positions(model), torch.device("cpu"))
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
        places = torch.arange(positions.shape[1]).to(positions)[None].expand_as(positions)
        return args, kwargs | {"position_ids": places}

    # All turns have 8 tokens, so no two rows fit into the longest.
    args = config(packing=True, max_steps=1, logps_tolerance=1e-3, per_device_train_batch_size=8, max_turn_tokens=1)
    trainer = EnvGRPOTrainer(tiny_folder, "test/Say-v0", args)
    trainer.model.register_forward_pre_hook(forget_positions, with_kwargs=True)
    with pytest.raises(ModelError, match=r"logps_tolerance=0\.001"):
        trainer.train()
    trainer.close()


def test_settings_that_cannot_be_together_are_refused():
    with pytest.raises(InvalidConfigError, match=r"share_prompts.*packing"):
        EnvGRPOConfig(output_dir="x", packing=True, share_prompts=True, gradient_checkpointing=False, bf16=False)
    with pytest.raises(InvalidConfigError, match=r"packing=True.* critic"):
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
