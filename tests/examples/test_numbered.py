"""The numbered examples: none is missing, each is one screen that says what to expect, and each runs and is right.

They run in this process, with settings that take seconds, from a folder that has the warm models they would make.
"""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from preloaded import folder_of_programs, variables

from llm_envs.rollout import read_trajectories

pytestmark = [pytest.mark.examples, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NUMBERED = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))
INDEX = (ROOT / "docs" / "guides" / "examples.md").read_text(encoding="utf-8")
OUT = Path("runs/examples")
RATE = r"(\d\.\d{3})"
CHANGE = rf"success on the test split: {RATE} -> {RATE}"

Check = Callable[[str], None]
CHECKS: dict[int, tuple[str, Check]] = {}
"""By number: the arguments of a small run, and what is asserted of what it prints and writes."""


def small(number: int, arguments: str = "") -> Callable[[Check], Check]:
    """Register what is asserted of a small run."""

    def register(check: Check) -> Check:
        CHECKS[number] = (arguments, check)
        return check

    return register


def found(pattern: str, printed: str, *, n: int = 1) -> list[float]:
    """Return the numbers of the only (or of `n`) places where a pattern is printed."""
    places = re.findall(pattern, printed)
    assert len(places) == n, f"{pattern!r} is there {len(places)} times in:\n{printed}"
    return [float(number) for place in places for number in (place if isinstance(place, tuple) else (place,))]


def check_rates(printed: str, pattern: str = CHANGE, *, n: int = 1, of: int = 8) -> list[float]:
    """Return printed rates, which are eighths, as those of eight episodes are."""
    rates = found(pattern, printed, n=n)
    assert all(0 <= rate <= 1 and (rate * of).is_integer() for rate in rates)
    return rates


def n_played(folder: str) -> int:
    """Return how many episodes a training of this process has written."""
    return len(read_trajectories(OUT / folder / "trajectories" / "process-0"))


@small(1, "3")
def play(printed: str) -> None:
    assert "return 1.0, success True" in printed and printed.count("assistant:") == 2


@small(2)
def check(printed: str) -> None:
    holding, of = found(r"Countdown-v0: (\d+) of (\d+) clauses hold", printed)
    assert holding == of > 20
    assert found(r"Forgetful-v0: (\d+) of \d+ clauses do not", printed)[0] >= 2 and "is_deterministic" in printed


@small(3, "--episodes 40")
def evaluate(printed: str) -> None:
    oracle, always_5, _ = check_rates(printed, rf"success {RATE}", n=3, of=40)
    assert oracle == 1.0 and always_5 < 0.4


@small(4, "--groups 4 --size 3")
def collect(printed: str) -> None:
    episodes, tokens, sampled = found(r"(\d+) episodes in \S+ (\d+) tokens, (\d+) of them", printed)
    assert episodes == 12 == len(read_trajectories(OUT / "collected")) and 0 < sampled < tokens
    groups, pairs = found(r"(\d+) groups, (\d+) preference pairs", printed)
    assert groups == 4 >= pairs


@small(5, "--steps 2 --episodes 8")
def sft(printed: str) -> None:
    check_rates(printed)
    assert (OUT / "sft" / "model.safetensors").exists()


@small(6, "--steps 1 --episodes 8")
def grpo(printed: str) -> None:
    check_rates(printed)
    assert n_played("grpo") == 64


@small(7, "--steps 1 --episodes 8")
def ppo(printed: str) -> None:
    check_rates(printed)
    first, last = found(r"explains (\S+) at first, (\S+) at last", printed)
    assert first == last  # of one step
    assert n_played("ppo") == 64


@small(8, "--groups 16 --steps 1 --episodes 8")
def dpo_offline(printed: str) -> None:
    check_rates(printed)
    assert 0 < found(r"(\d+) pairs of 16 groups", printed)[0] <= 16
    assert len(read_trajectories(OUT / "dpo-episodes")) == 64


@small(9, "--steps 2 --episodes 8")
def dpo_online(printed: str) -> None:
    check_rates(printed)
    assert re.search(r"pairs in each step: \d \d\n", printed)
    assert n_played("pairwise") == 2 * 64


@small(10, "--steps 1 --episodes 8")
def vector_rewards(printed: str) -> None:
    check_rates(printed, rf"success {RATE}", n=4)
    assert all(n_played(f"vector-{name}") == 64 for name in ("sum", "gated", "pareto"))


@small(11, "--steps 3 --episodes 8")
def algorithm_switching(printed: str) -> None:
    check_rates(printed)
    assert re.findall(r"(grpo|pairwise):", printed) == ["grpo", "pairwise", "grpo"]


@small(12, "--steps 2 --episodes 8")
def ema_reference(printed: str) -> None:
    check_rates(printed, rf"success {RATE}", n=2)
    frozen_first, _, ema_first, _ = found(r"KL to the reference (\S+) -> (\S+)", printed, n=2)
    assert frozen_first == ema_first == 0.0  # both begin as the policy


@small(13, "--steps 2 --episodes 8")
def kl_schedule(printed: str) -> None:
    check_rates(printed, rf"success {RATE}", n=4)
    linear, cosine, *_ = (found(r"coefficient (\S+) -> (\S+),", line) for line in printed.splitlines())
    assert linear == cosine == [2.0, 0.0]


@small(14, "--steps 2 --episodes 8")
def custom_kl(printed: str) -> None:
    check_rates(printed, rf"success {RATE}", n=3)
    k3, beyond = found(r"its KL (\S+)", printed, n=2)
    assert 0 < k3 < 1 and 0 <= beyond < 1  # of the second step: in the first the policy is the reference
    assert n_played("custom-kl") == 128


@small(15, "--episodes 20")
def tool_tracking(printed: str) -> None:
    n, calculator, abacus = found(r"(\d+) calls of {'calculator': (\d+), 'abacus': (\d+)}", printed)
    assert n == calculator + abacus == sum(found(r"turn \d: (\d+) calls", printed, n=printed.count("turn ")))
    failed = found(r"'(?:UnknownToolError|InvalidActionError)': (\d+)", printed, n=2)
    assert found(rf"{RATE} of them succeeded", printed)[0] == pytest.approx(1 - sum(failed) / n, abs=5e-4)


@small(16, "--steps 1")
def self_verification(printed: str) -> None:
    looks_cheap, _, paid_cheap, _, looks_dear, _, paid_dear, _ = found(
        r"looks (\S+) -> (\S+), paid (\S+) -> (\S+)", printed, n=2
    )
    assert looks_cheap == looks_dear > 0  # the first generation is the same: it is paid otherwise
    assert paid_cheap - paid_dear == pytest.approx(0.9 * looks_cheap, abs=0.03)


@small(17, "--steps 2")
def curriculum(printed: str) -> None:
    assert found(r"(\d) of (\d) levels open", printed, n=2) == [1.0, 2.0, 1.0, 2.0]
    assert n_played("curriculum") == 128


@small(18, "--steps 1 --episodes 8")
def lora(printed: str) -> None:
    check_rates(printed)
    check_rates(printed, rf"merged: {RATE}")
    assert 0 < found(r"(\S+)% of \d+ parameters", printed)[0] < 50
    assert (OUT / "lora" / "adapter_model.safetensors").exists()
    assert (OUT / "lora-merged" / "model.safetensors").exists()


@small(20, "--groups 40 --fit 4 --steps 1 --episodes 8")
def reward_model(printed: str) -> None:
    check_rates(printed)
    assert 0 <= found(rf"right about {RATE} of 10 episodes", printed)[0] <= 1


@small(21, "--steps 1 --episodes 8")
def new_algorithm(printed: str) -> None:
    assert "grpo:" in printed and "own-best:" in printed
    check_rates(printed, rf"success {RATE}", n=2)


@small(22, "--episodes 40")
def trainer_policy(printed: str) -> None:
    whole, short = check_rates(printed, rf"success {RATE}", n=2, of=40)
    assert whole == 1.0 > short


@small(23, "--turns 2")
def inference_by_hand(printed: str) -> None:
    assert max(found(r"off by at most (\S+) nats", printed, n=2)) < 1e-4
    to, back = found(r"exact KL per token: (\S+) to the other model, (\S+) from it", printed)
    assert 0 < to < 1 and 0 < back < 1


@small(24, "--steps 1 --episodes 8")
def on_policy_distillation(printed: str) -> None:
    check_rates(printed)
    first, last = found(r"KL to the teacher, per token: (\S+) -> (\S+) nats", printed)
    assert first == last > 0  # of one step
    assert (OUT / "student" / "trajectories").exists()


@small(25, "--steps 1 --episodes 40")
def own_task(printed: str) -> None:
    assert found(r"(\d+) clauses hold", printed)[0] > 20
    check_rates(printed, of=40)
    assert n_played("own-task") == 64


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a warm model that saw little, under the names that examples ask for."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(EXAMPLES))
        import warm_model

        made = Path(warm_model.warm_model(steps=80))
        for name in ("both", "digit"):  # the lamp is quickly learned
            shutil.copytree(made, made.with_name(f"warm-{name}"))
    return folder


@pytest.mark.parametrize("number", sorted(CHECKS))
def test_a_small_run_is_right(
    number: int, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, check = CHECKS[number]
    path = NUMBERED[number - 1]
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [str(path), *arguments.split()])
    runpy.run_path(str(path), run_name="__main__")
    check(capsys.readouterr().out)


def test_two_processes(workplace: Path) -> None:
    command = [sys.executable, str(NUMBERED[18]), "--steps", "1", "--episodes", "8"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = variables() | {"PYTHON_EXEC": str(folder_of_programs() / "python")}
    process = subprocess.Popen(command, cwd=workplace, env=environment, text=True, **pipes)
    try:
        printed, errors = process.communicate(timeout=900)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
    assert process.returncode == 0, errors[-4000:]
    check_rates(printed)
    assert found(r"(\d) processes; seeds that both played in the last step: (\d)", printed) == [2.0, 0.0]
    assert found(r"weights differ by (\S+)", printed) == [0.0]
    assert n_played(str(workplace / OUT / "two-processes")) == 32


@pytest.mark.smoke
def test_they_are_numbered_without_gaps_and_each_has_a_test() -> None:
    numbers = [int(path.name[:2]) for path in NUMBERED]
    assert numbers == list(range(1, len(NUMBERED) + 1))
    assert sorted([*CHECKS, 19]) == numbers


@pytest.mark.smoke
@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_each_is_one_screen_and_says_what_to_expect(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 64
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert f"Command:   python examples/{path.name}" in doc and re.search(r"^Time: ", doc, flags=re.MULTILINE)
    expected = doc.partition("Expect:")[2]
    assert re.search(r"\d", expected), "no number to expect"


@pytest.mark.smoke
@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_each_is_in_the_index_with_its_number(path: Path) -> None:
    rows = [line for line in INDEX.splitlines() if f"](../../examples/{path.name})" in line]
    assert len(rows) == 1
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    expected = " ".join(doc.partition("Expect:")[2].split())
    numbers = re.findall(r"\d+\.\d+", rows[0].split("|")[-2])
    assert all(number in expected for number in numbers)
