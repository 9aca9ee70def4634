"""What a training would do, said before it begins: geometry, budgets, forks, and one episode with its mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from llm_envs.doctor import diagnose, show_row
from llm_envs.reporting import visible_text
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from llm_envs.chat import ChatCodec
    from llm_envs.trainers.grpo import EnvGRPOTrainer

__all__ = ["describe_training"]


def describe_training(trainer: EnvGRPOTrainer, *, colour: bool = False) -> str:
    """Play one group with the untrained policy and describe the training; nothing is learned or written.

    Args:
        trainer: Ready to train.
        colour: Whether trained tokens are marked by colour, as for a terminal.
    """
    lines = [*_geometry(trainer), *_budgets(trainer), *_forks(trainer)]
    group = trainer.play_sample()
    lines += _episodes(group)
    shown = next((trajectory for trajectory in group if trajectory.rows), None)
    if shown is not None:
        lines += ["", "the first episode; what is trained is marked:"]
        codec = cast("ChatCodec", trainer.collector.codec)
        for number, row in enumerate(shown.rows):
            lines += [
                f"row {number}: {len(row)} tokens, {int(row.mask.sum())} trained",
                show_row(codec, row, colour=colour),
            ]
    return "\n".join(lines)


def _geometry(trainer: EnvGRPOTrainer) -> list[str]:
    args, n_processes = trainer.args, trainer.accelerator.num_processes
    group_size, steps = int(args.num_generations or 1), int(args.steps_per_generation or 1)
    n_episodes = args.per_device_train_batch_size * steps * n_processes
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * n_processes
    n_items = len(trainer.items["train"])
    uses = steps * args.num_iterations / args.gradient_accumulation_steps
    return [
        f"environments      {', '.join(trainer.env_ids)}",
        f"generation        {n_episodes // group_size} groups of {group_size} = {n_episodes} episodes on {n_processes} "
        f"process{'es' if n_processes > 1 else ''}, at most {args.max_concurrency} at once on each",
        f"optimizer step    {per_step} rows in micro-batches of {args.per_device_train_batch_size}; a generation "
        f"lasts {uses:g} steps",
        f"data              {n_items} items: an epoch is {n_items * group_size / n_episodes:g} generations",
        f"loss              {args.loss_type}, beta {args.beta:g}, learning rate {args.learning_rate:g}",
    ]


def _budgets(trainer: EnvGRPOTrainer) -> list[str]:
    collector, limits = trainer.collector, trainer.collector.limits
    return [
        f"tokens            {trainer.policy.max_model_len} of context; {limits.max_completion_tokens} behind the first "
        f"prompt, the environment's included; {collector.sampling.max_new_tokens} a turn",
        f"limits            turns {_or_none(limits.max_turns)}, seconds an episode {_or_none(limits.max_episode_s)}, "
        f"seconds a step {_or_none(limits.max_step_s)}",
    ]


def _forks(trainer: EnvGRPOTrainer) -> list[str]:
    diagnosis = diagnose(cast("ChatCodec", trainer.collector.codec))
    forked = [f"{case.role} after {case.after}" for case in diagnosis.cases if case.forks]
    if not forked:
        said = "none: the template keeps earlier turns as they were; one row an episode"
    elif trainer.args.history == "append":
        said = (
            f"none: history=append keeps what the model wrote, where the template would change it ({'; '.join(forked)})"
        )
    else:
        said = f"the template changes earlier turns ({'; '.join(forked)}): a new row begins there"
    return [f"forks             {visible_text(said)}"]


def _episodes(group: Sequence[Trajectory]) -> list[str]:
    lines = [f"one group         {group[0].env_id}, seed {group[0].seed}, the policy before training:"]
    for trajectory in group:
        why = "" if trajectory.error is None else f" {trajectory.error.where}: {trajectory.error.message:.200}"
        reward = f"reward {trajectory.reward:g}" if trajectory.status == "ok" else trajectory.status
        lines.append(
            visible_text(
                f"  {trajectory.member}: {reward}, {len(trajectory.turns)} turns, {trajectory.n_tokens} tokens, "
                f"{trajectory.n_sampled_tokens} of them sampled, {trajectory.stop_reason.value}{why}"
            )
        )
    return lines


def _or_none(value: float | None) -> str:
    return "no limit" if value is None else f"{value:g}"
