"""Why episodes have no score: the reasons with their counts, and both in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from llm_envs.types import Trajectory

__all__ = ["add_reason", "count_reasons", "describe_reasons", "describe_unscored"]

_LENGTH = 200
"""Characters of a reason."""


def add_reason(counts: Counter[str], reason: str) -> None:
    """Count a reason (`Trajectory.why_unscored`); one of the same kind counts as the first of the kind.

    The kind is what precedes the second colon, whatever its numbers: `env.step: KeyError` of an error.
    """
    text = " ".join(reason.split())[:_LENGTH].rstrip(".")
    kind = _kind(text)
    counts[next((known for known in counts if _kind(known) == kind), text)] += 1


def count_reasons(trajectories: Iterable[Trajectory]) -> Counter[str]:
    """Return the reasons of the episodes without a score -> their number."""
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        if (reason := trajectory.why_unscored) is not None:
            add_reason(counts, reason)
    return counts


def describe_reasons(counts: Mapping[str, int], most: int = 3) -> str:
    """Return the commonest reasons in words: `3 x env.step: KeyError: a; 1 x the agent never called the model`."""
    return "; ".join(f"{n} x {reason}" for reason, n in Counter(counts).most_common(most))


def describe_unscored(n_errored: int, n_unscored: int, counts: Mapping[str, int]) -> str:
    """Return how many episodes have no score, and the commonest reasons; "" if all have one."""
    numbers = [f"{n} {what}" for n, what in ((n_errored, "errored"), (n_unscored, "unscored")) if n]
    return ", ".join(numbers) + (f" ({describe_reasons(counts)})" if numbers and counts else "")


def _kind(reason: str) -> str:
    return re.sub(r"\d+", "0", ": ".join(reason.split(": ")[:2]))
