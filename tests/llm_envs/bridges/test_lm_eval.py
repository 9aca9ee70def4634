"""lm-evaluation-harness measures a policy of ours; its own model class, on the same weights, says the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy, TransformersPolicy
from llm_envs.tiny_model import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.doors("lm_eval")

DATA = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
"""
CHOICE = """
output_type: multiple_choice
doc_to_text: "{{question}} "
doc_to_choice: ["apple", "pear", "plum tree"]
doc_to_target: answer
metric_list: [{metric: acc}]
"""
GENERATE = """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["e"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""
ROLLING = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}]
"""
TASKS = ["letters_choice", "letters_generate", "letters_rolling"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{"question": f"Which fruit is number {n}?", "answer": n % 3, "text": "pear"} for n in range(6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in zip(TASKS, (CHOICE, GENERATE, ROLLING), strict=True):
        (folder / f"{name}.yaml").write_text(DATA.format(name=name, file=folder / "rows.jsonl") + text)
    return folder


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    tokenizer = tiny_tokenizer()
    return TransformersPolicy(tiny_model(tokenizer, seed=3), tokenizer, max_batch_size=1)


def samples_of(model: Any, folder: Path) -> dict[str, list[Any]]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder))
    results = simple_evaluate(model=model, tasks=TASKS, task_manager=manager, bootstrap_iters=0)
    return {task: [sample["filtered_resps"] for sample in results["samples"][task]] for task in TASKS}


@pytest.mark.smoke
def test_equal_to_the_harness_itself(policy: TransformersPolicy, folder: Path) -> None:
    from lm_eval.models.huggingface import HFLM

    from llm_envs.bridges.lm_eval import PolicyLM

    ours = samples_of(PolicyLM(policy), folder)
    theirs = samples_of(HFLM(pretrained=policy.model, tokenizer=policy.tokenizer, batch_size=1), folder)
    assert ours["letters_generate"] == theirs["letters_generate"]
    assert any(reply != [""] for reply in ours["letters_generate"])
    for mine, other in zip(ours["letters_choice"], theirs["letters_choice"], strict=True):
        assert [greedy for _, greedy in mine] == [greedy for _, greedy in other]
        assert [logp for logp, _ in mine] == pytest.approx([logp for logp, _ in other], abs=1e-3)
    flat = [value for resps in ours["letters_rolling"] for value in resps]
    assert flat == pytest.approx([value for resps in theirs["letters_rolling"] for value in resps], rel=1e-4)


def test_flat_scores(policy: TransformersPolicy, folder: Path) -> None:
    from llm_envs.bridges.lm_eval import harness_scores

    scores = harness_scores(policy, TASKS, task_folder=folder, limit=3)
    assert scores.keys() == {
        "harness/letters_choice/acc",
        "harness/letters_generate/exact_match",
        "harness/letters_rolling/word_perplexity",
    }
    assert scores["harness/letters_choice/acc"] in (0.0, 1 / 3, 2 / 3, 1.0)


def test_in_training(folder: Path, tmp_path: Path) -> None:
    """The callback measures the weights in training, logs the scores, and leaves the model in training mode."""
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    from llm_envs.bridges.lm_eval import HarnessCallback

    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("Which fruit is number 1? plum tree", add_special_tokens=False)
    rows = Dataset.from_list([{"input_ids": ids, "labels": ids}] * 64)
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=30,
        eval_strategy="steps",
        eval_steps=15,
        learning_rate=3e-3,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = tiny_model(tokenizer, seed=3)
    trainer = Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows.select(range(2)), processing_class=tokenizer
    )
    trainer.add_callback(HarnessCallback(trainer, ["letters_choice"], task_folder=folder))
    trainer.train()
    key = "eval_harness/letters_choice/acc"
    logged = [entry[key] for entry in trainer.state.log_history if key in entry]
    assert logged == [1 / 3, 1 / 3]  # it has learned to write one of three fruits
    assert key in trainer.evaluate()
    assert trainer.model.training or not model.training


def test_what_a_policy_cannot_do(policy: TransformersPolicy) -> None:
    from lm_eval.api.instance import Instance

    from llm_envs.bridges.lm_eval import PolicyLM

    def request(kind: str, *arguments: Any) -> Any:
        return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)

    class Sampler:
        """A policy on a server: its model is elsewhere."""

        tokenizer = policy.tokenizer
        sample = policy.sample

    with pytest.raises(InvalidConfigError, match="cannot score given texts"):
        PolicyLM(Sampler()).loglikelihood([request("loglikelihood", "a", "b")])
    with pytest.raises(InvalidConfigError, match=r"generates with \['num_beams'\]"):
        PolicyLM(policy).generate_until([request("generate_until", "a", {"until": [], "num_beams": 4})])
    with pytest.raises(InvalidConfigError, match="fills the model's context"):
        PolicyLM(policy).generate_until([request("generate_until", "a", {"max_gen_toks": 10**6})])
    with pytest.raises(InvalidConfigError, match="ConstantPolicy must be a token policy"):
        PolicyLM(ConstantPolicy("x"), policy.tokenizer)
