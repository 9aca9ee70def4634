"""One generation of a trainer: maps TRL's rows to episodes, plays them, and records their metrics.

Invariants:
1. Consecutive equal rows of TRL are the members of one group: one seed, on one process.
2. The episodes depend only on (run seed, split, index, step, number of earlier generations in that step, process) and
   on the curriculum's state, which is the same on all processes. So a resumed run plays what the full run would have.
3. Nothing is gathered while episodes run.
4. An error on one process is raised on all, and a rollout ends before the process group's timeout.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from llm_envs.chat.codec import ChatCodec
from llm_envs.data.datasets import to_groups
from llm_envs.data.log import AppendLog, read_log
from llm_envs.errors import InvalidConfigError, RolloutFailedError
from llm_envs.registration import load_entry_point
from llm_envs.rollout import Collector, EpisodeSpec, RolloutLimits, TrajectoryWriter
from llm_envs.rollout.episode import errored_trajectory
from llm_envs.rollout.filters import GroupFilter
from llm_envs.rollout.staleness import off_policy_statistics
from llm_envs.rollout.sync import BackgroundLoop, SyncRunner
from llm_envs.rollout.tree import add_branches, is_root, n_roots
from llm_envs.sources.source import group_specs
from llm_envs.tracking.metrics import add_totals, metric_totals, metrics_by
from llm_envs.tracking.reasons import count_reasons
from llm_envs.trainers.episodes.items import EpisodeDataset, refills
from llm_envs.trainers.episodes.nothing_learned import DROPPED, FailureCount, describe_failures, is_dropped
from llm_envs.trainers.functional.algorithm import GRPO, Algorithm
from llm_envs.trainers.run.ranks import episode_limit, raise_on_all_ranks
from llm_envs.trainers.run.time_shares import TimeShares
from llm_envs.types import SamplingParams, Trajectory, TrajectoryGroup, Turn

__all__ = [
    "COLLECTOR_GROUP",
    "STATE_FILE",
    "GenerationPlayer",
    "check_room",
    "close_policy",
    "make_collector",
    "sampling_of",
    "unused_folder",
]

logger = logging.getLogger(__name__)

COLLECTOR_GROUP = "llm_envs.collectors"
"""Entry-point group of functions that make the collector of a trainer: `ray` for the setting `ray`."""
STATE_FILE = "llm_envs_state.json"
"""File in a checkpoint with our state, such as the episode source's and its curriculum's."""


def make_collector(items: EpisodeDataset, policy: Any, codec: ChatCodec, args: Any, **others: Any) -> Collector:
    """Return the collector of a trainer.

    Args:
        items: The training episodes.
        policy: The sampling policy.
        codec: Codec of the trainer's tokenizer.
        args: The trainer's settings, with limits and sampling parameters.
        **others: Other arguments of `Collector`.

    Raises:
        InvalidConfigError: If a completion leaves no room for a prompt, or a rollout may outlast the process group.
    """
    max_completion = int(args.max_completion_length)
    check_room(max_completion, policy)
    keep_mask = getattr(args, "keep_sampling_mask", False)
    max_turn = args.max_turn_tokens or max_completion
    sampling = sampling_of(args, max_turn, thinking=args.thinking, keep_mask=keep_mask)
    limits = RolloutLimits(
        max_turns=args.max_turns,
        max_turn_tokens=args.max_turn_tokens,
        max_completion_tokens=max_completion,
        # The episodes that one process plays between two steps, refills and evaluation aside.
        max_episode_s=episode_limit(args, int(args.per_device_train_batch_size * (args.steps_per_generation or 1))),
        max_step_s=args.max_step_s,
    )
    others = {"sampling": sampling, "limits": limits, "seed": args.seed, "progress": False, **others}
    others |= {"workers": args.workers, "env_servers": args.env_servers or ()}
    if args.ray is not None:
        make: Callable[..., Collector] = load_entry_point(COLLECTOR_GROUP, "ray", f"ray={args.ray!r}")
        return make(items.source, policy, codec, args, others)
    return Collector(items.source, policy, codec=codec, max_concurrency=args.max_concurrency, **others)


def check_room(max_completion: int, policy: Any) -> None:
    """Reject a completion that leaves no room for a prompt in the policy's context."""
    if max_completion >= policy.max_model_len:
        raise InvalidConfigError(
            f"max_completion_length={max_completion} leaves no room for a prompt in the model's "
            f"context of {policy.max_model_len} tokens: lower it."
        )


def sampling_of(args: Any, max_new_tokens: int, **others: Any) -> SamplingParams:
    """Return how turns of at most `max_new_tokens` tokens are sampled, by TRL's settings and `others` of ours."""
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k or 0,
        min_p=args.min_p or 0.0,
        repetition_penalty=args.repetition_penalty,
        **others,
    )


@dataclass(eq=False)
class PlayedAhead:
    """A generation that has begun, in this thread's next call or in another thread."""

    specs: Sequence[Sequence[EpisodeSpec]]
    last: tuple[int, int]
    wait: Callable[[], Sequence[TrajectoryGroup]]
    """Returns the groups that passed the filter."""
    dropped: list[TrajectoryGroup] = field(default_factory=list)
    is_stored: bool = False


class GenerationPlayer:
    """Plays the episodes of TRL's rows.

    Args:
        collector: Plays the episodes; closed by `close`.
        items: The episodes of each split ("train", "test").
        process_index: Index of this process.
        folder: Folder for all episodes; None: do not write them. If it exists, a number is appended to its name.
        settings: Settings for the folder's manifest.
        group_filter: Keeps the groups to train on. Dropped groups are replaced by other items.
        max_refills: Maximum groups to play for each place. If none passes the filter, the place stays empty.
        seed: Run seed; it also decides the replacements of dropped groups.
        is_ahead: Whether generations may begin before the one that is asked for, in a second thread.
    """

    def __init__(
        self,
        collector: Collector,
        items: Mapping[str, EpisodeDataset],
        *,
        process_index: int,
        folder: Path | None,
        settings: Mapping[str, Any],
        group_filter: GroupFilter | None = None,
        max_refills: int = 10,
        seed: int = 0,
        is_ahead: bool = False,
    ) -> None:
        self.collector, self.items = collector, items
        self._filter, self._max_refills, self._seed = group_filter, max_refills, seed
        self.played: list[Trajectory] = []
        """All episodes of the latest generation, including dropped groups, in a fixed order."""
        self.was_ahead = False
        """Whether the latest generation had begun early, in this run or before a checkpoint."""
        self._process_index, self._folder, self._settings = process_index, folder, dict(settings)
        self.writer: TrajectoryWriter | None = None  # opened with the first episode
        self._last = {"train": (-1, -1), "eval": (-1, -1)}  # (step, how many generations before it in that step)
        self._taken = self._last["train"]
        self._loop = BackgroundLoop() if is_ahead else None
        self._begun: deque[PlayedAhead] = deque()
        """The training generations that have begun early, in order."""
        self._stored: deque[tuple[list[TrajectoryGroup], list[TrajectoryGroup]]] = deque()
        """Of a checkpoint: the groups of generations that had begun early, kept and dropped."""
        self._failed = FailureCount()
        self.time_shares = TimeShares(collector.stats)

    @raise_on_all_ranks()
    def play(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        mode: str,
        step: int,
        group_size: int,
        upcoming: Sequence[tuple[int, Sequence[Mapping[str, Any]]]] = (),
        algorithm: Algorithm = GRPO,
    ) -> list[Trajectory]:
        """Play one episode for each row, in the rows' order; `mode` is train or eval.

        With a filter, the groups that passed it come first. A place that stayed empty has episodes with the status
        `errored` and the reason. An error on one process is raised on all.

        Args:
            rows: TRL's rows.
            mode: train or eval.
            step: The step that trains on them.
            group_size: Rows of a group.
            upcoming: Steps and rows of the next generations: they begin now, and later calls return their episodes.
            algorithm: If its groups are trees, the filter sees their roots, and branches follow (`rollout.tree`).
        """
        is_begun = mode == "train" and bool(self._begun)
        n_first = group_size if mode == "eval" else n_roots(algorithm.branches, group_size)
        begun = self._begun.popleft() if is_begun else self._begin(rows, mode, step, group_size, n_first)
        for next_step, next_rows in upcoming[len(self._begun) :]:
            self._begun.append(self._begin(next_rows, "train", next_step, group_size, n_first))
        with self.time_shares.waiting():
            groups = begun.wait()
            if n_first < group_size:
                groups = add_branches(groups, group_size, self.collector.play, algorithm.branch_at)
        if free_memory := getattr(self.collector.policy, "free_memory", None):
            free_memory()  # the weights change next, and training needs the memory
        self.was_ahead = is_begun or begun.is_stored
        if mode == "train":
            self._taken = begun.last
            self.time_shares.end_generation()
        kept = [trajectory for group in groups for trajectory in group.trajectories]
        # The collector's result lacks the dropped groups. Their episodes count in the log, metrics and curriculum.
        dropped = [trajectory for group in begun.dropped for trajectory in group.trajectories]
        # Groups finish in any order, so sort them. By length first: group 10 comes after group 9.
        self.played = [*kept, *sorted(dropped, key=lambda t: (len(t.group_id), t.group_id, t.member))]
        self._store(self.played)
        # TRL needs an episode for every row. An errored one is masked and has no reward.
        nothing = RolloutFailedError(f"none of {self._max_refills} groups played for each place passed the filter")
        empty = [errored_trajectory(spec, nothing, DROPPED) for group in begun.specs[len(groups) :] for spec in group]
        return kept + empty

    def _begin(
        self, rows: Sequence[Mapping[str, Any]], mode: str, step: int, group_size: int, n_first: int
    ) -> PlayedAhead:
        """Begin the groups' first `n_first` members."""
        specs = self._specs(rows, mode, step, group_size)
        first = [members[:n_first] for members in specs]
        chosen = self._filter if mode == "train" else None
        if mode == "train" and self._stored:
            kept, dropped = self._stored.popleft()
            _check_stored(specs, [*kept, *dropped])
            return PlayedAhead(specs, self._last[mode], lambda: kept, dropped, is_stored=True)
        begun = PlayedAhead(specs, self._last[mode], lambda: ())
        passes = None if chosen is None else partial(_passes, chosen, begun.dropped)
        # Each place has one group in `specs` already, hence the - 1.
        key = (self._seed, "train", step, self._last["train"][1], self._process_index)
        others = (group_specs(spec, n_first) for spec in refills(self.items["train"], key))
        spare = islice(others, (self._max_refills - 1) * len(specs)) if chosen else ()
        if self._loop is None:
            begun.wait = partial(self.collector.play, first, group_filter=passes, refills=spare)
        else:
            play = partial(self.collector.aplay, first, group_filter=passes, refills=spare)
            begun.wait = self._loop.start(play).result
        return begun

    def evaluation_specs(
        self, batches: Sequence[Sequence[Mapping[str, Any]]], *, step: int, group_size: int
    ) -> list[list[tuple[EpisodeSpec, ...]]]:
        """Return the groups that `play` would play of an evaluation's batches of rows, one after the other."""
        return [self._specs(rows, "eval", step, group_size) for rows in batches]

    @raise_on_all_ranks()
    def take_evaluation(self, groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
        """Make groups of an evaluation, which another collector has played, the latest generation; return the episodes.

        An error on one process is raised on all.
        """
        self.played = [trajectory for group in groups for trajectory in group.trajectories]
        self._store(self.played)
        return self.played

    def stop(self) -> None:
        """Drop the generations that have begun early, and their episodes."""
        self._begun.clear()
        self._last["train"] = self._taken
        if self._loop is not None:
            self._loop.close()
            self._loop = BackgroundLoop()

    @raise_on_all_ranks()
    def save_ahead(self, folder: Path) -> None:
        """Wait for the generations that have begun early, and write their episodes for `load_begun`.

        An error on one process is raised on all.
        """
        for number, begun in enumerate(self._begun):
            for name, groups in (("kept", begun.wait()), ("dropped", begun.dropped)):
                path = folder / f"{number}-{name}-{self._process_index}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                log = AppendLog(path)
                for group in groups:
                    for trajectory in group.trajectories:
                        log.append(trajectory)
                log.close()

    def load_begun(self, folder: Path, n: int) -> None:
        """Take the episodes of the next `n` generations from a checkpoint.

        Raises:
            InvalidConfigError: If a file is missing.
        """
        self._stored.clear()
        for number in range(n):
            paths = [folder / f"{number}-{name}-{self._process_index}.jsonl" for name in ("kept", "dropped")]
            if missing := [path.name for path in paths if not path.is_file()]:
                raise InvalidConfigError(
                    f"{folder} lacks {' and '.join(missing)}, with episodes that were played early: copy the complete "
                    "checkpoint, or resume from an earlier one."
                )
            kept, dropped = (to_groups(read_log(path)) for path in paths)
            self._stored.append((kept, dropped))

    @raise_on_all_ranks()
    def newest(self) -> list[Trajectory]:
        """Wait for the generation that this run began last, and return its kept episodes; [] if none is under way.

        An error on one process is raised on all.
        """
        begun = [begun for begun in self._begun if not begun.is_stored]
        return [trajectory for group in (begun[-1].wait() if begun else ()) for trajectory in group.trajectories]

    @property
    def n_ahead(self) -> int:
        """Number of training generations that have begun early."""
        return len(self._begun)

    @property
    def _roots(self) -> list[Trajectory]:
        """The episodes that started fresh: branches begin at chosen turns, so they do not count in metrics."""
        return [trajectory for trajectory in self.played if is_root(trajectory)]

    def learn(self) -> None:
        """Update the curriculum from the training episodes of all processes, the same on each."""
        source = self.items["train"].source
        if not source.curricula:
            return
        # A curriculum reads only outcomes, so do not send messages and tokens between processes.
        outcomes = [_light(t, ()) for t in self._roots]
        source.update(gather_object(outcomes))

    def totals(self, mode: str) -> dict[str, tuple[float, float]]:
        """Return the metrics of the latest generation over all processes, with dropped groups, as sums and numbers.

        If there is more than one environment or difficulty, success and reward are also given for each.
        """
        # Collectives: every rank must call this method, even without episodes.
        totals = add_totals(gather_object([metric_totals(self._roots)]))
        parts = gather_object([metrics_by(self._roots, _labels, metric_totals)])
        labels = sorted({label for part in parts for label in part})
        for label in labels if len(labels) > 1 else ():
            merged = add_totals([part[label] for part in parts if label in part])
            totals |= {f"{label}/{name}": merged[name] for name in ("success", "reward") if name in merged}
        if mode == "train":
            for curriculum in self.items["train"].source.curricula.values():
                totals |= {name: (value, 1.0) for name, value in curriculum.metrics().items()}
        return totals

    def use_metrics(self, rows: Sequence[Trajectory], step: int) -> dict[str, float]:
        """Return how the time was used, and how old the weights of `rows` are at `step` if they were played early."""
        metrics = {f"time/{name}": share for name, share in self.time_shares.gather().items()}
        if self._loop is None and not self.was_ahead:  # the same on all processes
            return metrics
        # Of all processes together: their shares of the tokens differ. Only the versions are sent.
        versions = [tuple(Turn(0.0, {}, weight_versions=turn.weight_versions) for turn in t.turns) for t in rows]
        light = [_light(t, turns) for t, turns in zip(rows, versions, strict=True)]
        statistics = off_policy_statistics(gather_object(light), step)
        return metrics | {f"sampling/{name}": value for name, value in sorted(statistics.items())}

    def check_failures(self, rows: Sequence[Trajectory], mode: str) -> None:
        """Warn about failed episodes, dropped ones too; stop on all processes if training's fail again and again.

        Args:
            rows: The episodes of this process's rows.
            mode: train or eval.

        Raises:
            RolloutFailedError: If every episode failed in several training generations in a row (`FailureCount`).
        """
        kept = [trajectory for trajectory in rows if not is_dropped(trajectory)]
        failures, n_episodes = self.count_failures([*kept, *self.played[len(kept) :]])
        if failures:
            logger.warning(describe_failures(failures, n_episodes))
        if mode == "train":
            self._failed.add(failures, n_episodes)

    def count_failures(self, episodes: Sequence[Trajectory]) -> tuple[Counter[str], int]:
        """Return why episodes of all processes failed with their numbers, and how many episodes there are."""
        # All ranks count the same failures, so that all of them stop, or none.
        counts = gather_object([(count_reasons(episodes), len(episodes))])
        return sum((failures for failures, _ in counts), Counter[str]()), sum(n for _, n in counts)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, as JSON types."""
        return {"source": self.items["train"].source.state_dict(), "last": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; raise if the mixture, seed or curriculum differs."""
        self.items["train"].source.load_state_dict(state["source"])
        step, before = state["last"]
        self._last["train"] = self._taken = (step, before)

    def close(self) -> None:
        """End what is running, and close the episodes' log and the collector."""
        if self._loop is not None:
            self._loop.close()
        self.collector.close()
        if self.writer is not None:
            self.writer.close()

    def _specs(
        self, rows: Sequence[Mapping[str, Any]], mode: str, step: int, group_size: int
    ) -> list[tuple[EpisodeSpec, ...]]:
        last_step, before = self._last[mode]
        self._last[mode] = (step, before + 1 if step == last_step else 0)
        # Sampling seeds are derived from the group id, so it must be the same in a resumed run.
        prefix = f"{mode}-{step}-{self._last[mode][1]}-{self._process_index}"
        specs = []
        for start in range(0, len(rows), group_size):
            members = rows[start : start + group_size]
            index, split = members[0]["index"], members[0]["split"]
            is_part = len(members) < group_size
            if is_part or any((row["index"], row["split"]) != (index, split) for row in members):
                raise InvalidConfigError(
                    f"a process holds part of a group: rows {[row['index'] for row in members]}. Make the local batch "
                    f"a multiple of {group_size}."
                )
            specs.append(group_specs(self.items[split].spec(index, f"{prefix}-{start}"), len(members)))
        return specs

    def _store(self, played: Sequence[Trajectory]) -> None:
        if self._folder is None:
            return
        if self.writer is None:
            self.writer = TrajectoryWriter(unused_folder(self._folder), settings=self._settings)
        for trajectory in played:
            self.writer.write(trajectory)


def close_policy(policy: Any) -> None:
    """End the threads of a policy."""
    runner = SyncRunner()  # a notebook already runs an event loop
    runner.run(policy.aclose)
    runner.close()


def _passes(group_filter: GroupFilter, dropped: list[TrajectoryGroup], group: TrajectoryGroup) -> bool:
    """Return whether a group passes; note it otherwise."""
    if group_filter(group):
        return True
    dropped.append(group)
    return False


def _check_stored(specs: Sequence[Sequence[EpisodeSpec]], groups: Sequence[TrajectoryGroup]) -> None:
    """Raise unless the stored groups belong to the specs, and replacements of them."""
    wanted = {members[0].group_id: members[0].seed for members in specs}
    stored = {group.trajectories[0].group_id: group.trajectories[0].seed for group in groups}
    if wanted.items() <= stored.items():
        return
    raise InvalidConfigError(
        f"the checkpoint has episodes that were played early, of the groups {sorted(stored)[:3]}, but this run plays "
        f"{sorted(wanted)[:3]} next: resume with the settings of the run, or from a checkpoint without such episodes."
    )


def _light(trajectory: Trajectory, turns: tuple[Turn, ...]) -> Trajectory:
    """Return an episode with these turns and without messages and tokens, to send it to other processes."""
    return replace(trajectory, messages=(), tools=(), rows=(), turns=turns, metadata={})


def _labels(trajectory: Trajectory) -> list[str]:
    """Return the labels for an episode's extra metrics: its environment, and the requested difficulty."""
    difficulty = trajectory.env_kwargs.get("difficulty")
    env_id = trajectory.env_id
    return [env_id] if difficulty is None else [env_id, f"{env_id}/{difficulty}"]


def unused_folder(folder: Path) -> Path:
    """Return the folder; if an earlier run (or the part before a resume) wrote there, append a number."""
    candidates = chain([folder], (folder.with_name(f"{folder.name}.{number}") for number in count(2)))
    return next(candidate for candidate in candidates if not candidate.exists())
