"""IFEval's 25 instructions: their arguments, how the default prompts ask for them, and which exclude each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, sample

__all__ = ["INSTRUCTIONS", "KEYWORDS", "LANGUAGES", "Instruction", "check_arguments", "excludes", "is_easily_followed"]

Arguments = dict[str, Any]
KEYWORDS = (
    *("harbour", "lantern", "meadow", "copper", "violin", "glacier", "orchard", "compass", "thunder", "marble"),
    *("falcon", "velvet", "canyon", "saddle", "pepper", "island", "ribbon", "cactus", "puzzle", "rocket"),
    *("walnut", "anchor", "blanket", "candle", "dragon", "engine", "feather", "garlic", "helmet", "kettle"),
)
"""Words to use or to avoid. None of them is in a text of `ifeval_writer.py`."""
LANGUAGES = {"de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "pt": "Portuguese", "fi": "Finnish"}
_RELATIONS = ("at least", "less than")
_RARE = "jqxz"
_ENDINGS = ("Any other questions?", "Is there anything else I can help with?", "That is all you need.")


class Instruction(NamedTuple):
    """One kind of instruction."""

    types: Mapping[str, type]
    """Its arguments."""
    say: str
    """The instruction in words, with the arguments in braces."""
    draw: Callable[[Random], Arguments]
    group: str
    """Instructions of one group exclude each other."""
    alone_but: tuple[str, ...] | None = None
    """The only instructions that may stand beside it; None for those of all other groups."""


def _relation(random: Random, least: tuple[int, int], less: tuple[int, int]) -> tuple[str, int]:
    relation = pick(random, _RELATIONS)
    return relation, between(random, *(least if relation == "at least" else less))


def _sentences(random: Random) -> Arguments:
    relation, n = _relation(random, (4, 15), (20, 30))
    return {"relation": relation, "num_sentences": n}


def _words(random: Random) -> Arguments:
    relation, n = _relation(random, (60, 300), (400, 500))
    return {"relation": relation, "num_words": n}


def _frequency(random: Random) -> Arguments:
    relation, n = _relation(random, (2, 4), (1, 3))
    return {"relation": relation, "keyword": pick(random, KEYWORDS[:10]), "frequency": n}


def _letter(random: Random) -> Arguments:
    relation, n = _relation(random, (3, 12), (4, 8))
    return {"let_relation": relation, "letter": pick(random, _RARE), "let_frequency": n}


def _capitals(random: Random) -> Arguments:
    relation, n = _relation(random, (2, 8), (6, 12))
    return {"capital_relation": relation, "capital_frequency": n}


def _nth_paragraph(random: Random) -> Arguments:
    n = between(random, 2, 5)
    word = pick(random, ("president", "summer", "weather", "maybe", "yesterday"))
    return {"num_paragraphs": n, "nth_paragraph": between(random, 1, n), "first_word": word}


def _number(name: str, low: int, high: int) -> Callable[[Random], Arguments]:
    return lambda random: {name: between(random, low, high)}


def _choice(name: str, *values: str) -> Callable[[Random], Arguments]:
    return lambda random: {name: pick(random, values)}


def _some(name: str, low: int, high: int) -> Callable[[Random], Arguments]:
    """Draw words that no other instruction uses."""
    return lambda random: {name: sorted(sample(random, KEYWORDS[low:high], between(random, 2, 3)))}


def _nothing(random: Random) -> Arguments:
    return {}


_SHORT = ("keywords:existence", "detectable_format:title", "punctuation:no_comma")
INSTRUCTIONS: Mapping[str, Instruction] = {
    "keywords:existence": Instruction(
        {"keywords": list}, "Include the keywords {keywords}.", _some("keywords", 10, 20), "existence"
    ),
    "keywords:frequency": Instruction(
        {"keyword": str, "frequency": int, "relation": str},
        "The word {keyword} should appear {relation} {frequency} times.",
        _frequency,
        "frequency",
    ),
    "keywords:forbidden_words": Instruction(
        {"forbidden_words": list},
        "Do not use the words {forbidden_words}.",
        _some("forbidden_words", 20, 30),
        "forbidden",
    ),
    "keywords:letter_frequency": Instruction(
        {"letter": str, "let_frequency": int, "let_relation": str},
        "The letter {letter} should appear {let_relation} {let_frequency} times.",
        _letter,
        "letter",
    ),
    "language:response_language": Instruction(
        {"language": str},
        "Your entire response should be in {language}; no other language is allowed.",
        _choice("language", *LANGUAGES),
        "language",
        ("punctuation:no_comma", "detectable_format:number_highlighted_sections", "startend:quotation"),
    ),
    "length_constraints:number_sentences": Instruction(
        {"num_sentences": int, "relation": str},
        "Your response should contain {relation} {num_sentences} sentences.",
        _sentences,
        "sentences",
    ),
    "length_constraints:number_paragraphs": Instruction(
        {"num_paragraphs": int},
        "There should be exactly {num_paragraphs} paragraphs, separated with the markdown divider: ***",
        _number("num_paragraphs", 2, 5),
        "paragraphs",
    ),
    "length_constraints:number_words": Instruction(
        {"num_words": int, "relation": str}, "Answer with {relation} {num_words} words.", _words, "words"
    ),
    "length_constraints:nth_paragraph_first_word": Instruction(
        {"num_paragraphs": int, "nth_paragraph": int, "first_word": str},
        "There should be {num_paragraphs} paragraphs, separated by two line breaks and by nothing else. "
        "Paragraph {nth_paragraph} must start with the word {first_word}.",
        _nth_paragraph,
        "paragraphs",
    ),
    "detectable_content:number_placeholders": Instruction(
        {"num_placeholders": int},
        "The response must contain at least {num_placeholders} placeholders in square brackets, such as [address].",
        _number("num_placeholders", 1, 5),
        "placeholders",
    ),
    "detectable_content:postscript": Instruction(
        {"postscript_marker": str},
        "At the end, add a postscript that starts with {postscript_marker}",
        _choice("postscript_marker", "P.S.", "P.P.S"),
        "postscript",
    ),
    "detectable_format:number_bullet_lists": Instruction(
        {"num_bullets": int},
        "Your answer must contain exactly {num_bullets} bullet points in markdown, such as: * This is a point.",
        _number("num_bullets", 1, 6),
        "bullets",
    ),
    "detectable_format:constrained_response": Instruction(
        {},
        "Answer with one of these: " + ", ".join(f'"My answer is {word}."' for word in ("yes", "no", "maybe")),
        _nothing,
        "constrained",
        (),
    ),
    "detectable_format:number_highlighted_sections": Instruction(
        {"num_highlights": int},
        "Highlight at least {num_highlights} sections of your answer with markdown, such as *highlighted section*.",
        _number("num_highlights", 1, 5),
        "highlights",
    ),
    "detectable_format:multiple_sections": Instruction(
        {"section_spliter": str, "num_sections": int},
        "Your response must have {num_sections} sections. Mark the beginning of each with {section_spliter} and its "
        "number, such as: {section_spliter} 1",
        lambda random: {"section_spliter": pick(random, ("Section", "SECTION")), "num_sections": between(random, 2, 5)},
        "sections",
    ),
    "detectable_format:json_format": Instruction(
        {},
        "Wrap the entire output in JSON. Markdown ticks such as ``` may be around it.",
        _nothing,
        "json",
        ("keywords:existence", "keywords:forbidden_words"),
    ),
    "detectable_format:title": Instruction(
        {}, "Give it a title in double angular brackets, such as <<poem of joy>>.", _nothing, "title"
    ),
    "combination:two_responses": Instruction(
        {},
        "Give two different responses. Separate them by six asterisks: ******, and use these nowhere else.",
        _nothing,
        "two",
        ("keywords:forbidden_words", *_SHORT),
    ),
    "combination:repeat_prompt": Instruction(
        {"prompt_to_repeat": str},
        "First repeat this request word for word, without change; then answer it. The request to repeat is: "
        "{prompt_to_repeat}",
        lambda random: {
            "prompt_to_repeat": f"Write about the {pick(random, KEYWORDS)} and the {pick(random, KEYWORDS)}."
        },
        "repeat",
        _SHORT,
    ),
    "startend:end_checker": Instruction(
        {"end_phrase": str},
        "Finish your response with this exact phrase, and nothing after it: {end_phrase}",
        _choice("end_phrase", *_ENDINGS),
        "end",
    ),
    "startend:quotation": Instruction(
        {}, "Wrap your entire response in double quotation marks.", _nothing, "quotation"
    ),
    "change_case:capital_word_frequency": Instruction(
        {"capital_frequency": int, "capital_relation": str},
        "Words with all capital letters should appear {capital_relation} {capital_frequency} times.",
        _capitals,
        "case",
    ),
    "change_case:english_capital": Instruction(
        {}, "Your entire response should be in English, and in all capital letters.", _nothing, "case"
    ),
    "change_case:english_lowercase": Instruction(
        {}, "Your entire response should be in English, and in all lowercase letters.", _nothing, "case"
    ),
    "punctuation:no_comma": Instruction({}, "Do not use any commas.", _nothing, "comma"),
}
"""The instructions by their names in the data."""


def excludes(first: str, second: str) -> bool:
    """Return whether two instructions cannot stand beside each other."""
    one, other = INSTRUCTIONS[first], INSTRUCTIONS[second]
    if one.group == other.group or {first, second} in _CLASHES:
        return True
    return any(
        each.alone_but is not None and name not in each.alone_but for each, name in ((one, second), (other, first))
    )


def is_easily_followed(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether almost any short text follows an instruction."""
    return name in ("punctuation:no_comma", "keywords:forbidden_words") or "less than" in kwargs.values()


_CLASHES = [
    {"startend:quotation", "detectable_format:title"},
    {"startend:quotation", "combination:repeat_prompt"},
    {"detectable_format:multiple_sections", "change_case:english_capital"},
    {"detectable_format:multiple_sections", "change_case:english_lowercase"},
    {"detectable_format:multiple_sections", "change_case:capital_word_frequency"},
    {"detectable_format:multiple_sections", "length_constraints:nth_paragraph_first_word"},
]


def check_arguments(name: Any, kwargs: Any) -> Arguments:
    """Return an instruction's arguments without the empty ones that the hub's version of the data has.

    Raises:
        InvalidActionError: If the instruction is unknown, or an argument is missing or wrong.
    """
    known = INSTRUCTIONS.get(name) if isinstance(name, str) else None
    if known is None:
        raise InvalidActionError(f"the instruction {name!r:.80} is unknown; known are {', '.join(INSTRUCTIONS)}")
    given = {key: value for key, value in (kwargs or {}).items() if value is not None}
    for key, expected in known.types.items():
        value = given.get(key)
        if type(value) is float and expected is int and value.is_integer():
            value = given[key] = int(value)
        if type(value) is not expected:
            raise InvalidActionError(f"{name} has {key}={value!r:.80}; it must be of type {expected.__name__}")
        if key.endswith("relation") and value not in _RELATIONS:
            raise InvalidActionError(f"{name} has {key}={value!r:.80}; known are {', '.join(_RELATIONS)}")
    if unknown := given.keys() - known.types.keys():
        raise InvalidActionError(f"{name} has the unknown arguments {sorted(unknown)}")
    if name == "keywords:letter_frequency" and len(given["letter"]) != 1:
        raise InvalidActionError(f"{name} has letter={given['letter']!r:.80}; it must be one character")
    if any(not isinstance(word, str) for key in ("keywords", "forbidden_words") for word in given.get(key, ())):
        raise InvalidActionError(f"{name} has {given!r:.80}; words must be texts")
    return given
