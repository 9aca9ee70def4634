r"""Write mathematical text in one notation: LaTeX without fonts, spacing commands and signs that are not ASCII.

`18\,\text{cm}`, `18~\text{cm}` and `18 \text{cm}` are the same text then, and so are `\dfrac12`, `½` and
`\frac{1}{2}`. The value never changes, and nothing is evaluated but repeating decimals. Takes linear time, or quadratic
time in the number of fractions.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

__all__ = ["in_one_notation", "last_side", "sides"]

_SIGNS = {
    "\u2212\u2010\u2011\u2012\u2013\uff0d": "-",
    "\u00a0\u2002\u2003\u2005\u2009\u200a\u202f\u3000": " ",
    "\u200b\u200c\u200d\u2060\ufeff\u2061\u2062": "",
    "\u00d7\u00b7\u22c5\u2219\u2217\u2022\u2715\u2a2f\u22c6\u2605": "*",
    "\u00f7\u2044\u2215": "/",
    "\u2264": "\\leq ",
    "\u2265": "\\geq ",
    "\u03c0": "\\pi ",
    "\u221e": "\\infty ",
    "\u2228": "\\lor ",
    "\u222a": "\\cup ",
    "\u2208": "\\in ",
    "\u2205": "\\emptyset ",
    "\u00b1": "\\pm ",
    "\u03b8": "\\theta ",
    "\uff05": "%",
    "\u00a2": " cents",
    "\u00ba": "\u00b0",
    "\u00b5\u03bc": "\\mu ",
    "\u2126\u03a9": "\\Omega ",
}
_ASCII = str.maketrans({sign: latex for signs, latex in _SIGNS.items() for sign in signs})
_RAISED, _LOWERED = (
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b",
    "".join(map(chr, range(0x2080, 0x208A))),
)
_PLAIN_DIGITS = str.maketrans(_RAISED + _LOWERED, "0123456789-0123456789")

_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Spaces. `\\` ends the row of a matrix.
        (r"(?<!\\)\\(?:!|negthinspace(?![A-Za-z]))\s*", ""),
        (r"(?<!\\)\\(?:[,;:> ]|(?:q?quad|enspace|(?:thin|med|thick)?space|nobreak|h?fill|hfil)(?![A-Za-z]))|~", " "),
        (r"\\(?:[hm]space\*?|[hv]?phantom)\s*\{[^{}]*\}|(?<!\\)\\\Z", " "),
        # Fonts and sizes
        (r"\{\s*\\(?:bf|rm|it|sf|tt)\s+([A-Za-z]{2}[^{}]*)\}", r"\\text{\1}"),
        (r"\\(?:bf|rm|it|sf|tt)\s*\{\s*([A-Za-z]{2}[^{}]*)\}", r"\\text{\1}"),
        (r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*", ""),
        (r"\\(?:display|text|script|scriptscript)style(?![A-Za-z])|\\(?:no)?limits(?![A-Za-z])", " "),
        (r"\\(?:bf|rm|it|sf|tt|bfseries|boldmath|normalsize|small|large|Large|LARGE|huge|Huge)(?![A-Za-z])\s*", ""),
        (r"\\(?:text)?color\s*\{[^{}]*\}", ""),
        (
            r"\\(?:text(?:rm|bf|it|sf|tt|normal)?|emph|math(?:rm|bf|sf|it)|[mh]box)"
            r"\s*\{\s*([-+]?[\d.,/ ]*\d|[a-z])\s*\}",
            r" \1 ",
        ),
        (r"\\(?:mathbf|boldsymbol|bm|pmb|mathit|mathsf|mathtt|mathnormal|underline)\s*(?=\{(?!\s*[A-Za-z]{2}))", ""),
        (r"\\mathrm\s*(?=\{\s*[-(\d\\])|\{\}(?=\s*\^)", ""),
        (r"\\text\w*\s*\{\s*(\\[$%])\s*\}|\{\s*([-+])\s*\}", r"\1\2"),
        (r"\\text\w*\s*\{\s*\}", " "),
        (r"(?<=[\d})])\s*\\(text\w*|mathrm)\s*\{\s*\(([^(){}]+)\)\s*\}", r" \\\1{\2}"),
        (r"(\\(?:text|mathrm)\s*\{[^{}]*\^)\s*\{\s*(-?\d)\s*\}", r"\1\2"),
        (r"(?<==)\s*\{((?:[^{},]|\{[^{}]*\})+)\}\s*\Z", r"\1"),
        (r"(?<=\\\\)\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]", " "),
        (r"\\(?:checkmark|qed|blacksquare)(?![A-Za-z])", ""),
        # Signs
        (r"\\text\w*\s*\{\s*pi\s*\}", r"\\pi "),
        (r"\\log\s*_\s*(?:e(?![A-Za-z])|\{\s*e\s*\})", r"\\ln "),
        (r"(\\sqrt\s*\[\w+\])\s*(\w)", r"\1{\2}"),
        (r"\\(?:Bbb|mathbb|mathbf)\s*\{?\s*([RZQNC])\s*\}?(?![A-Za-z])", r"\\mathbb{\1}"),
        (r"\\textdollar(?![A-Za-z])", r"\\$"),
        (r"\\(?:pounds|textsterling)(?![A-Za-z])", "\u00a3"),
        (r"\A\s*\\(?:therefore|implies|(?:Long)?[Rr]ightarrow)(?![A-Za-z])", ""),
        (r"\{\s*:\s*\}|\\colon(?![A-Za-z])|(?<=\d)(?:\s*\\text\w*\s*\{\s*to\s*\}\s*|\s+to\s+)(?=\d)", ":"),
        (r"\\mu\s*(?:\\mathrm\s*\{\s*)?m\s*\}?\s*\Z", r"\\text{um}"),
        (r"(?<=[\d ])\\Omega\s*\Z", r"\\text{ ohms}"),
        (r"\bper\s*cent\b", "percent"),
        (r"\\exp\s*\(([^()]*)\)", r"e^{\1}"),
        (r"(?<=\d)\s*_\s*(?:\{\s*10\s*\}|10)\s*\Z", ""),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"(?<!\\)\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"(?<![\\\w}^_])\{\s*(\d+)\s*\}\s*/\s*\{\s*(\d+)\s*\}", r"\\frac{\1}{\2}"),
        (r"\\(?:n?icefrac|sfrac|[dtc]frac)(?![A-Za-z])", r"\\frac"),
        (r"\\(?:varnothing|empty|O)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (rf"[{_RAISED}]+", lambda match: f"^{{{match[0].translate(_PLAIN_DIGITS)}}}"),
        (rf"[{_LOWERED}]+", lambda match: f"_{{{match[0].translate(_PLAIN_DIGITS)}}}"),
        (
            r"\\degree(?![A-Za-z])|\^\s*\{?\s*\u00b0\s*\}?|\u00b0|\\text\w*\s*\{\s*\u00b0\s*\}|\^\s*\{\s*\\circ\s*\}"
            r"|(?<=\d)\s*\^\s*(?:\{\s*o\s*\}|o\b)",
            r"^\\circ",
        ),
        (
            r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\s*\{?\s*\d\s*\}?)?)\s*[({]?\s*(\d+(?:\.\d+)?)\s*\^\\circ\s*[)}]?",
            r"\1(\\frac{\2\\pi}{180})",
        ),
        (
            r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)|\u221a\s*\(([^()]*)\)",
            lambda match: f"\\sqrt{{{match[1] or match[2]}}}",
        ),
        (r"\u221a\s*([0-9]+|[a-z])", r"\\sqrt{\1}"),
        (r"(?<=[\d)}])\s+(?:\*\s*)?i(?![A-Za-z])", "i"),
        # Half-open and open intervals with turned brackets: ]0,1[
        (r"(\A|[=\s]|\\cup|\\in)\s*\](?=[^,\[\]]+,[^,\[\]]+[\[\])]\s*(?:\Z|\\cup))", r"\1 ("),
        (r"(?<=[\[(])([^,\[\]()]+,[^,\[\]()]+)\[(?=\s*(?:\Z|\\cup))", r"\1)"),
    )
)
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_REPEATING = re.compile(r"(\d{0,30})\.(\d{0,30})\\(?:overline|bar|dot|overbar)\s*(?:\{\s*(\d{1,30})\s*\}|(\d))")
_FRACTION = re.compile(r"\\frac(?![A-Za-z])\s*")
_COMMAND = re.compile(r"\\[A-Za-z]+")


def in_one_notation(text: str) -> str:
    """Return a text in plain LaTeX, with the same value."""
    text = _VULGAR.sub(_vulgar_fraction, text.translate(_ASCII))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _with_braces(_REPEATING.sub(_fraction_of, text)).strip()


def sides(text: str) -> list[str]:
    """Return the parts between equals signs, except those in brackets: three of "x = 10/2 = 5", two of "P(X=2) = 1"."""
    found, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "=" and depth == 0 and text[place - 1 : place] not in ("<", ">", "!", ":", "\\"):
            found.append(text[start:place])
            start = place + 1
    return [*found, text[start:]]


def last_side(text: str) -> str:
    """Return what follows the last equals sign: "5" of "x = 10/2 = 5"."""
    return sides(text)[-1]


def _vulgar_fraction(match: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", match[0]).split("\u2044")
    return f"\\frac{{{above}}}{{{below}}}"


def _fraction_of(match: re.Match[str]) -> str:
    r"""Return `0.1\overline{6}` as `\frac{1}{6}`."""
    whole, start, period = match[1], match[2], match[3] or match[4]
    value = Fraction(
        int(whole + start + period or 0) - int(whole + start or 0), 10 ** len(start) * (10 ** len(period) - 1)
    )
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value.numerator)


def _with_braces(text: str) -> str:
    r"""Return the text with both parts of every fraction in braces: `\frac52` as `\frac{5}{2}`."""
    place = 0
    while (match := _FRACTION.search(text, place)) is not None:
        first, middle = _part(text, match.end())
        second, end = _part(text, middle)
        if not first or not second:
            return text
        text = f"{text[: match.start()]}\\frac{{{first}}}{{{second}}}{text[end:]}"
        place = match.start() + 6  # the parts may have fractions, too
    return text


def _part(text: str, start: int) -> tuple[str, int]:
    """Return the group in braces, the command or the single character at a place, and the place behind it."""
    while text[start : start + 1] == " ":
        start += 1
    if text[start : start + 1] != "{":
        if (command := _COMMAND.match(text, start)) is not None and command[0] not in ("\\frac", "\\sqrt", "\\text"):
            return command[0], command.end()
        return (text[start], start + 1) if text[start : start + 1].isalnum() else ("", start)
    depth = 0
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[start + 1 : end].strip(), end + 1
    return "", start
