"""A writer of texts that follow IFEval's instructions and say little else: the oracle of `ifeval.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

__all__ = ["write"]

_PLAIN = (
    "The small garden behind the house is full of flowers in the summer.",
    "Most people like to walk along the river before the sun goes down.",
    "We often talk about the things that we want to do in the morning.",
    "There is a lot to learn from the old books that are on the table.",
    "My friend told me that the bread from this shop is very good.",
    "The children played in the street until it was time to eat.",
    "It is not hard to find a good place to sit and read.",
    "They came home late because the train did not stop at the station.",
    "You can see the mountains from the window of the little room.",
    "Nobody knows who made the first clock in our town.",
    "She bought some apples and a loaf of bread for the evening.",
    "When the rain had gone we went out to look at the sea.",
)
"""None has a comma, a rare letter, a word of `KEYWORDS`, or a word in capital letters."""
_FOREIGN = {
    "de": "Die Kinder spielen im Garten und die Mutter liest ein Buch. Am Abend gehen wir zusammen nach Hause.",
    "es": "Los niños juegan en el jardín y la madre lee un libro. Por la noche volvemos juntos a nuestra casa.",
    "fr": "Les enfants jouent dans le jardin et la mère lit un livre. Le soir nous rentrons ensemble à la maison.",
    "it": "I bambini giocano nel giardino e la madre legge un libro. La sera torniamo tutti insieme a casa nostra.",
    "pt": "As crianças brincam no jardim e a mãe lê um livro. À noite voltamos juntos para a nossa casa e não saímos.",
    "fi": "Lapset leikkivät puutarhassa ja äiti lukee kirjaa. Illalla menemme kaikki yhdessä kotiin ja syömme ruokaa.",
}
_WITH_LETTER = {"j": "jolly", "q": "quiet", "x": "box", "z": "lazy"}
_WORD = re.compile(r"\w+")


def write(names: Sequence[str], kwargs: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that follows the instructions, if they can be followed together.

    Args:
        names: The instructions. Of two of one kind ("at least 20", "less than 26") the one with "at least" counts.
        kwargs: The arguments of each.
    """
    pairs = sorted(zip(names, kwargs, strict=True), key=lambda pair: "at least" in pair[1].values())
    wanted = {name.partition(":")[2]: given for name, given in pairs}
    if "constrained_response" in wanted:
        return "My answer is yes."
    if "json_format" in wanted:
        return json.dumps({"text": " ".join([_PLAIN[0], *_required(wanted)])})
    if "two_responses" in wanted:
        title = "<<A title>>\n" if "title" in wanted else ""
        extra = " ".join(_required(wanted))
        return f"{title}{_PLAIN[0]} {extra}\n******\n{_PLAIN[1]}"
    text = "\n".join(_lines(wanted))
    if "english_capital" in wanted:
        text = text.upper()
    if "english_lowercase" in wanted:
        text = text.lower()
    return f'"{text}"' if "quotation" in wanted else text


def _lines(wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of the text, each in a line, paragraphs with their separators."""
    if "repeat_prompt" in wanted:
        yield wanted["repeat_prompt"]["prompt_to_repeat"]
    rest = [" ".join(_required(wanted)), *_formatted(wanted)]
    opening = _FOREIGN.get(wanted.get("response_language", {}).get("language"), f"{_PLAIN[0]} {_PLAIN[1]}")
    nth, divided = wanted.get("nth_paragraph_first_word"), wanted.get("number_paragraphs")
    n_paragraphs = (nth or divided or {"num_paragraphs": 1})["num_paragraphs"]
    starts = [opening, *_PLAIN[2 : n_paragraphs + 1]]
    if nth and nth["nth_paragraph"] <= n_paragraphs:
        starts[nth["nth_paragraph"] - 1] = f"{nth['first_word']} is how it begins. {starts[nth['nth_paragraph'] - 1]}"
    *first, last = starts
    last = "\n".join([last, *filter(None, rest)])
    before = (("\n\n" if nth else "\n***\n").join([*first, ""])) if first else ""
    ending = list(_ending(wanted))
    n_words, n_sentences = _wanted_length(wanted)
    has_few_sentences, filler = wanted.get("number_sentences", {}).get("relation") == "less than", cycle(_PLAIN)
    while len(_WORD.findall("\n".join([before, last, *ending]))) < n_words or n_sentences > 0:
        more, n_sentences = next(filler), n_sentences - 1
        last = f"{last.removesuffix('.')} and {more[0].lower()}{more[1:]}" if has_few_sentences else f"{last} {more}"
    yield f"{before}{last}"
    yield from ending


def _required(wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences with the words and letters that must occur."""
    words = list(wanted.get("existence", {}).get("keywords", ()))
    frequency = wanted.get("frequency")
    if frequency and frequency["relation"] == "at least":
        words += [frequency["keyword"]] * frequency["frequency"]
    capitals = wanted.get("capital_word_frequency")
    if capitals and capitals["capital_relation"] == "at least":
        words += ["GOOD"] * capitals["capital_frequency"]
    letter = wanted.get("letter_frequency")
    if letter and letter["let_relation"] == "at least":
        words += [_WITH_LETTER.get(letter["letter"].lower(), letter["letter"])] * letter["let_frequency"]
    if words:
        yield f"These are some of the words that we use here: {' and '.join(words)}."
    if placeholders := wanted.get("number_placeholders"):
        yield f"Write to {' or '.join(['[name]'] * placeholders['num_placeholders'])}."
    if highlights := wanted.get("number_highlighted_sections"):
        yield f"So {' '.join(['*la casa*'] * highlights['num_highlights'])}."


def _formatted(wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines with a form."""
    if "title" in wanted:
        yield "<<A title>>"
    if sections := wanted.get("multiple_sections"):
        yield from (f"{sections['section_spliter']} {i + 1}\n{_PLAIN[i % 12]}" for i in range(sections["num_sections"]))
    if bullets := wanted.get("number_bullet_lists"):
        yield from ["* This is a point"] * bullets["num_bullets"]


def _ending(wanted: Mapping[str, Any]) -> Iterator[str]:
    if postscript := wanted.get("postscript"):
        yield f"{postscript['postscript_marker']} This is the end."
    if end := wanted.get("end_checker"):
        yield end["end_phrase"]


def _wanted_length(wanted: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least number of words, and how many sentences to add."""
    words, sentences = wanted.get("number_words"), wanted.get("number_sentences")
    n_words = words["num_words"] if words and words["relation"] == "at least" else 0
    return n_words, sentences["num_sentences"] if sentences and sentences["relation"] == "at least" else 0
