"""`llm-envs eval`: measure a player on tasks, or score again what was played, compare, and fail below a threshold.

Exit codes: 0 if every threshold is reached, 1 if one is not or the evaluation fails, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.cli.arguments import (
    ENV_HELP,
    add_rollout_arguments,
    add_sampling_arguments,
    add_shard_argument,
    arrangement_of,
    number,
    positive,
    require_text,
    rules_of,
)
from llm_envs.cli.next_line import name_merge, name_next
from llm_envs.cli.parser import Flag, Parser, Repeatable, json_object
from llm_envs.cli.policy_options import add_player_arguments, check_player, player_settings
from llm_envs.cli.room_options import (
    add_room_arguments,
    in_place_of_env,
    open_collector,
    played_settings,
    read_played,
)
from llm_envs.cli.tracking_options import add_tracking_arguments, check_tracking, tracker_of
from llm_envs.errors import InvalidConfigError
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    from llm_envs.evaluation.results import Results
    from llm_envs.evaluation.suite import Suite, Thresholds
    from llm_envs.types import SamplingParams

__all__ = ["add_arguments", "run"]

THRESHOLDS = ("min_success", "min_mean_reward", "min_pass_at_k", "min_pass_hat_k", "max_errors")

STANDARD = "standard"
"""The suite whose protocols are in `llm_envs.evaluation.standard`."""

EXAMPLES = """
examples:
  llm-envs eval llm/Calculator-v0 --model runs/demo/model -n 200 -k 4 --out runs/eval
  llm-envs eval 'llm/*' --model DIR --policy vllm --difficulty easy,hard --out runs/all
  llm-envs eval llm/Calculator-v0 --model https://host/v1 --model-name NAME --min-success 0.8
  llm-envs eval llm/Calculator-v0 --model DIR -n 500 --out runs/eval --resume --report-to wandb csv
  llm-envs eval --suite suite.yaml --model DIR --json
  llm-envs eval --suite standard --data GSM8K=openai/gsm8k --data MATH500=math500.jsonl --model DIR --out runs/standard
  llm-envs eval llm/Calculator-v0 --model AFTER --out runs/after --compare runs/before
  llm-envs eval llm/Calculator-v0 --model DIR --out runs/parts --shard 0/4
  llm-envs eval --replay runs/eval
  llm-envs eval --replay runs/after --compare runs/before
"""


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument("envs", nargs="*", metavar="ENV", help=f"{ENV_HELP}, or a pattern ('llm/*')")
    parser.add_argument("--exclude", action=Repeatable, metavar="PATTERN", help="exclude matching tasks")
    parser.add_argument(
        "--suite",
        metavar="FILE",
        help="YAML file with tasks, arguments, n, k and thresholds; or standard: benchmarks as leaderboards play them",
    )
    parser.add_argument(
        "--data",
        action=Repeatable,
        metavar="NAME=DATA",
        help="with --suite standard: a benchmark and its data, such as GSM8K=openai/gsm8k; or hub, or sample, for all",
    )
    parser.add_argument("--replay", metavar="DIR", help="score the episodes of a run's folder again without playing")
    parser.add_argument("--partial", action=Flag, help="with --replay: accept a run with missing episodes")
    parser.add_argument(
        "-n", type=positive, metavar="N", help="problems per task, each played --group-size times; default 200"
    )
    parser.add_argument("-k", type=positive, metavar="K", help="largest k of pass@k and pass^k, default 1")
    parser.add_argument("--group-size", type=positive, metavar="G", help="episodes per problem; default k")
    parser.add_argument("--seed", type=int, help="the run's seed; use equal seeds to compare; default 0")
    parser.add_argument("--split", help="train or test, default test; none for a task without splits")
    parser.add_argument(
        "--difficulty", metavar="LEVEL", help="level of the tasks; several (easy,hard) are measured separately"
    )
    parser.add_argument(
        "--env-kwargs", type=json_object, metavar="JSON", help="more arguments of the task, as a JSON object"
    )
    add_sampling_arguments(parser)
    parser.set_defaults(temperature=None, max_turn_tokens=None)  # --suite standard has others
    add_rollout_arguments(parser)
    add_room_arguments(parser, "eval")
    _add_output_arguments(parser)
    add_tracking_arguments(parser)
    add_player_arguments(parser)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    confidence = number("between 0 and 1", lambda value: 0 < value < 1)
    finite = number("a finite number", lambda value: True)
    group = parser.add_argument_group("what comes of it")
    group.add_argument("--out", metavar="DIR", help="output folder of the run: the trajectories and results.json")
    group.add_argument("--resume", action=Flag, help="resume the evaluation in --out; with a larger -n, play more")
    add_shard_argument(group)
    group.add_argument("--json", action=Flag, help="print the results as JSON")
    group.add_argument(
        "--confidence", type=confidence, default=0.95, metavar="C", help="confidence level of intervals, default 0.95"
    )
    group.add_argument("--compare", metavar="RESULTS", help="compare with an earlier run's folder or results.json")
    group.add_argument("--min-success", type=finite, metavar="P", help="exit with 1 if a task's success is below P")
    group.add_argument("--min-mean-reward", type=finite, metavar="R", help="the same for its mean reward")
    group.add_argument("--min-pass-at-k", type=finite, metavar="P", help="the same for its pass@k")
    group.add_argument("--min-pass-hat-k", type=finite, metavar="P", help="the same for its pass^k")
    group.add_argument("--max-errors", type=finite, metavar="P", help="allowed share of errored episodes; default 0")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and return the exit code."""
    from llm_envs.evaluation.comparison import check_comparable, compare
    from llm_envs.evaluation.replayed import load_results
    from llm_envs.evaluation.suite import failed_thresholds
    from llm_envs.evaluation.table import show_comparison, show_results

    _check(arguments)
    if arguments.suite == STANDARD:
        return _run_standard(arguments)
    other = None if arguments.compare is None else load_results(arguments.compare, confidence=arguments.confidence)
    names = arguments.replay or arguments.out or str(arguments.model or arguments.policy), arguments.compare
    suite = None if arguments.replay and not arguments.suite else _suite(arguments)
    try:
        if suite is None or arguments.replay:
            results = _replay(arguments, suite)
        else:
            if other is not None:  # before anything is played
                check_comparable(suite, other, names=names)
            results = _play(arguments, suite)
    except KeyboardInterrupt:
        kept = "" if arguments.out is None else ": what was finished is saved; the same command with --resume goes on"
        print(f"llm-envs: interrupted{kept}.", file=sys.stderr)
        return 130
    found = None
    if other is not None:
        found = compare(results, other, names=names, confidence=arguments.confidence)
    if arguments.json:
        compared = {} if found is None else {"comparison": found.to_dict()}
        print(json.dumps(results.to_dict() | compared, indent=1, allow_nan=False))
    else:
        print(show_results(results))
        if found is not None:
            print("\n" + show_comparison(found))
        if arguments.shard is not None:
            print(visible_text(f"\n{arguments.out}: shard {arguments.shard}"))
        elif arguments.out is not None:
            print(visible_text(f"\n{arguments.out}: results.json{'' if arguments.replay else ' and the trajectories'}"))
    if arguments.shard is not None:
        name_merge(arguments.out)
        return 0
    failed = failed_thresholds(results, suite or _thresholds(results, arguments))
    for line in failed:
        print(f"llm-envs: {visible_text(line)}", file=sys.stderr)
    if arguments.out is not None:
        name_next("report", arguments.out)
    return 1 if failed else 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse combinations of options that contradict each other."""
    check_tracking(arguments)
    others = in_place_of_env(arguments)
    if arguments.replay is not None:
        given = ["--model"] * (arguments.model is not None) + ["--policy"] * (arguments.policy is not None)
        given += ["--resume"] * arguments.resume + ["--trace"] * arguments.trace + arguments.envs[:1]
        settled = ["n", "group_size", "seed", "env_kwargs", "max_turns", "max_step_s", "workers", "env_servers"]
        settled += ["window", *arguments.room_options]
        settled += [] if arguments.suite else ["split", "difficulty", "exclude"]  # the suite sets these for its tasks
        given += [
            f"-{'-' * (len(name) > 1)}{name.replace('_', '-')}"
            for name in settled
            if getattr(arguments, name) is not None
        ]
        if given:
            raise InvalidConfigError(f"--replay plays nothing: leave out {given[0]}; the tasks are those of the run.")
    elif arguments.partial:
        raise InvalidConfigError("--partial needs --replay.")
    elif arguments.suite is None and not arguments.envs and not any(others.values()):
        known = ", ".join(["at least one environment", *others])
        raise InvalidConfigError(f"give {known}, --suite FILE, or --replay DIR.")
    if (arguments.suite == STANDARD) != (arguments.data is not None):
        raise InvalidConfigError("--suite standard and --data NAME=DATA go together: give both, or neither.")
    if arguments.suite == STANDARD:
        settled = ["replay", "compare", "shard", "split", "difficulty", "window", "max_turns"]
        if found := [name for name in settled if getattr(arguments, name) is not None]:
            raise InvalidConfigError(
                f"--suite standard plays as published: leave out --{found[0].replace('_', '-')}. Each benchmark has a "
                "folder in --out, which llm-envs eval --replay reads."
            )
    env_kwargs = None if arguments.suite == STANDARD else arguments.env_kwargs
    given_tasks = arguments.envs or any(others.values()) or env_kwargs or arguments.exclude
    if arguments.suite is not None and given_tasks:
        raise InvalidConfigError(
            f"--suite lists the tasks: leave out {', '.join(['ENV', *others])}, --env-kwargs and --exclude."
        )
    if arguments.resume and arguments.out is None:
        raise InvalidConfigError("--resume needs --out, the folder of the evaluation.")
    if arguments.shard is not None:
        whole = ["replay", "compare", *THRESHOLDS]
        if found := [name for name in whole if getattr(arguments, name) is not None]:
            raise InvalidConfigError(
                f"--shard plays a part of an evaluation: leave out --{found[0].replace('_', '-')}, and give it to "
                "llm-envs eval --replay with the merged run."
            )
        if arguments.out is None:
            raise InvalidConfigError("--shard needs --out, the folder of the evaluation.")
    if arguments.k and arguments.group_size and arguments.k > arguments.group_size:
        raise InvalidConfigError(
            f"-k {arguments.k} is above --group-size {arguments.group_size}: pass@k needs at least k episodes of each "
            "problem."
        )


def _suite(arguments: argparse.Namespace) -> Suite:
    from llm_envs.evaluation.suite import Suite, SuiteEntry, load_suite, unweighted
    from llm_envs.sources.mixture_text import parse_mixture

    if arguments.suite is not None:
        given: dict[str, Any] = {name: getattr(arguments, name) for name in ("n", "k", "group_size", "seed", "split")}
        given["difficulty"] = None if arguments.difficulty is None else arguments.difficulty.split(",")
        return load_suite(arguments.suite, **given, **{name: getattr(arguments, name) for name in THRESHOLDS})
    n, k, kwargs = arguments.n or 200, arguments.k or 1, dict(arguments.env_kwargs or {})
    split = arguments.split or kwargs.get("split", "test")
    if kwargs.get("split", split) != split:
        raise InvalidConfigError(f"--split is {split!r} but --env-kwargs has {kwargs['split']!r}: give only one.")
    kwargs |= {} if split == "none" else {"split": split}
    if arguments.difficulty is not None and "difficulty" in kwargs:
        raise InvalidConfigError("--difficulty and --env-kwargs both set a difficulty: give only one.")
    levels: list[str | None] = [None] if arguments.difficulty is None else arguments.difficulty.split(",")
    own_env = read_played(arguments)
    env_ids = [own_env.env_id] if own_env else unweighted(parse_mixture(arguments.envs, arguments.exclude or ()))
    entries = [
        SuiteEntry(
            env_id,
            kwargs if level is None else {**kwargs, "difficulty": level},
            n=n,
            k=k,
            thresholds=_asked(arguments),
            factory=own_env,
        )
        for env_id in env_ids
        for level in levels
    ]
    return Suite(tuple(entries), arguments.group_size or k, arguments.seed or 0)


def _run_standard(arguments: argparse.Namespace) -> int:
    """Play the named benchmarks one after the other, and return the exit code."""
    from llm_envs.evaluation.standard import (
        PROTOCOLS,
        changed_sampling,
        describe_protocol,
        parse_data,
        standard_suite,
    )
    from llm_envs.evaluation.suite import failed_thresholds
    from llm_envs.evaluation.table import show_results

    check_player(arguments)
    given = {
        "n": arguments.n,
        "samples": arguments.group_size,
        "k": arguments.k,
        "seed": arguments.seed or 0,
        "thresholds": _asked(arguments),
        "env_kwargs": arguments.env_kwargs,
    }
    suites = {name: (data, standard_suite(name, data, **given)) for name, data in parse_data(arguments.data).items()}
    played, failed = {}, 0
    try:
        with open_collector(arguments) as opened:
            for name, (data, suite) in suites.items():
                sampling = changed_sampling(name, arguments.temperature, arguments.max_turn_tokens)
                line = describe_protocol(name, data, suite, sampling)
                print(visible_text(line), file=sys.stderr if arguments.json else sys.stdout, flush=True)
                own = argparse.Namespace(**vars(arguments))
                own.out = None if arguments.out is None else str(Path(arguments.out) / name)
                results = _play(
                    own, suite, sampling, opened, {"protocol": PROTOCOLS[name].source, "shots": PROTOCOLS[name].shots}
                )
                played[name] = results.to_dict()
                if not arguments.json:
                    print(show_results(results) + "\n", flush=True)
                for problem in failed_thresholds(results, suite):
                    failed += 1
                    print(f"llm-envs: {visible_text(problem)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("llm-envs: interrupted; with --out, the same command with --resume continues.", file=sys.stderr)
        return 130
    if arguments.json:
        print(json.dumps(played, indent=1, allow_nan=False))
    if arguments.out is not None:
        name_next("report", *(Path(arguments.out) / name for name in suites))
    return 1 if failed else 0


def _asked(arguments: argparse.Namespace) -> Thresholds:
    from llm_envs.evaluation.suite import Thresholds

    return Thresholds(**{name: getattr(arguments, name) for name in THRESHOLDS})


def _thresholds(results: Results, arguments: argparse.Namespace) -> Suite:
    """Return the thresholds for each task of a stored run."""
    from llm_envs.evaluation.suite import Suite, SuiteEntry

    entries = (SuiteEntry(t.env_id, t.env_kwargs, t.name, k=t.k, thresholds=_asked(arguments)) for t in results)
    return Suite(tuple(entries), max(task.k for task in results))


def _replay(arguments: argparse.Namespace, suite: Suite | None) -> Results:
    from llm_envs.data.folder import MANIFEST_NAME
    from llm_envs.evaluation.replayed import replay
    from llm_envs.evaluation.suite import asked_thresholds

    out = None if arguments.out is None else Path(arguments.out)
    if out is not None and (out / MANIFEST_NAME).exists() and out.resolve() != Path(arguments.replay).resolve():
        raise InvalidConfigError(f"--out {out} holds another run: choose another folder.")
    results = replay(
        arguments.replay,
        suite=suite,
        k=arguments.k,
        confidence=arguments.confidence,
        allow_partial=arguments.partial,
    )
    if suite is None and (asked := asked_thresholds(_thresholds(results, arguments))):
        results = replace(results, thresholds=asked)
    if out is not None:
        results.save(out)
    with tracker_of(arguments, results.settings) as logger:
        if logger is not None:
            from llm_envs.evaluation.metrics import evaluation_metrics

            logger(sum(task.n_episodes for task in results), evaluation_metrics(results))
    return results


def _play(
    arguments: argparse.Namespace,
    suite: Suite,
    sampling: SamplingParams | None = None,
    opened: tuple[Any, dict[str, Any]] | None = None,
    more_settings: Mapping[str, Any] | None = None,
) -> Results:
    """Play a suite.

    Args:
        arguments: The options.
        suite: The tasks.
        sampling: Of a turn; by default that of the options.
        opened: The result of `open_collector`; by default it is opened here.
        more_settings: Stored with the settings of the run.
    """
    from llm_envs.data.folder import MANIFEST_NAME
    from llm_envs.data.writer import check_folder, finished
    from llm_envs.evaluation.run import evaluate_suite, resumable_settings, suite_settings
    from llm_envs.evaluation.suite import SuiteSource
    from llm_envs.rollout.collect_run import run_settings
    from llm_envs.tracking.progress import live_progress

    check_player(arguments)
    for entry in suite.entries:
        if entry.factory is not None:
            entry.factory(**entry.kwargs).close()  # reports wrong arguments
            continue
        require_text(entry.env_id, dict(entry.kwargs))
    collector = rules_of(arguments) | ({} if sampling is None else {"sampling": sampling})
    settings = player_settings(arguments) | ({} if arguments.window is None else {"window": arguments.window})
    settings |= played_settings(arguments, suite.entries[0].factory) | dict(more_settings or {})
    own = run_settings(SuiteSource(suite), group_size=suite.samples, seed=suite.seed, **collector)
    own |= suite_settings(suite, **settings)
    if arguments.shard is not None:
        own |= arguments.shard.settings(len(SuiteSource(suite)))
        arguments.out = str(arguments.shard.folder(arguments.out))
    if arguments.out is not None:  # a model may take minutes to load, so report these errors first
        kept = resumable_settings(arguments.out, suite) if arguments.resume else {}
        check_folder(arguments.out, own | kept, resume=arguments.resume)
        if (Path(arguments.out) / MANIFEST_NAME).exists():
            finished(arguments.out)
    with (
        tracker_of(arguments, own) as logger,
        open_collector(arguments) if opened is None else nullcontext(opened) as (policy, played),
    ):
        return evaluate_suite(
            suite,
            policy,
            out=arguments.out,
            resume=arguments.resume,
            shard=arguments.shard,
            confidence=arguments.confidence,
            settings=settings,
            show=live_progress,
            logger=logger,
            log_every_s=arguments.log_every_s,
            **arrangement_of(arguments),
            **played,
            **collector,
        )
