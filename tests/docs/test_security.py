"""docs/reference/security.md: the tests that it names are there, and what it says that no other test holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from fake_server import Answer, fake_server

from llm_envs.cli.main import main

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "security.md").read_text(encoding="utf-8")
SOURCES = sorted(path for folder in ("llm_envs", "trainers", "tasks") for path in (ROOT / folder).rglob("*.py"))
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", PAGE)))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda value: value)
def test_the_test_of_a_claim_is_there(path: str, name: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    *classes, function = name.split("::")
    assert all(re.search(rf"^class {one}\b", text, flags=re.MULTILINE) for one in classes)
    assert re.search(rf"^{'    ' * len(classes)}def {function}\(", text, flags=re.MULTILINE)


def test_every_claim_of_a_table_names_a_test() -> None:
    tables = re.findall(r"^\| claim \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row] == []


def test_remote_code_is_run_by_nobody_who_did_not_ask() -> None:
    """Every parameter of that name is False where it is left out, and no call passes a constant True."""
    defaults: list[Any] = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "trust_remote_code" in text else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = dict(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
                for argument, default in given.items():
                    if argument.arg == "trust_remote_code":
                        assert isinstance(default, ast.Constant), f"{path}:{node.lineno}"
                        defaults.append(default.value)
            elif isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert not (isinstance(node.value, ast.Constant) and node.value.value), f"{path}:{node.value.lineno}"
    assert len(defaults) >= 4 and set(defaults) == {False}


def test_no_pickle_is_read_from_a_checkpoint() -> None:
    """torch.load reads tensors only, as accelerate does; pickle what a process of the run wrote, and local copies."""
    loads = [(p, m[1]) for p in SOURCES for m in re.finditer(r"torch\.load\(([^\n]*)\)", p.read_text(encoding="utf-8"))]
    assert len(loads) == 2 and all("weights_only=True" in arguments for _, arguments in loads)
    pickled = {path.name for path in SOURCES if re.search(r"\bpickle\.loads?\(", path.read_text(encoding="utf-8"))}
    assert pickled == {"child.py", "declaration_clauses.py", "episodes.py", "tau2_scorer.py"}
    assert not [path for path in SOURCES if "allow_pickle=True" in path.read_text(encoding="utf-8")]


def test_a_key_is_in_no_file_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-3141592653589793"
    monkeypatch.setenv("LLM_ENVS_API_KEY", key)
    message = {"role": "assistant", "content": "<answer>1</answer>"}
    answered = Answer(200, {"choices": [{"message": message, "finish_reason": "stop"}]})
    with fake_server(lambda asked, n_before: answered) as server:
        given = ["--model", "m", "--engine", "api", "--url", server.url, "-n", "2", "--out", str(tmp_path / "run")]
        assert main(["collect", "llm/Arithmetic-v0", *given]) == 0
        assert all(asked.headers.get("Authorization") == f"Bearer {key}" for asked in server.asked)
        assert server.asked
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files and not [path for path in files if key.encode() in path.read_bytes()]
