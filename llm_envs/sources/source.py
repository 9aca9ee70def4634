"""Sources decide which episodes are played: index -> (environment, arguments, seed, problem), deterministically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError
from llm_envs.sources.mixture import Schedule, derive_seed, is_weight

if TYPE_CHECKING:
    from llm_envs.sources.curriculum import Curriculum
    from llm_envs.types import Trajectory

__all__ = [
    "EnvChoice",
    "EnvFactory",
    "Envs",
    "EpisodeSpec",
    "SeedSource",
    "as_source",
    "fingerprint_of",
    "group_specs",
]

EnvFactory = Callable[..., gym.Env[str, str]]
"""Called with the environment's keyword arguments, instead of `gymnasium.make`."""


@dataclass(frozen=True, slots=True)
class EnvChoice:
    """One environment of a mixture."""

    env_id: str
    weight: float = 1.0
    """Share of the groups, relative to the others' weights."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `gymnasium.make`; they override those common to the mixture."""
    factory: EnvFactory | None = None
    """Makes the environment instead of `gymnasium.make`; the id is then only its name."""
    problems: Sequence[Mapping[str, Any]] | None = None
    """Problems to play, each once per epoch, by `env.reset(options={"problem": ...})`; None: the seed decides."""

    @property
    def n_seats(self) -> int:
        """Number of seats: so many consecutive items are the seats of one game (`MultiplayerEnv`)."""
        return getattr(self.factory, "n_seats", 1)

    def __post_init__(self) -> None:
        if not is_weight(self.weight):
            raise InvalidConfigError(f"{self.env_id}: the weight is {self.weight!r}; it must be above 0, and finite.")
        if self.problems is not None and len(self.problems) == 0:
            raise InvalidConfigError(f"{self.env_id}: problems is empty; give at least one, or None.")


Envs = str | EnvFactory | EnvChoice | Mapping[str, float] | Sequence[str | tuple[str, float] | EnvChoice]
"""One environment id, a factory, `{id: weight}`, or a sequence of ids, (id, weight) and `EnvChoice`."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Everything that decides one episode, except the policy."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    """Seed of `env.reset`; the same for every member of a group."""
    group_id: str = "0"
    member: int = 0
    """Index in the group, from 0."""
    options: Mapping[str, Any] | None = None
    """Options of `env.reset`, such as a given problem."""
    seat: int = 0
    """Which seat's episode it is, in a game of several seats (`MultiplayerEnv`)."""
    fork: tuple[Trajectory, int] | None = None
    """A stored episode and the index of its first turn that is played anew; None: the episode begins at its reset."""

    def __post_init__(self) -> None:
        """Check that the episode can be recorded: its arguments and options are stored as JSON."""
        for name, value in (("env_kwargs", self.env_kwargs), ("options", self.options)):
            if not value:
                continue
            try:
                json.dumps(dict(value), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise InvalidConfigError(
                    f"{self.env_id}: {name} {value!r:.200} must be JSON types, because every episode is recorded with "
                    f"them ({error}). Pass names or numbers, or a factory that closes over the object."
                ) from error


def group_specs(spec: EpisodeSpec, group_size: int) -> tuple[EpisodeSpec, ...]:
    """Return the members of a group: `spec` with the members 0, 1, ..., group_size − 1."""
    if group_size < 1:
        raise InvalidConfigError(f"group_size is {group_size!r}; it must be at least 1.")
    return tuple(replace(spec, member=member) for member in range(group_size))


class SeedSource:
    """An endless, deterministic sequence of groups to play.

    Item `index` depends on (seed, index), the mixture and, with a curriculum, on its state. Every rank and every
    resumed run gets the same item.

    Args:
        envs: One environment id, a factory, or a weighted mixture (see `Envs`).
        seed: Run seed.
        env_kwargs: Keyword arguments common to all environments.
        n_seeds: Number of seeds of each environment, each played once per epoch; None: an endless stream of new seeds.
        shuffle: Whether each epoch has its own order.
        curriculum: Chooses keyword arguments of each episode, by success; in a mixture `{env_id: Curriculum}`.

    Raises:
        InvalidConfigError: If a setting is wrong, or the curriculum chooses an argument that is already given.
    """

    def __init__(
        self,
        envs: Envs,
        *,
        seed: int = 0,
        env_kwargs: Mapping[str, Any] | None = None,
        n_seeds: int | None = None,
        shuffle: bool = True,
        curriculum: Curriculum | Mapping[str, Curriculum] | None = None,
    ) -> None:
        self.choices = tuple(replace(c, kwargs={**(env_kwargs or {}), **c.kwargs}) for c in _parse(envs))
        if not self.choices:
            raise InvalidConfigError("no environments given: pass an id, {id: weight} or a sequence of ids.")
        self.factories = {c.env_id: c.factory for c in self.choices if c.factory is not None}
        if any(choice.factory is not self.factories.get(choice.env_id) for choice in self.choices):
            ids = [choice.env_id for choice in self.choices]
            raise InvalidConfigError(f"two environments of a mixture have the same name: {ids}.")
        if n_seeds is not None and n_seeds < 1:
            raise InvalidConfigError(f"n_seeds is {n_seeds!r}; it must be at least 1, or None.")
        self.seed, self.n_seeds, self.shuffle = seed, n_seeds, shuffle
        self.position = 0
        """Index of the next group."""
        self.curricula = _curricula(curriculum, self.choices)
        lengths = [n_seeds if c.problems is None else len(c.problems) * c.n_seats for c in self.choices]
        self._schedule = Schedule(seed, [choice.weight for choice in self.choices], lengths, shuffle=shuffle)
        self._fingerprints: list[str | None] | None = None

    @property
    def epoch(self) -> int:
        """Number of completed epochs over everything; 0 if something is endless."""
        return min(self._schedule.epochs(self.position))

    def spec(self, index: int) -> EpisodeSpec:
        """Return group `index`, as the spec of its member 0."""
        return self._spec(index, self._choosers())

    def take(self, n: int) -> Iterator[EpisodeSpec]:
        """Advance by `n` groups at once, and return them one by one, each computed when it is asked for.

        All get the levels of the curriculum's present state, even if it learns before they are asked for.
        """
        # The position moves before the groups are played, and the shares of the levels are read now: so a state that is
        # saved in between, and an update in between, do not change these groups.
        start, self.position = self.position, self.position + n
        choosers = self._choosers()
        return (self._spec(index, choosers) for index in range(start, start + n))

    def variants(self) -> Iterator[EpisodeSpec]:
        """Yield every environment with every set of keyword arguments that may be played, for checks in advance."""
        for choice in self.choices:
            curriculum = self.curricula.get(choice.env_id)
            for kwargs in [{}] if curriculum is None else curriculum.levels.values():
                yield EpisodeSpec(choice.env_id, {**choice.kwargs, **kwargs})

    def update(self, trajectories: Iterable[Trajectory]) -> None:
        """Update the curricula with training episodes; without a curriculum nothing happens."""
        if not self.curricula:
            return
        listed = list(trajectories)
        for env_id, curriculum in self.curricula.items():
            curriculum.update(trajectory for trajectory in listed if trajectory.env_id == env_id)

    def state_dict(self) -> dict[str, Any]:
        """Return the source's position, as JSON types."""
        mixture = [[choice.env_id, choice.weight, dict(choice.kwargs)] for choice in self.choices]
        state: dict[str, Any] = {"seed": self.seed, "position": self.position, "mixture": mixture}
        if self._fingerprints is None:
            self._fingerprints = [None if c.problems is None else fingerprint_of(c.problems) for c in self.choices]
        state |= {"n_seeds": self.n_seeds, "shuffle": self.shuffle, "problems": self._fingerprints}
        return state | {"curricula": {env_id: c.state_dict() for env_id, c in self.curricula.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; another seed, mixture or set of problems is refused."""
        own = self.state_dict()
        # States of earlier versions lack these keys; those versions had only these values.
        earlier: dict[str, Any] = {"n_seeds": None, "shuffle": True, "problems": [None] * len(self.choices)}
        saved = {**earlier, "curricula": {}, **state}
        for name in ("seed", "mixture", "n_seeds", "shuffle", "problems"):
            if saved[name] != own[name]:
                raise InvalidConfigError(f"the saved source has {name} {saved[name]!r}, this one has {own[name]!r}.")
        if saved["curricula"].keys() != own["curricula"].keys():
            raise InvalidConfigError(
                f"the saved source has curricula for {list(saved['curricula'])}, this one for {list(own['curricula'])}."
            )
        for env_id, curriculum in self.curricula.items():
            curriculum.load_state_dict(saved["curricula"][env_id])
        self.position = saved["position"]

    def _choosers(self) -> dict[str, Callable[[int], Mapping[str, Any]]]:
        return {env_id: _chosen_kwargs(curriculum) for env_id, curriculum in self.curricula.items()}

    def _spec(self, index: int, choosers: Mapping[str, Callable[[int], Mapping[str, Any]]]) -> EpisodeSpec:
        # In an endless part the item is the index, so each group has a new seed. With `n_seeds`, epochs repeat seeds.
        part, item, _ = self._schedule.at(index)
        choice = self.choices[part]
        chooser = choosers.get(choice.env_id)
        game, seat = divmod(item, choice.n_seats)
        return EpisodeSpec(
            choice.env_id,
            choice.kwargs if chooser is None else {**choice.kwargs, **chooser(index)},
            derive_seed(self.seed, "reset", game),
            f"{self.seed}-{index:06d}",
            options=None if choice.problems is None else {"problem": choice.problems[game]},
            seat=seat,
        )


def as_source(envs: Envs | SeedSource, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> SeedSource:
    """Return a ready-made source unchanged, or make one from environments.

    Raises:
        InvalidConfigError: If a ready-made source is given with keyword arguments: it has its own.
    """
    if not isinstance(envs, SeedSource):
        return SeedSource(envs, seed=seed, env_kwargs=env_kwargs)
    if env_kwargs:
        raise InvalidConfigError(f"a source has its own keyword arguments: pass {dict(env_kwargs)!r} to it instead.")
    return envs


def fingerprint_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a hash of the rows' content, in order. `Prompts` already has it."""
    known = getattr(rows, "fingerprint", None)
    if isinstance(known, str):
        return known
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(json.dumps(dict(row), sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _chosen_kwargs(curriculum: Curriculum) -> Callable[[int], Mapping[str, Any]]:
    chooser, levels = curriculum.chooser(), curriculum.levels
    return lambda index: levels[chooser(index)]


def _curricula(
    given: Curriculum | Mapping[str, Curriculum] | None, choices: Sequence[EnvChoice]
) -> dict[str, Curriculum]:
    if given is None:
        return {}
    ids = list(dict.fromkeys(choice.env_id for choice in choices))
    if not isinstance(given, Mapping):
        if len(ids) > 1:
            raise InvalidConfigError(f"a mixture of {ids}: give the curriculum as {{env_id: Curriculum}}.")
        given = {ids[0]: given}
    for env_id in given:
        if env_id not in ids:
            raise InvalidConfigError(f"a curriculum for {env_id!r}, which is not played; the environments are {ids}.")
    for choice in choices:
        if choice.env_id not in given:
            continue
        taken = {key for kwargs in given[choice.env_id].levels.values() for key in kwargs} & choice.kwargs.keys()
        if taken:
            raise InvalidConfigError(f"{choice.env_id}: {sorted(taken)} are given, but the curriculum chooses them.")
        if choice.problems is not None:
            raise InvalidConfigError(f"{choice.env_id}: its problems are given, so a curriculum has nothing to choose.")
    return dict(given)


def _parse(envs: Envs) -> list[EnvChoice]:
    if isinstance(envs, Mapping):
        return [EnvChoice(env_id, weight) for env_id, weight in envs.items()]
    if isinstance(envs, (list, tuple)):
        return [_choice(item) for item in envs]
    return [_choice(envs)]


def _choice(item: Any) -> EnvChoice:
    if isinstance(item, EnvChoice):
        return item
    if isinstance(item, str):
        return EnvChoice(item)
    if isinstance(item, tuple) and len(item) == 2:
        return EnvChoice(item[0], item[1])
    if callable(item):
        name = getattr(item, "env_id", None)  # a factory such as `PromptTask` may have one
        own = str(getattr(item, "__qualname__", type(item).__name__))
        return EnvChoice(name if isinstance(name, str) else own, factory=item)
    raise InvalidConfigError(f"{item!r} is not an environment: give an id, (id, weight), an EnvChoice or a factory.")
