"""Every field of TRL's configs has an effect here, or is refused by name once it is changed.

A field that a new version of TRL adds fails `test_every_field_is_classified` until somebody has looked what it does in
our trainers: it goes into a case of `trainers/bridge/unused_settings.py`, or into the list of those that always count.
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
from llm_envs.trainers.bridge.servers import SERVER_SETTINGS
from llm_envs.trainers.bridge.unused_settings import (
    SAID_BY_THE_ALGORITHM,
    dpo_cases,
    grpo_cases,
    ppo_cases,
    refuse_unused,
    sft_cases,
)
from llm_envs.trainers.grpo.algorithms import AlgorithmState

DENSE = EnvChoice("dense", factory=DenseEnv)
BARE = {"output_dir": "x", "report_to": "none", "bf16": False, "use_cpu": True}
VLLM = {"use_vllm": True}
SERVER = VLLM | {"vllm_mode": "server"}
URLS = SERVER | {"vllm_server_urls": ["http://localhost:1"]}

PLAYED_BY_US = {
    "generation_kwargs": {"no_repeat_ngram_size": 3},
    "chat_template_kwargs": {"enable_thinking": False},
    "cache_implementation": "static",
    "max_tool_calling_iterations": 3,
    "use_transformers_continuous_batching": True,
    "transformers_continuous_batching_config": {"max_memory_percent": 0.4},
    "use_transformers_paged": True,
    "ds3_gather_for_generation": False,
    "log_multimodal": False,
    "vllm_structured_outputs_regex": "a*",
    "vllm_server_base_url": "http://localhost:1",
    "vllm_server_host": "localhost",
    "vllm_server_port": 1,
    "vllm_server_timeout": 1.0,
    "vllm_group_port": 1,
}
OF_OTHER_LOSSES = {
    "sapo_temperature_neg": 2.0,
    "sapo_temperature_pos": 2.0,
    "vespo_k_pos": 1.0,
    "vespo_lambda_pos": 1.0,
    "vespo_k_neg": 1.0,
    "vespo_lambda_neg": 1.0,
    "entropy_coef_min": 0.001,
    "entropy_coef_max": 0.5,
    "entropy_coef_delta": 0.1,
    "entropy_target": 0.5,
}
"""Fields of losses that have no counterpart, and so no effect."""
"""Fields of `GRPOConfig` that never have an effect, each with another value than its default."""
CONDITIONAL = {
    "vllm_mode": ("server", VLLM),
    "vllm_server_urls": (["http://localhost:1"], SERVER),
    "vllm_num_servers": (2, SERVER),
    "server_args": ("--max-num-seqs 8", SERVER),
    "vllm_exchange_dir": ("weights", SERVER),
    "vllm_transport": ("delta", SERVER),
    "vllm_transfer_address": ("trainer:29600", SERVER | {"vllm_transport": "gloo"}),
    "ray": ("auto", SERVER),
    "vllm_model_impl": ("transformers", VLLM),
    "vllm_enable_sleep_mode": (True, VLLM),
    "vllm_gpu_memory_utilization": (0.5, VLLM),
    "vllm_max_model_length": (99, VLLM),
    "vllm_tensor_parallel_size": (2, VLLM),
    "vllm_importance_sampling_correction": (False, VLLM),
    "vllm_importance_sampling_mode": ("token_mask", VLLM),
    "vllm_importance_sampling_clip_max": (2.0, VLLM),
    "vllm_importance_sampling_clip_min": (0.5, VLLM),
    "vllm_importance_sampling_cap": (2.0, VLLM),
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
ELSEWHERE = {
    "reward_weights": "refused: the trainer's reward_weights has names",
    "log_completions_hub_repo": "refused by TRL without log_completions",
}

CLIPPING = {"epsilon", "epsilon_high", "delta", "importance_sampling_level", "top_entropy_quantile"}
COMPARED = {"scale_rewards", "multi_objective_aggregation"}
REFUSED = {
    "algorithm": CLIPPING | COMPARED | {"beta", "loss_type", "entropy_coef", "use_bias_correction_kl"},
    "ppo": COMPARED,
}
"""What replaces a part of TRL's loss -> the fields that then have no effect."""


def grpo_config(**changes):
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "num_train_seeds": 64}
    return EnvGRPOConfig(**BARE | sizes | changes)


def of_trl(config):
    """Return the fields that TRL added to those of transformers."""
    return {field.name for field in fields(config)} - {field.name for field in fields(TrainingArguments)}


def named(cases):
    return {name for _, _, names in cases for name in names}


def test_every_field_is_classified():
    groups = [PLAYED_BY_US, OF_OTHER_LOSSES, CONDITIONAL, OTHERWISE, ALWAYS, REFUSED_BY_NAME, ELSEWHERE]
    assert of_trl(GRPOConfig) - {name for group in groups for name in group} == set()
    args = grpo_config()
    assert named(grpo_cases(args)) == {*PLAYED_BY_US, *OF_OTHER_LOSSES, *CONDITIONAL, *OTHERWISE}
    assert named(grpo_cases(args)) <= of_trl(GRPOConfig) | set(SERVER_SETTINGS)
    hooked = named([*ppo_cases(), (True, "", SAID_BY_THE_ALGORITHM)])
    assert hooked <= {field.name for field in fields(EnvPPOConfig)}


@pytest.mark.parametrize("name", PLAYED_BY_US)
def test_what_never_has_an_effect_is_refused(name):
    with pytest.raises(InvalidConfigError, match=rf"{name}=.* has no effect: the collector plays"):
        grpo_config(**{name: PLAYED_BY_US[name]})


@pytest.mark.parametrize("name", OF_OTHER_LOSSES)
def test_settings_of_a_loss_without_a_counterpart_are_refused(name):
    with pytest.raises(InvalidConfigError, match=rf"{name}=.* has no effect: it belongs to a loss"):
        grpo_config(**{name: OF_OTHER_LOSSES[name]})


@pytest.mark.parametrize(
    ("name", "value"), [*(("loss_type", kind) for kind in ("bnpo", "sapo", "vespo")), *REFUSED_BY_NAME.items()]
)
def test_an_objective_without_a_counterpart_is_refused(name, value):
    with pytest.raises(InvalidConfigError, match=rf"{name}={value!r}.*stock_trl.rollout_func"):
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


def refusal(hook, args):
    """Return why a config is refused beside a hook; None: it is not."""
    try:
        if hook == "algorithm":
            AlgorithmState(args, "grpo")
        else:
            refuse_unused(args, ppo_cases())
    except InvalidConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("hook", REFUSED)
def test_what_a_function_leaves_without_effect_is_refused_and_nothing_else(hook):
    refused = set()
    for name, settings in changed().items():
        why = refusal(hook, grpo_config(**settings))
        if why is not None:
            assert any(f"{key}=" in why for key in settings), why
            refused.add(name)
    assert refused == REFUSED[hook]
    assert refusal(hook, grpo_config()) is None


def test_ppo_refuses_what_compares_the_members_of_a_group(tiny_folder):
    args = EnvPPOConfig(**BARE, per_device_train_batch_size=8, scale_rewards="none")
    with pytest.raises(InvalidConfigError, match="scale_rewards='none' has no effect: PPO's advantages are the critic"):
        EnvPPOTrainer(tiny_folder, DENSE, args)
    args = EnvPPOConfig(
        **BARE, per_device_train_batch_size=8, max_completion_length=80, value_trains_trunk=False, num_train_seeds=16
    )
    with pytest.raises(
        InvalidConfigError, match="value_trains_trunk=False has no effect: the critic has a separate trunk"
    ):
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
    assert of_trl(DPOConfig) - dpo == DPO_ALWAYS
    sft = named(sft_cases(EnvSFTConfig(**BARE), is_played=True, has_trajectories=False))
    assert of_trl(SFTConfig) - sft == SFT_ALWAYS
    assert dpo <= {field.name for field in fields(EnvDPOConfig)}
    assert sft <= {field.name for field in fields(EnvSFTConfig)}


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"truncation_mode": "keep_end"}, {}, "truncation_mode='keep_end' has no effect: pairs are encoded"),
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
        ({"completion_only_loss": True}, {"env": "llm/Arithmetic-v0"}, "completion_only_loss=True has no effect: rows"),
        ({"chat_template_path": "x"}, {"env": "llm/Arithmetic-v0"}, "chat_template_path='x' has no effect"),
        ({"num_episodes": 3}, {"source": []}, "num_episodes=3 has no effect: no environment is played"),
        ({"history": "template"}, {"source": []}, "history='template' has no effect: trajectories are encoded"),
        ({"packing_strategy": "bfd_split"}, {"env": "llm/Arithmetic-v0"}, "packing_strategy='bfd_split' has no"),
    ],
)
def test_sft_refuses_what_has_no_effect(tiny_folder, settings, given, words):
    with pytest.raises(InvalidConfigError, match=words):
        EnvSFTTrainer(tiny_folder, args=EnvSFTConfig(**BARE, **settings), **given)
