"""The record of what was learned: algorithms as JSON and back, digests of rows, numbers that are not finite."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import TrajectoryWriter
from llm_envs.trainers.episodes.training_record import TrainingRecord, describe, restore, row_digest
from llm_envs.trainers.functional.algorithm import ALGORITHMS, GRPO, Algorithm
from llm_envs.trainers.functional.kl import k2


def as_seen(value: object) -> object:
    """Return a field as two equal algorithms have it: functions with their bound arguments."""
    return (value.func, dict(value.keywords)) if isinstance(value, partial) else value


@pytest.mark.parametrize(
    "algorithm", [*ALGORITHMS.values(), replace(GRPO, kl_fn=k2, kl_coef=0.1)], ids=lambda a: a.name
)
def test_an_algorithm_goes_through_json(algorithm: Algorithm) -> None:
    again = restore(json.loads(json.dumps(describe(algorithm))))
    for field in fields(algorithm):
        assert as_seen(getattr(again, field.name)) == as_seen(getattr(algorithm, field.name)), field.name


def test_functions_of_others_are_not_called_by_a_name_from_a_file() -> None:
    mine = replace(GRPO, advantage_fn=lambda rewards_B, group_ids_B, turn_rewards_BK: rewards_B)
    with pytest.raises(InvalidConfigError, match="advantage_fn"):
        restore(describe(mine))
    for name in ("os:system", "llm_envs.trainers.functional.groups:torch.__loader__"):
        with pytest.raises(InvalidConfigError, match="loss_fn"):
            restore({**describe(GRPO), "loss_fn": {"function": name}})


def test_a_digest_tells_ids_and_masks_apart() -> None:
    ids, mask = np.array([5, 6, 7], np.int32), np.array([0, 1, 1])
    assert row_digest(ids, mask)[:2] == [3, 2]
    assert row_digest(ids, mask) == row_digest(torch.tensor([5, 6, 7]), mask.astype(bool))
    assert len({row_digest(i, m)[2] for i in (ids, ids[::-1]) for m in (mask, mask[::-1])}) == 4


def test_lines_are_strict_json_beside_the_episodes(tmp_path) -> None:
    with TrajectoryWriter(tmp_path / "trajectories" / "process-0.2") as writer:
        log = TrainingRecord(writer, {"kind": "run", "trainer": "grpo"})
        log.write({"kind": "generation", "columns": {"reward": [0.5, float("nan")]}, "kl_coef": k2})
        log.write({"kind": "step", "step": 3, "loss": 0.25})
    assert log.path == tmp_path / "record" / "process-0.2.jsonl"
    run, generation, step = map(json.loads, log.path.read_text().splitlines())
    assert run == {"kind": "run", "trainer": "grpo"} and step == {"kind": "step", "step": 3, "loss": 0.25}
    assert generation["columns"] == {"reward": [0.5, None]} and "k2" in generation["kl_coef"]
