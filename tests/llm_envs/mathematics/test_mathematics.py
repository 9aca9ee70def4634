"""Mathematical equality: right on mathematics, bounded and inert on everything else."""

import threading
import time

import pytest

pytest.importorskip("math_verify")

from llm_envs.errors import InvalidConfigError
from llm_envs.mathematics import MathChecker, compare_math, math_equal
from llm_envs.mathematics.decisions import decide


@pytest.fixture(scope="module")
def checker():
    with MathChecker(1) as checker:
        assert checker.compare("x+x", "2x", timeout_s=60)  # the worker is there: its start is not what is timed
        yield checker


EQUAL = [
    ("888", "37*24"),
    ("0.5", "1/2"),
    ("0.5", "\\frac{1}{2}"),
    ("\\dfrac12", "\\frac{1}{2}"),
    ("0.333333", "1/3"),
    ("0.333333", "\\frac{1}{3}"),
    ("1 1/2", "3/2"),
    ("1,234,567", "1234567"),
    ("1 234 567", "1234567"),
    ("\u22125", "-5"),
    ("$5$", "5"),
    ("$$5$$", "5"),
    ("\\(5\\)", "5"),
    ("\\boxed{5}", "5"),
    ("$\\boxed{\\frac{1}{2}}$.", "0.5"),
    ("\\$5", "5"),
    ("5\\text{ cm}", "5"),
    ("\\sqrt{12}", "2\\sqrt{3}"),
    ("(x-1)(x+1)", "x^2-1"),
    ("1", "\\sin^2 x+\\cos^2 x"),
    ("\\frac{2}{1+\\sqrt5}", "\\frac{-1+\\sqrt{5}}{2}"),
    ("2,1", "\\{1,2\\}"),
    ("[0,1)", "[0,1)"),
    ("3<x", "x>3"),
    ("x=5", "5"),
    ("a_{12} = 10/2 = 5", "5"),
    ("f(3)=5", "5"),
    ("5", "x=5"),
    ("120", "5!"),
    ("\\text{even}", "even"),
    ("12:30", "12:30"),
    ("50", "50%"),
    ("\\text{June }20th", "\\text{June 20}"),
    ("5{:}45\\text{ PM}", "\\text{5:45 p.m.}"),
    ("A, C", "\\text{A and C}"),
    ("2\\text{ to }1", "2:1"),
    ("38.88\\%", "\\frac{243}{625}"),
    ("4>x>-1", "-1 < x < 4"),
    ("r=3,\\ \\theta=\\frac{\\pi}{2}", "(3,\\frac{\\pi}{2})"),
    ("\\frac{5}{36}\\approx 13.9\\%", "\\frac{5}{36}"),
    ("\\cos 60^\\circ = \\frac{1}{2}", "\\frac{1}{2}"),
]
DIFFERENT = [
    ("887", "37*24"),
    ("0.33", "1/3"),
    ("0", "0.0000001"),
    ("0.0", "10^{-8}"),
    ("1000000.5", "1000000"),
    ("\\sqrt{13}", "2\\sqrt{3}"),
    ("(2,1)", "(1,2)"),
    ("[0,1]", "[0,1)"),
    ("0,1", "(0,1]"),
    ("0,1", "[0,1)"),
    ("y=5", "x=5"),
    ("x<5", "5"),
    ("3.14", "\\pi"),
    ("0/0", "0"),
    ("\\frac{1}{0}", "\\frac{2}{0}"),
    ("nan", "5"),
    ("five", "5"),
    ("\\emptyset", "5"),
    ("June 21", "\\text{June 20}"),
    ("5:45 a.m.", "\\text{5:45 p.m.}"),
    ("2:1:1", "2:1"),
    ("-1<y<4", "-1 < x < 4"),
    ("[3,\\frac{\\pi}{2}]", "(3,\\frac{\\pi}{2})"),  # math-verify reads both as the empty set
    ("27\\approx 38", "27"),
    ("27'", "27"),
]
EQUAL_BOTH_WAYS = [
    # Lists
    ("x = 3, x = -3", "3,-3"),
    ("x=3 or x=-3", "\\{3,-3\\}"),
    ("x=-3 or x=3", "x=3 or x=-3"),
    ("3 or -3", "3,-3"),
    ("x=3 \\text{ or } x=-3", "-3, 3"),
    ("x=\\pm 3", "\\{3,-3\\}"),
    ("y=4, x=3", "x=3, y=4"),
    ("x=3, y=4", "(3,4)"),
    ("1,2", "\\{2,1\\}"),
    ("1,2", "(1,2)"),
    ("(1,2),(3,4)", "(3,4),(1,2)"),
    ("1,000 or 2,000", "\\{2000,1000\\}"),
    ("\\left\\{1,2\\right\\}", "\\{1,2\\}"),
    ("3 cm, 4 cm", "4,3"),
    # What stands around it
    ("The answer is 42.", "42"),
    ("Answer: 42", "42"),
    ("the final answer is $42$", "42"),
    ("So the answer is: \\boxed{42}", "42"),
    ("1\\,000", "1000"),
    ("1{,}000", "1000"),
    ("1e3", "1000"),
    ("1.5e-3", "0.0015"),
    ("1.5 \\times 10^{-3}", "1.5e-3"),
    ("2pi", "2\\pi"),
    ("\\[5\\]", "5"),
    ("3\u00b74", "12"),
    ("5\u00b2", "25"),
    ("2\u20131", "1"),
    # Words
    ("True", "true"),
    ("\\text{True}", "true"),
    ("north pole", "North  Pole"),
    ("No solution.", "\\text{no solution}"),
    # Units
    ("5 dollars", "5"),
    ("\\$5", "5 dollars"),
    ("2/4 cups", "1/2"),
    ("1 1/2 cups", "3/2"),
    ("5 cm^2", "5"),
    ("5 square centimeters", "5 cm^2"),
    ("5\\text{ cm}^2", "5 cm^{2}"),
    ("5 m/s", "5 meters per second"),
    ("10 grams", "10 g"),
    ("5 KM", "5 km"),
    ("\\frac{1}{2} km", "0.5"),
    ("x = 5 km", "5"),
    ("90^\\circ", "90 degrees"),
    ("90\u00b0", "90 degrees"),
    ("20^\\circ C", "20"),
    ("50%", "0.5"),
    ("50 percent", "50\\%"),
    ("\\frac{1}{2}\\%", "0.005"),
    # Inequalities
    ("x>3", "(3,\\infty)"),
    ("x \\geq 3", "[3,\\infty)"),
    ("3 >= x", "(-\\infty,3]"),
    ("x \u2264 3", "(-\\infty,3]"),
    ("-3 < x \\le 3", "(-3,3]"),
    ("x<1 or x>3", "(-\\infty,1)\\cup(3,\\infty)"),
    ("\\{x \\mid x>3\\}", "(3,\\infty)"),
    ("x \\in (3,\\infty)", "x>3"),
]


DIFFERENT_BOTH_WAYS = [
    # Words are no products of variables.
    ("no", "on"),
    ("cat", "act"),
    ("\\text{cat}", "act"),
    ("\\mathrm{no}", "on"),
    ("listen", "silent"),
    ("yes", "no"),
    ("True", "false"),
    ("cat", "5"),
    ("no solution", "on solution"),
    # A set is no pair and no interval.
    ("\\{1,2\\}", "(1,2)"),
    ("\\{1,2\\}", "[1,2]"),
    ("(1,2)", "2,1"),
    ("(1,2)", "[1,2]"),
    # Units
    ("5 km", "5 cm"),
    ("5 km", "5000 m"),
    ("10 g", "10 kg"),
    ("10 g", "10 m"),
    ("5 cm", "5 cm^2"),
    ("5 apples", "5 oranges"),
    ("5 km", "6"),
    ("50%", "0.05"),
    ("50%", "0.5%"),
    ("5%", "5 km"),
    ("90^\\circ", "90 km"),
    # Lists
    ("x=3 or x=-3", "3"),
    ("x=3, y=4", "3"),
    ("x=3, y=4", "x=4, y=3"),
    ("x=3, y=4", "x=3, z=4"),
    ("x=1 or x=2", "y=1 or y=2"),
    ("x=1 or x=2", "x=1"),
    ("3 cm, 4 cm", "3 m, 4 m"),
    ("x=3=4 or x=5", "4,5"),
    # Inequalities
    ("x>3", "x<3"),
    ("x>3", "[3,\\infty)"),
    ("x<3", "y<3"),
    ("1e3", "1001"),
    ("The answer is 41", "42"),
    ("The answer is 42 or 43", "42"),
]


VERDICTS = [
    *((*pair, "equal") for pair in EQUAL),
    *((*pair, "different") for pair in DIFFERENT),
    *((*pair[::way], "equal") for pair in EQUAL_BOTH_WAYS for way in (1, -1)),
    *((*pair[::way], "different") for pair in DIFFERENT_BOTH_WAYS for way in (1, -1)),
]


@pytest.mark.parametrize(("answer", "target", "verdict"), VERDICTS)
def test_verdicts(checker, answer, target, verdict):
    assert checker.compare(answer, target, timeout_s=60).verdict == verdict


@pytest.mark.parametrize(
    "text",
    [
        "x=1 or x=2",
        "x=3, y=4",
        "$x=3$, $y=4$",
        "42 is wrong, 43",
        "\\frac{1}{0}",
        "\\pi",
        "\\begin{cases} 1 & x>0 \\\\ 0 & \\text{otherwise} \\end{cases}",
        "5}",
        "x" * 5_000,
    ],
)
def test_the_same_text_is_equal_whatever_it_is(text):
    checker = MathChecker(1)
    for answer in (text, f"  {text}\n", text.replace(", ", " ,  ")):
        assert checker.compare(answer, text).verdict == "equal"
    assert checker._idle == []  # at once: without a worker


@pytest.mark.parametrize("answer", ["\\boxed{x=3, y=4}", "$x = 3,y=4$", "Answer: x=3, y=4", "\\(x=3, y=4\\)."])
def test_what_stands_around_the_same_text_does_not_matter(checker, answer):
    assert checker.compare(answer, "x=3, y=4").verdict == "equal"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("42 hopefully", "the answer has words in it: 'hopefully'"),
        ("42 is hopefully right", "the answer has words in it: 'hopefully'"),
        ("5 million", "the answer has words in it: 'million'"),
        ("42 (maybe 43)", "the answer has words in it: 'maybe'"),
        ("about 42", "the answer has words in it: 'about'"),
        ("\\foo\\bar", "the answer cannot be read"),
        ("5}", "brackets that do not match"),
        ("1e300, " * 60, "the answer has numbers of over 2000 digits"),
    ],
)
def test_what_cannot_be_read_is_undecided_with_a_reason(checker, answer, reason):
    comparison = checker.compare(answer, "42", timeout_s=60)
    assert comparison.verdict == "undecided"
    assert reason in comparison.reason


def test_what_is_different_without_a_comparison_says_why(checker):
    for answer, target, reason in (
        ("five", "5", "the answer is words, the target is not"),
        ("3 or 5", "5", "the answer lists 2 values"),
        ("5 km", "5 cm", "other units: km and cm"),
        ("\\{1,2\\}", "(1,2)", "one is a set, the other a pair or an interval"),
    ):
        comparison = checker.compare(answer, target)
        assert (comparison.verdict, comparison.reason) == ("different", reason)


@pytest.mark.parametrize(
    "part", ["\\{", "5 ", "=", ",", " or ", "mile per ", "1,000", "e3", "\\text{ or }", "( ", "\\,", "<"]
)
def test_reading_a_text_takes_no_long_time(part):
    """Of 2,000 characters at most; a millionth of a second for each pair of them would be 4 s."""
    text = "5" + (part * 2_000)[:1_990]
    started = time.thread_time()
    for answer, target in ((text, "x=5 km"), ("x=5 km", text)):
        decide(lambda answer, target: ("different", ""), answer, target)
    assert time.thread_time() - started < 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "3,5",
        "5,3",
        "3;5",
        "3 or 5",
        "5 or 3",
        "3 \\text{ or } 5",
        "3 5",
        "5 3",
        "5 5",
        "3 \\quad 5",
        "5\\\\3",
        "3=5",
        "5=3",
        "4=x=5",
        "x = 3 = 5",
        "x=3,x=5",
        "3 \\lor 5",
        "5 | 3",
        "\\{3,5\\}",
        "[3,5]",
        "\\pm 5",
        "4 \\pm 1",
        "5 (maybe 3)",
        "3\\text{ no wait }5",
        "$3$ or $5$",
        "\\boxed{3} \\boxed{5}",
        "\\boxed{3,5}",
        "5 \\neq 3",
        "x \\in \\{3,5\\}",
    ],
)
def test_an_answer_of_several_candidates_equals_none_of_them(checker, answer):
    assert not checker.compare(answer, "5", timeout_s=60)
    assert not checker.compare(answer, "3", timeout_s=60)


def test_two_numbers_side_by_side_are_not_their_sum(checker):
    """math-verify reads "3 5" as a mixed number, 8."""
    assert not checker.compare("3 5", "8", timeout_s=60)


GARBAGE = ["", " ", ".", "$", "$$", "\\", "{}", "()", "?", "???", "%", "#", "_", "^", "=", "\\text{}", "\x00", "\ud800"]


@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_equals_nothing_not_even_itself(checker, text):
    for answer, target in ((text, text), (text, "5"), ("5", text), (text, "0")):
        assert not checker.compare(answer, target, timeout_s=60)


UNBOUNDED = [
    "9^{9^{9^9}}",
    "(10^{10})!",
    "1000000!",
    "\\frac{" * 25 + "1" + "}{2}" * 25,
    "x^" * 500 + "x",
    "\\sum_{n=1}^{10^{20}} n^n",
    "\\binom{10^9}{5*10^8}",
    "\\cos(10^{10^{10}})",
]


@pytest.mark.parametrize("answer", UNBOUNDED)
def test_an_answer_without_end_is_undecided_in_time_and_the_next_check_works(checker, answer):
    comparison = checker.compare(answer, "5", timeout_s=0.3)  # without its limit, it takes for ever
    assert (comparison.verdict, comparison.reason) == ("undecided", "over the time limit of 0.3 s")
    assert checker.compare("\\frac{10}{2}", "5", timeout_s=60)
    assert checker.n_loaded == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("5" * 100_000, "has 100000 characters"),
        ("{" * 900 + "}" * 900, "nested 899 deep"),
        ("(" * 900 + "5" + ")" * 900, "nested 900 deep"),
        ("5}", "brackets that do not match"),
        ("$3$ then $5$", "more than one formula"),
    ],
)
def test_what_is_too_long_or_too_deep_is_not_read(checker, answer, reason):
    started = time.thread_time()
    for comparison in (checker.compare(answer, "5"), checker.compare("5", answer)):
        assert comparison.verdict == "undecided"
        assert reason in comparison.reason
    assert time.thread_time() - started < 0.5


CODE = "__import__('os').system('touch {path}')"


@pytest.mark.parametrize(
    "form",
    ["{}", "\\text{{{}}}", "x_{{{}}}", "\\operatorname{{{}}}(3)", "\\mathrm{{{}}}", "f({})", "5={}", "[{}]", "'{}'"],
)
def test_code_in_an_answer_is_not_executed(checker, tmp_path, form):
    path = tmp_path / "executed"
    answer = form.format(CODE.format(path=path))
    assert not checker.compare(answer, "5", timeout_s=60)
    assert not checker.compare("5", answer, timeout_s=60)
    assert not path.exists()


def test_numbers_are_compared_without_a_worker():
    checker = MathChecker(1)
    assert checker.compare("1/3*3", "1")
    assert checker._idle == []


def test_module_functions_work_from_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(math_equal("\\frac{4}{2}", "2", timeout_s=60)))
    thread.start()
    thread.join()
    assert found == [True]
    assert compare_math("3", "2").verdict == "different"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), True, "1"])
def test_timeout_must_be_a_time(checker, timeout_s):
    with pytest.raises(InvalidConfigError, match="timeout_s"):
        checker.compare("1", "1", timeout_s=timeout_s)


@pytest.mark.parametrize("n_workers", [0, -1, 1.5, True])
def test_number_of_workers(n_workers):
    with pytest.raises(InvalidConfigError, match="n_workers"):
        MathChecker(n_workers)


def test_an_answer_that_is_no_text_is_undecided(checker):
    comparison = checker.compare(5, "5")  # type: ignore[arg-type]
    assert (comparison.verdict, comparison.reason) == ("undecided", "the answer is of type int, not text")
