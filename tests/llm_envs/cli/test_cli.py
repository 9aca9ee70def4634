from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_envs.cli.main import main

TRAIN_MODULE = """
import sys
def grpo(arguments):
    print("arguments", arguments)
    return 3 if "--fail" in arguments else None
def broken(arguments):
    raise ValueError("first line\\nsecond line")
"""

SAYS = """
import gymnasium as gym
from llm_envs.spaces import TextSpace

class Says(gym.Env):
    observation_space = action_space = TextSpace()
    system_prompt, tools = None, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "Guess.", {}

    def step(self, action):
        return "It was 7.", 1.0, True, False, {"is_success": True}

gym.register("test/Says-v0", Says)
"""


def command(*arguments: str, cwd: Path, stdin: str = "", path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `llm-envs` as a process of its own."""
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [sys.executable, "-m", "llm_envs.cli.main", *arguments],
        cwd=cwd,
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", ["llm_envs.cli", "llm_envs.cli.main", "llm_envs.trainers.cli.commands"])
@pytest.mark.parametrize(("sent", "said"), [("SIGINT", "interrupted"), ("SIGTERM", "interrupted by SIGTERM")])
def test_a_signal_while_a_command_is_being_imported_prints_one_line(
    module: str, sent: str, said: str, tmp_path: Path
) -> None:
    """In place of Gymnasium a module that sends the signal; it is imported with the package itself."""
    (tmp_path / "gymnasium.py").write_text(
        f"import os, signal, time; os.kill(os.getpid(), signal.{sent}); time.sleep(60)"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", module, "list"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"llm-envs: {said}\n")


def test_a_program_that_imports_the_package_keeps_its_signals() -> None:
    code = "import signal, llm_envs; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def with_trainings(tmp_path: Path) -> Path:
    """A folder that Python sees as an installed package with two trainings."""
    info = tmp_path / "site" / "somebody-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[llm_envs.train_commands]\nsomebodys = somebody:grpo\nbroken = somebody:broken\n"
    )
    (tmp_path / "site" / "somebody.py").write_text(TRAIN_MODULE)
    return tmp_path / "site"


def test_list_prints_every_task_with_a_line_and_imports_none_and_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from llm_envs.cli.main import main; main(['list']); "
        "print(sorted(m for m in sys.modules if m.startswith('llm_envs.tasks.') and m.count('.') > 2 "
        "or m in ('torch', 'transformers', 'trl', 'vllm', 'datasets', 'rich', 'yaml', 'matplotlib', 'argcomplete')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    listed = dict(line.split(maxsplit=1) for line in lines)
    assert {"llm/Arithmetic-v0", "llm/Calculator-v0", "llm/Countdown-v0", "llm/GuessNumber-v0"} <= set(listed)
    assert all(summary.strip() and "cannot be read" not in summary for summary in listed.values())
    assert imported == "[]"


def test_play_shows_the_conversation_and_its_rewards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "llm/Calculator-v0", "-n", "2", "--seed", "3", "--split", "test"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("--- user") == 2
    assert shown.count("<answer>") >= 2
    assert "[reward" in shown
    assert shown.splitlines()[-1].startswith("llm/Calculator-v0: success 100.0% (")


def test_a_model_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from tiny_folders import save_tiny

    save_tiny(tmp_path, hidden_size=32, n_layers=1, n_heads=2)
    settings = ["--model", str(tmp_path), "-n", "2", "--max-turn-tokens", "5", "--temperature", "0.7"]
    assert main(["play", "llm/Arithmetic-v0", *settings]) == 0
    shown = capsys.readouterr().out
    assert shown.count("tokens=5 sampled of") == 2
    assert shown.splitlines()[-1].startswith("llm/Arithmetic-v0: success 0.0% (")


def test_the_same_seed_plays_the_same_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    def play(seed: str) -> str:
        assert main(["play", "llm/Arithmetic-v0", "-n", "2", "--policy", "random", "--seed", seed]) == 0
        return capsys.readouterr().out

    assert play("1") == play("1")
    assert play("1") != play("2")


def test_a_person_plays_by_writing_a_line_a_turn(tmp_path: Path) -> None:
    done = command("play", "llm/Arithmetic-v0", "--policy", "human", cwd=tmp_path, stdin="<answer>no</answer>\n")
    assert done.returncode == 0, done.stderr
    assert "> " in done.stdout
    assert "success=False" in done.stdout


def test_a_person_who_leaves_ends_it_readably(tmp_path: Path) -> None:
    done = command(
        "play", "llm/Arithmetic-v0", "--policy", "human", "-n", "30", cwd=tmp_path, stdin="<answer>1</answer>"
    )
    assert done.returncode == 1
    assert done.stdout.count("What is") == 2
    assert "nan" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert line == "llm-envs: error: the input ended: 1 of 30 episodes were played to their end."


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["play", "llm/Calculater-v0"], "llm/Calculator-v0"),
        (["check", "llm/Arithmetic-v0", "llm/Calculater-v0"], "llm/Calculator-v0"),
        (["play", "llm/Calculator-v0", "--difficulty", "harrd"], "harrd"),
        (["play", "llm/Calculator-v0", "--split", "validation"], "validation"),
        (["play", "CartPole-v1"], "CartPole-v1 has the spaces Box("),
        (["train", "no-such-training"], "no"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("llm-envs: error: ")
    assert expected in error
    assert error.count("\n") == 1


def test_the_bare_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: llm-envs" in (shown := capsys.readouterr().out) and "collect" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["play"],
        ["play", "X", "-n", "0"],
        ["play", "X", "--temperature", "-1"],
        ["play", "X", "--temperature", "nan"],
        ["play", "X", "--policy", "nobody"],
        ["no"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("llm-envs: error: ") and error.count("\n") == 1


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "play", "llm/Nothing-v0"]) == 2
    assert main(["play", "--debug", "llm/Nothing-v0"]) == 2
    error = capsys.readouterr().err
    assert error.count("Traceback (most recent call last)") == 2


def test_check_passes_for_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "llm/Arithmetic-v0"]) == 0
    assert capsys.readouterr().out.startswith("ok      llm/Arithmetic-v0")


def test_train_hands_everything_after_the_name_to_the_training(tmp_path: Path, with_trainings: Path) -> None:
    done = command("train", "somebodys", "--env", "llm/X-v0", "--help", cwd=tmp_path, path=with_trainings)
    assert (done.returncode, done.stdout) == (0, "arguments ['--env', 'llm/X-v0', '--help']\n")
    assert command("train", "somebodys", "--fail", cwd=tmp_path, path=with_trainings).returncode == 3
    names = command("train", cwd=tmp_path, path=with_trainings).stdout.split()
    assert {"somebodys", "broken"} <= set(names)


def test_a_failing_training_is_one_line_and_exit_code_1(tmp_path: Path, with_trainings: Path) -> None:
    done = command("train", "broken", cwd=tmp_path, path=with_trainings)
    assert done.returncode == 1
    assert done.stderr == "llm-envs: error: ValueError: first line second line (--debug shows the traceback)\n"
    assert "Traceback" in command("--debug", "train", "broken", cwd=tmp_path, path=with_trainings).stderr


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m llm_envs.cli.main play llm/Arithmetic-v0 -n 200 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("model", ["missing", "/missing", "./missing", "a/b/missing", "../missing", "~/missing"])
def test_a_missing_folder_is_not_looked_for_on_a_hub(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "llm/Arithmetic-v0", "--model", model]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Wordle", "llm/Wordle-v0"), ("wordle-v1", "llm/Wordle-v0"), ("guess_number", "llm/GuessNumber-v0")],
)
def test_a_task_by_its_bare_name_is_told_its_id(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", name]) == 2
    assert capsys.readouterr().err == f"llm-envs: error: there is no task {name!r}. Did you mean {meant}?\n"


def test_a_person_sees_what_the_task_said_last(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    play = ("play", "says:test/Says-v0")
    done = command(*play, "--policy", "human", cwd=tmp_path, stdin="7\n", path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "It was 7.\n[terminated, success=True, reward 1]" in done.stdout
    done = command(*play, cwd=tmp_path, path=tmp_path)
    assert done.returncode == 1
    assert "has no oracle" in done.stderr and "--policy human or random" in done.stderr


@pytest.mark.parametrize(
    ("entry_point", "summary"),
    [
        ("no_such_module:Task", "(cannot be read: No module named 'no_such_module')"),
        ("no_such_package.task:Task", "(cannot be read: No module named 'no_such_package')"),
        ("llm_envs.env:NoSuchTask", "(cannot be made: the module 'llm_envs.env' has no class 'NoSuchTask')"),
        ("llm_envs.checker.catalogue:Path", ""),
    ],
)
def test_list_says_what_is_broken(entry_point: str, summary: str) -> None:
    from llm_envs.checker.catalogue import read_summary

    assert read_summary(entry_point) == summary
