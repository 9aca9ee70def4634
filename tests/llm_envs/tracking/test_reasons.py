"""Why episodes have no score, counted and said."""

from __future__ import annotations

from collections import Counter

import pytest

from llm_envs.errors import RolloutFailedError
from llm_envs.rollout import EpisodeSpec
from llm_envs.rollout.episode import errored_trajectory
from llm_envs.tracking.reasons import add_reason, count_reasons, describe_reasons, describe_unscored


@pytest.mark.parametrize(
    ("reasons", "counts"),
    [
        (["a", "b", "a"], {"a": 2, "b": 1}),
        (["env.step: KeyError: 'x'", "env.step: KeyError: 'y'"], {"env.step: KeyError: 'x'": 2}),
        (["the prompt has 18 tokens.", "the prompt has 20 tokens."], {"the prompt has 18 tokens": 2}),
        (["judge: no", "judge: none"], {"judge: no": 1, "judge: none": 1}),
        (["two\nlines", "x" * 300], {"two lines": 1, "x" * 200: 1}),
    ],
)
def test_reasons_of_one_kind_count_as_the_first(reasons: list[str], counts: dict[str, int]) -> None:
    found: Counter[str] = Counter()
    for reason in reasons:
        add_reason(found, reason)
    assert found == counts


def test_episodes_are_counted_and_said_with_the_commonest_first() -> None:
    episodes = [
        errored_trajectory(EpisodeSpec("llm/Countdown-v0", member=member), error, "env.reset")
        for member, error in enumerate([KeyError("a"), RolloutFailedError("gone"), RolloutFailedError("away")])
    ]
    counts = count_reasons(episodes)
    assert counts == {"env.reset: RolloutFailedError: gone": 2, "env.reset: KeyError: 'a'": 1}
    assert describe_reasons(counts) == "2 x env.reset: RolloutFailedError: gone; 1 x env.reset: KeyError: 'a'"
    assert describe_reasons(counts, 1) == "2 x env.reset: RolloutFailedError: gone"
    assert describe_unscored(2, 1, {"a": 3}) == "2 errored, 1 unscored (3 x a)"
    assert describe_unscored(0, 1, {}) == "1 unscored" and describe_unscored(0, 0, {}) == ""
