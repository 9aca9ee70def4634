"""How stale a group's weights may be: pure functions of weight versions and counts.

All members of a group are dispatched under one version of the weights. If the weights change while an episode runs, its
turns have several versions, each recorded in `Turn.weight_versions`. A group's age counts from its dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_envs.errors import InvalidConfigError
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = [
    "DISPATCH_VERSION",
    "admission_capacity",
    "dispatch_version",
    "off_policy_statistics",
    "sweep",
    "weight_version_of",
]

DISPATCH_VERSION = "dispatch_version"
"""Key of `Trajectory.metadata`: the version of the weights when the trajectory's group was dispatched."""


def admission_capacity(
    *, version: int, max_staleness: int, batch_size: int, n_trained: int, n_accepted: int, n_running: int
) -> int:
    """Return how many groups may be dispatched now so that none is too stale when it is trained on.

    With batches of `batch_size` groups, group number k is trained on at version ⌊k / batch_size⌋. A group that is
    dispatched now, under `version`, must be trained on at most `max_staleness` versions later, so at most
    (version + max_staleness + 1) · batch_size groups may exist in total (AReaL, Fu et al. 2025, arXiv 2505.24298).

    Args:
        version: Current version of the weights, from 0.
        max_staleness: Versions that a group may be behind when it is trained on; 0 is on-policy.
        batch_size: Groups per batch.
        n_trained: Groups trained on so far.
        n_accepted: Groups finished and waiting.
        n_running: Groups that are dispatched but not finished; an errored one counts until it is replaced.

    Returns:
        At least 0.
    """
    for name, value, least in (("max_staleness", max_staleness, 0), ("batch_size", batch_size, 1)):
        if value < least:
            raise InvalidConfigError(f"{name} is {value!r}; it must be at least {least}.")
    return max(0, (version + max_staleness + 1) * batch_size - (n_trained + n_accepted + n_running))


def weight_version_of(policy: object) -> int | None:
    """Return the current version of a policy's weights, or None if it has no versions."""
    version = getattr(policy, "weight_version", None)
    return version if isinstance(version, int) else None


def dispatch_version(trajectory: Trajectory) -> int | None:
    """Return the version under which a trajectory was dispatched: the recorded one, its first turn's, or None."""
    recorded = trajectory.metadata.get(DISPATCH_VERSION)
    if recorded is not None:
        return int(recorded)
    # Without a collector (`play_episode`) nothing is recorded.
    return next((span.version for turn in trajectory.turns for span in turn.weight_versions), None)


def sweep(
    groups: Sequence[TrajectoryGroup], version: int, max_staleness: int
) -> tuple[list[TrajectoryGroup], list[TrajectoryGroup]]:
    """Split groups into those fresh enough to train on at `version` and those that are too stale.

    Returns:
        Fresh groups and stale groups, each in the given order. A group is as old as its oldest member. A group without
        any version (text-only policies) is fresh.
    """
    fresh: list[TrajectoryGroup] = []
    stale: list[TrajectoryGroup] = []
    for group in groups:
        versions = [v for t in group.trajectories if (v := dispatch_version(t)) is not None]
        is_stale = bool(versions) and version - min(versions) > max_staleness
        (stale if is_stale else fresh).append(group)
    return fresh, stale


def off_policy_statistics(trajectories: Sequence[Trajectory], version: int) -> Mapping[str, float]:
    """Return how many versions the sampled tokens lag behind `version`.

    Returns:
        `staleness_mean` and `staleness_max`: over sampled tokens, in versions; `off_policy_share`: share of tokens from
        an older version; `mixed_share`: share of trajectories with several versions. Empty without sampled tokens.
    """
    ages: dict[int, int] = {}
    n_mixed = n_sampled = 0
    for trajectory in trajectories:
        spans = [span for turn in trajectory.turns for span in turn.weight_versions]
        n_sampled += bool(spans)
        n_mixed += len({span.version for span in spans}) > 1
        for span in spans:
            age = version - span.version
            ages[age] = ages.get(age, 0) + span.stop - span.start
    total = sum(ages.values())
    if not total:
        return {}
    return {
        "staleness_mean": sum(age * count for age, count in ages.items()) / total,
        # A turn without tokens has a version too, in an empty span; it must not set the maximum.
        "staleness_max": float(max(age for age, count in ages.items() if count)),
        "off_policy_share": sum(count for age, count in ages.items() if age > 0) / total,
        "mixed_share": n_mixed / n_sampled,
    }
