# ruff: noqa: RUF001 - the wide bars are DeepSeek's own
"""Calls in DeepSeek's formats: V3 and R1, V3.1, and the tags of V3.2 and V4."""

from __future__ import annotations

import re

from llm_envs.parsers.json_calls import Calls, call_with, expect, scan_json, skip_space
from llm_envs.parsers.reply import BrokenCallError
from llm_envs.parsers.tag_calls import invoke_style

__all__ = ["DSML", "DSML_TAGS", "END_OF_SENTENCE", "TAGS", "read_deepseek"]

TAGS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DSML_TAGS = tuple((f"<｜DSML｜{name}>", f"</｜DSML｜{name}>") for name in ("function_calls", "tool_calls"))
"""Of V3.2 and of V4."""
END_OF_SENTENCE = "<｜end▁of▁sentence｜>"

_HEAD = re.compile(r"\s*([^\s<>｜{}]{1,200})<｜tool▁sep｜>([^\s<>｜{}]{1,200})(?=\n)\s*```json\s*")
_PLAIN_HEAD = re.compile(r"\s*([^\s<>｜{}]{1,200})<｜tool▁sep｜>\s*")
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
DSML = invoke_style("｜DSML｜")


def read_deepseek(text: str, position: int) -> tuple[Calls, int]:
    """Read the calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`, of V3 and R1 or of V3.1."""
    calls: Calls = []
    position = skip_space(text, position)
    while text.startswith(_CALL, position):
        position += len(_CALL)
        fence = ""
        if (match := _HEAD.match(text, position)) is not None:
            if match[1] != "function":
                raise BrokenCallError("the type of a tool call must be function")
            name, fence = match[2], "```"
        elif (match := _PLAIN_HEAD.match(text, position)) is not None:
            name = match[1]
        else:
            raise BrokenCallError("a tool call must have a name and <｜tool▁sep｜>")
        data, position = scan_json(text, match.end())
        calls.append(call_with(name, data, text=text))
        position = expect(text, expect(text, position, fence) if fence else position, _CALL_END)
        position = skip_space(text, position)
    if not calls:
        raise BrokenCallError("the list of tool calls is empty")
    return calls, expect(text, position, TAGS[1])
