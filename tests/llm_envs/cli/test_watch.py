"""`llm-envs watch`: it serves the page until it is interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from report_runs import make_episode, write_run

from llm_envs.cli.main import main


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [make_episode(1)])
    command = [sys.executable, "-m", "llm_envs.cli", "watch", str(tmp_path / "run"), str(tmp_path / "later")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert "later does not exist yet" in process.stdout.readline()
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(url) as answer:
            page = answer.read().decode()
            assert "connect-src 'self'" in answer.headers.get("Content-Security-Policy", page)
        told = json.load(urllib.request.urlopen(url + "feed"))
        assert [run["name"] for run in told["live"] and told["runs"]] in ([], ["run", "later"])
    finally:
        process.terminate()  # as Ctrl-C does
        rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "the runs continue" in rest


@pytest.mark.parametrize("wrong", [["--port", "70000"], ["--tokenizer", "nowhere"]])
def test_wrong_options_are_refused(wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) if wrong[0] == "--port" else pytest.MonkeyPatch.context():
        assert main(["watch", str(tmp_path), *wrong]) == 2
    assert wrong[1] in capsys.readouterr().err


def test_one_folder_is_given_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path), str(tmp_path)]) == 2
    assert "given twice" in capsys.readouterr().err
