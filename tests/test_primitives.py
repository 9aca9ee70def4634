"""docs/reference/primitives.md says what is so: each name is public and documented, is tested, and can be replaced.

The sources are read and not imported, because importing the trainers imports TRL. That another function really takes a
primitive's place is shown by the tests that the rows name.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reference" / "primitives.md").read_text(encoding="utf-8")
SECTIONS = ["Data", "Inference", "Rewards", "KL", "Rollouts", "Algorithms", "Training loop", "Logging", "For tests"]

Place = tuple[str, str]
"""A module, and a name that it defines at its top."""


def rows(page: str) -> list[tuple[str, ...]]:
    """Return the cells of each row of the page's tables, the heads left out."""
    found = []
    for line in page.splitlines():
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if line.startswith("|") and cells[0] != "entry" and not set(line) <= set("|- "):
            found.append(cells)
    return found


def names_of(cell: str) -> list[str]:
    """Return the dotted names of a cell; one without a dot lives beside the first."""
    first, *others = re.findall(r"`([^`]+)`", cell)
    return [first, *(name if "." in name else f"{first.rpartition('.')[0]}.{name}" for name in others)]


# Reading the sources.


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the modules of the packages, without the tasks: dotted name -> tree."""
    found = {}
    for package, folder in {"llm_envs": ROOT / "llm_envs", "llm_envs.trainers": ROOT / "trainers"}.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@functools.cache
def definitions(module: str) -> dict[str, tuple[ast.stmt, str]]:
    """Return what a module defines at its top: name -> (class, function or assignment, its docstring)."""
    found: dict[str, tuple[ast.stmt, str]] = {}
    body = modules()[module].body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = node, ast.unparse(after) if isinstance(after, ast.Expr) else ""
    return found


@functools.cache
def exported(module: str) -> frozenset[str]:
    """Return the names in a module's `__all__`."""
    node, _ = definitions(module).get("__all__", (None, ""))
    return frozenset(ast.literal_eval(node.value) if isinstance(node, ast.Assign) else ())


@functools.cache
def origin(module: str, name: str) -> Place | None:
    """Return where a name that a module uses is defined, if by us."""
    if name in definitions(module):
        return module, name
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.ImportFrom) and node.module in modules():
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return origin(node.module, alias.name)
    return None


def member(place: Place, name: str) -> ast.stmt | None:
    """Return the method of a class, or of a class that it inherits from."""
    node, _ = definitions(place[0])[place[1]]
    if not isinstance(node, ast.ClassDef):
        return None
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            return child
    bases = [origin(place[0], ast.unparse(base)) for base in node.bases]
    return next((found for base in bases if base is not None and (found := member(base, name))), None)


def takes_function(module: str, annotation: ast.expr) -> bool:
    """Return whether an annotation has a function in it, or a protocol, directly or through names of ours."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            node = ast.Name(node.value)
        if not isinstance(node, ast.Name):
            continue
        if node.id == "Callable":
            return True
        place = origin(module, node.id)
        meaning = definitions(place[0])[place[1]][0] if place is not None else None
        if isinstance(meaning, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in meaning.bases):
            return True
        if place is not None and isinstance(meaning, ast.Assign) and takes_function(place[0], meaning.value):
            return True
    return False


def arguments(place: Place, method: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield the arguments of a function, of a class's making, or of a method, with their annotations."""
    node = definitions(place[0])[place[1]][0]
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.AnnAssign) and not method:
                yield ast.unparse(child.target), child.annotation
        node = member(place, method or "__init__") or node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            if argument.annotation is not None:
                yield argument.arg, argument.annotation


# Judging the page.


def fault_of_name(name: str) -> str | None:
    """Return what is wrong with a public name."""
    module, _, attribute = name.rpartition(".")
    method = ""
    if module not in modules():
        (module, _, attribute), method = module.rpartition("."), attribute
    place = origin(module, attribute) if module in modules() else None
    if place is None or (method and member(place, method) is None):
        return f"there is no {name}"
    if attribute not in exported(module):
        return f"{name} is not in the `__all__` of its module"
    node = member(place, method) if method else None
    if not (ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else definitions(place[0])[place[1]][1]):
        return f"{name} has no docstring"
    return None


def fault_of_argument(cell: str) -> str | None:
    """Return what is wrong with "`Owner(argument)`" or "`Owner.method(argument)`"; nothing if the cell is "-"."""
    if cell == "-":
        return None
    match = re.fullmatch(r"`(\w+)(?:\.(\w+))?\((\w+)\)`", cell)
    if match is None:
        return f"{cell} is not `Owner(argument)`"
    owner, method, argument = match.groups()
    for module in modules():
        if owner in exported(module) and owner in definitions(module):
            for name, annotation in arguments((module, owner), method or ""):
                if name == argument:
                    return None if takes_function(module, annotation) else f"{cell} takes no function"
    return f"nothing public is {cell}"


@functools.cache
def read_test(path: Path) -> tuple[str, ast.Module]:
    """Return a file's text and tree."""
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def fault_of_test(test: str, names: list[str]) -> str | None:
    """Return what is wrong with "tests/file.py::test" or "tests/file.py::Class::test" as a test of these names."""
    file, *parts = test.split("::")
    path = ROOT / file
    if not file.startswith("tests/") or not path.exists():
        return f"there is no test {test}"
    text, tree = read_test(path)
    nodes: list[ast.stmt] = tree.body
    for part in parts:
        found = [node for node in nodes if getattr(node, "name", "") == part]
        if not found:
            return f"there is no test {test}"
        nodes = getattr(found[0], "body", [])
    if not any(re.search(rf"\b{name.rpartition('.')[2]}\b", text) for name in names):
        return f"{file} has none of {names}"
    return None


def problems(page: str) -> list[str]:
    """Return what is wrong with the rows of a page."""
    wrong: list[str | None] = []
    for row in rows(page):
        if len(row) != 4 or not all(cell.strip("`") for cell in row):
            wrong.append(f"{row}: an empty cell")
            continue
        names = names_of(row[1])
        wrong += [*map(fault_of_name, names), fault_of_argument(row[2]), fault_of_test(row[3].strip("`"), names)]
    return [fault for fault in wrong if fault is not None]


def test_every_row_is_public_documented_tested_and_passed_somewhere() -> None:
    assert len(rows(PAGE)) > 150
    assert problems(PAGE) == []
    assert sum(row[2] != "-" for row in rows(PAGE)) > 100


def test_every_function_of_the_functional_core_is_on_the_page() -> None:
    listed = {name for row in rows(PAGE) for name in names_of(row[1])}
    functional = [module for module in modules() if module.startswith("llm_envs.trainers.functional.")]
    assert len(functional) > 10
    assert {f"{module}.{name}" for module in functional for name in exported(module)} - listed == set()


def test_the_page_has_the_sections_of_the_paper_in_its_order() -> None:
    assert re.findall(r"^## (.+)$", PAGE, flags=re.MULTILINE)[: len(SECTIONS)] == SECTIONS


TEST = "tests/llm_envs/test_types.py::test_a_row_that_disagrees_with_itself_is_refused"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (f"| a | `llm_envs.types.Nothing` | - | `{TEST}` |", "there is no llm_envs"),
        (f"| a | `llm_envs.trainers.grpo.trainer.Nothing` | - | `{TEST}` |", "there is no llm_envs"),
        (f"| a | `llm_envs.types.TrajectoryGroup.sort` | - | `{TEST}` |", "there is no llm_envs"),
        (f"| a | `llm_envs.tracking.loggers._INVISIBLE` | - | `{TEST}` |", "__all__"),
        ("| a | `llm_envs.types.Row` | - | `tests/llm_envs/test_types.py::test_x` |", "there is no test"),
        ("| a | `llm_envs.types.Row` | - | `tests/test_docs.py::test_a_broken_link_is_seen` |", "has none"),
        (f"| a | `llm_envs.types.Row` | `Collector(seed)` | `{TEST}` |", "takes no function"),
        (f"| a | `llm_envs.types.Row` | `Collector(nothing)` | `{TEST}` |", "nothing public"),
        (f"| a | `llm_envs.types.Row` | Collector | `{TEST}` |", "is not `Owner"),
        (f"| a | `llm_envs.types.Row` | | `{TEST}` |", "an empty cell"),
    ],
)
def test_what_is_wrong_is_seen(row: str, complaint: str) -> None:
    assert any(complaint in problem for problem in problems(row))


@pytest.mark.parametrize("place", ["-", "`Algorithm(kl_fn)`", "`Collector(context_fn)`", "`RewardModel.load(loader)`"])
def test_what_is_right_is_nothing_wrong(place: str) -> None:
    assert problems(f"| a | `llm_envs.types.Row`, `Turn` | {place} | `{TEST}` |") == []
