"""Every attack of `shell_attacks.py` fails, the next command works, and nothing outside has changed."""

import os
import re
import runpy
import secrets
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from shells import RUNTIMES, make_shell

import llm_envs
from llm_envs.shell import ShellLimits

ATTACKS = runpy.run_path(str(Path(__file__).with_name("shell_attacks.py")))["ATTACKS"]
LISTED = [(kind, name) for kind, attacks in ATTACKS.items() for name in attacks]
LIMITS = ShellLimits(timeout_s=1.0, memory_bytes=100 << 20, disk_bytes=16 << 20, processes=32, output_characters=2_000)


class Host:
    """The targets of the attacks."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(16)
        self.outside = folder / "outside"
        self.outside.mkdir(mode=0o777)
        self.secret = self.outside / "secret"
        self.secret.write_text(self.token)
        self.bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.connections = 0
        self.listeners = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self.listeners.append(socket.socket(socket.AF_UNIX))
        self.listeners[1].bind(str(self.outside / "socket"))
        self.listeners[2].bind("\0" + self.token[:8])
        for listener in self.listeners:
            listener.listen()
            threading.Thread(target=self.count, args=(listener,), daemon=True).start()
        self.before = self.look()

    def count(self, listener: socket.socket) -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return
            self.connections += 1

    def look(self) -> object:
        """Return everything that an attack could have changed."""
        files = {str(path): path.stat().st_mode for path in self.outside.rglob("*")}
        return files, self.secret.read_text(), self.connections, self.bystander.poll()

    def fill_in(self, command: str) -> str:
        values = {
            "SECRET": self.secret,
            "OUTSIDE": self.outside,
            "PORT": self.listeners[0].getsockname()[1],
            "ABSTRACT": self.token[:8],
            "HOST": os.getpid(),
            "BYSTANDER": self.bystander.pid,
            "PROJECT": Path(llm_envs.__file__).resolve().parents[1],
        }
        for name, value in values.items():
            command = command.replace(f"@{name}@", str(value))
        return command

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
        self.bystander.kill()
        self.bystander.wait()


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


@pytest.fixture(scope="module", params=RUNTIMES)
def shell(request):
    with make_shell(request.param, limits=LIMITS) as shell:
        yield shell


def test_the_page_lists_the_corpus():
    page = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "sandbox.md").read_text()
    listed = {kind: int(n) for kind, n in re.findall(r"^\| shell: (\w+) \| (\d+) \|", page, re.MULTILINE)}
    assert listed == Counter(kind for kind, _ in LISTED)


@pytest.mark.parametrize(("kind", "name"), LISTED, ids=lambda word: word.replace(" ", "_"))
def test_attack_fails_and_the_next_command_works(kind, name, shell, host):
    result = shell.run(host.fill_in(ATTACKS[kind][name]))
    assert host.token not in result.output
    assert "ESCAPED" not in result.output
    assert len(result.output) < LIMITS.output_characters + 500
    shell.restore(shell.empty)  # of whatever is left, only the sandbox itself stays
    assert shell.run("cd /workspace; ls; echo $((40 + 2))", timeout_s=60.0).output.splitlines()[-1:] == ["42"]
    assert host.look() == host.before


@pytest.mark.parametrize("name", ["read a secret", "write outside", "connect", "kill a bystander"])
def test_without_a_sandbox_the_attack_is_seen_to_succeed(name, tmp_path):
    """The checks of the other test fail where an attack succeeds."""
    host = Host(tmp_path)
    command = next(attacks[name] for attacks in ATTACKS.values() if name in attacks).replace("; kill -9 @HOST@", "")
    try:
        with make_shell("process", limits=LIMITS) as shell:
            said = shell.run(host.fill_in(command), timeout_s=60.0).output
        if name == "kill a bystander":
            host.bystander.wait(60)
        assert host.token in said or "ESCAPED" in said or host.look() != host.before
    finally:
        host.close()
