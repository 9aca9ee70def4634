"""Progress of a training: a bar on a terminal, lines elsewhere, and never a carriage return outside a terminal."""

import io
import sys

import pytest
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from llm_envs.tracking import read_metrics
from llm_envs.trainers import EnvGRPOConfig
from llm_envs.trainers.callbacks import MetricsFileCallback, ProgressLineCallback, guard_trackers


class Terminal(io.StringIO):
    def isatty(self):
        return True


def play(callback, tmp_path):
    """Run three steps, each logged, and the end, which logs other numbers."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=False)
    state, control = TrainerState(max_steps=3, is_world_process_zero=True), TrainerControl(should_log=True)
    callback.on_train_begin(args, state, control)
    for step, reward in enumerate([0.25, 0.5, 1.0], 1):
        state.global_step = step
        callback.on_step_begin(args, state, control)
        callback.on_step_end(args, state, control)
        callback._shown.pop("s", None)  # its time
        callback.on_log(args, state, control, logs={"env/reward": reward, "loss": 3.0})
    callback.on_log(args, state, control, logs={"train_runtime": 1.5})
    callback.on_train_end(args, state, control)


def test_a_line_at_most_every_few_seconds_and_one_at_the_end(tmp_path, capsys):
    play(ProgressLineCallback("GRPO", ["env/reward"], every_s=3600), tmp_path)
    assert (
        capsys.readouterr().err == "3 optimizer steps, 24 rows\nGRPO: step 1/3  reward 0.25\nGRPO: step 3/3  reward 1\n"
    )
    play(ProgressLineCallback("GRPO", ["env/reward"], every_s=0), tmp_path)
    assert capsys.readouterr().err.splitlines()[1:4] == [
        "GRPO: step 1/3  reward 0.25",
        "GRPO: step 2/3  reward 0.5",
        "GRPO: step 3/3  reward 1",
    ]


def test_the_metrics_of_a_line_have_short_names_and_formats(tmp_path, capsys):
    logs = {"reward": 1.834, "env/success": 0.891, "env/turns": 2.0, "kl": 1.3e-7, "loss": 0.1, "env/errored": 0.0}
    callback, state = ProgressLineCallback(every_s=0), TrainerState(global_step=12, max_steps=20)
    callback.on_log(None, state, TrainerControl(), logs=logs)
    callback.on_log(None, state, TrainerControl(), logs={"eval_reward": 0.5, "eval_env/success": 0.25})
    callback.on_log(None, state, TrainerControl(), logs={"train_runtime": 3.0, "train_loss": 0.0})
    assert capsys.readouterr().err.splitlines() == [
        "step 12/20  reward 1.83  success 89%  turns 2.0  kl 1e-07",
        "step 12/20  evaluation  reward 0.5  success 25%",
    ]


def test_a_new_run_replaces_the_metrics_file_and_a_resumed_run_appends(tmp_path):
    for step, expected in ((0, [1]), (1, [1, 2]), (0, [1])):
        callback, state = MetricsFileCallback(tmp_path), TrainerState(global_step=step)
        callback.on_train_begin(None, state, TrainerControl())
        state.global_step += 1
        callback.on_log(None, state, TrainerControl(), logs={"loss": 0.5, "env/turns": 2, "note": "text"})
        records = read_metrics(tmp_path / "metrics.jsonl")
        assert [record["step"] for record in records] == expected
    assert records == [{"step": 1, "loss": 0.5, "env/turns": 2.0}]


def test_a_bar_on_a_terminal(tmp_path, monkeypatch):
    out = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", out)
    play(ProgressLineCallback("GRPO", ["env/reward"]), tmp_path)
    assert "\r" in out.getvalue() and "3/3" in out.getvalue() and "step 1" not in out.getvalue()


@pytest.mark.parametrize("stream, is_quiet", [(Terminal(), False), (io.StringIO(), True)])
def test_a_training_draws_a_bar_only_on_a_terminal(stream, is_quiet, tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    assert EnvGRPOConfig(str(tmp_path)).disable_tqdm is is_quiet
    assert EnvGRPOConfig(str(tmp_path), disable_tqdm=False).disable_tqdm is False


def test_a_metric_that_nothing_was_measured_for_is_left_out_of_the_line(tmp_path, capsys):
    callback = ProgressLineCallback("GRPO", ["reward", "loss"], every_s=0)
    callback.on_log(None, TrainerState(max_steps=3), TrainerControl(), logs={"reward": None, "loss": 3.0})
    assert capsys.readouterr().err == "GRPO: step 0/3  loss 3\n"


def test_a_tracker_that_fails_in_a_training_is_disabled_and_other_callbacks_are_not(caplog):
    asked = []

    class Tracker(PrinterCallback):
        def on_train_begin(self, *args, **kwargs):
            raise PermissionError("no login")

        def on_log(self, *args, **kwargs):
            asked.append("log")
            raise ConnectionError("down")

        def on_train_end(self, *args, **kwargs):
            asked.append("end")

    class Own(TrainerCallback):
        def on_log(self, *args, **kwargs):
            raise KeyError("mine")

    tracker, own = Tracker(), Own()
    for _ in range(2):  # a second training
        guard_trackers([tracker, own])
    with pytest.raises(PermissionError):  # nothing is lost yet
        tracker.on_train_begin(None, None, None)
    for _ in range(3):
        tracker.on_log(None, None, None)
    tracker.on_train_end(None, None, None)
    assert asked == ["log"] and caplog.text.count("the tracker Tracker failed") == 1 and "down" in caplog.text
    with pytest.raises(KeyError):
        own.on_log(None, None, None)
