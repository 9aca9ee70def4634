"""The threshold of the garbage collector while episodes run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from llm_envs.processes.garbage import rare_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 11, 12)
    yield
    gc.set_threshold(*before)


def test_it_is_raised_until_the_last_block_ends() -> None:
    with rare_collections():
        with rare_collections():
            assert gc.get_threshold() == (50_000, 11, 12)
        assert gc.get_threshold() == (50_000, 11, 12)
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("given", [0, 200_000])
def test_a_disabled_or_higher_one_stays(given: int) -> None:
    gc.set_threshold(given, 11, 12)
    with rare_collections():
        assert gc.get_threshold() == (given, 11, 12)
    assert gc.get_threshold() == (given, 11, 12)


def test_one_that_is_set_inside_stays() -> None:
    with rare_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
