"""Which episodes are played: a deterministic map from an index to (environment, arguments, seed)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError

__all__ = ["EnvChoice", "EnvFactory", "Envs", "EpisodeSpec", "SeedSource", "derive_seed", "group_specs"]

EnvFactory = Callable[..., gym.Env[str, str]]
"""Called with the environment's keyword arguments, as `gymnasium.make` would be."""

# A double holds 53 bits exactly, so a seed survives JSON readers of every language.
_SEED_BITS = 53


def derive_seed(*parts: int | str) -> int:
    """Hash the parts to a seed of 53 bits: unrelated for any two different tuples, equal on every machine."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


@dataclass(frozen=True, slots=True)
class EnvChoice:
    """One environment of a mixture."""

    env_id: str
    weight: float = 1.0
    """Share of the groups, relative to the others' weights."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `gymnasium.make`, over those common to the mixture."""
    factory: EnvFactory | None = None
    """Makes the environment instead of `gymnasium.make`; the id is then only its name."""

    def __post_init__(self) -> None:
        """Check the weight."""
        if not self.weight > 0:
            raise InvalidConfigError(f"{self.env_id}: the weight is {self.weight!r}; it must be above 0.")


Envs = str | EnvFactory | EnvChoice | Mapping[str, float] | Sequence[str | tuple[str, float] | EnvChoice]
"""One environment id, a factory, `{id: weight}`, or a sequence of ids, (id, weight) and `EnvChoice`."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """All that decides one episode, besides the policy."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    """Seed of `env.reset`; the same for every member of a group."""
    group_id: str = "0"
    member: int = 0
    """Index in the group, from 0."""
    options: Mapping[str, Any] | None = None
    """Options of `env.reset`, such as a given problem."""

    def __post_init__(self) -> None:
        """Check that the episode can be recorded: arguments and options are kept with it as JSON."""
        for name, value in (("env_kwargs", self.env_kwargs), ("options", self.options)):
            if not value:
                continue
            try:
                json.dumps(dict(value), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise InvalidConfigError(
                    f"{self.env_id}: {name} {value!r:.200} must be JSON types, since every episode is recorded with "
                    f"them ({error}). Pass names or numbers, or a factory that closes over the object."
                ) from error


def group_specs(spec: EpisodeSpec, group_size: int) -> tuple[EpisodeSpec, ...]:
    """Return the members of a group: `spec` with the members 0, 1, ..., group_size − 1."""
    if group_size < 1:
        raise InvalidConfigError(f"group_size is {group_size!r}; it must be at least 1.")
    return tuple(replace(spec, member=member) for member in range(group_size))


class SeedSource:
    """An endless, deterministic sequence of groups to play.

    Item `index` depends on (seed, index) and the mixture alone: any rank and any resumed run gets the same one.

    Args:
        envs: One environment id, a factory, or a weighted mixture (see `Envs`).
        seed: Run seed.
        env_kwargs: Keyword arguments common to all environments.
    """

    def __init__(self, envs: Envs, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> None:
        self.choices = tuple(replace(c, kwargs={**(env_kwargs or {}), **c.kwargs}) for c in _parse(envs))
        if not self.choices:
            raise InvalidConfigError("no environments given: pass an id, {id: weight} or a sequence of ids.")
        ids = [choice.env_id for choice in self.choices]
        self.factories = {c.env_id: c.factory for c in self.choices if c.factory is not None}
        if any(ids.count(env_id) > 1 for env_id in self.factories):
            raise InvalidConfigError(f"two environments of a mixture share a factory's name: {ids}.")
        self.seed = seed
        self.position = 0
        """Index of the next group."""
        self._cumulative = list(accumulate(choice.weight for choice in self.choices))

    def spec(self, index: int) -> EpisodeSpec:
        """Return group `index`, as the spec of its member 0."""
        place = derive_seed(self.seed, "env", index) / 2**_SEED_BITS * self._cumulative[-1]
        bounds = zip(self.choices, self._cumulative, strict=True)
        choice = next((c for c, bound in bounds if place < bound), self.choices[-1])
        return EpisodeSpec(
            choice.env_id, choice.kwargs, derive_seed(self.seed, "reset", index), f"{self.seed}-{index:06d}"
        )

    def take(self, n: int) -> Iterator[EpisodeSpec]:
        """Move past the next `n` groups at once, and return them one by one, each worked out when it is asked for."""
        start, self.position = self.position, self.position + n
        return (self.spec(index) for index in range(start, start + n))

    def state_dict(self) -> dict[str, Any]:
        """Return where the source stands, as JSON types."""
        mixture = [[choice.env_id, choice.weight, dict(choice.kwargs)] for choice in self.choices]
        return {"seed": self.seed, "position": self.position, "mixture": mixture}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken; another seed or mixture is refused."""
        own = self.state_dict()
        for name in ("seed", "mixture"):
            if state[name] != own[name]:
                raise InvalidConfigError(f"the saved source has {name} {state[name]!r}, this one has {own[name]!r}.")
        self.position = state["position"]


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
        return EnvChoice(getattr(item, "__qualname__", type(item).__name__), factory=item)
    raise InvalidConfigError(f"{item!r} is no environment: give an id, (id, weight), an EnvChoice or a factory.")
