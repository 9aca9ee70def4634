"""Every attack of `attacks.py` fails in every backend, within the limits, and the run goes on.

What must not have happened is looked at from outside: no token of the host in the output, no file or folder changed, no
connection to a listening port, no bystander killed, no process, folder or descriptor left behind.
"""

import os
import re
import runpy
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from sandboxes import BACKENDS

import llm_envs
from llm_envs.sandbox import SandboxLimits

pytestmark = pytest.mark.slow

ATTACKS = runpy.run_path(str(Path(__file__).with_name("attacks.py")))["ATTACKS"]
LIMITS = SandboxLimits(
    timeout_s=0.25, memory_bytes=48 << 20, recursion_depth=200, output_characters=500, file_bytes=1 << 20
)
MARGIN_S = 60.0
"""For what comes after the limit: the worker is killed and reaped, on a machine that does other things too."""
VARIABLE = "LLM_ENVS_TEST_SECRET"


class Host:
    """What the attacks are after."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(16)
        self.replaced = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = self.token
        self.outside = folder / "outside"
        self.outside.mkdir()
        self.outside.chmod(0o777)  # nothing but the sandbox keeps anyone out
        self.secret = self.outside / "secret"
        self.secret.write_text(self.token)
        self.secret.chmod(0o666)
        for parent in folder.parents:
            if parent.stat().st_uid == os.getuid() and parent != Path("/") and str(parent).startswith("/tmp/"):
                parent.chmod(parent.stat().st_mode | 0o055)
        folder.chmod(0o755)
        self.bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.connections = 0
        self.listeners = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self.listeners[1].bind(str(self.outside / "socket"))
        self.listeners[1].listen()
        os.chmod(self.outside / "socket", 0o777)
        self.port = self.listeners[0].getsockname()[1]
        for listener in self.listeners:
            threading.Thread(target=self._count, args=(listener,), daemon=True).start()
        self.before = self.look()

    def _count(self, listener: socket.socket) -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return
            self.connections += 1

    def look(self) -> object:
        """Return everything that an attack could have changed."""
        files = {
            str(path): (path.stat().st_mode, path.stat().st_size, path.read_text() if path.is_file() else None)
            for path in (self.outside, *self.outside.rglob("*"))
        }
        return files, self.connections, self.bystander.poll(), os.environ[VARIABLE]

    def fill_in(self, code: str) -> str:
        values = {
            "SECRET": self.secret,
            "OUTSIDE": self.outside,
            "PORT": self.port,
            "VARIABLE": VARIABLE,
            "HOST_PID": os.getpid(),
            "BYSTANDER": self.bystander.pid,
            "PROJECT": Path(llm_envs.__file__).resolve().parents[1],
        }
        for name, value in values.items():
            code = code.replace(f"@{name}@", str(value))
        return code

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
        self.bystander.kill()
        self.bystander.wait()
        if self.replaced is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = self.replaced


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


@pytest.fixture(scope="module", params=BACKENDS)
def sandbox(request):
    with BACKENDS[request.param](LIMITS) as sandbox:
        yield sandbox


def test_the_corpus_is_large_enough():
    """At least 60, of every kind that the sandbox is to withstand."""
    assert len(ATTACKS) >= 60
    assert len({(attack.category, attack.name) for attack in ATTACKS}) == len(ATTACKS)
    kinds = {"files", "network", "system", "processes", "memory", "time", "recursion", "integers", "output"}
    assert kinds | {"introspection", "regular expressions"} <= {attack.category for attack in ATTACKS}


def test_the_page_lists_the_corpus():
    page = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "sandbox.md").read_text()
    listed = {kind: int(n) for kind, n in re.findall(r"^\| ([a-z ]+) \| (\d+) \|", page, re.MULTILINE)}
    assert listed == Counter(attack.category for attack in ATTACKS)
    assert f"holds {len(ATTACKS)} attacks" in page


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.category}-{attack.name}".replace(" ", "_"))
def test_attack_fails_and_the_run_goes_on(attack, sandbox, host):
    session = sandbox.session()
    try:
        started = time.perf_counter()
        result = session.run(host.fill_in(attack.code))
        assert time.perf_counter() - started < LIMITS.timeout_s + MARGIN_S
        assert host.token not in result.output
        assert "ESCAPED" not in result.output.replace(traceback_of(result.output), "")
        assert len(result.output) < LIMITS.output_characters + 300
        assert result.value is None or len(result.value) < LIMITS.output_characters + 100
        result.output.encode()
        assert host.look() == host.before
        for _ in range(20):
            after = session.run("n = 40\nn + 2")
            if after.stopped != "time":  # the machine may have been busy for so long
                break
        assert (after.value, after.error) == ("42", None)
    finally:
        session.close()
    assert host.look() == host.before


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("files", "open a secret"),
        ("files", "write outside"),
        ("files", "append to a secret"),
        ("network", "connect"),
        ("network", "unix socket"),
        ("system", "environment"),
        ("system", "system"),
        ("processes", "kill a bystander"),
        ("introspection", "subclasses"),
    ],
)
def test_without_a_sandbox_the_attack_is_seen_to_succeed(category, name, tmp_path):
    """What tells the other tests that an attack has failed would have told them that it has not."""
    code = next(attack.code for attack in ATTACKS if (attack.category, attack.name) == (category, name))
    host = Host(tmp_path)
    try:
        done = subprocess.run([sys.executable, "-c", host.fill_in(code)], capture_output=True, text=True, timeout=120)
        seen = host.token in done.stdout or "ESCAPED" in done.stdout
        for _ in range(3_000):  # a signal and the listener's thread take their time
            if seen or (seen := host.look() != host.before):
                break
            time.sleep(0.01)
        assert seen
    finally:
        host.close()


def traceback_of(output: str) -> str:
    """Return the part of an output that quotes the code, which may well say ESCAPED."""
    start = output.find("Traceback (most recent call last)")
    if start < 0:
        start = output.find("[...]")
    return output[start:] if start >= 0 else ""
