"""What every number is called that a training logs: the table of `llm_envs.metric_names`, complete.

A test runs the trainers, gathers every key that they log, and holds that each is one row of this table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from llm_envs.metric_names import COLLECTION_METRICS, EPISODE_METRICS, EVALUATION_METRICS, MetricName

__all__ = ["ALL_METRICS", "LOGGERS", "METRICS"]

LOGGERS: Mapping[str, str] = MappingProxyType(
    {
        "sft": "`EnvSFTTrainer`",
        "grpo": "`EnvGRPOTrainer`",
        "ppo": "`EnvPPOTrainer`",
        "dpo": "`EnvDPOTrainer`, offline and online",
        "dpo-online": "`EnvDPOTrainer` that plays its pairs",
        "loop": "`llm_envs.trainers.loop.train`, and `quick_start_training`, which calls it",
        "seams": "TRL's own `GRPOTrainer` with `env_reward`",
        "collect": "`llm-envs collect` and `llm-envs eval` while they play, with `--report-to`; `collect_run(logger=)`",
        "eval": "`llm-envs eval` at its end, with `--report-to`; `evaluate_suite(logger=)`",
    }
)
"""Who logs, by a short name."""

_GRPO = ("grpo", "ppo")
_TRL_GRPO = (*_GRPO, "seams")
_PLAYING = ("grpo", "ppo", "dpo-online", "loop")
_TRAINERS = ("sft", "grpo", "ppo", "dpo")
_ALL_TRL = (*_TRAINERS, "seams")
_ALL = (*_ALL_TRL, "loop")
_HAS_ROWS = "in an evaluation, but not where DPO plays it"
_AT_EVALUATIONS = "every `eval_every` iterations and at the end"
_HAS_TOKENS = "there was a token to learn from"
_LEARNS_FROM_PAIRS = "the algorithm in force learns from pairs"
_VLLM = "vLLM samples, with `vllm_importance_sampling_correction`"


def _row(
    pattern: str,
    unit: str,
    meaning: str,
    logged_by: tuple[str, ...],
    when: str = "",
    *,
    maker: str = "llm-envs",
    evaluated: bool = False,
) -> MetricName:
    return MetricName(pattern, unit, meaning, logged_by, when, maker, evaluated)


def _trl(pattern: str, unit: str, meaning: str, logged_by: tuple[str, ...], when: str = "") -> MetricName:
    """Return a name of TRL's that its evaluation logs too."""
    return _row(pattern, unit, meaning, logged_by, when, maker="TRL", evaluated=True)


def _transformers(
    pattern: str, unit: str, meaning: str, when: str = "", logged_by: tuple[str, ...] = _ALL_TRL
) -> MetricName:
    """Return a name of transformers' own trainer."""
    return _row(pattern, unit, meaning, logged_by, when, maker="transformers")


def _who_plays(pattern: str) -> tuple[str, ...]:
    """Return who logs a name of `trajectory_metrics`: pairs of DPO do not fork, and `env_reward` logs a few."""
    if pattern == "forks":
        return ("grpo", "ppo", "loop")
    return (*_PLAYING, "seams") if pattern in ("errored", "success", "turns", "stop/<reason>") else _PLAYING


_ENVIRONMENT = (
    *(
        dataclasses.replace(
            name,
            pattern=f"env/{name.pattern}",
            logged_by=_who_plays(name.pattern),
            meaning=name.meaning + (" By `env_reward`: their share." if name.pattern == "errored" else ""),
            is_evaluated=True,
        )
        for name in EPISODE_METRICS
    ),
    *(
        _row(
            f"env/<id>/{name}",
            unit,
            f"{meaning} of one environment, or of one difficulty of it.",
            ("grpo", "ppo", "dpo-online"),
            "more than one environment or difficulty was played",
            evaluated=True,
        )
        for name, unit, meaning in (("success", "share", "Success"), ("reward", "reward", "Mean reward"))
    ),
)

_ENVIRONMENT = (
    *_ENVIRONMENT,
    _row(
        "env/stop/tool_loop",
        "share",
        "Episodes that TRL's own tool loop ended, and not the environment.",
        ("seams",),
        "with `environment_factory`",
        evaluated=True,
    ),
)

_CURRICULUM = tuple(
    _row(f"env/curriculum/{name}", unit, meaning, ("grpo", "ppo", "dpo-online"), when)
    for name, unit, meaning, when in (
        ("share/<level>", "share", "How often the level is chosen from now on.", "with `curriculum`"),
        ("success/<level>", "share", "Success of the level's latest episodes.", "with `curriculum`, once it is known"),
        ("open", "levels", "How many levels are open.", "with `curriculum`"),
    )
)

_REWARDS = (
    _trl(
        "reward",
        "reward",
        "Mean of what is learned from: the weighted sum of the columns, or what `aggregate` makes of them.",
        _TRL_GRPO,
    ),
    _trl("reward_std", "reward", "Its standard deviation over the generation.", _TRL_GRPO),
    _trl(
        "frac_reward_zero_std",
        "share",
        "Groups whose members all have the same reward: of these nothing is learned.",
        ("grpo", "seams"),
    ),
    _trl(
        "rewards/<column>/mean",
        "reward",
        "Mean of a column, before its weight. Behind `rollout_func` a column is called as its reward function.",
        _TRL_GRPO,
    ),
    _trl("rewards/<column>/std", "reward", "Standard deviation of a column over the generation.", _TRL_GRPO),
    _row("reward/<column>", "reward", "Mean of a column, before its weight.", ("loop",), "a scored episode has it"),
    _row("scored", "share", "Episodes of the batch that have a reward; the others are masked.", ("loop",)),
)

_STEP = (
    _transformers(
        "loss", "1", "The loss. Of algorithms with centred advantages it says nothing about progress.", "", _ALL
    ),
    _transformers(
        "grad_norm", "1", "Norm of the gradient before it is clipped. 0 in the warm-up of PPO's critic.", "", _ALL
    ),
    _transformers("learning_rate", "1", "Of the last step; in PPO the policy's, not the critic's.", "", _ALL),
    _transformers("epoch", "epochs", "How often TRL's rows were gone through: with environments, numbers of episodes."),
    _trl(
        "entropy",
        "nats a token",
        "Mean entropy of the policy at the trained tokens. In the loop only with `entropy_coef`.",
        _ALL,
    ),
    _trl("mean_token_accuracy", "share", "Trained tokens that are the model's likeliest.", ("sft", "dpo")),
    _trl(
        "aux_loss",
        "1",
        "Load-balancing loss.",
        _ALL_TRL,
        "the model is a mixture of experts, and `router_aux_loss_coef` is not 0; TRL's own loss",
    ),
    _trl(
        "policy_loss",
        "1",
        "The loss without the entropy bonus.",
        _TRL_GRPO,
        "`entropy_coef` is not 0, TRL's own loss",
    ),
    _row(
        "entropy_coef",
        "1",
        "Weight of the entropy bonus in force.",
        _TRL_GRPO,
        "`entropy_coef` is not 0, TRL's own loss",
        maker="TRL",
    ),
    *(
        _trl(f"clip_ratio/{name}", "share", meaning, _TRL_GRPO, "TRL's own loss, and it clips: not cispo")
        for name, meaning in (
            ("low_mean", "Tokens whose ratio was clipped from below, with a negative advantage."),
            ("high_mean", "Tokens whose ratio was clipped from above, with a positive advantage."),
            ("region_mean", "Both together."),
            ("low_min", "Least share of `low_mean` in one row."),
            ("high_max", "Greatest share of `high_mean` in one row."),
        )
    ),
    _trl(
        "cispo_clip_ratio", "share", "Tokens whose ratio cispo cut.", _TRL_GRPO, 'TRL\'s own loss, `loss_type="cispo"`'
    ),
    _trl(
        "vespo/phi_seq_mean",
        "1",
        "Mean weight that vespo gives a sequence.",
        _TRL_GRPO,
        'TRL\'s own loss, `loss_type="vespo"`',
    ),
    _row(
        "algorithm/<algorithm>",
        "share",
        "Steps in which this algorithm was in force.",
        ("grpo",),
        "with `algorithm` or `algorithm_schedule`",
    ),
)

_KL = (
    _trl(
        "kl",
        "nats a token",
        "Mean KL against the reference, by the estimator in force.",
        (*_TRL_GRPO, "loop"),
        "the KL's coefficient is not 0",
    ),
    _row("kl_coef", "1", "The KL's coefficient in force.", _GRPO, "there is a reference"),
    _row(
        "reference/kl",
        "nats a token",
        "The KL that a schedule or the reference's update is steered by.",
        ("grpo", "ppo", "dpo"),
        "with `kl_schedule` (not in DPO) or `reference_update_fn`",
    ),
    _row(
        "reference/updates",
        "updates",
        "How often the reference has changed so far.",
        ("grpo", "ppo", "dpo"),
        "with `reference_update_fn`",
    ),
)

_SAMPLING = (
    _row(
        "sampling/guard_logps_gap",
        "nats a token",
        "Mean difference between the log-probabilities at sampling and the trainer's own, on the first batch. Above "
        "`logps_tolerance` training stops.",
        _GRPO,
        "`logps_tolerance` is set and sampling filters nothing; once a run",
    ),
    *(
        _trl(
            f"sampling/sampling_logp_difference/{name}",
            "nats",
            f"{meaning} difference between the two.",
            _TRL_GRPO,
            _VLLM,
        )
        for name, meaning in (("mean", "Mean"), ("max", "Greatest"))
    ),
    *(
        _trl(
            f"sampling/importance_sampling_ratio/{name}",
            "1",
            f"{meaning} weight by which TRL corrects for it.",
            _TRL_GRPO,
            _VLLM,
        )
        for name, meaning in (("min", "Least"), ("mean", "Mean"), ("max", "Greatest"))
    ),
)

_LENGTHS = (
    _trl("num_tokens", "tokens", "Tokens that the run has seen so far, prompts included.", _ALL_TRL),
    *(
        _trl(
            f"completions/{name}_length",
            "tokens",
            f"{meaning} length of an episode behind its first prompt, the environment's words included.",
            _TRL_GRPO,
        )
        for name, meaning in (("mean", "Mean"), ("min", "Least"), ("max", "Greatest"))
    ),
    _trl(
        "completions/clipped_ratio",
        "share",
        "Rows whose last token ends no turn. TRL takes them for cut off; whether an episode was is in `env/stop/`.",
        _TRL_GRPO,
    ),
    *(
        _trl(f"completions/{name}_terminated_length", "tokens", f"{meaning} length of the other rows.", _TRL_GRPO)
        for name, meaning in (("mean", "Mean"), ("min", "Least"), ("max", "Greatest"))
    ),
    *(
        _trl(
            f"tools/{name}",
            unit,
            meaning,
            ("seams",),
            "with `environment_factory` of an environment that has tools",
        )
        for name, unit, meaning in (
            ("call_frequency", "calls", "Mean number of tool calls an episode, as TRL counts them."),
            ("failure_frequency", "share", "Calls that raised."),
        )
    ),
    *(
        _row(
            f"rows/{name}",
            "rows",
            f"Rows longer than `max_length`{meaning}, of the whole data set.",
            ("sft",),
            "in the first entry of a run",
        )
        for name, meaning in (
            ("overlong", ""),
            ("dropped", " that were left out"),
            ("cut", " that were cut behind a turn"),
        )
    ),
)

_CRITIC = (
    *(
        _row(f"value/{name}", unit, meaning, ("ppo",), when, evaluated=evaluated)
        for name, unit, meaning, when, evaluated in (
            ("loss", "reward²", "The critic's loss.", "", True),
            ("clip_fraction", "share", "Tokens whose value stopped at `value_clip`.", "", True),
            ("mean", "reward", "Mean of what the critic said at the sampled tokens.", "", True),
            ("std", "reward", "Its standard deviation.", "", True),
            ("return_mean", "reward", "Mean of the returns that it learns.", "", True),
            ("return_std", "reward", "Their standard deviation.", "", True),
            (
                "explained_variance",
                "1",
                "1 minus the error's variance over that of the returns: 1 is right, 0 no better "
                "than a constant, less is worse.",
                "",
                True,
            ),
            (
                "bootstrap_mean",
                "reward",
                "Mean of the values that stand for what was cut off.",
                "an episode was truncated",
                True,
            ),
            ("learning_rate", "1", "The critic's.", "", False),
            ("grad_norm", "1", "Norm of the critic's gradient before it is clipped.", "", False),
        )
    ),
    _row(
        "policy/approx_kl",
        "nats a token",
        "KL(old‖new): how far the policy has moved from the one that sampled.",
        ("ppo",),
        evaluated=True,
    ),
    _row("policy/clip_fraction", "share", "Tokens whose ratio was clipped.", ("ppo",), evaluated=True),
)

_PAIRS = (
    *(
        _trl(f"{name}/{which}", unit, f"{meaning} of {the} episode.", ("dpo",))
        for name, unit, meaning in (
            ("logps", "nats", "Log-probability of the agent's tokens together"),
            ("logits", "1", "Mean over the vocabulary of the logits at the agent's tokens"),
        )
        for which, the in (("chosen", "the chosen"), ("rejected", "the rejected"))
    ),
    _trl("rewards/chosen", "nats", "beta times the log-ratio to the reference of the chosen episode.", ("dpo",)),
    _trl("rewards/rejected", "nats", "The same of the rejected one.", ("dpo",)),
    _trl("rewards/margins", "nats", "By how much the first is greater.", ("dpo",)),
    _trl("rewards/accuracies", "share", "Pairs in which the first is greater.", ("dpo",)),
    *(
        _row(
            f"pairs/{name}",
            "pairs",
            f"Pairs longer than `max_length`{meaning}, of the whole data set.",
            ("dpo",),
            "in the first entry of a run",
        )
        for name, meaning in (
            ("overlong", ""),
            ("dropped", " that were left out"),
            ("cut", " that were cut behind a turn"),
        )
    ),
    *(
        _row(f"pairs/{name}", unit, meaning, ("dpo-online",))
        for name, unit, meaning in (
            ("n", "pairs", "Pairs of a round."),
            ("groups", "share", "Groups that gave a pair."),
            ("reward_gap", "reward", "By how much the chosen episode's reward is greater, on average."),
            ("length_gap", "tokens", "By how many of the agent's tokens it is longer, on average."),
        )
    ),
    _row(
        "pairs/count",
        "pairs",
        "Pairs of the generation.",
        ("grpo",),
        _LEARNS_FROM_PAIRS,
        evaluated=True,
    ),
    _row(
        "pairs/accuracy",
        "share",
        "Pairs whose chosen episode has the greater log-ratio.",
        ("grpo",),
        _LEARNS_FROM_PAIRS,
        evaluated=True,
    ),
)

_LOOP = (
    _row("ratio", "1", "Mean ratio of the trained policy to the one that sampled, per token.", ("loop",), _HAS_TOKENS),
    _row(
        "sampling_gap",
        "nats a token",
        "Mean difference between the log-probabilities at sampling and the trained "
        "model's own; at the first step the guard looks at it.",
        ("loop",),
        _HAS_TOKENS,
    ),
    _row("pairs", "pairs", "Pairs of a batch.", ("loop",), _LEARNS_FROM_PAIRS),
    _row(
        "pair_accuracy", "share", "Pairs whose chosen episode has the greater log-ratio.", ("loop",), _LEARNS_FROM_PAIRS
    ),
    _row(
        "skipped",
        "share",
        "Steps that changed nothing: there was no token to learn from, or the gradient was not finite.",
        ("loop",),
    ),
    *(
        _row(f"ema/env/{name}", unit, f"Moving average of `env/{name}`.", ("loop",), "once it was measured")
        for name, unit in (("reward", "reward"), ("success", "share"))
    ),
    *(
        _row(f"eval/{name}", unit, meaning, ("loop",), "with `create_eval_fn`, " + _AT_EVALUATIONS)
        for name, unit, meaning in (
            ("reward", "reward", "Mean reward on held-out training problems."),
            ("turns", "turns", "Mean number of turns on them."),
            ("n", "episodes", "How many of them were scored."),
        )
    ),
    _row("eval/<measure>", "its own", "What `eval_fn` returned.", ("loop",), "with an `eval_fn` that returns it"),
    _row("time/collect_s", "s", "Playing, of this iteration.", ("loop",)),
    _row("time/learn_s", "s", "Learning, of this iteration.", ("loop",)),
)

_TIME = (
    _row("step_time", "s", "An optimizer step, its generation included.", _TRL_GRPO, maker="TRL"),
    _transformers("train_runtime", "s", "The whole training.", "in the last entry"),
    _transformers("train_samples_per_second", "1/s", "Rows a second.", "in the last entry"),
    _transformers("train_steps_per_second", "1/s", "Optimizer steps a second.", "in the last entry"),
    _transformers("train_loss", "1", "Mean of `loss` over the training.", "in the last entry"),
    _transformers("total_flos", "FLOP", "Estimate by transformers; 0 where it cannot tell.", "in the last entry"),
    _transformers("num_input_tokens_seen", "tokens", "Tokens so far.", "with `include_num_input_tokens_seen`"),
    _transformers("train_tokens_per_second", "1/s", "Tokens a second.", "with `include_num_input_tokens_seen`"),
    _transformers("eval_loss", "1", "The loss on the evaluation's rows.", _HAS_ROWS),
    _transformers("eval_runtime", "s", "The evaluation.", _HAS_ROWS),
    _transformers("eval_samples_per_second", "1/s", "Rows of the evaluation a second.", _HAS_ROWS),
    _transformers("eval_steps_per_second", "1/s", "Batches of the evaluation a second.", _HAS_ROWS),
)

METRICS: Mapping[str, tuple[MetricName, ...]] = MappingProxyType(
    {
        "What the environment said": _ENVIRONMENT,
        "The curriculum": _CURRICULUM,
        "Rewards that are learned from": _REWARDS,
        "The step": _STEP,
        "The reference": _KL,
        "Sampling against training": _SAMPLING,
        "Lengths and counts": _LENGTHS,
        "PPO: critic and policy": _CRITIC,
        "Pairs": _PAIRS,
        "The functional loop": _LOOP,
        "Time, and the ends of runs": _TIME,
        "Collections": COLLECTION_METRICS,
        "Evaluations": EVALUATION_METRICS,
    }
)
"""Every name that is logged, by what it is about."""

ALL_METRICS: tuple[MetricName, ...] = tuple(name for names in METRICS.values() for name in names)
"""The same in one row."""
