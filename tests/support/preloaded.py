"""Programs that start at once: forks of one process that has imported torch, transformers and TRL.

Importing them takes most of the time of a short training, and the documents have some hundred programs.
`tests/test_packaging.py` starts the installed commands themselves. `folder_of_programs` returns a folder for the front
of `PATH`. Its `python` and `llm-envs` do what the real ones do, with these differences:

- What others have written is imported already (`MODULES`). Nothing of `llm_envs` is: each program imports that itself.
- A program whose environment differs in a variable that might be read during an import is started in the usual way.

A program in that folder is a client (`ask`). It sends its arguments, its folder, its variables and its three streams to
the server (`serve`), passes signals on, and ends as the fork did. If it is killed, so is the fork.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from device import is_on_card

MODULES = (
    *("torch", "transformers", "datasets", "accelerate", "peft", "trl.trainer.grpo_trainer"),
    *("trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", "transformers.models.llama.modeling_llama"),
    "gymnasium",
)
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
HARMLESS = ("PWD", "OLDPWD", "SHLVL", "_", "PYTHONPATH", "PYTHON_EXEC", "RANK", "WORLD_SIZE")
PREFIXES = ("LOCAL_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "TORCH_NCCL_", "ACCELERATE_", "FSDP_", "PYTEST_")
"""Variables in which a program may differ from the server, and how their names may begin: no import reads them, except
`PYTHONPATH`, which `become` obeys."""
PROGRAM = """\
#!/bin/sh
exec {python} -SE {here} {address} {program} "$@"
"""
REAL_PROGRAM = """\
#!/bin/sh
exec {program} "$@"
"""


@cache
def folder_of_programs() -> Path:
    """Start the server, once, and return the folder with the programs; both end with this process.

    Return the folder of the real programs where there is vLLM, which TRL would import, or no TRL. In tests on a card
    there is no server: CUDA does not work in a fork of a process that has asked for the cards, as some modules do.
    """
    if importlib.util.find_spec("vllm") is not None or importlib.util.find_spec("trl") is None:
        return Path(sys.executable).parent
    folder = Path(tempfile.mkdtemp(prefix="llm-envs-preloaded-"))
    programs = {"python": Path(sys.executable), "llm-envs": Path(sys.executable).with_name("llm-envs")}
    for name, program in programs.items():
        here = Path(__file__).resolve()
        form = REAL_PROGRAM if is_on_card() else PROGRAM
        text = form.format(python=sys.executable, here=here, address=folder / "socket", program=program)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if is_on_card():
        return folder
    # Its standard input is a pipe that nobody writes to: it ends when we do.
    subprocess.Popen(
        [sys.executable, __file__, str(folder / "socket")],
        stdin=subprocess.PIPE,
        env=_variables(folder),
        start_new_session=True,
    )
    return folder


def variables() -> dict[str, str]:
    """Return the variables of programs: that folder first, no network, no window, no colours, and the tests' device."""
    return dict(_variables(folder_of_programs()))


@cache  # modules that tests import set variables later
def _variables(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))
    ours = {"PATH": path, "HF_HUB_OFFLINE": "1", "BROWSER": "true", "NO_COLOR": "1"}
    return kept | ours | ({} if is_on_card() else {"CUDA_VISIBLE_DEVICES": ""})


# The server.


def serve(address: str) -> None:
    """Import the modules; then run a program for each client until standard input ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)  # clients wait here for the imports
    usual = dict(os.environ)
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # what all forks share is left where it is
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            os.unlink(address)
            os._exit(0)
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            attend(client, usual)
        client.close()


def attend(client: socket.socket, usual: dict[str, str]) -> None:
    """Fork the program of a client, and watch both; only the program returns from here, by an exception."""
    head, streams, _, _ = socket.recv_fds(client, 8, 3)
    (size,) = struct.unpack("q", head)
    request = json.loads(client.makefile("rb").read(size))
    if is_unusual(request["env"], usual):
        client.sendall(struct.pack("i", 1 << 16))
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        client.close()
        imported = {name: value for name, value in os.environ.items() if name not in usual}
        become(request | {"env": imported | request["env"]}, streams)
    watch(client, pid, streams)


def is_unusual(variables: dict[str, str], usual: dict[str, str]) -> bool:
    """Whether variables differ in one that might be read during an import."""
    names = {name for name, _ in variables.items() ^ usual.items()}
    return any(name not in HARMLESS and not name.startswith(PREFIXES) for name in names)


def watch(client: socket.socket, pid: int, streams: list[int]) -> NoReturn:
    """Pass signals to a program, tell its client how it ended, and end it if the client is gone."""
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([client, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(pid, 0)
            with suppress(OSError):
                client.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
            os._exit(0)
        asked = client.recv(1)
        os.kill(pid, asked[0] if asked else signal.SIGKILL)
        if not asked:
            os._exit(0)


def become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the program: its streams, folder, variables and arguments; the interpreter ends as usual."""
    import runpy
    import types

    import numpy as np

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    folders = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path[1:]]
    os.environ.clear()
    os.environ.update(request["env"])
    np.random.seed()  # or all programs would draw the same numbers
    program, *arguments = request["argv"]
    if Path(program).name.startswith("python"):
        if arguments[0] == "-u":
            arguments = arguments[1:]
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(write_through=True)
        if arguments[0] == "-c":
            sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
            sys.exit()
        if arguments[0] == "-m":
            sys.argv, sys.path[0] = arguments[1:], os.getcwd()
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            sys.exit()
        program, *arguments = arguments
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")
    sys.exit()


# The client.


def ask(address: str, argv: list[str]) -> NoReturn:
    """Have the server run a program, and end as it does; run it ourselves if the server cannot."""
    if Path(argv[0]).name.startswith("python") and not is_understood(argv[1:]):
        os.execv(argv[0], argv)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
    except OSError:
        os.execv(argv[0], argv)
    request = json.dumps({"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
    socket.send_fds(server, [struct.pack("q", len(request))], [0, 1, 2])
    server.sendall(request)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
    answer = server.recv(4)
    code = struct.unpack("i", answer)[0] if len(answer) == 4 else 1
    if code == 1 << 16:
        os.execv(argv[0], argv)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def is_understood(arguments: list[str]) -> bool:
    """Whether `become` can run Python with these arguments: a file, `-c` or `-m`, and `-u` before them."""
    rest = arguments[1:] if arguments[:1] == ["-u"] else arguments
    return len(rest) > 0 and (rest[0] in ("-c", "-m") or not rest[0].startswith("-"))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    ask(sys.argv[1], sys.argv[2:])
