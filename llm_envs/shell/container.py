"""Shells in containers: a client such as podman starts the supervisor in an image, which needs bash and Python 3.8.

The client's command is a template, so any other client is one more of them. A daemon passes no descriptors on: the
supervisor comes to a socket in a folder that the container sees, which takes one caller and is gone then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence

from llm_envs.errors import SandboxError
from llm_envs.processes import StartWatch
from llm_envs.shell.base import HOME, ShellLimits
from llm_envs.shell.confined import FIRST_UID, INSIDE, KERNEL, PULSE_S, SUPERVISOR, ConfinedRuntime

__all__ = ["CLIENTS", "ContainerRuntime"]

_RUN = (
    *("--rm", "--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"),
    *("--user={user}:{user}", "--memory={memory}", "--pids-limit={pids}", "--ulimit=nofile=1024:1024"),
    *("--ulimit=nproc={pids}:{pids}", "--shm-size={disk}", f"--tmpfs={HOME}:rw,exec,size={{disk}},mode=1777"),
    *("--tmpfs=/tmp:rw,exec,size={disk},mode=1777", "--volume={source}:{target}:ro", "{image}"),
)
CLIENTS: dict[str, tuple[str, ...]] = {
    "podman": ("podman", "run", "--read-only-tmpfs=false", *_RUN),
    "docker": ("docker", "run", *_RUN),
    "apptainer": (
        *("apptainer", "exec", "--containall", "--no-home", "--net", "--network=none", "--memory={memory}"),
        *("--pids-limit={pids}", f"--scratch={HOME}", "--bind={source}:{target}:ro", "{image}"),
    ),
}
"""Name: the template of a command that runs a program in an image, up to the program.

`{image}`, `{memory}` and `{disk}` (bytes), `{pids}` (processes) and `{user}` (an id that only this shell has) are
filled in. An argument with `{source}` and `{target}` is repeated for each folder that the container sees, read-only.
"""


class ContainerRuntime(ConfinedRuntime):
    """A sandbox that a client of containers makes.

    Args:
        template: The client's command; see `CLIENTS`.
        image: The image by name, or what else the client takes.
        limits: Of the shell.
        endpoint: Host and port that programs reach at 127.0.0.1 and the same port; None: nothing.
        folders: Folders of the host that are visible at the same place, read-only.
    """

    def __init__(
        self,
        template: Sequence[str],
        image: str,
        limits: ShellLimits,
        endpoint: tuple[str, int] | None,
        folders: Sequence[str],
    ) -> None:
        super().__init__("container", limits, endpoint, folders)
        self._template, self._image = template, image
        self._visible, self._path = list(folders), []  # the image has its own Python and PATH

    def _launch(self, folder: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start the client, and wait for the supervisor to come to our socket."""
        os.chmod(folder, 0o755)
        for path in (KERNEL, SUPERVISOR):
            shutil.copy(path, folder)
        address = os.path.join(folder, "control")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            os.chmod(address, 0o666)
            listener.listen(1)
            listener.settimeout(PULSE_S)
            program = ["python3", "-I", "-S", "-B", f"{INSIDE}/{SUPERVISOR.name}", f"{INSIDE}/control"]
            process = subprocess.Popen(
                [*self._command(folder), *program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd=folder,  # podman leaves a file there if memory runs out
            )
            try:
                control = self._accept(listener, process)
            except BaseException:
                process.kill()
                process.communicate()
                raise
        os.unlink(address)
        (self._seen,) = struct.unpack("i8x", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return process, control

    def _command(self, folder: str) -> Iterator[str]:
        """Yield the client's command with everything filled in."""
        limits = self.limits
        values = {
            "image": self._image,
            "memory": str(limits.memory_bytes),
            "disk": str(limits.disk_bytes),
            "pids": str(limits.processes + 64),  # the supervisor holds the limit itself
            "user": str(FIRST_UID + int.from_bytes(os.urandom(2), "big") % 4_000),
        }
        places = [(folder, INSIDE), *((os.path.realpath(path), path) for path in self._visible)]
        for argument in self._template:
            for source, target in places if "{source}" in argument else places[:1]:
                yield argument.format(source=source, target=target, **values)

    def _accept(self, listener: socket.socket, process: subprocess.Popen[bytes]) -> socket.socket:
        watch = StartWatch(0)  # the work is done by a daemon, or a download
        while True:
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
            if process.poll() is not None:
                assert process.stderr is not None
                said = process.stderr.read().decode("utf-8", "replace").strip()[-500:]
                raise SandboxError(self._complaint(said or "it ends immediately"))
            if complaint := watch.complaint():
                raise SandboxError(self._complaint(complaint))

    def _complaint(self, why: str | None) -> str:
        client = self._template[0]
        return (
            f"no shell can be started by {client!r} in the image {self._image!r}: {why}. The image needs bash and "
            f"Python 3.8 or newer. If {client} needs further options, give its command with them as `runtime`: "
            "llm_envs.shell.CLIENTS has those that are known."
        )
