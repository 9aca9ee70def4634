from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import make_episode, write_evaluation, write_run

from llm_envs.cli.main import main


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


def test_an_evaluation_brings_its_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "eval")
    asked = ["--min-success", "0.5", "--max-errors", "0"]
    assert main(["eval", "llm/Calculator-v0", "-n", "2", "-k", "2", "--out", out, *asked]) == 0
    assert main(["report", out]) == 0
    page = (tmp_path / "eval" / "report.html").read_text(encoding="utf-8")
    index = json.loads(page.split('id="index">')[1].split("</script>")[0])
    results = index["runs"][0]["results"]
    assert results["thresholds"] == {"llm/Calculator-v0": {"min_success": 0.5, "max_errors": 0.0}}
    assert [task["name"] for task in results["tasks"]] == ["llm/Calculator-v0"]
    assert results["tasks"][0]["pass_hat"]["2"]["value"] == 1.0


def half_written(folder: Path) -> Path:
    """Return a run whose log has a line that is none, and another after it."""
    run = write_run(folder, [])
    (run / "log-00000.jsonl").write_text(make_episode(1).to_json()[:100] + "\n" + make_episode(2).to_json() + "\n")
    return run


def of_another_version(folder: Path) -> Path:
    run = write_run(folder, [make_episode()])
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    return run


def results_of_another_version(folder: Path) -> Path:
    run = write_evaluation(folder, [make_episode(1, member) for member in range(2)])
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {"version": 99}))
    return run / "results.json"


def one_cut_line(folder: Path) -> Path:
    run = write_run(folder, [])
    (run / "log-00000.jsonl").write_text(make_episode(1).to_json()[:100])
    return run


def a_text(folder: Path) -> Path:
    folder.with_suffix(".txt").write_text("no run\nat all\n")
    return folder.with_suffix(".txt")


def an_empty_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


BAD = {
    "nothing": (lambda folder: folder, "run does not exist: give the folder of a run."),
    "an empty folder": (
        an_empty_folder,
        "holds no run: it has no manifest.json. A run is the folder of llm-envs",
    ),
    "an empty run": (lambda folder: write_run(folder, []), "holds no finished episode yet: there is nothing to report"),
    "half-written": (half_written, "log-00000.jsonl, line 1: "),
    "of another version": (of_another_version, "has format 99; this version reads 1 and 2"),
    "results of another version": (results_of_another_version, "results.json is of version 99"),
    "one cut line": (one_cut_line, "the last line is torn ('{\"env_id"),
    "no run": (a_text, "run.txt, line 1: not a trajectory"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, expected = BAD[name]
    run = make(tmp_path / "run")
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) in (1, 2)
    told = capsys.readouterr()
    assert told.err.startswith("llm-envs: error: ") and told.err.count("\n") == 1 and told.out == ""
    assert expected in told.err
    assert not (tmp_path / "report.html").exists()


def test_a_run_that_is_not_there_was_asked_wrongly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(write_run(tmp_path / "run", [make_episode()])), str(tmp_path / "other")]) == 2
    assert "other does not exist: give the folder of a run." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--out", "."], "is a folder: give --out a file's name."),
        (["--out", "mine.txt"], "mine.txt is there already and is no report: give --out another name."),
        (["--out", "mine.txt/report.html"], "mine.txt/report.html cannot be written: mine.txt is a file"),
        (["--tokenizer", "none"], "--tokenizer none: there is no such folder."),
        (["--tokenizer", "run"], "no tokenizer could be loaded from 'run'"),
        (["run"], "given twice; give each run once."),
    ],
)
def test_a_bad_option_is_one_line(
    options: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", [make_episode()])
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["report", "run", *options]) in (1, 2)
    told = capsys.readouterr().err
    assert told.startswith("llm-envs: error: ") and told.count("\n") == 1 and expected in told
    assert (tmp_path / "mine.txt").read_text() == "mine" and not (tmp_path / "run" / "report.html").exists()


def test_a_wrong_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path), "--max-tokens", "-1"])
    assert "-1 is not an integer of at least 0" in capsys.readouterr().err


def test_a_torn_last_line_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [])
    (run / "log-00000.jsonl").write_text(make_episode(1).to_json() + "\n" + make_episode(2).to_json()[:200])
    assert main(["report", str(run), "--max-tokens", "0"]) == 0
    assert "note: " in (told := capsys.readouterr().out) and "the last line is torn" in told


def run_open(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    run = write_run(tmp_path / "run", [make_episode()])
    hidden = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | variables
    code = "import sys; from llm_envs.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(run), "--open"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_open_shows_the_file(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/seen"\n')
    browser.chmod(0o755)
    done = run_open(tmp_path, BROWSER=f"{shlex.quote(str(browser))} %s")
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
