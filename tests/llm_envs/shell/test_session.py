"""A shell keeps its state, a command has limits, and nothing is left."""

import io
import os
import socket
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from shells import RUNTIMES, make_shell

import llm_envs
from llm_envs.errors import InvalidActionError, InvalidConfigError, SandboxError
from llm_envs.processes import children_of
from llm_envs.shell import ShellLimits, open_shell

LIMITS = ShellLimits(timeout_s=30.0, output_characters=200)


@pytest.fixture(scope="module")
def shared():
    with make_shell(limits=LIMITS) as shell:
        yield shell


@pytest.fixture
def shell(shared):
    shared.restore(shared.empty)
    return shared


def test_folder_variables_functions_and_jobs_stay(shell):
    shell.run("mkdir -p a; cd a; x=5; f() { echo f$x; }; export y=6; sleep 600 &")
    result = shell.run("pwd; f; bash -c 'echo $y'; kill -0 $! && echo runs")
    assert (result.output, result.exit_code, result.stopped) == ("/workspace/a\nf5\n6\nruns", 0, None)


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("false", "", 1),
        ("echo out; echo err >&2", "out\nerr", 0),
        ("nosuch", "bash: line 1: nosuch: command not found", 127),
        ("return 3", "", 3),
        ("if", "bash: line 2: syntax error: unexpected end of file", 2),
        ("cat", "", 0),
        ("kill -9 $BASHPID & wait $!", None, 137),
        ("id -u; id -un; echo $HOME $PWD; hostname", "1000\nagent\n/workspace /workspace\nsandbox", 0),
    ],
)
def test_output_and_exit_code(shell, command, output, code):
    result = shell.run(command)
    assert result.exit_code == code
    assert output is None or result.output == output


def test_a_command_over_its_time_is_killed_with_what_it_has_started_and_nothing_else(shell):
    shell.run("x=5; sleep 601 &")
    result = shell.run(
        "setsid nohup sleep 602 & ( sleep 603 & ); while :; do sleep 0.1; done; echo never", timeout_s=1.0
    )
    assert (result.exit_code, result.stopped) == (124, "time")
    assert "[stopped: over the time limit of 1 s]" in result.output
    said = shell.run("echo $x; pgrep -a sleep | cut -d' ' -f2,3").output.splitlines()
    assert [line for line in said if "Killed" not in line] == ["5", "sleep 601"]


def test_a_shell_that_ends_is_replaced_in_the_same_folder(shell):
    shell.run("cd /tmp; x=5")
    ended = shell.run("exit 3")
    assert (ended.exit_code, ended.stopped) == (3, "ended")
    after = shell.run("pwd; echo [$x]")
    assert after.state_lost
    assert after.output.startswith("/tmp\n[]\n[this is a new shell")


def test_long_output_keeps_its_beginning_and_its_end(shell):
    result = shell.run("seq 1000")  # 3893 bytes
    assert result.output.startswith("1\n2\n") and result.output.endswith("\n999\n1000")
    assert "[cut: 3693 bytes]" in result.output


def test_files(shell):
    shell.write("a/b", b"x\0y")
    shell.run("cd a")
    assert shell.read("b") == shell.read("/workspace/a/b") == b"x\0y"
    with pytest.raises(InvalidActionError, match="/workspace/none"):
        shell.read("/workspace/none")
    with pytest.raises(InvalidActionError, match="/usr/x"):
        shell.write("/usr/x", b"")
    shell.run("ln -s /etc/shadow link")
    with pytest.raises(InvalidActionError, match="link"):
        shell.read("link")


def test_a_snapshot_brings_files_folder_and_variables_back_also_elsewhere(shell):
    shell.run("mkdir a; cd a; echo 1 > f; chmod 700 f; x='a b'; g() { echo $x; }; alias h='echo h'")
    kept = shell.snapshot()
    with make_shell(limits=LIMITS) as other:
        for there in (shell, other):
            there.run("cd /; rm -rf /workspace/* /tmp/*; x=9; sleep 605 &")
            there.restore(kept)
            said = there.run("pwd; stat -c %a f; cat f; g; h; pgrep sleep").output
            assert said == "/workspace/a\n700\n1\na b\nh"


def test_the_seed_decides_about_chance():
    said = []
    for seed in (1, 1, 2):
        with make_shell(limits=LIMITS, seed=seed) as shell:
            said.append(shell.run("echo $RANDOM; python3 -c 'print(hash(\"a\"))'").output)
    assert said[0] == said[1] != said[2]


def test_an_endpoint_is_reached_and_nothing_else():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"got " + connection.recv(100))

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        with make_shell(limits=LIMITS, endpoint=("127.0.0.1", port)) as shell:
            assert shell.run(f"exec 5<>/dev/tcp/127.0.0.1/{port}; echo hi >&5; cat <&5").output == "got hi"
            assert shell.run(f"exec 5<>/dev/tcp/127.0.0.1/{other.getsockname()[1]}").exit_code != 0


def test_nothing_is_left_of_many_shells():
    """No process, mount, descriptor or folder; also after bombs, and in shells that were not closed in order."""
    with open("/proc/self/mounts") as file:
        mounts = file.read()
    before = set(children_of(os.getpid())), len(os.listdir("/proc/self/fd")), set(os.listdir("/tmp"))
    for number in range(4):
        with make_shell(limits=LIMITS) as shell:
            assert shell.run(f"ls -A; echo {number} > f; cat f").output == str(number)
            shell.run("setsid nohup sleep 606 & ( ( sleep 607 & ) & )")
    after = set(children_of(os.getpid())), len(os.listdir("/proc/self/fd"))
    assert after == before[:2]
    assert not [name for name in set(os.listdir("/tmp")) - before[2] if name.startswith("shell-")]
    with open("/proc/self/mounts") as file:
        assert file.read() == mounts


def test_without_namespaces_the_error_names_them():
    """Inside a shell, which lets nothing make namespaces."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        archive.add(Path(llm_envs.__file__).parent, "llm_envs")
    program = "from llm_envs.shell import open_shell; open_shell().start()"
    if Path(sys.prefix).is_relative_to("/tmp"):
        pytest.skip("this Python is in /tmp, where a shell has its own files")
    with make_shell(limits=ShellLimits(timeout_s=60.0, output_characters=5_000), folders=(sys.prefix,)) as shell:
        if shell.run(f"{sys.executable} -c pass").exit_code:
            pytest.skip("this Python needs more folders than its own")
        shell.write("packed.tar", packed.getvalue())
        said = shell.run(f"tar -xf packed.tar; {sys.executable} -c '{program}'").output
    assert "new namespaces: Operation not permitted" in said
    assert "/proc/sys/user/max_user_namespaces" in said


def test_a_closed_shell_refuses():
    shell = open_shell()
    shell.close()
    with pytest.raises(SandboxError, match="closed"):
        shell.run("true")


@pytest.mark.parametrize("runtime", RUNTIMES[:2])
def test_a_writable_name_leads_into_the_home(runtime):
    with make_shell(runtime, writable=["/app"]) as shell:
        assert (
            shell.run("mkdir /workspace/app; cd /app; echo a > /app/b; pwd; cat /workspace/app/b").output == "/app\na"
        )
        shell.restore(shell.empty)
        assert shell.run("cat /app/b").exit_code == 1
    for arguments in ({"writable": ["/usr"]}, {"writable": ["/a/b"]}, {"writable": ["/app"], "runtime": "process"}):
        with pytest.raises(InvalidConfigError, match="writable"):
            open_shell(**arguments)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"runtime": "namespace"}, "runtime is 'namespace'.*namespaces"),
        ({"endpoint": ("127.0.0.1", 0)}, "endpoint.*0"),
        ({"folders": ["here"]}, "folders.*here"),
        ({"folders": ["/tmp/a"]}, "folders.*/tmp/a"),
    ],
)
def test_wrong_arguments(arguments, match):
    with pytest.raises(InvalidConfigError, match=match):
        open_shell(**arguments)


@pytest.mark.parametrize(("name", "value"), [("timeout_s", 0), ("memory_bytes", 1.5), ("processes", True)])
def test_wrong_limits(name, value):
    with pytest.raises(InvalidConfigError, match=f"{name} is {value}"):
        ShellLimits(**{name: value})
