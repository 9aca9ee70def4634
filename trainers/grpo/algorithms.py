"""The active algorithm of `EnvGRPOTrainer`: one for the run, or a schedule.

The algorithm changes only between generations. It sets the advantages, loss, normalisation, KL and its coefficient,
entropy bonus, pairs, dynamic sampling and overlong punishment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.parsers.json_calls import strict_json
from llm_envs.rollout.filters import GroupFilter, create_spread_filter
from llm_envs.rollout.tree import n_roots
from llm_envs.trainers.episodes.items import MANY
from llm_envs.trainers.functional.algorithm import ALGORITHMS, Algorithm, create_algorithm_schedule
from llm_envs.trainers.functional.kl import KL_ESTIMATORS
from llm_envs.trainers.grpo.from_trl import algorithm_from_trl
from llm_envs.trainers.schedules import KLController, parse_kl_schedule
from llm_envs.trainers.settings.checks import as_algorithm
from llm_envs.trainers.settings.unused import SET_BY_ALGORITHM, is_changed
from llm_envs.types import TrajectoryGroup

__all__ = ["AlgorithmState", "Algorithms", "with_settings"]

Algorithms = Algorithm | str | Mapping[int, Algorithm | str] | Callable[[int], Algorithm | str]
"""An algorithm or its name; a mapping `{first generation: algorithm}`; or a function `(generation) -> algorithm`."""

_SETTINGS: Mapping[str, tuple[type, ...]] = {
    "kl_coef": (int, float, str),
    "kl_in": (str,),
    "kl_fn": (str,),
    "entropy_coef": (int, float),
    "normalisation": (str,),
    "constant": (int, float),
    "dynamic_sampling": (bool,),
    "branches": (int, float),
    "branch_at": (str,),
    "overlong": (int, float),
    "pair_average": (bool,),
}
"""The algorithm fields that a command line or file can set, with the types of their values there."""
_JSON_NAMES = {float: "a number", str: "a text", bool: "true or false"}
_MAX_GENERATIONS = 100_000
"""Before training, a schedule is checked for at most this many generations; each call takes microseconds."""


class AlgorithmState:
    """The algorithm of the current generation and its KL coefficient.

    Args:
        args: The trainer's settings.
        chosen: The trainer's `algorithm` argument; None: the one of TRL's settings (`algorithm_from_trl`). A schedule
            must depend only on the generation: it is called for every generation before training starts, so an invalid
            algorithm is rejected first.
        known: The algorithms that can be given by name.
        has_critic: Whether a critic computes the advantages.
        may_fork: Whether an episode may have several rows even with `history="append"`.
        n_items: Rows of an epoch; None: `args.num_train_seeds`, or many.

    Raises:
        InvalidConfigError: If an algorithm is unknown or contradicts the settings.
    """

    def __init__(
        self,
        args: Any,
        chosen: Algorithms | None,
        *,
        known: Mapping[str, Algorithm] = ALGORITHMS,
        has_critic: bool = False,
        may_fork: bool = False,
        n_items: int | None = None,
    ) -> None:
        if chosen is None:
            algorithms: Algorithms = algorithm_from_trl(args, has_critic=has_critic)
        else:
            _refuse_settings(args)
            algorithms = chosen
        self._schedule = _as_schedule(algorithms, known)
        # A mapping lists its algorithms. A function may return any, so it is called for each generation.
        numbers: Iterable[int] = range(_n_generations(args, n_items) if callable(algorithms) else 1)
        if isinstance(algorithms, Mapping):
            numbers = map(int, algorithms)
        kinds: dict[tuple[Any, ...], Algorithm] = {}
        self._controllers: dict[str, KLController] = {}
        for algorithm in map(self._schedule, numbers):
            kinds.setdefault(_kind(algorithm), algorithm)
            self._add_controller(algorithm)
        self._kinds = frozenset(kinds)
        self.known = list(kinds.values())
        """The distinct algorithms of the run."""
        self.names = list(dict.fromkeys(algorithm.name for algorithm in self.known))
        is_mixed = len({algorithm.dynamic_sampling for algorithm in self.known}) > 1
        if args.async_generations and (is_mixed or any(algorithm.branches for algorithm in self.known)):
            raise InvalidConfigError(
                f"async_generations={args.async_generations}: a generation that begins early has no branches, and "
                "filters groups before its algorithm is known: set branches=0, and dynamic_sampling in all or none."
            )
        self.algorithm = self._schedule(0)
        self.n_generations = 0
        """Training generations started so far."""
        _check(self.known, args, has_critic=has_critic, may_fork=may_fork or args.history == "template")

    def _add_controller(self, algorithm: Algorithm) -> None:
        """Make the controller of an algorithm whose coefficient is a schedule: one for each name."""
        if not callable(algorithm.kl_coef):
            return
        controller = self._controllers.setdefault(algorithm.name, KLController(algorithm.kl_coef))
        if controller.schedule is not algorithm.kl_coef:  # its state is saved by the algorithm's name
            raise InvalidConfigError(
                f"two schedules of the KL belong to algorithms called {algorithm.name!r}: give these different names, "
                "or use one schedule object for both."
            )

    @property
    def _controller(self) -> KLController | None:
        """The controller of the current algorithm's KL coefficient; None: the coefficient is a number."""
        return self._controllers[self.algorithm.name] if callable(self.algorithm.kl_coef) else None

    @property
    def coefficient(self) -> float:
        """The current KL coefficient."""
        coefficient = self.algorithm.kl_coef
        return self._controllers[self.algorithm.name].coefficient if callable(coefficient) else coefficient

    @property
    def has_kl(self) -> bool:
        """Whether any algorithm of the run uses a KL."""
        return any(algorithm.kl_coef for algorithm in self.known)

    @property
    def has_pairs(self) -> bool:
        """Whether any algorithm of the run learns from pairs."""
        return any(algorithm.pair_loss_fn is not None for algorithm in self.known)

    @property
    def is_steered(self) -> bool:
        """Whether any KL coefficient has a controller, which is given the measured KL."""
        return bool(self._controllers)

    def begin_generation(self, step: int, n_steps: int) -> None:
        """Switch to the algorithm of the next training generation.

        Args:
            step: Optimizer steps done.
            n_steps: Optimizer steps of the run.

        Raises:
            InvalidConfigError: If the schedule gives an algorithm that it did not give before training.
        """
        self.algorithm = self._schedule(self.n_generations)
        if _kind(self.algorithm) not in self._kinds:
            raise InvalidConfigError(
                f"generation {self.n_generations} has the algorithm {self.algorithm.name!r}, which the schedule did "
                f"not give when it was asked before training: it must depend only on the generation, and show all its "
                f"algorithms in the first {_MAX_GENERATIONS:,}."
            )
        self.n_generations += 1
        if self._controller is not None:
            self._controller.begin_generation(step, n_steps)

    def end_step(self, kl: float | None) -> dict[str, float]:
        """Record an optimizer step's mean KL per token; return the metrics to log."""
        if self._controller is not None:
            self._controller.end_step(kl)
        return {f"algorithm/{name}": float(name == self.algorithm.name) for name in self.names}

    def group_filter(self, chosen: GroupFilter | None) -> GroupFilter | None:
        """Return the group filter: the chosen one, plus the spread filter in generations with dynamic sampling."""
        if not any(algorithm.dynamic_sampling for algorithm in self.known):
            return chosen
        spread = create_spread_filter()

        # The collector keeps one filter for the run, so the filter looks up the current algorithm at each call.
        def keeps(group: TrajectoryGroup) -> bool:
            return (chosen is None or chosen(group)) and (not self.algorithm.dynamic_sampling or spread(group))

        return keeps

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, as JSON types."""
        return {
            "generations": self.n_generations,
            "learned_by": self.algorithm.name,
            "kl": {name: controller.state_dict() for name, controller in self._controllers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.n_generations = int(state["generations"])
        for name, saved in state["kl"].items():
            if name in self._controllers:
                self._controllers[name].load_state_dict(saved)
        if self.n_generations:  # the checkpoint may lie inside the latest generation
            self.algorithm = self._schedule(self.n_generations - 1)

    def name_at(self, state: Mapping[str, Any]) -> str:
        """Return the algorithm that this run would use for a saved state's latest generation, by name."""
        return self._schedule(max(int(state.get("generations", 1)) - 1, 0)).name


def with_settings(algorithm: Algorithm, settings: Mapping[str, Any] | str) -> Algorithm:
    """Return a copy of an algorithm with some fields replaced, from values that a command line or file can hold.

    Args:
        algorithm: The algorithm to copy.
        settings: A mapping, or a JSON object as text. `kl_fn` is a name in `KL_ESTIMATORS`; `kl_coef` is a number, or
            a schedule in the syntax of `parse_kl_schedule`.

    Raises:
        InvalidConfigError: If a field is unknown or a value is invalid.
    """
    try:
        fields = strict_json(settings) if isinstance(settings, str) else dict(settings)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidConfigError(f"algorithm_settings={settings!r}; it must be a JSON object: '{{\"kl_coef\": 0.04}}'.")
    for name, value in fields.items():
        if name not in _SETTINGS:
            raise InvalidConfigError(
                f"algorithm_settings has {name!r}; the fields are {', '.join(_SETTINGS)}."
                f"{did_you_mean(name, _SETTINGS)}"
            )
        kinds = _SETTINGS[name]
        # In Python, bool is a subclass of int, so `true` would pass as a number.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_JSON_NAMES[kind] for kind in kinds if kind is not int)
            raise InvalidConfigError(f"algorithm_settings has {name}={value!r}; it must be {wanted}.")
    if isinstance(fields.get("kl_coef"), str):
        fields["kl_coef"] = parse_kl_schedule(fields["kl_coef"])
    if "kl_fn" in fields:
        if fields["kl_fn"] not in KL_ESTIMATORS:
            known = ", ".join(KL_ESTIMATORS)
            raise InvalidConfigError(f"algorithm_settings has kl_fn={fields['kl_fn']!r}; known are {known}.")
        fields["kl_fn"] = KL_ESTIMATORS[fields["kl_fn"]]
    try:
        return replace(algorithm, **fields)
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(f"algorithm_settings: {error}") from error


def _as_schedule(algorithms: Any, known: Mapping[str, Algorithm]) -> Callable[[int], Algorithm]:
    if isinstance(algorithms, Mapping):
        try:
            return create_algorithm_schedule({int(at): as_algorithm(value, known) for at, value in algorithms.items()})
        except ValueError as error:
            raise InvalidConfigError(f"algorithm: {error}") from error
    if callable(algorithms):
        return lambda generation: as_algorithm(algorithms(generation), known)
    fixed = as_algorithm(algorithms, known)
    return lambda generation: fixed


def _n_generations(args: Any, n_items: int | None) -> int:
    """Return an upper bound on the run's number of generations."""
    per_epoch = (
        ((args.num_train_seeds or MANY) if n_items is None else n_items)
        * int(args.num_generations or 1)
        // int(args.generation_batch_size or 1)
    )
    n = math.ceil(args.num_train_epochs * per_epoch)
    if args.max_steps > 0:
        uses = int(args.steps_per_generation or 1) * args.num_iterations
        n = math.ceil(args.max_steps * args.gradient_accumulation_steps / uses)
    return min(n, _MAX_GENERATIONS)


def _refuse_settings(args: Any) -> None:
    """Reject TRL's settings of a loss beside an algorithm."""
    if changed := [f"{name}={getattr(args, name)!r}" for name in SET_BY_ALGORITHM if is_changed(args, name)]:
        raise InvalidConfigError(
            f"{', '.join(changed)}: the algorithm decides that. Leave it out and change the algorithm; to change one "
            "term of TRL's settings: dataclasses.replace(algorithm_from_trl(EnvGRPOConfig(beta=0.04)), kl_fn=k2)."
        )


def _check(known: Iterable[Algorithm], args: Any, *, has_critic: bool, may_fork: bool) -> None:
    """Reject algorithms that contradict the settings, before a model is loaded."""
    for algorithm in known:
        if has_critic and algorithm.advantage_fn is not None:
            raise InvalidConfigError(
                f"{algorithm.name!r} has an advantage_fn, and the critic makes PPO's advantages: take "
                "dataclasses.replace(PPO, ...), or EnvGRPOTrainer."
            )
        if not has_critic and algorithm.advantage_fn is None:
            raise InvalidConfigError(f"{algorithm.name!r} has no advantage_fn; only EnvPPOTrainer has a critic.")
        if has_critic and algorithm.pair_loss_fn is not None:
            raise InvalidConfigError(f"{algorithm.name!r} learns from pairs, which EnvPPOTrainer does not play.")
        if has_critic and algorithm.kl_in == "advantage" and algorithm.kl_coef:
            raise InvalidConfigError(
                f'{algorithm.name!r} has kl_in="advantage", and the critic makes PPO\'s advantages: take '
                'kl_in="reward", which its critic learns too, or EnvGRPOTrainer.'
            )
        weighs_rows = algorithm.normalisation not in ("token", "prompt") or algorithm.pair_loss_fn is not None
        if may_fork and weighs_rows:
            raise InvalidConfigError(
                f'{algorithm.name!r} weighs each row alike, and with history="template", a context function or an '
                "agent an episode may have several: take an algorithm that is normalised by tokens or by prompts."
            )
        n_roots(algorithm.branches, int(args.num_generations or 1))
        if algorithm.pair_loss_fn is not None:
            _check_geometry(args, algorithm.name)


def _check_geometry(args: Any, name: str) -> None:
    """Reject batch sizes that would put the two rows of a pair into different optimizer steps."""
    n_micro, n_accumulated = int(args.steps_per_generation or 1), args.gradient_accumulation_steps
    if n_accumulated % n_micro == 0:  # a generation lies in one step
        return
    rows = args.per_device_train_batch_size * n_accumulated
    if n_micro % n_accumulated or rows % int(args.num_generations or 1):
        raise InvalidConfigError(
            f"{name!r} learns from pairs, whose rows must be in one optimizer step: per_device_train_batch_size * "
            f"gradient_accumulation_steps = {rows} must be a multiple of num_generations={args.num_generations}, and "
            f"steps_per_generation={n_micro} one of gradient_accumulation_steps={n_accumulated}. Leave "
            "steps_per_generation out, or raise gradient_accumulation_steps."
        )


def _kind(algorithm: Algorithm) -> tuple[Any, ...]:
    """Return the properties that the checks depend on, so that each kind of algorithm is checked once."""
    return (
        algorithm.name,
        algorithm.normalisation,
        bool(algorithm.kl_coef),
        algorithm.kl_in,
        algorithm.advantage_fn is None,
        algorithm.pair_loss_fn is not None,
        algorithm.dynamic_sampling,
        algorithm.branches,
    )
