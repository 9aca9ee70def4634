"""Describes a training without running it: batch sizes, budgets, forks, and one episode with its mask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from llm_envs.chat.codec import ChatCodec
from llm_envs.doctor import diagnose, show_row
from llm_envs.errors import counted
from llm_envs.tracking.loggers import visible_text
from llm_envs.tracking.reasons import count_reasons
from llm_envs.trainers.callbacks import planned
from llm_envs.trainers.dpo.trainer import EnvDPOTrainer
from llm_envs.trainers.episodes.nothing_learned import describe_failures
from llm_envs.trainers.ppo.trainer import EnvPPOTrainer
from llm_envs.trainers.sft.trainer import EnvSFTTrainer
from llm_envs.types import Row, Trajectory

if TYPE_CHECKING:
    from llm_envs.trainers.episodes.rewards import EpisodeRewards
    from llm_envs.trainers.grpo.trainer import EnvGRPOTrainer

__all__ = ["describe_training"]


def describe_training(
    trainer: EnvGRPOTrainer | EnvDPOTrainer | EnvSFTTrainer, *, colour: bool = False
) -> tuple[str, str | None]:
    """Describe a training, and show one of its episodes with the trained tokens marked. Nothing is trained or written.

    If the model plays (GRPO, PPO), the untrained policy plays one group.

    Args:
        trainer: A trainer that is ready to train.
        colour: Whether to mark trained tokens by colour, for a terminal.

    Returns:
        The description, and why no episode has a score, if none has.
    """
    if isinstance(trainer, EnvSFTTrainer):
        return "\n".join(_supervised(trainer, colour)), None
    if isinstance(trainer, EnvDPOTrainer):
        return "\n".join(_pairs(trainer, colour)), None
    episodes = trainer.reward_episodes(trainer.play_sample())
    group = episodes.trajectories
    lines = [*_geometry(trainer), *_trained(trainer), *_critic(trainer), *_budgets(trainer), *_forks(trainer)]
    codec = cast("ChatCodec", trainer.collector.codec)
    lines += [*_service(codec), *_episodes(episodes), *_first_rows(group, codec, colour)]
    failures = count_reasons(group)
    return "\n".join(lines), describe_failures(failures, len(group)) if failures.total() == len(group) else None


def _service(codec: ChatCodec) -> list[str]:
    return [f"served by         {visible_text(codec.service.description)}"]


def _first_rows(group: Sequence[Trajectory], codec: ChatCodec, colour: bool) -> list[str]:
    """Describe the rows of the first episode that has rows."""
    shown = next((trajectory for trajectory in group if trajectory.rows), None)
    lines = [] if shown is None else ["", "the first episode; what is trained is marked:"]
    for number, row in enumerate(() if shown is None else shown.rows):
        lines += _row(f"row {number}", row, codec, colour)
    return lines


def _row(name: str, row: Row, codec: ChatCodec, colour: bool) -> list[str]:
    return [f"{name}: {counted(len(row), 'token')}, {int(row.mask.sum())} trained", show_row(codec, row, colour=colour)]


def _marked(ids: Sequence[int], mask: Sequence[int]) -> Row:
    """Return token ids as a row whose spans are the runs of trained tokens."""
    own: npt.NDArray[np.bool_] = np.asarray(mask, dtype=bool)
    # With False on both ends, each change is one end of a run: starts and stops alternate.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], own, [False]]).astype(np.int8))).reshape(-1, 2)
    spans = tuple((int(start), int(stop)) for start, stop in edges)
    return Row(np.asarray(ids, dtype=np.int32), own, np.zeros(len(own), dtype=np.float32), spans)


def _supervised(trainer: EnvSFTTrainer, colour: bool) -> list[str]:
    args: Any = trainer.args
    rows = list(cast("Any", trainer.train_dataset))
    lengths, trained = [len(row["input_ids"]) for row in rows], [_n_trained(row["labels"]) for row in rows]
    codec = ChatCodec(cast("Any", trainer.processing_class), thinking=args.thinking)
    dropped = trainer.overlong_rows
    return [
        f"data              {counted(len(rows), 'row')}, {counted(sum(lengths), 'token')}, "
        f"{sum(trained)} of them trained; the longest has {max(lengths)}",
        f"too long          {dropped['dropped']} left out, {dropped['cut']} cut (max_length {args.max_length})",
        *_steps(args, len(rows), "rows"),
        f"learning rate     {args.learning_rate:g}",
        *_trained(trainer),
        *_service(codec),
        "",
        "the first row; what is trained is marked:",
        *_row("row 0", _marked(rows[0]["input_ids"], [label != -100 for label in rows[0]["labels"]]), codec, colour),
    ]


def _n_trained(labels: Sequence[int]) -> int:
    return sum(label != -100 for label in labels)


def _steps(args: Any, n: int, what: str) -> list[str]:
    """Describe the steps on rows that are complete before training."""
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    an_epoch = math.ceil(n / batch)
    # The default of max_steps is -1, which leaves the length to num_train_epochs.
    n_steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * an_epoch)
    return [
        f"optimizer step    {batch} {what} in micro-batches of {args.per_device_train_batch_size} on "
        f"{counted(args.world_size, 'process')}",
        f"training          {planned(args, n_steps)}; an epoch is {counted(an_epoch, 'step')}",
    ]


def _of_dpo(args: Any) -> str:
    kinds = args.loss_type if isinstance(args.loss_type, str) else ", ".join(args.loss_type)
    return f"loss              {kinds}, beta {args.beta:g}, learning rate {args.learning_rate:g}"


def _pairs(trainer: EnvDPOTrainer, colour: bool) -> list[str]:
    """Describe training on pairs."""
    args: Any = trainer.args
    codec = ChatCodec(cast("Any", trainer.processing_class), thinking=args.thinking)
    lengths = [
        len(pair["prompt_ids"]) + len(pair[side]) for pair in trainer.pairs for side in ("chosen_ids", "rejected_ids")
    ]
    dropped = trainer.overlong_pairs
    return [
        f"data              {counted(len(trainer.pairs), 'pair')}; the longest episode has "
        f"{counted(max(lengths), 'token')}",
        f"too long          {dropped['dropped']} left out, {dropped['cut']} cut (max_length {args.max_length})",
        *_steps(args, len(trainer.pairs), "pairs"),
        _of_dpo(args),
        *_trained(trainer),
        *_service(codec),
        *_first_pair(trainer.pairs, codec, colour),
    ]


def _first_pair(pairs: Sequence[Mapping[str, Any]], codec: ChatCodec, colour: bool) -> list[str]:
    lines = ["", "the first pair; what is trained is marked:"]
    for side in ("chosen", "rejected"):
        pair = pairs[0]
        ids, mask = (
            [*pair["prompt_ids"], *pair[f"{side}_ids"]],
            [0] * len(pair["prompt_ids"]) + list(pair[f"{side}_mask"]),
        )
        reward = pair.get(f"{side}_reward")
        said = "" if reward is None else f", reward {reward:g}"
        lines += _row(f"{side}{said}", _marked(ids, mask), codec, colour)
    return lines


def _trained(trainer: EnvGRPOTrainer | EnvDPOTrainer | EnvSFTTrainer) -> list[str]:
    """Describe the trained parameters: the model's, or an adapter's."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    n_all = sum(parameter.numel() for parameter in model.parameters())
    n_own = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return [f"parameters        {n_own:,} of {n_all:,} are trained"]
    adapter = next(iter(adapters.values()))
    targets = adapter.target_modules
    where = targets if isinstance(targets, str) else ", ".join(sorted(targets or ()))
    return [
        f"parameters        {n_own:,} of {n_all:,} are trained: LoRA of rank {adapter.r}, "
        f"alpha {adapter.lora_alpha:g}, dropout {adapter.lora_dropout:g}, on {where or 'no modules'}"
    ]


def _critic(trainer: EnvGRPOTrainer) -> list[str]:
    """Describe the critic; empty without PPO."""
    if not isinstance(trainer, EnvPPOTrainer):
        return []
    args, critic = trainer.args, trainer.critic
    trunk = "a head on the policy's trunk" if critic.trunk is None else f"a {type(critic.trunk).__name__} of its own"
    n_parameters = sum(parameter.numel() for parameter in critic.parameters())
    return [
        f"critic            {trunk}, {n_parameters:,} parameters, learning rate {args.value_learning_rate:g}, alone in "
        f"the first {args.value_warmup_steps} steps",
        f"advantages        gamma {args.gamma:g} and lambda {args.lam:g} a {args.discount} (the critic's lambda "
        f"{args.value_lam:g}), {'bootstrapped' if args.bootstrap_truncated else 'nothing'} behind a limit of turns",
    ]


def _geometry(trainer: EnvGRPOTrainer) -> list[str]:
    args, n_processes = trainer.args, trainer.accelerator.num_processes
    group_size, steps = int(args.num_generations or 1), int(args.steps_per_generation or 1)
    n_episodes = args.per_device_train_batch_size * steps * n_processes
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * n_processes
    n_items = len(trainer.items["train"])
    # A generation serves `steps * num_iterations` micro-batches, and an optimizer step takes several of them.
    uses = steps * args.num_iterations / args.gradient_accumulation_steps
    of_epochs = math.ceil(args.num_train_epochs * (n_items * group_size // n_episodes) * uses)
    n_steps = args.max_steps if args.max_steps > 0 else of_epochs
    return [
        f"environments      {', '.join(trainer.env_ids)}",
        f"generation        {counted(n_episodes // group_size, 'group')} of {group_size} = "
        f"{counted(n_episodes, 'episode')} on {counted(n_processes, 'process')}, at most "
        f"{args.max_concurrency} concurrently on each",
        f"optimizer step    {counted(per_step, 'row')} in micro-batches of {args.per_device_train_batch_size}; "
        f"a generation lasts {counted(uses, 'step')}",
        f"training          {planned(args, n_steps)}",
        f"data              {counted(n_items, 'item')}: an epoch is "
        f"{counted(n_items * group_size / n_episodes, 'generation')}",
        *_evaluation(trainer),
        f"loss              {_objective(trainer)}, learning rate {args.learning_rate:g}",
    ]


def _evaluation(trainer: EnvGRPOTrainer) -> list[str]:
    if trainer.args.eval_strategy == "no":
        return []
    n_items, size = len(trainer.items["test"]), int(trainer.num_generations_eval or 1)
    return [f"evaluation        {counted(n_items, 'item')} x {size} = {counted(n_items * size, 'episode')}"]


def _objective(trainer: EnvGRPOTrainer) -> str:
    """Describe the objective."""
    algorithm = trainer.algorithms.algorithm
    coefficient = "by a schedule" if callable(algorithm.kl_coef) else f"{algorithm.kl_coef:g}"
    loss: Any = algorithm.loss_fn or algorithm.pair_loss_fn
    function = getattr(loss, "func", loss)
    bound = ", ".join(f"{key}={value}" for key, value in getattr(loss, "keywords", {}).items())
    described = f"{getattr(function, '__name__', type(function).__name__)}({bound})"
    kl = f"KL coefficient {coefficient}" + (f", times the {algorithm.kl_ratio}'s ratio" if algorithm.kl_ratio else "")
    return f"{algorithm.name}: {described}, normalised by {algorithm.normalisation}, {kl}"


def _budgets(trainer: EnvGRPOTrainer) -> list[str]:
    collector, limits = trainer.collector, trainer.collector.limits
    defaults = [getattr(factory, "default_step_s", None) for factory in collector.source.factories.values()]
    step_s = next((limit for limit in (limits.max_step_s, *defaults) if limit is not None), None)
    return [
        f"tokens            {trainer.policy.max_model_len} of context; {limits.max_completion_tokens} behind the first "
        f"prompt, the environment's included; {collector.sampling.max_new_tokens} a turn",
        f"limits            turns {_or_none(limits.max_turns)}, seconds an episode {_or_none(limits.max_episode_s)}, "
        f"seconds a step {_or_none(step_s)}",
    ]


def _forks(trainer: EnvGRPOTrainer) -> list[str]:
    diagnosis = diagnose(cast("ChatCodec", trainer.collector.codec))
    forked = [f"{case.role} after {case.after}" for case in diagnosis.cases if case.forks]
    if not forked:
        said = "none: the template keeps earlier turns as they were; one row an episode"
    elif getattr(trainer.args, "history", "append") == "append":
        said = (
            f"none: history=append keeps what the model wrote, where the template would change it ({'; '.join(forked)})"
        )
    else:
        said = f"the template changes earlier turns ({'; '.join(forked)}): a new row begins there"
    return [f"forks             {visible_text(said)}"]


def _episodes(episodes: EpisodeRewards) -> list[str]:
    group = episodes.trajectories
    lines = [f"one group         {group[0].env_id}, seed {group[0].seed}, the policy before training:"]
    for i, trajectory in enumerate(group):
        why = "" if trajectory.why_unscored is None else f": {trajectory.why_unscored:.200}"
        parts = ", ".join(f"{name} {values[i]:g}" for name, values in episodes.columns.items() if values[i] is not None)
        by_part = f" ({parts})" if len(episodes.columns) > 1 else ""
        reward = f"reward {episodes.rewards[i]:g}{by_part}" if trajectory.status == "ok" else trajectory.status
        lines.append(
            visible_text(
                f"  {trajectory.member}: {reward}, {counted(len(trajectory.turns), 'turn')}, "
                f"{counted(trajectory.n_tokens, 'token')}, "
                f"{trajectory.n_sampled_tokens} of them sampled, {trajectory.stop_reason.value}{why}"
            )
        )
    return lines


def _or_none(value: float | None) -> str:
    return "no limit" if value is None else f"{value:g}"
