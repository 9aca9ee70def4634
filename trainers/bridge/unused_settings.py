"""Rejects settings without effect: config fields that do nothing in combination with the other settings.

A case is `(holds, why, names)`. If it holds, none of the named fields has an effect, and `refuse_unused` raises if one
of them is not at its default. A test checks that each field of TRL's `GRPOConfig` is named in a case or always has an
effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.vllm.transfer import GROUP_TRANSPORTS
from llm_envs.trainers.bridge.servers import SERVER_SETTINGS

__all__ = [
    "SAID_BY_THE_ALGORITHM",
    "Case",
    "dpo_cases",
    "grpo_cases",
    "is_changed",
    "ppo_cases",
    "refuse_unused",
    "server_cases",
    "sft_cases",
]

Case = tuple[bool, str, tuple[str, ...]]
"""`(holds, why, names)`."""

SAID_BY_THE_ALGORITHM = (
    *("beta", "delta", "entropy_coef", "epsilon", "epsilon_high", "importance_sampling_level", "loss_type"),
    *("multi_objective_aggregation", "off_policy_mask_threshold", "scale_rewards", "top_entropy_quantile"),
    *("use_adaptive_entropy", "use_bias_correction_kl"),
)
"""Settings of TRL's own loss, for a run without an `algorithm`; an `Algorithm` decides them in its fields."""
_VLLM_WEIGHTS = tuple(f"vllm_importance_sampling_{name}" for name in ("mode", "clip_max", "clip_min", "cap"))
_MOVING_REFERENCE = ("ref_model_mixup_alpha", "ref_model_sync_steps")


def is_changed(args: Any, name: str) -> bool:
    """Return whether a setting differs from its default."""
    for field in fields(args):
        if field.name == name:
            # A field without a default must be given, so it never counts as changed.
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            value = getattr(args, name)
            return default is not MISSING and bool((None if value == {} else value) != default)
    return False


def refuse_unused(args: Any, cases: Iterable[Case]) -> None:
    """Reject settings that were changed but have no effect.

    Raises:
        InvalidConfigError: If there is such a setting.
    """
    for holds, why, names in cases:
        if holds and (changed := [f"{name}={getattr(args, name)!r}" for name in names if is_changed(args, name)]):
            raise InvalidConfigError(f"{', '.join(changed)} has no effect: {why}. Leave it out.")


def grpo_cases(args: Any) -> list[Case]:
    """Return the cases of `EnvGRPOConfig` that depend only on the config."""
    loss = args.loss_type
    return [
        (
            True,
            "the collector plays the episodes, with the policy in this process (see temperature, top_p, top_k, min_p, "
            "repetition_penalty, thinking, max_turns and max_turn_tokens)",
            (
                *("generation_kwargs", "chat_template_kwargs", "cache_implementation", "max_tool_calling_iterations"),
                *("use_transformers_paged", "use_transformers_continuous_batching"),
                *("transformers_continuous_batching_config", "ds3_gather_for_generation", "log_multimodal"),
                *("vllm_structured_outputs_regex", "vllm_server_base_url", "vllm_server_host", "vllm_server_port"),
                *("vllm_server_timeout", "vllm_group_port"),
            ),
        ),
        (
            not args.use_vllm,
            "use_vllm is False",
            (
                *("vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_gpu_memory_utilization"),
                *("vllm_max_model_length", "vllm_tensor_parallel_size", "vllm_importance_sampling_correction"),
                *_VLLM_WEIGHTS,
            ),
        ),
        *server_cases(args),
        (
            not args.vllm_importance_sampling_correction,
            "vllm_importance_sampling_correction is False",
            _VLLM_WEIGHTS,
        ),
        (loss == "cispo", "loss_type='cispo' has one bound, epsilon_high", ("epsilon", "delta")),
        (
            True,
            "it belongs to a loss or a controller of TRL's that EnvGRPOTrainer does not have",
            (
                *("sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg"),
                *("vespo_lambda_neg", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
            ),
        ),
        (not args.beta, "beta is 0", ("use_bias_correction_kl",)),
        (not args.sync_ref_model, "sync_ref_model is False", _MOVING_REFERENCE),
        (
            args.multi_objective_aggregation == "normalize_then_sum",
            "multi_objective_aggregation='normalize_then_sum' always scales by group and by batch",
            ("scale_rewards",),
        ),
        (not args.log_completions, "log_completions is False", ("num_completions_to_print", "log_unique_prompts")),
    ]


def server_cases(args: Any) -> list[Case]:
    """Return the cases of vLLM servers."""
    is_server = args.use_vllm and args.vllm_mode == "server"
    has_urls = args.vllm_server_urls is not None
    return [
        (not is_server, "vllm_mode is not 'server'", SERVER_SETTINGS),
        (is_server, "servers have their own arguments", ("vllm_gpu_memory_utilization", "vllm_model_impl")),
        (
            is_server and has_urls,
            "vllm_server_urls names running servers",
            ("vllm_num_servers", "server_args", "vllm_max_model_length"),
        ),
        (
            args.vllm_transport not in GROUP_TRANSPORTS,
            f"vllm_transport={args.vllm_transport} is for files",
            ("vllm_transfer_address",),
        ),
    ]


def ppo_cases(*, has_own_trunk: bool = False, has_lam_alpha: bool = False) -> list[Case]:
    """Return the cases that `EnvPPOConfig` has beyond those of GRPO.

    Args:
        has_own_trunk: Whether the critic has a separate trunk.
        has_lam_alpha: Whether lambda depends on each episode's length.
    """
    return [
        (True, "PPO's advantages are the critic's", ("scale_rewards", "multi_objective_aggregation")),
        (has_lam_alpha, "lam_alpha makes lambda of each episode's length", ("lam",)),
        (has_own_trunk, "the critic has a separate trunk", ("value_trains_trunk",)),
    ]


def dpo_cases(args: Any, *, has_selector: bool) -> list[Case]:
    """Return the cases of `EnvDPOConfig`.

    Args:
        args: The trainer's settings.
        has_selector: Whether the trainer was given a function that chooses pairs.
    """
    losses = [args.loss_type] if isinstance(args.loss_type, str) else args.loss_type
    return [
        (
            True,
            "pairs are encoded and cut before TRL sees them (see overlong)",
            ("truncation_mode", "dataset_num_proc"),
        ),
        (has_selector, "selector chooses the pairs", ("pair_selector", "pairs_per_group", "pair_length_ratio")),
        (args.pair_selector != "random", "pair_selector is not 'random'", ("pairs_per_group",)),
        (args.pair_selector != "length", "pair_selector is not 'length'", ("pair_length_ratio",)),
        (
            not {"exo_pair", "robust", "aot", "aot_unpaired"} & set(losses),
            f"loss_type {', '.join(losses)} does not smooth labels",
            ("label_smoothing",),
        ),
        ("discopop" not in losses, "loss_type is not 'discopop'", ("discopop_tau",)),
        (args.f_divergence_type != "alpha_divergence", "f_divergence_type is not 'alpha_divergence'",
         ("f_alpha_divergence_coef",)),
        (not args.sync_ref_model, "sync_ref_model is False", _MOVING_REFERENCE),
        (not args.precompute_ref_log_probs, "precompute_ref_log_probs is False", ("precompute_ref_batch_size",)),
    ]  # fmt: skip


def sft_cases(args: Any, *, is_played: bool, has_trajectories: bool) -> list[Case]:
    """Return the cases of `EnvSFTConfig`.

    Args:
        args: The trainer's settings.
        is_played: Whether an environment's oracle plays.
        has_trajectories: Whether the trainer was given trajectories.
    """
    return [
        (
            True,
            "rows are encoded, masked and cut before TRL sees them (see overlong)",
            ("dataset_text_field", "completion_only_loss", "chat_template_path", "truncation_mode"),
        ),
        (not is_played, "no environment is played", ("num_episodes", "env_kwargs")),
        (has_trajectories, "trajectories are encoded already", ("history",)),
        (not args.packing, "packing is False", ("packing_strategy",)),
    ]
