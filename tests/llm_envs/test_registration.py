"""The registry: registering, discovering other people's packages, and what is said when something is wrong."""

import json
import os
import subprocess
import sys
import textwrap

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import DuplicateTaskError, InvalidConfigError, UnknownTaskError
from llm_envs.registration import (
    TaskPackageWarning,
    load_entry_point,
    load_entry_points,
    register_task,
    task_ids,
    task_spec,
)


class Same(SingleTurnEnv):
    """Say the number."""

    difficulties = {"only": Difficulty("a number", chance_rate=0.01)}
    default_difficulty = "only"
    problem_fields = {"n": int}

    def __init__(self, split="train", difficulty=None, render_mode=None, plus=0):
        super().__init__(split, difficulty, render_mode)
        self.plus = plus

    def generate(self):
        return {"n": int(self.np_random.random() * 1000)}

    def prompt(self):
        return f"{self.problem['n']} plus {self.plus}"

    def solution(self):
        return str(self.problem["n"] + self.plus)


@pytest.fixture
def register():
    """Register a task for one test."""
    used = []

    def register(id, *args, **kwargs):
        register_task(id, *args, **kwargs)
        used.append(id)

    yield register
    for id in used:
        gym.registry.pop(id, None)


def test_our_tasks_are_listed():
    ours = [id for id in task_ids() if id.startswith("llm/")]
    assert {"llm/Arithmetic-v0", "llm/Calculator-v0", "llm/Countdown-v0", "llm/GuessNumber-v0"} <= set(ours)
    assert task_ids() == sorted(task_ids())


def test_a_registered_class_is_made_and_has_a_json_spec(register):
    register("test/Same-v0", Same, plus=3)
    assert "test/Same-v0" in task_ids()
    env = gym.make("test/Same-v0")
    env.reset(options={"problem": {"n": 4}})
    assert env.step("<answer>7</answer>")[1] == 1.0
    assert json.loads(task_spec("test/Same-v0").to_json())["kwargs"] == {"plus": 3}
    assert gym.make("test/Same-v0", plus=5).unwrapped.plus == 5


def test_an_entry_point_string_is_not_imported_before_make(register):
    register("test/Lazy-v0", "no_such_package.module:Task")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        gym.make("test/Lazy-v0")


def test_a_local_class_is_registered_as_itself(register):
    class Local(Same):
        pass

    register("test/Local-v0", Local)
    assert isinstance(gym.make("test/Local-v0").unwrapped, Local)


def test_a_duplicate_id_is_refused_and_the_first_kept(register):
    register("test/Same-v0", Same, plus=1)
    with pytest.raises(DuplicateTaskError, match=r"test/Same-v0 is already registered, as .*:Same"):
        register_task("test/Same-v0", Same, plus=2)
    with pytest.raises(DuplicateTaskError, match=r"with \{'plus': 1\}"):
        register_task("test/Same-v0", "other_module:Same", plus=1)
    assert gym.make("test/Same-v0").unwrapped.plus == 1
    with pytest.raises(DuplicateTaskError):
        register_task("llm/Calculator-v0", Same)


def test_the_same_task_may_be_registered_again(register):
    for entry_point in (Same, Same, f"{Same.__module__}:Same"):
        register("test/Same-v0", entry_point, plus=1)
    assert gym.make("test/Same-v0").unwrapped.plus == 1


def test_a_module_may_register_what_its_package_names(tmp_path):
    code = textwrap.dedent(TASK) + 'import llm_envs\nllm_envs.register_task("own/Same-v0", Same)\n'
    install(tmp_path, "own-tasks", {"own/Same-v0": "own_tasks:Same"}, {"own_tasks": code})
    out, err = run("import gymnasium, llm_envs; print(gymnasium.make('own/Same-v0').spec.id)", tmp_path)
    assert (out, err) == ("own/Same-v0\n", "")


@pytest.mark.parametrize(
    "id",
    ["Same-v0", "test/Same", "a/b/c-v0", "", "test/-v", None, "test/Same-v00", "llm/Calculator-v00", "test/Sa me-v0"],
)
def test_a_bad_id_is_refused(id):
    with pytest.raises(InvalidConfigError, match="is not a task id"):
        register_task(id, Same)


@pytest.mark.parametrize("entry_point", ["module", "module:", ":Task", "module:a.b", "", 3, None])
def test_a_bad_entry_point_is_refused(entry_point):
    with pytest.raises(InvalidConfigError, match="the entry point is"):
        register_task("test/Bad-v0", entry_point)
    assert "test/Bad-v0" not in task_ids()


@pytest.mark.parametrize("value", [{1, 2}, float("inf"), object()])
def test_keyword_arguments_must_be_json(value):
    with pytest.raises(InvalidConfigError, match="not made of JSON types"):
        register_task("test/Bad-v0", Same, plus=value)


def test_an_unknown_task_names_close_ones():
    for name in ("llm/Calculater-v0", "Calclator", "llm/Calculator-v7"):
        with pytest.raises(UnknownTaskError, match=rf"'{name}'\. Did you mean llm/Calculator-v0\?$"):
            task_spec(name)
    with pytest.raises(UnknownTaskError, match=r"Did you mean llm/GuessNumber-v0\?$"):
        task_spec("llm/guessnumber-v0")
    for name in ("zzz", "q/QQQQQQQQQQQQQ-v9", "llm/Foo-v0"):
        with pytest.raises(UnknownTaskError, match=r"`llm-envs list` names all \d+, such as llm/.*, .*[^?]\.$"):
            task_spec(name)
    with pytest.raises(UnknownTaskError, match="cannot be imported"):
        task_spec("no_such_module:llm/Calculator-v0")
    assert task_spec("llm_envs:llm/Calculator-v0").id == "llm/Calculator-v0"


def test_unknown_arguments_through_make_name_the_known_ones():
    with pytest.raises(InvalidConfigError, match="known are split, difficulty, max_turns, render_mode"):
        gym.make("llm/Calculator-v0", dificulty="easy")
    with pytest.raises(InvalidConfigError, match="known are 'easy', 'medium', 'hard'"):
        gym.make("llm/Calculator-v0", difficulty="impossible")


def test_public_names_exist():
    for name in llm_envs.__all__:
        assert getattr(llm_envs, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        llm_envs.nothing  # noqa: B018 (the access is the test)


# Other people's packages, in a process of their own.


def run(code, *paths, cwd=None):
    """Run Python code with more import paths; return what it printed, and its errors."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def install(folder, name, entry_points, modules=None, group="llm_envs.tasks"):
    """Write a distribution as an installer leaves it: metadata, entry points, modules."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    for module, code in (modules or {}).items():
        (folder / f"{module}.py").write_text(textwrap.dedent(code))


TASK = """
    from llm_envs import Difficulty, SingleTurnEnv

    class Same(SingleTurnEnv):
        difficulties = {"only": Difficulty("a number", chance_rate=0.01)}
        default_difficulty = "only"
        problem_fields = {"n": int}

        def generate(self):
            return {"n": int(self.np_random.random() * 1000)}

        def prompt(self):
            return str(self.problem["n"])

        def solution(self):
            return str(self.problem["n"])
"""


@pytest.mark.smoke
def test_entry_points_that_cannot_be_imported_are_left_out(tmp_path, monkeypatch):
    """A part of ours that was not shipped is left out silently, anything else with a warning; what needs it raises."""
    group = "llm_envs.of_a_test"
    install(tmp_path, "llm-envs", {"unshipped": "llm_envs.no_such_room:make"}, group=group)
    install(tmp_path, "another", {"broken": "no_such_module:make", "works": "json:loads"}, group=group)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(TaskPackageWarning, match="'broken'.*'another'.*ModuleNotFoundError") as warned:
        assert load_entry_points(group) == {"works": json.loads}
    assert len(warned) == 1
    with (
        pytest.warns(TaskPackageWarning),
        pytest.raises(InvalidConfigError, match=f"^ray='auto' .*'unshipped'.*{group}"),
    ):
        load_entry_point(group, "unshipped", "ray='auto'")


def test_a_good_package_is_found_and_not_imported(tmp_path):
    install(tmp_path, "good-tasks", {"good/Same-v0": "good_tasks:Same"}, {"good_tasks": TASK})
    out, err = run(
        """
        import sys, gymnasium as gym, llm_envs
        print("good/Same-v0" in llm_envs.task_ids(), "good_tasks" in sys.modules)
        env = gym.make("good/Same-v0")
        env.reset(seed=0)
        print(env.step(env.unwrapped.oracle())[1])
        """,
        tmp_path,
    )
    assert out.split() == ["True", "False", "1.0"]
    assert err == ""


def test_other_entry_points_are_loaded_and_called(tmp_path):
    code = TASK + textwrap.indent(
        textwrap.dedent(
            """
            from llm_envs import register_task

            def register():
                for n in (1, 2):
                    register_task(f"called/Same-v{n}", Same)
            """
        ),
        "    ",
    )
    module = 'import llm_envs; llm_envs.register_task("module/Same-v0", "called_tasks:Same")'
    modules = {"called_tasks": code, "module_tasks": module}
    install(tmp_path, "called-tasks", {"all": "called_tasks:register", "module": "module_tasks"}, modules)
    out, err = run("import llm_envs; print(llm_envs.task_ids())", tmp_path)
    assert "'called/Same-v1', 'called/Same-v2'" in out
    assert "'module/Same-v0'" in out
    assert err == ""


@pytest.mark.parametrize(
    ("entry_points", "modules", "complaint"),
    [
        ({"all": "bad_tasks"}, {"bad_tasks": "import no_such_thing"}, "ModuleNotFoundError: No module"),
        ({"all": "bad_tasks"}, {"bad_tasks": "raise SystemExit(3)"}, "SystemExit: 3"),
        ({"all": "bad_tasks:missing"}, {"bad_tasks": ""}, "AttributeError"),
        ({"all": "bad_tasks:f"}, {"bad_tasks": "def f(): 1 / 0"}, "ZeroDivisionError"),
        ({"Same": "bad_tasks:Same"}, {"bad_tasks": "class Same: pass"}, 'an environment id such as "my/Task-v0"'),
        ({"bad/Task": "bad_tasks:Same"}, {}, "'bad/Task' is not a task id"),
        ({"bad/Task-v0": "bad_tasks"}, {}, "the entry point is"),
        ({"bad/Task-v0": "bad_tasks:A.B"}, {}, "the entry point is"),
        ({"llm/Calculator-v0": "bad_tasks:Same"}, {}, "llm/Calculator-v0 is already registered"),
    ],
)
def test_a_bad_package_is_reported_once_and_the_others_stay(tmp_path, entry_points, modules, complaint):
    install(tmp_path, "bad-tasks", entry_points, modules)
    install(tmp_path, "good-tasks", {"good/Same-v0": "good_tasks:Same"}, {"good_tasks": TASK})
    out, err = run(
        """
        import gymnasium as gym, llm_envs
        llm_envs.discover()
        print("good/Same-v0" in llm_envs.task_ids(), gym.registry["llm/Calculator-v0"].entry_point)
        """,
        tmp_path,
    )
    assert out.split() == ["True", "llm_envs.tasks.tools.calculator:CalculatorEnv"]
    assert err.count("TaskPackageWarning: ") == 1
    assert "'bad-tasks' was skipped" in err
    assert complaint in err


@pytest.mark.parametrize("content", [b"[llm_envs.tasks]\nno equals sign\n", b"[x]\na = \xff\xfe\n"])
def test_entry_points_that_cannot_be_read_are_reported_once_and_the_others_stay(tmp_path, content):
    install(tmp_path, "bad-tasks", {})
    (tmp_path / "bad_tasks-1.0.dist-info" / "entry_points.txt").write_bytes(content)
    install(tmp_path, "good-tasks", {"good/Same-v0": "good_tasks:Same"}, {"good_tasks": TASK})
    out, err = run("import llm_envs; llm_envs.discover(); print(llm_envs.task_ids())", tmp_path)
    assert "'good/Same-v0'" in out
    assert "'llm/Calculator-v0'" in out
    assert err.count("TaskPackageWarning: ") == 1
    assert "the distribution 'bad-tasks' were skipped" in err


def test_a_module_that_breaks_when_the_task_is_made_says_so(tmp_path):
    install(tmp_path, "late-tasks", {"late/Task-v0": "late_tasks:Same"}, {"late_tasks": "import no_such_thing"})
    out, err = run(
        """
        import gymnasium as gym, llm_envs
        try:
            gym.make("late/Task-v0")
        except ImportError as error:
            print(error)
        """,
        tmp_path,
    )
    assert out.strip() == "No module named 'no_such_thing'"
    assert err == ""


def test_make_imports_the_package_by_itself(tmp_path):
    out, _ = run(
        """
        import gymnasium as gym
        print(gym.make("llm_envs:llm/Calculator-v0").unwrapped.__class__.__name__)
        print(gym.make_vec("llm_envs:llm/Calculator-v0", num_envs=2).reset(seed=0)[0][0])
        """,
        cwd=tmp_path,
    )
    name, question = out.strip().split("\n")
    assert name == "CalculatorEnv"
    assert question.startswith("What is ")


def test_a_task_in_a_script_works_in_worker_processes_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(TASK)
        + textwrap.dedent(
            """
            import gymnasium as gym
            from llm_envs import register_task

            register_task("mine/Same-v0", Same)
            if __name__ == "__main__":
                spec = gym.spec("mine/Same-v0").to_json()
                env = gym.make_vec("mine/Same-v0", 2, vectorization_mode="async", vector_kwargs={"context": "spawn"})
                first, _ = env.reset(seed=5)
                print(first[0] == gym.make(gym.envs.registration.EnvSpec.from_json(spec)).reset(seed=5)[0])
                env.close()
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr
