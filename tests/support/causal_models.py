"""Small models of many types, for what must hold whatever the type."""

import pytest
import torch
import transformers

CONTEXT = 64
SMALL = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {"intermediate_size": 96, "max_position_embeddings": CONTEXT, "pad_token_id": None} | SMALL
GQA = LLAMA | {"num_key_value_heads": 2, "head_dim": 16}
GPT2 = {"vocab_size": 97, "n_positions": CONTEXT, "n_embd": 64, "n_layer": 2, "n_head": 4}
LINEAR = {f"linear_{name}": 16 for name in ("key_head_dim", "value_head_dim")}
LINEAR |= {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
FAMILIES = {
    # name of the type: (its config class, arguments)
    "llama": ("LlamaConfig", GQA),
    "qwen3": ("Qwen3Config", GQA),
    "gemma": ("GemmaConfig", GQA),
    "gemma3": ("Gemma3TextConfig", GQA | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    "mistral": ("MistralConfig", GQA | {"sliding_window": 8}),
    "gpt_oss": ("GptOssConfig", GQA | {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    # learned positions: one past the table is an error
    "gpt2": ("GPT2Config", GPT2),
    "opt": ("OPTConfig", SMALL | {"ffn_dim": 96, "max_position_embeddings": CONTEXT, "word_embed_proj_dim": 64}),
    "gpt_neo": (
        "GPTNeoConfig",
        {"vocab_size": 97, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_position_embeddings": CONTEXT}
        | {"attention_types": [[["global", "local"], 1]]},
    ),
    # no position_ids among their arguments
    "bloom": ("BloomConfig", {"vocab_size": 97, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "mamba2": (
        "Mamba2Config",
        SMALL | {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 16},
    ),
    "falcon_mamba": ("FalconMambaConfig", {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2}),
    # a table over the places of the padded batch
    "mpt": ("MptConfig", {"vocab_size": 97, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT}),
    # layers with a recurrent state among those with keys and values; recurrent ones alone
    "qwen3_5": ("Qwen3_5TextConfig", GQA | LINEAR | {"layer_types": ["linear_attention", "full_attention"]}),
    "mamba": ("MambaConfig", {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2}),
}


def make(name):
    class_name, arguments = FAMILIES[name]
    if not hasattr(transformers, class_name):
        pytest.skip(f"this version of transformers has no {class_name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, class_name)(**arguments))
    with torch.no_grad():  # random weights are nearly uniform: sharpen them, so that a wrong distribution shows
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model.float().eval()
