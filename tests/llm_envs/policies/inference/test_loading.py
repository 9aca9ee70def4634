"""Loading: every setting reaches the loader under transformers' own name; adapters; what excludes each other."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_folders import save_tiny
from transformers import BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import batch_generate, context_length, load_model, load_tokenizer, token_logps
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]
TOKENIZER = tiny_tokenizer()
GIVEN = [np.random.default_rng(n).integers(3, 260, n).astype(np.int32) for n in (5, 30, 12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model"), TOKENIZER, hidden_size=32, max_length=64, seed=1)


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory):
    """Return the folder of a LoRA adapter that does something, and the log-probabilities of GIVEN under it."""
    path = tmp_path_factory.mktemp("adapter")
    model = get_peft_model(load_model(folder, device="cpu"), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path)
    return path, token_logps(model.eval(), GIVEN)


class Recorder:
    """A loader that writes down what it is asked for."""

    def __init__(self):
        self.model = tiny_model(TOKENIZER, hidden_size=32)
        self.moved_to = []
        self.model.to = lambda device: self.moved_to.append(str(device)) or self.model

    def __call__(self, name, **settings):
        self.name, self.settings = name, settings
        return self.model


def recorded(**arguments):
    loader = Recorder()
    assert load_model("some/name", loader=loader, **arguments) is loader.model
    assert loader.name == "some/name"
    return loader


def test_from_a_folder(folder, tmp_path):
    model, tokenizer = load_model(folder, dtype=torch.float32, device="cpu"), load_tokenizer(folder)
    original = tiny_model(TOKENIZER, hidden_size=32, max_length=64, seed=1)
    assert not model.training
    assert tokenizer.encode("a<|im_end|>") == TOKENIZER.encode("a<|im_end|>")
    assert torch.equal(model.lm_head.weight, original.lm_head.weight)
    with pytest.raises(ModelError, match=r"model .*nothing"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"tokenizer .*nothing"):
        load_tokenizer(tmp_path / "nothing")


def test_without_settings_the_loader_gets_the_safe_ones():
    loader = recorded(device="cpu")
    assert loader.settings == {"dtype": "auto", "trust_remote_code": False}
    assert loader.moved_to == ["cpu"]
    assert not loader.model.training


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"dtype": torch.bfloat16}, {"dtype": torch.bfloat16}),
        ({"trust_remote_code": True}, {"trust_remote_code": True}),
        ({"revision": "abc"}, {"revision": "abc"}),
        ({"attn_implementation": "eager"}, {"attn_implementation": "eager"}),
    ],
)
def test_a_setting_reaches_the_loader(arguments, expected):
    settings = recorded(device="cpu", **arguments).settings
    assert settings == {"dtype": "auto", "trust_remote_code": False} | expected


def test_a_device_map_places_the_model_and_nothing_moves_it():
    loader = recorded(device_map="auto")
    assert loader.settings["device_map"] == "auto"
    assert loader.moved_to == []


def test_quantised_weights_are_placed_while_they_load():
    config = BitsAndBytesConfig(load_in_8bit=True)
    loader = recorded(quantization_config=config, device="cuda:1")
    assert loader.settings["quantization_config"] is config
    assert loader.settings["device_map"] == {"": "cuda:1"}
    assert loader.moved_to == []  # quantised weights refuse to be moved
    assert "device_map" not in recorded(quantization_config=config).settings


def test_shared_layers_are_placed_by_transformers():
    assert recorded(tp_plan="auto").moved_to == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"device": "cpu", "device_map": "auto"}, r"device='cpu' and device_map='auto' exclude each other"),
        ({"device": "cpu", "tp_plan": "auto"}, r"device='cpu' and tp_plan exclude"),
        ({"merge_adapter": True}, "without an adapter"),
    ],
)
def test_settings_that_exclude_each_other(arguments, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        load_model("some/name", loader=Recorder(), **arguments)


def test_the_attention_asked_for_and_a_device_map_on_the_real_loader(folder):
    eager = load_model(folder, attn_implementation="eager", device_map={"": "cpu"})
    assert eager.config._attn_implementation == "eager"
    plain = load_model(folder, attn_implementation="sdpa", device="cpu", dtype=torch.float32)
    for one, other in zip(token_logps(eager, GIVEN), token_logps(plain, GIVEN), strict=True):
        assert np.abs(one - other).max() < 1e-5


@pytest.mark.parametrize("merge", [False, True])
def test_an_adapter_gives_the_log_probabilities_of_the_model_it_was_saved_from(folder, adapter, merge):
    path, expected = adapter
    model = load_model(folder, adapter=path, merge_adapter=merge, device="cpu")
    assert isinstance(model, PeftModel) is not merge
    assert not model.training
    base = token_logps(load_model(folder, device="cpu"), GIVEN)
    for scored, wanted, without in zip(token_logps(model, GIVEN), expected, base, strict=True):
        assert np.abs(scored - wanted).max() < 1e-5
        assert np.abs(scored - without).max() > 1e-2
    sampled = batch_generate(model, GIVEN, SamplingParams(max_new_tokens=5, seed=0))
    sequences = [np.concatenate([ids, s.token_ids]) for ids, s in zip(GIVEN, sampled, strict=True)]
    for ids, s, logps in zip(GIVEN, sampled, token_logps(model, sequences), strict=True):
        assert np.abs(logps[len(ids) :] - s.logps).max() < 1e-5


def test_an_adapter_that_is_not_there_or_does_not_fit(folder, adapter, tmp_path):
    with pytest.raises(ModelError, match=r"adapter .*nothing"):
        load_model(folder, adapter=tmp_path / "nothing", device="cpu")
    tiny_model(TOKENIZER, hidden_size=64).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="adapter"):
        load_model(tmp_path, adapter=adapter[0], device="cpu")


def test_a_tokenizer_without_a_pad_token_gets_one(folder):
    def loader(name, **settings):
        tokenizer = tiny_tokenizer()
        tokenizer.pad_token = None
        return tokenizer

    assert loader("").pad_token_id is None
    assert load_tokenizer("some/name", loader=loader).pad_token_id == TOKENIZER.eos_token_id


def test_the_policy_hands_its_settings_to_the_loader(folder, adapter):
    loader = Recorder()
    settings = {"attn_implementation": "eager", "revision": "abc"}
    policy = TransformersPolicy.from_pretrained(
        folder, loader=loader, device="cpu", load_settings=settings, max_batch_size=7
    )
    assert loader.settings["attn_implementation"] == "eager"
    assert loader.settings["revision"] == "abc"
    assert loader.settings["trust_remote_code"] is False
    assert policy.max_batch_size == 7
    adapted = TransformersPolicy.from_pretrained(folder, device="cpu", load_settings={"adapter": adapter[0]})
    assert isinstance(adapted.model, PeftModel)


def test_the_length_of_the_context_by_whatever_name():
    assert context_length(tiny_model(TOKENIZER, hidden_size=32, max_length=77)) == 77
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=33, n_embd=8, n_layer=1, n_head=1))
    assert context_length(gpt2) == 33
