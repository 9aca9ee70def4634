"""The count of constructions that are hard to read."""

import json
from pathlib import Path

import english
import pytest

pytestmark = pytest.mark.pages


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("text", "construction"),
    [
        ("What is given is said here.", "a sentence that opens with What"),
        ("The error is said once.", "is said, are said, says"),
        ("There is no word for it.", "is no, are no"),
        ("It stands alone.", "alone"),
        ("The run goes on.", "goes on"),
        ("In a process of its own.", "of its own"),
        ("Its length is that of the row.", "that of, those of"),
        ("It reads the whole row.", "whole"),
    ],
)
def test_each_construction_is_counted_in_documents_and_docstrings(text: str, construction: str, tmp_path: Path) -> None:
    document, module = tmp_path / "a.md", tmp_path / "a.py"
    document.write_text(f"{text}\n\n```text\n{text}\n```\n")
    module.write_text(f'"""{text}"""\n\nalone = goes_on = 1\n')
    assert english.count(document)[construction] == english.count(module)[construction] == 1


@pytest.mark.smoke
def test_plain_sentences_count_nothing(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("What does it cost? If a tracker fails, warn once and disable it. It no longer runs.\n")
    assert english.count(document) == {}


def test_a_construction_is_rare_in_a_folder_however_many_files_share_it() -> None:
    counts = {"llm_envs/errors.py": {"whole": 1000}}
    (line,) = english._frequent(counts)
    assert line.startswith("llm_envs/: 'whole' ") and "at most 0.3 allowed" in line


def test_a_file_that_got_worse_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = json.loads(english.BASELINE.read_text(encoding="utf-8"))
    name = next(name for name, counts in known.items() if counts.get("alone"))
    known[name]["alone"] -= 1
    (tmp_path / "english.json").write_text(json.dumps(known))
    monkeypatch.setattr(english, "BASELINE", tmp_path / "english.json")
    monkeypatch.setattr("sys.argv", ["english.py", "--check"])
    assert english.main() == 1
    assert f"{name}: " in capsys.readouterr().out
