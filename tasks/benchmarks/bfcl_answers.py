"""Arguments that BFCL's answer key accepts: the oracle of the categories with one turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["arguments_of"]

_OPTIONAL = ""
"""A possible value which means that the argument may be left out."""


def arguments_of(function: Mapping[str, Any], possible: Mapping[str, list[Any]], category: str) -> dict[str, Any]:
    """Return the first possible values of a call's arguments.

    Args:
        function: The function's document.
        possible: Parameter -> its possible values.
        category: In those of Java and JavaScript, values are texts of that language.
    """
    arguments = {}
    for name, values in possible.items():
        given = [value for value in values if value != _OPTIONAL]
        if not given:
            if name in function["parameters"]["required"]:
                arguments[name] = _OPTIONAL
            continue
        specification = function["parameters"]["properties"].get(name)
        if specification is None:  # a slip of the data
            continue
        value = _plain(given[0])
        if category == "simple_java":
            value = _java(value, specification)
        elif category == "simple_javascript":
            value = _javascript(value, specification)
        arguments[name] = value
    return arguments


def _plain(value: Any) -> Any:
    """Return a value whose dicts have, for each key, its first possible value."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {}
    for key, values in value.items():
        given = [each for each in values if each != _OPTIONAL] if isinstance(values, list) else [values]
        if given:
            plain[key] = _plain(given[0])
    return plain


def _java(value: Any, specification: Mapping[str, Any]) -> str:
    kind = specification["type"]
    if isinstance(value, list):
        element = specification.get("items", {}).get("type", "String")
        items = ", ".join(f"{item}L" if element == "long" else _java_item(item) for item in value)
        if kind == "Array":
            return f"new {element}[]{{{', '.join(map(_bare, value)) if element == 'String' else items}}}"
        return f"new ArrayList<{element}>(Arrays.asList({items}))"
    if isinstance(value, dict):
        puts = " ".join(f'put("{key}", {_java_item(item)});' for key, item in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    suffix = {"long": "L", "float": "f"}.get(kind, "")
    return f"{_bare(value)}{suffix}" if isinstance(value, int | float) and not isinstance(value, bool) else _bare(value)


def _java_item(value: Any) -> str:
    return json.dumps(value)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _javascript(value: Any, specification: Mapping[str, Any]) -> str:
    if specification["type"] == "Bigint":
        return f"{value}n"
    return _bare(value)
