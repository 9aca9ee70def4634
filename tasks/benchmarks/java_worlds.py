"""Simulators in Java: a pool of machines, each with one world at a time, and the base class of their tasks.

1. A machine has one world at a time, since the simulators keep state in classes.
2. A world that is closed or forgotten gives its machine back. As many machines as processors wait for the next world,
   the others end. All end with the process, even with a killed one.
3. A forked child has no machines: those belong to the parent.
4. Identity hashes are constant, or the order of things in a text would differ from machine to machine.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from llm_envs.env import Outcome
from llm_envs.errors import BridgeError, InvalidActionError, MissingExtraError
from llm_envs.processes import processors, register_for_forks
from llm_envs.tasks.games.game import GameEnv

__all__ = ["JavaPool", "JavaWorld", "JavaWorldEnv", "Simulator", "Step", "pool_of"]

_OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2", "-XX:+UseSerialGC", "-Xmx512m")
_MOST_WAIT_S = 120.0
"""Seconds for one call. The slowest, a solution, takes 12 s on a machine that has just started."""
_MOST_CHARACTERS = 200
"""Of an action."""


class Simulator(NamedTuple):
    """A package with a simulator."""

    package: str
    """Its module."""
    jar: str
    """File in the module's folder."""
    interface: str
    """Class of a world."""
    env_id: str


class _Machine:
    """A process with Java."""

    def __init__(self, folder: Path, simulator: Simulator) -> None:
        java: Any = importlib.import_module("py4j.java_gateway")
        port, token, self.process = java.launch_gateway(
            classpath=str(folder / simulator.jar),
            cwd=str(folder),
            javaopts=list(_OPTIONS),
            die_on_exit=True,
            return_proc=True,
            enable_auth=True,
            redirect_stderr=subprocess.DEVNULL,
        )
        parameters = java.GatewayParameters(port=port, auth_token=token, auto_field=True, read_timeout=_MOST_WAIT_S)
        self.gateway = java.JavaGateway(gateway_parameters=parameters)
        self.pid = os.getpid()
        self._interface: Any = self.gateway.jvm
        for part in simulator.interface.split("."):
            self._interface = getattr(self._interface, part)

    def new(self) -> Any:
        return self._interface()

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self.gateway.close()
        self.abandon()  # objects of a machine that has ended are not released there
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def abandon(self) -> None:
        """Leave the machine to the parent process: what is collected here must not be released there."""
        self.gateway._gateway_client.is_connected = False


class JavaWorld:
    """One world of a simulator.

    Args:
        pool: Gets the machine back.
        machine: Has no other world.
    """

    def __init__(self, pool: JavaPool, machine: _Machine) -> None:
        self._pool, self._machine, self._world = pool, machine, machine.new()
        self._is_open = True

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method.

        Raises:
            InvalidActionError: If the simulator raises.
            BridgeError: If the simulator does not answer; its machine is ended.
        """
        protocol: Any = importlib.import_module("py4j.protocol")
        if not self._is_open or self._machine.pid != os.getpid():
            raise BridgeError("the world is closed, or of another process: reset the environment.")
        try:
            return getattr(self._world, method)(*arguments)
        except protocol.Py4JJavaError as error:
            raise InvalidActionError("the simulator cannot do that") from error
        except (protocol.Py4JError, OSError) as error:
            self._is_open = False
            self._machine.end()
            raise BridgeError(f"the simulator did not answer within {_MOST_WAIT_S:g} s, or ended ({error}).") from error

    def close(self) -> None:
        """Give the machine back."""
        if self._is_open:
            self._is_open = False
            self._world = None
            self._pool.give_back(self._machine)

    def __del__(self) -> None:
        """End the machine of a world that was forgotten: its pipe may be closed by now, and then it ends by itself."""
        with contextlib.suppress(Exception):
            if self._machine.pid != os.getpid() or sys.is_finalizing():
                self.close()
            elif self._is_open:
                self._is_open = False
                self._machine.end()


class JavaPool:
    """The machines of a simulator.

    Args:
        simulator: The simulator that they run.

    Raises:
        MissingExtraError: If the package or Java is missing.
    """

    def __init__(self, simulator: Simulator) -> None:
        missing = [name for name in (simulator.package, "py4j") if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingExtraError(
                f"{simulator.env_id} needs {' and '.join(missing)}: pip install 'llm-envs[suites]'."
            )
        if shutil.which("java") is None:
            raise MissingExtraError(
                f"{simulator.env_id} needs Java, and `java` is not found: install it (Debian: apt-get install "
                "default-jre-headless)."
            )
        spec = importlib.util.find_spec(simulator.package)
        assert spec is not None and spec.origin is not None
        self._folder, self._simulator = Path(spec.origin).parent, simulator
        self._idle: list[_Machine] = []
        self._lock = threading.Lock()
        register_for_forks(self)
        atexit.register(self.close)

    def reset_after_fork(self) -> None:
        """Leave the machines to the parent process."""
        for machine in self._idle:
            machine.abandon()
        self._idle, self._lock = [], threading.Lock()

    def take(self) -> JavaWorld:
        """Return a new world; close it after use."""
        with self._lock:
            machine = self._idle.pop() if self._idle else None
        return JavaWorld(self, machine or _Machine(self._folder, self._simulator))

    def give_back(self, machine: _Machine) -> None:
        """Keep a machine for the next world, or end it if enough are waiting."""
        # While Python ends, a thread that waits for the machine may hold its lock for ever; the machine ends by itself.
        if machine.pid != os.getpid() or sys.is_finalizing():
            machine.abandon()
            return
        with self._lock:
            if is_kept := len(self._idle) < processors():
                self._idle.append(machine)
        if not is_kept:
            machine.end()

    def close(self) -> None:
        """End the machines that are waiting."""
        with self._lock:
            idle, self._idle = self._idle, []
        for machine in idle:
            machine.end()


@cache
def pool_of(simulator: Simulator) -> JavaPool:
    """Return the pool of a simulator in this process."""
    return JavaPool(simulator)


class Step(NamedTuple):
    """A simulator's answer to an action."""

    observation: str
    score: float
    """Of the episode so far; 1 is the most."""
    is_success: bool
    is_over: bool
    """By the simulator, without its limit of steps."""


class JavaWorldEnv(GameEnv):
    """Base of the tasks with a simulator in Java. Actions are commands in words.

    A task writes `start`, `act`, `solution` and the rest of a game.
    """

    simulator: ClassVar[Simulator]
    splits = ("train", "dev", "test")
    divides_by_hash = False
    reward_weights = {"score": 1.0, "correct": 0.0, "malformed": -0.1}
    min_return = -1.5
    blocking = True  # the simulator is another process
    slow_reset_reason = "the simulator builds a world of many things, in another process"
    plain_answer = staticmethod(str.strip)
    has_natural_form = False

    @abstractmethod
    def start(self, world: JavaWorld) -> Step:
        """Start the problem in a world; return the first observation and the score of the start."""

    @abstractmethod
    def act(self, world: JavaWorld, command: str) -> Step:
        """Execute a command."""

    @abstractmethod
    def solution(self) -> Sequence[str]:
        """Return the package's commands that solve the problem, which know hidden state."""

    def begin(self) -> None:
        """Start in a new world."""
        self.close()
        self._world: JavaWorld | None = pool_of(self.simulator).take()
        self._taken: list[str] = []
        self._shown, self._score, _, _ = self.start(self._world)

    def move(self, answer: str) -> Outcome:
        """Execute the command."""
        command = " ".join(answer.split())
        if not command or len(command) > _MOST_CHARACTERS or not command.isprintable():
            raise InvalidActionError(f"a command has 1 to {_MOST_CHARACTERS} characters, in one line")
        assert self._world is not None
        step = self.act(self._world, command)
        self._taken.append(command)
        gained, self._score = step.score - self._score, step.score
        components = {"score": gained, "correct": float(step.is_success), "malformed": 0.0}
        if step.is_over:
            self.close()
            return Outcome(step.observation, components, True, step.is_success)
        return Outcome(f"{step.observation}\n{self.turns_left()}", components)

    def refuse(self, problem: str) -> Outcome:
        """Return the answer to a reply that could not be played."""
        return Outcome(f"Error: {problem}. {self.turns_left()}", {"score": 0.0, "correct": 0.0, "malformed": 1.0})

    def next_action(self) -> str:
        """Return the first command of the package's solution that was not made yet, in order."""
        rest = list(self.solution())
        for command in self._taken:
            if rest and command == rest[0]:
                rest.pop(0)
        return self.write_answer(rest[0] if rest else "look around")

    def state(self) -> Any:
        """Return the commands so far: the world follows from them."""
        return list(self._taken)

    def close(self) -> None:
        """Give the world back."""
        if (world := getattr(self, "_world", None)) is not None:
            world.close()
        self._world = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the world, which is made again from the problem and the commands."""
        return {name: value for name, value in vars(self).items() if name != "_world"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Repeat the commands in a new world."""
        vars(self).update(state)
        self._world = None
        if self._is_playing:
            self._world = pool_of(self.simulator).take()
            self.start(self._world)
            for command in self._taken:
                self.act(self._world, command)
