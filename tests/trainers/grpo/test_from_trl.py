"""TRL's settings as an `Algorithm`. `test_grpo_parity.py` compares the steps with TRL's own."""

from dataclasses import replace
from functools import partial

import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers import EnvGRPOConfig
from llm_envs.trainers.functional.advantages import group_centred, group_normalised
from llm_envs.trainers.functional.losses import cispo
from llm_envs.trainers.grpo.from_trl import algorithm_from_trl


def made(*, has_critic=False, **settings):
    args = EnvGRPOConfig(output_dir="x", report_to="none", bf16=False, num_generations=4, **settings)
    return algorithm_from_trl(args, has_critic=has_critic)


def bound(function):
    return (function.func, function.keywords) if isinstance(function, partial) else (function, {})


def test_the_settings_that_a_user_of_trl_knows():
    algorithm = made(loss_type="dapo", beta=0.04, epsilon_high=0.28, scale_rewards="batch")
    assert (algorithm.name, algorithm.normalisation, algorithm.kl_coef) == ("trl_dapo", "token", 0.04)
    assert algorithm.kl_ratio == "token" and algorithm.kl_in == "loss"
    assert bound(algorithm.advantage_fn) == (group_normalised, {"scale": "batch"})
    assert {"clip_low": 0.2, "clip_high": 0.28}.items() <= bound(algorithm.loss_fn)[1].items()
    assert made(importance_sampling_level="sequence", beta=0.1).kl_ratio == "geometric"
    assert made(beta=0.1, use_bias_correction_kl=False).kl_ratio is None
    assert made(scale_rewards=False).advantage_fn is group_centred
    assert made(has_critic=True).advantage_fn is None
    divisors = {kind: made(loss_type=kind) for kind in ("grpo", "dr_grpo", "luspo")}
    assert {kind: (a.normalisation, a.constant) for kind, a in divisors.items()} == {
        "grpo": ("sequence", None), "dr_grpo": ("constant", None), "luspo": ("constant", 1.0),
    }  # fmt: skip
    assert bound(made(loss_type="cispo", epsilon_high=3.0).loss_fn) == (cispo, {"max_ratio": 3.0, "level": "token"})


def test_a_bound_that_cannot_hold_is_refused():
    with pytest.raises(InvalidConfigError, match=r"delta=1\.1.*epsilon_high = 1\.2"):
        made(delta=1.1)
    with pytest.raises(InvalidConfigError, match=r"epsilon=2\.0"):
        made(epsilon=2.0)
    with pytest.raises(InvalidConfigError, match=r"top_entropy_quantile.*entropy_coef"):
        made(top_entropy_quantile=0.5, entropy_coef=0.1)
    with pytest.raises(InvalidConfigError, match="importance_sampling_level='turn'"):
        made(importance_sampling_level="turn")


def test_a_share_of_the_tokens_needs_a_loss_on_tokens():
    with pytest.raises(ValueError, match=r"top_entropy_quantile is 0\.0"):
        replace(made(), top_entropy_quantile=0.0)
    with pytest.raises(ValueError, match=r"kl_ratio is 'token'"):
        replace(made(), kl_ratio="token")
