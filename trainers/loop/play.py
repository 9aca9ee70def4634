"""Plays the episodes of the functional loop, and saves and restores the position in their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout import Collector, EpisodeSpec, PromptBuffer, derive_seed, group_specs
from llm_envs.rollout.tree import add_branches, is_root, n_roots
from llm_envs.tracking.metrics import trajectory_metrics
from llm_envs.trainers.functional.algorithm import GRPO, Algorithm
from llm_envs.trainers.functional.references import ReferenceUpdateFn
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["PromptLoader", "play_generation", "restore", "source_state"]

PromptLoader = PromptBuffer | Callable[[int], Sequence[Mapping[str, Any]]]
"""`(n) -> n problems`, or a buffer of prompts. Each is played as `env.reset(options={"problem": ...})`."""


def play_generation(
    collector: Collector,
    n_groups: int,
    group_size: int,
    iteration: int,
    prompt_loader: PromptLoader | None = None,
    *,
    algorithm: Algorithm = GRPO,
    max_function_s: float | None = None,
) -> tuple[list[TrajectoryGroup], dict[str, float]]:
    """Play the groups of one iteration.

    Args:
        collector: Plays the next items of its source, or the loader's problems.
        n_groups: Number of groups.
        group_size: Episodes per group.
        iteration: Number of the iteration; with a loader, the seeds depend on it.
        prompt_loader: Problems for the collector's one environment.
        algorithm: If it has branches, they are played after the group's roots have passed the filter (`rollout.tree`).
        max_function_s: Seconds that one call of `branch_at` or the collector's filter, selection or context function
            may take; None: any time.

    Returns:
        The groups that passed the collector's filter; and `env/...`, metrics of all episodes, filtered ones too, but
        not of branches.

    Raises:
        InvalidConfigError: If a number is below 1, or there is a loader and the collector has several environments.
        RolloutFailedError: If too few groups pass the filter.
    """
    if n_groups < 1 or group_size < 1:
        raise InvalidConfigError(f"{n_groups=} and {group_size=} must be at least 1.")
    finished: list[Trajectory] = []
    own = {name: getattr(collector, name) for name in ("group_filter", "select_fn", "context_fn")}
    outer = collector.on_trajectory

    def keep(trajectory: Trajectory) -> None:
        # Metrics need only the outcomes, so drop the messages, which take memory.
        if is_root(trajectory):
            finished.append(replace(trajectory, messages=(), tools=(), metadata={}))
        if outer is not None:
            outer(trajectory)

    n_first = n_roots(algorithm.branches, group_size)
    try:
        for name, function in own.items():
            setattr(collector, name, limited(function, max_function_s, f"the {name}"))
        collector.on_trajectory = keep
        if prompt_loader is None:
            groups = collector.collect(n_groups, n_first)
        else:
            groups = _play_prompts(collector, n_groups, n_first, iteration, prompt_loader)
        if n_first < group_size:
            choose = limited(algorithm.branch_at, max_function_s, "branch_at")
            groups = add_branches(groups, group_size, collector.play, choose)
    finally:
        collector.on_trajectory = outer
        for name, function in own.items():
            setattr(collector, name, function)
    ordered = sorted(finished, key=lambda t: (t.group_id, t.member))  # finishing order must not change float sums
    return groups, {f"env/{name}": value for name, value in trajectory_metrics(ordered).items()}


def source_state(
    collector: Collector, prompt_loader: PromptLoader | None, reference_update_fn: ReferenceUpdateFn
) -> dict[str, Any]:
    """Return the state of source, prompts and reference update, as JSON types."""
    parts = _stateful(collector, prompt_loader, reference_update_fn)
    return {name: part.state_dict() for name, part in parts.items()}


def restore(
    state: Mapping[str, Any],
    collector: Collector,
    prompt_loader: PromptLoader | None,
    reference_update_fn: ReferenceUpdateFn,
) -> None:
    """Restore source, prompts and reference update from a saved state; an empty state changes nothing.

    Raises:
        InvalidConfigError: If the state belongs to other parts.
    """
    parts = _stateful(collector, prompt_loader, reference_update_fn)
    if state and parts.keys() != state.keys():
        raise InvalidConfigError(
            f"the state was saved with {', '.join(sorted(state))}; given are {', '.join(sorted(parts))}: a resumed run "
            "needs the same parts."
        )
    for name, value in state.items():
        parts[name].load_state_dict(value)


def _stateful(
    collector: Collector, prompt_loader: PromptLoader | None, reference_update_fn: ReferenceUpdateFn
) -> dict[str, Any]:
    """Return the parts that have a state to save, by name."""
    parts = {"source": collector.source, "prompts": prompt_loader, "reference_update": reference_update_fn}
    return {name: part for name, part in parts.items() if hasattr(part, "state_dict")}


def _play_prompts(
    collector: Collector, n_groups: int, group_size: int, iteration: int, prompt_loader: PromptLoader
) -> list[TrajectoryGroup]:
    choices = collector.source.choices
    if len(choices) != 1 or collector.source.curricula:
        raise InvalidConfigError("a prompt_loader asks one environment: give a collector of one, without a curriculum.")
    load = prompt_loader.get_prompts if isinstance(prompt_loader, PromptBuffer) else prompt_loader

    def specs(n: int, first: int) -> Iterator[tuple[EpisodeSpec, ...]]:
        rows = load(n)
        if len(rows) != n:
            raise InvalidConfigError(f"the prompt_loader gave {len(rows)} problems and was asked for {n}.")
        for number, row in enumerate(rows, start=first):
            seed = derive_seed(collector.seed, "prompts", iteration, number)
            group_id = f"{collector.seed}-{iteration:06d}-{number:04d}"
            spec = EpisodeSpec(choices[0].env_id, choices[0].kwargs, seed, group_id, options={"problem": dict(row)})
            yield group_specs(spec, group_size)

    def refills() -> Iterator[tuple[EpisodeSpec, ...]]:
        # The first n_groups numbers belong to the wanted groups. Each number gives another seed and group id.
        for number in range(n_groups, collector.max_refills * n_groups):
            yield from specs(1, number)

    wanted = list(specs(n_groups, 0))
    groups = collector.play(wanted, group_filter=collector.group_filter, refills=refills())
    if not groups:
        raise InvalidConfigError(
            f"none of {collector.max_refills * n_groups} groups passed the filter: check the difficulty of the prompts."
        )
    return groups
