"""Our parsers against vLLM's, on replies in the families' own forms: `DIFFERENCES` has all classes of differences."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("vllm")

from family_replies import FAMILIES, generate_replies
from judged_table import BEGIN, DOCUMENT, END, format_read, judge
from reply_judges import CLASSES, ours, written

from llm_envs.parsers import parse_reply

pytestmark = pytest.mark.vllm

DIFFERENCES: dict[str, str] = {}
"""Numbers of the classes of differences, by family."""
N_REPLIES = 300
NAMES = list(CLASSES)


def documented() -> dict[str, list[str]]:
    """Return the cells of the documented table by family."""
    part = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[1:]}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_difference_has_a_class(name: str) -> None:
    found = judge(name, N_REPLIES).classes
    assert {str(NAMES.index(key) + 1) if key in CLASSES else key for key in found} <= set(DIFFERENCES[name].split())
