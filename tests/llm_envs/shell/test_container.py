"""A client of containers is told the limits and the folders, and a shell in an image behaves as any other."""

import os
import re
import socket
import threading

import pytest
from shells import CONTAINER, make_shell

from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.shell import CLIENTS, ShellLimits, open_shell
from llm_envs.shell.container import ContainerRuntime

needs_container = pytest.mark.skipif(not CONTAINER, reason="needs LLM_ENVS_TEST_CONTAINER")


@pytest.mark.parametrize("client", ["podman", "docker"])
def test_the_client_is_told_limits_and_folders(client):
    limits = ShellLimits(memory_bytes=64 << 20, disk_bytes=1 << 20, processes=36)
    command = list(ContainerRuntime(CLIENTS[client], "image:1", limits, None, ["/opt"])._command("/tmp/ours"))
    assert command[0] == client
    assert command[-1] == "image:1"
    assert {"--network=none", "--read-only", "--memory=67108864", "--pids-limit=100", "--shm-size=1048576"} < {*command}
    assert [part for part in command if part.startswith("--volume")] == [
        "--volume=/tmp/ours:/run/llm-envs:ro",
        "--volume=/opt:/opt:ro",
    ]


def test_two_shells_have_two_users():
    runtime = ContainerRuntime(("{user}",), "", ShellLimits(), None, [])
    assert len({*(next(runtime._command("")) for _ in range(20))}) > 1


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (("no-such-client", "{image}"), "No such file.*no-such-client"),
        (("sh", "-c", "echo no {image} >&2"), "no debian"),
    ],
)
def test_a_client_that_does_not_work_is_named_with_what_it_said(client, said):
    with open_shell(client, image="debian") as shell, pytest.raises(SandboxError, match=said):
        shell.run("true")


@pytest.mark.parametrize(("runtime", "image"), [("podman", None), ("namespaces", "debian"), (("docker",), None)])
def test_an_image_belongs_to_a_client(runtime, image):
    with pytest.raises(InvalidConfigError, match=re.escape(f"image is {image!r} with runtime={runtime!r}")):
        open_shell(runtime, image=image)


@needs_container
def test_state_snapshot_and_read_only_folders():
    with make_shell("container", limits=ShellLimits(timeout_s=30.0), folders=["/usr/share"]) as shell:
        assert {*shell.run("ls -A /usr/share").output.split()} == {*os.listdir("/usr/share")}
        shell.run("mkdir -m 700 a; cd a; x=5; echo 1 > f")
        kept = shell.snapshot()
        shell.run("rm f; x=6; touch /dev/shm/left; chmod 000 /workspace")
        shell.restore(kept)
        said = shell.run("pwd; echo $x; cat f; stat -c %a .; ls /dev/shm; touch /usr/a").output.splitlines()
        assert said[:4] == ["/workspace/a", "5", "1", "700"]
        assert said[4:] == ["touch: cannot touch '/usr/a': Read-only file system"]


@needs_container
def test_an_endpoint_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].sendall(b"here"), daemon=True).start()
        port = server.getsockname()[1]
        with make_shell("container", endpoint=("127.0.0.1", port)) as shell:
            assert shell.run(f"cat < /dev/tcp/127.0.0.1/{port}").output == "here"
