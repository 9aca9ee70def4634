"""What the trainings are given wrongly: one line says what is wrong and what to do, before anything is trained.

| bad input | test |
|---|---|
| `kl_fn` without a coefficient | test_ppo.py::test_what_contradicts_itself_is_refused |
| a critic whose vocabulary differs | `test_a_critic_of_another_vocabulary`; |
| | test_critic.py::test_what_cannot_be_a_critic_is_refused |
| no preference pair left | `test_no_pair`; test_dpo.py::test_nothing_to_compare_is_refused |
| a data set without masks | `test_tokens_without_masks`; |
| | test_dpo.py::test_tokens_without_masks_or_beyond_the_vocabulary_are_refused |
| ids from another tokenizer | `test_ids_of_another_tokenizer`; episodes and messages are encoded anew for SFT: |
| | test_sft.py::test_episodes_of_another_tokenizer_or_none_are_encoded_from_their_messages |
| a checkpoint of another algorithm | `test_checkpoints_of_another_algorithm`, `test_..._from_python` |
| ... of online DPO, which earlier versions had | test_dpo.py::test_a_checkpoint_of_online_dpo_is_refused_by_name |
| a checkpoint that is not there, not whole, or another's adapter | `test_nothing_to_go_on_from` |
| a folder with the checkpoints of another run, or a file | `test_an_output_folder_that_is_taken` |
| an environment and a data set, or neither | `test_what_is_learned_must_be_said_once` |
| a source that is empty, torn, no data set, or not there | `test_sources_with_nothing_to_learn` |
| a model or critic that is not there, or an adapter | `test_models_that_are_none` |
| settings that do not fit: one episode a group, ... | `test_settings_that_do_not_fit` |
| ... and what a command line or a file has wrongly | test_commands.py::test_what_is_wrong_is_said_in_a_line |
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import peft
import pytest
from dense_env import DenseEnv
from trainings import TRAINERS

from llm_envs.cli.main import main
from llm_envs.errors import LLMEnvsError
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.run.checkpoints import trainer_of

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]

ENV = "test/DenseForBadInput-v0"
gym.register(ENV, DenseEnv)

COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 1,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
}
PLAYS: dict[str, Any] = {"max_completion_length": 64, "max_turn_tokens": 8, "num_train_seeds": 32}
SETTINGS = {"grpo": PLAYS | {"num_generations": 4}, "ppo": PLAYS}
ALGORITHMS = ("sft", "grpo", "ppo", "dpo")
Refused = Callable[..., str]


def write_lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pair(number: int, chosen: str, rejected: str) -> dict[str, Any]:
    said = {"chosen": chosen, "rejected": rejected}
    sides = {name: [{"role": "assistant", "content": text}] for name, text in said.items()}
    return {"prompt": [{"role": "user", "content": f"{number} + 1?"}], **sides}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_folder: str) -> Path:
    """A folder with data sets, and a run of each algorithm that saved `checkpoint-1`."""
    folder = tmp_path_factory.mktemp("bad_input")
    write_lines(folder / "pairs.jsonl", *(pair(n, str(n + 1), "no") for n in range(4)))
    talk = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    write_lines(folder / "talk.jsonl", *[{"messages": talk}] * 4)
    for name in ALGORITHMS:
        assert train(folder, name, tiny_folder, "--save_steps", "1", "--output_dir", folder / name) == 0
    assert train(folder, "sft", tiny_folder, "--use_peft", "--lora_r", "2", "--output_dir", folder / "adapter") == 0
    return folder


def train(place: Path, name: str, model: str | Path, *further: Any) -> int:
    """Run the command of an algorithm with what it needs, and more: what comes later wins."""
    needs: dict[str, dict[str, Any]] = {
        "sft": {"source": place / "talk.jsonl"},
        "dpo": {"source": place / "pairs.jsonl"},
        "grpo": {"env": ENV, **SETTINGS["grpo"]},
        "ppo": {"env": ENV, **SETTINGS["ppo"]},
    }
    settings = {"model_name_or_path": model, "output_dir": place / "out", **COMMON, **needs[name]}
    given = [str(part) for key, value in settings.items() for part in (f"--{key}", value)]
    return main(["train", name, *given, *map(str, further)])


@pytest.fixture
def refused(place: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs an algorithm's command, and returns why it is refused."""

    def run(name: str, *further: Any, model: str | Path = tiny_folder) -> str:
        assert train(place, name, model, *further) in (1, 2)
        return said(capsys, place)

    return run


def said(capsys: pytest.CaptureFixture[str], place: Path) -> str:
    """Return the command's last words: one line, no traceback, and nothing was written."""
    error = capsys.readouterr().err
    assert "Traceback" not in error
    lines = [line for line in error.splitlines() if line.startswith("llm-envs: error: ")]
    assert len(lines) == 1 and error.endswith(lines[0] + "\n")
    assert not list((place / "out").glob("**/*.safetensors"))
    return lines[0]


def test_a_critic_of_another_vocabulary(tmp_path: Path, refused: Refused) -> None:
    other = tiny_tokenizer(["the cat sat on the mat, the dog on the log"] * 3, vocab_size=290)
    tiny_model(other, hidden_size=32, n_heads=2, max_length=192).save_pretrained(tmp_path)
    other.save_pretrained(tmp_path)
    assert re.search("another tokenizer.*vocabulary differs", refused("ppo", "--critic", tmp_path))


def test_no_pair(tmp_path: Path, refused: Refused) -> None:
    same = write_lines(tmp_path / "same.jsonl", *(pair(n, "yes", "yes") for n in range(4)))
    assert "no preference pair is left of 4 pairs" in refused("dpo", "--source", same)
    assert "no preference pair is left: all 4 are longer than 5 tokens (max_length=5, " in refused(
        "dpo", "--max_length", "5"
    )


def test_tokens_without_masks(tmp_path: Path, refused: Refused) -> None:
    ids = {"prompt_ids": [5, 6], "chosen_ids": [7, 8], "rejected_ids": [9, 10]}
    path = write_lines(tmp_path / "pairs.jsonl", ids)
    assert re.search("pair 0 .* no chosen_mask", refused("dpo", "--source", path))
    path = write_lines(tmp_path / "a.jsonl", {"input_ids": [7, 5]})
    assert re.search("token row 0 has no label.* 2 tokens", refused("sft", "--source", path))


def test_ids_of_another_tokenizer(tmp_path: Path, refused: Refused) -> None:
    row = {"input_ids": [5, 70_000], "labels": [-100, 70_000]}
    path = write_lines(tmp_path / "rows.jsonl", row)
    assert re.search(r"token row 0 .*70000", refused("sft", "--source", path))
    ids = {"prompt_ids": [5, 6], "chosen_ids": [70_000], "rejected_ids": [9], "chosen_mask": [1], "rejected_mask": [1]}
    path = write_lines(tmp_path / "pairs.jsonl", ids)
    assert re.search("pair 0 .*this model's", refused("dpo", "--source", path))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_checkpoints_of_another_algorithm(name: str, place: Path, refused: Refused) -> None:
    for other in set(ALGORITHMS) - {name}:
        checkpoint = place / other / "checkpoint-1"
        assert trainer_of(checkpoint) == other.upper()
        error = refused(name, "--resume_from_checkpoint", checkpoint)
        assert f"is a checkpoint of {other.upper()}, and this is {name.upper()}" in error


@pytest.mark.parametrize("name", ALGORITHMS)
def test_checkpoints_of_another_algorithm_from_python(
    name: str, place: Path, tiny_folder: str, tmp_path: Path, keep: Callable[[Any], Any]
) -> None:
    kind, config = TRAINERS[name]
    args = config(**COMMON, **SETTINGS.get(name, {}), output_dir=str(tmp_path), save_strategy="no")
    given = {"sft": {"source": place / "talk.jsonl"}, "dpo": {"source": place / "pairs.jsonl"}}
    trainer = keep(kind(tiny_folder, args=args, **given.get(name, {"env": ENV})))
    for other in set(ALGORITHMS) - {name}:
        with pytest.raises(LLMEnvsError, match=f"is a checkpoint of {other.upper()}"):
            trainer.train(resume_from_checkpoint=str(place / other / "checkpoint-1"))


def test_nothing_to_go_on_from(place: Path, tmp_path: Path, refused: Refused) -> None:
    run, torn = place / "sft", tmp_path / "checkpoint-2"
    shutil.copytree(run / "checkpoint-1", torn)
    (torn / "trainer_state.json").unlink()
    for checkpoint, output, match in (
        (run / "checkpoint-9", run, "the folder .*checkpoint-9 does not exist; .*sft has checkpoint-1"),
        (torn, tmp_path, "checkpoint-2 is not complete, it lacks trainer_state.json; .* has none"),
        ("true", tmp_path, "has no checkpoint that was written to its end: leave it out to begin"),
    ):
        arguments = ["--resume_from_checkpoint", checkpoint, "--output_dir", output]
        assert re.search(match, refused("sft", *arguments))
    adapted = ["--resume_from_checkpoint", place / "adapter" / "checkpoint-1"]
    for further, match in (
        ([], "has an adapter: give --use-peft"),
        (["--use_peft", "--lora_r", "4"], "has rank 2, this run's 4: set --lora-r 2"),
    ):
        assert re.search(match, refused("sft", *adapted, *further))
    error = refused("sft", "--resume_from_checkpoint", run / "checkpoint-1", "--use_peft")
    assert "has full weights: leave out --use-peft" in error


def test_an_output_folder_that_is_taken(place: Path, refused: Refused) -> None:
    for name in ALGORITHMS:
        before = sorted((place / "grpo").rglob("*"))
        assert "holds a run already (checkpoint-1)" in refused(name, "--output_dir", place / "grpo")
        assert sorted((place / "grpo").rglob("*")) == before
    assert "pairs.jsonl is a file: give a folder" in refused("sft", "--output_dir", place / "pairs.jsonl")


def test_what_is_learned_must_be_said_once(
    place: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    assert "exclude each other" in refused("sft", "--env", ENV)
    for name in ("sft", "dpo"):
        bare = ["train", name, "--model_name_or_path", tiny_folder, "--output_dir", str(place / "out")]
        assert main(bare) == 2
        assert "is missing" in said(capsys, place)
    assert "--env" in refused("dpo", "--env", ENV)
    bare[1] = "sft"
    assert main([*bare, "--env", "llm/Countdwn-v0"]) == 2
    assert "Did you mean llm/Countdown-v0" in said(capsys, place)


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_sources_with_nothing_to_learn(name: str, place: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text('[\n  {"prompt": [')
    whole = (place / ("talk.jsonl" if name == "sft" else "pairs.jsonl")).read_text()
    (tmp_path / "torn.jsonl").write_text(whole + '{"prompt": [{"ro')
    write_lines(tmp_path / "text.jsonl", {"text": "hello"})
    talk = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    write_lines(tmp_path / "asked.jsonl", talk, {"messages": talk["messages"][:1]})
    (tmp_path / "table.csv").write_text("prompt,answer\n1+1,2\n")
    (tmp_path / "table.parquet").write_bytes(b"PAR1\x86\x00")
    for source, match in (
        ("folder", "holds no run: it has no manifest.json"),
        ("empty.jsonl", "empty.jsonl is empty: .* one object a line"),
        ("asked.jsonl", "conversation 2 of the data: 1 messages .*no assistant message answers"),
        ("table.csv", r"line 1 of .*table.csv is not JSON .* one object a line \(JSONL\)"),
        ("table.parquet", r"line 1 of .*table.parquet is not JSON .* one object a line \(JSONL\)"),
        ("tasks.py:TASK", "neither a file nor a folder .*tasks.py:TASK.* is played with --env"),
        ("broken.jsonl", r"line 1 of .*broken.jsonl is not JSON .* one object a line \(JSONL\)"),
        ("torn.jsonl", "torn.jsonl, line 5 is not JSON"),
        ("text.jsonl", r"line 1 has the keys \['text'\]; it must be an object with `messages`"),
        ("nowhere", "there is neither a file nor a folder .*nowhere"),
    ):
        assert re.search(match, refused(name, "--source", tmp_path / source))


def test_models_that_are_none(place: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "run" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-1" / "config.json").write_text("{}")
    for model, match in (
        (tmp_path / "nowhere", r"--\w+ .*nowhere: the folder does not exist. It takes one that save_pretrained wrote"),
        (tmp_path / "run", "holds no model, it has no config.json; there is one in checkpoint-1 below it"),
        (place / "adapter", "holds an adapter and no model. Merge it into the weights"),
    ):
        assert re.search(match, refused("sft", model=model))
        assert re.search(match, refused("ppo", "--critic", model))
    adapted = peft.PeftConfig.from_pretrained(str(place / "adapter"))
    assert adapted.r == 2  # what is refused is a whole adapter, not a broken folder


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("dpo", ["--loss_type", "mine", "--overlong", "keep"], "--overlong: .*'keep'.*'drop', 'cut'"),
        ("grpo", ["--num_generations", "1"], "2 generations"),
        ("grpo", ["--env_kwargs", '{"difficulty": 3'], "env_kwargs is .*must be a dict or a JSON object"),
        ("ppo", ["--gamma", "1.5"], "gamma=1.5;"),
        ("ppo", ["--algorithm_settings", '{"kl_in": "critic"}'], "kl_in is 'critic'"),
        ("ppo", ["--algorithm_settings", '{"kl_coeff": 1}'], "'kl_coeff'; .*Did you mean kl_coef"),
        ("ppo", ["--algorithm_settings", '{"kl_fn": "k9"}'], "kl_fn='k9'; known are k1"),
        ("grpo", ["--algorithm_settings", '{"kl_coef": 1}'], "changes an algorithm: give --algorithm too"),
        ("grpo", ["--algorithm", "gdpo"], "algorithm='gdpo' is not known.*Did you mean"),
        ("sft", ["--best_of", "0"], "best_of=0;"),
        ("sft", ["--load_in_4bit", "--load_in_8bit"], "8.?bit.* 4.?bit|4.?bit.* 8.?bit"),
    ],
)
def test_settings_that_do_not_fit(name: str, settings: list[str], match: str, refused: Refused) -> None:
    assert re.search(match, refused(name, *settings))


def test_the_table_names_tests_that_there_are() -> None:
    table = __doc__ or ""
    here = set(re.findall(r"`(test_\w+)`", table))
    assert here and here <= set(globals())
    files = {path.name: path for path in Path(__file__).parents[1].rglob("test_*.py")}
    for file, name in re.findall(r"(test_\w+\.py)::(test_\w+)", table):
        assert f"def {name}(" in files[file].read_text(encoding="utf-8"), (file, name)
