from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import make_episode, write_run

from llm_envs.cli import main


def test_a_report_lies_in_its_run_or_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = write_run(tmp_path / "one", [make_episode()])
    other = write_run(tmp_path / "other", [make_episode()])
    assert main(["report", str(one), "--max-tokens", "0"]) == 0
    told = capsys.readouterr().out
    assert "note: 1 of 1 episodes are without their token view" in told
    assert f"the report is in {one / 'report.html'}" in told
    assert main(["report", str(one), str(other)]) == 0
    assert (tmp_path / "report.html").exists()
    assert main(["report", str(one), "--out", "new/x.html"]) == 0
    assert (tmp_path / "new" / "x.html").exists()


def test_errors_are_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("llm-envs: error: ") and told.count("\n") == 1
    assert "holds no run" in told
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path), "--max-tokens", "-1"])
    assert "-1 is not a whole number of at least 0" in capsys.readouterr().err


def run_open(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    run = write_run(tmp_path / "run", [make_episode()])
    hidden = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | variables
    code = "import sys; from llm_envs.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(run), "--open"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_open_shows_the_file(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/seen\n')
    browser.chmod(0o755)
    done = run_open(tmp_path, BROWSER=f"{browser} %s")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text().strip() == (tmp_path / "run" / "report.html").as_uri()


def test_open_without_a_browser_says_so(tmp_path: Path) -> None:
    done = run_open(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "llm-envs: error: the report is written, but no browser was found for --open: open "
        f"{tmp_path}/run/report.html yourself."
    )
    assert (tmp_path / "run" / "report.html").exists()
