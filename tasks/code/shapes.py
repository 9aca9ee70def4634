"""The shapes of small functions on lists of whole numbers: their lines, and what they do in words."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SHAPES", "TWINS", "Shape"]


class Shape(NamedTuple):
    """A kind of function."""

    words: str
    lines: str
    """Of its body, with `{xs}` for the list."""
    is_simple: bool = False
    twin: tuple[str, str, str] | None = None
    """The words of another shape, which has the second text in its lines in the place of the first: another variable
    or another range. Nothing in a description names these, so that each is a mistake for the other."""


SHAPES: dict[str, Shape] = {
    "total": Shape(
        "Begin a total at [s]. For each number that [C], [A] [V]. Return the total.",
        """\
{1} = [s]
for {2} in {xs}:
    if [C {2}]:
        {1} [A] [V {2}]
return {1}""",
        True,
        twin=(
            "Begin a total at [s]. For each number, if the total so far [C], [A] [V]. Return the total.",
            "[C {2}]",
            "[C {1}]",
        ),
    ),
    "signed": Shape(
        "Begin a total at [s]. For each number that [C], [A] [V]; for each other number, [B] the number itself. Return "
        "the total.",
        """\
{1} = [s]
for {2} in {xs}:
    if [C {2}]:
        {1} [A] [V {2}]
    else:
        {1} [B] {2}
return {1}""",
        twin=(
            "Begin a total at [s]. For each number, if the total so far [C], [A] [V], else [B] the number "
            "itself. Return the total.",
            "[C {2}]",
            "[C {1}]",
        ),
    ),
    "places": Shape(
        "Count every number that [C]. The count begins at [s], and at the place [p] (the first is 0).",
        """\
{1} = [s]
for {2} in range([p], len({xs})):
    if [C {xs}[{2}]]:
        {1} += 1
return {1}""",
        True,
        twin=(
            "Count every number but the last that [C]. The count begins at [s], and at the place [p] (the first is 0).",
            "len({xs}))",
            "len({xs}) - 1)",
        ),
    ),
    "extreme": Shape(
        "For each number that [C], take [V]. Return the [O] value taken, or [d] if no number does.",
        """\
{1} = None
for {2} in {xs}:
    if [C {2}]:
        {3} = [V {2}]
        if {1} is None or {3} [O] {1}:
            {1} = {3}
if {1} is None:
    return [d]
return {1}""",
        True,
    ),
    "run": Shape(
        "Find the length of the longest run of neighbours where each one [C]. If it is below [n], return [d], else "
        "return the length.",
        """\
{1} = 0
{2} = 0
for {3} in {xs}:
    if [C {3}]:
        {2} += 1
        {1} = max({1}, {2})
    else:
        {2} = 0
if {1} < [n]:
    return [d]
return {1}""",
        twin=(
            "Find the length of the longest run of neighbours where each one [C]. If it is below [n], return "
            "[d], else return the length of the run with which the list ends (0 if its last number is in none).",
            "return {1}",
            "return {2}",
        ),
    ),
    "place": Shape(
        "Count, from the left, every number that [C]. Return the place (the first is 0) at which the count reaches "
        "[n], or [d] if it never does.",
        """\
{1} = 0
for {2} in range(len({xs})):
    if [C {xs}[{2}]]:
        {1} += 1
        if {1} == [n]:
            return {2}
return [d]""",
        True,
        twin=(
            "Count, from the left, every number that [C]. Return the number at which the count reaches [n], or "
            "[d] if it never does.",
            "return {2}",
            "return {xs}[{2}]",
        ),
    ),
    "pairs": Shape(
        "Pair each number that [C] with every later number. Count the pairs in which the first [P] the second is [R] "
        "[k].",
        """\
{1} = 0
for {2} in range(len({xs})):
    if [C {xs}[{2}]]:
        for {3} in range({2} + 1, len({xs})):
            if {xs}[{2}] [P] {xs}[{3}] [R] [k]:
                {1} += 1
return {1}""",
        twin=(
            "Pair each number that [C] with itself and with every later number. Count the pairs in which the "
            "first [P] the second is [R] [k].",
            "range({2} + 1, len({xs}))",
            "range({2}, len({xs}))",
        ),
    ),
    "tank": Shape(
        "A level begins at [s]. For each number, [A] [V]; then a level above [k] becomes [k], and one below [d] "
        "becomes [d]. Return the level.",
        """\
{1} = [s]
for {2} in {xs}:
    {1} [A] [V {2}]
    {1} = min({1}, [k])
    {1} = max({1}, [d])
return {1}""",
    ),
    "crossing": Shape(
        "A total begins at [s]. For each number, [A] [V]. Return the place (the first is 0) of the number after which "
        "the total is [R] [k] for the first time, or [d] if it never is.",
        """\
{1} = [s]
for {2} in range(len({xs})):
    {1} [A] [V {xs}[{2}]]
    if {1} [R] [k]:
        return {2}
return [d]""",
        twin=(
            "A total begins at [s]. For each number, [A] [V]. Return the total when it is [R] [k] for the first "
            "time, or [d] if it never is.",
            "return {2}",
            "return {1}",
        ),
    ),
    "jumps": Shape(
        "Count the numbers for which the number [P] the one before it is [R] [k]. The count begins at [s].",
        """\
{1} = [s]
for {2} in range(1, len({xs})):
    if {xs}[{2}] [P] {xs}[{2} - 1] [R] [k]:
        {1} += 1
return {1}""",
        True,
        twin=(
            "Count the numbers, the last one left out, for which the number [P] the one before it is [R] [k]. "
            "The count begins at [s].",
            "len({xs}))",
            "len({xs}) - 1)",
        ),
    ),
    "chosen": Shape(
        "For each number that [C], take [V]. Return the list of the values taken, each once, without those that are "
        "[R] [k].",
        """\
{1} = []
for {2} in {xs}:
    if [C {2}]:
        {3} = [V {2}]
        if not ({3} [R] [k] or {3} in {1}):
            {1}.append({3})
return {1}""",
        twin=(
            "For each number that [C], take [V]. Return the list of the values taken, each once, without those "
            "of numbers that are [R] [k].",
            "{3} [R] [k]",
            "{2} [R] [k]",
        ),
    ),
    "windows": Shape(
        "Add up every [n] neighbouring numbers. Return the [O] sum that [C]; if no sum does, return [d].",
        """\
{1} = None
for {2} in range(len({xs}) - [n] + 1):
    {3} = sum({xs}[{2}:{2} + [n]])
    if [C {3}]:
        if {1} is None or {3} [O] {1}:
            {1} = {3}
if {1} is None:
    return [d]
return {1}""",
        twin=(
            "Add up every [n] neighbouring numbers, the last number of the list left out. Return the [O] sum "
            "that [C]; if no sum does, return [d].",
            "- [n] + 1)",
            "- [n])",
        ),
    ),
    "blocks": Shape(
        "Cut the list into blocks of [n] numbers; the last may be shorter. A block's total begins at [s]; for each of "
        "its numbers, [A] [V]. Return the list of the totals.",
        """\
{1} = []
for {2} in range(0, len({xs}), [n]):
    {3} = [s]
    for {4} in {xs}[{2}:{2} + [n]]:
        {3} [A] [V {4}]
    {1}.append({3})
return {1}""",
    ),
    "records": Shape(
        "A record begins at [k]. Each number that is [R] the record becomes the record. Return how often a number that "
        "[C] became the record.",
        """\
{1} = 0
{2} = [k]
for {3} in {xs}:
    if {3} [R] {2}:
        {2} = {3}
        if [C {3}]:
            {1} += 1
return {1}""",
        twin=(
            "A record begins at [k]. Each number that is [R] the record becomes the record. Return how often a "
            "number became the record where the count so far [C].",
            "[C {3}]",
            "[C {1}]",
        ),
    ),
}

TWINS = {name: f"{name} else" for name, shape in SHAPES.items() if shape.twin is not None}
TWINS |= {twin: name for name, twin in TWINS.items()}
"""The twin of each shape that has one."""
for _name, _shape in tuple(SHAPES.items()):
    if _shape.twin is not None:
        _words, _old, _new = _shape.twin
        SHAPES[TWINS[_name]] = Shape(_words, _shape.lines.replace(_old, _new), _shape.is_simple)
