"""The comparison: each of our cells links to a test that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "comparison.md"
TEST_LINK = re.compile(r"\[`(test_\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\)")


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Return (heads, rows) of each table."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.strip().split("\n")]
        found.append(([cell.strip(" |") for cell in lines[0]], lines[2:]))
    return found


def our_cells() -> list[str]:
    """Return the cells of the columns "here"."""
    return [row[heads.index("here")] for heads, rows in tables(PAGE.read_text(encoding="utf-8")) for row in rows]


def names_of_tests(path: Path) -> set[str]:
    """Return the names of the tests of a file, in classes too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_tables_are_read_whole() -> None:
    found = tables(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 5 and sum(len(rows) for _, rows in found) == len(our_cells()) > 30
    for heads, rows in found:
        assert all(len(row) == len(heads) for row in rows), heads


@pytest.mark.parametrize("cell", our_cells(), ids=lambda cell: cell[:40])
def test_each_of_our_cells_links_to_tests_that_are_there(cell: str) -> None:
    links = TEST_LINK.findall(cell)
    assert links, "no link to a test"
    assert len(links) == cell.count("(../../tests/"), "a link that does not name its test"
    for name, file in links:
        assert (ROOT / file).is_file(), file
        assert name in names_of_tests(ROOT / file), f"{file} has no {name}"


def test_the_number_of_tasks_is_right() -> None:
    from llm_envs.checker.catalogue import suite_ids

    (said,) = re.findall(r"(\d+) tasks: ", PAGE.read_text(encoding="utf-8"))
    assert int(said) == len(suite_ids())


def test_the_peers_are_those_of_the_field() -> None:
    """Versions stand where a peer is first named, and every peer is named."""
    text = PAGE.read_text(encoding="utf-8")
    for peer in ("verifiers 0.4.0", "OpenEnv", "GEM 0.1.0", "SkyRL-gym", "reasoning-gym", "TextArena"):
        assert peer in text.split("## ")[0], peer
    assert not re.search(r"verifiers (?!0\.4\.0)", text) and not re.search(r"GEM (?!0\.1\.0)", text)
