"""The kit for a card: every stage at its smallest size on the CPU, its time limits, and what it reads from a trace."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded import folder_of_programs, variables

pytestmark = pytest.mark.pages

KIT = Path(__file__).parents[1] / "benchmarks" / "gpu"


@pytest.fixture
def load(monkeypatch):
    """Import a file of the kit, which finds its neighbours as it does when it is run."""
    for folder in (KIT.parent, KIT):
        monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and KIT.parent in Path(file).parents:
            del sys.modules[name]


def measured(stage, out):
    """Run a stage at its smallest size; return its rows by case, and its exit code."""
    done = subprocess.run(
        [folder_of_programs() / "python", KIT / "stages.py", stage, "--tiny", "--out", out],
        capture_output=True,
        text=True,
        env=variables() | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr
    data = json.loads(out.read_text())
    assert (data["format"], data["name"]) == (1, f"gpu_{stage}")
    return {row["case"]: row for row in data["rows"]}, done.returncode


def test_a_step_and_its_profile_are_measured_against_trls(tmp_path):
    """A tree forwards a shared prompt once, so it counts fewer operations; without a card the peak is unknown."""
    rows, code = measured("step", tmp_path / "step.json")
    assert code == 0 and len(rows) == 6, rows
    assert all(row["step_s"] > 0 and row["of_trl"] > 0 for row in rows.values())
    rows, code = measured("profile", tmp_path / "profile.json")
    tree, padded, trl = (rows[f"tiny, {side}"] for side in ("prefix_tree", "padded", "TRL"))
    assert tree["tera_operations"] < padded["tera_operations"] <= trl["tera_operations"]
    assert {row["of_peak"] for row in rows.values()} == {"unknown"} and "kernels" not in tree


def test_a_learning_run_keeps_its_curve(tmp_path):
    rows, code = measured("learning", tmp_path / "learning.json")
    assert code == 0 and list(rows) == ["warm-up", "GRPO"]
    assert [point["step"] for point in rows["GRPO"]["curve"]] == [1, 2]
    assert rows["GRPO"]["low"] <= rows["GRPO"]["success"] <= rows["GRPO"]["high"]


def test_cases_that_need_an_engine_are_skipped_without_one(tmp_path):
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    rows, code = measured("adapters", tmp_path / "adapters.json")
    own, *others = rows.values()
    assert code == 3 and own["step_s"] >= own["sampling_s"] > 0 and len(own["rewards"]) == 3
    assert {row["note"] for row in others} == {"skipped: vLLM is not installed"}
    rows, _ = measured("engine", tmp_path / "engine.json")
    assert rows["qwen-0.5b"]["note"] == "skipped: vLLM is not installed"


@pytest.mark.smoke
def test_weights_are_broadcast_and_a_second_run_measures_only_what_is_missing(tmp_path):
    out = tmp_path / "transfer.json"
    rows, code = measured("transfer", out)
    assert code == 0 and [row["backend"] for row in rows.values()] == ["gloo", "gloo"]
    data = json.loads(out.read_text())
    data["rows"] = [data["rows"][0], {"case": data["rows"][1]["case"], "note": "failed: by hand"}]
    out.write_text(json.dumps(data))
    again, code = measured("transfer", out)
    first, second = rows
    assert code == 0 and again[first] == rows[first] and again[second]["seconds"] > 0
    out.write_text(json.dumps(data | {"settings": data["settings"] | {"tiny": False}}))
    with pytest.raises(AssertionError, match="tiny False"):
        measured("transfer", out)


@pytest.mark.smoke
def test_a_stage_is_cut_at_its_limit_and_a_done_one_is_left_out(load, tmp_path):
    """The children of a cut process end too."""
    kit = load("run")
    child = f"import time, pathlib; time.sleep(8); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert kit.run_stage([sys.executable, "-c", parent], 1.0) == "cut after 1 s"
    codes = {0: "done", 3: "open", 4: "failed with 4"}
    assert {code: kit.run_stage([sys.executable, "-c", f"exit({code})"], 60) for code in codes} == codes
    result = {"format": 1, "rows": [{"case": "a"}], "settings": {"cases": ["a"]}}
    (tmp_path / "transfer.json").write_text(json.dumps(result))
    command = [sys.executable, KIT / "run.py", "--out", tmp_path, "--minutes", "0", "--stages", "transfer", "engine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-2:] == ["transfer: done", "engine: not started: no time left"]
    assert not (tmp_path / "late").exists()


@pytest.mark.smoke
def test_a_trace_gives_shares_of_kernels_and_waits(load):
    """Kernels from 0 to 10, 5 to 20 and 30 to 40: busy 30 of 40. The first takes 10 of 35, on tensor cores."""
    observing = load("observing")
    kernels = [("sm90_xmma_gemm_bf16", 0, 10), ("elementwise", 5, 15), ("reduce", 30, 10)]
    events = [{"cat": "kernel", "name": name, "ts": ts, "dur": dur} for name, ts, dur in kernels]
    events += [{"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 3, "dur": 1}, {"name": "process_name"}]
    found = observing.summarise(events)
    assert found == {
        "kernels": 3,
        "tensor_core_share": pytest.approx(10 / 35),
        "idle_share": pytest.approx(0.25),
        "waits": 1,
    }
    assert observing.summarise(events[3:]) == {}
    assert observing.peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert observing.peak_flops("NVIDIA H100 PCIe", "float32") == 51e12
    assert observing.peak_flops("a card of tomorrow", "bfloat16") is None


@pytest.mark.smoke
def test_reads_of_values_are_counted(load):
    """One `item`, one `tolist`, one test, and one mask; indices of another kind need no values."""
    import torch

    values = torch.arange(4.0)
    with load("observing").HostReads() as reads:
        values.sum().item(), values.tolist(), bool(values[0] > 1)
        values[values > 1], values[1:], values[torch.tensor([0])]
    assert reads.counts == {"item": 1, "tolist": 1, "__bool__": 1, "mask": 1}


@pytest.mark.smoke
@pytest.mark.parametrize("forward", ["padded", "prefix_tree"])
def test_a_step_reads_as_many_values_for_32_rows_as_for_8(load, tmp_path, forward):
    """In two micro-batches each: every read makes the host wait for a card, so none may belong to a row or a group."""
    import numpy as np

    grpo_step, observing, steps = load("grpo_step"), load("observing"), load("steps")
    found = []
    for n_rows in (8, 32):
        tokenizer, random, reads = steps.tiny_tokenizer(), np.random.default_rng(0), observing.HostReads()
        played = [grpo_step.make_generation(random, len(tokenizer), step, n_rows) for step in range(2)]
        changes = {"per_device_train_batch_size": n_rows // 2, "gradient_accumulation_steps": 2, "forward": forward}
        model = steps.make_model("tiny", "float32")
        trainer = grpo_step.our_trainer(model, tokenizer, str(tmp_path / str(n_rows)), played, **changes)
        trainer.add_callback(steps.Observed({1: reads}))
        trainer.train()
        trainer.close()
        found.append(reads.counts)
    assert found[0] == found[1] and found[0].total() > 0
