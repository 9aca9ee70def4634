"""The result of a parser, and its intermediate state."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from llm_envs.errors import InvalidConfigError
from llm_envs.types import ToolCall

__all__ = [
    "DROPPED_CALL",
    "QUIRKS",
    "BrokenCallError",
    "Draft",
    "ParsedReply",
    "Parser",
    "format_answer",
    "format_reward",
    "format_tool_call",
]

MAX_PROBLEMS = 8  # A reply with a thousand broken tags gets only the first few problems.
MAX_DEPTH = 32  # Code that walks or writes the arguments later is recursive.
QUOTE_LENGTH = 60
MAX_REPEATS = 2
"""Times that a reply may give its answer. More is a flood."""
REPEATED = f"the answer stands there more than {MAX_REPEATS} times; give it once"
_MENTIONS = {"", "...", "\u2026"}
"""Contents of answer tags that only mention the form."""


DROPPED_CALL = "dropped_call"
QUIRKS: Mapping[str, str] = MappingProxyType(
    {
        "control_character": "a raw line break, tab or other control character in a JSON string: kept",
        "trailing_comma": "a comma before a closing bracket: ignored",
        "arguments_as_text": "arguments that are a JSON string with an object in it: decoded",
        "no_arguments": "arguments that are null or an empty string: none",
        "several_in_block": "several calls, or a list, where the format has one call: all are read",
        "doubled_header": "a header of a message that is repeated (GPT-OSS): the last counts",
        "call_in_analysis": "a call in the channel for thinking (GPT-OSS): read",
        "call_in_thinking": "a complete call inside thinking: not run, unless the parser accepts it",
        DROPPED_CALL: "a broken call, if the reply has a sound one too: not run, and the reply is malformed",
    }
)
"""Departures that a parser tolerates, by kind, and how it reads them. `env/quirks/<kind>` counts them."""


class ParsedReply(NamedTuple):
    """An assistant's reply, taken apart by a parser."""

    thinking: str | None
    """The text of `<think>` blocks, or of the family's own tags; None without any."""
    content: str
    """The reply without thinking and without tool calls, stripped; answer tags stay in it."""
    tool_calls: tuple[ToolCall, ...]
    """In the order written. Empty if there is any problem."""
    answer: str | None
    """Text of the one `<answer>` block, stripped. None without one, or if there is any problem."""
    problems: tuple[str, ...]
    """The problems, as sentences for the model. Printable ASCII, 8 at most."""
    quirks: tuple[str, ...] = ()
    """Departures from the format that did not stop the parser, once for each occurrence; the keys of `QUIRKS`."""

    @property
    def dropped_calls_error(self) -> str:
        """An error for the model about broken calls that were dropped; empty if there are none."""
        n_dropped = self.quirks.count(DROPPED_CALL)
        return f"Error: calls in the reply that could not be read, and were not run: {n_dropped}." if n_dropped else ""


Parser = Callable[[str], ParsedReply]
"""Takes any string, in linear time, and never raises."""


class BrokenCallError(Exception):
    """A call cannot be read, for the reason in the message. This package catches it and reports a problem."""


class Draft:
    """The parts of a reply that have been found so far."""

    __slots__ = (
        "answers", "broken_calls", "call_in_thought", "content", "format", "problems", "quirks", "thoughts",
        "tool_calls", "wrappers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.content: list[str] = []
        self.tool_calls: list[ToolCall] = []
        self.answers: list[str] = []
        self.problems: list[str] = []
        self.broken_calls: list[str] = []
        """The problems of calls that cannot be read. They count if the reply has no sound call."""
        self.quirks: list[str] = []
        self.call_in_thought: str | None = None
        """The problem of a complete call inside thinking. It counts if the reply has nothing else."""
        self.format: str | None = None
        """The format whose markers were seen first."""
        self.wrappers: dict[str, int] = {}
        """Number of times that each tag around content was seen."""

    def use(self, name: str) -> None:
        """Record a marker of the format `name`; a second format is a problem."""
        if self.format is None:
            self.format = name
        elif self.format != name:
            self.complain(f"the reply mixes two formats, {self.format} and {name}")

    def complain(self, problem: str) -> None:
        """Add a problem unless it is already there; only the first `MAX_PROBLEMS` are kept."""
        problem = printable(problem)
        if len(self.problems) < MAX_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def drop_call(self, problem: str) -> None:
        """Add the problem of a call that cannot be read."""
        if len(self.broken_calls) < MAX_PROBLEMS:
            self.broken_calls.append(problem)

    def finish(self) -> ParsedReply:
        """Return the reply. If it has a problem, it has neither calls nor an answer."""
        if self.broken_calls:
            if self.tool_calls and not self.problems and len(self.broken_calls) < MAX_PROBLEMS:
                self.quirks += [DROPPED_CALL] * len(self.broken_calls)
            else:
                for problem in self.broken_calls:
                    self.complain(problem)
        answers = set(self.answers) - _MENTIONS if self.answers else set()
        if len(answers) > 1:
            self.complain("there are two answers; give one")
        elif sum(answer in answers for answer in self.answers) > MAX_REPEATS:
            self.complain(REPEATED)
        elif self.answers and not answers:
            self.complain("the answer is empty")
        content = "".join(self.content).strip()
        if self.call_in_thought is not None and not (self.tool_calls or content):
            self.complain(self.call_in_thought)
        thinking = "\n".join(self.thoughts) if self.thoughts else None
        quirks = tuple(self.quirks) if self.quirks else ()
        if self.problems:
            return ParsedReply(thinking, content, (), None, tuple(self.problems), quirks)
        return ParsedReply(thinking, content, tuple(self.tool_calls), answers.pop() if answers else None, (), quirks)


def printable(text: str) -> str:
    """Return `text` in printable ASCII: DeepSeek's wide bars become plain ones, other characters are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return text.replace("\uff5c", "|").replace("\u2581", "_").encode("unicode_escape").decode("ascii")


def broken(problem: str) -> ParsedReply:
    """Return the result for a reply that is not parsed at all."""
    return ParsedReply(None, "", (), None, (printable(problem),))


_PARTS: dict[str, Callable[[ParsedReply], bool]] = {
    "thinking": lambda reply: bool(reply.thinking),
    "content": lambda reply: bool(reply.content),
    "tool_calls": lambda reply: bool(reply.tool_calls),
    "answer": lambda reply: reply.answer is not None,
}


def format_reward(reply: ParsedReply, *, require: Collection[str] = ("answer",)) -> float:
    """Return 1.0 if nothing in the reply is broken (quirks are not) and it has all required parts, else 0.0.

    An answer beside tool calls was written before their results were known. It counts only if `require` has both.

    Args:
        reply: The result of a parser.
        require: Some of "thinking", "content", "tool_calls", "answer"; an empty part counts as missing.

    Raises:
        InvalidConfigError: If `require` names anything else.
    """
    for part in require:
        if part not in _PARTS:
            raise InvalidConfigError(f"format_reward cannot require {part!r}; known are {', '.join(_PARTS)}.")
    if reply.problems or DROPPED_CALL in reply.quirks or not all(_PARTS[part](reply) for part in require):
        return 0.0
    if "answer" in require and reply.tool_calls and "tool_calls" not in require:
        return 0.0
    return 1.0


def format_answer(answer: object) -> str:
    """Write a final answer in the canonical form."""
    return f"<answer>{answer}</answer>"


def format_tool_call(name: str, /, **arguments: Any) -> str:
    """Write a tool call in the canonical form, Hermes' and Qwen's."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
