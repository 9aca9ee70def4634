"""Tiny models of many architectures, with random weights."""

import torch
from transformers import (
    CONFIG_MAPPING,
    AfmoeConfig,
    AutoModelForCausalLM,
    BambaConfig,
    BioGptConfig,
    FalconConfig,
    FalconH1Config,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    MiniMaxConfig,
    OPTConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    XGLMConfig,
    Zamba2Config,
)

from llm_envs.tiny_model import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama_like(**changes):
    return Qwen3Config(vocab_size=len(TOKENIZER), head_dim=16, num_key_value_heads=1, **SIZES | changes)


def model_of(config, **kwargs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, **kwargs)


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


LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
LATENT |= {"num_key_value_heads": 2, "head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
"""Multi-head latent attention: a key for each head, values of another width, and positions in 8 of a head's 24."""

NAMES = [
    "afmoe",
    "apertus",
    "arcee",
    "axk1",
    "biogpt",
    "bitnet",
    "cohere",
    "cohere2",
    "cwm",
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "falcon",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "jais2",
    "jetmoe",
    "llama",
    "longcat_flash",
    "minimax_m2",
    "minicpm3",
    "mistral",
    "ministral",
    "mixtral",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "solar_open",
    "stablelm",
    "starcoder2",
    "vaultgemma",
    "xglm",
    "youtu",
]
"""Types of models that are exact in a prefix tree."""


def tiny(name, **changes):
    """A model of a type, with windows of 4 tokens where it has any."""
    default = CONFIG_MAPPING[name]()
    given = LLAMA | EXPERTS | {"num_local_experts": 4, "sliding_window": 4, "attention_chunk_size": 4}
    given |= LATENT if hasattr(default, "kv_lora_rank") else {}
    given |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | changes
    if name == "falcon":
        del given["head_dim"]
    known = {key: value for key, value in given.items() if hasattr(default, key) or key in LLAMA}
    return model_of(CONFIG_MAPPING[name](**known)).float()
