"""BFCL's data, read from the package `bfcl-eval` without importing it: entries, functions as tools, answer keys.

The conversions are those of the package for models that call functions (its "FC" mode): hints for Java and JavaScript,
types of JSON Schema, and "_" for "." in names.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_envs.errors import MissingExtraError

__all__ = ["CATEGORIES", "Category", "Entry", "entries", "package_folder", "tool_of"]

Call = tuple[str, list[Any], dict[str, Any]]
"""Name, positional arguments, named arguments."""


@dataclass(frozen=True, slots=True)
class Category:
    """One of the benchmark's categories."""

    n: int
    """Number of entries."""
    description: str
    chance_rate: float = 0.05


CATEGORIES: Mapping[str, Category] = {
    "simple_python": Category(400, "one function, one call"),
    "simple_java": Category(100, "one function of Java, one call"),
    "simple_javascript": Category(50, "one function of JavaScript, one call"),
    "multiple": Category(200, "two to four functions, one call"),
    "parallel": Category(200, "one function, several calls"),
    "parallel_multiple": Category(200, "several functions, several calls"),
    "irrelevance": Category(240, "no function fits", 1.0),
    "live_simple": Category(258, "users' requests: one function, one call"),
    "live_multiple": Category(1053, "users' requests: up to 37 functions, one call"),
    "live_parallel": Category(16, "users' requests: one function, several calls"),
    "live_parallel_multiple": Category(24, "users' requests: several functions, several calls"),
    "live_irrelevance": Category(884, "users' requests: no function fits", 1.0),
    "live_relevance": Category(16, "users' requests: any call will do", 1.0),
    "multi_turn_base": Category(200, "one to six requests, stateful functions"),
    "multi_turn_miss_func": Category(200, "the same, with a function that comes later"),
    "multi_turn_miss_param": Category(200, "the same, with an argument that comes later"),
    "multi_turn_long_context": Category(200, "the same, with long results"),
}
_LANGUAGES = {"simple_java": ("Java 8 SDK", "Java"), "simple_javascript": ("JavaScript", "JavaScript")}
_DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_SCHEMA_TYPES = {
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
}
"""The benchmark's types -> JSON Schema's; all others are strings."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One problem."""

    turns: list[list[dict[str, str]]]
    """The messages of each turn."""
    functions: list[dict[str, Any]]
    """Their documents as the data have them; for several turns those that are there from the beginning."""
    answers: list[Any]
    """The possible answers of one turn; or the right calls of each of several turns. Empty without an answer key."""
    late_functions: dict[int, list[dict[str, Any]]]
    """Turn -> functions that are told then."""
    world: dict[str, Any]
    """`initial_config` and `involved_classes`, for several turns."""

    @property
    def all_functions(self) -> list[dict[str, Any]]:
        """The documents of all turns."""
        return [*self.functions, *(function for late in self.late_functions.values() for function in late)]


def package_folder() -> Path:
    """Return the folder of the installed package.

    Raises:
        MissingExtraError: If it is not installed.
    """
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("mpmath") is None:
        raise MissingExtraError(
            "llm/BFCL-v0 needs mpmath and bfcl-eval: pip install 'llm-envs[benchmarks]', then pip install --no-deps "
            "bfcl-eval (its requirements pin old versions, and are not needed)."
        )
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=len(CATEGORIES))
def entries(category: str) -> dict[str, Entry]:
    """Return the entries of a category by their ids."""
    folder = package_folder() / "data"
    name = f"BFCL_v4_{category}.json"
    rows = _lines(folder / name)
    key = folder / "possible_answer" / name
    answers = {row["id"]: row["ground_truth"] for row in _lines(key)} if key.is_file() else {}
    return {row["id"]: _entry(row, answers.get(row["id"], []), folder) for row in rows}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _entry(row: dict[str, Any], answers: list[Any], folder: Path) -> Entry:
    if "involved_classes" not in row:
        return Entry(row["question"], row["function"], answers, {}, {})
    documents = {
        function["name"]: function
        for name in row["involved_classes"]
        for function in _lines(folder / "multi_turn_func_doc" / f"{_DOCUMENTS[name]}.json")
    }
    late = {
        int(turn): [documents.pop(name) for name in names if name in documents]
        for turn, names in row.get("missed_function", {}).items()
    }
    world = {"initial_config": row["initial_config"], "involved_classes": row["involved_classes"]}
    calls = [[_read_call(text) for text in turn] for turn in answers]
    return Entry(row["question"], list(documents.values()), calls, late, world)


def _read_call(text: str) -> Call:
    """Read a call of the answer key, such as "cd(folder='document')": a name and literals."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return call.func.id, [ast.literal_eval(value) for value in call.args], named


def tool_of(function: Mapping[str, Any], category: str) -> dict[str, Any]:
    """Return a function's document as a tool.

    Args:
        function: The document.
        category: Decides the programming language, which the description tells.
    """
    document = json.loads(json.dumps(function))
    syntax, language = _LANGUAGES.get(category, ("Python 3", None))
    document["description"] += f" Note that the provided function is in {syntax} syntax."
    parameters = document["parameters"]
    if language is not None:
        for parameter in parameters["properties"].values():
            _describe_string(parameter, language)
    document["name"] = document["name"].replace(".", "_")
    parameters["type"] = "object"
    _convert_types(parameters["properties"])
    return {"type": "function", "function": document}


def _describe_string(parameter: dict[str, Any], language: str) -> None:
    """Turn a parameter of another language into a string, and tell its type."""
    kind = parameter["type"]
    if kind == "any":
        text = f" This parameter can be of any type of {language} object in string representation."
    else:
        text = f" This is {language} {kind} type parameter in string representation."
    if kind in ("ArrayList", "Array", "array"):
        text += (
            f" The list elements are of type {parameter.pop('items')['type']}; they are not in string representation."
        )
    if kind == "dict" and "properties" in parameter:
        fields = json.dumps(parameter.pop("properties"))
        text += " The dictionary entries have the following schema; they are not in string representation. " + fields
    parameter["description"] += text
    parameter["type"] = "string"


def _convert_types(properties: dict[str, Any]) -> None:
    for parameter in properties.values():
        kind = parameter.get("type")
        if kind == "float":
            parameter["format"] = "float"
            parameter["description"] = parameter.get("description", "") + " This is a float type value."
        parameter["type"] = _SCHEMA_TYPES.get(kind, "string")
        if "properties" in parameter and parameter["type"] in ("array", "object"):
            _convert_types(parameter["properties"])
            continue
        items = parameter.get("items")
        if items is not None and parameter["type"] in ("array", "object"):
            items["type"] = _SCHEMA_TYPES.get(items["type"], "string")
            if items["type"] == "array" and "items" in items:
                items["items"]["type"] = _SCHEMA_TYPES.get(items["items"]["type"], "string")
            elif items["type"] == "object" and "properties" in items:
                _convert_types(items["properties"])
