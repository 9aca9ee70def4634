"""Problems of a tiny project with pytest: what is kept, what the folder holds, and that a second call continues."""

import json

import gymnasium as gym
import pytest
from shells import make_shell

from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_tool_call
from llm_envs.tasks.repository.prepared import load_prepared
from llm_envs.tasks.repository.preparing import prepare_repository

pytestmark = pytest.mark.slow

PROJECT = {
    "LICENSE": "A licence.\n",
    "pyproject.toml": '[project]\nname = "shop"\nlicence = "?"\nlicense = {text = "MIT"}\n',
    "conftest.py": "import pytest\n\n\n@pytest.fixture\ndef prices():\n    return [1, 2]\n",
    "shop/price.py": "def total(prices, extra=0):\n    return sum(prices) + extra\n\n\ndef unseen(x):\n    return -x\n",
    "shop/names.py": "def short(name):\n    return name[:3].lower()\n",
    "tests/test_shop.py": (
        "import pytest\n\nfrom shop.names import short\nfrom shop.price import total\n\n\n"
        "@pytest.mark.parametrize('extra', [1, 2])\n"
        "def test_total(prices, extra):\n    assert total(prices, extra) == 3 + extra\n\n\n"
        "def test_short():\n    assert short('ABCD') == 'abc'\n\n\n"
        "def test_broken():\n    assert False\n"
    ),
}


@pytest.fixture(scope="module")
def works():
    with make_shell():
        pass


@pytest.fixture(scope="module")
def made(works, tmp_path_factory):
    root = tmp_path_factory.mktemp("shop")
    for path, text in PROJECT.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    out = tmp_path_factory.mktemp("problems") / "shop"
    lines = []
    return root, out, prepare_repository(root, out, problems=2, report=lines.append), lines


def test_problems_are_what_some_tests_notice_and_not_all(made):
    _, out, found, lines = made
    prepared = load_prepared(out)
    manifest = prepared.manifest
    assert manifest.tests == tuple(f"tests/test_shop.py::test_{name}" for name in ("short", "total[1]", "total[2]"))
    assert manifest.sources == ("shop/names.py", "shop/price.py") and manifest.framework == "pytest"
    singles = {key: problem for key, problem in prepared.problems.items() if len(problem.mutations) == 1}
    assert {problem.mutations[0].function for problem in singles.values()} == {"short", "total"}
    for problem in singles.values():
        is_short = problem.mutations[0].function == "short"
        assert set(problem.failing) == set(manifest.tests[:1] if is_short else manifest.tests[1:])
    assert (found.functions, found.tests, found.kept - found.of_two) == (3, 3, 2)
    assert found.tried >= found.killed >= 2 and lines[0].startswith("3 tests pass in ")


def test_the_licence_is_beside_the_problems_and_version_control_is_not(made):
    root, out, _, _ = made
    manifest = json.loads((out / "manifest.json").read_text())
    assert (out / "LICENSE").read_text() == "A licence.\n"
    assert (manifest["licence"], manifest["licence_files"], manifest["source"]) == ("MIT", ["LICENSE"], str(root))
    assert (out / "site" / "pytest").is_dir() and not (out / "project" / ".git").exists()


def test_a_second_call_tries_nothing_again(made, capsys):
    root, out, found, _ = made
    before = (out / "tried.jsonl").read_text(), (out / "problems.jsonl").read_text()
    assert main(["repository", "prepare", str(root), "--out", str(out), "-n", "2"]) == 0
    following = f"""next: llm-envs play llm/Repository-v0 --env-kwargs '{json.dumps({"problems": str(out)})}'"""
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == following
    assert ((out / "tried.jsonl").read_text(), (out / "problems.jsonl").read_text()) == before
    assert f"functions: 3, tests: 3, tried: {found.tried}, killed: {found.killed}" in shown.out


def test_a_folder_of_another_project_is_refused(made, tmp_path):
    root, out, _, _ = made
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(InvalidConfigError, match=str(root)):
        prepare_repository(tmp_path, out)
    with pytest.raises(InvalidConfigError, match="no tests"):
        prepare_repository(tmp_path, tmp_path / "out")
    with pytest.raises(InvalidConfigError, match="no-such-distribution"):
        prepare_repository(root, tmp_path / "out", needs=["no-such-distribution"])


def test_the_oracle_of_a_pytest_project_wins(made):
    _, out, _, _ = made
    problem = next(iter(load_prepared(out).problems.values()))
    env = gym.make("llm/Repository-v0", problems=str(out), split=problem.split)
    try:
        observation, _ = env.reset(options={"problem": {"key": problem.key}})
        assert "`python3 -m pytest -q` runs the tests" in observation
        call = format_tool_call("bash", command="python3 -m pytest -q 2>&1 | tail -1")
        assert " failed" in env.step(call)[0]
        env.step(env.unwrapped.oracle())
        assert env.step(call)[0].startswith("1 failed, 3 passed")  # one was broken before
        assert env.step(env.unwrapped.oracle())[1:3] == (1.0, True)
    finally:
        env.close()
