"""A training step of `EnvGRPOTrainer` against one of TRL's own `GRPOTrainer` on the same rows and rewards.

    python benchmarks/grpo_step.py [--check] [--out FILE] [--steps N]

Both train the same model of about 30 M parameters on the same generations of made-up episodes (two turns, lengths that
differ), by turns: a step of one, a step of the other. Nothing is played; everything else is in the time: scoring,
rewards, advantages, the log-probability guard's batch apart, forward and backward passes, the optimizer, metrics. The
first two steps of each are left out. With `--check` the exit code is 1 if the median of the paired ratios is above
1.03, or the parameters differ by more than 1e-5 at the end.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
import warnings
from typing import Any

import numpy as np
import torch
from measuring import Column, Figure, Report, finish, make_parser
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.episodes.batches import rollout_output
from llm_envs.trainers.episodes.items import index_dataset, make_items
from llm_envs.types import Row, StopReason, Trajectory, Turn

MAX_RATIO = 1.03
MAX_DIFFERENCE = 1e-5
WARM_UP = 2
N_ROWS, GROUP_SIZE = 8, 4
METHOD = (
    "The same rows and rewards, 8 rows of 96 to 160 tokens in micro-batches of 4, a model of about 30 M parameters in "
    "float32; one step of one trainer, one of the other, by turns, and the ratio of each pair. Held: a median of at "
    "most 1.03, and parameters equal to 1e-5 after the last step."
)
COLUMNS = [
    Column("trainer", "trainer"),
    Column("median_s", "median step, s", ".3f"),
    Column("low_s", "fastest, s", ".3f"),
    Column("high_s", "slowest, s", ".3f"),
]


class Turns:
    """Lets two threads go on by turns."""

    def __init__(self) -> None:
        self.next, self.condition, self.gone = 0, threading.Condition(), set[int]()

    def take(self, who: int) -> None:
        """Wait for one's turn."""
        with self.condition:
            self.condition.wait_for(lambda: self.next == who or 1 - who in self.gone)

    def give(self, who: int) -> None:
        """Let the other go on."""
        with self.condition:
            self.next = 1 - who
            self.condition.notify_all()

    def leave(self, who: int) -> None:
        """Wait for nobody any more."""
        with self.condition:
            self.gone.add(who)
            self.next = 1 - who
            self.condition.notify_all()


class Clock(TrainerCallback):
    """Times each step, in its turn."""

    def __init__(self, turns: Turns, who: int) -> None:
        self.turns, self.who = turns, who
        self.seconds: list[float] = []

    def on_step_begin(self, *arguments: Any, **others: Any) -> None:
        self.turns.take(self.who)
        self.started = time.perf_counter()

    def on_step_end(self, *arguments: Any, **others: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)
        self.turns.give(self.who)


def make_generation(
    random: np.random.Generator, vocabulary_size: int, step: int, n_rows: int = N_ROWS, scale: int = 1
) -> list[Trajectory]:
    """Make up the episodes of one generation: two turns of the policy with the environment's words between.

    `scale` multiplies all lengths.
    """
    played, prompt_ids = [], np.zeros(0, dtype=np.int32)
    for number in range(n_rows):
        if number % GROUP_SIZE == 0:
            prompt_ids = random.integers(3, vocabulary_size, size=scale * random.integers(20, 40)).astype(np.int32)
        prompt, heard = len(prompt_ids), scale * random.integers(12, 30)
        first, second = scale * random.integers(24, 40, size=2)
        lengths = [int(prompt), int(first), int(heard), int(second), 8]
        starts = np.cumsum([0, *lengths]).tolist()
        mask = np.zeros(starts[-1], dtype=bool)
        mask[starts[1] : starts[2]] = mask[starts[3] : starts[4]] = True
        ids = random.integers(3, vocabulary_size, size=starts[-1]).astype(np.int32)
        ids[:prompt] = prompt_ids
        logps = np.where(mask, -random.random(starts[-1]), 0).astype(np.float32)
        row = Row(ids, mask, logps, ((starts[1], starts[2]), (starts[3], starts[4])))
        rewards = random.random(2).tolist()
        turns = tuple(Turn(r, {"reward": r}, row=0, span=span) for span, r in enumerate(rewards))
        names: dict[str, Any] = {"env_id": "made/Up-v0", "env_kwargs": {}, "seed": number // GROUP_SIZE}
        names |= {"group_id": f"{step}-{number // GROUP_SIZE}", "member": number % GROUP_SIZE, "messages": ()}
        names |= {"tools": (), "rows": (row,), "turns": turns, "terminated": True, "truncated": False}
        played.append(Trajectory(**names, stop_reason=StopReason.TERMINATED, status="ok", is_success=False))
    return played


def settings(folder: str, n_steps: int, **changes: Any) -> dict[str, Any]:
    """Return what both trainers are told."""
    common = {
        "output_dir": folder,
        "max_steps": n_steps,
        "per_device_train_batch_size": N_ROWS // 2,
        "gradient_accumulation_steps": 2,
        "num_generations": GROUP_SIZE,
        "max_completion_length": 160,
        "learning_rate": 1e-5,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 10**6,
        "bf16": False,
        "seed": 1,
    }
    return common | changes


def tiny_models(tokenizer: PreTrainedTokenizerBase, hidden_size: int = 512) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a model, and another of the same shape."""
    shape = {"hidden_size": hidden_size, "n_layers": 10, "n_heads": 8, "max_length": 512}
    return tiny_model(tokenizer, **shape, seed=0), tiny_model(tokenizer, **shape, seed=1)


def our_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str,
    generations: list[list[Trajectory]],
    **changes: Any,
) -> EnvGRPOTrainer:
    """Return our trainer, which is given what it would have played."""
    common = settings(folder, len(generations), **changes)
    args = EnvGRPOConfig(**common, save_trajectories=False, logps_tolerance=None)
    return give(EnvGRPOTrainer(model, "llm/Countdown-v0", args, processing_class=tokenizer), generations)


def give(trainer: EnvGRPOTrainer, generations: list[list[Trajectory]]) -> EnvGRPOTrainer:
    """Let a trainer take made-up generations for what its environment played."""
    waiting, player = iter(generations), trainer._player

    def play(*arguments: Any, **others: Any) -> list[Trajectory]:
        player.played = next(waiting)
        return player.played

    player.play = play  # type: ignore[method-assign]
    return trainer


def trls_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str,
    generations: list[list[Trajectory]],
    **changes: Any,
) -> GRPOTrainer:
    """Return TRL's trainer, which is given the same."""
    waiting, pad_id = iter(generations), int(tokenizer.pad_token_id)
    items = make_items("llm/Countdown-v0", "train", 10_000, seed=1, env_kwargs={})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")
        return GRPOTrainer(
            model,
            reward_funcs=[lambda prompts, completions, trajectory_reward, **columns: trajectory_reward],
            args=GRPOConfig(**settings(folder, len(generations), **changes)),
            train_dataset=index_dataset(items, "train"),
            processing_class=tokenizer,
            rollout_func=lambda prompts, trainer: rollout_output(next(waiting), pad_id=pad_id),
        )


def measure(n_steps: int) -> tuple[list[list[float]], float]:
    """Return the seconds of each step of both trainers, ours first, and the greatest difference of parameters."""
    tokenizer = tiny_tokenizer()
    random = np.random.default_rng(0)
    generations = [make_generation(random, len(tokenizer), step) for step in range(WARM_UP + n_steps)]
    with tempfile.TemporaryDirectory() as folder:
        ours = our_trainer(tiny_models(tokenizer)[0], tokenizer, f"{folder}/ours", generations)
        theirs = trls_trainer(tiny_models(tokenizer)[0], tokenizer, f"{folder}/trl", generations)
        turns = Turns()
        clocks = [Clock(turns, who) for who in (0, 1)]
        failures: list[BaseException] = []

        def train(who: int, trainer: GRPOTrainer) -> None:
            trainer.add_callback(clocks[who])
            try:
                trainer.train()
            except BaseException as error:
                failures.append(error)
            finally:
                turns.leave(who)

        threads = [threading.Thread(target=train, args=item) for item in enumerate((ours, theirs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ours.close()
    if failures:
        raise failures[0]
    other = dict(theirs.model.named_parameters())
    difference = max((p - other[name]).abs().max().item() for name, p in ours.model.named_parameters())
    return [clock.seconds[WARM_UP:] for clock in clocks], difference


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--steps", type=int, default=30, help="pairs of steps that are timed")
    options = parser.parse_args()
    seconds, difference = measure(options.steps)
    names = ("EnvGRPOTrainer", "TRL's GRPOTrainer")
    rows = [
        {"trainer": name, "median_s": statistics.median(part), "low_s": min(part), "high_s": max(part)}
        for name, part in zip(names, seconds, strict=True)
    ]
    ratios = [one / other for one, other in zip(*seconds, strict=True)]
    figures = [
        Figure("EnvGRPOTrainer's step against TRL's", statistics.median(ratios), "x", "lower", at_most=MAX_RATIO),
        Figure("greatest difference of parameters", difference, "", "lower", at_most=MAX_DIFFERENCE),
    ]
    found = {"steps": options.steps, "torch_threads": torch.get_num_threads()}
    report = Report("grpo_step", "A training step against TRL's", METHOD, COLUMNS, rows, figures, found)
    print(f"median of the paired ratios: {statistics.median(ratios):.3f}; parameters differ by {difference:.1e}")
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
