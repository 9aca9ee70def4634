"""Measure a policy: its success with an interval, its reward, and the reasons why episodes ended.

`evaluate` plays one environment or a mixture and keeps every trajectory. `evaluate_suite` plays tasks separately and
keeps only a few numbers per episode, in a folder if requested. `replay` scores a folder's episodes without a policy.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from llm_envs.chat.context import Codec
from llm_envs.data.folder import MANIFEST_NAME, read_manifest, write_manifest
from llm_envs.data.lock import FolderLock
from llm_envs.data.shards import Shard
from llm_envs.data.storage import local_path
from llm_envs.data.writer import check_folder
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.metrics import evaluation_metrics
from llm_envs.evaluation.replayed import replay, results_of
from llm_envs.evaluation.results import Results
from llm_envs.evaluation.scores import Scoreboard, TaskKey, key_of
from llm_envs.evaluation.statistics import Interval, clustered_interval, clustered_rate_interval, pass_at_k, pass_hat_k
from llm_envs.evaluation.suite import Suite, SuiteSource, asked_thresholds
from llm_envs.policies.base import Policy
from llm_envs.rollout.collect_run import Show, collect_run, run_settings, watched
from llm_envs.rollout.collector import Collector
from llm_envs.sources.source import Envs, group_specs
from llm_envs.tracking.loggers import Logger
from llm_envs.tracking.reasons import count_reasons, describe_unscored
from llm_envs.types import Trajectory

__all__ = [
    "Evaluation",
    "evaluate",
    "evaluate_suite",
    "extend_run",
    "replay",
    "resumable_settings",
    "suite_settings",
    "summarize",
]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measurements. Rates are over the `n` scored episodes; errored and unscored ones are counted separately."""

    name: str
    """Environment ids and split."""
    n: int
    """Episodes with a score."""
    successes: int
    success_rate: float
    """`successes / n`; NaN if nothing was scored."""
    interval: Interval
    """Interval of the success rate, by problem; with one sample per problem, Wilson's."""
    mean_reward: float
    """NaN if nothing was scored."""
    reward_interval: Interval
    stop_reasons: Mapping[str, int]
    """Number of episodes by stop reason, including errors."""
    errors: Mapping[str, int]
    """Why episodes have no score -> their number (`tracking.reasons`)."""
    unscored: int
    """Episodes without a score for another reason than an error: a prompt that does not fit, a reward function."""
    mean_turns: float
    confidence: float
    """Confidence of both intervals."""
    pass_at: Mapping[int, float]
    """k -> unbiased estimate that at least one of k samples of a problem succeeds, for 1, 2, 4, ... and all samples."""
    pass_hat: Mapping[int, float]
    """k -> unbiased estimate that all of k samples succeed."""
    trajectories: tuple[Trajectory, ...] = field(repr=False)

    def __str__(self) -> str:
        low, high = self.interval
        reasons = " ".join(f"{reason}={count}" for reason, count in self.stop_reasons.items())
        line = (
            f"{self.name}: success {self.success_rate:.1%} ({low:.1%} to {high:.1%}, n={self.n}), "
            f"reward {self.mean_reward:.3g}, {self.mean_turns:.1f} turns, {reasons}"
        )
        if (k := max(self.pass_at, default=1)) > 1:
            line += f", pass@{k} {self.pass_at[k]:.1%}, pass^{k} {self.pass_hat[k]:.1%}"
        n_errored = len(self.trajectories) - self.n - self.unscored
        failed = describe_unscored(n_errored, self.unscored, self.errors)
        return f"{line}, {failed}" if failed else line


def summarize(trajectories: Sequence[Trajectory], *, name: str = "", confidence: float = 0.95) -> Evaluation:
    """Return the evaluation of these trajectories.

    Episodes with the same environment, arguments and seed are samples of one problem. Problems count as independent.
    """
    scored = [t for t in trajectories if t.status == "ok"]
    problems: dict[tuple[TaskKey, int], list[Trajectory]] = {}
    for trajectory in scored:
        key = key_of(trajectory.env_id, trajectory.env_kwargs), trajectory.seed
        problems.setdefault(key, []).append(trajectory)
    won = [[float(t.is_success is True) for t in samples] for samples in problems.values()]
    rewards = [[t.reward for t in samples] for samples in problems.values()]
    successes = sum(t.is_success is True for t in scored)
    n = len(scored)
    return Evaluation(
        name=name or ", ".join(sorted({t.env_id for t in trajectories})),
        n=n,
        successes=successes,
        success_rate=successes / n if n else float("nan"),
        interval=clustered_rate_interval(won, confidence),
        mean_reward=fmean(t.reward for t in scored) if n else float("nan"),
        reward_interval=clustered_interval(rewards, confidence),
        stop_reasons=dict(Counter(t.stop_reason.value for t in trajectories).most_common()),
        errors=dict(count_reasons(trajectories).most_common()),
        unscored=sum(t.status == "unscored" for t in trajectories),
        mean_turns=fmean(len(t.turns) for t in scored) if n else float("nan"),
        confidence=confidence,
        pass_at=_passes(pass_at_k, won),
        pass_hat=_passes(pass_hat_k, won),
        trajectories=tuple(trajectories),
    )


def evaluate(
    envs: Envs,
    policy: Policy,
    *,
    n: int = 200,
    k: int = 1,
    codec: Codec | None = None,
    split: str | None = "test",
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    **settings: Any,
) -> Evaluation:
    """Measure a policy on an environment. Works in a notebook too; in a coroutine use `asyncio.to_thread`.

    Args:
        envs: An environment id, a mixture, or a function that makes an environment.
        policy: Any policy.
        n: Number of problems, each with its own seed.
        k: Samples of each problem.
        codec: Messages to token ids, for a token policy; None: the policy's own, if it has one.
        split: Passed to the environment; None for an environment without splits, or if `env_kwargs` has it.
        seed: Decides which problems are played: equal seeds compare policies on equal problems.
        env_kwargs: Further arguments of the environment, such as `difficulty`.
        confidence: Confidence of the intervals.
        **settings: All other arguments of `Collector`: `sampling`, `limits`, `max_concurrency`, `progress`, ...

    Returns:
        The evaluation; `print` it for one line.

    Raises:
        InvalidConfigError: If a setting is unknown, `n` or `k` is below 1, or the environment's arguments name another
            split.
    """
    kwargs = dict(env_kwargs or {})
    _check_split("env_kwargs", kwargs, split)
    settings |= {
        "codec": codec or getattr(policy, "codec", None),
        "seed": seed,
        "env_kwargs": kwargs | ({} if split is None else {"split": split}),
    }
    with _collector(envs, policy, n, split, settings) as collector:
        groups = collector.collect(n, k)
    name = ", ".join(choice.env_id for choice in collector.source.choices) + (f" [{split}]" if split else "")
    return summarize([t for group in groups for t in group], name=name, confidence=confidence)


def evaluate_suite(
    suite: Suite,
    policy: Policy,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    shard: Shard | None = None,
    codec: Codec | None = None,
    confidence: float = 0.95,
    settings: Mapping[str, Any] | None = None,
    show: Show | None = None,
    logger: Logger | None = None,
    log_every_s: float = 10.0,
    make_collector: Callable[..., Collector] = Collector,
    **collector: Any,
) -> Results:
    """Measure a policy on each task of a suite separately, without holding episodes in memory.

    Args:
        suite: Tasks, problems and samples.
        policy: Any policy.
        out: A folder for the trajectories, as `collect_run` writes it, and `results.json`; None keeps neither.
        resume: Continue the evaluation in the folder: play missing episodes, and replay failed ones. A task may have
            more problems than before (`n`), and another k within its samples.
        shard: Play only the problems of this shard into `out`, and return the results of these. `merge_runs` joins the
            shards, and `replay` scores all of them.
        codec: Messages to token ids, for a token policy; None: the policy's own, if it has one.
        confidence: Confidence of all intervals.
        settings: Further settings that decide the episodes, such as a model's name, as JSON types; stored in the
            results.
        show: Shows progress, for example `progress.live_progress`.
        logger: Gets `tracking.collection_metrics` during the run, with the number of finished episodes as the step, and
            `tracking.evaluation_metrics` at the end.
        log_every_s: Seconds between two of its steps.
        make_collector: See `collect_run`.
        **collector: All other arguments of `Collector`: `sampling`, `limits`, `max_concurrency`, ...

    Raises:
        InvalidConfigError: If a setting is wrong, or a task has fewer problems than the evaluation in the folder.
        StoreError: If the folder holds another run, or cannot be written to.
    """
    if shard is not None and out is None:
        raise InvalidConfigError("a shard of an evaluation needs a folder (out), from which all shards are merged.")
    out = None if out is None else local_path(out, "an evaluation")
    source, own = SuiteSource(suite), suite_settings(suite, **dict(settings or {}))
    collector = {"progress": False, "codec": codec or getattr(policy, "codec", None)} | collector | {"seed": suite.seed}
    if out is not None:
        if resume and (out / MANIFEST_NAME).exists():
            # An actor's policy is known only when it runs; `collect_run` compares it.
            is_known = make_collector is Collector
            policy_name = {"policy": type(policy).__name__ if is_known else read_manifest(out).settings.get("policy")}
            of_shard = {} if shard is None else shard.settings(len(source))
            now = run_settings(source, group_size=suite.samples, **collector) | policy_name | own | of_shard
            extend_run(out, suite, now)
        collect_run(
            source,
            policy,
            out=out,
            n_groups=len(source),
            group_size=suite.samples,
            resume=resume,
            shard=shard,
            settings=own,
            show=show,
            logger=logger,
            log_every_s=log_every_s,
            make_collector=make_collector,
            **collector,
        )
        if shard is not None and not shard.groups(len(source)):  # `replay` refuses a run without episodes
            results = results_of(Scoreboard(), read_manifest(out).settings, None, confidence)
        else:
            results = replay(out, suite=suite, confidence=confidence, allow_partial=shard is not None)
        results = replace(results, played_with=results.versions)
        if shard is None:
            results.save(out)
    else:
        board = Scoreboard(suite.names)
        groups = (group_specs(source.spec(index), suite.samples) for index in range(len(source)))
        with (
            make_collector(source, policy, on_trajectory=board.add, **collector) as active,
            watched(active, suite.n_episodes, 0, show, logger, log_every_s),
        ):
            active.play_each(groups, n_episodes=suite.n_episodes)
        record = run_settings(source, group_size=suite.samples, **collector) | {"policy": active.policy_name} | own
        results = results_of(board, record, {entry.label: entry.k for entry in suite.entries}, confidence)
        results = replace(results, played_with=results.versions, thresholds=asked_thresholds(suite))
    if logger is not None:
        logger(sum(task.n_episodes for task in results), evaluation_metrics(results))
    return results


def suite_settings(suite: Suite, **settings: Any) -> dict[str, Any]:
    """Return the suite settings to store in the run's manifest."""
    return settings | {"eval": _entries(suite)}


def resumable_settings(path: str | Path, suite: Suite) -> dict[str, Any]:
    """Return the `eval` settings for continuing an evaluation: the stored ones, if the suite only adds to them.

    Args:
        path: The folder. If it has no evaluation of these tasks, the suite's own `eval` is returned.
        suite: The suite to play now.

    Raises:
        InvalidConfigError: If a task has fewer problems than before.
        StoreError: If the manifest is damaged.
    """
    own, folder = _entries(suite), Path(path)
    stored = read_manifest(folder).settings.get("eval") if (folder / MANIFEST_NAME).exists() else None
    if not isinstance(stored, list) or [_identity(entry) for entry in stored] != [_identity(entry) for entry in own]:
        return {"eval": own}
    for before, now in zip(stored, own, strict=True):
        if now[3] < before[3]:
            raise InvalidConfigError(
                f"{folder} is an evaluation of {before[3]} problems of {before[0]}, but -n asks for {now[3]}: an "
                f"evaluation can grow, not shrink. Give -n {before[3]} or more, or another folder."
            )
    return {"eval": stored}


def extend_run(path: str | Path, suite: Suite, settings: Mapping[str, Any]) -> None:
    """Update the manifest of an evaluation's folder to the present suite; see `resumable_settings`.

    Args:
        path: The folder; if it has no run, nothing happens.
        suite: The suite to play.
        settings: All settings of the run. Only the numbers of problems, and k, may differ.

    Raises:
        InvalidConfigError: If a task has fewer problems than before.
        StoreError: If the folder holds another run, or another writer has it open.
    """
    folder = Path(path)
    kept = resumable_settings(folder, suite)
    if kept["eval"] == _entries(suite):
        return
    check_folder(folder, {**settings, **kept}, resume=True)
    lock = FolderLock(folder)
    try:
        manifest = read_manifest(folder)
        write_manifest(folder, replace(manifest, settings={**manifest.settings, "eval": _entries(suite)}))
    finally:
        lock.release()


def _entries(suite: Suite) -> list[list[Any]]:
    """Return the tasks as JSON types: name, id, arguments, n, k."""
    entries = [[e.label, e.env_id, dict(e.kwargs), e.n, e.k] for e in suite.entries]
    taken: list[list[Any]] = json.loads(json.dumps(entries))
    return taken


def _identity(entry: Any) -> Any:
    """Return the part of a stored task that identifies it: all but n and k."""
    return entry[:3] if isinstance(entry, list) and len(entry) == 5 else None


def _passes(estimate: Callable[[int, int, int], float], won: Sequence[Sequence[float]]) -> dict[int, float]:
    """Return the mean estimate for each k, over the problems with k samples."""
    most = max(map(len, won), default=0)
    ks = sorted({2**power for power in range(most.bit_length())} | {most} - {0}) if most else []
    return {k: fmean(estimate(len(s), round(sum(s)), k) for s in won if len(s) >= k) for k in ks}


def _check_split(name: str, kwargs: Mapping[str, Any], split: str | None) -> None:
    if split is not None and kwargs.get("split", split) != split:
        other = kwargs["split"]
        raise InvalidConfigError(
            f"{name} has split {other!r} but the evaluation split={split!r}: pass split={other!r}, or split=None to "
            "leave it to the environments' arguments."
        )


def _collector(envs: Envs, policy: Policy, n: int, split: str | None, settings: Mapping[str, Any]) -> Collector:
    if n < 1:
        raise InvalidConfigError(f"{n=}: an evaluation needs at least 1 problem.")
    known = inspect.signature(Collector).parameters
    unknown = sorted(set(settings) - set(known))
    if unknown:
        example = ", ".join(f"{name!r}: {settings[name]!r:.40}" for name in unknown)
        others = [name for name in inspect.signature(evaluate).parameters | known if name != "settings"]
        raise InvalidConfigError(
            f"evaluate has no setting {', '.join(unknown)}: an environment's arguments go into "
            f"env_kwargs={{{example}}}; the other settings are {', '.join(others)}."
        )
    collector = Collector(envs, policy, **settings)
    for choice in collector.source.choices:
        _check_split(choice.env_id, choice.kwargs, split)
    return collector
