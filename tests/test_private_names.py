"""Every private or inner name of TRL, transformers, vLLM and Gymnasium that the sources touch is in a list.

`tests/support/private_names.yaml` has the list, with the reason for each name and the test that breaks with it. If a
new version of a package lacks one, `test_the_names_exist` names it. A name is private if it begins with an underscore,
and inner if it is imported from a submodule; Gymnasium documents its submodules.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LIST: Mapping[str, Any] = yaml.safe_load((ROOT / "tests/support/private_names.yaml").read_text(encoding="utf-8"))
PACKAGES = ("trl", "transformers", "vllm", "gymnasium")
SOURCES = [path for folder in ("llm_envs", "trainers", "tasks") for path in sorted((ROOT / folder).rglob("*.py"))]
MAX_OF_TRL = 14
"""Private names of TRL. Inner ones come on top."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file: to walk a tree takes longer than to read it."""
    return tuple(ast.walk(tree(path)))


def touched(node: ast.AST) -> Iterator[str]:
    """Yield the private names that a piece of source reads, overrides or sets on an object."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ClassDef):
        for part in node.body:
            yield from defined(part)


def defined(node: ast.AST) -> Iterator[str]:
    """Yield the names that a piece of source gives a value."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    for name in [*getattr(node, "targets", ()), getattr(node, "target", None)]:
        for part in ast.walk(name) if name is not None else ():
            yield from (
                [part.attr] if isinstance(part, ast.Attribute) else [part.id] if isinstance(part, ast.Name) else []
            )


def quoted(node: ast.AST) -> Iterator[str]:
    """Yield a text that may name an attribute."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value


@cache
def names_of(path: Path, read: Any) -> set[str]:
    return {name for node in nodes(path) for name in read(node) if is_private(name)}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of what a file takes from the packages: `from module import name`, or `module.name`."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            yield from ((node.module, alias.name) for alias in node.names)
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name.split(".")[0] in PACKAGES:
                used = [part for part in nodes(path) if isinstance(part, ast.Attribute)]
                shown = alias.asname or alias.name
                yield from ((alias.name, part.attr) for part in used if ast.unparse(part.value) == shown)


def source_of(kind: type) -> Iterator[ast.ClassDef]:
    """Yield the source of a class."""
    whole = tree(Path(str(inspect.getsourcefile(kind))))
    yield from (node for node in whole.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


@cache
def private_members(module: str, name: str) -> Mapping[str, str]:
    """Return the private names of a class of the packages -> the package of its most basic class that has the name."""
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError:  # vLLM is in another environment
        return {}
    members: dict[str, str] = {}
    for base in kind.__mro__ if inspect.isclass(kind) else ():
        if (package := base.__module__.split(".")[0]) in PACKAGES:
            names = {name for part in source_of(base) for node in ast.walk(part) for name in defined(node)}
            members |= dict.fromkeys(filter(is_private, {*vars(base), *names}), package)
    return members


@cache
def members_for(paths: tuple[Path, ...]) -> Mapping[str, str]:
    """Return the private names of all classes that files import -> the package that has the name."""
    members: dict[str, str] = {}
    for module, name in {pair for path in paths for pair in imports(path)}:
        members |= private_members(module, name)
    return members


@cache
def found_names() -> Mapping[str, set[str]]:
    """Return, by package, the private names that the sources touch. Files of `trainers` share their imports."""
    own = {name for path in SOURCES for name in names_of(path, defined)}
    of_trainers = tuple(path for path in SOURCES if path.is_relative_to(ROOT / "trainers"))
    found: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        members = members_for(of_trainers if path in of_trainers else (path,))
        read = names_of(path, touched)
        found["elsewhere"] |= read - own - members.keys()
        for name in (read | names_of(path, quoted)) & members.keys():
            found[members[name]].add(name)
    return found


def listed(package: str) -> Mapping[str, list[str]]:
    names: Mapping[str, list[str]] = LIST[package]
    return names


needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL's and transformers' sources")


@pytest.mark.parametrize(
    "package", [pytest.param(name, marks=needs_trl) for name in ("trl", "transformers")] + ["gymnasium"]
)
def test_a_private_name_that_is_touched_is_listed(package: str) -> None:
    by_chance = {name for name, other in LIST["by_chance"].items() if other == package}
    assert found_names()[package] - by_chance == set(listed(package)), "edit tests/support/private_names.yaml"


@needs_trl
def test_a_private_name_that_nobody_here_defines_is_listed() -> None:
    """vLLM is in another environment, so its names are among those that no source of ours defines."""
    of_vllm = {name for name in listed("vllm") if name in found_names()["elsewhere"]}
    assert found_names()["elsewhere"] == set(LIST["elsewhere"]) | of_vllm
    assert set(listed("vllm")) <= {
        name for path in SOURCES for read in (touched, quoted) for name in names_of(path, read)
    }


def test_an_inner_name_that_is_imported_is_listed() -> None:
    pairs = {pair for path in SOURCES for pair in imports(path)}
    inner = {f"{module}.{name}" for module, name in pairs if "." in module and not module.startswith("gymnasium")}
    assert inner == set(LIST["inner"]), "edit tests/support/private_names.yaml"


def test_few_names_of_trl_are_touched() -> None:
    assert len(listed("trl")) <= MAX_OF_TRL


@pytest.mark.parametrize("package", PACKAGES)
def test_the_names_exist(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is in another environment")
    for name, (where, why, test) in listed(package).items():
        module, _, kind = where.rpartition(".")
        owner = getattr(importlib.import_module(module), kind, None) or importlib.import_module(where)
        members = private_members(module, kind) if inspect.isclass(owner) else vars(owner)
        assert name in members or hasattr(owner, name), f"{where} has no {name} any more: {why}"
        assert (ROOT / test).is_file(), test
    for path in LIST["inner"]:
        if path.startswith(f"{package}."):
            assert hasattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]), path


@needs_trl
def test_a_new_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text(
        "from trl.trainer.utils import pad\nclass A:\n    def _compute_loss(self): self._metrics\n", "utf-8"
    )
    assert names_of(path, touched) == {"_compute_loss", "_metrics"}
    assert set(imports(path)) == {("trl.trainer.utils", "pad")}
    assert private_members("trl", "GRPOTrainer")["_metrics"] == "trl"
    assert private_members("trl", "GRPOTrainer")["_save_checkpoint"] == "transformers"
