"""A collector whose episodes are played by Ray actors, on one machine or on a cluster.

Each actor has an ordinary `Collector` with the policy and the environments; it plays the episodes that this process
sends it. All else is here: which episodes are played, groups, filters, retries, and writing.

Invariants:

1. A trajectory depends on its episode's spec and on the settings, not on the actor. So the same seeds give the same
   trajectories as without Ray.
2. An actor has at most `max_concurrency` episodes. A new episode is begun only when an earlier one was received here,
   so a slow writer slows the actors down.
3. An actor that is lost, perhaps with its node, loses no episode: those that it had not returned are played by others
   under the same seeds, and nothing more is accepted from it. Another one is started in its place, as soon as the
   cluster has room.
4. An episode that has lost `ALONE_AFTER` actors has the next one to itself, and fails after `MOST_LOSSES`. So one that
   kills its process takes no other with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any, cast

from llm_envs.chat.context import Codec
from llm_envs.errors import InvalidConfigError, MissingExtraError, WorkerDiedError
from llm_envs.policies.base import Policy
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.episode import errored_trajectory
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.rollout.sync import BackgroundLoop
from llm_envs.rollout.workers.remote import CONNECT_S, split_address
from llm_envs.sources.source import Envs, EpisodeSpec, SeedSource
from llm_envs.types import Trajectory

__all__ = ["MakePlayer", "RayCollector"]

_LOG = logging.getLogger(__name__)

MakePlayer = Callable[[], "tuple[Policy, Codec | None] | AbstractContextManager[tuple[Policy, Codec | None]]"]
"""Returns an actor's policy and its codec (None for a policy that reads text), or a context manager that does."""

MOST_LOSSES = 5
"""How many actors an episode may lose before it fails: it may be the one that kills them."""
ALONE_AFTER = 2
"""After how many losses an episode has an actor to itself, so that it takes no others along."""
_AGAIN_S = 0.5
_IMPATIENT_S = 30.0
"""After how many seconds without any actor a warning names what is missing."""


class RayCollector(Collector):
    """Has the methods of `Collector`. Usable as a context manager, which ends the actors.

    Args:
        envs: As for `Collector`. Factories are pickled.
        make_player: Is called once in each actor, so an engine runs there.
        n_actors: Number of actors, for each kind of `labels`. None: as many as the cluster has room for now.
        address: Address of the cluster. None: the one that is connected or can be found here, else a new one on this
            machine.
        actor_options: Ray's options of an actor, such as `{"num_gpus": 1}`; by default it has one processor.
        labels: Environment id -> labels that a node must have to play it, such as `{"llm/Search-v0": {"disk": "ssd"}}`
            (Ray's `label_selector`).
        max_concurrency: Episodes at once on each actor.
        workers: As for `Collector`, for each actor.
        env_servers: As for `Collector`, for each actor.
        **collector: Other arguments of `Collector`.

    Raises:
        InvalidConfigError: If a setting is wrong, or the cluster cannot be reached.
        MissingExtraError: If Ray is not installed.
        Exception: Any error from making the player or an environment in an actor.
    """

    def __init__(
        self,
        envs: Envs | SeedSource,
        make_player: MakePlayer,
        *,
        n_actors: int | None = None,
        address: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
        labels: Mapping[str, Mapping[str, str]] | None = None,
        max_concurrency: int = 64,
        workers: int = 0,
        env_servers: Sequence[str] = (),
        **collector: Any,
    ) -> None:
        if not isinstance(max_concurrency, int) or max_concurrency < 1 or (n_actors is not None and n_actors < 1):
            raise InvalidConfigError(f"RayCollector: {max_concurrency=}, {n_actors=}: whole numbers of at least 1.")
        if collector.get("over_sampling", 1.0) > 1:
            raise InvalidConfigError(
                "RayCollector: over_sampling keeps unfinished episodes in this process; leave it out, or use Collector."
            )
        if collector.pop("codec", None) is not None:
            raise InvalidConfigError("RayCollector: make_player returns the codec; leave out codec=.")
        played = {name: collector[name] for name in _OF_ACTORS if name in collector}
        kept = {name: value for name, value in collector.items() if name not in ("history", "context_fn")}
        options = {"num_cpus": 1} | dict(actor_options or {})
        self._stack = ExitStack()
        try:
            ray = self._stack.enter_context(_Connection(address)).ray
            n_actors = n_actors or _room(ray, options)
            selectors = {json.dumps(dict(chosen), sort_keys=True): dict(chosen) for chosen in (labels or {}).values()}
            super().__init__(
                envs,
                cast("Policy", _Elsewhere()),
                max_concurrency=n_actors * max_concurrency * (1 + len(selectors)),
                **kept,
            )
            arguments = envs, make_player, played | {"workers": workers, "env_servers": tuple(env_servers)}
            self._background = BackgroundLoop()
            self._stack.callback(self._background.close)
            # Those with labels begin first: the others would take their places.
            others: list[dict[str, str]] = (
                [{}] if {choice.env_id for choice in self.source.choices} - set(labels or {}) else []
            )
            self._crews = {
                json.dumps(chosen, sort_keys=True): _Crew(
                    ray, options | ({"label_selector": chosen} if chosen else {}), arguments, n_actors, max_concurrency
                )
                for chosen in [*selectors.values(), *others]
            }
            self._kind_of = {
                env_id: json.dumps(dict(chosen), sort_keys=True) for env_id, chosen in (labels or {}).items()
            }
            # An actor with an environment that cannot be made, or a model that cannot be loaded, is reported here.
            for crew in self._crews.values():
                self._background.start(crew.run)
                self.policy_name = self._background.start(crew.name).result()
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """End the actors. The collector cannot be used afterwards."""
        super().close()
        self._stack.close()

    def _check_envs(self) -> None:
        """Check nothing: the actors do, where the environments will run."""

    async def _play(self, spec: EpisodeSpec, gate: PauseGate | None = None) -> Trajectory:
        crew = self._crews[self._kind_of.get(spec.env_id, "{}")]
        return await asyncio.wrap_future(self._background.start(partial(crew.play, spec)))


_OF_ACTORS = ("env_kwargs", "sampling", "limits", "history", "context_fn", "seed")
"""The arguments of `Collector` that decide what an episode is."""


class _Elsewhere:
    """Stands where a collector has its policy."""

    async def reply(self, *arguments: Any) -> str:
        raise InvalidConfigError("RayCollector has its policy in the actors.")


class _LostError(Exception):
    """The actor that played an episode is gone."""


class _Connection:
    """A connection to a cluster; ends on leaving if it was made here."""

    def __init__(self, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("RayCollector needs Ray; install it with: pip install 'llm-envs[ray]'") from error
        self.ray: Any = ray
        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            return
        if address is not None and ":" in address and "://" not in address:
            try:  # Ray tries for minutes
                socket.create_connection(split_address(address), timeout=CONNECT_S).close()
            except OSError as error:
                raise InvalidConfigError(f"no Ray cluster answers at {address!r}: {error}") from error
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        try:
            ray.init(address=address or "auto", **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            if address is not None:
                raise InvalidConfigError(f"no Ray cluster answers at {address!r}: {error!s:.300}") from error
            ray.init(address="local", include_dashboard=False, **options)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_ours:
            self.ray.shutdown()


def _room(ray: Any, options: Mapping[str, Any]) -> int:
    """Return how many actors with these options the cluster has processors and GPUs for."""
    resources = ray.cluster_resources()
    needs = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0), **(options.get("resources") or {})}
    return max(1, int(min(resources.get(name, 0.0) / need for name, need in needs.items() if need)))


class _Crew:
    """Actors of one kind and their episodes. All coroutines run in one event loop."""

    def __init__(
        self, ray: Any, options: Mapping[str, Any], arguments: tuple[Any, ...], n_actors: int, n_episodes: int
    ) -> None:
        self._ray, self._arguments, self._n_actors, self._most = ray, arguments, n_actors, n_episodes
        # Ray itself restarts nothing: a new actor is one that `start` was called on.
        self._options = dict(options) | {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1_000}
        self._seats: list[_Seat] = []
        self._waiting: deque[tuple[asyncio.Future[_Seat], int]] = deque()
        self._named: asyncio.Future[str] | None = None
        self._n_played = 0

    async def run(self) -> None:
        """Keep the actors running until cancelled."""
        self._named = self._named or asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._n_actors):
                    tasks.create_task(self._keep_one())
        except* Exception as errors:
            self._fail(errors.exceptions[0])

    async def name(self) -> str:
        """Wait for the first actor; return the name of its policy's class."""
        self._named = self._named or asyncio.get_running_loop().create_future()
        while not self._named.done():
            await asyncio.wait([self._named], timeout=_IMPATIENT_S)
            if not self._named.done():
                has = {name: n for name, n in self._ray.available_resources().items() if not name.startswith("node:")}
                _LOG.warning(
                    "no actor has started yet; each needs %s, the cluster has %s free.",
                    {k: v for k, v in self._options.items() if not k.startswith("max_")},
                    has,
                )
        return self._named.result()

    async def play(self, spec: EpisodeSpec) -> Trajectory:
        """Play an episode on the actor that has the fewest; on another one if that is lost."""
        why = ""
        for n_losses in range(MOST_LOSSES):
            places = self._most if n_losses >= ALONE_AFTER else 1
            seat = await self._seat(places)
            self._n_played += 1
            try:
                return await seat.play(self._n_played, spec, places)
            except _LostError as error:
                why = str(error)
        lost = WorkerDiedError(f"{MOST_LOSSES} actors were lost while they played this episode, the last: {why}")
        return errored_trajectory(spec, lost, "env")

    async def _seat(self, places: int) -> _Seat:
        """Wait for an actor with as many free places, and take them; first come, first served."""
        if self._named is not None and self._named.done() and (failure := self._named.exception()) is not None:
            raise failure
        future: asyncio.Future[_Seat] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, places))
        self._fill()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._leave(future.result(), places)  # it got its places just before
            raise

    def _leave(self, seat: _Seat, places: int) -> None:
        seat.n_taken -= places
        self._fill()

    def _fill(self) -> None:
        """Give places to those who wait, on the actors with the fewest episodes."""
        while self._waiting:
            future, places = self._waiting[0]
            if not future.done():
                seat = min(self._seats, key=lambda seat: seat.n_taken, default=None)
                if seat is None or seat.n_taken + places > self._most:
                    return
                seat.n_taken += places
                future.set_result(seat)
            self._waiting.popleft()

    def _fail(self, error: BaseException) -> None:
        for future in (self._named, *(future for future, _ in self._waiting)):
            if future is not None and not future.done():
                future.set_exception(error)
        self._named = asyncio.get_running_loop().create_future()
        self._named.set_exception(error)
        self._named.exception()  # it may be that nobody asks
        for seat in list(self._seats):
            seat.lose(error)

    async def _keep_one(self) -> None:
        """Run an actor, and another one when it is lost."""
        ray = self._ray
        kind = ray.remote(_Actor)
        while True:
            actor = kind.options(**self._options).remote()
            seat = _Seat(actor, self._leave)
            try:
                name = await actor.start.remote(*self._arguments)
                if self._named is not None and not self._named.done():
                    self._named.set_result(name)
                self._seats.append(seat)
                self._fill()
                while True:
                    seat.receive(await actor.finished.remote())
            except ray.exceptions.RayTaskError as error:
                raise (error.cause or error) from None  # ours: the user's code is at fault, and would be again
            except ray.exceptions.RayError as error:
                _LOG.warning("an actor was lost; its %d episodes are played again: %.200s", seat.n_open, error)
                why = _LostError(f"{type(error).__name__}: {error!s:.200}")
            finally:
                if seat in self._seats:
                    self._seats.remove(seat)
                ray.kill(actor)
            seat.lose(why)
            await asyncio.sleep(_AGAIN_S)


class _Seat:
    """One actor and its episodes, seen from here."""

    def __init__(self, actor: Any, leave: Callable[[_Seat, int], None]) -> None:
        self.n_taken = 0
        """Places taken by its episodes."""
        self._actor, self._leave = actor, leave
        self._open: dict[int, asyncio.Future[Trajectory]] = {}
        self._unsent: list[tuple[int, EpisodeSpec]] = []

    @property
    def n_open(self) -> int:
        """Number of its episodes."""
        return len(self._open)

    async def play(self, number: int, spec: EpisodeSpec, places: int) -> Trajectory:
        """Play an episode there, on places that were taken for it.

        Raises:
            _LostError: If the actor is lost.
        """
        loop = asyncio.get_running_loop()
        future = self._open[number] = loop.create_future()
        if not self._unsent:  # all that begin now go in one message
            loop.call_soon(self._send)
        self._unsent.append((number, spec))
        try:
            return await future
        except asyncio.CancelledError:
            with suppress(Exception):
                self._actor.cancel.remote(number)
            raise
        finally:
            self._open.pop(number, None)
            self._leave(self, places)

    def receive(self, results: Sequence[tuple[int, Trajectory | BaseException]]) -> None:
        """Hand out what the actor has finished."""
        for number, result in results:
            future = self._open.get(number)
            if future is None or future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def lose(self, error: BaseException) -> None:
        """End all open episodes with this error."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        with suppress(Exception):  # if the actor is gone, `finished` raises
            self._actor.play.remote(unsent)


class _Actor:
    """The ordinary collector in an actor: plays what it is sent, and returns what is finished."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._collector: Collector | None = None
        self._finished: list[tuple[int, Trajectory | BaseException]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    async def start(self, envs: Any, make_player: MakePlayer, settings: Mapping[str, Any]) -> str:
        """Make the player and the collector; return the name of the policy's class."""
        made = make_player()
        policy, codec = self._stack.enter_context(made) if isinstance(made, AbstractContextManager) else made
        self._collector = Collector(envs, policy, codec=codec, progress=False, **settings)
        return type(policy).__name__

    async def play(self, episodes: Sequence[tuple[int, EpisodeSpec]]) -> None:
        """Begin these episodes."""
        for number, spec in episodes:
            self._tasks[number] = asyncio.create_task(self._play(number, spec))

    async def cancel(self, number: int) -> None:
        """End an episode that nobody wants any more."""
        if number in self._tasks:
            self._tasks[number].cancel()

    async def finished(self) -> list[tuple[int, Trajectory | BaseException]]:
        """Wait until an episode is finished; return all that are."""
        await self._news.wait()
        self._news.clear()
        finished, self._finished = self._finished, []
        return finished

    async def _play(self, number: int, spec: EpisodeSpec) -> None:
        assert self._collector is not None, "the caller starts it first"
        result: Trajectory | BaseException
        try:
            result = await self._collector._play(spec)
        except asyncio.CancelledError:
            return
        except Exception as error:
            result = error
        finally:
            self._tasks.pop(number, None)
        self._finished.append((number, result))
        self._news.set()
