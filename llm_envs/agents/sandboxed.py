"""A preset's agent in a sandbox: it sees its own program, the task's folder and our endpoint, and nothing else.

1. The agent is installed on this machine. The sandbox shows its folder read-only and starts it without an account.
2. It works in the shell's folder, with the task's files there. Its settings are in another one, and end with the shell.
3. It runs in the background of the shell, so that the thread that waits for it can end it.
4. A task's check runs in a second shell, without a network, that has a copy of the folder: nothing that the agent has
   left running can reach it, and the task's own files are put back first.
"""

from __future__ import annotations

import os
import shlex
import shutil
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

from llm_envs.agents.job import AgentError, OnCancel
from llm_envs.agents.presets import find_preset
from llm_envs.agents.server import Endpoint
from llm_envs.agents.task import EnvTask
from llm_envs.errors import InvalidConfigError
from llm_envs.shell import HOME, Shell, ShellLimits, open_shell
from llm_envs.types import Trajectory

__all__ = ["SandboxedAgent", "check_passed"]

_AGENT = "/dev/shm/agent"
"""The agent's home. Codex refuses one below /tmp."""
_POLL_S = 1
_MAX_OUTPUT = 1 << 20
_TAIL = 2000
"""Characters of a failed agent's errors that are kept."""
_START = f"""
mkfifo {_AGENT}/ended
(bash {_AGENT}/start </dev/null >{_AGENT}/out 2>{_AGENT}/err; echo $? >{_AGENT}/code; echo >{_AGENT}/ended) &
echo $! >{_AGENT}/pid
"""
_WAIT = f"""
read -t {_POLL_S} -r <>{_AGENT}/ended || ! kill -0 $(cat {_AGENT}/pid) 2>/dev/null || exit_code=running
[[ $exit_code == running ]] && echo running || cat {_AGENT}/code 2>/dev/null || echo 137
exit_code=
"""
_PYTHON = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Runs a program with the packages in its own folder, and leaves no variable behind that other programs would see."""


@dataclass(frozen=True)
class SandboxedAgent:
    """An agent as it is published, run in a sandbox. `AgentEnv("codex", ...)` makes it with its defaults.

    A task of a list has `instruction`, and may have `files` (path -> text), `check` (a command) and `check_files`: the
    agent does not see these, and they replace files of the same name before the check. The result is a dict: `output`
    of the agent, and `check` with its `exit_code` and `output`, None without one.

    An environment must have `ShellTools`. The agent gets its messages as one text, its files and its variables; the
    environment gets the changed files, and then the answer "done".

    Args:
        name: A preset.
        executable: The program; None: found by PATH.
        runtime: See `open_shell`; "process" isolates nothing and is refused.
        limits: Of the agent's shell, and of the check's.

    Raises:
        InvalidConfigError: If the preset does not exist, its program is not installed, or the runtime isolates nothing.
    """

    name: str
    executable: str | None = None
    runtime: str = "namespaces"
    limits: ShellLimits = field(default_factory=lambda: ShellLimits(memory_bytes=2 << 30, disk_bytes=512 << 20))

    def __post_init__(self) -> None:
        """Check that it can run."""
        preset = find_preset(self.name)
        if self.runtime == "process":
            raise InvalidConfigError(
                f"{self.name}: runtime='process' isolates nothing, and the agent runs commands without asking."
            )
        if not os.access(self._program, os.X_OK):
            given = f"no program at {self.executable}" if self.executable else f"no program {preset.program!r} in PATH"
            raise InvalidConfigError(
                f"{self.name}: there is {given}. Install it ({preset.install}), or give SandboxedAgent(executable=...)."
            )

    @property
    def marks(self) -> tuple[str, ...]:
        """See `PolicySession`."""
        return find_preset(self.name).marks

    def play(self, endpoint: Endpoint, on_cancel: OnCancel, task: Mapping[str, Any] | EnvTask) -> Any:
        """Play one episode; return its result."""
        cancelled = threading.Event()
        on_cancel(cancelled.set)
        where = urlsplit(endpoint.base_url)
        assert where.hostname is not None and where.port is not None
        address = (where.hostname, where.port)
        with closing(self._open(endpoint=address, folders=self._installed()[1])) as shell:
            if isinstance(task, EnvTask):
                return self._in_environment(shell, endpoint, cancelled, task)
            for path, text in task.get("files", {}).items():
                shell.write(path, text.encode())
            output = self._run(shell, endpoint, cancelled, str(task["instruction"]))
            return {"output": output, "check": self._checked(shell, task) if task.get("check") else None}

    def _open(self, **settings: Any) -> Shell:
        return open_shell(self.runtime, limits=self.limits, **settings)

    def _in_environment(self, shell: Shell, endpoint: Endpoint, cancelled: threading.Event, task: EnvTask) -> str:
        theirs = task.shell
        before = theirs.snapshot()
        shell.restore(before)
        self._run(shell, endpoint, cancelled, "\n\n".join(message["content"] for message in task.messages))
        shell.run(f"rm -rf {_AGENT}")
        theirs.restore(replace(shell.snapshot(), folder=before.folder, variables=before.variables))
        return task.answer("done")

    def _checked(self, shell: Shell, task: Mapping[str, Any]) -> dict[str, Any]:
        shell.run(f"rm -rf {_AGENT}")
        with closing(self._open()) as other:
            other.restore(replace(shell.snapshot(), folder=HOME, variables=""))
            for path, text in task.get("check_files", {}).items():
                other.write(path, text.encode())
            result = other.run(f"export PYTHONNOUSERSITE=1\n{task['check']}")
            return {"exit_code": result.exit_code, "output": result.output}

    def _run(self, shell: Shell, endpoint: Endpoint, cancelled: threading.Event, prompt: str) -> str:
        """Run the agent to its end; return what it prints."""
        self._prepare(shell, endpoint, prompt)
        shell.run(_START)
        while (code := shell.run(_WAIT).output.strip()) == "running":
            if cancelled.is_set():
                raise AgentError(f"{self.name} was cancelled.")
        if code != "0":
            said = shell.run(f"tail -c {_TAIL} {_AGENT}/err {_AGENT}/out").output.strip()
            raise AgentError(f"{self.name} ended with {code}: {said or 'it wrote no error'}")
        shell.run(f"tail -c {_MAX_OUTPUT} {_AGENT}/out >{_AGENT}/said")
        return shell.read(f"{_AGENT}/said").decode(errors="replace").strip()

    def _prepare(self, shell: Shell, endpoint: Endpoint, prompt: str) -> None:
        """Write the agent's files, and the script that starts it."""
        preset, (command, _) = find_preset(self.name), self._installed()
        prompt_file = f"{_AGENT}/prompt"
        places = {"url": endpoint.base_url, "key": endpoint.api_key, "anthropic": endpoint.anthropic_url}
        places |= {"child": endpoint.child.base_url, "home": _AGENT, "prompt": prompt_file}
        variables = {"HOME": _AGENT, "NO_PROXY": urlsplit(endpoint.base_url).hostname or "", **preset.variables}
        lines = [f"export {name}={shlex.quote(_filled(value, places))}" for name, value in variables.items()]
        if (node := _node_folder()) is not None:
            lines.append(f"export PATH={shlex.quote(node)}/bin:$PATH")
        lines.append(f"exec {shlex.join(command)} {_filled(preset.arguments, places)}")
        texts = {path: _filled(text, places) for path, text in preset.files.items()}
        for path, text in {**texts, "prompt": prompt, "start": "\n".join([*lines, ""])}.items():
            shell.write(f"{_AGENT}/{path}", text.encode())

    @property
    def _program(self) -> str:
        return self.executable or shutil.which(find_preset(self.name).program) or ""

    def _installed(self) -> tuple[list[str], list[str]]:
        """Return the command that starts the program, and the folders that it needs."""
        program = Path(os.path.realpath(self._program))
        node = _node_folder()
        if "node_modules" in program.parts:
            place = program.parts.index("node_modules") + 1
            return [str(program)], _outside_system([str(Path(*program.parts[:place])), *([node] if node else [])])
        with program.open("rb") as file:
            is_python = b"python" in file.readline(200) and find_preset(self.name).registry == "pip"
        if not is_python:
            return [str(program)], _outside_system([str(program.parent)])
        root = program.parent.parent
        settings = root / "pyvenv.cfg"
        if not settings.exists():  # pip install --target
            return ["python3", "-c", _PYTHON, str(root), str(program)], _outside_system([str(root)])
        base = next(
            line.partition("=")[2].strip() for line in settings.read_text().splitlines() if line.startswith("home")
        )
        return [f"{root}/bin/python", str(program)], _outside_system([str(root), str(Path(base).parent)])


def check_passed(result: Any, trajectory: Trajectory) -> float:
    """Return 1 if a task's check has passed, else 0: a reward function for the tasks of a `SandboxedAgent`."""
    return float(result is not None and result["check"] is not None and result["check"]["exit_code"] == 0)


def _filled(text: str, places: Mapping[str, str]) -> str:
    return Template(text).safe_substitute(places)


def _node_folder() -> str | None:
    """Return the folder of Node, if it is none of the system."""
    node = shutil.which("node")
    folder = None if node is None else str(Path(os.path.realpath(node)).parent.parent)
    return folder if folder is not None and _outside_system([folder]) else None


def _outside_system(folders: list[str]) -> list[str]:
    """Leave out folders that every sandbox shows."""
    return [folder for folder in folders if not f"{folder}/".startswith("/usr/")]
