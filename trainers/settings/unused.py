"""Settings without effect: `without` takes away those that never have one, and `refuse_unused` rejects the others.

A setting that is taken away, misspelt or of another version is refused by name (`NamedSettings`).

A case is `(holds, why, names)`. If it holds, none of the named fields has an effect, and `refuse_unused` raises if one
of them is not at its default. A test checks that each field of TRL's configs is taken away, named in a case, or always
has an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.policies.vllm.transfer import GROUP_TRANSPORTS
from llm_envs.trainers.engines.servers import SERVER_SETTINGS

__all__ = [
    "SET_BY_ALGORITHM",
    "Case",
    "NamedSettings",
    "dpo_cases",
    "grpo_cases",
    "is_changed",
    "refuse_unused",
    "without",
]

T = TypeVar("T")
Case = tuple[bool, str, tuple[str, ...]]
"""`(holds, why, names)`."""

SET_BY_ALGORITHM = (
    *("beta", "delta", "entropy_coef", "epsilon", "epsilon_high", "importance_sampling_level", "loss_type"),
    *("multi_objective_aggregation", "off_policy_mask_threshold", "scale_rewards", "top_entropy_quantile"),
    *("use_adaptive_entropy", "use_bias_correction_kl"),
)
"""Settings of TRL's own loss, for a run without an `algorithm`; an `Algorithm` decides them in its fields."""
_VLLM_WEIGHTS = tuple(f"vllm_importance_sampling_{name}" for name in ("mode", "clip_max", "clip_min"))
_MOVING_REFERENCE = ("ref_model_mixup_alpha", "ref_model_sync_steps")


@dataclass
class NamedSettings:
    """The settings of all trainings, before TRL's dataclass. Refuses an argument that a configuration does not have."""

    trace: bool = field(
        default=False,
        metadata={"help": "Send OpenTelemetry spans of steps and episodes to OTEL_EXPORTER_OTLP_ENDPOINT."},
    )
    _taken_away = MappingProxyType[str, str]({})  # untyped: not a setting
    """The names that `without` took away, with the reason."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check the names.

        Raises:
            InvalidConfigError: If a name is none of a setting.
        """
        kind: Any = cls
        known = [setting.name for setting in fields(kind) if setting.init]
        for name in [name for name in kwargs if name not in known]:
            why = f" TRL's is left out: {kind._taken_away[name]}." if name in kind._taken_away else ""
            raise InvalidConfigError(f"{cls.__name__} has no setting {name}.{why or did_you_mean(name, known)}")
        return super().__new__(cls)


def without(why: str, *names: str) -> Callable[[type[T]], type[T]]:
    """Take inherited settings away from a dataclass: its arguments and the command line no longer have them.

    As attributes they keep their defaults, for TRL's code that reads them. Names that this version of TRL lacks are
    skipped. Apply it before `dataclass`. The error of such a setting quotes `why`.
    """

    def change(kind: Any) -> Any:
        kind._taken_away = kind._taken_away | dict.fromkeys(names, why)
        for name in (name for name in names if hasattr(kind, name)):
            setattr(kind, name, field(default=getattr(kind, name), init=False))
            kind.__annotations__[name] = Any
        return kind

    return change


def is_changed(args: Any, name: str) -> bool:
    """Return whether a setting differs from its default."""
    (setting,) = (setting for setting in fields(args) if setting.name == name)
    # A field without a default must be given, so it never counts as changed.
    default = setting.default_factory() if setting.default_factory is not MISSING else setting.default
    value = getattr(args, name)
    return default is not MISSING and bool((None if value == {} else value) != default)


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
    # The evaluation's servers get their weights by these, whatever samples for training.
    sends = ("vllm_exchange_dir", "vllm_transport", "vllm_transfer_address", "lora_sync")
    unless = sends if args.eval_server_urls else ()
    named = (setting.name for setting in fields(args) if setting.init and setting.name.startswith("vllm_"))
    of_vllm = tuple(name for name in (*named, "lora_sync") if name not in unless)
    of_servers = tuple(name for name in SERVER_SETTINGS if name not in unless)
    aggregation = args.multi_objective_aggregation
    is_server = args.use_vllm and args.vllm_mode == "server"
    is_running = is_server and args.vllm_server_urls is not None
    to_start = ("vllm_num_servers", "server_args", "vllm_max_model_length")
    return [
        (args.eval_strategy == "no", "eval_strategy is 'no'", ("eval_server_urls",)),
        (not args.use_vllm, "use_vllm is False", of_vllm),
        (not is_server, "vllm_mode is not 'server'", of_servers),
        (is_server, "servers have their own arguments", ("vllm_gpu_memory_utilization", "vllm_model_impl")),
        (is_running, "vllm_server_urls names running servers", to_start),
        (args.vllm_transport not in GROUP_TRANSPORTS, "vllm_transport sends files", ("vllm_transfer_address",)),
        (not args.vllm_importance_sampling_correction, "vllm_importance_sampling_correction is False", _VLLM_WEIGHTS),
        (args.loss_type == "cispo", "loss_type='cispo' has one bound, epsilon_high", ("epsilon", "delta")),
        (not args.beta, "beta is 0", ("use_bias_correction_kl",)),
        (not args.sync_ref_model, "sync_ref_model is False", _MOVING_REFERENCE),
        (aggregation == "normalize_then_sum", f"{aggregation} always scales by group and by batch", ("scale_rewards",)),
        (not args.log_completions, "log_completions is False", ("num_completions_to_print", "log_unique_prompts")),
    ]


def dpo_cases(args: Any, *, has_selector: bool) -> list[Case]:
    """Return the cases of `EnvDPOConfig`.

    Args:
        args: The trainer's settings.
        has_selector: Whether the trainer was given a function that chooses pairs.
    """
    losses = [args.loss_type] if isinstance(args.loss_type, str) else args.loss_type
    return [
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
