"""The script of `reasoning_gym.py`'s child process: makes items of reasoning-gym's data sets, and scores answers.

It imports nothing of this package. Five scorers hand an answer to sympy's parser, and four to `eval`. Before that, an
expression must consist of numbers, operators and known names, and `eval` reads literals only.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import random
import re
from functools import lru_cache
from typing import Any

MAY_COMPILE = True
"""sympy's parser compiles the expressions that are let through here."""
LITERALS = ("algorithmic.string_insertion", "algorithmic.spiral_matrix", "algorithmic.binary_matrix", "games.n_queens")
"""Modules whose scorers call `eval`."""
NAMES = {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "pi"}
EXPRESSIONS: dict[str, tuple[set[str], bool]] = {
    "countdown": (set(), False),
    "puzzle24": (set(), False),
    "polynomial_multiplication": (set(), True),
    "simple_integration": (NAMES, True),
    "intermediate_integration": (NAMES, True),
}
"""Data set -> the names that an expression may have, and whether it may have variables of one letter, and powers."""
MAX_CHARACTERS = 1_000
_TOWER = re.compile(r"\*\*\s*[\w.]+\s*\*\*|\*\*\s*\d{4}")
"""Powers of powers, and long exponents."""
_TOKEN = re.compile(r"\s+|(?P<name>[A-Za-z_]\w*)|\d{1,12}(?:\.\d{1,12})?(?![\w.])|\*\*|[-+*/()]")


def load() -> None:
    """Import the package."""
    import reasoning_gym  # noqa: F401

    for name in LITERALS:
        vars(importlib.import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the item of a seed, `{"question", "answer"}`; or, for an answer, `{"score"}`; or `{"error"}`."""
    try:
        data_set, item = make(request["dataset"], json.dumps(request["config"]), request["seed"])
        item = copy.deepcopy(item)
        if "answer" not in request:
            return {"question": item["question"], "answer": item["answer"] or ""}
        given = request["answer"]
        if not is_allowed(request["dataset"], given):
            return {"score": 0.0}
        return {"score": min(1.0, max(0.0, float(data_set.score_answer(given, item))))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


@lru_cache(maxsize=16)
def make(name: str, config: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a data set with one item, and the item. Some also draw from the global generators."""
    import numpy as np
    from reasoning_gym.factory import create_dataset

    random.seed(seed)
    np.random.seed(seed)
    data_set = create_dataset(name, **{**json.loads(config), "seed": seed, "size": 1})
    return data_set, data_set[0]


def is_allowed(data_set: str, text: str) -> bool:
    """Return whether an answer may be handed to the scorer: for some data sets, only a plain expression may."""
    if data_set not in EXPRESSIONS:
        return True
    names, has_variables = EXPRESSIONS[data_set]
    position = 0
    if len(text) > MAX_CHARACTERS or _TOWER.search(text) or ("**" in text and not has_variables):
        return False
    while position < len(text):
        found = _TOKEN.match(text, position)
        name = found["name"] if found else None
        if found is None or (name is not None and name not in names and not (has_variables and len(name) == 1)):
            return False
        position = found.end()
    return True
