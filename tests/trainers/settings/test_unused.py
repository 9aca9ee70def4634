"""Every field of TRL's configs has an effect here, or is refused by name once it is changed.

A field that a new version of TRL adds fails `test_every_field_is_classified` until somebody has looked what it does in
our trainers: our config takes it away, a case of `trainers/settings/unused.py` names it, or it always counts.
"""

from dataclasses import fields

import pytest
from dense_env import DenseEnv
from transformers import TrainingArguments
from trl import DPOConfig, GRPOConfig, SFTConfig

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import EnvChoice
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOConfig,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
)
from llm_envs.trainers.cli.parser import TrainingParser
from llm_envs.trainers.engines.servers import SERVER_SETTINGS
from llm_envs.trainers.grpo.algorithms import AlgorithmState
from llm_envs.trainers.settings.unused import SET_BY_ALGORITHM, dpo_cases, grpo_cases

DENSE = EnvChoice("dense", factory=DenseEnv)
BARE = {"output_dir": "x", "report_to": "none", "bf16": False, "use_cpu": True}
VLLM = {"use_vllm": True}
SERVER = VLLM | {"vllm_mode": "server"}
URLS = SERVER | {"vllm_server_urls": ["http://localhost:1"]}

TAKEN_AWAY = {
    *("generation_kwargs", "chat_template_kwargs", "cache_implementation", "max_tool_calling_iterations"),
    *("use_transformers_continuous_batching", "transformers_continuous_batching_config", "use_transformers_paged"),
    *("ds3_gather_for_generation", "log_multimodal", "vllm_structured_outputs_regex", "vllm_server_base_url"),
    *("vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_group_port", "vllm_importance_sampling_cap"),
    *("sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg"),
    *("vespo_lambda_neg", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
    "reward_weights",
}
"""Fields of `GRPOConfig` that never have an effect."""
OF_GROUPS = {"scale_rewards", "multi_objective_aggregation"}
"""Further ones without an effect in PPO."""
OF_ROWS = {"dataset_text_field", "completion_only_loss", "chat_template_path", "truncation_mode"}
"""Fields of `SFTConfig` without an effect."""
OF_PAIRS = {"truncation_mode", "dataset_num_proc"}
"""Fields of `DPOConfig` without an effect."""
CONDITIONAL = {
    "vllm_mode": ("server", VLLM),
    "vllm_server_urls": (["http://localhost:1"], SERVER),
    "vllm_num_servers": (2, SERVER),
    "server_args": ("--max-num-seqs 8", SERVER),
    "vllm_exchange_dir": ("weights", SERVER),
    "vllm_transport": ("delta", SERVER),
    "vllm_transfer_address": ("trainer:29600", SERVER | {"vllm_transport": "gloo"}),
    "ray": ("auto", SERVER),
    "lora_sync": ("adapter", VLLM),
    "eval_server_urls": (["http://localhost:2"], {"eval_strategy": "steps", "eval_steps": 1}),
    "vllm_model_impl": ("transformers", VLLM),
    "vllm_enable_sleep_mode": (True, VLLM),
    "vllm_gpu_memory_utilization": (0.5, VLLM),
    "vllm_max_model_length": (99, VLLM),
    "vllm_tensor_parallel_size": (2, VLLM),
    "vllm_importance_sampling_correction": (False, VLLM),
    "vllm_importance_sampling_mode": ("token_mask", VLLM),
    "vllm_importance_sampling_clip_max": (2.0, VLLM),
    "vllm_importance_sampling_clip_min": (0.5, VLLM),
    "use_bias_correction_kl": (False, {"beta": 0.1}),
    "ref_model_mixup_alpha": (0.5, {"sync_ref_model": True}),
    "ref_model_sync_steps": (1, {"sync_ref_model": True}),
    "num_completions_to_print": (1, {"log_completions": True}),
    "log_unique_prompts": (True, {"log_completions": True}),
}
"""Those that have one beside another setting only: a changed value, and that setting."""
OTHERWISE = {
    "epsilon": (0.1, [{"loss_type": "cispo", "epsilon_high": 5.0}]),
    "delta": (2.0, [{"loss_type": "cispo", "epsilon_high": 5.0}]),
    "scale_rewards": ("none", [{"multi_objective_aggregation": "normalize_then_sum"}]),
    "vllm_gpu_memory_utilization": (0.5, [SERVER]),
    "vllm_model_impl": ("transformers", [SERVER]),
    "vllm_max_model_length": (99, [URLS]),
    "vllm_num_servers": (2, [VLLM, URLS]),
    "vllm_transfer_address": ("trainer:29600", [SERVER | {"vllm_transport": "delta"}]),
    "server_args": ("--max-num-seqs 8", [VLLM, URLS]),
    "vllm_importance_sampling_mode": ("token_mask", [VLLM | {"vllm_importance_sampling_correction": False}]),
}
"""Those that have one unless another setting takes it away: a changed value, and such settings."""
ALWAYS = {
    "model_init_kwargs": {"dtype": "float32"},
    "trust_remote_code": True,
    "router_aux_loss_coef": 0.0,
    "disable_dropout": False,
    "cast_lm_head_to_fp32": True,
    "num_generations": 2,
    "num_generations_eval": 2,
    "max_completion_length": 99,
    "shuffle_dataset": False,
    "pad_to_multiple_of": 8,
    "generation_batch_size": 16,
    "steps_per_generation": 2,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "use_vllm": True,
    "beta": 0.1,
    "num_iterations": 2,
    "multi_objective_aggregation": "normalize_then_sum",
    "loss_type": "grpo",
    "mask_truncated_completions": True,
    "sync_ref_model": True,
    "top_entropy_quantile": 0.5,
    "entropy_coef": 0.1,
    "epsilon_high": 0.3,
    "importance_sampling_level": "sequence",
    "log_completions": True,
}
"""Those that always have one without an algorithm."""
REFUSED_BY_NAME = {"use_adaptive_entropy": True, "off_policy_mask_threshold": 0.1}
"""Fields of objectives that have no counterpart; `loss_type` has such values too."""
ELSEWHERE = {"log_completions_hub_repo": "refused by TRL without log_completions"}

CLIPPING = {"epsilon", "epsilon_high", "delta", "importance_sampling_level", "top_entropy_quantile"}
REFUSED = CLIPPING | OF_GROUPS | {"beta", "loss_type", "entropy_coef", "use_bias_correction_kl"}
"""Fields without an effect beside an algorithm."""


def grpo_config(**changes):
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "num_train_seeds": 64}
    return EnvGRPOConfig(**BARE | sizes | changes)


def of_trl(config):
    """Return the fields that TRL added to those of transformers."""
    return {field.name for field in fields(config)} - {field.name for field in fields(TrainingArguments)}


def named(cases):
    return {name for _, _, names in cases for name in names}


def test_every_field_is_classified():
    groups = [TAKEN_AWAY, CONDITIONAL, OTHERWISE, ALWAYS, REFUSED_BY_NAME, ELSEWHERE]
    assert of_trl(GRPOConfig) - {name for group in groups for name in group} == set()
    args = grpo_config()
    assert named(grpo_cases(args)) == {*CONDITIONAL, *OTHERWISE}
    assert named(grpo_cases(args)) <= of_trl(GRPOConfig) | {*SERVER_SETTINGS, "lora_sync", "eval_server_urls"}
    assert set(SET_BY_ALGORITHM) <= of_trl(GRPOConfig)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("kind", "base", "names"),
    [
        (EnvGRPOConfig, GRPOConfig, TAKEN_AWAY),
        (EnvPPOConfig, GRPOConfig, TAKEN_AWAY | OF_GROUPS),
        (EnvSFTConfig, SFTConfig, OF_ROWS),
        (EnvDPOConfig, DPOConfig, OF_PAIRS),
    ],
)
def test_what_never_has_an_effect_cannot_be_written(kind, base, names):
    assert {field.name for field in fields(kind) if not field.init} - {
        field.name for field in fields(base) if not field.init
    } == names
    for name in names:
        with pytest.raises(InvalidConfigError, match=rf"{kind.__name__} .* {name}\."):
            kind(**BARE, **{name: 1})
    with pytest.raises(InvalidConfigError, match=rf"{kind.__name__} .*learning_rat\. .*learning_rate"):
        kind(**BARE, learning_rat=0.1)
    args, theirs = kind(**BARE, per_device_train_batch_size=8), base(**BARE, per_device_train_batch_size=8)
    assert {name: getattr(args, name) for name in names} == {name: getattr(theirs, name) for name in names}
    options = TrainingParser((kind,), prog="x").format_help()
    assert [name for name in names if f"--{name.replace('_', '-')} " in options] == []


@pytest.mark.parametrize(
    ("name", "value"), [*(("loss_type", kind) for kind in ("bnpo", "sapo", "vespo")), *REFUSED_BY_NAME.items()]
)
def test_an_objective_without_a_counterpart_is_refused(name, value):
    with pytest.raises(InvalidConfigError, match=rf"{name}={value!r}.*llm_envs.trainers.stock_trl"):
        grpo_config(**{name: value})


@pytest.mark.parametrize("name", CONDITIONAL)
def test_what_has_an_effect_beside_another_setting_only(name):
    value, needed = CONDITIONAL[name]
    with pytest.raises(InvalidConfigError, match=rf"{name}=.* has no effect: "):
        grpo_config(**{name: value})
    assert getattr(grpo_config(**needed, **{name: value}), name) == value


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_another_setting_takes_away(name):
    value, others = OTHERWISE[name]
    for other in others:
        with pytest.raises(InvalidConfigError, match=rf"{name}=.* has no effect: "):
            grpo_config(**other, **{name: value})


def changed():
    """Return each field with settings that change it and are valid without hooks."""
    found = {name: {name: value} for name, value in ALWAYS.items()}
    found |= {name: {name: value, **needed} for name, (value, needed) in CONDITIONAL.items()}
    return {name: {name: value} for name, (value, _) in OTHERWISE.items() if name not in CONDITIONAL} | found


def test_what_an_algorithm_leaves_without_effect_is_refused_and_nothing_else():
    refused = set()
    for name, settings in changed().items():
        try:
            AlgorithmState(grpo_config(**settings), "grpo")
        except InvalidConfigError as error:
            assert any(f"{key}=" in str(error) for key in settings), error
            refused.add(name)
    assert refused == REFUSED
    AlgorithmState(grpo_config(), "grpo")


def test_ppo_refuses_a_setting_of_a_shared_trunk_beside_a_separate_one(tiny_folder):
    args = EnvPPOConfig(
        **BARE, per_device_train_batch_size=8, max_completion_length=80, value_trains_trunk=False, num_train_seeds=16
    )
    with pytest.raises(InvalidConfigError, match="value_trains_trunk=False"):
        EnvPPOTrainer(tiny_folder, DENSE, args, critic=tiny_folder)


DPO_ALWAYS = {
    *("model_init_kwargs", "trust_remote_code", "router_aux_loss_coef", "disable_dropout", "max_length"),
    *("padding_free", "pad_to_multiple_of", "precompute_ref_log_probs", "loss_type", "loss_weights", "ld_alpha"),
    *("f_divergence_type", "beta", "use_weighting", "activation_offloading", "sync_ref_model", "pad_token"),
}
SFT_ALWAYS = {
    *("model_init_kwargs", "trust_remote_code", "router_aux_loss_coef", "max_length", "shuffle_dataset", "packing"),
    *("padding_free", "pad_to_multiple_of", "loss_type", "activation_offloading", "pad_token", "eos_token"),
    *("dataset_kwargs", "dataset_num_proc", "eval_packing"),
    "assistant_only_loss",  # TRL refuses it of token rows
}


def test_every_field_of_dpo_and_sft_is_classified():
    dpo = named(dpo_cases(EnvDPOConfig(**BARE), has_selector=False))
    assert of_trl(DPOConfig) - dpo - OF_PAIRS == DPO_ALWAYS
    assert of_trl(SFTConfig) - OF_ROWS - {"packing_strategy"} == SFT_ALWAYS  # the last one: see below
    assert dpo <= {field.name for field in fields(EnvDPOConfig)}


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"pairs_per_group": 2}, {}, "pairs_per_group=2 has no effect: pair_selector is not 'random'"),
        ({"pair_length_ratio": 2.0}, {}, "pair_length_ratio=2.0 has no effect"),
        ({"pair_selector": "all"}, {"selector": list}, "pair_selector='all' has no effect: selector"),
        ({"label_smoothing": 0.1}, {}, "label_smoothing=0.1 has no effect: loss_type sigmoid"),
        ({"discopop_tau": 0.1}, {}, "discopop_tau=0.1 has no effect"),
        ({"f_alpha_divergence_coef": 0.1}, {}, "f_alpha_divergence_coef=0.1 has no effect"),
        ({"ref_model_sync_steps": 1}, {}, "ref_model_sync_steps=1 has no effect: sync_ref_model is False"),
        ({"precompute_ref_batch_size": 1}, {}, "precompute_ref_batch_size=1 has no effect"),
    ],
)
def test_dpo_refuses_what_has_no_effect(tiny_folder, settings, given, words):
    with pytest.raises(InvalidConfigError, match=words):
        EnvDPOTrainer(tiny_folder, EnvDPOConfig(**BARE, **settings), source=[], **given)


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"num_episodes": 3}, {"source": []}, "num_episodes=3 has no effect: no environment is played"),
        ({"history": "template"}, {"source": []}, "history='template' has no effect: trajectories are encoded"),
        ({"packing_strategy": "bfd_split"}, {"env": "llm/Arithmetic-v0"}, "packing_strategy='bfd_split' has no"),
    ],
)
def test_sft_refuses_what_has_no_effect(tiny_folder, settings, given, words):
    with pytest.raises(InvalidConfigError, match=words):
        EnvSFTTrainer(tiny_folder, args=EnvSFTConfig(**BARE, **settings), **given)
