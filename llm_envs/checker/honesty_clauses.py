"""Clauses about hidden faults: shortcuts, mistakes that the judge misses, untold turn limits, undeclared waiting."""

from __future__ import annotations

import re
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from llm_envs.checker.blind import answer_in
from llm_envs.checker.comparing import compared_repairs, shown_code
from llm_envs.checker.episodes import repeat, unwrap
from llm_envs.checker.mutations import mutants
from llm_envs.checker.subject import Subject, may_wait
from llm_envs.checker.verdicts import FALSE_ALARM, Inapplicable, binomial_tail, require
from llm_envs.env import TextEnv
from llm_envs.errors import InvalidConfigError, counted
from llm_envs.parsers import format_answer, format_tool_call

__all__ = [
    "READER",
    "is_not_won_by_comparing",
    "is_not_won_by_shortcuts",
    "refuses_mutated_references",
    "says_when_it_waits",
    "shortcuts_won",
    "tells_its_turn_limit",
]

READER = "reader("
"""Begins the name of a shortcut that reads everything once and keeps so many facts: "reader(50)"."""

_MAX_MUTANTS = 60
"""Number of mutants of one kind to try."""
_MAX_EQUIVALENT = 0.5
"""Share of the mutants of a kind that may mean the same as the reference."""
_MAX_CHANGED = 3
"""Lines of shown code that the oracle's answer may change."""
_SIMILAR = 0.6
"""Least similarity of a line of an answer to a shown line that it changes."""
_MOST_WAIT_S = 0.1
"""Seconds. A longer step in the collector's event loop delays the other episodes."""
_N_TIMED = 3
"""How often a slow step is repeated, because the machine may have been busy."""
_ENDLESS = "while True:\n    pass"


def is_not_won_by_shortcuts(subject: Subject) -> str:
    """The task's `shortcuts` win no more than the chance rate; a "reader(k)" at most half at an expert level."""
    task = subject.task
    is_for_experts = task.difficulty == "expert" or task.difficulties[task.difficulty].expected_hard is not None
    n_seeds = min(60, subject.effort.n_seeds)
    won: dict[str, list[int]] = defaultdict(list)
    n: dict[str, int] = defaultdict(int)
    for seed in range(n_seeds):
        for name, is_win in shortcuts_won(subject, seed).items():
            n[name] += 1
            if is_win:
                won[name].append(seed)
    for name, tries in n.items():
        if not name.startswith(READER):
            subject.require_chance(f"the shortcut {name!r}", won[name], tries)
        elif is_for_experts:
            require(
                binomial_tail(len(won[name]), tries, 0.5) >= FALSE_ALARM,
                f"the shortcut {name!r} won {len(won[name])} of {tries} episodes (seeds {won[name][:3]}): raise the "
                "level until it wins at most half",
            )
    return f"{len(n)} shortcuts" if n else Inapplicable("no shortcuts are declared")


def shortcuts_won(subject: Subject, seed: int, prefix: str = "") -> dict[str, bool]:
    """Return whether the task's `shortcuts` win, played in the place of the oracle's last action.

    Args:
        subject: The task.
        seed: Seed of the episode.
        prefix: Only shortcuts whose names begin so are played.
    """
    task, before = subject.task, [step.action for step in subject.oracle_episodes[seed][:-1]]
    task.reset(seed=seed)
    for action in before:
        task.step(action)
    actions = {name: action for name, action in task.shortcuts().items() if name.startswith(prefix)}
    return {name: subject.wins(subject.env, seed, repeat([*before, action])) for name, action in actions.items()}


def is_not_won_by_comparing(subject: Subject) -> str:
    """Changing shown code until its numbers and signs are those of its description wins no more than the chance rate.

    For tasks of one turn that show a description and then its code, if the oracle changes lines of the code: it answers
    with "4: the line", with the line, or with all lines.
    """
    if subject.task.max_turns > 1:
        return Inapplicable("for tasks of one turn")
    env, n, won = subject.replayed, 0, defaultdict[str, list[int]](list)
    for seed, (step, *_) in enumerate(subject.oracle_episodes):
        answer = answer_in(step.action)
        description, lines = shown_code(env.reset(seed=seed)[0])
        write = _way_to_write(answer, lines)
        if write is None:
            continue
        n += 1
        for name, repaired in compared_repairs(description, lines).items():
            if subject.wins(env, seed, repeat([step.action.replace(answer, write(repaired))])):
                won[name].append(seed)
    for name, seeds in won.items():
        subject.require_chance(f"comparing the description with the code ({name})", seeds, n)
    if not n:
        return Inapplicable("the oracle changes no lines of shown code")
    return f"at most {max(map(len, won.values()), default=0)} of {n} repairs by comparing won"


def _way_to_write(answer: str, lines: Sequence[str]) -> Callable[[Sequence[str]], str] | None:
    """Return how to write repaired lines as the oracle writes its answer; None if it changes no shown lines."""
    given, shown = [line.strip() for line in answer.splitlines()], [line.strip() for line in lines]
    if len(given) == len(lines) > 1 and sum(a != b for a, b in zip(given, shown, strict=True)) <= _MAX_CHANGED:
        return "\n".join
    numbered = re.fullmatch(r"\d+: *(.*)", answer)
    if len(given) != 1 or not get_close_matches(numbered[1] if numbered else answer, shown, 1, _SIMILAR):
        return None

    def write(repaired: Sequence[str]) -> str:
        place = next((i for i, line in enumerate(repaired) if line != lines[i]), 0)
        return f"{place + 1}: {repaired[place].strip()}" if numbered else repaired[place].strip()

    return write


def refuses_mutated_references(subject: Subject) -> str:
    """The judge refuses most of the oracle's queries, programs, numbers and lists after a small mistake is added.

    A mistake may make no difference to one problem. If a kind of mistake passes in most problems, the judge misses it.
    """
    tried: dict[str, int] = defaultdict(int)
    won: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for seed in range(subject.effort.n_seeds):
        actions = [step.action for step in subject.oracle_episodes[seed]]
        answer = answer_in(actions[-1])
        seen: set[str] = set()
        for name, mutant in mutants(answer):
            if name in seen or tried[name] >= _MAX_MUTANTS:
                continue
            seen.add(name)
            tried[name] += 1
            mistaken = [*actions[:-1], actions[-1].replace(answer, mutant)]
            if subject.is_win(subject.traced(subject.env, seed, repeat(mistaken), most=len(mistaken))):
                won[name].append((seed, mutant))
    for name, wins in won.items():
        require(
            binomial_tail(len(wins), tried[name], _MAX_EQUIVALENT) >= FALSE_ALARM,
            f"the reference with a mistake ({name}) won {len(wins)} of {tried[name]} episodes, such as seed "
            f"{wins[0][0]}: {wins[0][1][:300]!r}; draw test cases that reveal the mistake",
        )
    worst = max((len(won[name]) / n for name, n in tried.items()), default=0.0)
    if not tried:
        return Inapplicable("no such references")
    return f"{len(tried)} kinds of mistake; at most {worst:.0%} of one kind passed"


def tells_its_turn_limit(subject: Subject) -> str:
    """In a task of several turns, the agent is told its turn limit."""
    turns = subject.task.max_turns
    if turns == 1:
        return Inapplicable("for tasks of several turns")
    told = []
    for more in (0, 7):
        try:
            task = unwrap(subject.make(max_turns=turns + more))
        except InvalidConfigError:
            return Inapplicable("the limit cannot be set")
        shown, _ = task.reset(seed=0)
        told.append((shown, task.system_prompt, task.tools, task.step("Hello.")[0]))
    require(
        told[0] != told[1],
        f"nothing that the agent reads depends on max_turns: write the limit ({turns}) into prompt(), or into the "
        "instructions",
    )
    return counted(turns, "turn")


def says_when_it_waits(subject: Subject) -> str:
    """No step takes long, not even with code that never ends, unless the task sets `blocking`."""
    task = subject.task
    if may_wait(task):
        return Inapplicable("declared")
    code = [format_answer(_ENDLESS), format_answer(f"def f(*values):\n{textwrap.indent(_ENDLESS, '    ')}")]
    subject.env.reset(seed=0)
    for tool in task.tools:
        function = tool["function"]
        parameters = function["parameters"].get("properties", {})
        texts = [name for name, schema in parameters.items() if schema.get("type") == "string"]
        code += [format_tool_call(function["name"], **dict.fromkeys(texts, _ENDLESS))] if texts else []
    code.append(task.oracle())
    seconds = {action: _quickest(task, action) for action in code}
    slowest = max(seconds, key=seconds.__getitem__)
    longest = seconds[slowest]
    require(
        longest <= _MOST_WAIT_S,
        f"the action {slowest[:120]!r} takes {longest:.1f} s, and blocking is False: set blocking = True, or limit "
        f"its time to {_MOST_WAIT_S:g} s",
    )
    return f"{longest * 1000:.0f} ms at most"


def _quickest(task: TextEnv, action: str) -> float:
    """Return the seconds that a first step takes. If it is slow, try again and return the minimum."""
    best = float("inf")
    for _ in range(_N_TIMED):
        task.reset(seed=0)
        started = time.perf_counter()
        try:
            task.step(action)
        except Exception:  # `never_raises` reports it
            return 0.0
        best = min(best, time.perf_counter() - started)
        if best <= _MOST_WAIT_S:
            break
    return best
