"""References made and moved by functions: in full fine-tuning, under LoRA, saved and resumed, for each trainer."""

import copy
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import peft
import pytest
import torch
from device import on_cpu
from preferences import message_pairs
from safetensors.torch import load_file
from tiny_folders import save_tiny
from trainings import DENSE, PLAYED, QUIET, assert_same, distance, logged, save_biased
from transformers import AutoModelForCausalLM, Llama4ForCausalLM
from trl.trainer.utils import use_adapter
from wrapped import tiny_wrapped

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer, EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.engines.probe import mean_gap, probe_ids, probe_logps
from llm_envs.trainers.functional.algorithm import GRPO, PAIRWISE, PPO
from llm_envs.trainers.functional.references import (
    KLTriggeredUpdate,
    create_ema_update,
    create_periodic_update,
    frozen_copy,
)
from llm_envs.trainers.reference import Reference, adapter_weights

pytestmark = pytest.mark.trainings

SMALL = {
    "optim": "sgd",
    "learning_rate": 0.5,
    "lr_scheduler_type": "constant",
    "max_steps": 2,
    "seed": 5,
    "per_device_train_batch_size": 8,
    **QUIET,
}
EVERY = {"save_strategy": "steps", "save_steps": 1}


@pytest.fixture
def make(tiny_folder, config, tmp_path, keep):
    def build(settings=None, model=tiny_folder, kind="grpo", **arguments):
        settings = SMALL | {"output_dir": str(tmp_path / "out")} | (settings or {})
        if kind == "dpo":
            return EnvDPOTrainer(model, EnvDPOConfig(**settings), source=message_pairs(), **arguments)
        if kind == "ppo":
            args = EnvPPOConfig(**{"beta": 0.1, "num_generations": 4} | PLAYED | settings)
            return keep(EnvPPOTrainer(model, DENSE, args, **arguments))
        args = config(**{"beta": 0.1} | PLAYED | settings)
        return keep(EnvGRPOTrainer(model, DENSE, args, **arguments))

    return build


@pytest.fixture(scope="module")
def biased_folder(tmp_path_factory):
    return save_biased(tmp_path_factory.mktemp("biased"))


def copied(module):
    return {name: on_cpu(value.detach().clone()) for name, value in module.named_parameters()}


def lora(**changes):
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **changes)


def trained_adapter(tiny_folder):
    """A LoRA model whose adapter does something."""
    torch.manual_seed(2)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_folder), lora())
    for parameter in adapter_weights(model, "default").parameters():
        parameter.data.normal_(std=0.1)
    return model


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["grpo", "ppo", "dpo"])
def test_an_ema_is_the_average_by_hand(make, kind):
    """After two steps: `0.75 (0.75 w0 + 0.25 w1) + 0.25 w2`."""
    seen, ema = [], create_ema_update(0.75)

    def update(reference, policy, *, step, kl):
        seen.append((step, kl, copied(policy)))
        return ema(reference, policy, step=step, kl=kl)

    trainer = make(kind=kind, reference_update_fn=update)
    start = copied(trainer.model)
    trainer.train()
    (_, kl_1, one), (_, kl_2, two) = seen
    assert [step for step, *_ in seen] == [1, 2] and distance(start, one) > 1e-4
    expected = {name: 0.75 * (0.75 * start[name] + 0.25 * one[name]) + 0.25 * two[name] for name in start}
    assert_same(copied(trainer.ref_model), expected)
    assert kl_1 == pytest.approx(0.0, abs=1e-6) and kl_2 > 1e-6
    assert logged(trainer, "reference/kl") == pytest.approx([kl_1, kl_2], rel=1e-3, abs=1e-6)
    assert logged(trainer, "reference/updates") == [1.0, 2.0]
    assert not any(parameter.requires_grad for parameter in trainer.ref_model.parameters())


def test_a_periodic_reference_is_counted_when_it_moves(make):
    trainer = make({"max_steps": 3}, reference_update_fn=create_periodic_update(2))
    seen = []
    update = trainer._reference.update_fn
    trainer._reference.update_fn = lambda *given, **more: seen.append(copied(given[1])) or update(*given, **more)
    trainer.train()
    assert logged(trainer, "reference/updates") == [0.0, 1.0, 1.0]
    assert_same(copied(trainer.ref_model), seen[1], atol=0.0)


@pytest.mark.parametrize("kind", ["grpo", "dpo"])
def test_under_lora_the_reference_is_an_adapter_that_follows(make, tiny_folder, tmp_path, kind):
    """It begins as the base model, has half of the adapter after a step at decay 0.5, and is in no saved file."""
    trainer = make(
        {"max_steps": 1, "learning_rate": 2.0} | EVERY,
        kind=kind,
        peft_config=lora(),
        reference_update_fn=create_ema_update(0.5),
    )
    model = trainer.accelerator.unwrap_model(trainer.model)
    base = AutoModelForCausalLM.from_pretrained(tiny_folder).to(model.device)
    ids = torch.arange(40, 60, device=model.device)[None]
    with torch.no_grad():
        model.set_adapter("ref")
        torch.testing.assert_close(model(ids).logits, base(ids).logits)
        model.set_adapter("default")
    start = copied(adapter_weights(model, "default"))
    trainer.train()
    moved = copied(adapter_weights(model, "default"))
    assert distance(start, moved) > 1e-4
    expected = {name: 0.5 * (start[name] + moved[name]) for name in start}
    assert_same(copied(adapter_weights(model, "ref")), expected)
    assert model.active_adapter == "default"
    assert [name for name, p in model.named_parameters() if p.requires_grad and ".default." not in name] == []
    in_optimizer = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not in_optimizer & {id(p) for p in adapter_weights(model, "ref").parameters()}
    trainer.save_model(str(tmp_path / "saved"))
    for folder in (tmp_path / "saved", tmp_path / "out" / "checkpoint-1"):
        assert not (folder / "ref").exists()
        assert not any(".ref." in name for name in load_file(folder / "adapter_model.safetensors"))
    assert (tmp_path / "out" / "checkpoint-1" / "reference").is_dir()


@pytest.mark.vllm
def test_under_lora_with_vllm_the_engine_has_the_trained_adapter(make):
    """And pairs, torn over micro-batches, against the adapter that follows."""
    pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
    engine = {"use_vllm": True, "vllm_max_model_length": 192, "vllm_gpu_memory_utilization": 0.3}
    trainer = make(
        {"max_steps": 3, "beta": 0.0, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4} | engine,
        peft_config=lora(),
        algorithm=replace(PAIRWISE, kl_coef=0.1),
        reference_update_fn=create_ema_update(0.5),
    )
    trainer.train()
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4
    assert logged(trainer, "reference/updates") == [1.0, 2.0, 3.0] and logged(trainer, "reference/kl")[-1] > 0


def test_a_trained_adapter_is_its_own_reference(make, tiny_folder):
    """Training that starts from an adapter is measured against that adapter as it was given: the first KL is 0."""
    model = trained_adapter(tiny_folder)
    given = copied(adapter_weights(model, "default"))
    trainer = make({"max_steps": 2}, model=model, reference_update_fn=create_periodic_update(5))
    assert_same(copied(adapter_weights(model, "ref")), given, atol=0.0)
    trainer.train()
    assert logged(trainer, "reference/kl")[0] == pytest.approx(0.0, abs=1e-6)
    assert_same(copied(adapter_weights(model, "ref")), given, atol=0.0)
    assert logged(trainer, "reference/updates") == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["grpo", "dpo", "lora", "lora-dpo"])
def test_a_resumed_run_has_the_reference_of_the_whole_one(make, tmp_path, kind):
    class EmaThenCopy(KLTriggeredUpdate):
        """State of both kinds: weights that lag behind, and a sum that triggers a copy."""

        def __call__(self, reference, policy, *, step, kl):
            create_ema_update(0.5)(reference, policy, step=step, kl=kl)
            return super().__call__(reference, policy, step=step, kl=kl)

    settings = {"max_steps": 3, "learning_rate": 1.0} | EVERY
    further = {"peft_config": lora()} if kind.startswith("lora") else {}

    def run(folder, resume=None):
        update = EmaThenCopy(1e6)
        trainer = make(
            settings | {"output_dir": str(tmp_path / folder)},
            kind="dpo" if kind.endswith("dpo") else "grpo",
            reference_update_fn=update,
            **further,
        )
        trainer.train(resume_from_checkpoint=resume)
        model = trainer.accelerator.unwrap_model(trainer.model)
        reference = adapter_weights(model, "ref") if further else trainer.ref_model
        return trainer, copied(reference), update.accumulated_kl

    whole, reference, whole_kl = run("whole")
    resumed, again, resumed_kl = run("resumed", str(tmp_path / "whole" / "checkpoint-2"))
    assert whole_kl > 1e-7 and resumed_kl == pytest.approx(whole_kl, rel=1e-4)
    assert_same(reference, again)
    assert_same(copied(whole.model), copied(resumed.model))
    assert logged(resumed, "reference/updates") == [1.0, 2.0, 3.0]
    if kind != "grpo":
        return
    without = make(settings | {"output_dir": str(tmp_path / "without")})
    with pytest.raises(InvalidConfigError, match="reference_update_fn, sync_ref_model"):
        without.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))


SYNC = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}


@pytest.mark.parametrize("kind", [pytest.param("grpo", marks=pytest.mark.smoke), "ppo", "dpo", "kl in reward"])
def test_a_resumed_run_has_the_reference_that_trl_moved(make, tmp_path, kind):
    """TRL moves it after step 2, so the checkpoint of step 3 has neither the initial weights nor the policy's."""
    settings = {"max_steps": 4, "learning_rate": 1.0} | EVERY | SYNC
    further = {}
    if kind == "kl in reward":
        settings["beta"], further["algorithm"] = 0.0, replace(GRPO, kl_coef=0.1, kl_in="reward")

    def run(folder, resume=None):
        kind_of = kind if kind in ("ppo", "dpo") else "grpo"
        trainer = make(settings | {"output_dir": str(tmp_path / folder)}, kind=kind_of, **further)
        initial = copied(trainer.ref_model)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, initial, copied(trainer.ref_model)

    whole, initial, reference = run("whole")
    resumed, again, moved = run("resumed", str(tmp_path / "whole" / "checkpoint-3"))
    assert_same(initial, again, atol=0.0)
    assert distance(initial, reference) > 1e-3
    assert_same(reference, moved)
    assert_same(copied(whole.model), copied(resumed.model))


@pytest.mark.parametrize(("saved", "resumed"), [({}, SYNC), (SYNC, {})])
def test_a_checkpoint_without_the_reference_that_trl_moves_is_refused(make, tmp_path, saved, resumed):
    make({"max_steps": 1, "output_dir": str(tmp_path / "saved")} | EVERY | saved).train()
    trainer = make({"max_steps": 2, "output_dir": str(tmp_path / "resumed")} | resumed)
    with pytest.raises(InvalidConfigError, match="reference_update_fn, sync_ref_model"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "saved" / "checkpoint-1"))


def test_a_reference_in_pieces_is_not_saved_and_the_log_says_so(caplog, tmp_path):
    state = SimpleNamespace(deepspeed_plugin=None)
    trainer = SimpleNamespace(
        args=SimpleNamespace(sync_ref_model=True), is_fsdp_enabled=True, accelerator=SimpleNamespace(state=state)
    )
    assert Reference(None, None).save(trainer, tmp_path) is None
    assert "cannot be resumed from: sync_ref_model=True" in caplog.text and "FSDP" in caplog.text


def test_a_copy_made_by_a_function_is_trls_reference(make, tiny_folder):
    plain, ours = make(), make(ref_model_fn=frozen_copy)
    plain.train()
    assert ours.ref_model is not None and ours.args.beta == 0.1
    ours.train()
    assert_same(copied(plain.model), copied(ours.model))
    device = ours.model.device
    # The copy has nothing of the policy in it, called as a model either.
    ids = torch.arange(40, 60, device=device)[None]
    untouched = AutoModelForCausalLM.from_pretrained(tiny_folder).to(device)
    with torch.no_grad():
        torch.testing.assert_close(ours.ref_model(ids).logits, untouched(ids).logits)


@pytest.mark.parametrize(("kind", "kl_in"), [("grpo", "reward"), ("grpo", "loss"), ("ppo", "reward"), ("dpo", None)])
def test_a_teacher_is_a_reference(make, tiny_folder, kind, kl_in):
    teacher = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    further = {}
    if kl_in:
        further["algorithm"] = replace(PPO if kind == "ppo" else GRPO, kl_coef=0.1, kl_in=kl_in)
    settings = {"max_steps": 1, "beta": 0.0} if kl_in else {"max_steps": 1}
    trainer = make(settings, kind=kind, ref_model_fn=lambda policy: teacher, **further)
    assert trainer.accelerator.unwrap_model(trainer.ref_model) is teacher
    start = copied(teacher)
    trainer.train()
    if kl_in:
        assert logged(trainer, "kl")[0] > 1e-3  # it is measured against the teacher, from the first step on
    assert_same(copied(teacher), start, atol=0.0)


def test_learning_from_a_teacher_alone_approaches_it(make, tiny_folder):
    """The environment's reward does not count and k2 is the loss: on the rows of one generation it falls."""
    torch.manual_seed(0)
    teacher = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        teacher.get_output_embeddings().weight.add_(0.1 * torch.randn_like(teacher.get_output_embeddings().weight))
    trainer = make(
        {"max_steps": 8, "num_iterations": 8, "optim": "adamw_torch", "learning_rate": 5e-3, "beta": 0.0},
        ref_model_fn=lambda policy: teacher,
        algorithm="distill_loss",
    )
    trainer.train()
    kl = logged(trainer, "kl")
    assert kl[0] > 0.5 and kl[-1] < 0.5 * kl[0]


def other_words(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["one", "more"])
    folder = save_tiny(tmp_path / "teacher", tokenizer, hidden_size=32, n_heads=2)
    return AutoModelForCausalLM.from_pretrained(folder)


def shifted_words(tmp_path, tiny_folder):
    """As many ids, each of another word."""
    folder = tmp_path / "shifted"
    shutil.copytree(tiny_folder, folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {word: (number + 1) % len(vocabulary) for word, number in vocabulary.items()}
    path.write_text(json.dumps(content))
    return AutoModelForCausalLM.from_pretrained(folder)


def test_a_teacher_of_other_words_is_refused(make, tmp_path, tiny_folder):
    unknown = tiny_model(tiny_tokenizer(), hidden_size=32, n_heads=2)
    unknown.resize_token_embeddings(400)
    unknown.config._name_or_path = unknown.name_or_path = ""
    for kind in ("grpo", "dpo"):
        with pytest.raises(InvalidConfigError, match=r"400 ids, the policy \d+"):
            make(kind=kind, ref_model_fn=lambda policy: unknown)
    shifted = shifted_words(tmp_path, tiny_folder)
    with pytest.raises(InvalidConfigError, match=r"\d+ of the policy's"):
        make(ref_model_fn=lambda policy: shifted)
    larger = other_words(tmp_path)  # further words do no harm
    make({"max_steps": 1}, ref_model_fn=lambda policy: larger).train()


@pytest.mark.parametrize(
    ("kind", "settings", "arguments", "match"),
    [
        ("grpo", {"beta": 0.0}, {"ref_model_fn": frozen_copy}, "ref_model_fn is given, and nothing is measured"),
        ("ppo", {"beta": 0.0}, {"reference_update_fn": create_ema_update(0.9)}, "reference_update_fn is given, .*beta"),
        ("grpo", {"sync_ref_model": True}, {"reference_update_fn": create_ema_update(0.9)}, "sync_ref_model"),
        ("grpo", {}, {"ref_model_fn": lambda policy: policy}, "weights that are trained"),
        ("dpo", {}, {"ref_model_fn": lambda policy: policy}, "weights that are trained"),
        ("grpo", {}, {"ref_model_fn": lambda policy: "teacher"}, "ref_model_fn returned str"),
        (
            "dpo",
            {"precompute_ref_log_probs": True},
            {"reference_update_fn": create_ema_update(0.9)},
            "precompute_ref_log_probs is done once",
        ),
        ("dpo", {"precompute_ref_log_probs": True}, {"ref_model_fn": frozen_copy}, "give ref_model="),
        ("dpo", {}, {"ref_model_fn": frozen_copy, "ref_model": object()}, "both make the reference"),
    ],
)
def test_contradictions(make, kind, settings, arguments, match):
    with pytest.raises(InvalidConfigError, match=match):
        make(settings, kind=kind, **arguments)


def test_under_lora_another_module_cannot_take_the_adapters_place(make):
    def replace(reference, policy, *, step, kl):
        return copy.deepcopy(reference)

    trainer = make(peft_config=lora(), reference_update_fn=replace)
    with pytest.raises(InvalidConfigError, match="reference_update_fn"):
        trainer.train()


def test_an_update_may_return_another_model(make):
    def replace(reference, policy, *, step, kl):
        return frozen_copy(policy)

    trainer = make(reference_update_fn=replace)
    trainer.train()
    assert_same(copied(trainer.ref_model), copied(trainer.model), atol=0.0)
    assert logged(trainer, "reference/updates") == [1.0, 2.0]


@pytest.mark.parametrize(("saved", "resumed"), [("ppo", "grpo"), ("dpo", "ppo")])
def test_a_checkpoint_of_another_trainer_is_refused(make, tmp_path, saved, resumed):
    make({"max_steps": 1, "output_dir": str(tmp_path / "saved")} | EVERY, kind=saved).train()
    trainer = make({"max_steps": 2, "output_dir": str(tmp_path / "resumed")}, kind=resumed)
    with pytest.raises(InvalidConfigError, match=f"{saved.upper()}, .*{resumed.upper()}"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "saved" / "checkpoint-1"))
    for name in ("llm_envs_state.json", "training_args.bin"):
        (tmp_path / "saved" / "checkpoint-1" / name).unlink()
    with pytest.raises(InvalidConfigError, match=r"checkpoint-1 .*TRL"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "saved" / "checkpoint-1"))


# Before training, a reference made from the policy is the policy, and training does not reach it.


def logps_of(model, adapter=None):
    with use_adapter(model, adapter):
        return probe_logps(model, probe_ids(model))


@pytest.mark.smoke
@pytest.mark.parametrize("start", ["pissa", "olora", False, "fourierft"], ids=str)
def test_a_start_that_changes_the_base_makes_the_reference_a_copy(make, tiny_folder, start):
    """With PiSSA and OLoRA the adapter holds part of the base; a random start is not the base either."""
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    fourier = peft.FourierFTConfig(n_frequency=10, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    is_lora = start != "fourierft"
    changes = {"max_steps": 1} if is_lora else {"max_steps": 1, "learning_rate": 1.0}
    trainer = make(changes, peft_config=lora(init_lora_weights=start) if is_lora else fourier)
    model = trainer.accelerator.unwrap_model(trainer.model)
    off, first = logps_of(model), logps_of(model, "default")
    assert mean_gap(off, first) > 1e-2
    assert mean_gap(logps_of(model, "ref"), first) < 1e-6
    if start in ("pissa", "olora"):
        assert mean_gap(probe_logps(base, probe_ids(base)), first) < 1e-4
    trainer.train()
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-6)
    assert mean_gap(logps_of(model, "default"), first) > 1e-4
    assert mean_gap(logps_of(model, "ref"), first) < 1e-6


def test_a_base_that_was_rounded_for_the_adapter_is_not_rounded_again(make, tiny_folder):
    """As LoftQ leaves a model, which PEFT itself makes on a GPU only: rounded weights, and the rest in the adapter."""
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    whole = probe_logps(base, probe_ids(base))
    model = peft.get_peft_model(base, lora())
    for layer in [module for module in model.modules() if isinstance(module, peft.tuners.lora.Linear)]:
        weight, rank, scaling = layer.base_layer.weight.data, layer.r["default"], layer.scaling["default"]
        rounded = (weight * 20).round() / 20
        left, sizes, right = torch.linalg.svd((weight - rounded) / scaling)
        layer.lora_B["default"].weight.data = left[:, :rank] * sizes[:rank]
        layer.lora_A["default"].weight.data = right[:rank].clone()
        layer.base_layer.weight.data = rounded
    model.peft_config["default"].init_lora_weights = "loftq"
    first, rounded = logps_of(model, "default"), {name: value.clone() for name, value in model.state_dict().items()}
    assert 0 < mean_gap(first, whole) < mean_gap(logps_of(model), whole)
    trainer = make({"max_steps": 1}, model=model, processing_class=tiny_tokenizer())
    assert mean_gap(logps_of(model, "default"), first) < 1e-6 > mean_gap(logps_of(model, "ref"), first)
    trainer.train()
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-6)
    after = model.state_dict()
    assert all(torch.equal(on_cpu(after[name]), on_cpu(rounded[name])) for name in rounded if "base_layer" in name)


def test_a_random_starts_reference_is_in_the_checkpoint(make, tiny_folder, tmp_path):
    def begin(seed, **settings):
        torch.manual_seed(seed)
        model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_folder), lora(init_lora_weights=False))
        settings |= {"output_dir": str(tmp_path / str(seed))}
        return make(settings, model=model, processing_class=tiny_tokenizer())

    first = begin(1, max_steps=1, **EVERY)
    reference = copied(adapter_weights(first.model, "ref"))
    first.train()
    again = begin(2, max_steps=2)
    assert distance(copied(adapter_weights(again.model, "ref")), reference) > 1e-3
    again.train(resume_from_checkpoint=str(tmp_path / "1" / "checkpoint-1"))
    assert_same(copied(adapter_weights(again.model, "ref")), reference, atol=0.0)


@pytest.mark.parametrize("kind", ["grpo", "dpo"])
@pytest.mark.parametrize("update", [None, create_ema_update(0.5)], ids=["stays", "moves"])
def test_adding_a_reference_leaves_a_pissa_policy_as_it_was(make, tiny_folder, kind, update):
    """A second adapter with this start would subtract itself from the base again, TRL's own copy too."""
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_folder), lora(init_lora_weights="pissa"))
    before = logps_of(model, "default")
    settings = {"beta": 0.1} if kind == "grpo" else {}
    trainer = make(settings, model=model, kind=kind, reference_update_fn=update, processing_class=tiny_tokenizer())
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert mean_gap(logps_of(model, "default"), before) < 1e-6
    assert mean_gap(logps_of(model, "ref"), before) < 1e-6
    assert model.peft_config["default"].init_lora_weights == "pissa"


@pytest.mark.parametrize("kind", ["grpo", "ppo", "dpo"])
@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_trained_biases_of_the_base_are_refused_beside_a_reference(make, biased_folder, kind, bias):
    with pytest.raises(InvalidConfigError, match=rf"bias='{bias}'.*ref_model_fn=frozen_copy"):
        make(model=biased_folder, kind=kind, peft_config=lora(bias=bias))


def test_trained_biases_are_accepted_without_a_reference_or_with_its_own_weights(make, biased_folder):
    make({"beta": 0.0}, model=biased_folder, peft_config=lora(bias="all"))
    trainer = make({"max_steps": 1}, model=biased_folder, peft_config=lora(bias="all"), ref_model_fn=frozen_copy)
    start = copied(trainer.ref_model)
    trainer.train()
    assert_same(copied(trainer.ref_model), start, atol=0.0)
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-6)


def test_a_moving_copy_of_an_adapter_with_biases_is_refused_by_name(make, biased_folder):
    with pytest.raises(InvalidConfigError, match=r"bias='all'.*frozen_copy"):
        make(model=biased_folder, peft_config=lora(bias="all"), reference_update_fn=create_ema_update(0.5))


def test_a_policy_that_is_not_the_folder_that_trl_loads_the_reference_from_is_refused(make, tiny_folder):
    """TRL loads the reference by the model's name, whatever the weights of the loaded model are by now."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        model.get_output_embeddings().weight.add_(0.1 * torch.randn_like(model.get_output_embeddings().weight))
    with pytest.raises(InvalidConfigError, match="ref_model_fn=frozen_copy"):
        make(model=model, processing_class=tiny_tokenizer())
    make(model=model, processing_class=tiny_tokenizer(), ref_model_fn=frozen_copy)


@pytest.mark.parametrize("kind", ["grpo", "ppo", "dpo"])
def test_prompts_that_are_learned_are_refused(make, kind):
    """Their rows have other positions in TRL's forward pass than at sampling, a gap that the guard may let pass."""
    prompts = peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    with pytest.raises(InvalidConfigError, match=r"PromptTuningConfig\(num_virtual_tokens=4"):
        make({} if kind == "dpo" else {"beta": 0.0}, kind=kind, peft_config=prompts)


@pytest.mark.parametrize("kind", ["grpo", "dpo"])
def test_llama_4_is_refused(make, tmp_path, kind):
    tiny_wrapped("llama4", tmp_path / "model")
    model = Llama4ForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    with pytest.raises(ModelError, match="Llama4ForCausalLM"):
        make(model=model, kind=kind, processing_class=tiny_tokenizer())


def test_token_rows_are_trained_in_a_tied_model(make):
    """In the output layer too, where TRL reads PEFT's wrapper as a linear layer; the reference has the old rows."""
    adapter = lora(trainable_token_indices=list(range(64, 128)))
    trainer = make({"learning_rate": 20.0}, peft_config=adapter)
    (rows,) = [p for name, p in trainer.model.named_parameters() if "trainable_tokens_delta" in name]
    start = on_cpu(rows.detach().clone())
    trainer.train()
    assert (on_cpu(rows) - start).abs().max() > 1e-4
    assert logged(trainer, "sampling/guard_logps_gap")[0] < 1e-5
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-6) and logged(trainer, "kl")[1] > 1e-6
    ids = torch.arange(40, 60, device=trainer.model.device)[None]
    with torch.no_grad():
        logits = trainer.model(ids).logits
        fused = trainer.model(ids, labels=ids, fused_lm_head=True).log_probs[0]
    own = logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(fused[-len(own) :], own, rtol=0, atol=1e-4)
