"""Whatever the model type: a sequence in a padded batch is sampled and scored as if it were alone."""

import numpy as np
import pytest
import torch
import transformers

from llm_envs.policies.inference import batch_generate, context_length, generate, token_logits, token_logps
from llm_envs.types import FinishReason, SamplingParams

pytestmark = pytest.mark.transformers
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
    "gemma3": (
        "Gemma3TextConfig",
        GQA | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
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
TOLERANCE = {"mamba": 1e-4, "mamba2": 1e-4, "falcon_mamba": 1e-4}  # their scans sum in another order


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


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param, make(request.param)


def prompts(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(2, 97, n).astype(np.int32) for n in lengths]


def unpadded_logits(model, ids):
    with torch.no_grad():
        return model(torch.from_numpy(ids[None].astype(np.int64))).logits[0].float()


def test_a_row_is_sampled_and_scored_as_if_alone(family):
    """Long and short prompts, rows that end early, one that runs to the context's end beside others that go on."""
    name, model = family
    given = prompts(1, 60, 23, 12, 5, 30)
    limits = [40, 4, 20, 30, 12, 8]
    together = batch_generate(
        model, given, max_new_tokens=limits, seeds=range(6), stop_token_ids=(1, 2), micro_batch_size=None
    )
    assert len({len(sampled.token_ids) for sampled in together}) > 2
    tolerance = TOLERANCE.get(name, 1e-5)
    sequences = []
    for index, (prompt, sampled) in enumerate(zip(given, together, strict=True)):
        alone = batch_generate(model, [prompt], max_new_tokens=[limits[index]], seeds=[index], stop_token_ids=(1, 2))
        assert alone[0].token_ids.tolist() == sampled.token_ids.tolist()
        assert np.abs(alone[0].logps - sampled.logps).max() < tolerance
        sequences.append(np.concatenate([prompt, sampled.token_ids]))
    scored = token_logps(model, sequences, micro_batch_size=4)
    logits = token_logits(model, sequences, micro_batch_size=3)
    for prompt, ids, sampled, logps, rows in zip(given, sequences, together, scored, logits, strict=True):
        expected = unpadded_logits(model, ids)[:-1]
        assert rows.shape == (len(ids) - 1, 97)
        assert float((rows - expected).abs().max()) < 10 * tolerance
        chosen = expected.log_softmax(-1).gather(-1, torch.from_numpy(ids[1:, None].astype(np.int64)))[:, 0]
        assert np.abs(logps[1:] - chosen.numpy()).max() < tolerance
        assert np.abs(logps[len(prompt) :] - sampled.logps).max() < tolerance


def test_a_row_that_joins_a_running_batch_is_sampled_as_if_alone(family):
    """Two rows at a time: each later one joins beside a row that runs, longer or shorter than itself."""
    name, model = family
    given = prompts(1, 60, 23, 12, 5, 30, 23)
    given[-1] = given[2].copy()
    limits = [40, 4, 20, 30, 12, 8, 9]
    tolerance = TOLERANCE.get(name, 1e-5)
    joined = batch_generate(
        model, given, max_new_tokens=limits, seeds=range(7), stop_token_ids=(1, 2), micro_batch_size=2
    )
    for index, (prompt, sampled) in enumerate(zip(given, joined, strict=True)):
        (alone,) = batch_generate(model, [prompt], max_new_tokens=[limits[index]], seeds=[index], stop_token_ids=(1, 2))
        assert alone.token_ids.tolist() == sampled.token_ids.tolist()
        assert np.abs(alone.logps - sampled.logps).max() < tolerance


def test_the_context_ends_a_turn_and_a_full_one_has_its_own_reason(family):
    """The row that ends at the context's end runs on, unheard, beside four that do not: it must not break the model."""
    name, model = family
    if name in ("bloom", "falcon_mamba", "mamba", "mamba2"):
        assert context_length(model) == 1_000_000
        return
    params = SamplingParams(max_new_tokens=6, seed=0)
    first, full, over, *others = batch_generate(model, prompts(62, CONTEXT, 200, 3, 4, 5, 6), params, stop_token_ids=())
    assert (len(first.token_ids), first.finish_reason) == (2, FinishReason.LENGTH)
    assert [(len(s.token_ids), s.finish_reason) for s in (full, over)] == [(0, FinishReason.CONTEXT_FULL)] * 2
    assert [(len(s.token_ids), s.finish_reason) for s in others] == [(6, FinishReason.LENGTH)] * 4


def test_a_config_that_turns_the_cache_off_changes_nothing():
    model = make("llama")
    expected = generate(model, prompts(9)[0], seed=3)
    model.config.use_cache = False
    model.generation_config.use_cache = False
    assert generate(model, prompts(9)[0], seed=3).token_ids.tolist() == expected.token_ids.tolist()
