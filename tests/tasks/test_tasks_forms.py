"""The forms of answers that tasks accept, and the hedged and wrong ones that they do not (`answer_forms.yaml`)."""

from pathlib import Path

import pytest
from answer_forms import reward_of, rows_of


@pytest.mark.parametrize(("entry", "problem", "form", "answer", "paid"), rows_of(Path(__file__).parent))
def test_an_answer_is_paid_as_its_row_says(entry, problem, form, answer, paid):
    assert reward_of(entry, problem, form, answer) == pytest.approx(paid)
