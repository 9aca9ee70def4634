"""Tasks of the package inspect-evals, measured with a saved checkpoint by the command that the page shows.

Nothing is downloaded or replaced: the rows of GSM8K stand in a folder of the data set's name, those of CyberMetric in
the package's cache folder, and AgentThreatBench's are in its wheel.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_envs.policies import TransformersPolicy
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import Message

pytestmark = pytest.mark.doors("inspect_evals")

QUESTIONS = {"What is 1 + 3?": 4, "What is 9 - 5?": 4, "What is 2 * 2?": 4, "What is 2 + 3?": 5}
SECURITY = {"Which port does HTTPS use?": "B", "Which letter comes first?": "A", "Which port does SSH use?": "C"}


def run_eval(task: str, model: Path, tmp_path: Path, *options: str) -> Any:
    """Run `inspect eval` in a process, offline; return its log."""
    from inspect_ai.log import list_eval_logs, read_eval_log

    command = [sys.executable, "-m", "inspect_ai", "eval", f"inspect_evals/{task}", "--model", f"llm-envs/{model}"]
    command += ["--log-dir", str(tmp_path / "logs"), "--display", "plain", "--temperature", "0", *options]
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "INSPECT_EVALS_CACHE_DIR": str(tmp_path / "cache")}
    environment = {**os.environ, **own, "XDG_CACHE_HOME": str(tmp_path / "inspect-cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    [info] = list_eval_logs(str(tmp_path / "logs"))
    log = read_eval_log(info)
    assert log.status == "success", log.error
    assert log.eval.model == f"llm-envs/{model}"
    return log


def save(policy: TransformersPolicy, folder: Path) -> Path:
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def policy() -> TransformersPolicy:
    tokenizer = tiny_tokenizer()
    return TransformersPolicy(tiny_model(tokenizer, max_length=4096, seed=0), tokenizer)


def teach(policy: TransformersPolicy, prompts: list[str], reply: str) -> None:
    """Train the model until it answers every prompt with the reply."""
    import torch

    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=3e-3)
    reply_ids = [int(i) for i in policy.codec.encode_reply(reply)]
    rows = [[*map(int, policy.codec.encode_prompt([Message("user", prompt)])), *reply_ids] for prompt in prompts]
    for _ in range(200):
        losses = []
        for row in rows:
            ids = torch.tensor([row])
            labels = ids.clone()
            labels[:, : -len(reply_ids)] = -100
            losses.append(policy.model(input_ids=ids, labels=labels).loss)
        loss = torch.stack(losses).mean()
        if loss.item() < 0.02:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError(f"the model has not learnt its reply: loss {loss.item():.3f}")


def test_gsm8k_is_scored_with_a_trained_checkpoint(policy: TransformersPolicy, tmp_path: Path) -> None:
    from datasets import Dataset
    from inspect_evals.gsm8k.gsm8k import MATH_PROMPT_TEMPLATE

    folder = tmp_path / "openai" / "gsm8k" / "main"
    folder.mkdir(parents=True)
    rows = [{"question": question, "answer": f"Compute.\n#### {answer}"} for question, answer in QUESTIONS.items()]
    for split in ("train", "test"):
        Dataset.from_list(rows).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    teach(policy, [MATH_PROMPT_TEMPLATE.format(prompt=question) for question in QUESTIONS], "ANSWER: 4")
    model = save(policy, tmp_path / "model")
    log = run_eval("gsm8k", model, tmp_path, "-T", "fewshot=0", "--max-tokens", "12")
    assert {sample.input: sample.output.completion for sample in log.samples} == dict.fromkeys(QUESTIONS, "ANSWER: 4")
    assert {s.input: s.scores["match"].value for s in log.samples} == {
        question: "C" if answer == 4 else "I" for question, answer in QUESTIONS.items()
    }
    assert log.results.scores[0].metrics["accuracy"].value == 0.75


def test_a_task_of_choices_reads_the_package_cache(policy: TransformersPolicy, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "cybermetric"
    folder.mkdir(parents=True)
    choices = {"A": "first", "B": "second", "C": "third", "D": "fourth"}
    rows = [{"question": question, "answers": choices, "solution": right} for question, right in SECURITY.items()]
    (folder / "CyberMetric-80.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = run_eval("cybermetric_80", save(policy, tmp_path / "model"), tmp_path, "--max-tokens", "8")
    assert len(log.samples) == 3
    assert all(sample.output.usage.output_tokens > 0 for sample in log.samples)
    assert log.results.scores[0].name == "choice" and 0.0 <= log.results.scores[0].metrics["accuracy"].value <= 1.0


def test_a_task_with_tools_needs_no_data(policy: TransformersPolicy, tmp_path: Path) -> None:
    model = save(policy, tmp_path / "model")
    log = run_eval("agent_threat_bench_memory_poison", model, tmp_path, "--limit", "2", "--max-tokens", "8")
    assert len(log.samples) == 2
    for sample in log.samples:
        assert set(sample.scores["agent_threat_bench_scorer"].value) == {"utility", "security"}
        assert sample.scores["agent_threat_bench_scorer"].value["utility"] == "I"  # random weights call no tool
        assert sample.output.usage.input_tokens > 300  # the schemas of the tools are in the prompt
