"""Hand-written replies of every format, good and broken, each with what it must give.

A file of `corpus/` is named after the parser that reads it ("answers" after none: `parse_reply` alone). A case is a
line `=== what it shows`, the reply, and a line `--- {...}` with what is expected: thinking, content, calls as [name,
arguments, id], answer, quirks; or `problem`, a part of the problem that must be named, and then there must be neither
calls nor an answer. What is left out is None or empty. Every case of a family's format is also read by `parse_reply`,
which must find out the format itself: it gives the same, unless the case says `only` (the named parser alone) or
`auto_only`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llm_envs.parsers import PARSERS, detect_format, format_reward
from llm_envs.types import ToolCall

AMBIGUOUS = ("react", "xml", "fenced", "boxed", "last_number")


class Case(NamedTuple):
    format: str
    title: str
    text: str
    expected: dict[str, Any]


def read_corpus() -> Iterator[Case]:
    for path in sorted((Path(__file__).parent / "corpus").glob("*.txt")):
        title, lines = "", []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("=== "):
                title, lines = line[4:], []
            elif line.startswith("--- "):
                yield Case(path.stem, title, "\n".join(lines), json.loads(line[4:]))
            else:
                lines.append(line)


CASES = list(read_corpus())
READINGS = [
    pytest.param(parser, case, id=f"{case.format}-{case.title}-{parser}")
    for case in CASES
    for parser in (["auto"] if case.format == "answers" else [case.format, "auto"])
    if not (parser == "auto" and (case.format in AMBIGUOUS or case.expected.get("only")))
    and not (parser != "auto" and case.expected.get("auto_only"))
]


@pytest.mark.parametrize(("parser", "case"), READINGS)
def test_every_case_gives_what_is_expected(parser: str, case: Case) -> None:
    expected = case.expected
    reply = PARSERS[parser](case.text)
    if "problem" in expected:
        assert any(expected["problem"] in problem for problem in reply.problems), reply
        assert reply.tool_calls == ()
        assert reply.answer is None
        assert reply.thinking == expected.get("thinking", reply.thinking)
        assert format_reward(reply, require=()) == 0.0
        return
    calls = tuple(ToolCall(*call) for call in expected.get("calls", ()))
    assert reply.problems == ()
    assert reply.tool_calls == calls
    assert [type(value) for call in reply.tool_calls for value in call.arguments.values()] == [
        type(value) for call in calls for value in call.arguments.values()
    ]
    assert reply.thinking == expected.get("thinking")
    assert reply.quirks == tuple(expected.get("quirks", ()))
    assert reply.content == expected.get("content", "")
    assert reply.answer == expected.get("answer")
    assert format_reward(reply, require=()) == float("dropped_call" not in reply.quirks)
    if parser == "auto" and calls and case.format != "answers":
        assert detect_format(case.text) == case.format


def test_the_corpus_is_large_and_covers_every_parser() -> None:
    assert len(CASES) >= 300
    assert {case.format for case in CASES} == PARSERS.keys() - {"auto"} | {"answers"}
    assert sum("problem" in case.expected for case in CASES) >= 150
    assert len({(case.format, case.title) for case in CASES}) == len(CASES)
