"""`llm/HumanEval-v0` and `llm/MBPP-v0`: write a Python function that passes the benchmark's own tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import ParsedReply, fenced_blocks
from llm_envs.parsers.answers import split_thinking
from llm_envs.tasks.benchmarks.code_judging import imports_of, passes_tests, undefined_names
from llm_envs.tasks.benchmarks.published import Layout, PublishedEnv, require_texts
from llm_envs.tasks.draws import Random

__all__ = ["HumanEvalEnv", "MBPPEnv"]

_MOST_CODE = 50_000
"""Characters of a program; longer ones are not run."""
_CODE = re.compile(r"^\s*(?:def|class|return|import|from) ", re.MULTILINE)
"""Without a fence, a reply is code if a line of it begins so."""
_NAME = re.compile(r"[A-Za-z_]\w*")


class _ProgramEnv(PublishedEnv):
    """Base of the two: reads the program of a reply, and runs it."""

    difficulties = {"published": Difficulty("the rows as published", chance_rate=0.01)}
    answer_template = "```python\n...\n```"
    plain_answer = staticmethod(str)
    blocking = True
    slow_reset_reason = "a verdict starts two interpreters"
    clause_reasons = {
        "refuses_neighbouring_numbers": "the tests are the published ones, and some numbers are in a docstring only",
    }

    def names(self) -> tuple[str, ...]:
        """Return the names that the tests use from the program."""
        raise NotImplementedError

    def parse_reply(self, text: str) -> ParsedReply:
        """Read the block of code that defines the function; without any block, all of the reply."""
        reply = split_thinking(text)
        if reply.problems:
            return reply
        blocks = [block.code for block in fenced_blocks(reply.content)]
        wanted = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in self.names()))
        found = {block for block in blocks if wanted.search(block)} or set(blocks)
        if len(found) > 1:
            defining = {block for block in found if re.search(rf"(?:def|class)\s+(?:{wanted.pattern})", block)}
            found = defining if len(defining) == 1 else found
        if len(found) > 1:
            return reply._replace(problems=("there are two blocks of code with an answer; give one",))
        bare = text if reply.thinking is None else reply.content
        code = found.pop() if found else bare if "```" not in bare and _CODE.search(bare) else ""
        return reply._replace(answer=code) if code.strip() else reply

    def is_correct(self, answer: str) -> bool:
        """Run the tests."""
        if len(answer) > _MOST_CODE:
            raise InvalidActionError(f"the program has {len(answer)} characters; at most {_MOST_CODE} are run")
        return self.passes(answer.replace("\r\n", "\n"))

    def passes(self, code: str) -> bool:
        """Return whether the code passes the tests."""
        raise NotImplementedError


class HumanEvalEnv(_ProgramEnv):
    r"""HumanEval: complete a Python function from its signature and docstring.

    ## Description
    One of the 164 problems of HumanEval (Chen et al., arXiv 2107.03374) in each episode. The data are yours to name.
    They are for tests only: train on other programs. Measures programming from a specification; teaches nothing,
    because it has only a test split.

    ## Observation
    The beginning of the function, and simple-evals' request. After the reply "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    The function in a fence of three backticks, whole or only its body; without a fence, a reply with a line of code is
    all code. Thinking in `<think>...</think>` is not read.

    ## Reward
    `correct` (weight 1): 1 if `check` of the row's `test` passes, within 3 s. Program and tests run in two CPython
    sandboxes (Linux), which have NumPy, so a program that ends the interpreter, changes its tests or returns an object
    that is equal to everything fails; in the official harness such a program may pass. `malformed` (weight -0.1): 1 for
    a reply without code, with two blocks that define the function, or with broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "test", the only one.
    - `difficulty`: "published".
    - `data`: "openai/openai_humaneval", or a file with the fields `prompt`, `entry_point`, `test` and
      `canonical_solution`, such as the published HumanEval.jsonl, or rows.
    - `subset`: configuration of the data set; there is one.
    - `reset(options={"problem": {...}})` with the keys `prompt`, `entry_point`, `test`, `solution` gives a problem.

    ## Version History
    - v0: first version.
    """

    splits = ("test",)
    layout = Layout(
        hub="openai/openai_humaneval",
        subset=None,
        splits={"test": "test"},
        fields={
            "prompt": ("prompt",),
            "entry_point": ("entry_point",),
            "test": ("test",),
            "solution": ("canonical_solution",),
        },
        sample="humaneval",
    )
    problem_fields = {"prompt": str, "entry_point": str, "test": str, "solution": str}

    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Take the row."""
        require_texts(fields, *fields)
        problem = dict(fields)
        try:
            self.check_problem(problem)
        except InvalidActionError as error:
            raise InvalidConfigError(f"entry_point is {fields['entry_point']!r:.60}: {error}.") from error
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an entry point that cannot be a name, and tests that are not Python or have no `check`."""
        if _NAME.fullmatch(problem["entry_point"]) is None or "def check(" not in problem["test"]:
            raise InvalidActionError("it must be the name of a function, and the test must define check")
        try:
            imports_of(problem["test"])
        except (SyntaxError, ValueError) as error:
            raise InvalidActionError(f"the test must be Python ({error})") from error

    def names(self) -> tuple[str, ...]:
        """Return the name of the function."""
        return (self.problem["entry_point"],)

    def prompt(self) -> str:
        """Return the beginning of the function, with simple-evals' request."""
        return (
            "Read the following function signature and docstring, and fully implement the function described. "
            f"Your response should only contain the code for this function.\n{self.problem['prompt']}"
        )

    def solution(self) -> str:
        """Return the whole function."""
        return f"{self.problem['prompt']}{self.problem['solution']}".strip("\n")

    def passes(self, code: str) -> bool:
        """Run `check`."""
        prompt, name = self.problem["prompt"], self.problem["entry_point"]
        is_body = code.lstrip("\n")[:1].isspace()
        program = f"{prompt}{code}" if is_body else f"{prompt}\n{code}"
        test = self.problem["test"]
        return passes_tests(f"{program}\n{imports_of(test)}", prompt, [name], f"{test}\ncheck({name})")


class MBPPEnv(_ProgramEnv):
    r"""MBPP: write a Python function from one sentence and three tests.

    ## Description
    One problem of MBPP (Austin et al., arXiv 2108.07732) in each episode. The data are yours to name. Teaches to write
    short Python functions.

    ## Observation
    The paper's prompt: the task in a sentence, and its tests. After the reply "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    The program in a fence of three backticks; without a fence, a reply with a line of code is all code. Thinking in
    `<think>...</think>` is not read.

    ## Reward
    `correct` (weight 1): 1 if every test passes, within 3 s. Program and tests run in two CPython sandboxes (Linux), as
    in `llm/HumanEval-v0`. `malformed` (weight -0.1): 1 for a reply without code, with two blocks that define the
    function, or with broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" (374 problems) or "test" (500), as published.
    - `difficulty`: "published".
    - `data`: "google-research-datasets/mbpp", or a file with the fields `text` (or `prompt`), `code` and `test_list`,
      and perhaps `test_setup_code` or `test_imports`, or rows. "{split}" in a path is replaced by the split.
    - `subset`: configuration of the data set: "full" by default, or "sanitized".
    - `reset(options={"problem": {...}})` with the keys `text`, `code`, `setup`, `tests` (a list) gives a problem.

    ## Version History
    - v0: first version.
    """

    layout = Layout(
        hub="google-research-datasets/mbpp",
        subset="full",
        splits={"train": "train", "test": "test"},
        fields={
            "text": ("text", "prompt"),
            "code": ("code",),
            "tests": ("test_list",),
            "setup": ("test_setup_code", "test_imports"),
        },
        sample="mbpp",
        defaults={"setup": ""},
    )
    problem_fields = {"text": str, "code": str, "setup": str, "tests": list}

    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Take the row; imports of the tests are a list in one version, a text in another."""
        require_texts(fields, "text", "code")
        setup = fields["setup"] if isinstance(fields["setup"], str) else "\n".join(fields["setup"])
        problem = {"text": fields["text"], "code": fields["code"], "setup": setup, "tests": fields["tests"]}
        try:
            self.check_problem(problem)
        except InvalidActionError as error:
            raise InvalidConfigError(f"test_list is {fields['tests']!r:.80}: {error}.") from error
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse tests that are not Python, or that test nothing of a program."""
        tests = problem["tests"]
        if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
            raise InvalidActionError("tests must be a list of texts, at least one")
        try:
            is_used = bool(undefined_names(_plain(problem["setup"]), _plain("\n".join(tests))))
        except (SyntaxError, ValueError) as error:
            raise InvalidActionError(f"tests and setup must be Python ({error})") from error
        if not is_used:
            raise InvalidActionError("the tests must call a function of the program")

    def names(self) -> tuple[str, ...]:
        """Return the names of the program that setup and tests use."""
        return undefined_names(_plain(self.problem["setup"]), _plain("\n".join(self.problem["tests"])))

    def prompt(self) -> str:
        """Return the paper's prompt."""
        tests = "\n".join(self.problem["tests"])
        return (
            f"You are an expert Python programmer, and here is your task: {self.problem['text']} "
            f"Your code should pass these tests:\n\n{tests}\n"
        )

    def solution(self) -> str:
        """Return the published program."""
        return _plain(self.problem["code"])

    def passes(self, code: str) -> bool:
        """Run the tests."""
        tests = _plain("\n".join([self.problem["setup"], *self.problem["tests"]]))
        return passes_tests(f"{code}\n{imports_of(tests)}", "", self.names(), tests)


def _plain(code: str) -> str:
    """Return code with the line ends of one system: MBPP has those of another."""
    return code.replace("\r\n", "\n")
