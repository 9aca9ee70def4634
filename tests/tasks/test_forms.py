"""The forms of answers that tasks accept, and the hedged and wrong ones that they do not (`answer_forms.yaml`)."""

from pathlib import Path

import gymnasium as gym
import pytest
import yaml

from llm_envs.parsers import format_answer

ROWS = [
    pytest.param(entry["task"], entry["problem"], form, answer, paid, id=f"{entry['task']} {form}: {answer[:40]!r}")
    for entry in yaml.safe_load(Path(__file__).with_name("answer_forms.yaml").read_text(encoding="utf-8"))
    for form in ("tags", "prose")
    for paid, answers in entry.get(form, {}).items()
    for answer in answers
]


@pytest.mark.parametrize(("task", "problem", "form", "answer", "paid"), ROWS)
def test_an_answer_is_paid_as_its_row_says(task, problem, form, answer, paid):
    env = gym.make(f"llm/{task}-v0", answer_form="natural" if form == "prose" else None)
    env.reset(seed=0, options={"problem": problem})
    assert env.step(answer if form == "prose" else format_answer(answer))[1] == pytest.approx(paid)
