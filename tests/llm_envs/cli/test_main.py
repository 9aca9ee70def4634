"""One grammar for all commands: spelling, errors in one line, `--debug`, exit codes, helps, and what is imported."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.cli.main import all_commands, create_parser, main
from llm_envs.cli.parser import Parser, take_debug
from llm_envs.env import SingleTurnEnv
from llm_envs.errors import did_you_mean
from llm_envs.registration import register_task

PLAYED = "llm/Arithmetic-v0"
COMMANDS = all_commands()


class Fails(SingleTurnEnv):
    """Has no problems."""

    def generate(self):  # type: ignore[no-untyped-def]
        raise RuntimeError("no problem today")


@pytest.fixture
def failing() -> Iterator[str]:
    register_task("broken/Fails-v0", Fails)
    yield "broken/Fails-v0"
    gym.registry.pop("broken/Fails-v0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a run of two episodes."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["collect", PLAYED, "-n", "2", "--out", str(folder)]) == 0
    return str(folder)


def parsers() -> dict[str, Parser]:
    """Return the parser of each command."""
    return dict(create_parser().commands)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a wrong command line gets."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(str(end.code))
    error = capsys.readouterr().err
    assert code == 2 and error.startswith("llm-envs: error: ") and error.count("\n") == 1, (code, error)
    return error.removeprefix("llm-envs: error: ").rstrip("\n")


# One grammar.


def test_every_option_has_a_help_and_every_command_reads_a_file() -> None:
    for command, parser in parsers().items():
        without = [action.dest for action in parser.actions if not action.help]
        assert without in ([], ["name"]), command
        assert ("--config" in parser.options()) == (command not in ("train", "completion")), command


OF_ROOMS = {"audit", "certify", "mcp", "serve"}
"""Commands that are missing where their room is."""


def test_the_page_of_commands_lists_each() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "command_line.md"
    listed = re.findall(r"^\| `llm-envs ([a-z-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(set(listed)) == len(listed) and COMMANDS.keys() <= set(listed) <= COMMANDS.keys() | OF_ROOMS


@pytest.mark.smoke
def test_a_server_on_every_address_warns(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command with `--host`, however the address is written; what else is wrong ends it after the warning."""
    servers = {name for name, parser in parsers().items() if "--host" in parser._option_string_actions}
    assert servers == {"serve", "serve-envs"} & COMMANDS.keys()
    for name in servers:
        command = [name, "no/such/folder" if name == "serve" else "no/Such-v0"]
        for host, warns in [("0.0.0.0", True), ("::", True), ("0", True), ("", True), ("127.0.0.1", False)]:
            assert main([*command, f"--host={host}"]) == 2
            assert (f"--host {host} listens on every address" in capsys.readouterr().err) is warns, (name, host)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_written_with_dashes_or_underscores_and_in_full(command: str) -> None:
    parser = parsers()[command]
    for name in (name for name in parser.options() if name.startswith("--")):
        assert "_" not in name
        for spelling in (name, f"--{name.lstrip('-').replace('-', '_')}"):
            assert parser.spelled([f"{spelling}=1"]) == [f"{name}=1"]
        if len(name) > 5 and name[:-2] not in parser.options():
            with pytest.raises(ValueError, match="there is no such option"):
                parser.spelled([name[:-2]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plya"], "invalid choice: 'plya' (choose from 'list', 'check'"),
        (["xyzzy"], "invalid choice: 'xyzzy' (choose from 'list', 'check', 'new-task', 'play'"),
        (["--fmaily"], "--fmaily: there is no such option. `llm-envs --help` lists every option."),
        (["play", "--modle", "x"], "--modle: there is no such option. Did you mean --model?"),
        (["play", PLAYED, "--max_turn_tokes=4"], "--max-turn-tokes: there is no such option. Did you mean --max-turn-"),
        (["collect", PLAYED, "--max-turn", "4"], "--max-turn: there is no such option. Did you mean --max-turns?"),
        (["collect", PLAYED, "-x"], "-x: there is no such option. `llm-envs collect --help` lists every option."),
        (["collect", PLAYED], "the following arguments are required: --out, -n. `llm-envs collect --help`"),
        (["play"], "the following arguments are required: ENV. `llm-envs play --help` lists every option."),
        (["play", PLAYED, "further"], "further: unexpected argument (keep positional arguments together"),
        (["play", PLAYED, "-n", "many"], "argument -n: many is not an integer of at least 1."),
        (["play", PLAYED, "--temperature", "warm"], "argument --temperature: warm is not a number of at least 0"),
        (["play", PLAYED, "--temperature=-1e-3"], "-1e-3 is not a number of at least 0"),
        (["play", PLAYED, "--policy", "orakle"], "--policy: invalid choice: 'orakle' (choose from 'oracle', 'random'"),
        (["play", PLAYED, "--server-args", "--dtype=half"], "write --server-args='--dtype=half'"),
        (["list", "--json=yes"], "argument --json/--no-json: ignored explicit argument 'yes'"),
        (["train", "gprpo"], "there is no training 'gprpo'; there are "),
        (["completion", "bahs"], "invalid choice: 'bahs' (choose from 'bash', 'zsh', 'fish'). Did you mean bash?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_what_is_meant(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in said(capsys, *arguments)


def test_the_nearest_name() -> None:
    assert did_you_mean("--max_turn", ["--max-turns", "--max-turn-tokens"]) == " Did you mean --max-turns?"
    assert (
        did_you_mean("--num-generation=4", ["--num_generations", "--num-generations"])
        == " Did you mean --num_generations?"
    )
    assert did_you_mean("zzz", ["--max-turns"]) == ""


def test_an_option_with_one_letter_has_two_dashes_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", PLAYED, "--n", "2"]) == 0
    assert capsys.readouterr().out.count("--- user") == 2


@pytest.mark.parametrize(
    ("given", "left", "is_debug"),
    [
        ("--debug play X", "play X", True),
        ("play --debug X", "play X", True),
        ("play X -n 2 --debug", "play X -n 2", True),
        ("train --debug grpo --beta 1", "train grpo --beta 1", True),
        ("train grpo --debug", "train grpo", True),
        ("train grpo --debug --beta 1", "train grpo --beta 1", True),
        ("train grpo --beta 1 --debug underflow_overflow", "train grpo --beta 1 --debug underflow_overflow", False),
        ("play -- --debug", "play -- --debug", False),
        ("play X", "play X", False),
    ],
)
def test_debug_stands_anywhere(given: str, left: str, is_debug: bool) -> None:
    assert take_debug(given.split()) == (left.split(), is_debug)


def test_a_traceback_is_shown_for_debug_only(capsys: pytest.CaptureFixture[str], failing: str) -> None:
    for arguments, code in ((["play", "llm/Nothing-v0"], 2), (["play", failing], 1), (["train", "nothing"], 2)):
        assert main(arguments) == code
        assert "Traceback" not in capsys.readouterr().err
        assert main([*arguments, "--debug"]) == code
        error = capsys.readouterr().err
        assert "Traceback (most recent call last)" in error
        assert error.splitlines()[-1].startswith("llm-envs: error: ")


# Exit codes.


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"llm-envs {llm_envs.__version__}\n"


def test_0_where_it_worked(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["list", "--family", "games"],
        ["check", PLAYED],
        ["new-task", "rhymes_well", "--package", "--out", str(tmp_path)],
        ["play", PLAYED],
        ["collect", PLAYED, "-n", "1", "--out", str(tmp_path / "run")],
        ["eval", PLAYED, "-n", "2"],
        ["export", run, str(tmp_path / "rows.jsonl"), "--to", "messages"],
        ["report", run, "--out", str(tmp_path / "page.html")],
        ["train"],
        ["completion", "bash"],
    ):
        assert main(arguments) == 0, arguments
        assert "error" not in capsys.readouterr().err


def test_1_where_it_did_not(run: str, failing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    pytest.importorskip("transformers")
    for arguments in (
        ["check", failing],
        ["play", failing],
        ["collect", failing, "-n", "1", "--out", str(tmp_path / "run")],
        ["eval", PLAYED, "-n", "2", "--policy", "random", "--min-success", "1"],
        ["export", run, str(tmp_path / "file" / "rows.jsonl"), "--to", "messages"],
        ["report", str(tmp_path / "damaged")],
    ):
        assert main(arguments) == 1, arguments
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_2_where_it_was_asked_wrongly(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no such option" in said(capsys, command, "--no-such-option")


class Interrupted(io.StringIO):
    """A terminal at which somebody presses Ctrl-C when the first word comes, or which cannot be written to."""

    def __init__(self, error: Callable[[str], BaseException]) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error("the terminal is gone")


def sigterm(text: str) -> BaseException:
    """Send this process SIGTERM, which a command turns into Ctrl-C."""
    signal.raise_signal(signal.SIGTERM)
    return OSError(text)


def test_130_where_it_was_interrupted_and_1_where_nothing_can_be_written(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (error, code, last) in enumerate(
        [
            (KeyboardInterrupt, 130, "llm-envs: interrupted"),
            (sigterm, 130, "llm-envs: interrupted"),
            (OSError, 1, "OSError: the terminal is gone (--debug"),
        ]
    ):
        for arguments in (
            ["list", "--family", "games"],
            ["check", PLAYED],
            ["new-task", "rhymes_well", "--package", "--out", str(tmp_path / str(number))],
            ["play", PLAYED],
            ["collect", PLAYED, "-n", "1", "--out", str(tmp_path / f"run-{number}")],
            ["eval", PLAYED, "-n", "2"],
            ["export", run, str(tmp_path / f"rows-{number}.jsonl"), "--to", "messages"],
            ["report", run, "--out", str(tmp_path / f"page-{number}.html")],
            ["train"],
            ["completion", "bash"],
        ):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", Interrupted(error))
                assert main(arguments) == code, arguments
            assert last in capsys.readouterr().err.splitlines()[-1]


# Helps.


def examples(epilog: str | None) -> list[list[str]]:
    """Return the arguments of each example in the end of a help."""
    lines = [line.strip() for line in (epilog or "").splitlines() if line.startswith("  llm-envs ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_a_help_ends_with_examples_that_parse(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in CONFIGS.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as ended:
        main([*([command] if command else []), "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "\nexamples:\n" in shown
    epilog = (parsers()[command] if command else create_parser()).epilog
    found = examples(epilog)
    assert len(found) >= 3
    for arguments in found:
        assert not command or arguments[0] == command
        parsed = create_parser().parse_args(arguments)
        assert callable(parsed.function)


CONFIGS = {"play.yaml": "env: llm/Calculator-v0\n"}
"""Files that the examples name."""


HEAVY = (
    *("torch", "transformers", "trl", "vllm", "datasets", "accelerate", "peft"),
    *("rich", "yaml", "matplotlib", "argcomplete", "mcp", "tensorboard", "wandb", "trackio", "jinja2"),
)

LOADED = f"""
import json, os, sys
import llm_envs.cli.main
from llm_envs.cli.main import main
loaded = {{}}
for name in ["", *sys.argv[1:]]:
    read, write = os.pipe()
    if not os.fork():  # each from here: what one loads, no other has
        sys.stdout = open(os.devnull, "w")
        try:
            main([name, "--help"] if name else ["--help"])
        except SystemExit as end:
            assert end.code == 0
        os.write(write, " ".join(sys.modules).encode())
        os._exit(0)
    os.close(write)
    modules = open(read).read().split()
    os.wait()
    ours = [m for m in modules if m.endswith("_command") or m.endswith("_commands") or m == "llm_envs.cli.new_task"]
    tasks = [m for m in modules if m.startswith("llm_envs.tasks.")]
    loaded[name] = [[m for m in {HEAVY!r} if m in modules], ours, tasks, "llm_envs.cli.main" in modules]
print(json.dumps(loaded))
"""


def test_a_help_loads_nothing_that_the_command_does_not_need(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *COMMANDS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert loaded.keys() == {"", *COMMANDS}
    for name, (heavy, commands, tasks, is_ours) in loaded.items():
        assert (heavy, tasks, is_ours) == ([], [], True), name
        own = {COMMANDS[name].module} if name else set()
        shared = {"llm_envs.cli.collect"} if name == "eval" else set()  # a mixture is read alike
        assert set(commands) <= own | shared, name
