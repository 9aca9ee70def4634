"""The scorer of `ifeval.py`: the checkers of the package `if-verifiable`, which are Google's of IFEval.

`child.py` runs it in a process with limits. It imports nothing of this package. See `answer` for the departures from
the package's own `evaluate_output_for_sample`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def load() -> None:
    """Import the checkers, and give nltk its model of English sentences."""
    package = importlib.util.find_spec("if_verifiable")
    assert package is not None
    # The package's `__init__` imports `datasets`, which takes seconds and is of no use here.
    bare = ModuleType("if_verifiable")
    bare.__path__ = list(package.submodule_search_locations or ())
    sys.modules["if_verifiable"] = bare
    instructions: Any = importlib.import_module("if_verifiable.ifeval.instructions")
    langdetect: Any = importlib.import_module("langdetect")
    importlib.import_module("if_verifiable.ifeval.instructions_registry")
    importlib.import_module("if_verifiable.common")
    langdetect.DetectorFactory.seed = 0
    # The checkers take a text for right whose language cannot be told. Here it raises, and is wrong.
    instructions.langdetect = SimpleNamespace(detect=langdetect.detect, LangDetectException=())
    langdetect.detect("It loads its profiles of languages with the first text.")
    provide_punkt()


def provide_punkt() -> None:
    """Make nltk find its model of English sentences: its own if it is installed, or the copy in a package."""
    nltk: Any = importlib.import_module("nltk")
    with contextlib.suppress(LookupError):
        nltk.data.find("tokenizers/punkt_tab/english/")
        return
    model: Any = importlib.import_module("punkt.data.english")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "tokenizers", "punkt_tab", "english")
        folder.mkdir(parents=True)
        tables = {
            "abbrev_types.txt": model.ABBREV_TYPES,
            "sent_starters.txt": model.SENT_STARTERS,
            "collocations.tab": ["\t".join(pair) for pair in model.COLLOCATIONS],
            "ortho_context.tab": [f"{word}\t{flags}" for word, flags in model.ORTHO_CONTEXT.items()],
        }
        for name, lines in tables.items():
            (folder / name).write_text("\n".join(lines), encoding="utf-8")
        nltk.data.path.insert(0, root)
        nltk.word_tokenize("Both tokenizers. They read the model once.")
        utilities: Any = importlib.import_module("if_verifiable.ifeval.instructions_util")
        utilities.count_sentences("It keeps the tokenizer.")
        nltk.data.path.remove(root)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return which instructions a response follows.

    Departures from the package:

    1. A check that raises (a nested text, a language that cannot be told) is not followed.
    2. `letter_frequency` counts the given character even if it is not a letter; the package draws a letter at random.
    3. langdetect, which draws at random, has the seed 0.

    Args:
        request: `prompt`, `instruction_id_list`, `kwargs` as in the data, `response`.

    Returns:
        `strict` and `loose`: a bool for each instruction; both empty for a response without text.
    """
    common: Any = sys.modules["if_verifiable.common"]
    response = common.strip_thinking(request["response"])
    if not response:
        return {"strict": [], "loose": []}
    variants = [variant for variant in common.get_loose_transformations(response) if variant.strip()]
    follows = [
        check(name, kwargs, request["prompt"], variants)
        for name, kwargs in zip(request["instruction_id_list"], request["kwargs"], strict=True)
    ]
    return {"strict": [found[0] for found in follows], "loose": [any(found) for found in follows]}


def check(name: str, kwargs: dict[str, Any], prompt: str, variants: list[str]) -> list[bool]:
    """Return for each variant of a response whether it follows an instruction; the first variant is the response."""
    if name == "keywords:letter_frequency" and not "a" <= kwargs["letter"].lower() <= "z":
        counts = [Counter(variant.lower())[kwargs["letter"]] for variant in variants]
        is_least, n = kwargs["let_relation"] == "at least", kwargs["let_frequency"]
        return [(count >= n) == is_least for count in counts]
    registry: Any = sys.modules["if_verifiable.ifeval.instructions_registry"]
    checker = registry.INSTRUCTION_DICT[name](name)
    random.seed(0)
    checker.build_description(**kwargs)
    if "prompt" in (checker.get_instruction_args() or ()):
        checker.build_description(prompt=prompt)
    return [_follows(checker, variant) for variant in variants]


def _follows(checker: Any, response: str) -> bool:
    try:
        return bool(checker.check_following(response))
    except Exception:
        return False
