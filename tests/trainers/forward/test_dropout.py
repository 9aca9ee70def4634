"""Dropout is off in every driver unless it is asked for, wherever a model or an adapter has it."""

import peft
import pytest
import torch
import transformers
from preferences import message_pairs
from trainings import DENSE, PLAYED, QUIET, TRAINERS
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from llm_envs.errors import ModelError
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers.forward.dropout import describe_dropout, disable_dropout
from llm_envs.trainers.functional.references import create_ema_update
from llm_envs.trainers.loop import create_training_state

pytestmark = pytest.mark.transformers

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIGS = {
    "GPT2": {"embd_pdrop": 0.5, "resid_pdrop": 0.5, "attn_pdrop": 0.5},
    "OPT": {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5, "ffn_dim": 32, "word_embed_proj_dim": 32},
    "Falcon": {"hidden_dropout": 0.5, "attention_dropout": 0.5},
    "Phi": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attention_dropout": 0.5, "intermediate_size": 32},
    "GPTNeoX": {"hidden_dropout": 0.5, "attention_dropout": 0.5, "intermediate_size": 32},
    "BioGpt": {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "activation_dropout": 0.5}
    | {"layerdrop": 0.5, "intermediate_size": 32},
    "Persimmon": {"hidden_dropout": 0.5, "attention_dropout": 0.5, "intermediate_size": 32},
    "Llama": {"attention_dropout": 0.5, "intermediate_size": 32, "num_key_value_heads": 2},
}
"""How each kind keeps its rates: in layers, in numbers of a module or of the config, in chances to skip a layer."""
ADAPTERS = {
    "lora": lambda: peft.LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj"], init_lora_weights=False),
    "loha": lambda: peft.LoHaConfig(
        r=4, rank_dropout=0.5, module_dropout=0.5, target_modules=["q_proj"], init_weights=False
    ),
}


def make(name):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL | CONFIGS[name])
    return AutoModelForCausalLM.from_config(config).train()


def is_random(model):
    """Whether a forward pass in training mode is another than one without masks."""
    ids = torch.arange(2, 34)[None]
    with torch.no_grad():
        drawn = model.train()(ids).logits
        fixed = model.eval()(ids).logits
    model.train()
    return not torch.equal(drawn, fixed)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_without_dropout_computes_the_same_in_training(name):
    model = make(name)
    saved = model.config.to_dict()
    assert is_random(model) and describe_dropout(model).startswith("0.5 in ")
    disable_dropout(model)
    assert not is_random(model) and describe_dropout(model) == ""
    assert model.config.to_dict() == saved  # which is written beside the weights


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_has_none_either(kind):
    model = make("Llama")
    disable_dropout(model)
    model = peft.get_peft_model(model, ADAPTERS[kind]())
    assert is_random(model) and "q_proj" in describe_dropout(model)
    disable_dropout(model)
    assert not is_random(model) and describe_dropout(model) == ""


def test_the_places_are_counted():
    assert describe_dropout(torch.nn.Dropout(0.25)) == "0.25 in "
    both = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.Dropout(0.0), torch.nn.Dropout(0.1))
    assert describe_dropout(both) == "0.25 in 0 and 1 more place"


OWN = {"grpo": {"beta": 0.1, "num_generations": 4, **PLAYED}, "ppo": {"beta": 0.1, **PLAYED}, "dpo": {}}


@pytest.fixture
def folder(tmp_path):
    """A saved GPT-2 with the dropout that its config has by default, and weights that make masks matter."""
    tokenizer = tiny_tokenizer()
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=160, n_embd=32, n_layer=2, n_head=2, **ids)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def make_trainer(folder, tmp_path, keep):
    def build(kind="grpo", settings=None, **arguments):
        trainer_class, config = TRAINERS[kind]
        common = QUIET | {"max_steps": 1, "per_device_train_batch_size": 4, "learning_rate": 0.0}
        args = config(str(tmp_path / "out"), **common | OWN[kind] | (settings or {}))
        if kind == "dpo":
            return trainer_class(folder, args, source=message_pairs(), **arguments)
        return keep(trainer_class(folder, DENSE, args, **arguments))

    return build


def lora():
    return peft.LoraConfig(r=4, lora_dropout=0.5, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")


@pytest.mark.trainings
@pytest.mark.parametrize("kind", OWN)
def test_every_trainer_switches_it_off_also_in_an_adapter_that_is_the_reference(make_trainer, kind):
    trainer = make_trainer(kind, peft_config=lora(), reference_update_fn=create_ema_update(0.5))
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert "ref" in model.peft_config and describe_dropout(model) == ""


def test_the_plain_loop_switches_it_off_too(folder):
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), lora())
    assert describe_dropout(create_training_state(model, disable_dropout=False).model)
    assert describe_dropout(create_training_state(model).model) == ""


@pytest.mark.trainings
def test_a_model_with_dropout_in_its_config_is_trained_as_it_samples(make_trainer):
    trainer = make_trainer(peft_config=lora(), reference_update_fn=create_ema_update(0.5))
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["sampling/guard_logps_gap"] < 1e-4 and log["kl"] < 1e-6


@pytest.mark.smoke
@pytest.mark.trainings
def test_the_guard_names_dropout_and_its_setting(make_trainer):
    with pytest.raises(ModelError, match=r"0\.1 in transformer\.drop .*disable_dropout=True"):
        make_trainer(settings={"disable_dropout": False}).train()
