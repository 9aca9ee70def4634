r"""Read the text of a mathematical answer, before any algebra: prose, words, units.

All functions map texts to texts and evaluate nothing. They take texts of bounded length (`clean` refuses longer ones),
in linear time, or in quadratic time for a few thousand characters at worst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from llm_envs.mathematics.notation import in_one_notation

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "Unreadable",
    "clean",
    "has_content",
    "has_dots",
    "has_letters",
    "listed_words",
    "numbered_words",
    "prose_in",
    "same_text",
    "take_off_unit",
    "ungrouped",
    "words_of",
]

MAX_CHARACTERS = 2_000
"""Longest answer or target that is read."""
MAX_DEPTH = 30
"""Deepest nesting of brackets that is read."""
_MAX_EXPONENT = 300
_MAX_UNIT_WORDS = 3


@dataclass(frozen=True)
class Unreadable:
    """A text that is not read."""

    why: str


_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("\\fbox{", "}"))
_STYLED = re.compile(r"\\(?:text(?:rm|bf|it|sf|tt)?|math(?:rm|bf|sf|it)|mbox|hbox)\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_NO_CONTENT = re.compile(r"\\(?:text\w*|math\w+|mbox|hbox|left|right|q?quad|boxed|fbox|frac|sqrt)(?![A-Za-z])")
_PREFIX = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+|my\s+)?(?:final\s+|correct\s+)?(?:answer|result|value|solution|number|total)"
    r"(?:\s+of\s+\w[\w ]{0,40}?)?(?:\s+is\b\s*:?|\s+equals\b|\s*[:=])\s*|there\s+(?:are|is)\s+(?=[-\d\\])",
    re.IGNORECASE,
)
_MIXED = re.compile(r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")
_THOUSANDS = r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+|(?:\{,\}\d{3})+)"
_WHOLE_GROUPED = re.compile(
    rf"(?P<head>(?:[^,;=]*=)?\s*[+-]?\s*)(?P<number>{_THOUSANDS})(?P<tail>(?:\.\d+)?\D*(?:\^\{{?\d\}}?)?)"
)
_SCIENTIFIC = re.compile(r"(?<![\w.\\}])(\d+\.?\d*|\.\d+)[eE]([+-]?\d{1,3})(?![\w.])")
_NAMED = re.compile(r"(?<![A-Za-z\\])(?:(pi)|infinity|infty)(?![A-Za-z])")
_LABEL = re.compile(
    r"(?:(?:\\?[A-Za-z]{1,7}\s*\(\s*)?\\text\w*\s*\{[^{}=]{1,40}\}\)?(?:_(?:\w|\{\w*\}))?\s*(?:\\triangle|\\angle)?\s*[A-Z]{0,6}"
    r"|[A-Za-z][a-z]{3,20}(?: [A-Za-z]+){0,3})\s*=(?=.*\d)"
)
_MONEY = re.compile(
    r"(?P<head>[^=]*=\s*)?(?P<sign>[+-]?)\s*(?P<before>\\?\$|\u20ac|\u00a3)?\s*"
    r"(?P<amount>[+-]?[\d.,{} ]*\d\}?)\s*(?P<after>\\?\$|\u20ac|\u00a3)?(?P<rest>[^\d=]*)"
)
_CURRENCIES = {"$": "dollars", "\u20ac": "euros", "\u00a3": "gbp"}
_LISTED = re.compile(r"\s*(?:[,;]|and|or|,\s*and|,\s*or)?\s*")
_DOTS = re.compile(r"\\[lc]?dots(?![A-Za-z])|\\dots[a-z](?![A-Za-z])|\.\.\.|\u2026")


# ----------------------------------------------------------------------------------------------------------------------
# The text itself
# ----------------------------------------------------------------------------------------------------------------------


def has_content(text: str) -> bool:
    """Return whether a text has content: a letter or digit besides commands that only format."""
    return any(map(str.isalnum, _NO_CONTENT.sub("", text)))


def same_text(left: str, right: str) -> bool:
    """Return whether two texts with content are equal, except for white space in general and around signs."""
    return has_content(left) and _squeezed(left) == _squeezed(right)


def _squeezed(text: str) -> str:
    return re.sub(r"(?<=[^\w\s]) | (?=[^\w\s])", "", " ".join(text.split()))


def clean(text: str) -> str | Unreadable:
    """Remove the delimiters and prose around a formula, or return why it is not read."""
    if len(text) > MAX_CHARACTERS:
        return Unreadable(f"has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    text = "".join(character if character.isprintable() else " " for character in text)
    text = _unwrapped(in_one_notation(text))
    for _ in range(2):
        told = _STYLED.sub(r"\1 ", text, count=1).strip() if text.startswith("\\text") else text
        prefix = _PREFIX.match(told)
        if prefix is not None and prefix.end() < len(told):
            text = _unwrapped(told[prefix.end() :])
        elif (label := _LABEL.match(text)) is not None and not _NO_UNITS & set(
            label[0].partition("(")[0].lower().split()
        ):
            text = _unwrapped(text[label.end() :])
    text = _without_dollars(_priced(text.removeprefix("=").strip()))
    if "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text:
        return Unreadable("has more than one formula")
    depth = _depth(text)
    if depth is None:
        return Unreadable("has brackets that do not match")
    if depth > MAX_DEPTH:
        return Unreadable(f"is nested {depth} deep; at most {MAX_DEPTH} levels are read")
    text = _NAMED.sub(lambda name: "\\pi " if name[1] else "\\infty ", text).strip()
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", _SCIENTIFIC.sub(_written_out, ungrouped(text)))
    if len(text) > MAX_CHARACTERS:
        return Unreadable(f"has numbers of over {MAX_CHARACTERS} digits")
    return text


def _priced(text: str) -> str:
    r"""Return an amount of money with the currency as a unit: "5 dollars" of `\$5`."""
    found = _MONEY.fullmatch(text)
    if found is None or (found["before"] is None) == (found["after"] is None):
        return text
    currency = _CURRENCIES[(found["before"] or found["after"])[-1]]
    return f"{found['head'] or ''}{found['sign']}{ungrouped(found['amount'])} {currency} {found['rest']}".strip()


def _without_dollars(text: str) -> str:
    """Return a text with one formula in delimiters, or with a list of them, without them: "18 cm" of "$18$ cm"."""
    for opening, closing in ((r"\$", r"\$"), (r"\\\(", r"\\\)"), (r"\\\[", r"\\\]")):
        outside = re.split(f"{opening}(.*?){closing}", text)
        inside = outside[1::2]
        if len(inside) == 1 or (inside and all(map(_LISTED.fullmatch, outside[::2]))):
            return "".join(outside).strip()
    return text


def _unwrapped(text: str) -> str:
    for _ in range(4):
        text = text.removesuffix(".").rstrip()
        if text[:1] + text[-1:] == "{}" and _depth(text[1:-1]) is not None:
            text = text[1:-1].strip()
        for opening, closing in _WRAPPERS:
            if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                inner = text[len(opening) : -len(closing)].strip()
                if _depth(inner) is not None and opening.rstrip("{") not in inner:
                    text = inner
                    break
        else:
            break
    return text


def ungrouped(text: str) -> str:
    """Return a text that is one number, or an equation with one, without the marks between its thousands."""
    match = _WHOLE_GROUPED.fullmatch(text)
    return text if match is None else match["head"] + re.sub(r"\D", "", match["number"]) + match["tail"]


def _written_out(match: re.Match[str]) -> str:
    """Return 1.5e-3 as 0.0015."""
    if abs(int(match[2])) > _MAX_EXPONENT:
        return match[0]
    return format(Decimal(match[0]), "f")


def _depth(text: str) -> int | None:
    """Return how deep a text is nested, or None if its braces do not match. `[0,1)` is fine."""
    braces = depth = deepest = 0
    for character in text:
        if character in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "})]":
            depth -= 1
        if character == "{":
            braces += 1
        elif character == "}":
            braces -= 1
            if braces < 0:
                return None
    return None if braces else deepest


# ----------------------------------------------------------------------------------------------------------------------
# Words
# ----------------------------------------------------------------------------------------------------------------------


def has_dots(text: str) -> bool:
    r"""Return whether a text is left unfinished: `47\ldots`, "0.33..."."""
    return _DOTS.search(text) is not None


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FUNCTIONS = _words(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan asin acos atan log ln lg exp sqrt cbrt abs floor "
    "ceil min max gcd lcm mod det frac binom"
)
_CONNECTIVES = frozenset({"or", "and"})
_LINKS = frozenset({"to", "not", "but", "vs", "if", "or", "and", "so", "is", "no", "nor", "of", "ish"})
_LETTERS = re.compile(r"[^\W\d_]+")
_NAMES = re.compile(r"\\(?:begin|end|operatorname|mathcal|mathbb|mathbf|mathrm|color)\s*\*?\s*\{[^{}]*\}")
_WORD_GAP = re.compile(r"\s*[,;]\s*(?:and\s+)?|\s+and\s+")
_NUMBERED = re.compile(r"[^\W\d_]{3,} (?:[^\W_]+[ :.])*[^\W_]*\d[^\W_]*(?: [^\W_]+)*|\d{1,2}(?::\d\d)? [ap]m")
_HALF_OF_DAY = re.compile(r"(?<=\d)\s*([ap])\.?\s?m\b")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_PROSE_LETTERS = 4
"""Number of adjacent letters from which they are a word, like "wrong", and not a product, like "abc"."""


def words_of(text: str) -> str | None:
    r"""Return a text that is only words, in lower case and without `\text{}`; None for a formula.

    Words have letters, white space and punctuation, and not only single letters or names of functions.
    """
    plain = _STYLED.sub(r" \1 ", text).strip(" .,;:!?")
    if any(not (c.isalpha() or c.isspace() or c in ".,;:'!?\u2019\"") for c in plain):
        return None
    runs = [run.casefold() for run in _LETTERS.findall(plain)]
    if any(run in _FUNCTIONS for run in runs) or all(len(run) < 2 or run in _CONNECTIVES for run in runs):
        return None
    return " ".join(plain.casefold().split())


def listed_words(text: str) -> list[str] | None:
    r"""Return the parts of a list of words or letters, in lower case: "a" and "c" of `\text{A and C}`."""
    plain = " ".join(_STYLED.sub(r" \1 ", text).casefold().split()).strip(" .!")
    parts = [part.strip() for part in _WORD_GAP.split(plain)]
    return parts if len(parts) > 1 and all(map(str.isalpha, parts)) else None


def numbered_words(text: str) -> str | None:
    r"""Return a text that begins with a word and has numbers in lower case: "june 20" of `\text{June }20th`."""
    plain = " ".join(_STYLED.sub(r" \1 ", text).replace(",", " ").casefold().split()).strip(" .!")
    plain = _HALF_OF_DAY.sub(r" \1m", _ORDINAL.sub("", plain))
    return plain if _NUMBERED.fullmatch(plain) and plain.split()[0] not in _FUNCTIONS else None


def has_letters(text: str) -> bool:
    """Return whether a formula has letters besides its commands."""
    return any(map(str.isalpha, _COMMAND.sub("", text)))


def prose_in(text: str) -> str | None:
    """Return the longest word in a formula that is neither a product of letters nor a function, or None."""
    plain = _COMMAND.sub(" ", _STYLED.sub(r" \1 ", _NAMES.sub(" ", text)))
    found = []
    for run in _LETTERS.findall(plain):
        is_word = len(run) >= _PROSE_LETTERS and not run.isupper()  # ABCD is a figure
        if (is_word and run.casefold() not in _FUNCTIONS) or run.casefold() in _LINKS:
            found.append(str(run))
    return max(found, key=len, default=None)


# ----------------------------------------------------------------------------------------------------------------------
# Units
# ----------------------------------------------------------------------------------------------------------------------

_SYMBOLS = _words(
    "m g s h l L A V W N J K C F cm km mm dm nm kg mg ml mL dl dL cl cL ft in yd mi lb lbs oz hr hrs min ms sec Hz kHz "
    "MHz GHz Pa kPa eV kJ kW MW mW kN kWh mph kph kmh kmph rad deg gm cc am pm yr yrs usd USD eur EUR mol "
    "um old red day cup men man car dog cat cow hen pig egg box bag pen toy way set ton row die"
)
_ALIASES = {
    **dict.fromkeys(("meter", "metre", "mtr"), "m"),
    **dict.fromkeys(("kilometer", "kilometre"), "km"),
    **dict.fromkeys(("centimeter", "centimetre"), "cm"),
    **dict.fromkeys(("millimeter", "millimetre"), "mm"),
    **dict.fromkeys(("gram", "gramme", "gm"), "g"),
    **dict.fromkeys(("kilogram", "kilo"), "kg"),
    **dict.fromkeys(("milligram",), "mg"),
    **dict.fromkeys(("second", "sec"), "s"),
    **dict.fromkeys(("minute",), "min"),
    **dict.fromkeys(("hour", "hr"), "h"),
    **dict.fromkeys(("year", "yr"), "year"),
    **dict.fromkeys(("liter", "litre", "l"), "l"),
    **dict.fromkeys(("milliliter", "millilitre", "ml"), "ml"),
    **dict.fromkeys(("inch", "inche"), "in"),
    **dict.fromkeys(("foot", "feet"), "ft"),
    **dict.fromkeys(("yard",), "yd"),
    **dict.fromkeys(("mile",), "mi"),
    **dict.fromkeys(("ounce",), "oz"),
    **dict.fromkeys(("pound", "lb"), "lb"),
    **dict.fromkeys(("degree", "deg"), "deg"),
    **dict.fromkeys(("radian", "rad"), "rad"),
    **dict.fromkeys(("dollar", "usd"), "dollar"),
    **dict.fromkeys(("euro", "eur"), "euro"),
    **dict.fromkeys(("percent", "percentage"), "%"),
    "mph": "mi/h",
    **dict.fromkeys(("kph", "kmh", "kmph"), "km/h"),
}
_NO_UNITS = _words(
    "or and not maybe perhaps probably wait is isn isnt wrong right but then to than plus minus times mod over divided "
    "by if else otherwise true false less more least most about approximately roughly one two three four five six "
    "seven eight nine ten eleven twelve hundred thousand million billion trillion dozen half third quarter the answer "
    "no yes nor score gross lakh crore tenths hundredths thousandths halves thirds "
    "fourths fifths eighths approx squared cubed factorial choose where for all"
)
_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}
_UNIT_PART = re.compile(r"([^\W\d_]+)\.?(?:\s*\^\s*(?:\{\s*(-?\d)\s*\}|(-?\d)))?")
_UNIT_GAP = re.compile(r"\s*(?:([/*])|\\cdot(?![A-Za-z]))\s*|\s+")
_UNIT_QUOTIENT = re.compile(r"\\frac\s*\{\s*([A-Za-z]+)\s*\}\s*\{\s*([A-Za-z]+)(?:\s*\^\s*\{?\s*(\d)\s*\}?)?\s*\}")
_DEGREES = re.compile(r"\s*\^\s*\\circ\s*(?:([CF])|\\(?:text|mathrm)\s*\{\s*([CF])\s*\})?\s*\Z")
_PERCENT = re.compile(r"\s*\\?%\s*\Z")


def take_off_unit(text: str) -> tuple[str, str]:
    r"""Return (text without its unit, unit) of a number with a unit behind it; without one, (text, "").

    The unit is written in one way: "cm^2" for "square centimeters", "%" for `\%` and "percent".
    """
    for pattern, unit in ((_PERCENT, "%"), (_DEGREES, "deg")):
        match = pattern.search(text)
        if match is not None and _is_amount(text[: match.start()].rpartition("=")[2]):
            return text[: match.start()], unit + "".join(filter(None, match.groups()))
    plain = _UNIT_QUOTIENT.sub(_unit_quotient, _STYLED.sub(r" \1", text))
    head, equals, last = plain.rpartition("=")
    start = next((match.start() for match in re.finditer(r"\\?[^\W\d_]+", last) if match[0][0] != "\\"), None)
    if start is None or not _is_amount(last[:start]):
        return text, ""
    is_glued = last[start - 1] in "0123456789)}"
    unit = _unit(last[start:].strip(), is_glued)
    value = last[:start].rstrip()
    return (head + equals + value, unit) if unit else (text, "")


def _unit_quotient(match: re.Match[str]) -> str:
    return f" {match[1]}/{match[2]}{'^' + match[3] if match[3] else ''}"


def _is_amount(value: str) -> bool:
    """Return whether a text looks like a number."""
    value = value.rstrip()
    plain = _COMMAND.sub("", value)
    if any(map(str.isalpha, plain)) or any(character in plain for character in "<>;|"):
        return False
    return value.endswith("\\pi") or (any(map(str.isdigit, plain)) and value[-1] in "0123456789)}")


def _unit(text: str, is_glued: bool) -> str:
    """Return a unit in canonical form, or "" for anything else."""
    parts: list[str] = []
    position, separator, power, n_words = 0, "", "", 0
    while position < len(text):
        match = _UNIT_PART.match(text, position)
        if match is None:
            return ""
        word, exponent = match[1], match[2] or match[3]
        n_words += 1
        position = match.end()
        lower = word.casefold()
        if lower == "per" and parts:
            separator = "/"
        elif lower in ("squared", "cubed") and parts:
            parts[-1] += _POWERS[lower]
        elif lower in ("square", "sq", "cubic", "cu") and position < len(text):
            power = _POWERS[lower]
        elif not _is_unit(word, is_glued and n_words == 1):
            return ""
        else:
            parts.append(f"{separator}{_canonical(word)}{f'^{exponent}' if exponent else power}")
            separator = power = ""
        if position < len(text):
            gap = _UNIT_GAP.match(text, position)
            if gap is None:
                return ""
            position = gap.end()
            separator = gap[1] if gap[1] == "/" else separator or (" " if parts else "")
    return "".join(parts) if n_words <= _MAX_UNIT_WORDS + 1 and not separator.strip() else ""


def _is_unit(word: str, is_glued: bool) -> bool:
    lower = word.casefold()
    if lower in _NO_UNITS or lower in _FUNCTIONS - {"min", "sec"}:
        return False
    if word in _SYMBOLS or (len(word) > 1 and (lower in _SYMBOLS or lower.rstrip("s") in _ALIASES)):
        return True
    return len(word) >= _PROSE_LETTERS and not is_glued and not lower.endswith("ly")  # "42 hopefully"


def _canonical(word: str) -> str:
    lower = word.casefold()
    singular = lower[:-1] if (len(lower) > 3 and lower.endswith("s")) or lower in ("lbs", "hrs", "yrs") else lower
    known = _ALIASES.get(lower) or _ALIASES.get(singular)
    if known is not None:
        return known
    if word in _SYMBOLS:
        return word
    return lower if lower in _SYMBOLS else singular
