"""`llm-envs new-task NAME`: write a task that works, with its test, to be replaced line by line.

Inside a checkout of the suite the task goes into a family's folder and its id into `pyproject.toml`; anywhere else, or
with `--package`, into a package of its own whose entry point puts it into the registry of everyone who installs it.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_envs.cli.next_line import name_next
from llm_envs.cli.parser import Flag
from llm_envs.errors import InvalidConfigError
from llm_envs.registration import task_ids

__all__ = ["NewTask", "add_arguments", "files_in_suite", "files_of_package", "run", "write_files"]

KINDS = ("single", "tool", "game")
_TEMPLATE = "llm_envs.tasks._template"
_GROUP = '[project.entry-points."llm_envs.tasks"]'

EXAMPLES = """
examples:
  llm-envs new-task word_ladder --game                  # in a checkout of the suite: tasks/games/word_ladder.py
  llm-envs new-task word_ladder --game --package        # anywhere: a package word-ladder, id my/WordLadder-v0
  llm-envs new-task rhymes --package --namespace poets  # id poets/Rhymes-v0
"""

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
description = "{id}, a task for llm-envs"
requires-python = ">=3.11"
dependencies = ["llm-envs"]

# Installing this package is all that it takes: `import llm_envs` finds the task here.
[project.entry-points."llm_envs.tasks"]
"{id}" = "{module}:{cls}"

[tool.setuptools]
packages = ["{package}"]
"""
_README = """\
# {distribution}

`{id}`, a task for llm-envs.

llm-envs is on no package index yet. Install it from a checkout first, or pip looks for it there and fails:

```
pip install -e PATH/TO/llm-envs
pip install -e .
llm-envs check {id} --all-levels --thorough
llm-envs play {id}
pytest
```
"""


@dataclass(frozen=True, slots=True)
class NewTask:
    """The name of a task in all its forms.

    Raises:
        InvalidConfigError: If the name is not a Python identifier, or the id is taken.
    """

    name: str
    """Words with underscores: `word_ladder`. Given with capitals or dashes, it is changed to that."""
    kind: str
    """One of `KINDS`."""
    namespace: str

    def __post_init__(self) -> None:
        """Check the name, the namespace and the id."""
        name = self.name.lower().replace("-", "_")
        if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) is None or keyword.iskeyword(name):
            raise InvalidConfigError(
                f"the name is {self.name!r}; it must be words in lower case with underscores, such as word_ladder."
            )
        object.__setattr__(self, "name", name)
        if re.fullmatch(r"[\w-]+", self.namespace) is None:
            raise InvalidConfigError(f"the namespace is {self.namespace!r}; it must be letters, digits, _ and -.")
        if self.id in task_ids():
            raise InvalidConfigError(f"{self.id} is registered already: choose another name or --namespace.")

    @property
    def title(self) -> str:
        """`WordLadder`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def cls(self) -> str:
        """`WordLadderEnv`."""
        return f"{self.title}Env"

    @property
    def id(self) -> str:
        """`my/WordLadder-v0`."""
        return f"{self.namespace}/{self.title}-v0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `run` takes."""
    parser.add_argument("name", metavar="NAME", help="words with underscores: word_ladder")
    kinds = parser.add_mutually_exclusive_group()
    for kind, about in zip(
        KINDS, ("one question, one reply (default)", "tools to call before answering", "several moves"), strict=True
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, default="single", help=about)
    parser.add_argument("--package", action=Flag, help="write a package in a new folder")
    parser.add_argument("--namespace", help="namespace of the id; default: llm in a checkout, else my")
    parser.add_argument(
        "--family", metavar="NAME", help="family of the task, in a checkout a folder of tasks/; default: by kind"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="output folder; default: the current one"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the files and say what to do next."""
    if arguments.package:
        if arguments.family:
            raise InvalidConfigError("--family is a folder of a checkout; leave it out with --package.")
        task = NewTask(arguments.name, arguments.kind, arguments.namespace or "my")
        root = arguments.out / task.name.replace("_", "-")
        written = write_files(root, files_of_package(task))
        then = [f"pip install -e {root}"]
    else:
        _require_checkout(arguments.out)
        task = NewTask(arguments.name, arguments.kind, arguments.namespace or "llm")
        family = arguments.family or {"single": "algorithmic", "tool": "tools", "game": "games"}[arguments.kind]
        written = write_files(arguments.out, files_in_suite(task, family, arguments.out))
        then = ["make test PYTEST_ARGS='-k nothing'   # installs the entry point"]
    print(f"{task.id}, written:")
    print("\n".join(f"  {path}" for path in written))
    print("It works as it is. Replace it line by line, and look at it with")
    print("\n".join(f"  {line}" for line in [*then, f"llm-envs check {task.id}", f"llm-envs play {task.id}"]))
    name_next("check", task.id)


def files_of_package(task: NewTask) -> dict[str, str]:
    """Return the files of a separate package, by path."""
    names = {"distribution": task.name.replace("_", "-"), "id": task.id, "cls": task.cls, "package": task.name}
    names["module"] = f"{task.name}.task"
    return {
        "pyproject.toml": _PYPROJECT.format(**names),
        "README.md": _README.format(**names),
        f"{task.name}/__init__.py": f'"""`{task.id}`, a task for llm-envs."""\n',
        f"{task.name}/task.py": _filled(f"{task.kind}.py", task),
        f"tests/test_{task.name}.py": _filled(f"test_{task.kind}.py", task),
    }


def files_in_suite(task: NewTask, family: str, root: Path) -> dict[str, str]:
    """Return the files of a task in the suite, by path. They include `pyproject.toml` with the new entry point.

    Raises:
        InvalidConfigError: If the family does not exist.
    """
    families = sorted(path.parent.name for path in (root / "tasks").glob("[a-z]*/__init__.py"))
    if family not in families:
        raise InvalidConfigError(f"tasks/ has no folder {family!r}; there are {', '.join(families)}.")
    return {
        f"tasks/{family}/{task.name}.py": _filled(f"{task.kind}.py", task),
        f"tests/tasks/test_{task.name}.py": _filled(f"test_{task.kind}.py", task),
        "pyproject.toml": _with_entry_point(
            (root / "pyproject.toml").read_text(encoding="utf-8"),
            f'"{task.id}" = "llm_envs.tasks.{family}.{task.name}:{task.cls}"',
        ),
    }


def write_files(root: Path, files: Mapping[str, str]) -> list[Path]:
    """Write files below a folder. The only file that may exist is a `pyproject.toml` that gains a line.

    Raises:
        InvalidConfigError: If another file exists; no file is written then. Or if one cannot be written.
    """
    paths = {root / name: text for name, text in files.items()}
    for path, text in paths.items():
        lines = Counter(path.read_text(encoding="utf-8").split("\n")) if path.exists() else None
        if lines is not None and not (path.name == "pyproject.toml" and lines < Counter(text.split("\n"))):
            raise InvalidConfigError(f"{path} exists already: choose another name, or another folder with --out.")
    for path, text in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidConfigError(f"{path} cannot be written ({error.strerror}): give --out a folder.") from error
    return list(paths)


def _with_entry_point(text: str, line: str) -> str:
    """Return a `pyproject.toml` with one more task, in alphabetical order."""
    before, found, after = text.partition(f"{_GROUP}\n")
    if not found:
        raise InvalidConfigError(f"pyproject.toml has no table {_GROUP}.")
    table, blank, rest = after.partition("\n\n")
    rows = sorted([*table.splitlines(), line], key=lambda row: row.strip('"'))
    return before + found + "\n".join(rows) + (blank or "\n") + rest


def _filled(file: str, task: NewTask) -> str:
    """Return a file of the template with the names of the task."""
    found = importlib.util.find_spec(_TEMPLATE)
    if found is None or found.origin is None:
        raise InvalidConfigError("the template of tasks is not installed: reinstall llm-envs.")
    text = (Path(found.origin).parent / file).read_text(encoding="utf-8")
    return text.replace("my/Template-v0", task.id).replace("TemplateEnv", task.cls)


def _require_checkout(folder: Path) -> None:
    """Raise an error unless the folder is the root of a checkout of the suite."""
    path = folder / "pyproject.toml"
    try:
        is_suite = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"] == "llm-envs"
    except (OSError, KeyError, ValueError):
        is_suite = False
    if not is_suite:
        raise InvalidConfigError(
            f"{folder.resolve()} is not a checkout of llm-envs: give --package to write a package, or --out."
        )
