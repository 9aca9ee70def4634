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
4. Nothing waits for ever: if the head does not answer, or no node could have an actor, the collector fails after
   `HEAD_S` and `NOWHERE_S`.
5. An episode that has lost `ALONE_AFTER` actors has the next one to itself, and fails after `MAX_LOSSES`. So one that
   kills its process takes no other with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any, cast

from llm_envs.chat.context import Codec
from llm_envs.errors import BridgeError, InvalidConfigError, WorkerDiedError
from llm_envs.policies.base import Policy
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.episode import errored_trajectory
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.rollout.ray_cluster import RayCluster, needs_of
from llm_envs.rollout.sync import BackgroundLoop
from llm_envs.sources.source import Envs, EpisodeSpec, SeedSource
from llm_envs.types import Trajectory

__all__ = ["MakePlayer", "RayCollector"]

_LOG = logging.getLogger(__name__)

MakePlayer = Callable[[], "tuple[Policy, Codec | None] | AbstractContextManager[tuple[Policy, Codec | None]]"]
"""Returns an actor's policy and its codec (None for a policy that reads text), or a context manager that does."""

MAX_LOSSES = 5
"""How many actors an episode may lose before it fails: it may be the one that kills them."""
ALONE_AFTER = 2
"""After how many losses an episode has an actor to itself, so that it takes no others along."""
HEAD_S = 20.0
"""For how long the head may be silent. Ray itself ends the process after a minute."""
NOWHERE_S = 120.0
"""For how long there may be no node that could have an actor; nodes may take this long to join, or to come back."""
_LOOK_S = 2.0
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
        max_concurrency: Concurrent episodes on each actor.
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
            cluster = self._stack.enter_context(RayCluster(address))
            n_actors = n_actors or max(1, cluster.room(options))
            self._kind_of = {
                env_id: json.dumps(dict(chosen), sort_keys=True) for env_id, chosen in (labels or {}).items()
            }
            super().__init__(
                envs,
                cast("Policy", _Elsewhere()),
                max_concurrency=n_actors * max_concurrency * (1 + len(set(self._kind_of.values()))),
                **kept,
            )
            arguments = envs, make_player, played | {"workers": workers, "env_servers": tuple(env_servers)}
            self._background = BackgroundLoop()
            self._stack.callback(self._background.close)
            # Those with labels begin first: the others would take their places.
            others = ["{}"] if {choice.env_id for choice in self.source.choices} - self._kind_of.keys() else []
            self._crews = {
                kind: _Crew(
                    cluster,
                    options | ({"label_selector": json.loads(kind)} if kind != "{}" else {}),
                    arguments,
                    n_actors,
                    max_concurrency,
                )
                for kind in dict.fromkeys([*self._kind_of.values(), *others])
            }
            # An actor with an environment that cannot be made, or a model that cannot be loaded, is reported here.
            for crew in self._crews.values():
                self._background.start(crew.run)
                self.policy_name = self._background.start(crew.name).result()
        except BaseException:
            self._stack.close()
            raise

    def follow(self, checkpoint: Any) -> None:
        """Make every actor's policy `follow` a checkpoint before it plays on; see `VLLMServerPolicy.follow`."""
        for crew in self._crews.values():
            self._background.start(partial(crew.follow, checkpoint)).result()

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


class _Crew:
    """Actors of one kind and their episodes. All coroutines run in one event loop."""

    def __init__(
        self,
        cluster: RayCluster,
        options: Mapping[str, Any],
        arguments: tuple[Any, ...],
        n_actors: int,
        n_episodes: int,
    ) -> None:
        self._cluster, self._arguments, self._n_actors, self._most = cluster, arguments, n_actors, n_episodes
        # Ray itself restarts nothing: a new actor is one that `start` was called on.
        self._options = dict(options) | {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1_000}
        self._seats: list[_Seat] = []
        self._waiting: deque[tuple[asyncio.Future[_Seat], int]] = deque()
        self._named: asyncio.Future[str] | None = None
        self._latest: dict[type, Any] = {}
        """The last checkpoint and the last adapter that all policies follow, in the order in which they came."""
        self._n_played = 0

    async def run(self) -> None:
        """Keep the actors running until cancelled."""
        self._named = self._named or asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
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
                resources = self._cluster.ray.available_resources()
                has = {name: n for name, n in resources.items() if name in needs_of(self._options)}
                _LOG.warning("no actor has started yet; each needs %s, the cluster has %s free.", self._needs, has)
        return self._named.result()

    @property
    def _needs(self) -> str:
        labels = self._options.get("label_selector")
        return f"{needs_of(self._options)}" + (f" and the labels {labels}" if labels else "")

    async def _watch(self) -> None:
        """Raise if the head has been silent for `HEAD_S`, or no node could have had an actor for `NOWHERE_S`."""
        cluster = self._cluster
        answered_s = possible_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if await asyncio.to_thread(cluster.answers):
                answered_s = now_s
                if await asyncio.to_thread(cluster.room, self._options):
                    possible_s = now_s
                elif possible_s < now_s - (NOWHERE_S if cluster.can_grow else 0.0):
                    raise BridgeError(
                        f"no node of the Ray cluster can have an actor: each needs {self._needs}. Ask for less, or "
                        "start such nodes; a run with a folder has kept its episodes: resume it (--resume)."
                    )
            elif answered_s < now_s - HEAD_S:
                raise BridgeError(
                    f"the head of the Ray cluster, {cluster.head}, has not answered for {HEAD_S:g} s. Start Ray again; "
                    "a run with a folder has kept its episodes: resume it (--resume), with Ray or without."
                )
            await asyncio.sleep(_LOOK_S)

    async def follow(self, checkpoint: Any) -> None:
        """Hand a checkpoint to all actors, and to those that come later before they play."""
        self._latest.pop(type(checkpoint), None)
        self._latest[type(checkpoint)] = checkpoint
        await asyncio.gather(*(self._tell(seat, checkpoint) for seat in self._seats if seat.is_ready))

    async def _tell(self, seat: _Seat, checkpoint: Any) -> None:
        exceptions = self._cluster.ray.exceptions
        try:
            await seat.actor.follow.remote(checkpoint)
        except exceptions.RayTaskError as error:
            raise (error.cause or error) from None
        except exceptions.RayError:  # it is lost, and another one comes
            return

    async def play(self, spec: EpisodeSpec) -> Trajectory:
        """Play an episode on the actor that has the fewest; on another one if that is lost."""
        why = ""
        for n_losses in range(MAX_LOSSES):
            places = self._most if n_losses >= ALONE_AFTER else 1
            seat = await self._seat(places)
            self._n_played += 1
            try:
                return await seat.play(self._n_played, spec, places)
            except _LostError as error:
                why = str(error)
        lost = WorkerDiedError(f"{MAX_LOSSES} actors were lost while they played this episode, the last: {why}")
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
                ready = (seat for seat in self._seats if seat.is_ready)
                seat = min(ready, key=lambda seat: seat.n_taken, default=None)
                if seat is None or seat.n_taken + places > self._most:
                    return
                seat.n_taken += places
                future.set_result(seat)
            self._waiting.popleft()

    def _fail(self, error: BaseException) -> None:
        named = asyncio.get_running_loop().create_future()
        for future in (self._named, named, *(future for future, _ in self._waiting)):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # perhaps nothing asks for it
        self._named = named
        for seat in self._seats:
            seat.lose(error)

    async def _keep_one(self) -> None:
        """Run an actor, and another one when it is lost."""
        ray = self._cluster.ray
        with self._cluster.reserved(self._options) as options:
            kind = ray.remote(_Actor).options(**options)
            while True:
                # Without the head a call waits until Ray ends the process: so first ask, and in a thread.
                while not await asyncio.to_thread(self._cluster.answers):
                    await asyncio.sleep(_AGAIN_S)
                await self._run_one(ray, await asyncio.to_thread(kind.remote))
                await asyncio.sleep(_AGAIN_S)

    async def _run_one(self, ray: Any, actor: Any) -> None:
        """Give an actor episodes until it is lost."""
        seat = _Seat(actor, self._leave)
        self._seats.append(seat)
        try:
            name = await actor.start.remote(*self._arguments)
            if self._named is not None and not self._named.done():
                self._named.set_result(name)
            told: list[Any] = []
            while told != (latest := list(self._latest.values())):  # others may come meanwhile
                for checkpoint in latest:
                    await actor.follow.remote(checkpoint)
                told = latest
            seat.is_ready = True
            self._fill()
            while True:
                seat.receive(await actor.finished.remote())
        except ray.exceptions.RayTaskError as error:
            raise (error.cause or error) from None  # ours: the user's code is at fault, and would be again
        except ray.exceptions.RayError as error:
            _LOG.warning("an actor was lost; its %d episodes are played again: %.200s", seat.n_open, error)
            why = _LostError(f"{type(error).__name__}: {error!s:.200}")
        finally:
            seat.is_ready = False
            if self._cluster.answers():
                ray.kill(actor)
        self._seats.remove(seat)  # with any other error, `_fail` ends its episodes
        seat.lose(why)


class _Seat:
    """One actor and its episodes, seen from here."""

    def __init__(self, actor: Any, leave: Callable[[_Seat, int], None]) -> None:
        self.n_taken = 0
        """Places taken by its episodes."""
        self.is_ready = False
        """Whether it takes episodes. Written by the crew."""
        self.actor, self._leave = actor, leave
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
                self.actor.cancel.remote(number)
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
            self.actor.play.remote(unsent)


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

    async def follow(self, checkpoint: Any) -> None:
        assert self._collector is not None, "the caller starts it first"
        policy: Any = self._collector.policy
        policy.follow(checkpoint)

    async def play(self, episodes: Sequence[tuple[int, EpisodeSpec]]) -> None:
        """Begin these episodes."""
        for number, spec in episodes:
            self._tasks[number] = asyncio.create_task(self._play(number, spec))

    async def cancel(self, number: int) -> None:
        """End an episode that is no longer wanted."""
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
