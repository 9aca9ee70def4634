r"""A task from a data set: its columns, and a reward function.

    task = from_dataset("openai/gsm8k", subset="main")
    task = from_dataset("train.parquet", lambda row, reply: float(reply.answer == row["answer"]))

The usual layouts are recognised; the first column that all rows have is taken:

- the prompt, a text or messages: `messages`, `prompt`, `question`, `problem`, `query`;
- the answer: `reward_model.ground_truth.target`, `reward_model.ground_truth` (verl), `completion` (TRL), `answer`,
  `solution`, `response`, `output`, `ground_truth`, `target`; or the last of `messages`, if the assistant wrote it.

Of a worked answer, the part behind `####` (GSM8K) or in `\boxed{}` is kept. A list has several right answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import ParsedReply, format_answer, plain_answer
from llm_envs.parsers.answers import split_thinking
from llm_envs.rewards import exact_match, numeric_match, parse_number
from llm_envs.sources.prompt_task import PromptTask, RewardFn
from llm_envs.sources.prompts import PROMPT, read_rows
from llm_envs.tasks.data.dataset_math import final_answer
from llm_envs.tasks.data.loading import FILES, load_data_set

__all__ = ["from_dataset", "has_answer"]

MESSAGES = "messages"
PROMPTS = (MESSAGES, PROMPT, "question", "problem", "query")
ANSWERS = (
    *("reward_model.ground_truth.target", "reward_model.ground_truth", "completion"),
    *("answer", "solution", "response", "output", "ground_truth", "target"),
)
ANSWER, ANSWERS_FIELD = "answer", "answers"
CHOICES = ("choices", "options")
"""Columns of multiple choice."""


def from_dataset(
    data: str | Path | Iterable[Mapping[str, Any]],
    reward_fn: RewardFn | None = None,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    split: str = "train",
    subset: str | None = None,
    **options: Any,
) -> PromptTask:
    """Return a task that asks the rows of a data set.

    Args:
        data: Path of a JSONL, CSV or Parquet file; a folder that `datasets` saved, or a name that `datasets` loads;
            or rows, such as a `datasets.Dataset`.
        reward_fn: `(row, reply) -> reward`. The row has its columns, `prompt` and, if there is one, `answer`. None:
            `has_answer`.
        prompt: Column of the prompt; "a.b" is the key "b" of column "a". None: recognised.
        answer: Column of the answer. None: recognised, if there is one.
        split: Of a named data set: which of its splits is read.
        subset: Of a named data set: its configuration.
        **options: Of `PromptTask`. If the rows have answers, `system_prompt` asks for the form that `format_answer`
            writes, unless the rows have their own system message.

    Raises:
        InvalidConfigError: If a column is missing, or both an answer and `reward_fn` are missing.
        MissingExtraError: If `datasets` is needed and not installed.
    """
    name = "dataset" if not isinstance(data, str | Path) else Path(data).stem if _is_file(data) else str(data)
    rows = _load(data, subset, split)
    prompt_column = _choose(rows, prompt, PROMPTS, "prompt")
    if prompt_column is None:
        raise InvalidConfigError(
            f"from_dataset: no column of {name} is known as a prompt; it has {list(rows[0])}. Pass prompt=... ."
        )
    hidden = [column for column in CHOICES if prompt is None and column in rows[0]]
    if hidden:
        raise InvalidConfigError(
            f"from_dataset: the column {hidden[0]!r} of {name} would not be shown. Write the choices into a text of "
            "each row, and pass prompt=... with its column; llm/MMLU-v0 does it for that layout."
        )
    answer_column = _choose(rows, answer, ANSWERS, "answer")
    asked = [_asked(row, prompt_column, answer_column, index) for index, row in enumerate(rows)]
    has_answers = all(ANSWER in row for row in asked)
    if reward_fn is None and not has_answers:
        found = next((column for column in ANSWERS if any(_get(row, column) is not None for row in rows)), None)
        gap = next((index for index, row in enumerate(rows) if found and _get(row, found) is None), 0)
        why = f"no column of {name} is known as an answer" if found is None else f"row {gap} has no {found!r}"
        raise InvalidConfigError(
            f"from_dataset: {why}; it has {list(rows[gap])}. Pass answer=... or a reward_fn, or leave the row out."
        )
    shown = asked[0][PROMPT]
    if has_answers and (isinstance(shown, str) or _role(shown[0]) != "system"):
        form = options.get("format_answer", format_answer)("...")
        options.setdefault("system_prompt", f"Write your final answer, and nothing else, in this form: {form}")
    return PromptTask(asked, has_answer if reward_fn is None else reward_fn, **{"env_id": name, **options})


def has_answer(row: Mapping[str, Any], reply: ParsedReply) -> float:
    """Return 1.0 if the reply's answer is one of the row's, as a text up to white space or as a number, else 0.0."""
    if reply.problems or reply.answer is None:
        return 0.0
    given, targets = plain_answer(reply.answer), row.get(ANSWERS_FIELD) or [row[ANSWER]]
    numeric = [numeric_match(given, target) for target in targets if parse_number(target) is not None]
    return max(*(exact_match(given, target) for target in targets), *numeric, 0.0)


def _is_file(data: str | Path) -> bool:
    return str(data).lower().endswith(FILES)


def _load(data: Any, subset: str | None, split: str) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]]
    if isinstance(data, str | Path):
        rows = read_rows(Path(data))[0] if _is_file(data) else load_data_set(str(data), subset, split)
    else:
        rows = list(data) if isinstance(data, Iterable) and not isinstance(data, Mapping) else []
    wrong = next((row for row in rows if not isinstance(row, Mapping)), None)
    if len(rows) == 0 or wrong is not None:
        given = f"{data!r:.80}" if wrong is None else f"a row {wrong!r:.80}"
        raise InvalidConfigError(
            f"from_dataset: {given} was given; it must be one or more rows, each a dictionary of its columns, or "
            "a file or the name of a data set that has them."
        )
    return rows


def _choose(rows: Sequence[Mapping[str, Any]], given: str | None, known: Sequence[str], what: str) -> str | None:
    """Return the given column, or the first known one that every row has."""
    for column in (given,) if given is not None else known:
        missing = next((index for index, row in enumerate(rows) if _get(row, column) is None), None)
        if missing is None:
            return column
        if given is not None:
            raise InvalidConfigError(
                f"from_dataset: row {missing} has no {what} {given!r}; it has {list(rows[missing])}."
            )
    return None


def _get(row: Mapping[str, Any], column: str) -> Any:
    """Return a value, or None: "a.b" is the key "b" of column "a", unless a column has that name."""
    if column in row or "." not in column:
        return row.get(column)
    first, _, rest = column.partition(".")
    inner = row.get(first)
    return _get(inner, rest) if isinstance(inner, Mapping) else None


def _asked(row: Mapping[str, Any], prompt_column: str, answer_column: str | None, index: int) -> dict[str, Any]:
    """Return a row with `prompt`, and with `answer` if it has one."""
    shown = _get(row, prompt_column)
    answers = None if answer_column is None else _texts(_get(row, answer_column), index)
    if not isinstance(shown, str) and len(shown) > 1 and _role(shown[-1]) == "assistant":
        answers = answers or _texts(shown[-1:], index)
        shown = shown[:-1]
    kept = {key: value for key, value in row.items() if key not in (prompt_column, PROMPT, ANSWER)}
    asked = {**kept, PROMPT: shown}
    if answers:
        asked[ANSWER] = answers[0]
        if len(answers) > 1:
            asked[ANSWERS_FIELD] = answers
    return asked


def _texts(value: Any, index: int) -> list[str]:
    """Return the right answers that a value has, as texts."""
    listed = value if isinstance(value, list | tuple) else [value]
    texts = [item["content"] if isinstance(item, Mapping) and "content" in item else item for item in listed]
    finals = [
        final_answer(split_thinking(text).content) if isinstance(text, str) else str(text)
        for text in texts
        if isinstance(text, str | int | float) and not isinstance(text, bool) and text == text  # NaN is not itself
    ]
    if len(finals) < len(texts) or not finals or not all(final.strip() for final in finals):
        raise InvalidConfigError(
            f"from_dataset: row {index} has the answer {value!r:.80}; it must be a text, a number or a list of them, "
            "none of them empty. Pass answer=... with another column, or leave the row out."
        )
    return finals


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None
