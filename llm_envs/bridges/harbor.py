"""Harbor (terminal-bench 2): episodes of ours as folders of its tasks, for agents that work in a container.

    export_harbor("llm/FileSystem-v0", "harbor/files", n=5, env_kwargs={"difficulty": "hard"})

A task is the instruction, an image, a solution by the oracle, and a script that scores the agent's folder `/app` with
the scorer of the environment. The script runs in a separate container, because it needs this package, which also
contains the oracle.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from llm_envs.env import SingleTurnEnv, TextEnv
from llm_envs.errors import BridgeError, InvalidConfigError
from llm_envs.problems import canonical_json
from llm_envs.rollout.workers.runner import EnvMaker
from llm_envs.sources.source import SeedSource
from llm_envs.spaces import MAX_TEXT_LENGTH
from llm_envs.tasks.tools.shell import Shell

__all__ = ["export_harbor", "main", "score_folder"]

ANSWER, ROOT, EPISODE = "answer.txt", "root", "episode.json"
_MAX_FILES = 10_000
_MAX_FILE_BYTES = 1 << 20
"""An agent may leave anything. A tree beyond these limits is not read, and is not the right one."""

_TASK = """\
schema_version = "1.4"
artifacts = ["/app"]

[task]
name = {name}
description = {description}

[metadata]
env_id = {env_id}
split = {split}
seed = {seed}

[agent]
timeout_sec = {timeout_s}

[verifier]
timeout_sec = 300.0
environment_mode = "separate"

[verifier.environment]
build_timeout_sec = 600.0

[environment]
build_timeout_sec = 600.0
"""
_IMAGE = "FROM python:3.12-slim\n"
_TEST = """\
#!/bin/bash
# Scores the agent's folder /app. APP and LOGS are for a run outside a container.
app="${APP:-/app}" logs="${LOGS:-/logs/verifier}" here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$logs"
rm -f "$logs/reward.txt" "$logs/reward.json"
cd "$here"  # a folder llm_envs in the agent's folder must not be imported
python3 -m llm_envs.bridges.harbor "$here/episode.json" "$app" "$logs/reward.json"
"""
_SOLVE = """\
#!/bin/bash
# The oracle's solution. APP is for a run outside a container.
set -e
app="${APP:-/app}" here="$(cd "$(dirname "$0")" && pwd)"
"""
_ASK_REPLY = "Write your reply, in the form that is asked for above, to the file `/app/answer.txt`."
_ASK_TREE = (
    "The folder / of this task is the folder `/app/root` here: /a/b.txt above is `/app/root/a/b.txt`. Use your own "
    "shell and editor in place of tools that the text names. At the end write your answer, in the form that is asked "
    "for above, to the file `/app/answer.txt`."
)


def export_harbor(
    env_id: str,
    folder: str | Path,
    *,
    n: int = 10,
    split: str = "train",
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    install: str = "llm-envs",
    timeout_s: float = 900.0,
) -> list[Path]:
    """Write episodes of an environment as tasks of Harbor, and return their folders.

    They are the episodes that `evaluate` plays with this seed.

    Args:
        env_id: A task of one turn, or one whose tools work on a tree of files (`llm/FileSystem-v0`,
            `llm/FixRepository-v0`).
        folder: A new folder; each task gets a folder in it.
        n: Number of tasks.
        split: "train" or "test".
        seed: Decides which problems are exported.
        env_kwargs: Arguments of the environment.
        install: Argument of `pip install` in the verifier's image: a version, an address, or an extra that the scorer
            needs ("llm-envs[tools]").
        timeout_s: Seconds that an agent has.

    Raises:
        InvalidConfigError: If the environment is of another kind, the folder exists, or `n` is not positive.
        BridgeError: If the oracle does not solve a problem.
    """
    folder = Path(folder)
    if n < 1:
        raise InvalidConfigError(f"n={n!r}: give the number of tasks to export, at least 1.")
    if folder.exists():
        raise InvalidConfigError(f"{folder} exists already: choose another name.")
    kwargs = {**(env_kwargs or {}), "split": split}
    source = SeedSource(env_id, seed=seed, env_kwargs=kwargs)
    name = re.sub(r"[^a-z0-9]+", "-", env_id.lower()).strip("-")
    written = []
    for index in range(n):
        spec = source.spec(index)
        episode = {"env_id": env_id, "env_kwargs": kwargs, "seed": spec.seed}
        settings = {
            "name": f"llm-envs/{name}-{index:05d}",
            "description": f"An episode of {env_id}.",
            "env_id": env_id,
            "split": split,
            "seed": spec.seed,
            "timeout_s": float(timeout_s),
        }
        toml = _TASK.format(**{key: json.dumps(value) for key, value in settings.items()})
        target = folder / f"{name}-{index:05d}"
        with closing(_make(episode)) as env:
            _write_task(env, episode, target, toml, install)
        written.append(target)
    return written


def _write_task(env: TextEnv, episode: dict[str, Any], target: Path, toml: str, install: str) -> None:
    observation, info = env.reset(seed=episode["seed"])
    if len(info.get("messages") or ()) > 1:
        raise InvalidConfigError(f"{episode['env_id']}: the prompt is a conversation, and an instruction is one text.")
    machine = _machine(env)
    instruction = "\n\n".join(text for text in (env.written_instructions(), observation) if text)
    image = f"{_IMAGE}WORKDIR /app\n"
    if machine is not None:
        _write_tree(target / "environment" / ROOT, machine.files, machine.folders)
        image += f"COPY {ROOT}/ /app/{ROOT}/\nRUN {_make_folders(machine.folders, f'/app/{ROOT}')}\n"
    answer, files, folders = _solve(env, machine, episode)
    solve = _SOLVE
    if machine is not None:
        _write_tree(target / "solution" / ROOT, files, folders)
        solve += f'rm -rf "$app/{ROOT}"\ncp -R "$here/{ROOT}" "$app/{ROOT}"\n'
        solve += _make_folders(folders, f'"$app/{ROOT}"') + "\n"
    _write(target / "task.toml", toml)
    _write(target / "instruction.md", f"{instruction}\n\n{_ASK_REPLY if machine is None else _ASK_TREE}\n")
    _write(target / "environment" / "Dockerfile", image)
    _write(target / "solution" / ANSWER, answer)
    _write(target / "solution" / "solve.sh", f'{solve}cp "$here/{ANSWER}" "$app/{ANSWER}"\n', is_script=True)
    _write(target / "tests" / EPISODE, canonical_json({**episode, "observation": observation}))
    _write(target / "tests" / "test.sh", _TEST, is_script=True)
    build = f"RUN pip install --no-cache-dir {shlex.quote(install)}\nWORKDIR /app\nCOPY . /tests/\n"
    _write(target / "tests" / "Dockerfile", _IMAGE + build)


def _solve(env: TextEnv, machine: Shell | None, episode: Mapping[str, Any]) -> tuple[str, dict[str, str], set[str]]:
    """Play the oracle; return its last reply, and the tree before it."""
    while True:
        action = env.oracle()
        files, folders = ({}, set()) if machine is None else (dict(machine.files), set(machine.folders))
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            if not info["is_success"]:
                raise BridgeError(f"{episode['env_id']}: the oracle does not solve the problem of {episode['seed']}.")
            return action, files, folders


def score_folder(episode: Mapping[str, Any], app: Path) -> dict[str, float]:
    """Return the environment's reward for an agent's folder, and whether it is a success.

    Raises:
        BridgeError: If this version of the environment asks something else with the same seed.
    """
    with closing(_make(episode)) as env:
        observation, _ = env.reset(seed=episode["seed"])
        if observation != episode["observation"]:
            raise BridgeError(f"{episode['env_id']}: this version asks something else: install the one that exported.")
        try:
            with (app / ANSWER).open(encoding="utf-8", errors="replace") as file:
                answer = file.read(MAX_TEXT_LENGTH + 1)
        except OSError:
            return {"reward": 0.0, "success": 0.0}
        machine = _machine(env)
        if machine is not None:
            machine.files, machine.folders = _read_tree(app / ROOT)
        _, reward, terminated, _, info = env.step(answer.strip())
        return {"reward": float(reward), "success": float(terminated and info["is_success"])}


def main(arguments: Sequence[str]) -> int:
    """Score a folder: the arguments are the episode's file, the agent's folder, and the file for the reward."""
    episode, app, target = map(Path, arguments)
    scores = score_folder(json.loads(episode.read_text(encoding="utf-8")), app)
    target.write_text(json.dumps(scores), encoding="utf-8")
    print(scores)
    return 0


def _make(episode: Mapping[str, Any]) -> TextEnv:
    env = EnvMaker(episode["env_id"], episode["env_kwargs"])().unwrapped
    if not isinstance(env, TextEnv):
        raise InvalidConfigError(f"{episode['env_id']} is not a TextEnv, so it lacks an oracle.")
    return env


def _machine(env: TextEnv) -> Shell | None:
    """Return the tree of files that the tools of a reset environment work on; None for a task of one turn.

    Raises:
        InvalidConfigError: If it is of another kind.
    """
    for value in vars(env).values():
        machine = getattr(value, "machine", None)
        if isinstance(machine, Shell):
            return machine
    if isinstance(env, SingleTurnEnv):
        return None
    raise InvalidConfigError(
        f"{type(env).__name__} answers in several turns, which a folder of files cannot. Export a task of one turn, "
        "llm/FileSystem-v0 or llm/FixRepository-v0."
    )


def _write(path: Path, text: str, is_script: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    if is_script:
        path.chmod(0o755)


def _write_tree(root: Path, files: Mapping[str, str], folders: Iterable[str]) -> None:
    for path in folders:
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        _write(root / path.lstrip("/"), text)


def _make_folders(folders: Iterable[str], root: str) -> str:
    """Return a command that makes folders: archives and repositories may leave out those that are empty."""
    return f"mkdir -p {' '.join(root + shlex.quote(path) for path in sorted(folders))}"


def _read_tree(root: Path) -> tuple[dict[str, str], set[str]]:
    """Return the files and folders below a folder. A link or a device is a file that no task wants."""
    files, folders = dict[str, str](), {"/"}
    for at, names, others in os.walk(root):
        for name in [*names, *others]:
            path = Path(at) / name
            inner = "/" + path.relative_to(root).as_posix()
            if len(files) + len(folders) > _MAX_FILES:
                return {}, {"/"}
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                files[inner] = "(not a regular file)"
            elif path.is_dir():
                folders.add(inner)
            else:
                with path.open("rb") as file:
                    files[inner] = file.read(_MAX_FILE_BYTES).decode("utf-8", errors="replace")
    return files, folders


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
