"""What `EnvGRPOTrainer` learns by in the generation under way: hooks or algorithm, KL coefficient, reference.

Everything changes at generation boundaries only, but for the reference, which follows after each optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.functional.algorithm import AlgorithmConfig
from llm_envs.trainers.functional.references import ReferenceUpdateFn, RefModelFn
from llm_envs.trainers.grpo_config import EnvGRPOConfig
from llm_envs.trainers.grpo_loss import LossHooks, trained_mask
from llm_envs.trainers.reference import Reference
from llm_envs.trainers.schedules import KLController, KLSchedule, parse_kl_schedule
from llm_envs.trainers.switching import Algorithms, AlgorithmSwitch

__all__ = ["InForce"]


class InForce:
    """What is in force, and what moves it.

    Args:
        args: The trainer's settings.
        hooks: The functions that the trainer was given.
        algorithm: See `EnvGRPOTrainer`, as for the others.
        algorithm_schedule: By generation.
        kl_schedule: The KL's coefficient.
        ref_model_fn: Makes the reference.
        reference_update_fn: Moves it.
        may_fork: Whether an episode may have several rows.

    Raises:
        InvalidConfigError: If they contradict one another or the settings.
    """

    def __init__(
        self,
        args: EnvGRPOConfig,
        hooks: LossHooks,
        *,
        algorithm: AlgorithmConfig | str | None,
        algorithm_schedule: Algorithms | None,
        kl_schedule: KLSchedule | None,
        ref_model_fn: RefModelFn | None,
        reference_update_fn: ReferenceUpdateFn | None,
        may_fork: bool,
    ) -> None:
        self.kl = _kl_controller(args, kl_schedule)
        self.reference = Reference(ref_model_fn, reference_update_fn)
        given = {"advantage_fn": hooks.advantage_fn, "kl_fn": hooks.kl_fn, "loss_fn": hooks.loss_fn}
        self.switch = _make_switch(args, algorithm, algorithm_schedule, given, may_fork=may_fork)
        self.has_reference = _needs_reference(args, self.kl, self.switch, self.reference)
        """Whether a reference is scored, in every generation."""
        self.n_generations = 0
        """Begun so far, of training."""
        hooks.check(args, has_reference=self.has_reference)
        how = "set beta above 0, or give kl_schedule, or an algorithm with a kl_coef"
        self.reference.check(args, is_used=self.has_reference, how=how)
        self.hooks = hooks if self.switch is None else self._of(self.switch.in_force)
        """The hooks to begin with."""

    @property
    def beta_for_trl(self) -> float:
        """What makes TRL make the reference that is needed: none where ours is made afterwards."""
        if self.reference.ref_model_fn is not None or not self.has_reference:
            return 0.0
        return self.kl.coefficient or 1.0

    def begin_generation(self, trainer: Any) -> None:
        """Put in force what the schedules say."""
        if self.switch is not None:
            trainer._hooks = self._of(self.switch.begin_generation(self.n_generations))
        self.n_generations += 1
        self.kl.begin_generation(trainer.state.global_step, trainer.state.max_steps)
        trainer.beta = self.kl.coefficient

    def measure(self, trainer: Any, logps_BT: Any, inputs: Mapping[str, Any]) -> None:
        """Measure the KL of a micro-batch of training, if something is steered by it."""
        if self.kl.schedule is None and self.reference.update_fn is None:
            return
        reference_BT = inputs["ref_per_token_logps"]
        self.reference.meter.add(logps_BT, reference_BT, trained_mask(inputs), trainer._hooks.kl_fn)

    def end_step(self, trainer: Any) -> None:
        """Log what was in force in an optimizer step, and let the reference follow."""
        kl = self.reference.meter.take(trainer.accelerator)
        metrics = trainer._metrics["train"]
        if kl is not None:
            metrics["reference/kl"].append(kl)
        if self.has_reference:
            metrics["kl_coef"].append(trainer.beta)
        if self.switch is not None:
            for name in self.switch.names:
                metrics[f"algorithm/{name}"].append(float(name == self.switch.in_force.name))
        self.kl.end_step(kl)
        self.reference.end_step(trainer, kl)

    def save(self, trainer: Any, folder: Path) -> dict[str, Any]:
        """Write the reference into a checkpoint's folder; return the rest of the state, as JSON types."""
        return {
            "trainer": trainer._kind,
            "generations": self.n_generations,
            "learned_by": None if self.switch is None else self.switch.in_force.name,
            "kl": self.kl.state_dict(),
            "reference": self.reference.save(trainer, folder),
        }

    def check_state(self, checkpoint: str, state: Mapping[str, Any]) -> None:
        """Refuse a checkpoint whose latest generation was another algorithm's than in this run.

        Raises:
            InvalidConfigError: If so.
        """
        latest = max(int(state.get("generations", 1)) - 1, 0)
        present = None if self.switch is None else self.switch.name_at(latest)
        _check_generation(checkpoint, state.get("learned_by"), present)

    def load(self, trainer: Any, folder: Path, state: Mapping[str, Any]) -> None:
        """Go on from what `save` returned."""
        self.n_generations = int(state.get("generations", 0))
        self.kl.load_state_dict(state.get("kl") or self.kl.state_dict())
        self.reference.load(trainer, folder, state.get("reference"))

    def _of(self, algorithm: AlgorithmConfig) -> LossHooks:
        if self.kl.schedule is None:
            self.kl.coefficient = algorithm.kl_coef
        return LossHooks(algorithm.advantage_fn, algorithm.kl_fn, None, algorithm.kl_in, algorithm)


def _kl_controller(args: EnvGRPOConfig, kl_schedule: KLSchedule | None) -> KLController:
    """Return what says the KL's coefficient: `beta`, or a schedule, given as a function or in the settings.

    Raises:
        InvalidConfigError: If there are several.
    """
    given = {
        "beta": args.beta or None,
        "kl_schedule in the settings": args.kl_schedule,
        "kl_schedule": kl_schedule,
    }
    if len(several := [name for name, value in given.items() if value is not None]) > 1:
        raise InvalidConfigError(f"{' and '.join(several)} both say the KL's coefficient: leave one out.")
    if args.kl_schedule is not None:
        kl_schedule = parse_kl_schedule(args.kl_schedule)
    return KLController(kl_schedule, args.beta)


def _make_switch(
    args: EnvGRPOConfig,
    algorithm: AlgorithmConfig | str | None,
    schedule: Algorithms | None,
    others: Mapping[str, Any],
    *,
    may_fork: bool,
) -> AlgorithmSwitch | None:
    """Return what says which algorithm is in force; None where TRL's settings and the hooks do.

    Args:
        args: The trainer's settings.
        algorithm: One for the whole run.
        schedule: Or one for each generation.
        others: Arguments of the trainer that say what an algorithm says.
        may_fork: Whether an episode may have several rows.

    Raises:
        InvalidConfigError: If something contradicts the algorithms.
    """
    if algorithm is None and schedule is None:
        return None
    per_epoch = args.num_train_seeds * int(args.num_generations or 1) // int(args.generation_batch_size or 1)
    n_generations = math.ceil(args.num_train_epochs * per_epoch)
    if args.max_steps > 0:
        uses = int(args.steps_per_generation or 1) * args.num_iterations
        n_generations = math.ceil(args.max_steps * args.gradient_accumulation_steps / uses)
    switch = AlgorithmSwitch(algorithm, schedule, n_generations=n_generations)
    switch.check(args, others, may_fork=may_fork)
    return switch


def _needs_reference(
    args: EnvGRPOConfig, kl: KLController, switch: AlgorithmSwitch | None, reference: Reference
) -> bool:
    """Return whether anything in the run is measured against a reference.

    Pairs are where one is made or moved by a function; else they are measured against the policy that sampled.

    Raises:
        InvalidConfigError: If both a schedule and an algorithm say the KL's coefficient.
    """
    has_kl = switch is not None and switch.has_kl
    if has_kl and kl.schedule is not None:
        raise InvalidConfigError("kl_schedule and an algorithm's kl_coef both say the KL's coefficient: leave one out.")
    has_pairs = switch is not None and switch.has_pairs
    return bool(args.beta) or kl.schedule is not None or has_kl or (has_pairs and reference.is_ours)


def _check_generation(checkpoint: str, saved: str | None, present: str | None) -> None:
    """Refuse to go on from a generation that another algorithm learned from than this run's.

    Args:
        checkpoint: The folder.
        saved: Name of the algorithm that was in force; None: TRL's settings were.
        present: What this run says of that generation.

    Raises:
        InvalidConfigError: If they differ.
    """
    if saved == present:
        return
    names = [("TRL's loss" if name is None else repr(name)) for name in (saved, present)]
    raise InvalidConfigError(
        f"{checkpoint} was learned by {names[0]}, and in this run that generation is {names[1]}'s: resume with the "
        "algorithm or algorithm_schedule of the run, or begin a new run with the folder as its model."
    )
