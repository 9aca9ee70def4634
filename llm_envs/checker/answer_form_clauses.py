"""Clauses about the form of answers: natural forms of a right answer win, and two answers in one reply never do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from llm_envs.checker.blind import answer_in
from llm_envs.checker.episodes import Trace, ask_oracle, play, remembering, repeat, unwrap
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import BrokenClause, Inapplicable, require
from llm_envs.env import TextEnv, ToolEnv
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import ParsedReply

__all__ = ["accepts_natural_forms", "refuses_hedged_answers"]

_SHARE = 5
"""One in this many of the oracle's episodes is replayed, because each is replayed in every form."""
_DENIALS = (
    "The answer is not {}.",
    "The wrong answer is {}",
    "It is false that the answer is {}",
    "I doubt that the answer is {}",
)
_COMMON_FORMS = {
    "between line breaks": "\n{}\n",
    "with a full stop": "{}.",
    "in bold": "**{}**",
    "in a sentence": "The answer is {}.",
    "after a thought": "Let me think.\n\nThe answer is {}",
}
"""Forms of a right answer that every environment must read."""
_N_FORMS = 5
"""Episodes of an environment that is not a task whose right answer is written in each form."""
_RETRACTED = ("The answer is {}. No, that is wrong.", "{}? No.")
_REMEDY = (
    "let judge() remove decoration before is_correct or move decides, be generous about form there, or override "
    "plain_answer if such characters belong to an answer"
)
_NATURAL_REMEDY = "be generous about form in is_correct or move, or set has_natural_form = False"
_NEGATIVE = re.compile(r"(?<![\w.])-(?=\d)")
_ANY_CASE = re.compile(
    r"\bcase (?:does not matter|is ignored)|\bignor\w+ case\b|\bin any case\b|\bcase-insensitive|"
    r"\b(?:upper|lower) ?case or (?:upper|lower) ?case\b|\bcapitals do not matter\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Final:
    """A right last action of the oracle, in parts: of a task, one that is read through `TextEnv.judge`."""

    seed: int
    before: tuple[str, ...]
    """The earlier actions of the episode."""
    prefix: str
    answer: str
    suffix: str

    @property
    def action(self) -> str:
        return self.with_answer(self.answer)

    def with_answer(self, answer: str) -> str:
        """Return the action with another answer in its place."""
        return f"{self.prefix}{answer}{self.suffix}"


def accepts_natural_forms(subject: Subject) -> str:
    """A right answer wins in the forms in which models write it, if the environment reads answers.

    Tasks read them with `TextEnv.judge`. Of another environment, the oracle's only reply is an answer, and so is a last
    one in answer tags; these are tried in the forms that every environment must read.

    If the task overrides `plain_answer`, decoration may belong to its answers. Then only two forms are tried: a fenced
    block with prose around it (not with `plain_answer = str.strip`, which takes answers literally), and the answer
    twice. A parser that the task defines decides where an answer ends: a form is tried if the parser passes it on.
    """
    finals = _finals(subject, env := _env(subject))
    if not finals:
        return _no_answers(subject)
    names = set[str]()
    if not subject.is_task:
        for name, form in _COMMON_FORMS.items():
            for final in finals[:_N_FORMS]:
                action = final.with_answer(form.format(final.answer))
                _require_win(subject, env, final, name, action, "remove such decoration before you compare")
        return f"{len(_COMMON_FORMS)} forms"
    for final in finals:
        for name, action in _forms(unwrap(env), final, env.reset(seed=final.seed)[0]):
            names.add(name)
            _require_win(subject, env, final, name, action, _REMEDY)
    natural = _natural_env(subject)
    if natural is not None:
        _require_natural_oracle(natural, finals)
        reason = ", because 1+1=2" if _is_default(unwrap(natural)) else ""  # another parser may take the last number
        for final in _finals(subject, natural):
            forms = [("in a sentence", f"So the answer is {final.answer}{reason}."), ("by itself", final.answer)]
            if "```" not in final.answer:
                forms.append(("in a fenced block by itself", f"```\n{final.answer}\n```"))
            for name, action in forms[: 1 if isinstance(unwrap(natural), ToolEnv) else None]:
                names.add(name)
                where = f'{name}, with answer_form="natural",'
                _require_win(subject, natural, final, where, action, _NATURAL_REMEDY)
    return f"{len(names)} forms"


def refuses_hedged_answers(subject: Subject) -> str:
    """A right answer beside a wrong one does not win, nor one that is denied, if the environment reads answers.

    The wrong one is right for another problem. A parser that a task defines decides where an answer ends: two answers
    are tried if the parser passes both on.
    """
    finals, n_tried = _finals(subject, env := _env(subject)), 0
    try:
        natural = _natural_env(subject)
    except BrokenClause:  # `accepts_natural_forms` reports it
        natural = None
    for final in finals:
        wrong = _wrong_answer(subject, env, final, finals)
        tries = [(env, action) for action in _hedges_in_form(env.unwrapped, final, wrong)]
        if natural is not None:
            parse = unwrap(natural).parse_reply
            denials = [denial.format(final.answer) for denial in (*_DENIALS, *_RETRACTED)]
            hedges = [*_hedges(final.answer, wrong), *denials]
            tries += [(natural, text) for text in hedges if parse(text).answer in (None, text)]
        for played, action in tries:
            n_tried += 1
            trace = _with_last(subject, played, final, action)
            require(
                trace is None or not subject.is_win(trace),
                f"seed {final.seed}: the reply {action!r:.300} won, and so does {final.action!r:.120}: a reply "
                "with two answers, or one that denies its answer, must not win; let is_correct or move raise "
                "InvalidActionError unless all of the text is one answer",
            )
    return f"{n_tried} hedged or denied answers" if finals else _no_answers(subject)


def _env(subject: Subject) -> gym.Env[str, str]:
    return remembering(subject.make()) if subject.is_task else subject.env


def _no_answers(subject: Subject) -> Inapplicable:
    if subject.is_task:
        return Inapplicable("answers are not read with judge()")
    if subject.repeats:
        return Inapplicable("episodes do not repeat")
    if not any(map(subject.is_win, subject.oracle_traces)):
        return Inapplicable("the oracle never wins")
    return Inapplicable("the oracle's replies are moves of a longer episode, whose form the environment sets")


def _finals(subject: Subject, env: gym.Env[str, str]) -> list[_Final]:
    """Return the oracle's winning last actions in some episodes, if they are answers."""
    if subject.is_task:
        return _judged(subject, env)
    found = []
    for seed, trace in enumerate([] if subject.repeats else subject.oracle_traces):
        *before, last = trace.actions or [""]
        answer = answer_in(last)
        if answer and subject.is_win(trace) and (not before or "<answer>" in last):
            prefix, _, suffix = last.rpartition(answer)
            found.append(_Final(seed, tuple(before), prefix, answer, suffix))
    return found


def _judged(subject: Subject, env: gym.Env[str, str]) -> list[_Final]:
    """Return those that the task reads with `judge`."""
    task = unwrap(env)
    judge, judged = task.judge, list[ParsedReply]()

    def recorded(reply: ParsedReply, *args: Any, **kwargs: Any) -> Any:
        judged.append(reply)
        return judge(reply, *args, **kwargs)

    finals = []
    task.judge = recorded  # type: ignore[method-assign]
    try:
        for seed in range(max(1, subject.effort.n_seeds // _SHARE)):
            judged.clear()
            steps = play(env, seed, ask_oracle)
            action = steps[-1].action
            reply = task.parse_reply(action)
            if not steps[-1].is_win or not judged or judged[-1] != reply:
                continue
            if (parts := _parts(task, action, reply)) is not None:
                finals.append(_Final(seed, tuple(step.action for step in steps[:-1]), *parts))
    finally:
        del task.judge
    return finals


def _parts(task: TextEnv, action: str, reply: ParsedReply) -> tuple[str, str, str] | None:
    """Split an action into the text before its answer, the answer, and the text after it; None if it is not there."""
    answer = r"(?P<answer>.+?)" if reply.answer is None else f"(?P<answer>{re.escape(reply.answer)})"
    for template in (task.answer_template, TextEnv.answer_template):  # in prose an oracle may still use tags
        before, _, after = (re.escape(part) for part in template.partition("..."))
        found = re.search(rf"{before}\s*{answer}\s*{after}\s*\Z", action, re.DOTALL)
        if found:
            return action[: found.start("answer")], found["answer"], action[found.end("answer") :]
    return None


def _natural_env(subject: Subject) -> gym.Env[str, str] | None:
    """Return the task with `answer_form="natural"`; None if it has no such form."""
    if not subject.is_task or not subject.task.has_natural_form:
        return None
    try:
        return remembering(subject.make(answer_form="natural"))
    except (InvalidConfigError, TypeError) as error:
        raise BrokenClause(
            f'the task cannot be made with answer_form="natural" ({error}): pass answer_form on from __init__, or set '
            "has_natural_form = False"
        ) from error


def _require_natural_oracle(natural: gym.Env[str, str], finals: list[_Final]) -> None:
    """Require that the oracle wins the same episodes in prose."""
    for final in finals:
        last = play(natural, final.seed, ask_oracle)[-1]
        require(
            last.is_win,
            f'seed {final.seed}: with answer_form="natural" the oracle did not succeed; {last.action[:120]!r} was '
            f"answered {last.observation[:80]!r}: set has_natural_form = False if answers are too long for a sentence",
        )


def _require_win(subject: Subject, env: gym.Env[str, str], final: _Final, name: str, action: str, remedy: str) -> None:
    trace = _with_last(subject, env, final, action)
    require(
        trace is None or subject.is_win(trace),
        f"seed {final.seed}: the right answer {name} did not win: {action!r:.300} was answered "
        f"{trace and trace.steps[-1].observation[:120]!r}, but {final.action!r:.120} wins: {remedy}",
    )


def _with_last(subject: Subject, env: gym.Env[str, str], final: _Final, action: str) -> Trace | None:
    """Return the episode with an action in place of the last one; None if it raised."""
    actions = [*final.before, action]
    trace = subject.traced(env, final.seed, repeat(actions), most=len(actions))
    return trace if len(trace.steps) == len(actions) else None  # `never_raises` and `withstands_fuzzing` report it


def _forms(task: TextEnv, final: _Final, shown: str) -> Iterator[tuple[str, str]]:
    """Yield (name, action) for the forms of a right answer."""
    for name, text in _decorated(task, final.answer, shown):
        action = final.with_answer(text)
        if _is_default(task) or task.parse_reply(action).answer == text:
            yield name, action
    if _is_default(task) and task.answer_form is None:
        yield "given twice", f"{final.action}\n{final.action.strip()}"
        yield "after a mention of the tags", f"I write it in <answer> tags.\n{final.action}"


def _decorated(task: TextEnv, answer: str, shown: str) -> Iterator[tuple[str, str]]:
    if "```" not in answer and task.plain_answer is not str.strip:
        yield "in a fenced block with prose around it", f"Here it is:\n```\n{answer}\n```\nThat is all."
    if task.plain_answer is not TextEnv.plain_answer:
        return
    if "**" not in answer and not answer.startswith("*") and not answer.endswith("*"):
        yield "in bold", f"**{answer}**"
    if "`" not in answer:
        yield "as code", f"`{answer}`"
    if "$" not in answer:
        yield "as a formula", f"${answer}$"
    if "\\" not in answer and answer.count("{") == answer.count("}"):
        yield "in a box", f"\\boxed{{{answer}}}"
    yield "in a sentence", f"The answer is {answer}"
    yield "under a heading, after a space without width", f"**Answer:**\n\u200b{answer}"
    if answer[-1:].isalnum():
        yield "with a full stop", f"{answer}."
    if _NEGATIVE.search(answer):
        yield "with the minus U+2212", _NEGATIVE.sub("\u2212", answer)
    told = f"{task.system_prompt}\n{shown}\n{type(task).__doc__}"
    if answer.swapcase() != answer and _ANY_CASE.search(told):
        yield "in another case", answer.swapcase()


def _is_default(task: TextEnv) -> bool:
    return type(task).parse_reply is TextEnv.parse_reply


def _wrong_answer(subject: Subject, env: gym.Env[str, str], final: _Final, finals: list[_Final]) -> str | None:
    """Return an answer that is right for another problem and wrong for this one; None if no episode has one."""
    for other in finals:
        if _items(other.answer) <= _items(final.answer):  # both together would say no more than the right one
            continue
        trace = _with_last(subject, env, final, final.with_answer(other.answer))
        if trace is not None and not subject.is_win(trace):
            return other.answer
    return None


def _items(answer: str) -> set[str]:
    return set(re.findall(r"\w+", answer.casefold()))


def _hedges(right: str, wrong: str | None) -> Iterator[str]:
    if wrong is None:
        return
    are_lists = "," in right + wrong or len(right.split()) > 1 or len(wrong.split()) > 1
    for first, second in ((right, wrong), (wrong, right)):
        yield f"{first} or {second}"
        if not are_lists:  # two lists in a row are one longer list
            yield f"{first}, {second}"
        yield f"either {first} or {second}"
        yield f"The answer is {first}. The answer is {second}."


def _hedges_in_form(task: Any, final: _Final, wrong: str | None) -> Iterator[str]:
    is_literal = isinstance(task, TextEnv) and task.plain_answer is str.strip
    denials = [] if is_literal else [denial.format(final.answer) for denial in _DENIALS]
    for text in (*_hedges(final.answer, wrong), *denials):
        action = final.with_answer(text)
        if not isinstance(task, TextEnv) or _is_default(task) or task.parse_reply(action).answer == text:
            yield action
    if wrong is not None and isinstance(task, TextEnv) and _is_default(task):
        both = [final.action, final.with_answer(wrong)]
        yield from ("\n".join(both), "\n".join(both[::-1]))
