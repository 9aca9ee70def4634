"""Clauses that change one thing in the oracle's episodes: a number, the words, the wording, or the number of turns."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial

from llm_envs.checker.episodes import play, remembering, repeat, unwrap
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import Inapplicable, require
from llm_envs.env import TextEnv

__all__ = [
    "is_not_won_by_meaningless_text",
    "needs_every_round",
    "refuses_neighbouring_numbers",
    "understands_other_wordings",
]

_NUMBER = re.compile(r"(?<![\w.])\d{1,15}(?![\w.]*\d|\w)")
_WORD = re.compile(r"[^\W\d_]+")
_MARKUP = re.compile(r"<[^<>]*>|\\[a-z]+")
_MAX_PLACES = 3
"""Numbers of an episode to try until one counts."""
_SHARE = 5
"""One in this many of the oracle's episodes is played in every wording."""
_CONSONANTS = "bcdfghjklmnpqrstvwxz"


def refuses_neighbouring_numbers(subject: Subject) -> str:
    """The oracle's reply with one of its numbers one larger or smaller wins no more than the chance rate explains.

    In tasks of several turns only actions count without which the episode is lost: others look something up.
    """
    env, rng, won, n = remembering(subject.make()), random.Random(0), list[int](), 0
    example = ""
    for seed, steps in enumerate(subject.oracle_episodes):
        actions = [step.action for step in steps]
        places = [(turn, found) for turn, action in enumerate(actions) for found in _NUMBER.finditer(action)]
        for turn, found in rng.sample(places, min(len(places), _MAX_PLACES)) if steps[-1].is_win else ():
            before, after = actions[:turn], actions[turn + 1 :]
            if after and subject.wins(env, seed, repeat([*before, *after])):
                continue
            other = int(found[0]) + (rng.choice((-1, 1)) if int(found[0]) else 1)
            changed = f"{actions[turn][: found.start()]}{other}{actions[turn][found.end() :]}"
            n += 1
            if subject.wins(env, seed, repeat([*before, changed, *after])):
                won.append(seed)
                example = example or f"such as {changed!r:.200} for {actions[turn]!r:.200}"
            break
    if not n:
        return Inapplicable("the oracle's replies have no numbers that count")
    subject.require_chance("the oracle's reply with a number one larger or smaller", won, n, example)
    return f"{len(won)} of {n} neighbours won"


def needs_every_round(subject: Subject) -> str:
    """If the oracle repeats an action, its episode without the last repetition wins no more than chance explains.

    Calls of tools and messages in plain words do not count, because they may ask for the same thing again.
    """
    if subject.task.max_turns == 1:
        return Inapplicable("for tasks of several turns")
    env, won, n = remembering(subject.make()), list[int](), 0
    for seed, steps in enumerate(subject.oracle_episodes):
        actions = [step.action for step in steps]
        again = [turn for turn, action in enumerate(actions) if action in actions[:turn]]
        if not steps[-1].is_win or not again:
            continue
        task, repeated = unwrap(env), actions[again[-1]]
        if task.parse_reply(repeated).tool_calls or _is_message(task, repeated):
            continue
        n += 1
        won += [seed] if subject.wins(env, seed, repeat([*actions[: again[-1]], *actions[again[-1] + 1 :]])) else []
    if not n:
        return Inapplicable("the oracle repeats no action")
    subject.require_chance("the oracle's episode without its last repeated action", won, n)
    return f"{len(won)} of {n} shorter episodes won"


def is_not_won_by_meaningless_text(subject: Subject) -> str:
    """The oracle's last reply with consonants for the words that nothing had shown wins no more than chance explains.

    Words keep their first letter and their length, so the text keeps its shape.
    """
    env, rng, won, n = remembering(subject.make()), random.Random(0), list[int](), 0
    for seed, steps in enumerate(subject.oracle_episodes):
        shown, _ = env.reset(seed=seed)
        texts = [shown, unwrap(env).system_prompt or "", str(unwrap(env).tools), *(s.observation for s in steps[:-1])]
        last = _meaningless(steps[-1].action, set(_WORD.findall(" ".join(texts).casefold())), rng)
        if last == steps[-1].action:
            continue
        n += 1
        if subject.wins(env, seed, repeat([*(step.action for step in steps[:-1]), last])):
            won.append(seed)
    if not n:
        return Inapplicable("all words of the oracle's replies have been shown")
    subject.require_chance("the oracle's reply with consonants for its words", won, n)
    return f"{len(won)} of {n} meaningless replies won"


def _meaningless(text: str, known: set[str], rng: random.Random) -> str:
    markup = {i for found in _MARKUP.finditer(text) for i in range(*found.span())}

    def spoilt(found: re.Match[str]) -> str:
        word = found[0]
        if found.start() in markup or len(word) < 2 or word.casefold() in known:
            return word
        rest = "".join(rng.choice(_CONSONANTS) for _ in word[1:])
        return word[0] + (rest.upper() if word.isupper() else rest)

    return _WORD.sub(spoilt, text)


def understands_other_wordings(subject: Subject) -> str:
    """The oracle also wins if its messages in plain words are worded in other common ways."""
    if subject.task.max_turns == 1:
        return Inapplicable("for tasks of several turns")
    env, names = remembering(subject.make()), set[str]()
    for seed, steps in enumerate(subject.oracle_episodes[: max(1, subject.effort.n_seeds // _SHARE)]):
        messages = [step for step in steps if _is_message(unwrap(env), step.action)]
        if not messages or not steps[-1].is_win:
            continue
        for name, reworded in _WORDINGS.items():
            if all(reworded(step.action) == step.action for step in messages):
                continue
            names.add(name)
            played = play(env, seed, partial(_ask_reworded, reworded))
            different = (step for step in played if step.action not in {step.action for step in steps})
            first = next(different, played[0])
            require(
                played[-1].is_win,
                f"seed {seed}: the oracle does not win with its messages {name}: {first.action!r:.200} was answered "
                f"{first.observation!r:.120}; understand common wordings of {messages[0].action!r:.200}",
            )
    return f"{len(names)} wordings" if names else Inapplicable("the oracle writes no messages in plain words")


def _ask_reworded(reworded: Callable[[str], str], task: TextEnv, observation: str) -> str:
    action = task.oracle()
    return reworded(action) if _is_message(task, action) else action


def _is_message(task: TextEnv, action: str) -> bool:
    reply = task.parse_reply(action)
    return reply.answer is None and not reply.tool_calls and not reply.problems and len(action.split()) > 1


_SHORT_FORMS = {"What is": "What's", "what is": "what's", "I would": "I'd", "That is": "That's", "do not": "don't"}
_WORDINGS: dict[str, Callable[[str], str]] = {
    "after a greeting": "Hello! {}".format,
    "after please": "Please help me with this. {}".format,
    "after a line of thought": "One more thing, then.\n\n{}".format,
    "before thanks": "{} Thank you!".format,
    "in small letters": str.lower,
    "in bold": "**{}**".format,
    "without a mark at the end": lambda text: text.rstrip(".?!"),
    "as an indirect question": lambda text: f"I would like to know: {text[:1].lower()}{text[1:]}",
    "with which for what": lambda text: re.sub(r"\b([Ww])hat (?=\w+ (?:would|do|does|is|are)\b)", r"\1hich ", text),
    "with short forms": lambda text: re.sub("|".join(_SHORT_FORMS), lambda found: _SHORT_FORMS[found[0]], text),
}
