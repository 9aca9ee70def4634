"""Training with every tracker at once: TRL's `report_to`, and a logger of ours beside it, read back.

In a process of its own: Trackio decides where its files lie when it is imported.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracker_files import tensorboard_events, wandb_records, watched_proxy

from llm_envs.report import plot_training_curves
from llm_envs.tracking import read_metrics

pytestmark = pytest.mark.examples

TRAINING = """
import sys
from llm_envs.tracking import csv_logger, jsonl_logger, multi_logger
from llm_envs.trainers.callbacks import LoggerCallback
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

config = EnvGRPOConfig(
    output_dir="out", max_steps=2, per_device_train_batch_size=4, num_generations=2, max_completion_length=48,
    max_turn_tokens=8, logging_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True,
    report_to=["tensorboard", "wandb", "trackio"], project="ours", run_name="first", log_completions=True,
)
files = multi_logger(jsonl_logger("out/metrics.jsonl"), csv_logger("out/metrics.csv"))
trainer = EnvGRPOTrainer(sys.argv[1], "llm/GuessNumber-v0", config, callbacks=[LoggerCallback(files)])
trainer.train()
trainer.save_state()
trainer.close()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[bytes]]]:
    """A training's folder, and what was said to a proxy that every library would go through."""
    for package in ("tensorboard", "wandb", "trackio"):
        pytest.importorskip(package)
    from tiny_folders import save_tiny

    folder = tmp_path_factory.mktemp("trained")
    save_tiny(folder / "model", n_layers=1, max_length=1024)

    with watched_proxy() as (proxy, heard):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "TRACKIO"))}
        environment = {name: value for name, value in environment.items() if "OFFLINE" not in name}
        environment.pop("DO_NOT_TRACK", None)
        environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        # What docs/guides/logging.md tells to set.
        environment |= {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_PROJECT": "ours"}
        environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "TRACKIO_DIR": str(folder / "trackio")}
        done = subprocess.run(
            [sys.executable, "-c", TRAINING, str(folder / "model")],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    yield folder, heard


@pytest.fixture(scope="module")
def ours(trained: tuple[Path, list[bytes]]) -> dict[int, dict[str, float]]:
    """Step -> what our own logger was given."""
    steps: dict[int, dict[str, float]] = {}
    for record in read_metrics(trained[0] / "out" / "metrics.jsonl"):
        steps.setdefault(int(record.pop("step")), {}).update(record)
    return steps


def test_ours_has_each_step(trained: tuple[Path, list[bytes]], ours: dict[int, dict[str, float]]) -> None:
    assert sorted(ours) == [1, 2] and {"loss", "reward", "env/success"} <= ours[1].keys()
    lines = (trained[0] / "out" / "metrics.csv").read_text().splitlines()
    assert "env/success" in lines[0].split(",") and lines[1].split(",")[0] == "1"


def test_the_state_of_the_trainer_is_read_and_drawn(
    trained: tuple[Path, list[bytes]], ours: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    state = trained[0] / "out" / "trainer_state.json"
    for record in read_metrics(state)[:2]:
        assert record["env/success"] == ours[record["step"]]["env/success"]
    assert plot_training_curves(state, tmp_path / "x.svg", keys=["loss", "reward"]).read_text().count('id="axes_') == 2


def test_nothing_goes_to_the_network(trained: tuple[Path, list[bytes]]) -> None:
    assert trained[1] == []


def test_tensorboard_has_the_same(trained: tuple[Path, list[bytes]], ours: dict[int, dict[str, float]]) -> None:
    (file,) = (trained[0] / "out").rglob("events.out.tfevents.*")
    events = tensorboard_events(file.parent)
    for name in ("loss", "reward", "env/success"):
        found = {event.step: event.value for event in events.Scalars(f"train/{name}")}
        assert found == pytest.approx({step: ours[step][name] for step in (1, 2)}, abs=1e-6)


def test_wandb_has_the_same_and_a_table(trained: tuple[Path, list[bytes]], ours: dict[int, dict[str, float]]) -> None:
    history = [
        {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
        for record in wandb_records(trained[0])
        if record.WhichOneof("record_type") == "history"
    ]
    for step in (1, 2):
        (found,) = [r for r in history if r.get("train/global_step") == step and "train/env/success" in r]
        assert {n: found[f"train/{n}"] for n in ("loss", "reward")} == pytest.approx(
            {n: ours[step][n] for n in ("loss", "reward")}, abs=1e-6
        )
    tables = [json.loads(table.read_text()) for table in trained[0].rglob("*.table.json")]
    assert tables and all("completion" in table["columns"] and len(table["data"]) == 4 for table in tables)


def test_trackio_has_the_same_and_a_table(trained: tuple[Path, list[bytes]], ours: dict[int, dict[str, float]]) -> None:
    found: dict[int, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    with sqlite3.connect(trained[0] / "trackio" / "ours.db") as tables:
        for name, metrics in tables.execute("SELECT run_name, metrics FROM metrics ORDER BY id"):
            values = json.loads(metrics)
            assert name == "first"
            rows += [row for value in values.values() if isinstance(value, dict) for row in value.get("_value", ())]
            if "train/global_step" in values or "train/reward" in values:
                found.setdefault(int(values["train/global_step"]), {}).update(values)
    for step in (1, 2):
        assert found[step]["train/env/success"] == pytest.approx(ours[step]["env/success"], abs=1e-6)
    assert {row["step"] for row in rows} == {1, 2} and all({"prompt", "completion"} <= row.keys() for row in rows)
