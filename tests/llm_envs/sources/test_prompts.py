"""Prompts: every file that they come from, draws in epochs, and the environment and source made of them."""

from __future__ import annotations

import csv
import json
import pickle
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import datasets
import pytest
from gymnasium.utils.env_checker import check_env

from llm_envs.env import split_of
from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.policies import ConstantPolicy, OraclePolicy
from llm_envs.rollout import Collector, PromptBuffer, PromptSource, PromptTask, SeedSource, load_prompts
from llm_envs.sources.prompts import Prompts, read_jsonl
from llm_envs.testing import ByteCodec

ROWS = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(20)]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def right(row, reply) -> float:
    return float(reply.answer == row["answer"])


def parts(row, reply) -> dict[str, float]:
    return {"right": float(reply.answer == row["answer"]), "long": float(len(reply.content) > 30)}


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class TestLoading:
    def test_every_kind_of_file_gives_the_same_rows(self, tmp_path: Path) -> None:
        data = datasets.Dataset.from_list(ROWS)
        data.to_parquet(str(tmp_path / "p.parquet"))
        data.to_csv(str(tmp_path / "p.csv"))
        write(tmp_path / "p.jsonl", ROWS)
        loaded = [load_prompts(tmp_path / f"p.{kind}") for kind in ("parquet", "csv", "jsonl")]
        loaded += [
            load_prompts(data),
            load_prompts(ROWS),
            load_prompts(iter(ROWS)),
            load_prompts(str(tmp_path / "p.csv")),
        ]
        for prompts in loaded:
            assert list(prompts) == ROWS and len(prompts) == 20
        assert {prompts.fingerprint for prompts in loaded} == {loaded[0].fingerprint}
        assert load_prompts(ROWS[::-1]).fingerprint != loaded[0].fingerprint

    def test_texts_are_prompts(self) -> None:
        assert list(load_prompts(["One?", "Two?"])) == [{"prompt": "One?"}, {"prompt": "Two?"}]

    def test_a_field_becomes_the_prompt_and_others_are_left_out(self) -> None:
        rows = [{"question": "One?", "answer": "1", "when": object()}]
        assert load_prompts(rows, prompt_field="question", fields=["answer"])[0] == {"prompt": "One?", "answer": "1"}
        assert load_prompts(rows, prompt_field="question", fields=["question"])[0] == {"prompt": "One?"}

    def test_a_long_prompt_in_csv(self, tmp_path: Path) -> None:
        limit = csv.field_size_limit()
        path = tmp_path / "p.csv"
        path.write_text(f"prompt,answer\n{'x' * 200_000},1\n\n")
        assert list(load_prompts(path)) == [{"prompt": "x" * 200_000, "answer": "1"}]
        assert csv.field_size_limit() == limit

    def test_csv_with_line_breaks_and_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "p.csv"
        path.write_bytes(b'\xef\xbb\xbfprompt,answer\r\n"One,\ntwo?",3\r\n\r\nFour?,\r\n')
        assert list(load_prompts(path)) == [
            {"prompt": "One,\ntwo?", "answer": "3"}, {"prompt": "Four?", "answer": ""},
        ]  # fmt: skip

    def test_jsonl_with_blank_lines_and_odd_line_separators(self, tmp_path: Path) -> None:
        path = tmp_path / "p.jsonl"
        path.write_bytes('\ufeff{"prompt": "a\u2028b"}\r\n\n{"prompt": "c"}'.encode())
        assert list(read_jsonl(path)) == [(1, {"prompt": "a\u2028b"}), (3, {"prompt": "c"})]

    def test_messages_are_prompts(self) -> None:
        assert load_prompts([{"prompt": CHAT}])[0]["prompt"] == CHAT

    def test_rows_that_are_handed_out_are_copies(self) -> None:
        prompts = load_prompts(ROWS)
        prompts[0]["answer"] = "spoilt"
        assert prompts[0] == ROWS[0]

    def test_slices_and_filters_are_prompts(self) -> None:
        prompts = load_prompts(ROWS)
        assert isinstance(prompts[2:4], Prompts) and list(prompts[2:4]) == ROWS[2:4] and prompts[-1] == ROWS[-1]
        assert list(prompts.filter(lambda row: row["answer"] == "8")) == [ROWS[4]]

    @pytest.mark.parametrize(
        ("name", "text", "says"),
        [
            ("p.jsonl", '{"prompt": "a"}\n\n{"prompt": \n', r"p\.jsonl, line 3 is not JSON"),
            ("p.jsonl", '{"prompt": "a"}\n{"answer": "a"}\n', r"p\.jsonl, line 2 has no field 'prompt'.*\['answer'\]"),
            ("p.jsonl", '{"prompt": "a"}\n["a"]\n', r"line 2 is \['a'\]; it must be an object"),
            ("p.jsonl", '{"prompt": " "}\n', "line 1: the prompt is empty"),
            ("p.jsonl", '{"prompt": 3}\n', "line 1: the prompt is 3; it must be a text or a list of messages"),
            ("p.jsonl", '{"prompt": [{"role": "tutor", "content": "a"}]}\n', "role 'tutor'"),
            ("p.jsonl", '{"prompt": [{"role": "user", "content": null}]}\n', "message 0"),
            ("p.jsonl", '{"prompt": [{"role": "assistant", "content": "a"}]}\n', "has nothing to reply to"),
            (
                "p.jsonl",
                '{"prompt": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", '
                '"arguments": "{}"}}]}, {"role": "tool", "content": "a"}]}\n',
                "in message 0 the call .*its arguments an object",
            ),
            ("p.jsonl", '{"prompt": "a", "x": NaN}\n', r"line 1: \['x'\] is nan"),
            ("p.jsonl", "\n", "has no prompts"),
            ("p.csv", "prompt,answer\na,1\nb\n", r"p\.csv, line 3: the header has 2 columns, the row fewer"),
            ("p.csv", "prompt,answer\na,1,2\n", "line 2: the header has 2 columns, the row more"),
            ("p.csv", "prompt,answer,prompt\na,1,b\n", r"the header has columns with the same name: \['prompt'\]"),
            ("p.csv", 'prompt\na\n"b"c\n', "line 3 is not CSV"),
            ("p.csv", 'prompt\n"a\n', "is not CSV"),
            ("p.parquet", "no", "cannot be read as Parquet"),
            ("p.txt", "a", r"is not a \.jsonl, \.csv or \.parquet file"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_line(self, tmp_path: Path, name, text, says) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidConfigError, match=says):
            load_prompts(tmp_path / name)

    def test_other_mistakes(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfigError, match="cannot be read: No such file"):
            load_prompts(tmp_path / "none.jsonl")
        with pytest.raises(InvalidConfigError, match=r"keys \['train'\].*choose one part"):
            load_prompts(datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}))
        with pytest.raises(InvalidConfigError, match="a field 'prompt' besides 'question'"):
            load_prompts([{"question": "a", "prompt": "b"}], prompt_field="question")
        (tmp_path / "p.csv").write_bytes(b"prompt\n\xff\n")
        with pytest.raises(InvalidConfigError, match="is not UTF-8"):
            load_prompts(tmp_path / "p.csv")

    def test_parquet_without_pyarrow_names_the_extra(self, tmp_path: Path) -> None:
        """In a process of its own: a package that was imported cannot be made to be missing."""
        code = (
            "import sys; sys.modules['pyarrow'] = None\n"
            "from llm_envs.sources.prompts import load_prompts\n"
            "try: load_prompts('x.parquet')\n"
            "except ImportError as e: print(type(e).__name__, e)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "MissingExtraError Parquet needs `pyarrow`: pip install 'llm-envs[train]'.\n"


class TestBuffer:
    def test_every_prompt_comes_once_in_an_epoch(self) -> None:
        buffer = PromptBuffer(ROWS, seed=1)
        drawn = [*buffer.get_prompts(7), *buffer.get_prompts(0), *buffer.get_prompts(33)]
        first, second = [[row["prompt"] for row in drawn[k : k + 20]] for k in (0, 20)]
        assert sorted(first) == sorted(second) == sorted(row["prompt"] for row in ROWS)
        assert first != second and first != [row["prompt"] for row in ROWS]
        assert buffer.epoch == 2 and buffer.position == 40

    def test_more_than_an_epoch_at_once(self) -> None:
        drawn = PromptBuffer(ROWS[:3], seed=1).get_prompts(10)
        assert Counter(row["prompt"] for row in drawn[:9]) == dict.fromkeys([row["prompt"] for row in ROWS[:3]], 3)

    def test_without_shuffling(self) -> None:
        assert PromptBuffer(ROWS[:3], shuffle=False).get_prompts(4) == [*ROWS[:3], ROWS[0]]

    def test_state_resumes_in_the_middle_of_an_epoch(self) -> None:
        buffer = PromptBuffer(ROWS, seed=1)
        buffer.get_prompts(27)
        other = PromptBuffer(list(ROWS), seed=1)
        other.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
        assert other.get_prompts(30) == buffer.get_prompts(30)

    def test_another_data_set_or_seed_is_refused(self) -> None:
        state = PromptBuffer(ROWS, seed=1).state_dict()
        for other, says in (
            (PromptBuffer(ROWS[1:], seed=1), "prompts"),
            (PromptBuffer([*ROWS[1:], ROWS[0]], seed=1), "prompts"),
            (PromptBuffer(ROWS, seed=2), "seed"),
            (PromptBuffer(ROWS, seed=1, shuffle=False), "shuffle"),
        ):
            with pytest.raises(InvalidConfigError, match=f"the saved buffer has {says}"):
                other.load_state_dict(state)

    def test_a_mixture_follows_its_weights_each_part_in_epochs(self) -> None:
        buffer = PromptBuffer({"a": ["a0", "a1", "a2"], "b": ["b0", "b1"]}, weights={"b": 1.0, "a": 3.0}, seed=1)
        drawn = [row["prompt"] for row in buffer.get_prompts(2000)]
        of_a = [text for text in drawn if text[0] == "a"]
        assert abs(len(of_a) - 1500) < 80  # 4.1 standard deviations
        for start in range(0, len(of_a) - 3, 3):
            assert sorted(of_a[start : start + 3]) == ["a0", "a1", "a2"]
        assert buffer.epoch == min(len(of_a) // 3, (2000 - len(of_a)) // 2)
        assert PromptBuffer({"a": ["x"] * 3, "b": ["y"]}).weights == {"a": 3.0, "b": 1.0}

    def test_wrong_arguments(self) -> None:
        with pytest.raises(InvalidConfigError, match=r"weights are for \['c'\]"):
            PromptBuffer({"a": ["x"]}, weights={"c": 1.0})
        with pytest.raises(InvalidConfigError, match="n is -1"):
            PromptBuffer(ROWS).get_prompts(-1)


class TestEnv:
    def test_it_is_a_gymnasium_environment(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(PromptTask(ROWS, right)(render_mode="ansi"), skip_render_check=True)

    def test_the_splits_are_disjoint_and_all_there_is(self) -> None:
        task = PromptTask(ROWS, right)
        train, test = [{row["prompt"] for row in task.rows(split)} for split in ("train", "test")]
        assert train | test == {row["prompt"] for row in ROWS} and not train & test
        assert test == {row["prompt"] for row in ROWS if split_of(row["prompt"]) == "test"} != set()
        for seed in range(30):
            assert task(split="test").reset(seed=seed)[0] in test

    def test_a_test_set_of_its_own(self) -> None:
        task = PromptTask(ROWS, right, test_prompts=[{"prompt": "Q", "answer": "1"}])
        assert len(task.rows("train")) == 20 and task(split="test").reset(seed=0)[0] == "Q"
        both = PromptTask(ROWS, right, disjoint_splits=False)
        assert len(both.rows("train")) == len(both.rows("test")) == 20

    def test_a_seed_is_an_episode_and_a_row_can_be_given(self) -> None:
        env = PromptTask(ROWS, right)()
        assert env.reset(seed=3)[0] == env.reset(seed=3)[0]
        assert len({env.reset(seed=seed)[0] for seed in range(60)}) > 8
        other = {"prompt": "What is 7?", "answer": "7", "more": [1, None]}
        assert env.reset(options={"problem": other}) == ("What is 7?", {})
        assert env.oracle() == "<answer>7</answer>"
        assert env.step("<answer>7</answer>") == (
            "Reward: 1.", 1.0, True, False, {"reward_components": {"reward": 1.0}, "is_success": True},
        )  # fmt: skip

    def test_components_are_weighted(self) -> None:
        task = PromptTask(ROWS, parts, reward_weights={"right": 2.0, "long": -0.5})
        env = task()
        env.reset(options={"problem": ROWS[3]})
        _, reward, _, _, info = env.step("x" * 40 + "<answer>6</answer>")
        assert reward == 1.5 and info["reward_components"] == {"right": 1.0, "long": 1.0}
        assert info["is_success"] is False  # a success earns the sum of the positive weights, 2
        env.reset(options={"problem": ROWS[3]})
        assert env.step("<answer>6</answer>")[4]["is_success"] is True

    def test_messages_keep_their_roles(self) -> None:
        codec = ByteCodec()
        task = PromptTask([{"prompt": CHAT, "answer": "1"}], right, disjoint_splits=False, system_prompt="First.")
        (group,) = Collector(task, ConstantPolicy("x"), codec=codec, progress=False).collect(1)
        messages = group.trajectories[0].messages
        assert [(m.role, m.content) for m in messages] == [
            ("system", "First."), ("system", "Be brief."), ("user", "Hi"), ("assistant", "x"),
        ]  # fmt: skip

    def test_levels_are_rows(self) -> None:
        rows = [{"prompt": f"{level} {n}", "level": level} for level in (1, 2) for n in range(10)]
        task = PromptTask(rows, lambda row, reply: 1.0, difficulty_field="level")
        assert {row["level"] for row in task.rows("train", "2")} == {2}
        source = SeedSource(task, env_kwargs={"difficulty": "2"})
        collector = Collector(task, ConstantPolicy("x"), progress=False)
        groups = collector.play([[spec] for spec in source.take(5)])
        assert {t.messages[0].content[0] for group in groups for t in group} == {"2"}
        with pytest.raises(InvalidConfigError, match="none of level '3'"):
            task(difficulty="3")
        with pytest.raises(InvalidConfigError, match=r"needs PromptTask\(difficulty_field"):
            PromptTask(ROWS, right)(difficulty="easy")

    def test_what_is_wrong_is_said(self) -> None:
        with pytest.raises(InvalidConfigError, match="give test_prompts"):
            PromptTask([row for row in ROWS if split_of(row["prompt"]) == "train"], right)(split="test")
        with pytest.raises(InvalidConfigError, match="no split 'dev'"):
            PromptTask(ROWS, right)(split="dev")
        with pytest.raises(InvalidConfigError, match="the given problem, row 0 has no field 'prompt'"):
            PromptTask(ROWS, right)().reset(options={"problem": {"answer": "1"}})
        with pytest.raises(InvalidConfigError, match="no option 'row'"):
            PromptTask(ROWS, right)().reset(options={"row": 1})
        with pytest.raises(InvalidConfigError, match="reward_fn is None"):
            PromptTask(ROWS, None)

    def test_messages_of_a_table_have_fields_that_are_null(self, tmp_path: Path) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
        messages = [
            {"role": "user", "content": "a", "tool_calls": None, "tool_call_id": None},
            {"role": "assistant", "content": "", "tool_calls": [call], "tool_call_id": None},
            {"role": "tool", "content": "b", "tool_calls": None, "tool_call_id": "1"},
        ]
        datasets.Dataset.from_list([{"prompt": messages}]).to_parquet(str(tmp_path / "p.parquet"))
        task = PromptTask(tmp_path / "p.parquet", lambda row, reply: 1.0, disjoint_splits=False)
        ((trajectory,),) = Collector(task, ConstantPolicy("x"), max_retries=0, progress=False).collect(1)
        assert trajectory.error is None
        assert [(m.role, len(m.tool_calls), m.tool_call_id) for m in trajectory.messages[:3]] == [
            ("user", 0, None), ("assistant", 1, None), ("tool", 0, "1"),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("reward_fn", "says"),
        [
            (lambda row, reply: None, "reward_fn gave None"),
            (lambda row, reply: "1.0", "it gave reward as '1.0'; it must be a number"),
            (lambda row, reply: float("nan"), "must be finite"),
            (lambda row, reply: 1 / 0, "ZeroDivisionError: division by zero"),
        ],
    )
    def test_what_is_no_score_leaves_the_episode_unscored(self, reward_fn, says) -> None:
        task = PromptTask(ROWS, reward_fn)
        (group,) = Collector(task, ConstantPolicy("x"), progress=False).collect(1)
        trajectory = group.trajectories[0]
        assert trajectory.status == "unscored" and says in trajectory.error.message

    def test_undeclared_parts_are_an_error_of_the_task(self) -> None:
        (group,) = Collector(PromptTask(ROWS, parts), ConstantPolicy("x"), max_retries=0, progress=False).collect(1)
        says = "returned ['long', 'right']; PromptTask.reward_weights declares ['reward']"
        assert group.trajectories[0].status == "errored" and says in group.trajectories[0].error.message

    def test_a_row_without_an_answer_has_no_oracle(self) -> None:
        env = PromptTask(["Say something."], lambda row, reply: 1.0, disjoint_splits=False)()
        env.reset(seed=0)
        with pytest.raises(EnvContractError, match="without 'answer' the row has no oracle"):
            env.oracle()

    def test_a_task_pickles(self) -> None:
        task = pickle.loads(pickle.dumps(PromptTask(ROWS, right)))
        assert task().reset(seed=4) == PromptTask(ROWS, right)().reset(seed=4)


class TestSource:
    def test_a_collector_asks_every_prompt_once_in_an_epoch(self) -> None:
        task = PromptTask(ROWS, right)
        source = PromptSource(task, seed=1)
        n = len(task.rows("train"))
        collector = Collector(task, OraclePolicy(), progress=False)
        groups = collector.play([[spec] for spec in source.take(2 * n)])
        asked = [t.messages[0].content for group in groups for t in group]
        assert set(asked[:n]) == set(asked[n:]) == {row["prompt"] for row in task.rows("train")}
        assert all(t.is_success and t.reward == 1.0 for group in groups for t in group)
        assert source.epoch == 2

    def test_tasks_are_mixed_and_the_state_knows_their_prompts(self) -> None:
        def make(rows) -> PromptSource:
            one, two = PromptTask(rows, right, env_id="one"), PromptTask(CHAT_ROWS, right, env_id="two")
            return PromptSource([(one, 3.0), two], seed=2)

        source = make(ROWS)
        counts = Counter(spec.env_id for spec in source.take(800))
        assert abs(counts["one"] - 600) < 50  # 4.1 standard deviations
        state = json.loads(json.dumps(source.state_dict()))
        resumed = make(ROWS)
        resumed.load_state_dict(state)
        assert list(resumed.take(20)) == list(source.take(20))
        with pytest.raises(InvalidConfigError, match="problems"):
            make(ROWS[1:]).load_state_dict(state)


CHAT_ROWS = [{"prompt": [{"role": "user", "content": f"Hi {n}"}], "answer": "x"} for n in range(10)]
