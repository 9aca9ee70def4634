"""What an engine is handed of each kind of adapter and of wrapped models: names, values, and what is refused by name.

With real engines: test_engine_weights_vllm.py.
"""

import copy

import numpy as np
import peft
import pytest
import torch
import transformers
from experts import tiny_experts
from safetensors.torch import load_file
from wrapped import TEXT_LAYERS, WRAPPED, tiny_wrapped

from llm_envs.errors import InvalidConfigError
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.engines.engine_weights import (
    check_mergeable,
    checkpoint_weights,
    describe_adapter,
    engine_weights,
)
from llm_envs.trainers.engines.probe import check_engine_follows, mean_gap, probe_ids, probe_logps

pytestmark = pytest.mark.transformers

LAYERS = ["q_proj", "v_proj"]


def lora(**changes):
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": LAYERS, **changes})


SERVED = {
    "lora": lora(),
    "dora": lora(use_dora=True),
    "rslora": lora(use_rslora=True),
    "pissa": lora(init_lora_weights="pissa"),
    "olora": lora(init_lora_weights="olora"),
    "eva": lora(init_lora_weights="eva", eva_config=peft.EvaConfig()),
    "random start": lora(init_lora_weights=False),
    "biases": lora(bias="all"),
    "biases of the layers": lora(bias="lora_only"),
    "bias of the adapter": lora(lora_bias=True),
    "a module": lora(modules_to_save=["norm"]),
    "token rows": lora(trainable_token_indices=[5, 6]),
    "parameters": lora(target_modules=[], target_parameters=["self_attn.q_proj.weight"]),
    "ia3": peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "adalora": peft.AdaLoraConfig(r=4, target_modules=LAYERS, total_step=10),
    "norms": peft.LNTuningConfig(target_modules=["input_layernorm"]),
    "only token rows": peft.TrainableTokensConfig(token_indices=[5, 6], target_modules=["embed_tokens"]),
    "loha": peft.LoHaConfig(r=4, target_modules=LAYERS),
    "oft": peft.OFTConfig(oft_block_size=4, r=0, target_modules=LAYERS),
    "pissa_niter": lora(init_lora_weights="pissa_niter_4"),
    **{start: lora(init_lora_weights=start) for start in ("gaussian", "mica", "orthogonal")},
    "lora-ga": lora(lora_ga_config=peft.LoraGAConfig()),
    "kasa": lora(kasa_config=peft.KasaConfig()),
    "qalora": lora(use_qalora=True),
    "beft": peft.BeftConfig(target_modules=LAYERS),
    "boft": peft.BOFTConfig(boft_block_size=4, target_modules=LAYERS),
    "c3a": peft.C3AConfig(block_size=16, target_modules=LAYERS),
    "deft": peft.DeftConfig(target_modules=LAYERS),
    "delora": peft.DeloraConfig(target_modules=LAYERS),
    "fourierft": peft.FourierFTConfig(n_frequency=10, target_modules=LAYERS),
    "frod": peft.FrodConfig(target_modules=LAYERS),
    "glora": peft.GloraConfig(target_modules=LAYERS),
    "gralora": peft.GraloraConfig(r=4, gralora_k=2, target_modules=LAYERS),
    "hira": peft.HiraConfig(target_modules=LAYERS),
    "hra": peft.HRAConfig(target_modules=LAYERS),
    "lokr": peft.LoKrConfig(target_modules=LAYERS),
    "miss": peft.MissConfig(target_modules=LAYERS),
    "peanut": peft.PeanutConfig(target_modules=LAYERS),
    "psoft": peft.PsoftConfig(target_modules=LAYERS),
    "pvera": peft.PveraConfig(target_modules=LAYERS),
    "randlora": peft.RandLoraConfig(r=4, target_modules=LAYERS),
    "road": peft.RoadConfig(group_size=4, target_modules=LAYERS),
    "shira": peft.ShiraConfig(r=2, target_modules=LAYERS),
    "supertuning": peft.SupertuningConfig(target_modules=LAYERS),
    "tinylora": peft.TinyLoraConfig(target_modules=LAYERS),
    "unilora": peft.UniLoraConfig(target_modules=LAYERS),
    "vblora": peft.VBLoRAConfig(r=2, vector_length=16, num_vectors=8, target_modules=LAYERS),
    "vera": peft.VeraConfig(r=4, target_modules=LAYERS),
    "waveft": peft.WaveFTConfig(n_frequency=10, target_modules=LAYERS),
}
# One weight is both the embedding and the output layer, and the engine's is too.
NOT_SERVED = {
    "output layer of a tied model": (lora(modules_to_save=["lm_head"]), "modules_to_save"),
    "embedding of a tied model": (lora(modules_to_save=["embed_tokens"]), "modules_to_save"),
    "adapter of a tied embedding": (lora(target_modules=["embed_tokens", "q_proj"]), "target_modules"),
    "a merge that changes the model": (peft.OSFConfig(target_modules=LAYERS), "OSFConfig"),
    "no merge": (peft.LilyConfig(target_modules=LAYERS), r"LilyConfig.*NotImplementedError"),
    "no merge of whole blocks": (peft.ShadowConfig(), r"ShadowConfig.*cannot be merged"),
}
NO_WEIGHTS = {
    "prompt": peft.PromptTuningConfig(num_virtual_tokens=4),
    "prefix": peft.PrefixTuningConfig(num_virtual_tokens=4),
    "encoded prompt": peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=16),
    "prompts of tasks": peft.MultitaskPromptTuningConfig(num_virtual_tokens=4),
    "prompt of given tokens": peft.CPTConfig(
        task_type="CAUSAL_LM", cpt_token_ids=[1, 2], cpt_mask=[1, 1], cpt_tokens_type_mask=[1, 2]
    ),
    "keys and values": peft.CartridgeConfig(num_virtual_tokens=4),
    "layers' code": peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=1),
    "a task's mixture": peft.PolyConfig(r=4, target_modules=LAYERS),
    "tokens behind a call": lora(alora_invocation_tokens=[5]),
}
NOT_TRIED = {"ADAMSS", "XLORA"}  # it needs scikit-learn; it mixes trained adapters, and is refused with the above


def adapted(config):
    """Return a tied model with an adapter, its base as an engine, and its names."""
    config = copy.deepcopy(config)
    config.task_type = "CAUSAL_LM"
    torch.manual_seed(0)
    base = tiny_model(tiny_tokenizer(), hidden_size=64, n_heads=2, max_length=64, seed=3)
    if getattr(config, "bias", "none") != "none" or getattr(config, "lora_bias", False):
        for layer in base.model.layers:
            for name in LAYERS:
                projection = getattr(layer.self_attn, name)
                projection.bias = torch.nn.Parameter(torch.zeros(projection.out_features))
    engine = copy.deepcopy(base).eval()
    return peft.get_peft_model(base, config), engine


def follow(model, engine):
    """Let `engine` be sent the model's weights, of exactly its own names, and check that it follows."""
    names, n_sent = dict(engine.named_parameters()).keys(), []

    def send():
        sent = {name: value.clone() for name, value in engine_weights(model)}
        assert sent.keys() - {"lm_head.weight"} == names
        engine.load_state_dict(sent, strict=False)
        n_sent.append(len(sent))

    check_engine_follows(model, send, lambda ids: probe_logps(engine, ids))
    return len(n_sent)


@pytest.mark.parametrize("name", SERVED)
def test_an_engine_has_what_each_adapter_trains(name):
    model, engine = adapted(SERVED[name])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    was_training = model.training
    assert follow(model, engine) >= 1
    assert model.training is was_training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_each_kind_of_trained_parameters_is_probed_by_itself():
    model, engine = adapted(lora(bias="all", trainable_token_indices=[5], modules_to_save=["norm"]))
    assert follow(model, engine) == 4


@pytest.mark.parametrize("name", NOT_SERVED)
def test_an_adapter_that_an_engine_cannot_have_is_refused_by_name(name):
    config, setting = NOT_SERVED[name]
    model, engine = adapted(config)
    with pytest.raises(InvalidConfigError, match=rf"{setting}.*use_vllm=False"):
        follow(model, engine)


def test_an_engine_that_lacks_a_part_is_noticed():
    """Whether the adapter itself, or a few of its tokens' rows, which hardly count in a mean over the vocabulary."""
    model, engine = adapted(lora(trainable_token_indices=[5, 6]))
    for lacks in ("q_proj.weight", "embed_tokens.weight"):

        def send(lacks=lacks):
            engine.load_state_dict({n: v for n, v in engine_weights(model) if not n.endswith(lacks)}, strict=False)

        start = copy.deepcopy(engine.state_dict())
        with pytest.raises(InvalidConfigError, match=r"peft_config=.*vLLM"):
            check_engine_follows(model, send, lambda ids: probe_logps(engine, ids))
        engine.load_state_dict(start)


@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_an_adapter_without_weights_to_merge_is_refused(name):
    model, _ = adapted(NO_WEIGHTS[name])
    with pytest.raises(InvalidConfigError, match=rf"peft_config={type(NO_WEIGHTS[name]).__name__}\("):
        check_mergeable(model)


def test_every_kind_of_adapter_is_served_or_refused():
    tried = [*SERVED.values(), *NO_WEIGHTS.values(), *(config for config, _ in NOT_SERVED.values())]
    kinds = {str(kind.value) for kind in peft.PEFT_TYPE_TO_CONFIG_MAPPING}
    assert kinds - {str(config.peft_type.value) for config in tried} == NOT_TRIED


def test_the_copy_of_a_module_that_is_the_references_is_not_sent():
    model, engine = adapted(lora(modules_to_save=["norm"]))
    model.add_adapter("ref", model.peft_config["default"])
    assert follow(model, engine) == 2


def test_an_adapter_is_described_by_its_settings():
    model, _ = adapted(lora(bias="all"))
    text = "LoraConfig(r=4, target_modules=['q_proj', 'v_proj'], bias='all')"
    assert describe_adapter(model) == text


def test_experts_have_the_names_and_values_of_a_checkpoint(tmp_path):
    model = tiny_experts()
    assert any(value.ndim == 3 for value in model.parameters())
    model.save_pretrained(tmp_path)
    sent, saved = dict(checkpoint_weights(model, model.named_parameters())), load_file(tmp_path / "model.safetensors")
    assert sent.keys() == saved.keys()
    for name, value in saved.items():
        torch.testing.assert_close(sent[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("names", [["a", "b.experts.c"], []])
def test_another_model_keeps_its_own(names):
    pairs = [(name, torch.zeros(1, 2, 3)) for name in names]
    assert list(checkpoint_weights(tiny_model(tiny_tokenizer()), pairs)) == pairs


@pytest.mark.smoke
@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("adapter", [None, lora(target_modules=TEXT_LAYERS)], ids=["whole", "lora"])
def test_a_wrapped_model_has_the_names_of_its_checkpoint(tmp_path, kind, adapter):
    """The text part is `model.language_model` in one release of transformers, and `language_model.model` in files."""
    tiny_wrapped(kind, tmp_path)
    loaded = getattr(transformers, WRAPPED[kind]).from_pretrained(tmp_path, dtype=torch.float32)
    saved = load_file(tmp_path / "model.safetensors")
    model = loaded if adapter is None else peft.get_peft_model(loaded, copy.deepcopy(adapter))
    sent = dict(engine_weights(model))
    assert sent.keys() <= saved.keys()
    assert not [name for name in saved.keys() - sent.keys() if not name.endswith("layer_scalar")]  # Gemma 4's buffer
    for name, value in sent.items():
        torch.testing.assert_close(value, saved[name], rtol=0, atol=1e-6)


def test_the_text_part_alone_of_a_wrapped_model_has_the_names_of_the_whole(tmp_path):
    """TRL's issue 5269: `AutoModelForCausalLM` loads Qwen 3.5's text part, whose own names the engine does not know."""
    tiny_wrapped("qwen3_5", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    saved = load_file(tmp_path / "model.safetensors")
    own = dict(model.named_parameters())
    sent = dict(engine_weights(model))
    assert not own.keys() & saved.keys() and sent.keys() <= saved.keys() and len(sent) == len(own)
    assert {name for name in saved.keys() - sent.keys() if "visual" not in name} == set()


def test_probes_score_the_rows_that_an_adapter_trains():
    model, _ = adapted(lora(trainable_token_indices=[250, 251]))
    ids = probe_ids(model)
    assert {250, 251} <= set(ids.tolist())
    logps = probe_logps(model, ids)
    assert mean_gap(logps, logps) == 0 and mean_gap(logps, logps + np.float32(1)) == pytest.approx(1)
