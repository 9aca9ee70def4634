"""The tasks over published data: their layouts, forms of answers, verdicts and errors, on small files."""

import csv
import json
import os
import subprocess
import sys

import gymnasium as gym
import pytest
from machine import busy

from llm_envs.checker.catalogue import example_kwargs, suite_ids
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, EnvChoice, SeedSource
from llm_envs.tasks.benchmarks import code_judging
from llm_envs.tasks.benchmarks.code_judging import passes_tests

SPLITS = {
    "GSM8K": ("train", "test"),
    "MATH500": ("test",),
    "AIME": ("test",),
    "MMLU": ("train", "test"),
    "GPQA": ("test",),
    "HotpotQA": ("train", "test"),
    "HumanEval": ("test",),
    "MBPP": ("train", "test"),
}
CHOICES = ["1", "2", "3", "4"]
ROWS = {
    "GSM8K": {"question": "What is 1,000+234?", "answer": "It is <<1000+234=1234>>1234.\n#### 1,234"},
    "MATH500": {
        "problem": "What is 3/12?",
        "solution": "It is $\\boxed{\\frac{1}{4}}$.",
        "answer": "\\frac{1}{4}",
        "subject": "Prealgebra",
        "level": 1,
        "unique_id": "test/prealgebra/1.json",
    },
    "AIME": {"ID": "2024-I-1", "Problem": "What is 100-67?", "Solution": "Subtract.", "Answer": 33},
    "MMLU": {"question": "What is 1+2?", "subject": "anatomy", "choices": CHOICES, "answer": 2},
    "GPQA": {
        "Record ID": "rec1",
        "Question": "What is 1+2?",
        "Correct Answer": "3\n",
        "Incorrect Answer 1": "1",
        "Incorrect Answer 2": "2",
        "Incorrect Answer 3": "4",
    },
    "HotpotQA": {
        "id": "5a7a06935542990198eaf050",
        "question": "Where is the river of Ulm?",
        "answer": "The Black Forest",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": {"title": ["Ulm"], "sent_id": [0]},
        "context": {"title": ["Ulm", "Danube"], "sentences": [["Ulm is on it.", " It is old."], ["It rises there."]]},
    },
    "HumanEval": {
        "task_id": "HumanEval/900",
        "prompt": 'def half(x: int) -> int:\n    """ Halve it.\n    """\n',
        "canonical_solution": "    return x // 2\n",
        "test": "\n\ndef check(candidate):\n    assert candidate(6) == 3\n    assert candidate(-4) == -2\n",
        "entry_point": "half",
    },
    "MBPP": {
        "task_id": 900,
        "text": "Write a function to halve a number.",
        "code": "def half(x):\r\n  return x // 2",
        "test_list": ["assert half(6) == 3", "assert half(-4) == -2"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
}
"""A row of each, with the fields of the published data."""


def make(name, data=None, split="test", **kwargs):
    return gym.make(f"llm/{name}-v0", data=[ROWS[name]] if data is None else data, split=split, **kwargs)


def step(name, action, data=None, **kwargs):
    """Return the components of one reply."""
    env = make(name, data, **kwargs)
    env.reset(seed=0)
    return env.step(action)[4]["reward_components"]


def paid(name, action, **kwargs):
    """Return 1 for a right reply, 0 for a wrong one, -1 for a malformed one."""
    components = step(name, action, **kwargs)
    return int(components["correct"] - components["malformed"])


# Data.


@pytest.mark.smoke
@pytest.mark.parametrize("name", SPLITS)
def test_splits_are_those_of_the_benchmark(name):
    for split in ("train", "test"):
        if split in SPLITS[name]:
            assert make(name, "sample", split).unwrapped.n_problems > 5
        else:
            with pytest.raises(InvalidConfigError, match="known are 'test'"):
                make(name, "sample", split)
    assert gym.make(f"llm/{name}-v0", data="sample").unwrapped.split == SPLITS[name][0]


@pytest.mark.parametrize("name", SPLITS)
def test_a_task_without_data_says_where_they_are_and_what_fields_they_have(name):
    with pytest.raises(InvalidConfigError) as raised:
        gym.make(f"llm/{name}-v0")
    layout = gym.make(f"llm/{name}-v0", data="sample").unwrapped.layout
    assert f"data={layout.hub!r}" in str(raised.value) and "data='sample'" in str(raised.value)
    assert all(repr(published[0]) in str(raised.value) for published in layout.fields.values())
    with pytest.raises(InvalidConfigError, match="row 0 lacks the field"):
        make(name, [{"other": 1}])
    with pytest.raises(InvalidConfigError, match="are empty"):
        make(name, [])


@pytest.mark.parametrize("name", SPLITS)
def test_a_file_of_the_published_layout(name, tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(ROWS[name]) + "\n")
    for data in (str(path), str(tmp_path / "{split}.jsonl")):
        env = make(name, data)
        env.reset(seed=0)
        assert env.step(env.unwrapped.oracle())[1] == 1
        assert env.unwrapped.n_problems == 1


@pytest.mark.parametrize("name", ["GSM8K", "HotpotQA", "MBPP"])
def test_a_saved_data_set_and_parquet(name, tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([ROWS[name]])
    published = make(name, "sample").unwrapped.layout.splits["test"]
    datasets.DatasetDict({published: rows}).save_to_disk(tmp_path / "set")
    rows.to_parquet(tmp_path / "rows.parquet")
    for data in (tmp_path / "set", tmp_path / "rows.parquet"):
        env = make(name, str(data))
        env.reset(seed=0)
        assert env.step(env.unwrapped.oracle())[1] == 1


def test_data_that_cannot_be_loaded():
    with pytest.raises(InvalidConfigError, match=r"no_such\.jsonl' cannot be read: .* Pass data='openai/gsm8k'"):
        make("GSM8K", "no_such.jsonl")
    for data in (5, [1], {"question": "a", "answer": "b"}):
        with pytest.raises(InvalidConfigError, match=r"(data|row 0) is .* Pass data='openai/gsm8k'"):
            make("GSM8K", data)
    for name in ("IFEval", "DatasetMath"):
        with pytest.raises(InvalidConfigError, match="must be a path, a data set, or rows"):
            gym.make(f"llm/{name}-v0", split="test", data=5)
    with pytest.raises(InvalidConfigError, match=r"data is 'pyproject.toml'; it must be a file that ends in \.jsonl"):
        make("GSM8K", "pyproject.toml")
    code = (
        "import gymnasium, llm_envs\n"
        "try:\n    gymnasium.make('llm/GSM8K-v0', data='openai/gsm8k')\n"
        "except llm_envs.errors.InvalidConfigError as error:\n    print(error)"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=True)
    assert (
        "of 'openai/gsm8k' (configuration 'main') cannot be loaded" in done.stdout
        and "The fields are 'question', 'answer'" in done.stdout
    )


def test_mbpp_rows_may_lack_imports():
    row = {"text": "Add.", "code": "def add(a, b):\n    return a + b", "test_list": ["assert add(1, 2) == 3"]}
    env = make("MBPP", [row])
    env.reset(seed=0)
    assert env.step(env.unwrapped.oracle())[1] == 1.0


def test_gpqa_reads_the_published_csv(tmp_path):
    path = tmp_path / "gpqa_diamond.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS["GPQA"])
        writer.writeheader()
        writer.writerow(ROWS["GPQA"])
    assert make("GPQA", str(path)).reset(seed=0)[0].count("3") == 1


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"problem": "What?", "answer": "073", "id": 1}, "073"),  # the layout of math-ai/aime25
        ({"problem": "What?", "solution": "\\boxed{204}", "id": 60}, "204"),  # of math-ai/aime24
        ({"id": 1, "problem": "What?", "solution": "So $\\boxed{9}$.", "answer": "9", "url": "", "year": "2024"}, "9"),
    ],
)
def test_other_layouts_of_aime(row, answer):
    assert make("AIME", [row]).unwrapped.problem_at(0)["answer"] == answer


def test_the_sanitized_layout_of_mbpp():
    row = {
        "source_file": "a.ipynb",
        "task_id": 2,
        "prompt": "Write a function to compute a root.",
        "code": "import math\ndef root(x):\n  return math.sqrt(x)",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(root(4), 2)"],
    }
    assert paid("MBPP", f"```python\n{row['code']}\n```", data=[row]) == 1
    assert paid("MBPP", "```python\ndef root(x):\n  return x\n```", data=[row]) == 0


def test_the_json_layout_of_hotpot_qa():
    row = ROWS["HotpotQA"] | {"context": [["Ulm", ["Ulm is on it.", " It is old."]]]}
    assert make("HotpotQA", [row]).unwrapped.problem_at(0)["passages"] == [["Ulm", "Ulm is on it. It is old."]]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("GSM8K", {"answer": "It is 3."}),
        ("AIME", {"Answer": 1000}),
        ("MATH500", {"answer": " "}),
        ("MMLU", {"answer": 4}),
        ("MMLU", {"choices": CHOICES[:3]}),
        ("GPQA", {"Correct Answer": 3}),
        ("HotpotQA", {"context": {"title": ["Ulm"]}}),
        ("HumanEval", {"entry_point": "half()"}),
        ("MBPP", {"test_list": ["assert half("]}),
        ("MBPP", {"test_list": ["assert True"]}),
    ],
)
def test_a_wrong_row_is_named(name, change):
    with pytest.raises(InvalidConfigError, match="in row 0 "):
        make(name, [ROWS[name] | change])


def test_each_row_can_be_played_once():
    problems = make("GSM8K", "sample").unwrapped
    rows = [problems.problem_at(i) for i in range(problems.n_problems)]
    source = SeedSource([EnvChoice("llm/GSM8K-v0", 1.0, {"data": "sample", "split": "test"}, problems=rows)])
    with Collector(source, OraclePolicy(), progress=False) as collector:
        groups = collector.collect(len(rows), 1)
    assert len({group.trajectories[0].messages[0].content for group in groups}) == len(rows)
    assert all(group.trajectories[0].is_success for group in groups)


def test_nothing_heavy_is_imported_before_a_verdict():
    code = (
        "import sys, gymnasium, llm_envs\n"
        f"for name in {list(SPLITS)}:\n    gymnasium.make(f'llm/{{name}}-v0', data='sample').reset(seed=0)\n"
        "assert not {'torch', 'datasets', 'sympy', 'math_verify', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[train\]"):
        make("GSM8K", "openai/gsm8k")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[tools\]"):
        make("MATH500")


def test_tasks_that_need_data_are_no_part_of_the_suite():
    assert not {f"llm/{name}-v0" for name in SPLITS} & set(suite_ids())
    assert all(example_kwargs(f"llm/{name}-v0") == {"data": "sample"} for name in SPLITS)


# Forms of answers.


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "reply", "expected"),
    [
        ("GSM8K", "1000+234=1234\n#### 1234", 1),
        ("GSM8K", "#### 1,234", 1),
        ("GSM8K", "#### 1,234.", 1),
        ("GSM8K", "#### 1235", 0),
        ("GSM8K", "#### 1234.0", 0),  # the repository compares texts
        ("GSM8K", "#### 1235\n#### 1234", -1),
        ("GSM8K", "#### 1234\n\nChecked:\n#### 1,234", 1),
        ("GSM8K", "####1234", -1),
        ("GSM8K", "#### $1234", -1),
        ("GSM8K", "1234", -1),
        ("GSM8K", "<think>#### 1234</think> I do not know.", -1),
        ("GSM8K", "<think>#### 7</think>#### 1234", 1),
        ("GSM8K", "<think>#### 1234", -1),
        ("MATH500", r"So it is $\boxed{\frac{1}{4}}$.", 1),
        ("MATH500", r"\boxed{0.25}", 1),
        ("MATH500", r"\boxed{\frac14}", 1),
        ("MATH500", r"\boxed{\frac{3}{12}}", 1),
        ("MATH500", r"\boxed{\frac{1}{2}\cdot\frac{1}{2}}", 0),
        ("MATH500", r"\boxed{\frac{1}{4}} or \boxed{\frac{1}{2}}", -1),
        ("MATH500", r"\boxed{\frac{1}{4}", -1),
        ("MATH500", r"\frac{1}{4}", -1),
        ("AIME", r"\boxed{33}", 1),
        ("AIME", r"\boxed{033}", 1),
        ("AIME", r"$\boxed{33}$ and again \boxed{33}", 1),
        ("AIME", r"\boxed{34}", 0),
        ("AIME", r"\boxed{0033}", -1),
        ("AIME", r"\boxed{33 or 34}", -1),
        ("AIME", r"\boxed{30+3}", -1),
        ("AIME", "33", -1),
        ("MMLU", "Three.\nAnswer: C", 1),
        ("MMLU", "**Answer: C**", 1),
        ("MMLU", "answer: C", 1),
        ("MMLU", "Answer: c", -1),  # simple-evals compares it with the capital letter
        ("MMLU", "Answer: $\\boxed{C}$", 1),
        ("MMLU", "Answer: C) 3", 1),
        ("MMLU", "Answer: A", 0),
        ("MMLU", "Answer: Certainly 3", -1),
        ("MMLU", "Answer: C or D", -1),
        ("MMLU", "Answer: C, not A", -1),
        ("MMLU", "Answer: A\nAnswer: C", -1),
        ("MMLU", "Answer: C\nAnswer: C", 1),
        ("MMLU", "Answer: 3", -1),
        ("MMLU", "C", -1),
        ("MMLU", "Answer: ABCD", -1),
    ],
)
def test_replies(name, reply, expected):
    assert paid(name, reply) == expected


def test_gpqa_shuffles_by_the_seed():
    env, letters = make("GPQA"), set()
    for seed in range(30):
        shown, _ = env.reset(seed=seed)
        letters.add(env.unwrapped.problem["answer"])
        assert f"\n{env.unwrapped.problem['answer']}) 3\n" in f"{shown}\n"
        assert env.reset(seed=seed)[0] == shown
        assert env.step(env.unwrapped.oracle())[1] == 1
    assert letters == set("ABCD")


@pytest.mark.parametrize(
    ("answer", "correct", "f1"),
    [
        ("The Black Forest", 1, 1),
        ("black forest!", 1, 1),
        ("Black  Forest mountains", 0, 0.8),
        ("Black Forest or the Alps", 0, 2 / 3),
        ("yes", 0, 0),
        ("the", -1, 0),
    ],
)
def test_hotpot_qa(answer, correct, f1):
    components = step("HotpotQA", f"<answer>{answer}</answer>")
    assert components["correct"] - components["malformed"] == correct
    assert components["f1"] == pytest.approx(f1)


def test_hotpot_qa_with_a_search():
    env = make("HotpotQA", difficulty="search")
    assert env.reset(seed=0)[0] == "Where is the river of Ulm?"
    env.reset(seed=0)
    shown, reward, terminated, _, _ = env.step(env.unwrapped.oracle())
    assert shown == 'Doc 1 (Title: "Ulm") Ulm is on it. It is old.'
    assert (reward, terminated) == (0.0, False)
    assert env.step(env.unwrapped.oracle())[1:3] == (1.0, True)
    closed = make("HotpotQA")
    closed.reset(seed=0)
    assert closed.unwrapped.tools == [] and closed.unwrapped.max_turns == 1


# Programs.

RIGHT = "def half(x):\n    return x // 2"


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["HumanEval", "MBPP"])
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (f"```python\n{RIGHT}\n```", 1),
        (RIGHT, 1),
        (f"Here it is:\n```python\n{RIGHT}\n```\nTry it:\n```python\nprint(half(2))\n```", 1),
        (f"<think>```python\n{RIGHT}\n```</think>\n```\n{RIGHT}\n```", 1),
        ("```python\ndef half(x):\n    return int(x / 2 + 0.6)\n```", 0),
        ("```python\ndef half(x):\n    raise ValueError\n```", 0),
        ("```python\ndef half(x)\n```", 0),
        ("```python\nx = 1\n```", 0),
        (f"```python\n{RIGHT}\n```\n```python\ndef half(x):\n    return x\n```", -1),
        (f"```python\n{RIGHT}\n", -1),
        ("I cannot.", -1),
        (f"```python\n{RIGHT}\n{'#' * 50_001}\n```", -1),
    ],
)
def test_programs(name, reply, expected):
    assert paid(name, reply) == expected


def test_a_program_may_use_the_imports_of_its_tests():
    row = ROWS["MBPP"] | {
        "test_setup_code": "import math",
        "test_list": ["assert math.isclose(root(4), 2)", "assert root(9) == 3"],
    }
    assert paid("MBPP", "```python\ndef root(x):\n    return math.sqrt(x)\n```", data=[row]) == 1


def test_human_eval_takes_a_body():
    assert paid("HumanEval", "```python\n    return x // 2\n```") == 1
    assert paid("HumanEval", "    return x // 2\n") == 1


HOSTILE = {
    "equal to everything": "class E:\n    def __eq__(s, o): return True\n\ndef half(x):\n    return E()",
    "an equal list": "class L(list):\n    def __eq__(s, o): return True\n\ndef half(x):\n    return L()",
    "an equal number": "class N(int):\n    def __eq__(s, o): return True\n\ndef half(x):\n    return N(9)",
    "ends the interpreter": "import os\nos._exit(0)",
    "ends the interpreter in a call": "import os\n\ndef half(x):\n    os._exit(0)",
    "exits": "import sys\n\ndef half(x):\n    sys.exit(0)",
    "exits at once": "raise SystemExit(0)",
    "no assertions": "import builtins\nbuiltins.AssertionError = None\n\ndef half(x):\n    return 9",
    "another check": "def check(candidate):\n    pass\n\ndef half(x):\n    return 9",
    "says that it passed": "import __main__\n__main__.serve = lambda *a: 'passed'\n\ndef half(x):\n    return 9",
    "prints that it passed": "print('passed')\n\ndef half(x):\n    print('passed')\n    return 9",
    "answers with code": "import __main__\n__main__.serve = lambda *a: \"(True, __import__('os')._exit(0))\"\nhalf = 1",
    "answers with an unknown kind": "import __main__\n__main__.serve = lambda *a: \"(True, ('eval', [1]))\"\nh = 1",
    "looks at its caller": "import sys\n\ndef half(x):\n    f = sys._getframe(1)\n    while f:\n"
    "        f.f_globals['asked'] = None\n        f.f_globals['told'] = None\n        f = f.f_back\n    return 9",
    "traces": "import sys\n\ndef half(x):\n    sys.settrace(lambda *a: None)\n    return 9",
    "recurses": "def half(x):\n    return half(x)",
    "takes the memory": "def half(x):\n    return [0] * 10 ** 10",
    "endless values": "def half(x):\n    while True:\n        yield 1",
    "an equal fraction": "from fractions import Fraction\n\nclass F(Fraction):\n    def __eq__(s, o): return True\n\n"
    "def half(x):\n    return F(9)",
    "an equal array": "import numpy\n\nclass A(numpy.ndarray):\n    def __eq__(s, o): return True\n\n"
    "def half(x):\n    return numpy.full(2, 9).view(A)",
    "a class of its own as an answer": "import __main__\n"
    "__main__.serve = lambda *a: __main__.Text(\"(True, ('made', 'os._exit', [0]))\")\nhalf = 1",
    "answers with an array of texts": "import __main__\n"
    "__main__.serve = lambda *a: __main__.Text(\"(True, ('numpy', 'O8', 3))\")\nhalf = 1",
    "nested values": "def half(x):\n    v = []\n    for _ in range(10 ** 5):\n        v = [v]\n    return v",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_fails(name):
    assert paid("HumanEval", f"```python\n{HOSTILE[name]}\n```") == 0


def test_a_program_has_three_seconds():
    assert paid("MBPP", "```python\ndef half(x):\n    while True:\n        pass\n```") == 0


VALUES = """
import math
for v in (None, True, 1, -5, 10**6000, 1.5, float('inf'), 'a\\n', b'x', (1, [2, {3}]), {1: {'a': (1,)}},
          frozenset({1}), range(3), 2+3j, [], ()):
    assert f(v) == v and type(f(v)) is type(v), v
assert math.isnan(f(float('nan')))
"""


MADE = """
import datetime, decimal, fractions
from collections import deque
x, day = datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.timedelta(1, 2, 3)
made = [fractions.Fraction(1, 3), decimal.Decimal('0.10'), x, x.date(), x.time(), day, deque([1, day]), bytearray(b'a')]
for v in made:
    assert f(v) == v and type(f(v)) is type(v), v
assert f(fractions.Fraction(1, 4)) == 0.25 and str(f(decimal.Decimal('0.10'))) == '0.10'
"""
NUMPY = """
a = f(1)
assert a == (True, 1, 1, 1, 1, 1, 1) and a[0] and 10 / a[1] == 10 and a[1] in {1, 2} and f(0.5)[2] == 0.5
assert list(f([1, 2])[1]) == [1, 2] and len(f([1, 2])[1]) == 2 and sorted(f([3, 1])[1]) == [1, 3]
assert (f([[1, 2]])[2] == [[1, 2]]).all() and f([5])[1][0] == 5
"""


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return x", VALUES),
        ("def f(x): return x", MADE),
        (
            "import numpy as np\ndef f(x):\n  return np.any(x), *map(np.array(x).astype, "
            "('i8', 'f4', 'u1', 'c8', 'longdouble', 'f8'))",
            NUMPY,
        ),
        ("def f(x): return x(4) if callable(x) else x", "assert f(f) == 4"),
        ("def f(n):\n  yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(d): return d.keys()", "assert sorted(f({2: 1, 1: 1})) == [1, 2]"),
        ("import collections\ndef f(t): return collections.Counter(t)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("def f(n): raise ValueError", "try:\n  f(1)\n  assert False\nexcept ValueError:\n  pass"),
        ("def f(n, *, k=1): return n + k", "assert f(1, k=2) == 3"),
        (
            "class P:\n  def __init__(s, x): s.x = x\n  def up(s): return P(s.x + 1)\ndef f(p): return p.x",
            "p = P(1)\nassert f(p.up()) == 2 and p.x == 1\np.x = 7\nassert f(p) == 7",
        ),
    ],
)
def test_values_pass_between_program_and_tests(program, tests):
    assert passes_tests(program, "", ["f", "P"], tests)
    assert not passes_tests(program, "", ["f", "P"], f"{tests}\nassert f is None")


def test_what_a_program_says_is_read_only_where_the_tests_are():
    """Its interpreter may say anything. Here it is one text, and is not parsed, whatever it is."""
    program = (
        "import sys\nclass Said:\n    def __repr__(self): return '(True, 5)'\n"
        "sys.modules['__main__'].serve = lambda *_: Said()"
    )
    assert passes_tests(program, "", ["f"], "assert f() == 5")
    assert not passes_tests(program.replace("(True, 5)", "{" * 900_000), "", ["f"], "assert f() == 5")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_time_without_a_processor_is_not_a_programs(monkeypatch):
    """Four others share its processor: it ends in five times its own time, which is more than the limit."""
    monkeypatch.setattr(code_judging, "TIMEOUT_S", 1.0)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # children have it too
    loop = "def f():\n    end = time.process_time() + 0.3\n    while time.process_time() < end: pass"
    try:
        with busy(4):
            assert passes_tests(f"import time\n{loop}", "", ["f"], "f()")
            assert not passes_tests(f"import time\n{loop.replace('0.3', '1.5')}", "", ["f"], "f()")
    finally:
        os.sched_setaffinity(0, before)
