"""Mistakes in a command line: one line names the mistake and what to do, and the exit code is 2."""

import sys
from pathlib import Path

import pytest

from llm_envs.cli.main import all_commands, main

ENV = "llm/Calculator-v0"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that are not what a command asks for."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "folder").mkdir()
    (folder / "binary").write_bytes(bytes(range(128, 256)))
    (folder / "empty.yaml").write_text("")
    (folder / "unclosed.py").write_text("x = (")
    (folder / "mistaken.py").write_text("def takes_one(trajectory):\n    return 1.0\n")
    return folder


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check mistaken.py", "name what it defines, as PLACE/mistaken.py:NAME"),
        ("check mistaken.py:takes_two", "mistaken.py has no takes_two. Did you mean takes_one?"),
        ("check mistaken.py:x", "mistaken.py has no x. It has takes_one."),
        ("check mistaken.py:takes_one", "takes_one(trajectory) needs arguments; what makes an"),
        ("check unclosed.py:x", "unclosed.py cannot be imported (SyntaxError: '(' was never closed ("),
        ("list --config empty.yaml", "empty.yaml is empty; write `option: value`, one a line"),
        ("list --config binary", "binary cannot be read"),
        ("list --config folder", "folder cannot be read"),
        (f"play {ENV} --model folder", "--model PLACE/folder: the folder holds no model, it has no config.json"),
        ("watch mistaken.py", "RUN PLACE/mistaken.py: it is a file; give the folder of a run"),
        ("doctor folder", "doctor PLACE/folder: the folder holds no model, it has no config.json"),
        ("serve folder", "serve PLACE/folder: the folder holds no model, it has no config.json"),
        ("new-task x --package --out binary", "pyproject.toml cannot be written (Not a directory): give --out a"),
        ("serve-envs --port x", "argument --port: x is not a port, 0 to 65535"),
        ("serve-envs --port 65536", "argument --port: 65536 is not a port, 0 to 65535"),
        ("serve folder --port 65536", "argument --port: 65536 is not a port, 0 to 65535"),
        ("eval --suite binary --policy oracle", "--suite PLACE/binary: it cannot be read"),
        (f"eval {ENV} --policy oracle -n 1 --compare binary", "binary is damaged: it is not JSON"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(
    command: str, words: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.split()[0] not in all_commands():
        pytest.skip("the command is of a room that is not here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    given = [str(place / part) if (place / part.partition(":")[0]).exists() else part for part in command.split()]
    try:
        code = main(given)
    except SystemExit as error:
        code = error.code
    shown = capsys.readouterr().err
    assert words.replace("PLACE", str(place)).replace("mistaken.py has", f"{place}/mistaken.py has").replace(
        "unclosed.py cannot", f"{place}/unclosed.py cannot"
    ) in shown and code == 2  # fmt: skip
    assert "Traceback" not in shown and shown.startswith("llm-envs: error: ") and shown.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["export {} out.jsonl --to messages", "report {}", "branch {} --episode 0/0 --turn 0"]
)
def test_a_file_that_holds_another_thing_is_named(
    command: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of a run's files are of another kind, with the exit code 1."""
    for name, words in (
        ("nothing", "does not exist: give the folder of a run"),
        ("binary.jsonl", "Give the folder of"),
    ):
        if name != "nothing":
            (place / name).write_bytes(b"\xff\xfe\n")
        assert main(command.format(place / name).split()) in (1, 2)
        shown = capsys.readouterr().err
        assert words in shown and "Remove the line" not in shown and "Traceback" not in shown
