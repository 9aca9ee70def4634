"""docs/reference/primitives.md says what is so: each name is there, each test is there, and somebody uses each.

A name of `llm_envs.trainers` outside `functional` is looked up in its file, since importing it imports TRL; the tests
of the trainers import it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

from llm_envs.errors import MissingExtraError

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reference" / "primitives.md").read_text(encoding="utf-8")
FOLDERS = ("llm_envs", "trainers", "tasks", "examples", "proof", "benchmarks")
FOR_TESTS = "## For tests"


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


def path_of(module: str) -> Path:
    """Return the file of a module of ours."""
    parts = module.split(".")
    base = ROOT.joinpath(*(parts[1:] if parts[1:2] in (["trainers"], ["tasks"]) else parts))
    return base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def defined(path: Path) -> set[str]:
    """Return the names that a file binds at its top level, and `Class.method` or `Class.test` inside."""
    found: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found |= set(ast.literal_eval(node.value))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.AsyncFunctionDef)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        found |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return found


def used(path: Path) -> set[str]:
    """Return the names that a file's code reads; to import one is not yet to use it."""
    reads = {
        node.id for node in ast.walk(parsed(path)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return reads | {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}


def exists(name: str) -> bool:
    """Say whether a dotted name can be imported."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module, rest = ".".join(parts[:length]), parts[length:]
        if not path_of(module).exists():
            continue
        if module.startswith("llm_envs.trainers") and not module.startswith("llm_envs.trainers.functional"):
            return ".".join(rest) in defined(path_of(module))
        try:
            found = importlib.import_module(module)
        except MissingExtraError as error:
            if "vllm" in str(error).lower():
                pytest.skip(str(error))
            raise
        for part in rest:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def problems(page: str) -> list[str]:
    """Return what is wrong with the rows of a page."""
    wrong = []
    n_for_tests = len(rows(page.partition(FOR_TESTS)[2]))
    everything = rows(page)
    for number, row in enumerate(everything):
        if len(row) != 4 or not all(cell.strip("`") for cell in row):
            wrong.append(f"{row}: an empty cell")
            continue
        names, test, user = names_of(row[1]), row[2].strip("`"), row[3].strip("`")
        wrong += [f"{name}: cannot be imported" for name in names if not exists(name)]
        test_file, _, test_name = test.partition("::")
        path = ROOT / test_file
        if not path.exists() or test_name.replace("::", ".") not in defined(path) or not test_file.startswith("tests/"):
            wrong.append(f"{row[0]}: there is no test {test}")
        elif not any(re.search(rf"\b{name.rpartition('.')[2]}\b", path.read_text(encoding="utf-8")) for name in names):
            wrong.append(f"{row[0]}: {test_file} has none of {names}")
        folders = (*FOLDERS, "tests") if number >= len(everything) - n_for_tests else FOLDERS
        path = ROOT / user
        if not path.exists() or user.partition("/")[0] not in folders:
            wrong.append(f"{row[0]}: there is no {user}")
        elif not used(path) & {name.rpartition(".")[2] for name in names}:
            wrong.append(f"{row[0]}: {user} uses none of {names}")
        elif path in {path_of(name.rpartition(".")[0]) for name in names} or path.name == "__init__.py":
            wrong.append(f"{row[0]}: {user} is its own module")
    return wrong


def test_every_row_has_a_name_a_test_and_a_user() -> None:
    assert len(rows(PAGE)) > 150
    assert problems(PAGE) == []


def test_every_function_of_the_functional_core_is_on_the_page() -> None:
    listed = {name for row in rows(PAGE) for name in names_of(row[1])}
    later = PAGE.partition("## Not there yet")[2] + PAGE.partition("## There, not used")[2]
    missing = []
    for path in sorted((ROOT / "trainers" / "functional").glob("[a-z]*.py")):
        module = importlib.import_module(f"llm_envs.trainers.functional.{path.stem}")
        missing += [
            name
            for name in module.__all__
            if f"{module.__name__}.{name}" not in listed and f"`{module.__name__}.{name}`" not in later
        ]
    assert missing == []


def test_the_page_has_the_sections_of_the_paper_in_its_order() -> None:
    sections = re.findall(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    expected = ["Data", "Inference", "Rewards", "KL", "Rollouts", "Algorithms", "Training loop", "Logging", "For tests"]
    assert sections[: len(expected)] == expected


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| a | `llm_envs.types.Nothing` | `{test}` | `llm_envs/cli/main.py` |", "cannot be imported"),
        ("| a | `llm_envs.trainers.grpo.trainer.Nothing` | `{test}` | `llm_envs/cli/main.py` |", "cannot be imported"),
        ("| a | `llm_envs.types.Row` | `tests/llm_envs/test_types.py::test_x` | `trainers/grpo/loss.py` |", "no test"),
        ("| a | `llm_envs.types.Row` | `{other}` | `trainers/bridge/batches.py` |", "has none"),
        ("| a | `llm_envs.types.Row` | `{test}` | `trainers/nothing.py` |", "there is no trainers"),
        ("| a | `llm_envs.types.Row` | `{test}` | `llm_envs/tools/budget.py` |", "uses none"),
        ("| a | `llm_envs.env.text.split_of` | `{split}` | `llm_envs/env/text.py` |", "its own module"),
        ("| a | `llm_envs.types.Row` | `{test}` | `tests/llm_envs/test_doctor.py` |", "there is no tests"),
        ("| a | `llm_envs.types.Row` | | `trainers/bridge/batches.py` |", "an empty cell"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_seen(row: str, complaint: str) -> None:
    test = "tests/llm_envs/test_types.py::test_a_row_that_disagrees_with_itself_is_refused"
    other = "tests/test_docs.py::test_a_broken_link_is_seen"
    split = "tests/llm_envs/test_env.py::test_split_is_a_hash_of_the_canonical_problem"
    assert any(complaint in problem for problem in problems(row.format(test=test, other=other, split=split)))


def test_what_is_right_is_nothing_wrong() -> None:
    test = "tests/llm_envs/test_types.py::test_a_row_that_disagrees_with_itself_is_refused"
    page = f"| a | `llm_envs.types.Row`, `Turn` | `{test}` | `trainers/bridge/batches.py` |\n{FOR_TESTS}\n"
    page += f"| a | `llm_envs.types.Row` | `{test}` | `tests/llm_envs/test_doctor.py` |"
    assert problems(page) == []
