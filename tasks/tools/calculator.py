"""`llm/Calculator-v0`: arithmetic that is hard in the head and easy with the calculator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.mathematics.arithmetic import evaluate, format_number, whole_value
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import read_integer
from llm_envs.tasks.expressions import answerable_value, in_canonical_order

__all__ = ["CalculatorEnv", "calculator"]


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return format_number(evaluate(expression))


class CalculatorEnv(ToolEnv):
    """Answer an arithmetic question with the help of a calculator.

    ## Description
    Each episode asks for the value of one expression. The numbers are too large to guess the value; the tool
    `calculator(expression)` computes it exactly. The agent may also answer at once, without the tool. Teaches to reach
    for a tool where guessing does not do, and to copy its result.

    ## Observation
    First the question, such as "What is 37*24?". After a tool call its result, "888", as a message of the role
    "tool"; an expression that cannot be evaluated gives "Error: ..." there. After a malformed reply a readable error.

    ## Action
    A tool call, `<tool_call>{"name": "calculator", "arguments": {"expression": "37*24"}}</tool_call>`, or the final
    answer, `<answer>888</answer>`. Thinking in `<think>...</think>` is allowed before either. If a reply has both a
    call and an answer, the call is run and the answer is not taken.

    ## Reward
    `correct` (weight 1): 1 for the right final answer. `malformed` (weight -0.1): 1 for each reply that is neither a
    call nor an answer, is broken, calls another tool or with wrong arguments, or answers with something that is not a
    whole number.

    ## Episode End
    Terminates with the first answer that is a whole number. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): one operation, "What is 37*24?"; "medium": two, "What is 37*24+9?"; "hard": four,
      with parentheses and a division without remainder, "What is (84/7+15)*23-48?". An expert level is missing: whoever
      copies the expression into a call has the answer, however long it is.
    - `max_turns`: 4 by default.
    - `reset(options={"problem": {"expression": "37*24"}})` asks for a given expression with a whole value.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often the commonest value is right: 0.11%, 0.05% and 0.03%.
    difficulties = {
        "easy": Difficulty("one operation: 37*24, 512+348 or 912-377", chance_rate=0.002, n_problems=1_223_550),
        "medium": Difficulty("two operations: 37*24+9", chance_rate=0.001, n_problems=1_552_516),
        "hard": Difficulty("four operations with parentheses and division: (84/7+15)*23-48", chance_rate=0.001),
    }
    default_difficulty = "easy"
    problem_fields = {"expression": str}
    instructions = "Use the calculator, then answer with the value."
    answer_example = "42"

    def make_tools(self) -> Sequence[Callable[..., Any]]:
        """Return the calculator."""
        return [calculator]

    def generate(self) -> dict[str, Any]:
        """Draw an expression of the level."""
        expression, value = _GENERATORS[self.difficulty](self.np_random.random)
        problem = {"expression": expression}
        self._drawn = problem, value
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an expression that has no whole value, or one too long to answer."""
        answerable_value(problem["expression"])

    def split_key(self, problem: Mapping[str, Any]) -> str:
        """Return one key for expressions of the same terms and factors."""
        return in_canonical_order(problem["expression"])

    def begin(self) -> None:
        """Take the value that the problem was drawn with, or compute that of a given problem."""
        drawn, value = getattr(self, "_drawn", (None, 0))
        self._target: int = value if drawn is self.problem else whole_value(self.problem["expression"])

    def prompt(self) -> str:
        """Return the question."""
        return f"What is {self.problem['expression']}?"

    def is_correct(self, answer: str) -> bool:
        """Compare as whole numbers."""
        return read_integer(answer) == self._target

    def next_action(self) -> str:
        """Call the calculator; when it has given the value, or with the last turn, answer."""
        target = str(self._target)
        computed = any(result.success and result.output == target for result in self.tool_results)
        if computed or self.n_turns + 1 >= self.max_turns:
            return self.write_answer(target)
        return format_tool_call("calculator", expression=self.problem["expression"])


# Each returns an expression and its value, which is cheaper to know here than to evaluate. `int(random() * n)` draws
# far quicker than `Generator.integers`.


def _one_operation(random: Callable[[], float]) -> tuple[str, int]:
    kind = random() * 3
    if kind < 1:
        left, right = 10 + int(random() * 90), 10 + int(random() * 90)
        return f"{left}*{right}", left * right
    left, right = 100 + int(random() * 900), 100 + int(random() * 900)
    if kind < 2:
        return f"{left}+{right}", left + right
    return (f"{left}-{right}", left - right) if left >= right else (f"{right}-{left}", right - left)


def _two_operations(random: Callable[[], float]) -> tuple[str, int]:
    left, right, term = 11 + int(random() * 89), 11 + int(random() * 89), 2 + int(random() * 98)
    if random() < 0.5:
        return f"{left}*{right}+{term}", left * right + term
    return f"{left}*{right}-{term}", left * right - term


def _four_operations(random: Callable[[], float]) -> tuple[str, int]:
    divisor, quotient = 2 + int(random() * 11), 3 + int(random() * 38)
    inner, factor, outer = 41 + int(random() * 59), 11 + int(random() * 89), 2 + int(random() * 98)
    inner_sign, outer_sign = "+-"[int(random() * 2)], "+-"[int(random() * 2)]
    value = (quotient + inner if inner_sign == "+" else quotient - inner) * factor
    value = value + outer if outer_sign == "+" else value - outer
    return f"({divisor * quotient}/{divisor}{inner_sign}{inner})*{factor}{outer_sign}{outer}", value


_GENERATORS = {"easy": _one_operation, "medium": _two_operations, "hard": _four_operations}
