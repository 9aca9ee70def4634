"""Drawing the cases of `function_calling.py`: what is asked for, the functions for it, and others that look alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_envs.env import split_of
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.tools.function_links import check_links, draw_links
from llm_envs.tasks.tools.functions import (
    GIVES,
    LARGE,
    NEEDS,
    NESTED,
    SYNONYMS,
    VERBS,
    function_name,
    is_value,
    nouns_of,
    parameters_of,
    request,
)

__all__ = ["check_case", "draw_case", "fitting", "signature"]

Function = dict[str, Any]
Step = dict[str, Any]
_OTHER_SIZE = {"small": "large", "large": "small"}
_SAME_AGAIN = 0.25
"""Share of the parts for which a function of another part is to be called once more."""
_BOTH_SIZES = 0.3
"""Share of the functions for groups, at levels with references, that have a twin for groups of the other size."""
_STARTS = tuple(verb for verb in VERBS if verb not in NEEDS)
_TRIES = 50
"""Look-alikes that are tried before any other function will do."""


def signature(function: Mapping[str, Any]) -> list[Any]:
    """Return what a function is in substance, whatever its name: what decides its split."""
    names = sorted(function["parameters"])
    return [function["verb"], function["noun"], function["sizes"], names, sorted(function["required"])]


def draw_case(random: Random, split: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return functions of a split, in random order, and the parts of a request."""
    draft = _Draft(random, split, is_linked=settings.get("is_linked", False))
    for _ in range(settings["parts"]):
        draft.add_part(pick(random, settings["kinds"]), settings["longest"])
    if draft.is_linked:
        draw_links(random, draft.parts)
    draft.add_look_alikes(settings["tools"])
    salt = between(random, 0, 10**9)
    return {"functions": shuffled(random, draft.functions), "parts": draft.parts, "salt": salt}


class _Draft:
    """A case while it is drawn."""

    def __init__(self, random: Random, split: str, *, is_linked: bool) -> None:
        self.random, self.split, self.is_linked = random, split, is_linked
        self.verbs = tuple(VERBS) + (_STARTS * 3 if is_linked else ())
        """Verbs to draw a first step from, with references more of those that are given no id: they have a party."""
        self.sizes = ("", "small", "large") + ("small", "large") * is_linked
        self.functions: list[Function] = []
        self.parts: list[dict[str, Any]] = []
        self.taken: set[tuple[str, str]] = set()
        """What is there already, and what must not be, as (verb, noun)."""

    def add_part(self, kind: str, longest: int) -> None:
        """Add a part that is to be done ("do"), lacks its function ("none") or an argument ("missing")."""
        random = self.random
        length = between(random, 1, longest) if kind == "do" else 1
        again = [function for function in self.functions if function["is_free"]]
        if kind == "do" and length == 1 and again and random() < _SAME_AGAIN:
            self.parts.append({"steps": [self._step(pick(random, again), follows=False)], "missing": ""})
            return
        verbs, noun = self._path(length)
        drawn = [self._function(verb, noun) for verb in verbs]
        self.taken.update((verb, noun) for verb in verbs)
        steps = [self._step(function, follows=place > 0) for place, function in enumerate(drawn)]
        missing = ""
        if kind == "missing":
            missing = pick(random, [n for n in drawn[0]["required"] if n != "people" or not drawn[0]["sizes"]] or [""])
        if kind != "none":
            self.functions += drawn
        if kind == "none" or (self.is_linked and random() < _BOTH_SIZES):
            self._add_other_size(drawn[0])
        self.parts.append({"steps": steps, "missing": missing})

    def _path(self, length: int) -> tuple[list[str], str]:
        """Draw what is to be done, each with what the one before returns, to something that is free for it."""
        random = self.random
        while True:
            noun, verbs = pick(random, nouns_of(self.split)), [pick(random, self.verbs)]
            while len(verbs) < length and verbs[-1] in GIVES:
                verbs.append(pick(random, [verb for verb in NEEDS if NEEDS[verb] == GIVES[verbs[-1]]]))
            if len(verbs) == length and not any((verb, noun) in self.taken for verb in verbs):
                return verbs, noun

    def _function(self, verb: str, noun: str) -> Function:
        """Draw a function of the split: its name, its parameters, and those that are required."""
        random = self.random
        known = [name for name in parameters_of(verb, noun) if self.is_linked or name not in NESTED]
        while True:
            names = sample(random, known, between(random, 2, 3 if verb in NEEDS else 5))
            if self.is_linked and verb not in NEEDS:
                names = [*(name for name in names if name != "people"), "people"]
            sizes = pick(random, self.sizes) if "people" in names else ""
            required = [name for name in names if (sizes and name == "people") or random() < 0.7]
            function: dict[str, Any] = {
                "verb": verb,
                "noun": noun,
                "sizes": sizes,
                "word": pick(random, SYNONYMS[verb]),
            }
            function |= {"parameters": names, "required": required, "is_free": True}
            can_miss = [name for name in required if name != "people" or not sizes]
            if can_miss and split_of(signature(function)) == self.split:
                return function

    def _add_other_size(self, function: Function) -> None:
        """Add the same function for groups of the other size, where there is one of the split."""
        if function["sizes"]:
            other = function | {"sizes": _OTHER_SIZE[function["sizes"]], "is_free": False}
            if split_of(signature(other)) == self.split:
                self.functions.append(other)

    def _step(self, function: Function, *, follows: bool) -> Step:
        """Draw the arguments of a call: those that are required, and some of the others."""
        random, verb = self.random, function["verb"]
        known, arguments = parameters_of(verb, function["noun"]), {}
        for name in function["parameters"]:
            if name in function["required"] or random() < 0.5:
                arguments[name] = known[name].draw(random)
        if function["sizes"]:
            arguments["people"] = between(random, LARGE, 16) if function["sizes"] == "large" else between(random, 1, 8)
        if verb in NEEDS and not follows:
            arguments[NEEDS[verb]] = f"{NEEDS[verb][0].upper()}{between(random, 10_000, 99_999)}"
        return {"verb": verb, "noun": function["noun"], "arguments": arguments}

    def add_look_alikes(self, n_functions: int) -> None:
        """Add functions that do something else to the same, or the same to something else."""
        random, n_tries = self.random, 0
        steps = [step for part in self.parts for step in part["steps"]]
        while len(self.functions) < n_functions:
            near, n_tries = pick(random, steps), n_tries + 1
            verb, noun = near["verb"], near["noun"]
            if random() < 0.5 or n_tries > _TRIES:
                verb = pick(random, tuple(VERBS))
            if verb == near["verb"] or n_tries > _TRIES:
                noun = pick(random, nouns_of(self.split))
            if (verb, noun) not in self.taken:
                self.taken.add((verb, noun))
                self.functions.append(self._function(verb, noun))
        for function in self.functions:
            function.pop("is_free", None)


def fitting(functions: list[Function], step: Mapping[str, Any]) -> Function | None:
    """Return the function that does a step, or None."""
    size = "large" if step["arguments"].get("people", 0) >= LARGE else "small"
    for function in functions:
        if (function["verb"], function["noun"]) == (step["verb"], step["noun"]) and function["sizes"] in ("", size):
            return function
    return None


def check_case(problem: Mapping[str, Any]) -> None:
    """Raise `InvalidActionError` if functions and parts do not hang together."""
    functions, parts = problem["functions"], problem["parts"]
    for function in functions:
        known = parameters_of(function["verb"], function["noun"])
        if function["word"] not in SYNONYMS[function["verb"]] or function["sizes"] not in ("", "small", "large"):
            raise InvalidActionError(f"the word or the sizes of {function} are none")
        if not set(function["required"]) <= set(function["parameters"]) <= set(known):
            raise InvalidActionError(f"{function_name(function)} has parameters that are not known")
    if len({function_name(function) for function in functions}) < len(functions) or not functions or not parts:
        raise InvalidActionError("there must be functions of different names, and a request")
    for part in parts:
        found = [fitting(functions, step) for step in part["steps"]]
        if not found or (len(found) > 1 and None in found):
            raise InvalidActionError("each part must have steps; of several, each needs a function")
        for place, (step, function) in enumerate(zip(part["steps"], found, strict=True)):
            _check_step(step, function, part["steps"][place - 1]["verb"] if place else None)
            request(step, follows=place > 0, without=part["missing"])
        if part["missing"] and (found[0] is None or part["missing"] not in found[0]["required"]):
            raise InvalidActionError("what is missing must be required")
        if part["missing"] and len(found) > 1:
            raise InvalidActionError("only a part of one step can lack an argument")
    check_links(parts)


def _check_step(step: Mapping[str, Any], function: Function | None, before: str | None) -> None:
    verb, arguments = step["verb"], dict(step["arguments"])
    known = parameters_of(verb, step["noun"])
    if before is not None and NEEDS.get(verb) != GIVES.get(before, ""):
        raise InvalidActionError(f"{verb} cannot follow {before}")
    if verb in NEEDS and before is None:
        identifier = arguments.pop(NEEDS[verb])
        if not isinstance(identifier, str) or not identifier.isalnum():
            raise InvalidActionError("an id must be a word")
    if not all(name in known and is_value(known[name].schema, value) for name, value in arguments.items()):
        raise InvalidActionError(f"the arguments {arguments} do not fit {verb}")
    if function is not None and not set(function["required"]) <= arguments.keys() <= set(function["parameters"]):
        raise InvalidActionError(f"the arguments of {verb} must be all that are required, and none that is not known")
