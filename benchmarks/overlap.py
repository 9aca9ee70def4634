"""Playing the next generations while the trainer steps (`async_generations`), against one after the other.

    python benchmarks/overlap.py [--out FILE] [--bounds N ...] [--tool-ms MS ...] [--seeds N ...] [--until REWARD]

GRPO on `llm/Calculator-v0`, with a tool that waits and a small model after a warm start (`proof/`), on one vLLM server.
The trainer and the server have a core each. A run ends when the mean reward of the last five generations reaches
`--until`, at the latest after `--steps` steps; wall time counts from the first step. The bounds take turns within each
seed, and a ratio is that of two runs of one seed. Utilisation is CPU time of the trainer's process and of the server's
over wall time; *waiting* is the share of the wall time in which the trainer waits for episodes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["OMP_NUM_THREADS"] = "1"

import gymnasium as gym
import numpy as np
import transformers
from measuring import Column, Figure, Report, finish, make_parser
from transformers import PrinterCallback, TrainerCallback

from llm_envs.policies import start_servers
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

TASK = "calculator"
N_EPISODES, GROUP_SIZE, WINDOW = 64, 8, 5
METHOD = (
    f"`llm/Calculator-v0` (easy), a tool that takes exponentially distributed times of the given mean, {N_EPISODES} "
    f"episodes a step in groups of {GROUP_SIZE}, a model of half a million parameters after a warm start, one vLLM "
    "server. Trainer and server have one thread each. *Bound*: `async_generations`. Until the mean reward of five "
    "generations is 0.8. Utilisation: CPU time over wall time. *Waiting*: the share of the wall time in which the "
    "trainer waits for episodes. Ratios are medians over seeds, of the seconds of a step and of the wall time until "
    "the reward is reached, at bound 0 and here."
)
COLUMNS = [
    Column("tool_ms", "tool, ms"),
    Column("bound", "bound"),
    Column("seeds", "seeds"),
    Column("steps", "steps", ".0f"),
    Column("wall_s", "wall, s", ".1f"),
    Column("step_s", "step, s", ".2f"),
    Column("trainer", "trainer busy", ".0%"),
    Column("server", "server busy", ".0%"),
    Column("waiting", "waiting", ".0%"),
    Column("step_ratio", "steps, times as fast", ".2f"),
    Column("ratio", "reached, times as fast", ".2f"),
    Column("lowest", "lowest", ".2f"),
    Column("highest", "highest", ".2f"),
    Column("reached", "reached"),
]


class SlowTool(gym.Wrapper[str, str, str, str]):
    """Waits before each step, as a tool would."""

    blocking = True
    """So its steps run in threads, and the others' episodes go on meanwhile."""

    def __init__(self, env: gym.Env[str, str], mean_s: float) -> None:
        super().__init__(env)
        self._mean_s, self._random = mean_s, np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._random = np.random.default_rng(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        time.sleep(self._random.exponential(self._mean_s))
        return self.env.step(action)


class Until(TrainerCallback):
    """Stops when enough replies are right."""

    def __init__(self, reward: float) -> None:
        self._wanted = reward
        self.rewards: list[float] = []

    @property
    def is_reached(self) -> bool:
        return len(self.rewards) >= WINDOW and statistics.fmean(self.rewards[-WINDOW:]) >= self._wanted

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "reward" in logs:
            self.rewards.append(logs["reward"])
            control.should_training_stop = self.is_reached or control.should_training_stop


def cpu_s(pids: tuple[int, ...]) -> float:
    """Return the CPU seconds of process groups so far (Linux)."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) in pids:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def train(model: Path, servers: Any, bound: int, tool_s: float, seed: int, options: Any) -> dict[str, Any]:
    """Train until the reward is reached; return what it took."""

    def make(**kwargs: Any) -> gym.Env[str, str]:
        return SlowTool(gym.make("llm/Calculator-v0", **kwargs), tool_s)

    with tempfile.TemporaryDirectory() as folder:
        args = EnvGRPOConfig(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=N_EPISODES // 16,
            num_generations=GROUP_SIZE,
            max_turn_tokens=48,
            max_completion_length=96,
            learning_rate=options.learning_rate,
            env_kwargs={"difficulty": "easy"},
            use_vllm=True,
            vllm_mode="server",
            vllm_server_urls=list(servers.urls),
            async_generations=bound,
            max_concurrency=4 * N_EPISODES,
            gradient_checkpointing=False,
            save_trajectories=False,
            save_strategy="no",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            seed=seed,
        )
        trainer = EnvGRPOTrainer(str(model), make, args)
        trainer.remove_callback(PrinterCallback)
        until = Until(options.until)
        trainer.add_callback(until)
        play, waited = trainer._player.play, [0.0]

        def timed(*given: Any, **further: Any) -> Any:
            began = time.perf_counter()
            rows = play(*given, **further)
            waited[0] += time.perf_counter() - began
            return rows

        trainer._player.play = timed
        started, ours, theirs = time.perf_counter(), time.process_time(), cpu_s(servers.pids)
        trainer.train()
        wall_s = time.perf_counter() - started
        found = {
            "steps": trainer.state.global_step,
            "wall_s": wall_s,
            "step_s": wall_s / trainer.state.global_step,
            "trainer": (time.process_time() - ours) / wall_s,
            "server": (cpu_s(servers.pids) - theirs) / wall_s,
            "waiting": waited[0] / wall_s,
            "reached": until.is_reached,
        }
        trainer.close()
    curve = " ".join(f"{reward:.2f}" for reward in until.rewards)
    print(f"tool {1e3 * tool_s:.0f} ms, bound {bound}, seed {seed}: {found}\n  {curve}", flush=True)
    return found


def measure(model: Path, options: Any) -> list[dict[str, Any]]:
    """Return a row for each wait and bound."""
    rows = []
    args = ("--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", str(4 * N_EPISODES))
    env = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    for tool_ms in options.tool_ms:
        runs: dict[int, list[dict[str, Any]]] = {bound: [] for bound in options.bounds}
        for seed in options.seeds:
            for bound in options.bounds:
                with start_servers(model, 1, args=args, env=env) as servers:
                    runs[bound].append(train(model, servers, bound, tool_ms / 1e3, seed, options))
        for bound, found in runs.items():
            row: dict[str, Any] = {"tool_ms": tool_ms, "bound": bound, "seeds": len(found)}
            row |= {key: statistics.median(run[key] for run in found) for key in found[0] if key != "reached"}
            row["reached"] = f"{sum(run['reached'] for run in found)} of {len(found)}"
            if bound and 0 in runs:
                ratios = [one["wall_s"] / other["wall_s"] for one, other in zip(runs[0], found, strict=True)]
                row |= {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
                pairs = zip(runs[0], found, strict=True)
                row["step_ratio"] = statistics.median(one["step_s"] / other["step_s"] for one, other in pairs)
            rows.append(row)
    return rows


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--bounds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tool-ms", nargs="+", type=float, default=[50.0, 200.0, 500.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60, help="at most")
    parser.add_argument("--until", type=float, default=0.8, help="mean reward of five generations")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from proof.tasks import TASKS
    from proof.warm import warm_start

    model, _ = warm_start(TASK, TASKS[TASK], Path("runs/proof/warm"))
    rows = measure(model, options)
    figures = [
        Figure(f"bound {row['bound']} against 0, tool of {row['tool_ms']:g} ms", row["ratio"], "times as fast")
        for row in rows
        if "ratio" in row
    ]
    return finish(Report("overlap", "Playing ahead", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
