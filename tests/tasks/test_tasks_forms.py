"""The forms of answers that tasks accept, and the hedged and wrong ones that they do not (`answer_forms.yaml`)."""

from pathlib import Path

import pytest
from answer_forms import reward_of, rows_of


@pytest.mark.parametrize(("entry", "problem", "form", "answer", "reward"), rows_of(Path(__file__).parent))
def test_an_answer_earns_what_its_row_has(entry, problem, form, answer, reward):
    assert reward_of(entry, problem, form, answer) == pytest.approx(reward)
