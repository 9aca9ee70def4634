"""Trainings under faults: each start goes on from the newest checkpoint, until the training is complete.

In the end the weights must be those of an undisturbed training. Every folder of episodes must have the undisturbed
ones, and all folders together must have all of them.

    python -m proof.chaos.training KIND MODEL OUT     a start of a training, on several processes by `accelerate launch`
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from llm_envs.data.folder import MANIFEST_NAME
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector, EnvChoice, RolloutLimits, TrajectoryWriter, read_trajectories
from llm_envs.testing import NumbersEnv
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.episodes.generation import unused_folder
from llm_envs.trainers.functional.algorithm import GRPO
from llm_envs.trainers.loop import (
    LoopSettings,
    create_checkpoint_fn,
    create_training_state,
    latest_checkpoint,
    load_training_state,
    train,
)
from llm_envs.trainers.run.checkpoints import find_checkpoints
from llm_envs.types import SamplingParams, Trajectory
from proof.chaos.faults import Disk, damage, jump_clocks, kill
from proof.chaos.rounds import Broken, Ended, Outcome, in_child

__all__ = ["make_model", "same_training", "start", "training"]

N_STEPS, SAVE_EVERY = 6, 2
START_LIMIT_S = 240.0
_TOLERANCE = 1e-6
"""Greatest difference of weights: resuming is exact up to the rounding of sums."""


class HashedEnv(NumbersEnv):
    """A `NumbersEnv` in which any reply has a reward, a hash of its characters, so that a training has a signal."""

    def __init__(self, split: str = "train") -> None:
        super().__init__(n_turns=2, split=split)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the step; replace its reward."""
        observation, _, terminated, truncated, info = super().step(action)
        reward = sum(map(ord, action)) % 17 / 17
        return observation, reward, terminated, truncated, info | {"reward_components": {"right": reward}}


ENV = EnvChoice("hashed", factory=HashedEnv)


def make_model(folder: Path, max_length: int = 192) -> None:
    """Save a tiny model with its tokenizer, for rows of so many tokens."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, hidden_size=64, n_heads=2, max_length=max_length, seed=3).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train_with_trl(kind: str, model: str, out: Path) -> Any:
    """Begin or resume a training by GRPO or PPO; return the model."""
    settings: dict[str, Any] = {
        "output_dir": str(out),
        "max_steps": N_STEPS,
        "save_strategy": "steps",
        "save_steps": SAVE_EVERY,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 4,
        "max_completion_length": 64,
        "max_turn_tokens": 6,
        "num_train_seeds": 64,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
    }
    trainer: Any
    if kind == "ppo":
        trainer = EnvPPOTrainer(model, ENV, EnvPPOConfig(**settings, value_learning_rate=3e-3))
    else:
        trainer = EnvGRPOTrainer(model, ENV, EnvGRPOConfig(**settings, num_generations=4, beta=0.02))
    try:
        newest = find_checkpoints(out)[-1:]
        trainer.train(resume_from_checkpoint=str(newest[0]) if newest else None)
    finally:
        trainer.close()
    return trainer.model


def train_by_the_loop(model: str, out: Path) -> Any:
    """Begin or resume a training by the loop without TRL; return the model."""
    policy = TransformersPolicy(load_model(model), load_tokenizer(model))
    state = create_training_state(policy.model, learning_rate=3e-3, seed=3)
    if (newest := latest_checkpoint(out)) is not None:
        state = load_training_state(newest, state)
    played: dict[str, Any] = {
        "codec": policy.codec,
        "sampling": SamplingParams(max_new_tokens=6),
        "limits": RolloutLimits(max_completion_tokens=64),
        "progress": False,
    }
    with (
        TrajectoryWriter(unused_folder(out / "trajectories" / "process-0")) as writer,
        Collector(ENV, policy, seed=3, on_trajectory=writer.write, **played) as collector,
    ):
        train(
            state,
            collector,
            n_iterations=N_STEPS,
            n_groups=2,
            group_size=4,
            algorithm=GRPO,
            settings=LoopSettings(),
            checkpoint_fn=create_checkpoint_fn(out, keep=3),
            save_every=SAVE_EVERY,
        )
    return policy.model


def start(kind: str, model: str, out: Path) -> None:
    """Begin or resume a training, and save its last weights.

    Args:
        kind: "grpo", "ppo" or "loop".
        model: Folder of a model.
        out: Folder of the training.
    """
    torch.set_num_threads(1)
    trained = train_by_the_loop(model, out) if kind == "loop" else train_with_trl(kind, model, out)
    if os.environ.get("RANK", "0") == "0":
        torch.save({name: value.detach().clone() for name, value in trained.state_dict().items()}, out / "weights.pt")


def same_training(out: Path, whole: Path) -> None:
    """Check that a training has the weights and the episodes of another.

    Raises:
        Broken: If not.
    """
    one, other = (torch.load(folder / "weights.pt") for folder in (out, whole))
    difference = max((one[name] - other[name]).abs().max().item() for name in other)
    if one.keys() != other.keys() or not difference <= _TOLERANCE:
        raise Broken(f"the weights differ by {difference}")
    for first in sorted((whole / "trajectories").iterdir()):
        expected = {_key(t): _text(t) for t in read_trajectories(first)}
        found: dict[Any, str] = {}
        for part in sorted((out / "trajectories").glob(f"{first.name}*")):
            if not (part / MANIFEST_NAME).exists():  # the disk was full before the first episode
                continue
            episodes = read_trajectories(part)
            texts = {_key(t): _text(t) for t in episodes}
            if len(texts) != len(episodes):
                raise Broken(f"{part.name} has an episode twice")
            if wrong := [key for key, text in texts.items() if text != expected.get(key)]:
                raise Broken(f"{part.name}: {texts[wrong[0]]}, undisturbed: {expected.get(wrong[0])}")
            found |= texts
        if missing := expected.keys() - found.keys():
            raise Broken(f"{first.name}: lost {sorted(missing)[:5]}")


def _key(trajectory: Trajectory) -> tuple[str, int]:
    return trajectory.group_id, trajectory.member


def _text(trajectory: Trajectory) -> str:
    rows = [row.ids.tolist() for row in trajectory.rows]
    return f"{trajectory.seed} {trajectory.reward} {[m.content for m in trajectory.messages]} {rows}"


def training(seed: int, folder: Path) -> Outcome:
    """A training by GRPO, PPO or the loop, with 2 to 4 faults; in one process."""
    random, outcome = Random(seed), Outcome()
    kind = random.choice(["grpo", "ppo", "loop"])
    outcome.counts[kind] = 1
    disk = Disk(folder / "disk")
    outcome.counts["tmpfs"] = int(disk.is_mounted)
    model, whole, out = folder / "model", folder / "whole", disk.folder / "run"

    def run(out: Path, before: Callable[[], object] | None = None, actions: Sequence[Any] = ()) -> Ended:
        def work() -> None:
            if before is not None:
                before()
            start(kind, str(model), out)

        ended = in_child(work, folder / "start.log", limit_s=START_LIMIT_S, actions=actions)
        outcome.add(ended.how)
        if ended.how == "hung":
            outcome.problems.append(f"{outcome.faults[-1:]}: hung: {ended.message[-1500:]}")
        return ended

    in_child(partial(make_model, model), folder / "start.log", limit_s=START_LIMIT_S)
    first = run(whole)
    if first.how != "done":
        outcome.problems.append(f"the undisturbed training {first.how}: {first.message[-3000:]}")
        return outcome
    for fault in random.choices(
        ["kill", "kill", "full disk", "clocks jump", "damaged checkpoint"], k=random.randint(2, 4)
    ):
        outcome.faults.append(fault)
        if (out / "weights.pt").exists():  # complete: begin anew
            shutil.rmtree(out)
        if fault in ("kill", "damaged checkpoint"):
            run(out, actions=[(random.uniform(0.1, 1.0) * first.seconds, kill)])
        if fault == "full disk":
            ended = run(out, partial(disk.limit, random.randrange(2_000_000)))
            disk.limit(None)
            if ended.how not in ("done", "refused", "crashed") or not (ended.how == "done" or _is_full(ended.message)):
                outcome.problems.append(f"full disk: {ended.how}: {ended.message[-1500:]}")
        if fault == "clocks jump" and (ended := run(out, partial(jump_clocks, Random(random.random())))).how != "done":
            outcome.problems.append(f"clocks jump: {ended.how}: {ended.message[-1500:]}")
        if fault == "damaged checkpoint":
            outcome.problems += _damaged_checkpoint(kind, out, random, partial(run, out))
    outcome.faults.append("none")
    last = run(out)
    outcome.faults.pop()
    if last.how != "done":
        outcome.problems.append(f"the training cannot be completed: {last.how}: {last.message[-2500:]}")
        return outcome
    ended = in_child(partial(same_training, out, whole), folder / "check.log", limit_s=START_LIMIT_S)
    if ended.how != "done":
        outcome.problems.append(f"not as the undisturbed training: {ended.message[-2500:]}")
    return outcome


def _damaged_checkpoint(kind: str, out: Path, random: Random, run: Callable[[], Ended]) -> list[str]:
    """Damage a file of the newest checkpoint and resume; then remove that checkpoint, as the error says."""
    checkpoints = sorted(out.glob("iteration-*")) if kind == "loop" else find_checkpoints(out)
    if not checkpoints or (out / "weights.pt").exists():
        return []
    newest = checkpoints[-1]
    path = random.choice(sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size))
    how = damage(path, random, ("a folder", "a dangling link", "random bytes", "cut"))
    ended = run()
    problems = []
    if ended.how == "crashed" or (ended.how == "refused" and str(newest) not in ended.message):
        problems = [f"{path.relative_to(out)} is now {how}: {ended.how}: {ended.message[-1200:]}"]
    if ended.how != "done":
        shutil.rmtree(newest)
    return problems


def _is_full(message: str) -> bool:
    return any(text in message for text in ("No space left", "File too large", "file write failed", "os error 28"))


if __name__ == "__main__":
    start(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
