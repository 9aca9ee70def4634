"""The value of a snippet's last expression, as text that the sandbox makes under its own limits.

A value that code has made is never built in our process: the hash of 46 small tuples that share their items takes
years, and no limit of the sandbox holds here. So a snippet is changed before it runs: its last statement, if it is an
expression, stores its own `repr`, cut, in a variable. Nothing of the code is parsed here but the ends of its
statements, in one pass. Whether the last statement is an expression, only the sandbox's parser decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["READ", "VARIABLE", "store_value", "without_changes"]

VARIABLE = "_llm_envs_value_"
"""The sandbox's variable that has the text after a changed snippet, and None before it."""
READ = f'[f"{{{VARIABLE}!s}}", {VARIABLE} := None][0]'
"""An expression that is the text, and forgets it. A text whatever the code has put there: an f-string is one."""
_OPENING = f'{VARIABLE} = f"{{('

_MARK = re.compile(r"""\\(?:\r\n|.)?|#[^\r\n]*|'{3}|"{3}|["'()\[\]{};]|\r\n?|\n|[^\s"'()\[\]{};#\\]+""", re.DOTALL)
_ENDS = {
    quote: re.compile(rf"\\.|{quote}" + ("|[\r\n]" if len(quote) == 1 else ""), re.DOTALL)
    for quote in ("'''", '"""', "'", '"')
}
_COMPOUND = re.compile(r"(?:if|for|while|with|def|class|try|else|elif|except|finally|async)\b")
_UNDERLINED = re.compile(rf"{re.escape(_OPENING)}(.*\n) {{{len(_OPENING)}}}( *[~^])")


def store_value(code: str, most: int) -> str | None:
    """Return code that stores the `repr` of its last expression; None if its last statement cannot be an expression.

    If the last statement turns out to be another one, the changed code has a syntax error.

    Args:
        code: A snippet.
        most: Characters of the `repr` to store.
    """
    span = _last_statement(code)
    if span is None:
        return None
    start, end = span
    return f'{code[:start]}{_OPENING}{code[start:end]}\n)!r:.{most}}}"\n'


def without_changes(traceback: str) -> str:
    """Return a traceback of changed code as if the code had not been changed."""
    return _UNDERLINED.sub(r"\1\2", traceback).replace(_OPENING, "")


def _last_statement(code: str) -> tuple[int, int] | None:
    """Return the start and end of the last statement, if it is on the top level and not compound.

    An f-string that uses its own quotes inside is read as several strings, so its brackets may be miscounted. The place
    is wrong then, and code that is changed there has a syntax error.
    """
    start = end = line = depth = 0
    boundary = "\n"
    for begins, ends, mark in _marks(code):
        if depth == 0 and mark[0] in "\r\n;":
            boundary = boundary or ";" if mark == ";" else "\n"
        elif mark[0] not in "#\r\n":
            if boundary:
                start, line, boundary = begins, begins if boundary == "\n" else line, ""
            end = ends
            depth += (mark in "([{") - (mark in ")]}")
    is_indented = line > 0 and code[line - 1] not in "\r\n"
    return None if end == 0 or is_indented or _COMPOUND.match(code, line) else (start, end)


def _marks(code: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and text of words, strings (only the quote), brackets, comments and ends of lines."""
    match = _MARK.search(code)
    while match:
        start, end, mark = match.start(), match.end(), match[0]
        while mark in _ENDS and (match := _ENDS[mark].search(code, end)):
            end = match.end()
            if match[0][0] != "\\":
                break
        yield start, end, mark
        match = _MARK.search(code, end)
