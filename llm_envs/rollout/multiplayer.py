"""Games of several seats: each seat's play is an episode, with its own rows, rewards and group.

1. The seats of a game are played concurrently, each by `play_episode`; the turn passes between them.
2. Consecutive groups of a source are the seats of the same games: member m of each plays game m. With one policy in
   all seats a game is played once, for whichever of its episodes comes first, and the others take theirs from it. An
   episode whose game has gone plays it again.
3. If one seat's episode fails, the episodes of all seats fail. If a limit ends one, all are truncated.
4. Games depend only on (run seed, environment, its arguments and seed, member, version of the weights).
5. When the last waiting episode of a game is cancelled, the game is cancelled too.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from llm_envs.chat.context import Codec, ContextFn
from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.problems import as_number
from llm_envs.rollout.episode import play_episode, policy_kind
from llm_envs.rollout.staleness import weight_version_of
from llm_envs.rollout.workers.pool import WorkerPool
from llm_envs.rollout.workers.runner import Env, EnvMaker, Step, check_reset, check_step, close_env
from llm_envs.sources.mixture import derive_seed
from llm_envs.sources.source import EnvFactory, EpisodeSpec, SeedSource
from llm_envs.types import RolloutError, Trajectory

__all__ = ["MultiplayerEnv", "PastVersions"]

_MAX_KEPT = 1024
"""Games that are kept for the episodes of their other seats."""


class MultiplayerEnv:
    """A game of several seats, where the collector, the trainers and `evaluate` take an environment.

    Args:
        env: An environment with seats (`llm_envs.env.SeatedEnv`): an id, or a function that makes one.
        opponent: Plays all seats but one: a policy, or `PastVersions`. None: the policy plays all seats (self-play),
            and every seat's episode is returned. A token policy needs an attribute `codec`.

    Raises:
        InvalidConfigError: If the environment has no seats, or the opponent is not a policy.
    """

    def __init__(self, env: str | EnvFactory, opponent: Policy | PastVersions | None = None) -> None:
        self._env, self.opponent = env, opponent
        self.env_id = SeedSource(env).choices[0].env_id
        made = self()
        n_seats = getattr(made.unwrapped, "n_seats", 1)
        made.close()
        if not isinstance(n_seats, int) or n_seats < 2:
            raise InvalidConfigError(
                f"MultiplayerEnv: {self.env_id} has n_seats={n_seats!r}; it must be a game of two seats or more "
                "(llm_envs.env.SeatedEnv). An environment of one seat is played as it is."
            )
        self.n_seats: int = n_seats
        if opponent is not None and not isinstance(opponent, PastVersions):
            policy_kind(opponent, getattr(opponent, "codec", None))
        self._games: dict[tuple[Any, ...], _Game] = {}

    def __call__(self, **kwargs: Any) -> Env:
        """Make the game's environment."""
        return self._maker(kwargs)()

    def check_play(
        self, policy: Policy, codec: Codec | None, context_fn: ContextFn | None, workers: WorkerPool | None
    ) -> None:
        """Check that a collector can play it.

        Raises:
            InvalidConfigError: If there are worker processes, or the policy needs a codec.
        """
        policy_kind(policy, codec, context_fn)
        if workers is not None:
            raise InvalidConfigError(
                f"{self.env_id}: games of several seats are played without workers: set workers=0."
            )

    async def play_episode(
        self,
        spec: EpisodeSpec,
        policy: Policy,
        *,
        codec: Codec | None = None,
        context_fn: ContextFn | None = None,
        workers: WorkerPool | None = None,
        **settings: Any,
    ) -> Trajectory:
        """Play the episode of `spec.seat`, by a game of all seats or from one that is played already.

        The arguments are the same as for `rollout.play_episode`.
        """
        self.check_play(policy, codec, context_fn, workers)
        played = await self._play_once(spec, policy, codec, {"context_fn": context_fn, **settings})
        return replace(played[spec.seat], group_id=spec.group_id)

    async def _play_once(
        self, spec: EpisodeSpec, policy: Policy, codec: Codec | None, settings: dict[str, Any]
    ) -> list[Trajectory]:
        """Return the episodes of all seats of a game; with an opponent, only the spec's seat can be trained."""
        version = weight_version_of(policy)
        problem = json.dumps([dict(spec.env_kwargs), spec.options], sort_keys=True, default=dict)
        key = (spec.seed, spec.member, version or 0, problem, settings.get("run_seed", 0))
        # All seats must play the same game, whichever of them begins it: so its seeds leave out their group ids.
        name = f"game-{derive_seed(*key[:4])}"
        if self.opponent is not None:
            other: Policy = self.opponent  # type: ignore[assignment]  # or `PastVersions`, next
            if isinstance(self.opponent, PastVersions):
                other = self.opponent.choose(policy, derive_seed(name, "opponent"))
            seats: list[tuple[Policy, Codec | None]] = [(other, getattr(other, "codec", codec))] * self.n_seats
            seats[spec.seat] = policy, codec
            return await self._play(spec, f"{name}-{spec.seat}", seats, settings)
        loop = asyncio.get_running_loop()
        game = self._games.get(key)
        if game is None or not game.has(spec.seat, loop):
            task = loop.create_task(self._play(spec, name, [(policy, codec)] * self.n_seats, settings))
            game = self._games[key] = _Game(task)
            done = [key for key, game in self._games.items() if game.task.done()]
            for old in done[: max(len(self._games) - _MAX_KEPT, 0)]:
                del self._games[old]
        game.taken.add(spec.seat)
        if len(game.taken) == self.n_seats:
            self._games.pop(key, None)
        return await game.played()

    async def _play(
        self,
        spec: EpisodeSpec,
        name: str,
        seats: list[tuple[Policy, Codec | None]],
        settings: dict[str, Any],
    ) -> list[Trajectory]:
        match = _Match(self._maker(spec.env_kwargs), spec, self.n_seats)
        episodes = [
            play_episode(
                _SeatRunner(match, seat), replace(spec, group_id=f"{name}/{seat}"), policy, codec=codec, **settings
            )
            for seat, (policy, codec) in enumerate(seats)
        ]
        try:
            played = await asyncio.gather(*episodes)
        finally:
            match.close()
        return [_finished(trajectory, seat, played) for seat, trajectory in enumerate(played)]

    def _maker(self, kwargs: Mapping[str, Any]) -> EnvMaker:
        return EnvMaker(self.env_id, kwargs, None if isinstance(self._env, str) else self._env)


class PastVersions:
    """A pool of past versions of the policy: for each game, one plays the other seats.

    It is empty at first, and in a resumed run; the policy then plays all seats. Seeds decide the version of each game.

    Args:
        every: Versions of the weights between two copies; trainers count optimizer steps.
        size: Most copies; the oldest is dropped.
        copy_fn: (policy) -> a copy of it that later training does not change. None: a copy of its attribute `model`,
            for the transformers policy; the present adapter, for vLLM's (`lora_sync="adapter"`).

    Raises:
        InvalidConfigError: If a number is below 1.
    """

    def __init__(self, every: int, *, size: int = 8, copy_fn: Callable[[Any], Policy] | None = None) -> None:
        if every < 1 or size < 1:
            raise InvalidConfigError(f"PastVersions: {every=}, {size=}; both must be at least 1.")
        self.every, self.size, self.copy_fn = every, size, copy_fn or _copy_of
        self.versions: dict[int, Policy] = {}
        """Version of the weights -> the copy."""

    def choose(self, policy: Policy, seed: int) -> Policy:
        """Return a past version, or the policy itself while the pool is empty; copy the policy if it is time.

        Raises:
            InvalidConfigError: If the policy has no versions, or cannot be copied.
        """
        version = weight_version_of(policy)
        if version is None:
            raise InvalidConfigError(f"PastVersions: {type(policy).__name__} has no weight_version to count.")
        if version >= max(self.versions, default=version - self.every) + self.every:
            self.versions[version] = self.copy_fn(policy)
            if len(self.versions) > self.size:
                del self.versions[min(self.versions)]
        past = sorted(each for each in self.versions if each < version)
        return self.versions[Random(seed).choice(past)] if past else policy


def _copy_of(policy: Any) -> Policy:
    if hasattr(policy, "with_adapter"):  # vLLM's, which keep the present adapter loaded
        past: Policy = policy.with_adapter()
        return past
    model, tokenizer = getattr(policy, "model", None), getattr(policy, "tokenizer", None)
    if model is None or tokenizer is None:
        raise InvalidConfigError(
            f"PastVersions: {type(policy).__name__} has no model to copy: give copy_fn=(policy) -> copy, such as one "
            "that saves a checkpoint and starts a policy on it."
        )
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    past = type(policy)(frozen, tokenizer, weight_version=policy.weight_version, prefix_cache_gib=0.0)
    return past


@dataclass(eq=False)
class _Game:
    """A game that is being played, or has been, and the seats whose episodes were asked for."""

    task: asyncio.Task[list[Trajectory]]
    taken: set[int] = field(default_factory=set)
    n_waiting: int = 0

    def has(self, seat: int, loop: asyncio.AbstractEventLoop) -> bool:
        return seat not in self.taken and self.task.get_loop() is loop and not self.task.cancelled()

    async def played(self) -> list[Trajectory]:
        self.n_waiting += 1
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.n_waiting == 1:
                self.task.cancel()
                with suppress(asyncio.CancelledError):
                    await self.task
            raise
        finally:
            self.n_waiting -= 1


class _Match:
    """Passes the turn of one game from seat to seat."""

    def __init__(self, make: EnvMaker, spec: EpisodeSpec, n_seats: int) -> None:
        self._make, self._spec = make, spec
        self._env: Env | None = None
        self._observation: str | None = None
        self._turns = [asyncio.Event() for _ in range(n_seats)]
        self._owed = [0.0] * n_seats
        """Rewards that a seat has not been given yet."""
        self._end: Step | None = None
        self._is_left = False

    def env(self) -> Env:
        if self._env is None:
            self._env = self._make()
        return self._env

    async def reset(self, seat: int) -> tuple[str, Mapping[str, Any]]:
        if self._observation is None:
            options = None if self._spec.options is None else dict(self._spec.options)
            observation, info = check_reset(self.env().reset(seed=self._spec.seed, options=options))
            self._pass_turn(observation, info)
        observation, reward, is_over, is_cut, _ = await self._wait(seat)
        if is_over or is_cut:
            raise _NoTurnError("the game was over before this seat's first turn.")
        self._owed[seat] += reward
        return observation, {}

    async def step(self, seat: int, action: str) -> Step:
        observation, _, terminated, truncated, info = step = check_step(self.env().step(action))
        for each, reward in enumerate(self._each(info, "rewards")):
            self._owed[each] += as_number(reward)
        if terminated or truncated:
            self._each(info, "observations")
            self._end = step
            self._wake_all()
        else:
            self._pass_turn(observation, info)
        return await self._wait(seat)

    def leave(self) -> None:
        """End the game for all seats, since one has ended its episode."""
        if self._end is None:
            self._is_left = True
            self._wake_all()

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            close_env(env)

    async def _wait(self, seat: int) -> Step:
        """Wait for a seat's next turn, or the end; return what a step gives it."""
        await self._turns[seat].wait()
        reward, self._owed[seat] = self._owed[seat], 0.0
        if self._end is not None:
            _, _, terminated, truncated, info = self._end
            success = {"is_success": info["is_success"][seat]} if "is_success" in info else {}
            return info["observations"][seat], reward, terminated, truncated, success
        if self._is_left:
            return "", reward, False, True, {}
        self._turns[seat].clear()
        assert self._observation is not None
        return self._observation, reward, False, False, {}

    def _pass_turn(self, observation: str, info: Mapping[str, Any]) -> None:
        seat = info.get("seat")
        if not isinstance(seat, int) or not 0 <= seat < len(self._turns):
            raise EnvContractError(f'info["seat"] is {seat!r:.80}; it must be from 0 to {len(self._turns) - 1}.')
        self._observation = observation
        self._turns[seat].set()

    def _wake_all(self) -> None:
        for turn in self._turns:
            turn.set()

    def _each(self, info: Mapping[str, Any], name: str) -> Any:
        values = info.get(name)
        if not isinstance(values, list | tuple) or len(values) != len(self._turns):
            raise EnvContractError(f'info["{name}"] is {values!r:.80}; it must have a value for each seat.')
        return values


class _NoTurnError(Exception):
    """A seat has no turn in its game."""


@dataclass(eq=False)
class _SeatRunner:
    """One seat of a match as a `Runner`: a step returns when it is the seat's turn again."""

    match: _Match
    seat: int

    async def open(self) -> Env:
        return self.match.env()

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        return await self.match.reset(self.seat)

    async def step(self, action: str) -> Step:
        return await self.match.step(self.seat, action)

    def close(self) -> None:
        self.match.leave()


def _finished(trajectory: Trajectory, seat: int, played: list[Trajectory]) -> Trajectory:
    """Return a seat's episode with its seat, and the status that the episodes of all seats give it."""
    metadata = {**trajectory.metadata, "seat": seat}
    errors = [(number, each.error) for number, each in enumerate(played) if each.error is not None]
    real = [(number, error) for number, error in errors if error.kind != _NoTurnError.__name__]
    if real and trajectory.status == "ok":
        number, error = real[0]
        error = RolloutError(error.kind, f"seat {number}: {error.message}", error.where)
        return replace(trajectory, status="errored", is_success=None, error=error, metadata=metadata)
    if errors and not real and trajectory.error is not None:
        metadata["unscored_because"] = trajectory.error.message
        return replace(trajectory, status="unscored", error=None, metadata=metadata)
    return replace(trajectory, metadata=metadata)
