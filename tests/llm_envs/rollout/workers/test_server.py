"""Environments on other machines: an environment server, its clients, and either of them dying. See test_workers.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from machine import wait_until
from rogue_envs import RogueEnv

import llm_envs.rollout.workers.remote as remote
from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError, NoEnvServerError, WorkerDiedError
from llm_envs.policies import ConstantPolicy
from llm_envs.policies.scripted import before_turn
from llm_envs.processes import children_of
from llm_envs.rollout import Collector, RolloutLimits, read_trajectories
from llm_envs.rollout.workers.frames import _HELLO, HEADER, KEY_BYTES, Frames
from llm_envs.rollout.workers.remote import TOKEN_VARIABLE, EnvServers, RemoteWorker, server_info
from llm_envs.rollout.workers.server import EnvServer
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv

TOKEN = "a token for these tests"
CODEC = ByteCodec()
REPLIES = ["1", "2", "3", "4", "5", "6", "7", "8", "9"]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture
def server() -> Iterator[EnvServer]:
    with EnvServer(2, TOKEN.encode()) as server:
        yield server


def collect(n: int = 12, policy: Any = None, envs: Any = NumbersEnv, **settings: Any) -> list[Any]:
    policy = policy or HashingTokenPolicy(CODEC, REPLIES)
    with Collector(envs, policy, codec=CODEC, progress=False, **settings) as collector:
        return sorted(collector.collect(n, 2), key=lambda group: group.group_id)


@contextmanager
def closed_port() -> Iterator[str]:
    """Hold an address that refuses connections: bound, so that no other process gets it, and not listened on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*held.getsockname())


def test_two_servers_play_the_episodes_of_this_process(server: EnvServer) -> None:
    with EnvServer(1, TOKEN.encode()) as other:
        with Collector(
            NumbersEnv,
            HashingTokenPolicy(CODEC, REPLIES),
            codec=CODEC,
            progress=False,
            env_servers=[server.address, other.address],
        ) as collector:
            assert collector.workers == 3
            assert sorted(collector.collect(12, 2), key=lambda group: group.group_id) == collect()
            assert (server.n_busy, other.n_busy) == (2, 1)
        assert wait_until(lambda: server.n_busy == other.n_busy == 0)


def test_workers_limits_them(server: EnvServer) -> None:
    with Collector(
        NumbersEnv, ConstantPolicy("1"), env_servers=[server.address], workers=1, progress=False
    ) as collector:
        collector.collect(4)
        assert collector.workers == server.n_busy == 1


def test_without_a_host_only_this_machine_reaches_it(server: EnvServer) -> None:
    """A server on all addresses answers at 127.0.0.2 too, which stands for the address of another network."""
    process, address = start("--workers", "1")
    everywhere = EnvServer(1, TOKEN.encode(), host="0.0.0.0")
    try:
        for bound in (server.address, address):
            assert bound.startswith("127.0.0.1:")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", int(bound.rpartition(":")[2])), 5)
        socket.create_connection(("127.0.0.2", int(everywhere.address.rpartition(":")[2])), 5).close()
    finally:
        everywhere.close()
        process.kill()
        process.wait()


class Relay(threading.Thread):
    """Passes connections on to a server, as an SSH tunnel does, without the token.

    Args:
        address: The server's.
        to_worker: What becomes of the frames to the server: gets their number and the frames so far.
        to_host: The same for those to the collector.
    """

    def __init__(self, address: str, *, to_worker: Change | None = None, to_host: Change | None = None) -> None:
        super().__init__(daemon=True)
        self.target, self.to_worker, self.to_host = address.rpartition(":"), to_worker, to_host
        self.listener = socket.create_server(("127.0.0.2", 0))
        self.address = "{}:{}".format(*self.listener.getsockname())
        self.n_connections, self.n_changed, self.ended = 0, 0, threading.Event()
        self.start()

    def run(self) -> None:
        while True:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            self.n_connections += 1
            there = socket.create_connection((self.target[0], int(self.target[2])))
            for source, target, handshake, change in (
                (here, there, [2 * KEY_BYTES], self.to_worker),
                (there, here, [len(_HELLO) + KEY_BYTES, KEY_BYTES], self.to_host),
            ):
                threading.Thread(target=self.pump, args=(source, target, handshake, change), daemon=True).start()

    def pump(self, source: socket.socket, target: socket.socket, handshake: list[int], change: Change | None) -> None:
        is_changed, frames = False, []
        with suppress(OSError), source.makefile("rb") as stream:
            for n_bytes in handshake:
                target.sendall(stream.read(n_bytes))
            while header := stream.read(HEADER.size):
                frames.append(header + stream.read(HEADER.unpack(header)[0]))
                sent = [frames[-1]]
                if change is not None and not self.n_changed and (sent := change(frames)) != [frames[-1]]:
                    self.n_changed, is_changed = 1, True
                for frame in sent:
                    target.sendall(frame)
        if is_changed:
            self.ended.set()
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


Change = Callable[[list[bytes]], list[bytes]]
"""Takes the frames so far; returns the frames that a relay sends in place of the last one."""


def at_the_seventh(change: Change) -> Change:
    """Change a frame in the middle of an episode, whose frames of both directions are many more."""
    return lambda frames: change(frames) if len(frames) == 7 else frames[-1:]


FORGERIES: dict[str, Change] = {
    "changed": at_the_seventh(lambda frames: [frames[-1][:-1] + bytes([frames[-1][-1] ^ 1])]),
    "repeated": at_the_seventh(lambda frames: [frames[-1], frames[-1]]),
    "an earlier one": at_the_seventh(lambda frames: [frames[-2]]),
    "longer": at_the_seventh(lambda frames: [struct.pack("!Q", 2**60) + frames[-1][8:]]),
}


@pytest.mark.smoke
def test_a_relay_passes_a_run_on(server: EnvServer) -> None:
    """An SSH tunnel ends at another address and port than the server's."""
    relay = Relay(server.address)
    assert collect(4, env_servers=[relay.address]) == collect(4)
    assert relay.n_connections == 3
    relay.listener.close()


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("direction", ["to_host", "to_worker"])
def test_a_relay_can_change_repeat_and_move_nothing(server: EnvServer, direction: str, forgery: str) -> None:
    """The connection ends. Its unfinished episodes are played again on a new one, with the same seeds."""
    relay = Relay(server.address, **{direction: FORGERIES[forgery]})
    groups = collect(2, env_servers=[relay.address], workers=1)
    assert relay.n_changed == 1 and relay.ended.wait(120) and relay.n_connections == 3  # the first asks for the number
    played = [trajectory for group in groups for trajectory in group.trajectories]
    same = [trajectory for group in collect(2) for trajectory in group.trajectories]
    assert [replace(t, metadata={}) for t in played] == [replace(t, metadata={}) for t in same]
    relay.listener.close()


@pytest.mark.smoke
def test_a_relay_runs_nothing_on_the_server(server: EnvServer, tmp_path: Path) -> None:
    """The relay forwards an honest handshake, and then sends its own request."""
    ran = tmp_path / "ran"
    request = pickle.dumps(("load", 1, pickle.dumps(Touch(ran))))
    forged = Frames(bytes(KEY_BYTES), "worker", is_host=True).pack(request)
    relay = Relay(server.address, to_worker=at_the_seventh(lambda frames: [forged]))
    (group,) = collect(1, env_servers=[relay.address], workers=1, max_retries=0)
    assert relay.n_changed == 1 and any("died in" in t.error.message for t in group.trajectories if t.error)
    relay.listener.close()
    assert wait_until(lambda: server.n_busy == 0)
    assert not ran.exists()
    assert pickle.loads(pickle.dumps(Touch(ran))) == 0 and ran.exists()  # where it is read, it runs


class Touch:
    """Makes a file where its pickle is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("another token, of any length", "has another token: set LLM_ENVS_ENV_TOKEN"),
        ("", "LLM_ENVS_ENV_TOKEN is not set"),
    ],
)
def test_another_token(server: EnvServer, monkeypatch: pytest.MonkeyPatch, variable: str, said: str) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, variable)
    with pytest.raises(InvalidConfigError, match=said):
        collect(env_servers=[server.address])
    assert server.n_busy == 0


def test_another_version(server: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "__version__", "9.9")
    with pytest.raises(InvalidConfigError, match=r" 9\.9"):
        EnvServers([server.address])


def test_nobody_and_somebody_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(WorkerDiedError, match=f"{address} .*an environment server"):
            EnvServers([address])
        thread.join()
    with closed_port() as address, pytest.raises(WorkerDiedError, match="serve-envs"):
        EnvServers([address])


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":7100", "localhost:x", "localhost:99999", "", "http://host:7391"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidConfigError, match="give HOST:PORT"):
        EnvServers([address])


def test_bad_servers(server: EnvServer) -> None:
    with pytest.raises(InvalidConfigError, match="is named twice"):
        EnvServers([server.address] * 2)
    with pytest.raises(InvalidConfigError, match="16 bytes; it has 0 "):
        EnvServer(0, TOKEN.encode())
    with pytest.raises(InvalidConfigError, match="at least 16 bytes"):
        EnvServer(1, b"short")
    with pytest.raises(InvalidConfigError, match=server.address):
        EnvServer(1, TOKEN.encode(), port=int(server.address.rpartition(":")[2]))


def test_a_full_server(server: EnvServer) -> None:
    workers = [RemoteWorker(server.address, TOKEN.encode()) for _ in range(2)]
    with pytest.raises(WorkerDiedError, match=r"\(of 2\)"):
        RemoteWorker(server.address, TOKEN.encode())
    for worker in workers:
        worker.kill()
        worker.release()
    assert wait_until(lambda: server.n_busy == 0)
    assert len(collect(4, env_servers=[server.address])) == 4


def test_peers_that_say_nothing_hold_nobody_up(server: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_envs.rollout.workers.server.CONNECT_S", 2.0)
    host, port = server.address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(5)]
    for connection in silent:
        connection.settimeout(120)
        assert connection.recv(1024)  # the challenge: its time has begun
    monkeypatch.setattr("llm_envs.rollout.workers.server.CONNECT_S", 60.0)  # for those below, on a busy machine
    assert len(collect(4, env_servers=[server.address])) == 4
    for connection in silent:
        while connection.recv(1024):  # the rest of the challenge, and then the end
            pass
        connection.close()


@pytest.mark.smoke
def test_many_silent_peers_make_room_for_others(server: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has years of time left, and there are more of them than places."""
    monkeypatch.setattr("llm_envs.rollout.workers.server.CONNECT_S", 1e9)
    monkeypatch.setattr("llm_envs.rollout.workers.remote.CONNECT_S", 120.0)
    monkeypatch.setattr("llm_envs.rollout.workers.server._MAX_GREETINGS", 8)
    host, port = server.address.split(":")
    silent = []
    for _ in range(12):
        silent.append(socket.create_connection((host, int(port)), 120))
        assert silent[-1].recv(1)  # it is greeted before the next one comes
    assert server_info(server.address, TOKEN.encode())["n_workers"] == 2
    for connection in silent[:5]:  # the oldest ones have been closed
        while connection.recv(1024):
            pass
    silent[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        while silent[-1].recv(1024):
            pass
    for connection in silent:
        connection.close()


def test_an_environment_that_hangs_is_killed_there(server: EnvServer) -> None:
    limits = RolloutLimits(max_step_s=0.5)
    settings: dict[str, Any] = {"env_kwargs": {"at": "step", "deed": "hang"}, "limits": limits, "max_retries": 0}
    (group,) = collect(1, envs=RogueEnv, env_servers=[server.address], **settings)
    for trajectory in group.trajectories:
        assert "took longer than max_step_s=0.5 s; its process was killed" in trajectory.error.message
    assert wait_until(lambda: server.n_busy == 0)


CLIENT = """
import sys
from llm_envs.policies import ConstantPolicy
from llm_envs.rollout import Collector
from llm_envs.testing import NumbersEnv
from llm_envs.policies.scripted import with_latency
policy = with_latency(ConstantPolicy("1"), 3600)
with Collector(NumbersEnv, policy, env_servers=sys.argv[1:], progress=False) as collector:
    print("playing", flush=True)
    collector.collect(4)
"""


def test_a_client_that_is_killed_leaves_no_process(server: EnvServer) -> None:
    with subprocess.Popen([sys.executable, "-c", CLIENT, server.address], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None and client.stdout.readline() == b"playing\n"
        assert wait_until(lambda: server.n_busy == 2)
        pids = list(server._served)
        client.send_signal(signal.SIGKILL)
    assert wait_until(lambda: server.n_busy == 0)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start `llm-envs serve-envs`; return it and its address."""
    command = [sys.executable, "-m", "llm_envs.cli", "serve-envs", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    found = re.fullmatch(r"(\d+) workers? at (\S+); Ctrl-C ends them\n", process.stdout.readline())
    assert found is not None
    return process, found[2]


async def kill_with_workers(process: subprocess.Popen[str]) -> None:
    """Kill a server, and wait until none of its workers can answer any more."""
    workers = children_of(process.pid)
    process.kill()
    while any(Path(f"/proc/{pid}/exe").exists() for pid in workers):
        await asyncio.sleep(0.01)


def test_a_server_that_is_killed_costs_no_episode() -> None:
    """Its episodes are played again under the same seeds at the other one."""
    first, second = start("--workers", "2"), start("--workers", "2")
    n_turns, is_killed = 0, asyncio.Event()

    async def kill_at_the_tenth(_: Any) -> None:
        """Kill it when an episode is under way in each of the four workers: the turns 7 to 10 wait for that."""
        nonlocal n_turns
        n_turns += 1
        if n_turns == 10:
            await kill_with_workers(first[0])
            is_killed.set()
        elif n_turns >= 7:
            await is_killed.wait()

    policy = before_turn(HashingTokenPolicy(CODEC, REPLIES), kill_at_the_tenth)
    try:
        groups = collect(policy=policy, env_servers=[first[1], second[1]])
        assert n_turns >= 24 and any("retries" in t.metadata for group in groups for t in group.trajectories)
        for group, same in zip(groups, collect(), strict=True):
            for one, other in zip(group.trajectories, same.trajectories, strict=True):
                assert replace(one, metadata={}) == replace(other, metadata={})
    finally:
        for process, _ in (first, second):
            process.kill()
            process.wait()


def test_a_server_that_comes_back_is_used_again() -> None:
    servers = [start("--workers", "1")]
    address = servers[0][1]
    n_turns = 0

    async def restart_at_the_tenth(_: Any) -> None:
        nonlocal n_turns
        n_turns += 1
        if n_turns == 10:
            servers[0][0].kill()
            servers[0][0].wait()
            servers.append(start("--workers", "1", "--port", address.rpartition(":")[2]))

    policy = before_turn(HashingTokenPolicy(CODEC, REPLIES), restart_at_the_tenth)
    try:
        groups = collect(policy=policy, env_servers=[address])
    finally:
        for process, _ in servers:
            process.kill()
            process.wait()
    assert len(servers) == 2
    played, same = ([t for group in groups for t in group.trajectories] for groups in (groups, collect()))
    assert [replace(t, metadata={}) for t in played] == [replace(t, metadata={}) for t in same]


def test_no_server_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    process, address = start("--workers", "1")

    async def kill_at_once(_: Any) -> None:
        await kill_with_workers(process)

    policy = before_turn(HashingTokenPolicy(CODEC, REPLIES), kill_at_once)
    monkeypatch.setattr("llm_envs.rollout.workers.pool.SERVERS_S", 1.0)
    emitted: list[Any] = []
    with pytest.raises(NoEnvServerError, match=rf"has answered for 1 s \({address}\)"):
        collect(1, policy=policy, env_servers=[address], on_trajectory=emitted.append)
    process.wait()
    assert not emitted


def test_a_server_that_does_not_answer_at_the_start(server: EnvServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is named and left out. A wrong token or version is still an error, and so are two that do not answer."""
    with closed_port() as one, closed_port() as other:
        assert collect(env_servers=[one, server.address]) == collect()
        (warning,) = caplog.messages
        assert warning.startswith(f"{one} does not answer") and warning.endswith("The run continues without it.")
        with pytest.raises(WorkerDiedError, match=f"{one} .*{other} "):
            EnvServers([one, other])
    with EnvServer(1, b"another token of this length") as foreign, pytest.raises(InvalidConfigError, match="token"):
        EnvServers([server.address, foreign.address])


PATIENCE = """
import sys, time
import llm_envs.rollout.workers.pool as pool
import llm_envs.rollout.workers.remote as remote
from llm_envs.cli.main import main
from llm_envs.policies import OraclePolicy

pool.SERVERS_S, remote.CONNECT_S = float(sys.argv[1]), 300.0
turns, act = [], OraclePolicy.act

def slower_and_slower(self, env, observation):  # so that the servers are gone before the last episode
    turns.append(1)
    time.sleep(0.2 if len(turns) > 300 else 0.0)
    return act(self, env, observation)

OraclePolicy.act = slower_and_slower
sys.exit(main(sys.argv[2:]))
"""
COLLECT = ["collect", "llm/Calculator-v0", "-n", "1500"]


def left_without_servers(out: Path, patience_s: float, n_servers: int) -> tuple[subprocess.Popen[str], list[int]]:
    """Start `llm-envs collect`, kill its servers when it has written episodes; return it and their ports."""
    servers = [start("--workers", "1") for _ in range(n_servers)]
    try:
        command = [*COLLECT, "--out", str(out), "--env-servers", *(address for _, address in servers)]
        run = subprocess.Popen(
            [sys.executable, "-c", PATIENCE, str(patience_s), *command], stderr=subprocess.PIPE, text=True
        )
        assert wait_until(lambda: any(log.stat().st_size for log in out.glob("*.jsonl*")))
    finally:
        for process, _ in servers:
            process.kill()
            process.wait()
    return run, [int(address.rpartition(":")[2]) for _, address in servers]


def test_a_run_without_servers_ends_and_goes_on_later(tmp_path: Path) -> None:
    run, _ = left_without_servers(tmp_path / "run", 1.0, 2)
    _, said = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "llm-envs: error: no environment server has answered for 1 s (127.0.0.1:" in said
    saved = list(read_trajectories(tmp_path / "run"))
    assert 0 < len(saved) < 1500 and all(trajectory.error is None for trajectory in saved)
    assert main([*COLLECT, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert main([*COLLECT, "--out", str(tmp_path / "here")]) == 0
    resumed, here = (sorted(read_trajectories(tmp_path / n), key=lambda t: t.group_id) for n in ("run", "here"))
    assert resumed == here


def test_ctrl_c_does_not_wait_for_servers(tmp_path: Path) -> None:
    """Here they take connections and say nothing, which holds an attempt up for `CONNECT_S`, at each of them."""
    run, ports = left_without_servers(tmp_path / "run", 600.0, 2)
    silent: list[socket.socket] = []

    def take(port: int) -> bool:
        with contextlib.suppress(OSError):  # for a moment, an outgoing connection may have this port
            silent.append(socket.create_server(("127.0.0.1", port)))
        return bool(silent) and silent[-1].getsockname()[1] == port

    assert all(wait_until(lambda port=port: take(port)) for port in ports)
    assert select.select(silent, [], [], 120)[0]  # an attempt is under way, which would take five minutes
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 130 and "llm-envs: interrupted: " in said
    for listener in silent:
        listener.close()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    process, address = start("--workers", "2")
    command = ["collect", "llm/Calculator-v0", "-n", "6", "--out"]
    try:
        assert main([*command, str(tmp_path / "there"), "--env-servers", address]) == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert main([*command, str(tmp_path / "again"), "--env-servers", address]) == 1
        assert "does not answer" in capsys.readouterr().err
    finally:
        process.kill()
    assert main([*command, str(tmp_path / "here")]) == 0
    there, here = (sorted(read_trajectories(tmp_path / n), key=lambda t: t.group_id) for n in ("there", "here"))
    assert there == here


def test_an_environment_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is told the file, whose folder is on its path then. The file may differ in nothing but its place."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in (tmp_path, tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        (folder / "served_envs.py").write_text(
            "from llm_envs.tasks.arithmetic.arithmetic import ArithmeticEnv\n\n\nclass Sums(ArithmeticEnv):\n    pass\n"
        )
    command = ["collect", f"{tmp_path}/served_envs.py:Sums", "-n", "4", "--out"]
    try:
        for named in ([], [f"{tmp_path}/elsewhere/served_envs.py:Sums"]):
            process, address = start("--workers", "1", *named)
            try:
                code = main([*command, str(tmp_path / "there"), "--env-servers", address])
            finally:
                process.kill()
                process.wait(120)
            error = capsys.readouterr().err
            assert code == (0 if named else 2) and ("serve-envs FILE.py:NAME" in error) is not bool(named), error
        assert main([*command, str(tmp_path / "here")]) == 0
    finally:
        sys.modules.pop("served_envs", None)
        gym.registry.pop("served_envs/Sums-v0", None)
    there, here = (sorted(read_trajectories(tmp_path / n), key=lambda t: t.group_id) for n in ("there", "here"))
    assert there == here and len(here) == 4
    assert main(["serve-envs", "llm/NoSuchTask-v0"]) == 2
    assert "NoSuchTask" in capsys.readouterr().err


def test_without_a_token_the_command_makes_one() -> None:
    code = "import sys; from llm_envs.cli.main import main; sys.exit(main(['serve-envs', '--port', '0']))"
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert re.fullmatch(rf"export {TOKEN_VARIABLE}=\S{{32}}\n", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
