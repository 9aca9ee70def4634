"""Two launches that join one training, as on two machines: examples/accelerate/two_nodes.yaml, over 127.0.0.1.

Each launch stands for a machine, with one process on its CPU. They share the disk where a test does not say otherwise.
"""

from __future__ import annotations

import random
import shutil
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from launched import CONFIGS, ROOT, SUPPORT, Launched, launch

from llm_envs.policies.inference import load_model
from llm_envs.rollout import read_trajectories

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = ROOT / "examples" / "train_grpo.py"
SMALL = [
    *("--env", "llm/Arithmetic-v0", "--per_device_train_batch_size", "4", "--num_generations", "4"),
    *("--max_completion_length", "48", "--max_turn_tokens", "8", "--gradient_checkpointing", "false"),
    *("--save_steps", "1", "--report_to", "none", "--disable_tqdm", "true"),
]


def free_port() -> int:
    """Return a port that is free and stays so: not one of those that the system gives to whoever asks for any."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError("of 100 ports none is free")


def on_two_nodes(program: Path, *arguments: Sequence[str], limit_s: float = 900.0) -> list[Launched]:
    """Start a program on both machines at once; `arguments` are those of each, or the same for both."""
    port = free_port()

    def start(rank: int) -> Launched:
        where = ["--machine_rank", str(rank), "--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
        here = ["--mixed_precision", "no"]  # with --cpu each launch would be a run of its own
        mine = arguments[rank] if len(arguments) > 1 else arguments[0]
        config = CONFIGS / "two_nodes.yaml"
        return launch(program, *mine, config=config, n_processes=2, limit_s=limit_s, options=[*where, *here])

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(start, (0, 1)))


def test_weights_are_equal_and_episodes_divided(tmp_path: Path, model_folder: str, episodes: str) -> None:
    for done in on_two_nodes(SUPPORT / "ranks.py", [model_folder, str(tmp_path), episodes, "grpo"]):
        done.check()
    one, other = (torch.load(tmp_path / f"grpo-{rank}.pt", weights_only=False) for rank in (0, 1))
    assert one["step"] == other["step"] == 2
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
    start = load_model(model_folder, dtype=torch.float32).state_dict()
    assert max((value - one["weights"][name]).abs().max().item() for name, value in start.items()) > 1e-4
    for mine, theirs in zip(one["batches"], other["batches"], strict=True):
        assert mine["items"] == theirs["items"] == mine["n_tokens"] + theirs["n_tokens"]
        assert not set(mine["groups"]) & set(theirs["groups"])


def trained_to_its_end(both: list[Launched], out: Path) -> None:
    """Fail if the training did not save its model; it ends with 1 if it learned nothing, as with equal rewards."""
    for done in both:
        if done.code != 1:
            done.check()
    assert (out / "model.safetensors").exists(), both[0].output[-3000:]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, model_folder: str) -> Path:
    """The output folder of a run of one step, on a disk that both machines have."""
    out = tmp_path_factory.mktemp("shared") / "out"
    given = ["--model_name_or_path", model_folder, "--output_dir", str(out), *SMALL, "--max_steps", "1"]
    trained_to_its_end(on_two_nodes(SCRIPT, given), out)
    return out


def test_on_a_shared_disk_one_folder_has_all_and_a_run_goes_on(shared: Path, model_folder: str) -> None:
    played = [{t.seed for t in read_trajectories(shared / "trajectories" / f"process-{rank}")} for rank in (0, 1)]
    assert [len(seeds) for seeds in played] == [1, 1] and not played[0] & played[1]
    checkpoint = shared / "checkpoint-1"
    assert (checkpoint / "model.safetensors").exists() and (checkpoint / "trainer_state.json").exists()
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    given = ["--model_name_or_path", model_folder, "--output_dir", str(shared), *SMALL, "--max_steps", "2"]
    (shared / "model.safetensors").unlink()
    trained_to_its_end(on_two_nodes(SCRIPT, [*given, "--resume_from_checkpoint", "true"]), shared)
    assert (shared / "checkpoint-2" / "model.safetensors").exists()


def test_without_the_checkpoint_on_both_nothing_goes_on(shared: Path, tmp_path: Path, model_folder: str) -> None:
    """The second machine has what it wrote itself: its episodes, and its random numbers in a folder of their own."""
    alone = tmp_path / "out"
    (alone / "checkpoint-1").mkdir(parents=True)
    shutil.copy(shared / "checkpoint-1" / "rng_state_1.pth", alone / "checkpoint-1")
    shutil.copytree(shared / "trajectories" / "process-1", alone / "trajectories" / "process-1")
    common = ["--model_name_or_path", model_folder, *SMALL, "--max_steps", "3", "--resume_from_checkpoint", "true"]
    first, second = on_two_nodes(SCRIPT, *([*common, "--output_dir", str(out)] for out in (shared, alone)))
    assert first.code not in (0, None) and second.code not in (0, None)
    assert "has no checkpoint that was written to its end" in second.output, second.output[-3000:]


def test_when_one_machine_is_gone_the_other_ends(tmp_path: Path, model_folder: str) -> None:
    given = ["--model_name_or_path", model_folder, "--output_dir", str(tmp_path), *SMALL, "--max_steps", "100000"]
    with ThreadPoolExecutor(1) as threads:
        both = threads.submit(on_two_nodes, SCRIPT, given, limit_s=900.0)
        while not (tmp_path / "checkpoint-2").exists() and not both.done():
            time.sleep(0.2)
        killed = time.monotonic()
        for child in [c for c in psutil.Process().children() if "--machine_rank 1" in " ".join(c.cmdline())]:
            for one in [*child.children(recursive=True), child]:
                one.kill()
        first, second = both.result()
    assert second.code not in (0, None)
    assert first.code not in (0, None), first.output[-3000:]
    assert time.monotonic() - killed < 600  # long before `ddp_timeout`, half an hour
