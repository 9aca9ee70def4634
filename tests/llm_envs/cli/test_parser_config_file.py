"""`--config FILE` of every command: what it may say, that the command line wins, and what is wrong said in one line."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from llm_envs.cli.main import all_commands, create_parser, main
from llm_envs.cli.parser import read_yaml
from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import read_run

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "command_line.md"
WITH_FILE = [name for name, command in all_commands().items() if command.reads_config]


@pytest.fixture
def parsed(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that parses a command with a file, and returns what came of it as a dict."""

    def parse(command: str, text: str, *arguments: str) -> dict[str, object]:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return vars(create_parser(command).parse_args([command, "--config", str(path), *arguments]))

    return parse


def test_options_and_arguments_by_their_names(parsed) -> None:  # type: ignore[no-untyped-def]
    text = (
        "envs: [llm/Calculator-v0:2, 'llm/G*']\nexclude: llm/GraphColouring-v0\nn: 7\ngroup-size: 2\n"
        "max_turn_tokens: 9\ntemperature: 0.5\nresume: true\ndevices: [0, '1,2']\nurl: [http://a, http://b]\n"
        "env_kwargs: {difficulty: easy}\n"
        "server_args: [--max-model-len, 4096]\nout: runs/x\nworkers:\nseed: -3\n"
    )
    found = parsed("collect", text)
    expected = {
        "envs": ["llm/Calculator-v0:2", "llm/G*"],
        "exclude": ["llm/GraphColouring-v0"],
        "n": 7,
        "group_size": 2,
        "max_turn_tokens": 9,
        "temperature": 0.5,
        "resume": True,
        "devices": ["0", "1,2"],
        "url": ["http://a", "http://b"],
        "env_kwargs": {"difficulty": "easy"},
        "server_args": "--max-model-len 4096",
        "out": "runs/x",
        "workers": None,
        "seed": -3,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["max_concurrency"] == 64  # what neither says has its default


@pytest.mark.parametrize(
    ("command", "text", "key", "value"),
    [
        ("play", "env: llm/Wordle-v0", "env", "llm/Wordle-v0"),
        ("play", "variables: {}\nenv: X\npolicy: human", "policy", "human"),
        ("check", "envs: llm/Wordle-v0\nall-levels: yes", "envs", ["llm/Wordle-v0"]),
        ("list", "family: [games, logic]\njson: true", "family", ["games", "logic"]),
        ("eval", "envs: [X]\ndifficulty: [easy, hard]", "difficulty", "easy,hard"),
        ("eval", "envs: [X]\nmin_success: 0.8", "min_success", 0.8),
        ("eval", "envs: [X]\nmax_concurrency: auto", "max_concurrency", "auto"),
        ("eval", "envs: [X]\nmax_concurrency: 9", "max_concurrency", 9),
        ("export", "run: runs/x\nout: y.jsonl\nto: sft", "run", "runs/x"),
        ("report", "runs: [a, b]\nmax_tokens: 1000", "max_tokens", 1000),
        ("doctor", "model: DIR\nthinking: off\nenv: X", "thinking", False),
        ("new-task", "name: x\ngame: true", "kind", "game"),
    ],
)
def test_each_command_reads_one(parsed, command: str, text: str, key: str, value: object) -> None:  # type: ignore[no-untyped-def]
    assert parsed(command, text)[key] == value


@pytest.mark.parametrize(
    ("text", "given", "key", "value"),
    [
        ("n: 7", ["-n", "3"], "n", 3),
        ("url: [http://a, http://b]", ["--url", "http://c"], "url", ["http://c"]),
        ("max_turn_tokens: 9", ["--max_turn_tokens=5"], "max_turn_tokens", 5),
        ("resume: true", ["--no-resume"], "resume", False),
        ("resume: true", ["--no_resume"], "resume", False),
        ("resume: false", ["--resume"], "resume", True),
        ("envs: [llm/A-v0, llm/B-v0]", ["llm/C-v0"], "envs", ["llm/C-v0"]),
        ("envs: [llm/A-v0]", [], "envs", ["llm/A-v0"]),
    ],
)
def test_the_command_line_wins(parsed, text: str, given: list[str], key: str, value: object) -> None:  # type: ignore[no-untyped-def]
    rest = "" if "envs" in text else "\nenvs: [llm/Z-v0]"
    rest += "" if "n:" in text else "\nn: 1"
    assert parsed("collect", f"{text}{rest}\nout: runs/x\n", *given)[key] == value


def test_one_of_a_choice_given_takes_the_others_of_the_file_back(parsed) -> None:  # type: ignore[no-untyped-def]
    found = parsed("list", "multi_turn: true", "--single-turn")
    assert found["turns"] == "single"
    assert parsed("new-task", "name: x\ngame: true", "--tool")["kind"] == "tool"


def test_what_is_required_may_stand_in_the_file_and_one_part_elsewhere(parsed) -> None:  # type: ignore[no-untyped-def]
    found = parsed("export", "out: y.jsonl\nto: sft", "runs/x")
    assert (found["run"], found["out"]) == ("runs/x", "y.jsonl")
    with pytest.raises(InvalidConfigError, match=r"the following arguments are required: OUT\. `llm-envs export"):
        parsed("export", "run: runs/x\nto: sft")
    with pytest.raises(InvalidConfigError, match="the following arguments are required: --out, -n"):
        parsed("collect", "envs: [llm/A-v0]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tempreature: 1", "run.yaml: tempreature: there is no such option. Did you mean temperature?"),
        ("xyzzy: 1", "run.yaml: xyzzy: there is no such option. `llm-envs collect --help` lists every option."),
        ("config: other.yaml", "run.yaml: config: there is no such option."),
        ("n: 0", "run.yaml: argument -n: 0 is not an integer of at least 1"),
        ("n: 1.5", "run.yaml: argument -n: 1.5 is not an integer of at least 1"),
        ("n: [1, 2]", "run.yaml: n is a list of 2; it takes one value."),
        ("n: {a: 1}", "run.yaml: n is a mapping; it takes one value."),
        ("url: [[http://a]]", "run.yaml: url is a list inside a list."),
        ("history: tempalte", "run.yaml: argument --history: invalid choice: 'tempalte' (choose from 'append', 'temp"),
        ("resume: maybe", "run.yaml: resume is 'maybe'; it is a flag, true or false."),
        ("env: {HF_HUB_OFFLINE: 1}", "run.yaml: env is the environment to play; variables are below `variables:`."),
        ("- n", "must be a mapping, `option: value` a line."),
        ("", "is empty"),
        ("n: 2\nn: 3", "the key 'n' is repeated"),
        ("env-kwargs: {split: a, split: b}", "the key 'split' is repeated"),
        ("n: 1:30", "run.yaml: argument -n: 1:30 is not an integer"),
        ("max-step-s: 1:30.5", "run.yaml: argument --max-step-s: 1:30.5 is not a number of seconds above 0"),
        ("n: " + "[" * 5000, "cannot be read: it is nested too deeply"),
        ("n: [", "cannot be read: while parsing a flow node"),
        ("seed: 2026-13-45", "cannot be read: month must be in 1..12"),
        ("variables: {A=B: 1}", "run.yaml: variables: 'A=B' cannot be set (illegal"),
        ("variables: 3", "run.yaml: variables is 3; it must be a mapping, `NAME: value`."),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_names_it(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main(["collect", "llm/Calculator-v0", "-n", "1", "--out", str(tmp_path / "run"), "--config", str(path)])
    error = capsys.readouterr().err
    assert error.startswith("llm-envs: error: ") and error.count("\n") == 1 and message in error
    assert not (tmp_path / "run").exists()


def test_two_of_a_choice_in_a_file_are_refused_as_on_the_command_line(parsed) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidConfigError, match=r"run\.yaml: single_turn and multi_turn: give only one\."):
        parsed("list", "single_turn: true\nmulti_turn: true")


@pytest.mark.parametrize("command", WITH_FILE)
def test_the_file_itself(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--config", str(tmp_path / "nowhere.yaml")], "nowhere.yaml cannot be read: [Errno 2] No such file"),
        (["--config"], "--config needs a YAML file."),
        (["--config=a", "--config", "b"], "--config is given twice, a and b: give one file."),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([command, *arguments])
        assert message in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe(tmp_path: Path) -> None:
    """A named pipe without a writer is an empty file, and is not waited for; that of a shell, `<(...)`, is read."""
    named = tmp_path / "pipe.yaml"
    os.mkfifo(named)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(300)  # the test fails; it does not hang
    try:
        with pytest.raises(InvalidConfigError, match=r"pipe\.yaml is empty"):
            read_yaml(named)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    end, writer = os.pipe()
    written = threading.Timer(0.1, lambda: (os.write(writer, b"n: 3\n"), os.close(writer)))
    written.start()
    assert read_yaml(f"/dev/fd/{end}") == {"n": 3}
    os.close(end)


def test_variables_of_the_process_are_set_if_the_file_is_right(parsed, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("LLM_ENVS_TEST_SEEN", raising=False)
    with pytest.raises(InvalidConfigError):
        parsed("play", "env: X\nvariables: {LLM_ENVS_TEST_SEEN: 1}\nn: 0")
    assert "LLM_ENVS_TEST_SEEN" not in os.environ
    parsed("play", "env: X\nvariables: {LLM_ENVS_TEST_SEEN: 1}")
    assert os.environ.pop("LLM_ENVS_TEST_SEEN") == "1"


def test_the_documented_file_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/reference/command_line.md shows a file and two commands that read it; here they run."""
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text(encoding="utf-8")
    (content,) = re.findall(r"```yaml\n# collect\.yaml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "collect.yaml").write_text(content)
    commands = re.findall(r"^llm-envs (collect --config collect\.yaml.*)$", text, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main(command.split()) == 0
    capsys.readouterr()
    first, second = read_run(tmp_path / "runs" / "mixture"), read_run(tmp_path / "runs" / "random")
    assert len(first.trajectories) == 20 and first.settings["policy"] == "oracle"
    assert len(second.trajectories) == 4 and second.settings["policy"] == "random"
    assert [kwargs for _, _, kwargs in first.settings["envs"]] == [{"split": "train"}] * 2
