"""What every logged number is called and means: a table, of which `docs/reference/metrics.md` is made.

The names that trainers log are in `llm_envs.trainers.metric_names`, with these in one table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llm_envs.types import StopReason

__all__ = [
    "COLLECTION_METRICS",
    "EPISODE_METRICS",
    "EVALUATION_METRICS",
    "PLACEHOLDERS",
    "MetricName",
    "matching_names",
]

PLACEHOLDERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "component": (r".+", "a part of the task's reward, as the task calls it: `correct`, `malformed`"),
        "reason": ("|".join(StopReason), f"why an episode ended: {', '.join(f'`{reason}`' for reason in StopReason)}"),
        "id": (
            r"(?!(?:reward|stop|curriculum)/).+",
            "the id of an environment, `llm/Calculator-v0`, or an id with a difficulty, `llm/Calculator-v0/easy`",
        ),
        "level": (r".+", "a level of the curriculum: `easy`"),
        "column": (r".+", "a column of rewards: `reward`, a component, a reward function, `shaping/cost`, `aggregate`"),
        "algorithm": (r".+", "the name of an algorithm of the schedule: `grpo`"),
        "task": (
            r"(?!difficulty/)(?:(?!/(?:reward|stop)/).)+",
            "the name of an evaluation's task, `llm/Calculator-v0` or one from the suite; what is neither a letter, a "
            "digit nor one of `-_./` is `_`",
        ),
        "difficulty": (r".+", "a level, or `default`"),
        "k": (r"\d+", "a number of samples"),
        "end": (
            "low|high|bootstrap_low|bootstrap_high",
            "an end of the 95% interval by problem, the analytic one or the bootstrap's: `low`, `high`, "
            "`bootstrap_low`, `bootstrap_high`",
        ),
        "measure": (
            r"(?!(?:success|reward|turns|n)$)(?!success_(?:low|high|bootstrap))[^/]+",
            "a key of what a function `eval_fn` of your own returns",
        ),
    }
)
"""What stands between `<` and `>` in a name: a regular expression, and a sentence."""


@dataclass(frozen=True, slots=True)
class MetricName:
    """A name that is logged, or a family of them."""

    pattern: str
    """The name; `<placeholder>` stands for any text that `PLACEHOLDERS` allows there."""
    unit: str
    """Of the number: share (from 0 to 1), tokens, nats, s, ..."""
    meaning: str
    """What it is, in a sentence."""
    logged_by: tuple[str, ...]
    """Who logs it: keys of `llm_envs.trainers.metric_names.LOGGERS`."""
    when: str = ""
    """Under which condition it is there; empty: always."""
    maker: str = "llm-envs"
    """Whose name it is: what TRL and transformers log is passed on as it is."""
    is_evaluated: bool = False
    """Whether an evaluation of a trainer logs the same with `eval_` in front."""

    def matches(self, key: str) -> bool:
        """Say whether a logged key is this name, or `eval_` and this name."""
        parts = re.split(r"<(\w+)>", self.pattern)
        expression = "".join(
            f"(?:{PLACEHOLDERS[part][0]})" if place % 2 else re.escape(part) for place, part in enumerate(parts)
        )
        return re.fullmatch(("(?:eval_)?" if self.is_evaluated else "") + expression, key) is not None


def matching_names(key: str, names: Iterable[MetricName]) -> list[MetricName]:
    """Return the rows of a table that a logged key belongs to: one, if it is known."""
    return [name for name in names if name.matches(key)]


def _episodes(*rows: tuple[str, str, str] | tuple[str, str, str, str]) -> tuple[MetricName, ...]:
    """Return names of `trajectory_metrics`; who logs them under which prefix says the table that takes them."""
    return tuple(MetricName(row[0], row[1], row[2], (), *row[3:]) for row in rows)


EPISODE_METRICS: tuple[MetricName, ...] = _episodes(
    ("episodes", "episodes", "How many were played, failed and unscored ones too."),
    ("errored", "episodes", "How many of them failed or got no score from the task; they are in no mean."),
    ("success", "share", "Episodes that the task calls solved.", "an episode has a score"),
    ("reward", "reward", "Mean over episodes of what the task paid, all turns added up.", "an episode has a score"),
    (
        "reward/<component>",
        "reward",
        "Mean of a component of the task's reward, unweighted, over the episodes that have it.",
        "an episode has a score, and the component",
    ),
    ("turns", "turns", "Mean number of turns an episode.", "an episode has a score"),
    (
        "sampled_tokens",
        "tokens",
        "Mean number of tokens that the policy wrote in an episode.",
        "an episode has a score",
    ),
    ("forks", "rows", "Mean number of rows an episode has beyond its first.", "an episode forked"),
    ("tool_calls", "calls", "Mean number of tool calls an episode.", "an episode has a score"),
    ("tool_success", "share", "Tool calls that did not fail.", "a tool was called"),
    ("stop/<reason>", "share", "Episodes that ended for this reason.", "an episode has a score"),
)
"""The names of `llm_envs.metrics.trajectory_metrics`, without the prefix under which they are logged."""


def _named(by: str, prefix: str, *rows: tuple[str, str, str] | tuple[str, str, str, str]) -> tuple[MetricName, ...]:
    return tuple(MetricName(f"{prefix}{row[0]}", row[1], row[2], (by,), *row[3:]) for row in rows)


_PLAYED = "an episode came out"
_SCORED = "an episode has a score"

COLLECTION_METRICS: tuple[MetricName, ...] = _named(
    "collect",
    "collect/",
    ("episodes", "episodes", "How many are there by now, those of an earlier call too."),
    ("errored", "episodes", "How many of this call failed."),
    ("unscored", "episodes", "How many had no turn, or no judgement."),
    ("retries", "episodes", "How often an episode was played anew."),
    ("running", "episodes", "How many are under way; 0 at the end."),
    ("success", "share", "Scored episodes that the task calls solved.", _SCORED),
    ("reward", "reward", "Mean reward of the scored episodes.", _SCORED),
    ("turns", "turns", "Mean number of turns an episode.", _PLAYED),
    ("sampled_tokens", "tokens", "Mean number of tokens that the policy wrote in an episode.", _PLAYED),
    ("forks", "rows", "Mean number of rows an episode has beyond its first.", _PLAYED),
    ("stop/<reason>", "share", "Episodes that ended for this reason.", "an episode ended so"),
    ("seconds", "s", "Time spent collecting."),
    ("episodes_per_second", "1/s", "Episodes a second."),
    ("tokens_per_second", "1/s", "Tokens that the policy wrote a second."),
)
"""The names of `llm_envs.tracking.collection_metrics`; the step is the number of finished episodes."""

_KNOWN = "it is known: something was scored"

EVALUATION_METRICS: tuple[MetricName, ...] = (
    MetricName(
        "eval/success",
        "share",
        "Mean of the tasks' success rates. In the loop: success on held-out training problems, by `create_eval_fn`.",
        ("eval", "loop"),
        _KNOWN,
    ),
    *_named(
        "eval",
        "eval/",
        ("success_<end>", "share", "An end of its interval.", "there are at least two problems"),
        (
            "difficulty/<difficulty>/success",
            "share",
            "The same over the tasks of one level.",
            "there are several levels",
        ),
        (
            "difficulty/<difficulty>/success_<end>",
            "share",
            "An end of its interval.",
            "there are several levels, and at least two problems",
        ),
        (
            "<task>/success",
            "share",
            "Scored episodes of a task that succeeded, each problem weighing the same.",
            _KNOWN,
        ),
        ("<task>/success_<end>", "share", "An end of its interval.", "there are at least two problems"),
        ("<task>/reward", "reward", "Mean reward of the scored episodes.", _KNOWN),
        ("<task>/reward_<end>", "reward", "An end of its interval.", "there are at least two problems"),
        ("<task>/pass_at_<k>", "share", "Unbiased estimate that one of k samples of a problem succeeds.", _KNOWN),
        ("<task>/pass_at_<k>_<end>", "share", "An end of its analytic interval.", "there are at least two problems"),
        ("<task>/pass_hat_<k>", "share", "Unbiased estimate that all of k samples of a problem succeed.", _KNOWN),
        ("<task>/pass_hat_<k>_<end>", "share", "An end of its analytic interval.", "there are at least two problems"),
        ("<task>/reward/<component>", "reward", "Mean of a component of the reward, before its weight.", _KNOWN),
        ("<task>/episodes", "episodes", "How many were played."),
        ("<task>/scored", "episodes", "How many of them have a score."),
        ("<task>/errored_rate", "share", "Episodes that failed."),
        ("<task>/unscored_rate", "share", "Episodes without a score for another reason."),
        ("<task>/truncated_rate", "share", "Episodes that a limit cut, the task's or the collector's.", _KNOWN),
        ("<task>/malformed_turns_rate", "share", "Turns that were malformed.", "the task says which turns are"),
        ("<task>/turns", "turns", "Mean number of turns a scored episode.", _KNOWN),
        ("<task>/tokens", "tokens", "Mean number of tokens of all rows; 0 without token rows.", _KNOWN),
        ("<task>/sampled_tokens", "tokens", "Mean number of tokens that the policy wrote.", _KNOWN),
        ("<task>/seconds", "s", "Mean time of an episode, beside as many others as ran at once.", _KNOWN),
        ("<task>/stop/<reason>", "share", "Episodes that ended for this reason.", "an episode ended so"),
    ),
)
"""The names of `llm_envs.tracking.evaluation_metrics`."""
