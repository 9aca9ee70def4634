"""The floors of the packages, and what may be loaded where.

The rules are read from the source with `ast`: an import counts wherever it stands (inside a function, under
`TYPE_CHECKING`), and so does a module that is named in a string to `importlib.import_module` or `__import__`.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import wall
from preloaded import folder_of_programs
from preloaded import variables as preloaded_variables
from wall import FOLDERS, OUTSIDE, module_name, source_files

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    "torch",
    "transformers",
    "vllm",
    "trl",
    "datasets",
    "mcp",
    "jsonschema",
    "pydantic_monty",
    "math_verify",
    "sympy",
)

Rule = tuple[str, Callable[[str], bool], Callable[[str], bool]]


def is_in(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


FLOORS: tuple[tuple[str, ...], ...] = (
    # The rooms of llm_envs, from the ground up. A room imports from lower floors only.
    ("errors", "processes", "types"),
    ("parsers", "problems", "registration", "sandbox", "spaces", "tiny_model"),
    ("chat", "mathematics", "objects", "tools"),
    ("policies", "rewards", "shell"),
    ("env", "testing"),
    ("checker", "sources"),
    ("data", "wrappers"),
    ("tracking",),
    ("rollout",),
    ("doctor", "evaluation", "judges", "tasks"),
    ("report",),
    ("cli",),
    # The rooms of trainers stand on llm_envs, and never on tasks or cli.
    ("trainers.functional", "trainers.callbacks"),
    ("trainers.forward", "trainers.run", "trainers.schedules"),
    ("trainers.engines",),
    ("trainers.settings",),
    ("trainers.episodes",),
    ("trainers.reference",),
    ("trainers.grpo", "trainers.loop", "trainers.sft", "trainers.stock_trl"),
    ("trainers.dpo", "trainers.ppo"),
    ("trainers.cli",),
)
"""Each room of the core (a file or folder directly in `llm_envs/` or `trainers/`) on its floor.

Above them are the rooms of `wall.OUTSIDE`: they may import the core, and no module of the core imports them.
"""
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MAX_FLOORS, MAX_ROOMS = 12, {"llm_envs": 30, "trainers": 16}


def room_of(module: str) -> str:
    """Return the room of a module of ours: "rollout", "trainers.grpo", "tasks"; "" for a package's own `__init__`."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["trainers"] else 1]) if parts != ["trainers"] else ""


def floor_violations(module: str, targets: Iterable[str]) -> list[str]:
    """Return the imports of a module that do not lead to a lower floor."""
    here, found = room_of(module), []
    if wall.outside_room(module) is not None:
        return []
    for target in targets:
        there = room_of(target) if is_in(target, "llm_envs") else ""
        if not here or not there or there == here or there not in FLOOR_OF:
            continue
        if here.startswith("trainers.") and there in ("tasks", "cli") and (here, there) != ("trainers.cli", "cli"):
            found.append(f"{module} imports {target}: trainers use neither tasks nor the command line")
        elif here == "tasks" and there.startswith("trainers"):
            found.append(f"{module} imports {target}: tasks do not use trainers")
        elif FLOOR_OF[there] >= FLOOR_OF[here]:
            found.append(f"{module} imports {target}: {there} is not below {here} (FLOORS)")
    return found


RULES: list[Rule] = [
    # (the rule, the modules that it is about, what they may not import)
    (
        "trainers/functional imports torch only",
        lambda module: is_in(module, "llm_envs.trainers.functional"),
        lambda target: not (is_standard(target) or is_in(target, "torch", "llm_envs.trainers.functional")),
    ),
    (
        "the core imports no room outside of it (wall.OUTSIDE)",
        lambda module: wall.outside_room(module) is None,
        lambda target: wall.outside_room(target) is not None,
    ),
    (
        "TRL is imported only in trainers",
        lambda module: not is_in(module, "llm_envs.trainers"),
        lambda target: is_in(target, "trl"),
    ),
    (
        "vLLM is imported only in llm_envs/policies/vllm and trainers/engines/weight_sync",
        lambda module: not is_in(module, "llm_envs.policies.vllm", "llm_envs.trainers.engines.weight_sync"),
        lambda target: is_in(target, "vllm"),
    ),
    (
        "what is installed imports nothing that is not",
        lambda module: True,
        lambda target: is_in(target, "examples", "benchmarks", "tests", "docs"),
    ),
    (
        "nothing imports the folders under their bare names",
        lambda module: True,
        lambda target: is_in(target, "tasks", "trainers"),
    ),
]


def imported_by_string(node: ast.Call) -> str | None:
    """Return the module that a call imports by name, if it is such a call."""
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    if name not in ("import_module", "__import__", "find_spec") or not node.args:
        return None
    argument = node.args[0]
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return argument.value if is_text else None


def imports(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield every module that the source imports, as an absolute name; `from a import b` yields `a` and `a.b`."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and (target := imported_by_string(node)) is not None:
            yield target


def violations(module: str, targets: Iterable[str]) -> list[str]:
    """Return which rules a module breaks."""
    listed = list(targets)
    return [
        f"{module} imports {target}: {rule}"
        for rule, concerns, forbids in RULES
        if concerns(module)
        for target in listed
        if forbids(target)
    ] + floor_violations(module, listed)


def test_the_arrows_hold() -> None:
    found = []
    for path in source_files():
        module = module_name(path)
        found += violations(module, imports(path.read_text(), module, is_package=path.name == "__init__.py"))
    assert found == []


def test_every_room_has_a_floor_and_they_are_few() -> None:
    for folder, prefix in (("llm_envs", ""), ("trainers", "trainers.")):
        rooms = {
            prefix + path.stem
            for path in (ROOT / folder).iterdir()
            if (path.suffix == ".py" or (path / "__init__.py").exists()) and not path.is_symlink()
        } - {prefix + "__init__"}
        rooms = {
            room
            for room in rooms
            if wall.outside_room(f"llm_envs.{'trainers.' * bool(prefix)}{room.removeprefix(prefix)}") is None
        }
        floors = [
            n for n, names in enumerate(FLOORS) if any(name.startswith("trainers.") == bool(prefix) for name in names)
        ]
        assert rooms == {room for room in FLOOR_OF if room.startswith("trainers.") == bool(prefix)} - {"tasks"}
        assert len(rooms) <= MAX_ROOMS[folder]
        assert len(floors) <= MAX_FLOORS


def test_no_function_takes_any_trainer() -> None:
    """Whoever reads a function of the trainers sees which trainer it takes, and type checkers follow it."""
    found = [path for path in (ROOT / "trainers").rglob("*.py") if re.search(r"\btrainer: Any\b", path.read_text())]
    assert found == []


def test_every_file_is_seen_under_its_import_name() -> None:
    names = {module_name(path) for path in source_files()}
    assert {"llm_envs", "llm_envs.types", "llm_envs.policies.base", "llm_envs.tasks", "llm_envs.trainers"} <= names


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        ("llm_envs.rollout.x", "import llm_envs.tasks.games", "tasks is not below rollout"),
        ("llm_envs.cli.main", "def f():\n    from llm_envs.trainers import grpo", "trainers.grpo is not below cli"),
        ("llm_envs.rollout.x", "from ..trainers.grpo import A", "trainers.grpo is not below rollout"),
        ("llm_envs.chat.x", "import importlib\nimportlib.import_module('llm_envs.rollout')", "not below chat"),
        ("llm_envs.tools.x", "if TYPE_CHECKING:\n    import llm_envs.chat.codec", "chat is not below tools"),
        ("llm_envs.report.x", "from llm_envs.cli.parser import x", "cli is not below report"),
        ("llm_envs.tasks.games.x", "from llm_envs.trainers.grpo import A", "tasks do not use trainers"),
        ("llm_envs.trainers.grpo.trainer", "__import__('llm_envs.tasks.games')", "neither tasks nor the command line"),
        ("llm_envs.trainers.loop.x", "from llm_envs.cli.parser import x", "neither tasks nor the command line"),
        ("llm_envs.types", "from llm_envs.errors import LLMEnvsError", "errors is not below types"),
        ("llm_envs.trainers.functional.kl", "import numpy as np", "imports torch only"),
        ("llm_envs.trainers.functional.kl", "from llm_envs.types import Row", "imports torch only"),
        ("llm_envs.data.datasets", "def f():\n    import trl", "TRL is imported only"),
        ("llm_envs.policies.transformers", "from vllm import LLM", "vLLM is imported only"),
        ("llm_envs.trainers.grpo.trainer", "import vllm", "vLLM is imported only"),
        ("llm_envs.trainers.sft.trainer", "import tasks.games", "bare names"),
        ("llm_envs.trainers.sft.trainer", "from examples.demo import main", "what is installed"),
        ("llm_envs.cli.collect", "def f():\n    from llm_envs.agents import AgentEnv", "no room outside"),
        ("llm_envs.tasks.games.x", "if TYPE_CHECKING:\n    from llm_envs.tasks import benchmarks", "no room outside"),
        ("llm_envs.checker", "import_module('llm_envs.checker.certification')", "no room outside"),
        ("llm_envs.trainers.grpo.trainer", "from llm_envs.trainers.grpo.alarm import A", "no room outside"),
    ],
)
def test_a_broken_rule_is_seen(module: str, source: str, rule: str) -> None:
    found = violations(module, imports(source, module, is_package=False))
    assert any(rule in line for line in found), found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("llm_envs.trainers.grpo.trainer", "import trl\nfrom llm_envs.types import Trajectory"),
        ("llm_envs.trainers.functional.kl", "import math\nimport torch.nn.functional as F\nfrom .masking import x"),
        ("llm_envs.policies.vllm.engine", "from vllm import LLM"),
        ("llm_envs.trainers.engines.weight_sync", "import vllm"),
        ("llm_envs.tasks.games.x", "from llm_envs.env import TextEnv\nfrom llm_envs.tasks.games import y"),
        ("llm_envs.registration", "find_spec('gymnasium')"),
        ("llm_envs.cli.serve", "from llm_envs.agents.server import PolicyServer"),
        ("llm_envs.bridges.x", "from llm_envs.cli.parser import Parser\nfrom llm_envs.agents import AgentEnv"),
    ],
)
def test_what_is_allowed_is_not_reported(module: str, source: str) -> None:
    assert violations(module, imports(source, module, is_package=False)) == []


def run_python(code: str, *, cwd: Path) -> str:
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cwd / "bytecode")}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_llm_envs_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import json, sys, llm_envs, llm_envs.cli.main; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run_python(code, cwd=tmp_path))
    assert "llm_envs.cli.main" in loaded
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []


@pytest.mark.alone
def test_importing_llm_envs_computes_little_more_than_gymnasium(tmp_path: Path) -> None:
    """In one process, by the processor's time: 1.1 times what gymnasium takes before it, so any machine may be slow.

    The first of the runs compiles both, and keeps the bytecode for the others, whatever the settings are.
    """
    code = """
import time
times = [time.process_time()]
import gymnasium
times.append(time.process_time())
import llm_envs
times.append(time.process_time())
print((times[2] - times[1]) / (times[1] - times[0]))
"""
    assert min(float(run_python(code, cwd=tmp_path)) for _ in range(5)) < 1.6


@pytest.mark.parametrize("folder", ["tasks", "trainers"])
def test_the_folders_refuse_their_bare_names(folder: str) -> None:
    code = f"import {folder}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: this folder was imported as '{folder}': import llm_envs.{folder} instead" in done.stderr


def test_pyproject_lists_every_package_folder() -> None:
    """A folder that is not on the list works in the checkout and is missing from the wheel."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    present = {
        module_name(path / "__init__.py")
        for folder in FOLDERS
        for path, _, names in os.walk(ROOT / folder)
        if "__init__.py" in names
        for path in [Path(path)]
    }
    assert listed == present


# The wall.


def test_each_outside_room_is_there() -> None:
    present = {module_name(path) for path in source_files()}
    assert {part for parts in OUTSIDE.values() for part in parts} <= present


WITHOUT_A_ROOM = """
import contextlib, importlib, io, sys
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name.startswith("llm_envs"):  # any other package is not installed here
            raise
from llm_envs.cli.main import main
for line in (["--help"], ["list"], ["play", "llm/Arithmetic-v0"]):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            code = main(line)
        except SystemExit as end:
            code = end.code
    assert code == 0 and shown.getvalue(), line
print(sys.modules["llm_envs"].__file__)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, with the metadata of all entry points."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    wall.write_metadata(folder)
    return folder


@pytest.fixture
def without(request: pytest.FixtureRequest, checkout: Path, tmp_path: Path) -> Iterator[Path]:
    """The copy without a room, whose files lie elsewhere during the test."""
    moved = {path: tmp_path / str(number) for number, path in enumerate(wall.paths_of(request.param, checkout))}
    for path, elsewhere in moved.items():
        path.rename(elsewhere)
    yield checkout
    for path, elsewhere in moved.items():
        elsewhere.rename(path)


@pytest.mark.trainings
@pytest.mark.parametrize("without", OUTSIDE, indirect=True)
def test_the_core_works_without(without: Path, tmp_path: Path) -> None:
    """Where the files of one outside room are missing, each module of the core is imported, and commands run."""
    modules = [module_name(path, without) for path in source_files(without) if path.name != "__main__.py"]
    core = [module for module in modules if wall.outside_room(module) is None]
    env = preloaded_variables() | {"PYTHONPATH": str(without)}
    command = [folder_of_programs() / "python", "-c", WITHOUT_A_ROOM, *core]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.splitlines()[-1]) == without / "llm_envs" / "__init__.py"


@pytest.mark.parametrize(
    "package", ["llm_envs", "llm_envs.policies", "llm_envs.policies.inference", "llm_envs.trainers"]
)
def test_dir_lists_the_public_names_that_are_loaded_late(package):
    if package.endswith(("inference", "trainers")):
        pytest.importorskip("trl")
    module = importlib.import_module(package)
    assert set(dir(module)) == set(module.__all__)
