"""Systems made of the parts: lock-step, a collector, and a trainer with servers.

The decisions are the package's: `Router` places turns, `groups_to_admit` and `admission_capacity` admit groups.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from llm_envs.policies.vllm.routing import Backoff, Router
from llm_envs.rollout.group_tracker import groups_to_admit
from llm_envs.rollout.staleness import admission_capacity

from .parts import Engine, EngineRates, Events, Process
from .work import Episodes


@dataclass(frozen=True)
class PlayerRates:
    """Times of a process that plays, in seconds."""

    turn_s: float = 0.0
    """Encoding, the request, parsing and the environment."""
    episode_s: float = 0.0
    """Making the environment and the trajectory, and writing it."""
    token_s: float = 0.0
    """For each token of a request's prompt."""
    thread_s: float = 0.0
    """Handing a call of an environment that waits to its thread, and taking over the result."""
    crowd_s: float = 0.0
    """Seconds that this takes longer for each other episode that waits for the process."""


@dataclass(frozen=True)
class Failure:
    """An engine that dies, with all of its turns, or a process that plays, with all of its episodes."""

    at_s: float
    index: int
    down_s: float
    kind: str = "engine"


@dataclass(frozen=True)
class TrainingRates:
    """Times of a training step, in seconds."""

    train_s: float
    write_s: float = 0.0
    """The trainer writes new weights, and engines continue."""
    load_s: float = 0.0
    """Engines stand still to load them."""
    playing: float = 1.0
    """How many times as long both take if engines are playing: they answer between two steps."""
    shared: float = 0.0
    """How much longer training takes for each second of an engine on the same machine, whose caches they share."""
    card_s: float = 0.0
    """How long the weights occupy the network card of the trainer's node meanwhile."""


@dataclass(frozen=True)
class System:
    """How many of each, how fast, and how episodes are admitted."""

    engine: EngineRates
    player: PlayerRates = field(default_factory=PlayerRates)
    n_engines: int = 1
    n_players: int = 1
    width: int = 256
    """Episodes at once of each player."""
    is_in_process: bool = False
    """The engine is in the player's process: one works while the other waits."""
    group_size: int = 1
    """Episodes in a row that one player plays."""
    writer_s: float = 0.0
    """Seconds for each episode in the one writer of all players; 0: players write themselves."""
    turn_card_s: float = 0.0
    """How long a turn's request and reply occupy the network card of the players' node."""
    prompt_card_s: float = 0.0
    """Seconds that each token of the prompt adds to it."""
    sampled_card_s: float = 0.0
    """Seconds that each token of the reply adds to it."""
    failures: tuple[Failure, ...] = ()


@dataclass
class Result:
    """What a simulation took."""

    seconds: float
    n_episodes: int
    n_sampled: int
    engine_busy: float
    """Share of the time in which engines step, on average."""
    player_busy: float
    trainer_busy: float = 0.0
    waiting: float = 0.0
    """Share of the time in which the trainer waits for episodes."""
    oldest: int = 0
    """The greatest number of versions between a group's begin and its training."""
    n_replayed: int = 0
    n_preempted: int = 0
    steps_s: list[float] = field(default_factory=list)
    """The times at which training steps ended."""

    @property
    def episodes_per_s(self) -> float:
        """Throughput."""
        return self.n_episodes / self.seconds


class Play:
    """Plays episodes on engines."""

    def __init__(self, env: simpy.Environment, system: System, episodes: Episodes) -> None:
        self.env, self.system, self.episodes = env, system, episodes
        self.engines = [Engine(env, system.engine) for _ in range(system.n_engines)]
        beside = self.engines[0] if system.is_in_process else None
        self.players = [Process(env, beside) for _ in range(system.n_players)]
        self.card, self.writer = Process(env), Process(env)
        self._slots = [simpy.Resource(env, system.width) for _ in self.players]
        self._router, self._backoff = Router(system.n_engines), Backoff()
        self._running: dict[int, set[simpy.Process]] = {index: set() for index in range(system.n_players)}
        self.is_parked, self.n_replayed, self.n_loading = False, 0, 0
        self.gate = env.event()
        for failure in system.failures:
            env.process(self._fail(failure))

    def start(self, number: int, begun: Callable[[], None] = lambda: None) -> simpy.Process:
        """Play an episode; `begun` is called when it has a slot."""
        return self.env.process(self._survive(number, begun))

    def result(self, n_episodes: int) -> Result:
        """Return what it took until now."""
        now = self.env.now
        return Result(
            now,
            n_episodes,
            sum(engine.n_sampled for engine in self.engines),
            sum(engine.busy_s for engine in self.engines) / len(self.engines) / now,
            sum(player.busy_s for player in self.players) / len(self.players) / now,
            n_replayed=self.n_replayed,
            n_preempted=sum(engine.n_preempted for engine in self.engines),
        )

    def _survive(self, number: int, begun: Callable[[], None]) -> Events:
        """Play an episode, again if its player is lost."""
        index = number // self.system.group_size % len(self.players)
        with self._slots[index].request() as slot:
            yield slot
            begun()
            while True:
                playing = self.env.process(self._episode(number, index))
                self._running[index].add(playing)
                is_whole = yield playing
                self._running[index].discard(playing)
                if is_whole:
                    return
                self.n_replayed += 1

    def _episode(self, number: int, index: int) -> Events:
        episodes, rates, player = self.episodes, self.system.player, self.players[index]
        n_context = episodes.n_prompt
        try:
            yield from player.work(rates.episode_s)
            if episodes.tools_NT[number].any():  # it is made and reset in its thread too
                yield from self._hand_over(player)
                yield from self._hand_over(player)
            for turn in range(episodes.n_turns):
                while self.is_parked:
                    yield self.gate
                n_tokens = int(episodes.tokens_NT[number, turn])
                yield from self.card.work(self._sent_s(n_context, n_tokens))
                yield from self._turn(number, n_context, n_tokens)
                yield from player.work(rates.turn_s + rates.token_s * n_context)
                n_context += n_tokens + episodes.n_added
                if tool_s := float(episodes.tools_NT[number, turn]):
                    yield self.env.timeout(tool_s)
                    yield from self._hand_over(player)
            yield from self.writer.work(self.system.writer_s)
        except simpy.Interrupt:
            return False
        return True

    def _sent_s(self, n_context: int, n_tokens: int) -> float:
        system = self.system
        return system.turn_card_s + system.prompt_card_s * n_context + system.sampled_card_s * n_tokens

    def _hand_over(self, player: Process) -> Events:
        rates = self.system.player
        yield from player.work(rates.thread_s + rates.crowd_s * player.n_waiting)

    def _turn(self, session: int, n_context: int, n_tokens: int) -> Events:
        attempt = 0
        while True:
            while (index := self._router.pick(str(session), self.env.now)) is None:
                yield self.env.timeout(max(0.01, self._router.wait_s(self.env.now)))
            try:
                is_done = yield self.engines[index].sample(session, n_context, n_tokens)
            except simpy.Interrupt:
                self.engines[index].abort(session)
                raise
            finally:
                self._router.done(index)
            if is_done:
                self._router.succeeded(index)
                return
            self._router.failed(index, self.env.now)
            yield self.env.timeout(self._backoff.delay_s(attempt, session))
            attempt += 1

    def _fail(self, failure: Failure) -> Events:
        yield self.env.timeout(failure.at_s)
        if failure.kind == "engine":
            self.engines[failure.index].die()
            yield self.env.timeout(failure.down_s)
            self.engines[failure.index].come_back()
            return
        for playing in list(self._running[failure.index]):
            playing.interrupt()
        yield from self.players[failure.index].work(failure.down_s)


def collect(system: System, episodes: Episodes) -> Result:
    """Simulate a collector that plays all episodes: none waits for another."""
    env = simpy.Environment()
    play = Play(env, system, episodes)
    env.run(simpy.AllOf(env, [play.start(number) for number in range(len(episodes))]))
    return play.result(len(episodes))


def lock_step(system: System, episodes: Episodes) -> Result:
    """Simulate a loop that samples a turn of all episodes, then runs their tools one after another."""
    env = simpy.Environment()
    play = Play(env, system, episodes)
    (player, *_), (engine, *_) = play.players, play.engines
    n = len(episodes)

    def loop() -> Events:
        n_context = [episodes.n_prompt] * n
        yield from player.work(n * system.player.episode_s)
        for turn in range(episodes.n_turns):
            tokens = [int(value) for value in episodes.tokens_NT[:, turn]]
            yield simpy.AllOf(env, [engine.sample(i, n_context[i], tokens[i]) for i in range(n)])
            n_context = [a + b + episodes.n_added for a, b in zip(n_context, tokens, strict=True)]
            yield from player.work(n * system.player.turn_s + system.player.token_s * sum(n_context))
            yield env.timeout(float(episodes.tools_NT[:, turn].sum()))

    env.run(env.process(loop()))
    return play.result(n)


@dataclass(frozen=True)
class Schedule:
    """How a trainer takes episodes."""

    n_steps: int
    group_size: int = 8
    bound: int = 0
    """Generations that are played while an earlier one is trained on (`async_generations`)."""
    over_sampling: float = 1.0
    """Groups that run for each that is taken; the others stay parked for the next step."""
    n_groups: int = 0
    """Groups of a step; 0: an equal share of all."""


class Training:
    """A trainer, and servers that play for it."""

    def __init__(self, system: System, episodes: Episodes, rates: TrainingRates, schedule: Schedule) -> None:
        self.env = simpy.Environment()
        self.play, self.rates, self.schedule = Play(self.env, system, episodes), rates, schedule
        n_groups = int(len(episodes) / schedule.group_size)
        self.batch = schedule.n_groups or max(1, round(n_groups / schedule.n_steps / schedule.over_sampling))
        self._supply, self._last = iter(range(n_groups)), n_groups
        self._versions: dict[int, int] = {}
        self._finished: dict[int, simpy.Event] = {}
        self._ready: list[int] = []
        self._news = self.env.event()
        self.version = self.n_trained = self.oldest = 0
        self.train_s = self.waited_s = 0.0

    def run(self) -> Result:
        """Simulate all steps."""
        ends: list[float] = []
        self.env.run(self.env.process(self._steps(ends)))
        result = self.play.result(self.n_trained * self.schedule.group_size)
        result.trainer_busy, result.waiting = self.train_s / self.env.now, self.waited_s / self.env.now
        result.oldest, result.steps_s = self.oldest, ends
        return result

    def _steps(self, ends: list[float]) -> Events:
        env, schedule = self.env, self.schedule
        for step in range(schedule.n_steps):
            began = env.now
            taken = yield from (self._first() if schedule.over_sampling > 1 else self._in_order(step))
            self.waited_s += env.now - began
            self.oldest = max(self.oldest, *(self.version - self._versions[group] for group in taken))
            yield from self._train()
            self.n_trained += len(taken)
            yield from self._push()
            self.version += 1
            ends.append(env.now)

    def _train(self) -> Events:
        """Train; what the same process plays meanwhile takes its time, and engines beside it slow it down."""
        began, lost, left = self.env.now, self._lost_s(), self.rates.train_s
        while left > 1e-9:
            yield self.env.timeout(left)
            lost, left = self._lost_s(), self._lost_s() - lost
        self.train_s += self.env.now - began

    def _lost_s(self) -> float:
        """Return the seconds until now that training would have lost, had it always been under way."""
        engines, players = ([part.busy_s for part in parts] for parts in (self.play.engines, self.play.players))
        return statistics.fmean(players) + self.rates.shared * statistics.fmean(engines)

    def _push(self) -> Events:
        rates, play = self.rates, self.play
        longer = rates.playing if any(engine.is_playing for engine in play.engines) else 1.0
        sent = self.env.process(play.card.share(rates.card_s))
        yield self.env.timeout(longer * rates.write_s)
        for engine in play.engines:
            engine.pause()
        yield sent & self.env.timeout(longer * rates.load_s)
        for engine in play.engines:
            engine.resume()

    def _in_order(self, step: int) -> Events:
        """Wait for the step's groups, and begin as many further ones as the bound allows."""
        n_ahead = len(self._versions)
        room = admission_capacity(
            version=self.version,
            max_staleness=self.schedule.bound,
            batch_size=self.batch,
            n_trained=self.n_trained,
            n_accepted=0,
            n_running=n_ahead - self.n_trained,
        )
        self._begin(room)
        wanted = range(step * self.batch, (step + 1) * self.batch)
        yield simpy.AllOf(self.env, [self._finished[group] for group in wanted])
        return list(wanted)

    def _first(self) -> Events:
        """Take the groups that finish first, and park the others."""
        play = self.play
        play.is_parked = False
        play.gate.succeed()
        play.gate = self.env.event()
        accepted: list[int] = []
        while len(accepted) < self.batch:
            n_open = len(self._finished)
            self._begin(groups_to_admit(self.batch, len(accepted), n_open, self.schedule.over_sampling))
            if not self._ready:
                self._news = self.env.event()
                yield self._news
            while self._ready and len(accepted) < self.batch:
                accepted.append(self._ready.pop(0))
        play.is_parked = True
        return accepted

    def _begin(self, n_groups: int) -> None:
        for group in [group for _, group in zip(range(n_groups), self._supply, strict=False)]:
            self._versions[group] = self.version
            members = range(group * self.schedule.group_size, (group + 1) * self.schedule.group_size)
            self._finished[group] = self.env.process(self._group(group, members))

    def _group(self, group: int, members: range) -> Events:
        yield simpy.AllOf(self.env, [self.play.start(member) for member in members])
        if self.schedule.over_sampling > 1:
            del self._finished[group]
            self._ready.append(group)
            if not self._news.triggered:
                self._news.succeed()
