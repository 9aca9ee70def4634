"""The forms of answers that tasks accept, and the hedged and wrong ones that they do not (`answer_forms.yaml`)."""

from pathlib import Path

import gymnasium as gym
import pytest
import yaml

from llm_envs.parsers import format_answer

ENTRIES = yaml.safe_load(Path(__file__).with_name("answer_forms.yaml").read_text(encoding="utf-8"))


def forms_of(entry):
    """Yield (problem, form, {reward: answers}); instead of a problem there may be several `targets`."""
    for target, answers in entry.get("targets", {}).items():
        yield {"question": "How much?", "answer": target}, entry["form"], answers
    for form in ("tags", "prose", "reply"):
        yield entry.get("problem"), form, entry.get(form, {})


ROWS = [
    pytest.param(entry, problem, form, answer, paid, id=f"{entry['task']} {form}: {answer[:40]!r}")
    for entry in ENTRIES
    for problem, form, by_paid in forms_of(entry)
    for paid, answers in by_paid.items()
    for answer in answers
]


@pytest.mark.parametrize(("entry", "problem", "form", "answer", "paid"), ROWS)
def test_an_answer_is_paid_as_its_row_says(entry, problem, form, answer, paid):
    arguments = entry.get("arguments", {"answer_form": "natural" if form == "prose" else None})
    env = gym.make(f"llm/{entry['task']}-v0", **arguments)
    env.reset(seed=0, options={"problem": problem})
    assert env.step(format_answer(answer) if form == "tags" else answer)[1] == pytest.approx(paid)
