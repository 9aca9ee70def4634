"""Short functions that are right, each with lines that would be wrong in their place: what is planted as a mistake.

In a source `{0}`, `{1}`, ... stand for the names of variables. A mistake is (line, from 1; what stands there instead):
it differs from the right line in at most `MOST_CHANGES` words, numbers and signs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["NAMES", "PROGRAMS", "Program"]


class Program(NamedTuple):
    """A function called `f`, and how it can be wrong."""

    purpose: str
    """What it should return."""
    source: str
    mistakes: tuple[tuple[int, str], ...]
    inputs: tuple[tuple[Any, ...], ...]
    """Arguments to test it with: some of them show each mistake."""


NAMES = ("value", "item", "left", "right", "total", "count", "best", "size", "place", "rest", "first", "last", "found")

PROGRAMS: dict[str, Program] = {
    "largest": Program(
        "the largest number of a list that is not empty",
        """\
def f({0}):
    {1} = {0}[0]
    for {2} in {0}:
        if {2} > {1}:
            {1} = {2}
    return {1}""",
        (
            (2, "    {1} = 0"),
            (4, "        if {2} < {1}:"),
            (4, "        if {1} > {2}:"),
            (4, "        if {2} != {1}:"),
            (5, "            {2} = {1}"),
        ),
        (([3, 9, 2],), ([-5, -2, -8],), ([4],), ([1, 2, 3],), ([7, 7],), ([5, 1, 1],)),
    ),
    "prime": Program(
        "whether a whole number is prime",
        """\
def f({0}):
    if {0} < 2:
        return False
    {1} = 2
    while {1} * {1} <= {0}:
        if {0} % {1} == 0:
            return False
        {1} += 1
    return True""",
        (
            (2, "    if {0} < 1:"),
            (4, "    {1} = 1"),
            (5, "    while {1} * {1} < {0}:"),
            (6, "        if {0} // {1} == 0:"),
            (7, "            return True"),
            (8, "        {1} += 2"),
        ),
        ((0,), (1,), (2,), (3,), (4,), (9,), (15,), (17,), (25,), (49,), (97,), (16,)),
    ),
    "digits": Program(
        "the sum of the digits of a whole number of at least 0",
        """\
def f({0}):
    {1} = 0
    while {0} > 0:
        {1} += {0} % 10
        {0} //= 10
    return {1}""",
        (
            (2, "    {1} = 1"),
            (3, "    while {0} > 9:"),
            (4, "        {1} += {0} % 9"),
            (4, "        {1} = {0} % 10"),
            (5, "        {0} //= 100"),
        ),
        ((0,), (7,), (10,), (99,), (4071,), (123456,)),
    ),
    "palindrome": Program(
        "whether a text reads the same backwards",
        """\
def f({0}):
    {1} = 0
    {2} = len({0}) - 1
    while {1} < {2}:
        if {0}[{1}] != {0}[{2}]:
            return False
        {1} += 1
        {2} -= 1
    return True""",
        (
            (2, "    {1} = 1"),
            (3, "    {2} = len({0}) - 2"),
            (5, "        if {0}[{1}] == {0}[{2}]:"),
            (6, "            return True"),
            (8, "        {2} -= 2"),
            (9, "    return False"),
        ),
        (("",), ("a",), ("ab",), ("aba",), ("abba",), ("abca",), ("abcdcba",), ("aab",), ("xaax",), ("abcdba",)),
    ),
    "gcd": Program(
        "the greatest common divisor of two whole numbers above 0",
        """\
def f({0}, {1}):
    while {1} != 0:
        {2} = {0} % {1}
        {0} = {1}
        {1} = {2}
    return {0}""",
        (
            (2, "    while {1} > 1:"),
            (3, "        {2} = {0} // {1}"),
            (4, "        {0} = {2}"),
            (6, "    return {1}"),
            (3, "        {2} = {1} % {0}"),
        ),
        ((12, 18), (7, 3), (5, 5), (100, 10), (9, 28), (48, 36)),
    ),
    "search": Program(
        "the place of a number in a sorted list, or -1 where it is not",
        """\
def f({0}, {1}):
    {2} = 0
    {3} = len({0}) - 1
    while {2} <= {3}:
        {4} = ({2} + {3}) // 2
        if {0}[{4}] == {1}:
            return {4}
        if {0}[{4}] < {1}:
            {2} = {4} + 1
        else:
            {3} = {4} - 1
    return -1""",
        (
            (2, "    {2} = 1"),
            (3, "    {3} = len({0}) - 2"),
            (4, "    while {2} < {3}:"),
            (8, "        if {0}[{4}] > {1}:"),
            (11, "            {3} = {4} - 2"),
            (12, "    return {2}"),
        ),
        (([1, 3, 5, 7], 1), ([1, 3, 5, 7], 7), ([1, 3, 5, 7], 4), ([], 2), ([2], 2), ([1, 2, 3, 4, 9], 4), ([1, 3], 3)),
    ),
    "vowels": Program(
        "how many vowels (a, e, i, o, u, small or capital) a text has",
        """\
def f({0}):
    {1} = 0
    for {2} in {0}.lower():
        if {2} in "aeiou":
            {1} += 1
    return {1}""",
        (
            (3, "    for {2} in {0}.upper():"),
            (4, '        if {2} not in "aeiou":'),
            (4, '        if {2} in "aeio":'),
            (5, "            {1} = 1"),
            (5, "            {1} -= 1"),
            (6, "    return {1} - 1"),
        ),
        (("",), ("Under",), ("xyz",), ("Education",), ("queue",), ("AEIOU b",)),
    ),
    "runs": Program(
        "a text with every run of equal letters replaced by the letter and the run's length (aab gives a2b1)",
        """\
def f({0}):
    {1} = ""
    {2} = 0
    while {2} < len({0}):
        {3} = {2}
        while {3} < len({0}) and {0}[{3}] == {0}[{2}]:
            {3} += 1
        {1} += {0}[{2}] + str({3} - {2})
        {2} = {3}
    return {1}""",
        (
            (3, "    {2} = 1"),
            (4, "    while {2} < len({0}) - 1:"),
            (7, "            {3} += 2"),
            (8, "        {1} += {0}[{2}] + str({3} - {2} + 1)"),
            (8, "        {1} += {0}[{2}] + str({3})"),
            (8, "        {1} = {0}[{2}] + str({3} - {2})"),
        ),
        (("",), ("a",), ("aab",), ("aabbbc",), ("abcd",), ("zzzz",), ("aba",)),
    ),
    "fibonacci": Program(
        "the n-th Fibonacci number, where number 0 is 0 and number 1 is 1",
        """\
def f({0}):
    {1} = 0
    {2} = 1
    for _ in range({0}):
        {1}, {2} = {2}, {1} + {2}
    return {1}""",
        (
            (2, "    {1} = 1"),
            (3, "    {2} = 2"),
            (4, "    for _ in range({0} - 1):"),
            (5, "        {1}, {2} = {2}, {1} + {1}"),
            (6, "    return {2}"),
        ),
        ((0,), (1,), (2,), (3,), (7,), (12,)),
    ),
    "brackets": Program(
        "whether the brackets ( and ) of a text are balanced",
        """\
def f({0}):
    {1} = 0
    for {2} in {0}:
        if {2} == "(":
            {1} += 1
        elif {2} == ")":
            {1} -= 1
        if {1} < 0:
            return False
    return {1} == 0""",
        (
            (2, "    {1} = 1"),
            (4, '        if {2} == ")":'),
            (7, "            {1} += 1"),
            (8, "        if {1} < -1:"),
            (9, "            return True"),
            (10, "    return {1} >= 0"),
        ),
        (("",), ("()",), (")(",), ("(()",), ("(a(b)c)",), ("())(",), ("(",), ("())",)),
    ),
    "distinct": Program(
        "a list without repetitions: of equal items only the first",
        """\
def f({0}):
    {1} = []
    for {2} in {0}:
        if {2} not in {1}:
            {1}.append({2})
    return {1}""",
        (
            (2, "    {1} = [0]"),
            (4, "        if {2} in {1}:"),
            (4, "        if {2} not in {0}:"),
            (5, "            {1}.insert(0, {2})"),
            (6, "    return {0}"),
        ),
        (([],), ([1],), ([1, 1],), ([3, 1, 3, 2, 1],), ([2, 2, 2, 5],), ([1, 2, 1],)),
    ),
    "second": Program(
        "the second largest of at least two different numbers",
        """\
def f({0}):
    {1} = max({0}[0], {0}[1])
    {2} = min({0}[0], {0}[1])
    for {3} in {0}[2:]:
        if {3} > {1}:
            {1}, {2} = {3}, {1}
        elif {3} > {2}:
            {2} = {3}
    return {2}""",
        (
            (2, "    {1} = min({0}[0], {0}[1])"),
            (3, "    {2} = max({0}[0], {0}[1])"),
            (4, "    for {3} in {0}[3:]:"),
            (6, "            {1}, {2} = {3}, {2}"),
            (7, "        elif {3} < {2}:"),
            (9, "    return {1}"),
        ),
        (([1, 2],), ([2, 1],), ([5, 1, 9, 3],), ([-4, -9, -1],), ([1, 2, 3],), ([9, 5, 7, 8],), ([3, 2, 9],)),
    ),
    "transpose": Program(
        "a matrix (a list of rows of equal length, at least one) with rows and columns exchanged",
        """\
def f({0}):
    {1} = []
    for {2} in range(len({0}[0])):
        {3} = []
        for {4} in {0}:
            {3}.append({4}[{2}])
        {1}.append({3})
    return {1}""",
        (
            (3, "    for {2} in range(len({0})):"),
            (3, "    for {2} in range(1, len({0}[0])):"),
            (6, "            {3}.append({4}[0])"),
            (6, "            {3}.append({4}[-{2}])"),
            (7, "        {1}.insert(0, {3})"),
            (4, "        {3} = [{2}]"),
        ),
        (([[1, 2], [3, 4]],), ([[1, 2, 3]],), ([[1], [2], [3]],), ([[1, 2, 3], [4, 5, 6]],), ([[7]],)),
    ),
    "caesar": Program(
        "a text of small letters with every letter moved on in the alphabet by a number (z is followed by a)",
        """\
def f({0}, {1}):
    {2} = ""
    for {3} in {0}:
        {4} = (ord({3}) - ord("a") + {1}) % 26
        {2} += chr({4} + ord("a"))
    return {2}""",
        (
            (4, '        {4} = (ord({3}) - ord("a") - {1}) % 26'),
            (4, '        {4} = (ord({3}) - ord("a") + {1}) % 25'),
            (4, '        {4} = (ord({3}) + ord("a") + {1}) % 26'),
            (5, '        {2} = chr({4} + ord("a"))'),
            (5, '        {2} = chr({4} + ord("a")) + {2}'),
        ),
        (("abc", 1), ("xyz", 3), ("", 5), ("hello", 13), ("z", 26), ("az", 25)),
    ),
    "collatz": Program(
        "how many steps a number above 0 takes to 1, if even numbers are halved and others become 3n + 1",
        """\
def f({0}):
    {1} = 0
    while {0} != 1:
        if {0} % 2 == 0:
            {0} //= 2
        else:
            {0} = 3 * {0} + 1
        {1} += 1
    return {1}""",
        (
            (2, "    {1} = 1"),
            (3, "    while {0} > 2:"),
            (8, "        {1} = 1"),
            (8, "        {1} += {0}"),
            (9, "    return {0}"),
        ),
        ((1,), (2,), (3,), (6,), (7,), (16,)),
    ),
    "merge": Program(
        "one sorted list of all numbers of two sorted lists",
        """\
def f({0}, {1}):
    {2} = []
    {3} = 0
    {4} = 0
    while {3} < len({0}) and {4} < len({1}):
        if {0}[{3}] <= {1}[{4}]:
            {2}.append({0}[{3}])
            {3} += 1
        else:
            {2}.append({1}[{4}])
            {4} += 1
    return {2} + {0}[{3}:] + {1}[{4}:]""",
        (
            (3, "    {3} = 1"),
            (5, "    while {3} < len({0}) - 1 and {4} < len({1}):"),
            (6, "        if {0}[{3}] >= {1}[{4}]:"),
            (7, "            {2}.append({1}[{4}])"),
            (12, "    return {2} + {0}[{3}:] + {1}[{3}:]"),
            (12, "    return {2} + {0}[{4}:] + {1}[{4}:]"),
        ),
        (([1, 4], [2, 3]), ([], [1]), ([5], []), ([1, 2, 9], [3]), ([2, 2], [2]), ([3], [1, 2, 8])),
    ),
}
