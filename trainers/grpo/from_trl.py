"""TRL's settings of a loss as an `Algorithm`: what `EnvGRPOTrainer` learns if no `algorithm` is given.

    EnvGRPOConfig(loss_type="dapo", beta=0.04, epsilon_high=0.28)

takes the step that TRL's own trainer takes on the same rows. One thing differs: the entropy bonus is a mean over the
tokens of the step, and TRL's is one over each micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.episodes.rewards import RewardSettings
from llm_envs.trainers.functional.advantages import AdvantageFn, group_centred, group_normalised
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.losses import LossFn, RatioLevel, cispo, clipped_surrogate
from llm_envs.trainers.functional.masking import Normalisation
from llm_envs.trainers.settings.checks import check_values

__all__ = ["algorithm_from_trl", "rewards_from_trl"]

_NORMALISATIONS: Mapping[str, tuple[Normalisation, float | None]] = MappingProxyType(
    {
        "grpo": ("sequence", None),
        "dapo": ("token", None),
        "cispo": ("token", None),
        "dr_grpo": ("constant", None),
        "luspo": ("constant", 1.0),
    }
)
"""By `loss_type`: the divisor of the sum over tokens, and its constant."""
_UNTRANSLATED = ("bnpo", "sapo", "vespo")
_HOW = "train by TRL's own GRPOTrainer(rollout_func=rollout_func(env)), from llm_envs.trainers.stock_trl"


def algorithm_from_trl(args: Any, *, has_critic: bool = False) -> Algorithm:
    """Return the objective of TRL's settings, called `trl_<loss_type>`.

    Args:
        args: An `EnvGRPOConfig` or `EnvPPOConfig`.
        has_critic: Whether a critic computes the advantages. `beta` is then the coefficient of a KL in the policy's
            loss, as for GRPO.

    Raises:
        InvalidConfigError: If a setting has no counterpart, or is out of range.
    """
    _check(args)
    kind, normalisation = args.loss_type, _NORMALISATIONS[args.loss_type]
    coefficient = float(args.beta or 0.0)
    level: RatioLevel = "geometric" if args.importance_sampling_level == "sequence" else "token"
    try:
        return Algorithm(
            f"trl_{kind}",
            advantage_fn=None if has_critic else _advantage_fn(args),
            loss_fn=_loss_fn(args, level),
            normalisation=normalisation[0],
            constant=normalisation[1],
            kl_coef=coefficient,
            kl_ratio=level if coefficient and args.use_bias_correction_kl else None,
            entropy_coef=float(args.entropy_coef),
            top_entropy_quantile=float(args.top_entropy_quantile),
        )
    except ValueError as error:
        raise InvalidConfigError(str(error)) from error


def rewards_from_trl(args: Any, rewards: RewardSettings) -> RewardSettings:
    """Return reward settings with what `multi_objective_aggregation` asks for.

    Raises:
        InvalidConfigError: If the rewards already have an aggregate.
    """
    if args.multi_objective_aggregation != "normalize_then_sum":
        return rewards
    if rewards.aggregate is not None:
        raise InvalidConfigError(
            f"multi_objective_aggregation='normalize_then_sum' and RewardSettings.aggregate={rewards.aggregate!r} both "
            "join the columns of rewards: leave one out."
        )
    return replace(rewards, aggregate="z_score")


def _check(args: Any) -> None:
    """Reject values that TRL does not know, and those that have no counterpart."""
    kind = args.loss_type
    choices = {
        "importance_sampling_level": ("token", "sequence"),
        "scale_rewards": ("group", "batch", "none"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    }
    check_values(
        args,
        ("loss_type", kind in (*_NORMALISATIONS, *_UNTRANSLATED), _NORMALISATIONS),
        *((name, getattr(args, name) in known, known) for name, known in choices.items()),
    )
    untranslated = {
        f"loss_type={kind!r}": kind in _UNTRANSLATED,
        "use_adaptive_entropy=True": args.use_adaptive_entropy,
        f"off_policy_mask_threshold={args.off_policy_mask_threshold}": args.off_policy_mask_threshold is not None,
        "top_entropy_quantile together with entropy_coef": args.top_entropy_quantile < 1 and bool(args.entropy_coef),
    }
    if names := [name for name, holds in untranslated.items() if holds]:
        raise InvalidConfigError(f"{', '.join(names)}: EnvGRPOTrainer has no such objective; {_HOW}.")
    # Other losses read epsilon_high as the width of a clip range, CISPO as the greatest weight of a token.
    if kind == "cispo" and (args.epsilon_high is None or args.epsilon_high < 1.0):
        raise InvalidConfigError(
            f"loss_type='cispo' with epsilon_high={args.epsilon_high}: epsilon_high is the greatest weight of a "
            "token, and where it is None TRL takes epsilon, which cuts every weight to 0.2. Set epsilon_high to 1 "
            "or more, for example 5.0."
        )


def _loss_fn(args: Any, level: RatioLevel) -> LossFn:
    if args.loss_type == "cispo":
        return partial(cispo, max_ratio=args.epsilon_high, level=level)
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if not (0.0 <= args.epsilon <= 1.0 and high >= 0.0):
        raise InvalidConfigError(
            f"epsilon={args.epsilon} and epsilon_high={args.epsilon_high}; ratios are clipped to 1 - epsilon and "
            "1 + epsilon_high (None: epsilon), so epsilon must be from 0 to 1, and epsilon_high at least 0."
        )
    if args.delta is not None and args.delta <= 1.0 + high:
        raise InvalidConfigError(f"delta={args.delta}; it must be above 1 + epsilon_high = {1.0 + high}, or None.")
    bounds = {"clip_low": args.epsilon, "clip_high": high, "dual_clip": args.delta}
    return partial(clipped_surrogate, level=level, **bounds)


def _advantage_fn(args: Any) -> AdvantageFn:
    if args.multi_objective_aggregation == "normalize_then_sum":  # the aggregate has mean 0 in each group
        return partial(group_normalised, scale="batch")
    if args.scale_rewards == "none":
        return group_centred
    return partial(group_normalised, scale=args.scale_rewards)
