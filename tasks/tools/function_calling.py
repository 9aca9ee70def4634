"""`llm/FunctionCalling-v0`: call the right functions, and see where none fits or something is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from llm_envs.env import Difficulty, Outcome, ToolEnv, canonical_json
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.spaces import MAX_TEXT_LENGTH, encodable
from llm_envs.tasks.replies import is_done
from llm_envs.tasks.tools.function_cases import check_case, draw_case, fitting, signature
from llm_envs.tasks.tools.function_links import corrections, people_as_read, words_by_reference
from llm_envs.tasks.tools.functions import GIVES, NEEDS, function_name, is_value, parameters_of, request, schema_of
from llm_envs.tools import INVALID_ARGUMENTS, UNKNOWN_TOOL
from llm_envs.types import ToolCall, ToolResult

__all__ = ["FunctionCallingEnv"]

_ASK = re.compile(
    r"(?:[-*]\s+)?[*`]*ask\s+(?:part\s+)?([0-9]{1,3})\s*:\s*[*`'\"]*([a-z_]{1,30})[*`'\"]*\s*[.?]?[*`]*", re.IGNORECASE
)
_AND = r"\s*(?:,|;|&|\band\b|,\s*and\b)\s*"
_IMPOSSIBLE = re.compile(rf"impossible\s*:?\s*(?:parts?\s*)?([0-9]{{1,3}}(?:{_AND}[0-9]{{1,3}})*)\s*\.?", re.IGNORECASE)


class FunctionCallingEnv(ToolEnv):
    """Call exactly the functions that a request needs, with exact arguments; say where none fits, ask what is missing.

    ## Description
    Every episode has other functions, generated with their schemas; most look like what is needed, and are not: they do
    something else to the same thing, the same to another thing, or are for groups of another size. A request has one
    part or several. A part needs one call; several, of which each takes the id that the one before returns; or it
    cannot be done, since no function does it; or it lacks an argument that is required, which must be asked for. No
    part needs an id of another, so that their calls can stand in one reply. At the expert level parts tell their party
    and date by reference to other parts, and the user corrects some of these at the end; so the size of a group, which
    decides what function fits, follows from several sentences. Teaches to choose by descriptions rather than by names,
    to fill in types and formats exactly, to leave out what was not said, and not to call at all.

    ## Observation
    The functions are the episode's tools. First the numbered parts of the request, and the corrections if there are
    any; then the results of calls, and the user's answers. After a malformed reply a readable error.

    ## Action
    Calls of functions, side by side where they can be; or questions, each in a line, with the part's number and the
    name of the parameter: `ask 2: date`; or the end, `<answer>done</answer>`, or with the parts for which there is no
    function, `<answer>impossible: 2, 3</answer>`. Questions beside calls or an answer are not read. Thinking in
    `<think>...</think>` is allowed before.

    ## Reward
    `correct` (weight 1): 1 if every part that can be done was done, by exactly the calls that it needs, with the right
    names, and arguments of the right values and types; each thing that was missing was asked for, and nothing else; and
    the answer names the parts that cannot be done. A call too many, or a wrong one, cannot be made good. `malformed`
    (weight -0.1): 1 for a reply that is broken or none of the above, calls a function that does not exist, or whose
    arguments do not fit the schema.

    ## Episode End
    Terminates with the answer. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test". No function is in both, whatever its name, nor any thing that functions are about.
    - `difficulty`: "easy" (default): one part, 4 functions; "medium": two parts, 8 functions, up to two calls one after
      the other; "hard": four parts, 14 functions, up to three calls; "expert": 14 parts, 45 functions, up to four
      calls, nested arguments, references and corrections.
    - `max_turns`: 4, 6, 14 and 58 by default: enough for one call in each reply.
    - `reset(options={"problem": {"functions": [...], "parts": [...], "salt": 1}})`: functions as `{"verb": ...,
      "noun": ..., "sizes": "", "word": ..., "parameters": [...], "required": [...]}`, parts as `{"steps": [{"verb":
      ..., "noun": ..., "arguments": {...}}], "missing": ""}` (see `tasks/tools/functions.py`), with "as" and "first" if
      they refer to others or are corrected (see `tasks/tools/function_links.py`); `salt` decides the ids that calls
      return.

    ## Version History
    - v0: first version.
    """

    # Saying that everything is impossible wins 1/3, 1/16, 1/256 and 4e-9.
    difficulties = {
        "easy": Difficulty(
            "one part, 4 functions",
            chance_rate=0.37,
            settings={"parts": 1, "tools": 4, "longest": 1, "turns": 4, "kinds": ("do", "none", "missing")},
        ),
        "medium": Difficulty(
            "two parts, 8 functions",
            chance_rate=0.09,
            settings={"parts": 2, "tools": 8, "longest": 2, "turns": 6, "kinds": ("do", "do", "none", "missing")},
        ),
        "hard": Difficulty(
            "four parts, 14 functions",
            chance_rate=0.01,
            settings={"parts": 4, "tools": 14, "longest": 3, "turns": 14, "kinds": ("do", "do", "none", "missing")},
        ),
        "expert": Difficulty(
            "14 parts, 45 functions, nested arguments, references between parts, corrections",
            chance_rate=0.001,
            settings={
                **{"parts": 14, "tools": 45, "longest": 4, "turns": 58, "kinds": ("do", "do", "none", "missing")},
                "is_linked": True,
            },
            expected_hard="14 parts with some 70 arguments must all be right, among 45 functions that look alike. "
            "Most parties and dates follow from those of other parts, up to several steps away, which are corrected "
            "afterwards, and decide what can be done at all; at one part in 14 amiss, 35% of the requests are met.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level 45 functions are drawn, each until it is one of the split's"
    problem_fields = {"functions": list, "parts": list, "salt": int}
    instructions = (
        "Do the numbered parts of the user's request with the functions. Call a function only if its description fits. "
        "Give every argument that the user has told, in the types and formats of the function's schema, and no other "
        "argument. If the user has not told a required argument, ask for it before you call: write a reply without a "
        "call, with the word ask, the number of the part, a colon, and the name of the parameter, for example: "
        "ask 2: date. If no function fits a part, do not call one for it, and do the other parts. Calls that do not "
        "need each other's results belong in one reply. At the end, answer done; but if no function fits parts 2 and "
        "3, answer <answer>impossible: 2, 3</answer>."
    )
    answer_example = "done"
    has_natural_form = False
    clause_reasons = {
        "understands_other_wordings": "A question is a line in the form that the instructions give, not free text."
    }

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["turns"]

    def make_tools(self) -> list[Any]:
        """Return no tools: every episode has its own functions, which `run_calls` answers."""
        return []

    def generate(self) -> dict[str, Any]:
        """Draw functions and a request."""
        return draw_case(self.np_random.random, self.split, self.settings)

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse functions and parts that do not hang together."""
        try:
            check_case(problem)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError, StopIteration) as error:
            if isinstance(error, InvalidActionError):
                raise
            raise InvalidActionError(f"its functions or parts are wrong: {error!r}") from error

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return one of the functions, whatever its name: all that are drawn are of the split of each."""
        return min(map(signature, problem["functions"]), key=canonical_json)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode with its own tools; see `TextEnv.reset`."""
        result = super().reset(seed=seed, options=options)
        self.tools = [schema_of(function) for function in self.problem["functions"]]
        return result

    def begin(self) -> None:
        """Work out the calls that are needed."""
        self._functions = {function_name(function): function for function in self.problem["functions"]}
        self._needed = [self._calls_of(part) for part in self.problem["parts"]]
        """Of each part its calls in order; none where no function fits."""
        self._made: Counter[str] = Counter()
        self._n_mistakes = 0
        self._told: set[int] = set()

    def _calls_of(self, part: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        calls: list[tuple[str, dict[str, Any]]] = []
        for step in part["steps"]:
            function = fitting(self.problem["functions"], step)
            if function is None:
                return []
            arguments = dict(step["arguments"])
            if calls:
                arguments[NEEDS[step["verb"]]] = self._id(*calls[-1])
            calls.append((function_name(function), arguments))
        return calls

    def _id(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the id that a call returns."""
        digest = blake2b(f"{self.problem['salt']} {_key(name, arguments)}".encode(), digest_size=4).digest()
        kind = GIVES[self._functions[name]["verb"]]
        return f"{kind[0].upper()}{10_000 + int.from_bytes(digest, 'big') % 90_000}"

    def prompt(self) -> str:
        """Return the request."""
        lines = []
        for number, part in enumerate(self.problem["parts"], 1):
            said = words_by_reference(self.problem["parts"], number)
            steps = [
                request(step, follows=place > 0, without=part["missing"], said=None if place else said)
                for place, step in enumerate(part["steps"])
            ]
            text = "; then ".join(steps)
            lines.append(f"{number}. {text[0].upper()}{text[1:]}.")
        return "\n".join(lines + corrections(self.problem["parts"]))

    def run_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Answer the calls, and remember them."""
        return tuple(self._run(call) for call in calls)

    def _run(self, call: ToolCall) -> ToolResult:
        name, function = encodable(call.name), self._functions.get(call.name)
        if function is None:
            self._n_mistakes += 1
            return ToolResult(name, call.arguments, "Error: there is no function of this name.", False, UNKNOWN_TOOL)
        complaint = _complaint(schema_of(function)["function"]["parameters"], call.arguments)
        if complaint:
            self._n_mistakes += 1
            return ToolResult(name, call.arguments, f"Error: {complaint}.", False, INVALID_ARGUMENTS)
        self._made[_key(name, call.arguments)] += 1
        given = GIVES.get(function["verb"])
        result = {"status": "ok"} if given is None else {given: self._id(name, call.arguments)}
        return ToolResult(name, call.arguments, canonical_json(result), True)

    def play(self, action: str) -> Outcome:
        """Answer questions; calls and answers are those of any tool task."""
        if len(action) <= MAX_TEXT_LENGTH:
            reply = self.parse_reply(action)
            lines = [line.strip() for line in (reply.content or "").splitlines() if line.strip()]
            asked = [_ASK.fullmatch(line) for line in lines]
            if asked and all(asked) and not (reply.tool_calls or reply.problems or reply.answer is not None):
                self.tool_results = ()
                told = [self._tell(int(match[1]), match[2].lower()) for match in asked if match]
                return Outcome("\n".join(told), self.score(reply, (), correct=False, malformed=False))
        return super().play(action)

    def _tell(self, number: int, parameter: str) -> str:
        """Return the user's answer to a question."""
        parts = self.problem["parts"]
        if not 1 <= number <= len(parts) or parts[number - 1]["missing"] != parameter:
            self._n_mistakes += 1
            return f"{number}: I have told you all about this."
        self._told.add(number)
        step = parts[number - 1]["steps"][0]
        said = parameters_of(step["verb"], step["noun"])[parameter].say(step["arguments"][parameter])
        return f"{number}: {said}."

    def is_correct(self, answer: str) -> bool:
        """Compare the calls, the questions and the parts that cannot be done with those that there should be."""
        text = answer.strip()
        match = _IMPOSSIBLE.fullmatch(text)
        if match is None and not is_done(text):
            raise InvalidActionError(
                "the answer must be <answer>done</answer>, or the numbers of parts as in <answer>impossible: 2, "
                "3</answer>"
            )
        named = sorted(map(int, re.findall("[0-9]+", match[1]))) if match else []
        needed = Counter(_key(*call) for calls in self._needed for call in calls)
        asked = self._told == self._parts_lacking()
        return named == self._impossible() and self._made == needed and asked and self._n_mistakes == 0

    def _impossible(self) -> list[int]:
        return [number for number, calls in enumerate(self._needed, 1) if not calls]

    def _parts_lacking(self) -> set[int]:
        return {number for number, part in enumerate(self.problem["parts"], 1) if part["missing"]}

    def shortcuts(self) -> Mapping[str, str]:
        """Return the answer of a reader that keeps one fact of each part, its party as it was when it was read.

        A correction changes the fact of its part; those that followed from it would need a second reading. The calls
        before the answer are the oracle's: the reader's own would be wrong more often.
        """
        parts = self.problem["parts"]
        if not any("people" in part.get("first", {}) for part in parts):
            return {}
        impossible = []
        for number, part in enumerate(parts, 1):
            first, *others = part["steps"]
            people = people_as_read(parts, number)
            kept = {} if people is None else {"people": people}
            steps = [{**first, "arguments": {**first["arguments"], **kept}}, *others]
            if any(fitting(self.problem["functions"], step) is None for step in steps):
                impossible.append(number)
        return {f"reader({len(parts)})": self._answer(impossible)}

    def next_action(self) -> str:
        """Ask for what is missing, make each call whose id is known, and answer."""
        questions = [
            f"ask {number}: {self.problem['parts'][number - 1]['missing']}"
            for number in self._parts_lacking() - self._told
        ]
        if questions:
            return "\n".join(sorted(questions))
        made, ready = self._made.copy(), []
        for calls in self._needed:
            for name, arguments in calls:
                if made[_key(name, arguments)] == 0:
                    ready.append(format_tool_call(name, **dict(sorted(arguments.items()))))
                    break
                made[_key(name, arguments)] -= 1
        if ready:
            return "\n".join(ready[: self.max_calls_per_turn])
        return self._answer(self._impossible())

    def _answer(self, impossible: Sequence[int]) -> str:
        return self.write_answer(f"impossible: {', '.join(map(str, impossible))}" if impossible else "done")


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as text: 3 and 3.0 are one number, "3" and true are none."""
    whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in arguments.items()}
    return f"{name} {canonical_json(whole)}"


def _complaint(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with a call's arguments; "" if they fit the schema."""
    known = schema["properties"]
    for name, value in arguments.items():
        if name not in known:
            return f"there is no parameter {name[:40]!r}"
        if not is_value(known[name], value):
            return f"the value of {name} does not fit its schema"
    missing = [name for name in schema["required"] if name not in arguments]
    return f"{missing[0]} is required" if missing else ""
