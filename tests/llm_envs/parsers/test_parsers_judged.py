"""Our parsers against vLLM's, on replies in the families' own forms: `DIFFERENCES` has all classes of differences."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from family_replies import FAMILIES, generate_replies
from judged_table import BEGIN, DOCUMENT, END, format_read, judge
from reply_judges import CLASSES, ours, written

from llm_envs.parsers import parse_reply

pytestmark = pytest.mark.vllm

EVERYWHERE = {"cut call", "cut text", "own marker", "text after calls"}
WITH_THINKING = {"call in thinking", "unclosed thinking"}
DIFFERENCES = {
    "JSON in a string": ("Step 3.5", "FunctionGemma", "Muse Glimmer"),
    "value as text": ("Step 3.5", "Hunyuan 3", "Gemma 4"),
    "argument lost": ("FunctionGemma",),
    "no JSON": ("Command A",),
    "carriage return": ("Step 3.5",),
    "text before calls": ("OLMo 3", "Phi-4-mini"),
    "text around calls, ours": ("Llama 3", "Mistral 3 to 7", "Mistral 13 (Magistral)", "Phi-4-mini", "Granite 3"),
    "text around calls, vLLM": ("Llama 4",),
    "call missed": ("Phi-4-mini",),
    "thinking missed, vLLM": ("Hunyuan A13B",),
    "answer tags": ("Hunyuan A13B",),
}  # fmt: skip
"""Classes of differences that only these families have."""
N_REPLIES = 300


def expected(name: str) -> set[str]:
    """Return the classes of differences that a family may have."""
    own = {key for key, families in DIFFERENCES.items() if name in families}
    return EVERYWHERE | own | (WITH_THINKING if FAMILIES[name].think is not None else set())


def documented() -> dict[str, list[str]]:
    """Return the cells of the documented table, by family."""
    part = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[1:]}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_difference_has_a_class(name: str) -> None:
    if name == "Command A":
        pytest.importorskip("cohere_melody")
    assert set(judge(name, N_REPLIES).classes) <= expected(name)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["hermes (Qwen3)", "GLM 4.7, 5", "Kimi K2", "DeepSeek V3.2", "GPT-OSS"])
def test_few_replies_of_much_used_families(name: str) -> None:
    assert set(judge(name, 30).classes) <= expected(name)


@pytest.mark.smoke
@pytest.mark.parametrize("name", FAMILIES)
def test_ours_reads_no_call_that_was_not_written(name: str) -> None:
    for case, reply in generate_replies(name, N_REPLIES, seed=1):
        if "reads as JSON" not in case.traits:
            assert set(ours(parse_reply(reply)).calls) <= set(written(case).calls), reply


def test_the_documented_table_has_these_families_and_classes() -> None:
    rows = documented()
    assert list(rows) == list(FAMILIES)
    names = list(CLASSES)
    for name, (read, *_, differences) in rows.items():
        assert read == (format_read(name) or "not read"), "run python tests/support/judged_table.py"
        numbers = [entry.partition(":")[0] for entry in differences.split("; ") if ":" in entry]
        assert {names[int(number) - 1] for number in numbers} <= expected(name)
