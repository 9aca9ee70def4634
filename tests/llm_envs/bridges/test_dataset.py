"""Tasks from data sets: the usual layouts, the default reward, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_envs import evaluate
from llm_envs.bridges.dataset import from_dataset
from llm_envs.checker.certification import certify
from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import parse_boxed
from llm_envs.policies import ConstantPolicy, OraclePolicy

QUESTION = [{"role": "user", "content": "What is 70+2?"}]
WORKED = "70 and 2 are 72.\n#### 72"
LAYOUTS: dict[str, dict[str, Any]] = {
    "prompt and answer": {"prompt": "What is 70+2?", "answer": "72"},
    "question and a number": {"question": "What is 70+2?", "answer": 72},
    "GSM8K": {"question": "What is 70+2?", "answer": WORKED},
    "MATH": {"problem": "What is 70+2?", "solution": r"It is \boxed{72}."},
    "messages": {"messages": [*QUESTION, {"role": "assistant", "content": WORKED}]},
    "prompt and completion": {"prompt": "What is 70+2?", "completion": "72"},
    "prompt and completion, as messages": {"prompt": QUESTION, "completion": [{"role": "assistant", "content": "72"}]},
    "verl": {
        "data_source": "openai/gsm8k",
        "prompt": QUESTION,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"split": "train", "index": 0, "answer": WORKED},
    },
    "search-R1": {"prompt": QUESTION, "reward_model": {"ground_truth": {"target": ["72", "seventy-two"]}}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_recognised(layout: str) -> None:
    task = from_dataset([LAYOUTS[layout]], disjoint_splits=False)
    env = task(split="train")
    env.reset(seed=1)
    assert env.prompt() == "What is 70+2?"
    assert env.oracle() == "<answer>72</answer>"
    assert env.step("It is <answer> 72.0 </answer>")[1] == 1.0
    for wrong in ("72", "<answer>73</answer>", "<answer>72 or 73</answer>", "", "<answer></answer>"):
        env.reset(seed=1)
        assert env.step(wrong)[1] == 0.0, wrong


def test_a_list_has_several_right_answers() -> None:
    env = from_dataset([LAYOUTS["search-R1"]], disjoint_splits=False)(split="train")
    env.reset(seed=1)
    assert env.step("<answer>seventy-two</answer>")[1] == 1.0


def test_columns_a_reward_function_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    rows = [{"task": {"text": f"What is {n}+1?"}, "sum": n + 1, "bonus": 0.5} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = from_dataset(
        path, lambda row, reply: row["bonus"] * (reply.answer == row["answer"]), prompt="task.text", answer="sum",
        success_at=0.5,
    )  # fmt: skip
    assert task.env_id == "sums"
    assert len(task.rows("train")) + len(task.rows("test")) == 40
    assert evaluate(task, OraclePolicy(), n=10, split="test", progress=False).success_rate == 1.0
    assert evaluate(task, ConstantPolicy("<answer>0</answer>"), n=10, progress=False).success_rate == 0.0


def test_a_saved_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([LAYOUTS["verl"]] * 3).save_to_disk(str(tmp_path / "saved"))
    task = from_dataset(str(tmp_path / "saved"), disjoint_splits=False)
    row = task.rows("train")[0]
    assert (row["answer"], row["extra_info"]["index"]) == ("72", 0)


def test_the_system_prompt_tells_the_form() -> None:
    def asked(row: dict[str, Any], **options: Any) -> str | None:
        return from_dataset([row], **options).system_prompt

    assert str(asked(LAYOUTS["GSM8K"])).endswith("in this form: <answer>...</answer>")
    boxed = {"parser": parse_boxed, "format_answer": r"\boxed{{{}}}".format}
    assert str(asked(LAYOUTS["GSM8K"], **boxed)).endswith(r"in this form: \boxed{...}")
    assert asked(LAYOUTS["GSM8K"], system_prompt="Be brief.") == "Be brief."
    assert asked({"prompt": "Write a poem."}, reward_fn=lambda row, reply: 1.0) is None
    own = {"prompt": [{"role": "system", "content": "Use tags."}, *QUESTION], "answer": "72"}
    assert asked(own) is None


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "[] was given; it must be one or more rows"),
        (5, {}, "5 was given; it must be one or more rows"),
        (["Hello"], {}, "a row 'Hello' was given; it must be one or more rows, each a dictionary"),
        ({"prompt": ["a"], "answer": ["b"]}, {}, "{'prompt': ['a'], 'answer': ['b']} was given"),
        ([{"prompt": "Hello", "answer": 1}, {"prompt": "Hi", "answer": None}], {}, "row 1 has no 'answer'"),
        ([{"prompt": "Hello", "answer": float("nan")}], {}, "row 0 has the answer nan; it must be a text, a number"),
        ([{"prompt": "Hello", "answer": "worked ####"}], {}, "none of them empty"),
        ([{"question": "Hello", "choices": ["a"], "answer": "a"}], {}, "the column 'choices' of dataset would not be"),
        ([{"text": "Hello"}], {}, "no column of dataset is known as a prompt; it has ['text']. Pass prompt="),
        ([{"prompt": "Hello"}], {}, "no column of dataset is known as an answer; it has ['prompt']"),
        ([{"prompt": "Hello", "x": 1}], {"answer": "y"}, "row 0 has no answer 'y'; it has ['prompt', 'x']"),
        ([{"prompt": "Hello", "answer": {"a": 1}}], {}, "row 0 has the answer {'a': 1}; it must be a text, a number"),
        ([{"prompt": "Hello", "answer": 1}], {"promt": "x"}, "unexpected keyword argument 'promt'"),
    ],
)
def test_what_is_wrong_is_said(rows: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidConfigError, TypeError)) as caught:
        from_dataset(rows, **options)
    assert message in str(caught.value)


def test_thinking_is_no_part_of_an_answer() -> None:
    said = [{"role": "user", "content": "3 + 4?"}, {"role": "assistant", "content": "<think>Add.</think>7"}]
    env = from_dataset([{"messages": said}])
    assert env.prompts[0]["answer"] == "7"


def test_a_small_data_set_is_certified() -> None:
    """It has 100 problems, 79 of them in one split."""
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(2, 12) for b in range(2, 12)]
    certificate = certify(from_dataset(rows), checks=["seeds", "splits"])
    assert certificate.failed == ()


def test_check_and_certify_take_a_data_set_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "checked_questions.py"
    path.write_text(
        "from llm_envs.bridges.dataset import from_dataset\n"
        'ROWS = [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(100)]\n'
        "TASK = from_dataset(ROWS)\n"
    )
    assert main(["check", f"{path}:TASK"]) == 0
    assert f"ok      {path}:TASK" in capsys.readouterr().out
    assert main(["certify", f"{path}:TASK", "--check", "floor", "-n", "5"]) == 0
    assert "is_not_won_by_nonsense: the chance rate is 1, so no win is too many" in capsys.readouterr().out
    assert main(["certify", f"{path}:TASK", "--check", "floor", "-n", "5", "--chance-rate", "0.1"]) == 0
    assert "won no more often than the chance rate of 0.1 explains" in capsys.readouterr().out
