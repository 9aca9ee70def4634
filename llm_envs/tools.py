"""A tool made from a typed Python function.

The signature becomes the JSON Schema that the model is shown, and each call's arguments are checked against it.
Whatever a call comes to is data: a wrong argument, or an exception in the function, is a result that the model can
read.
"""

from __future__ import annotations

import inspect
import json
import time
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.spaces import encodable
from llm_envs.types import ToolCall, ToolResult

__all__ = ["INVALID_ARGUMENTS", "UNKNOWN_TOOL", "Tool", "call_tool"]

UNKNOWN_TOOL = "UnknownToolError"
"""`ToolResult.error` of a call whose name no tool has."""
INVALID_ARGUMENTS = "InvalidArgumentsError"
"""`ToolResult.error` of a call whose arguments do not fit the tool's signature."""

MAX_OUTPUT_CHARACTERS = 10_000
"""Longer outputs are cut, with a note: a tool must not fill the model's context on its own."""
_QUOTE_LENGTH = 60

Converter = Callable[[Any], Any]
"""JSON value in, Python value out; raises `_Mismatch`."""


class _Mismatch(Exception):
    """A JSON value does not fit an annotation; the message says what was expected."""


class Tool:
    """A function that the model can call.

    Parameters may be annotated with `str`, `int`, `float`, `bool`, `None`, `Any`, `list[...]`, `dict[str, ...]`,
    `Literal[...]` and unions of these. A value that is unmistakable is converted: `"3"` or `3.0` for an `int`, `5` for
    a `str`.

    Args:
        function: The function. Its docstring's first line describes it; a Google-style `Args:` section its parameters.
        name: What the model calls it; the function's name by default.
        description: In place of the docstring's first line.

    Raises:
        InvalidConfigError: If the signature cannot be turned into a schema.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str | None = None
    ) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        docs = inspect.getdoc(function) or ""
        self.description: str = description or docs.partition("\n")[0]
        self._converters: dict[str, Converter] = {}
        self._required: tuple[str, ...] = ()
        self.parameters: dict[str, Any] = self._read_signature(_parameter_docs(docs))
        """JSON Schema of the arguments."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema in OpenAI's shape, fresh."""
        parameters = json.loads(json.dumps(self.parameters))
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def __call__(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments, call the function, and return what came of it. Never raises an `Exception`."""
        started = time.perf_counter()
        error: str | None = None
        try:
            output = _to_text(self.function(**self._bind(arguments)))
        except _Mismatch as mismatch:
            output, error = f"Error: {mismatch}", INVALID_ARGUMENTS
        except InvalidActionError as refusal:
            output, error = f"Error: {refusal}", "InvalidActionError"
        except Exception as exception:  # a tool's failure is the model's to read, never the episode's end
            output, error = f"Error: {type(exception).__name__}: {exception}", type(exception).__name__
        output = encodable(output)
        if len(output) > MAX_OUTPUT_CHARACTERS:
            n_cut = len(output) - MAX_OUTPUT_CHARACTERS
            output = f"{output[:MAX_OUTPUT_CHARACTERS]}\n[cut: {n_cut} more characters]"
        return ToolResult(self.name, arguments, output, error is None, error, time.perf_counter() - started)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the function: converters are made again."""
        return _rebuild, (self.function, self.name, self.description)

    def _bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        converters = self._converters
        bound: dict[str, Any] = {}
        for name, value in arguments.items():
            converter = converters.get(name)
            if converter is None:
                known = ", ".join(converters) or "none"
                raise _Mismatch(f"{self.name} has no argument {_quote(name)}; its arguments are: {known}")
            try:
                bound[name] = converter(value)
            except _Mismatch as mismatch:
                raise _Mismatch(f"argument {name} of {self.name} is {_quote(value)}; it must be {mismatch}") from None
        for name in self._required:
            if name not in bound:
                raise _Mismatch(f"{self.name} needs the argument {name}")
        return bound

    def _read_signature(self, docs: Mapping[str, str]) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        try:
            hints = typing.get_type_hints(self.function)
        except (NameError, TypeError) as error:
            raise InvalidConfigError(f"tool {self.name!r}: its annotations cannot be read: {error}") from error
        for parameter in inspect.signature(self.function).parameters.values():
            where = f"tool {self.name!r}, parameter {parameter.name!r}"
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise InvalidConfigError(f"{where}: only parameters that can be given by name are supported.")
            if parameter.name not in hints:
                raise InvalidConfigError(
                    f"{where} has no type annotation: give it one, the model's schema is made of it."
                )
            schema, self._converters[parameter.name] = _describe(hints[parameter.name], where)
            if parameter.name in docs:
                schema["description"] = docs[parameter.name]
            properties[parameter.name] = schema
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        self._required = tuple(required)
        return {"type": "object", "properties": properties, "required": required}


def call_tool(tools: Mapping[str, Tool], call: ToolCall) -> ToolResult:
    """Run one call with the tool of its name; an unknown name is a result too."""
    tool = tools.get(call.name)
    if tool is None:
        output = f"Error: there is no tool {_quote(call.name)}; known: {', '.join(tools) or 'none'}"
        return ToolResult(encodable(call.name), call.arguments, output, False, UNKNOWN_TOOL)
    return tool(call.arguments)


def _rebuild(function: Callable[..., Any], name: str, description: str) -> Tool:
    return Tool(function, name=name, description=description)


def _quote(value: object) -> str:
    """Quote what a model wrote in printable ASCII, shortened."""
    text = ascii(value) if not isinstance(value, str) else ascii(value[:_QUOTE_LENGTH])
    return text if len(text) <= 2 * _QUOTE_LENGTH else text[: 2 * _QUOTE_LENGTH] + "..."


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple | bool) or value is None:
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _parameter_docs(docs: str) -> dict[str, str]:
    """Return what the `Args:` section of a Google-style docstring says of each parameter."""
    found: dict[str, str] = {}
    _, _, section = docs.partition("\nArgs:\n")
    name = ""
    for line in section.splitlines():
        if not line.startswith("    "):
            break
        head, colon, rest = line.strip().partition(":")
        if colon and line[4:5] != " ":
            name = head.partition(" ")[0]
            found[name] = rest.strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}"
    return found


def _describe(annotation: Any, where: str) -> tuple[dict[str, Any], Converter]:
    """Return the JSON Schema of a type annotation, and the function that checks and converts a JSON value to it."""
    if annotation in _SCALARS:
        name, converter = _SCALARS[annotation]
        return ({"type": name} if name else {}), converter
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is list or origin in (list, Sequence):
        schema, convert_item = _describe(arguments[0] if arguments else Any, where)
        return {"type": "array"} | ({"items": schema} if schema else {}), _list_converter(convert_item)
    if annotation is dict or (origin in (dict, Mapping) and arguments[0] is str):
        schema, convert_value = _describe(arguments[1] if arguments else Any, where)
        extra = {"additionalProperties": schema} if schema else {}
        return {"type": "object"} | extra, _dict_converter(convert_value)
    if origin is Literal:
        return {"enum": list(arguments)}, _literal_converter(arguments)
    if origin in (Union, types.UnionType):
        described = [_describe(argument, where) for argument in arguments]
        return {"anyOf": [schema for schema, _ in described]}, _union_converter([convert for _, convert in described])
    raise InvalidConfigError(
        f"{where}: the annotation {annotation!r} has no JSON form; use str, int, float, bool, list[...], "
        "dict[str, ...], Literal[...], None or a union of these."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _convert_string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if _is_number(value):
        return str(value)
    raise _Mismatch("a string")


def _convert_integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= 400 and value.isascii() and value.strip().lstrip("+-").isdigit():
        try:
            return int(value)
        except ValueError:
            pass
    raise _Mismatch("a whole number")


def _convert_number(value: Any) -> float:
    try:
        if _is_number(value) or (isinstance(value, str) and len(value) <= 400):
            number = float(value)
            if number - number == 0:  # neither infinite nor NaN
                return number
    except (ValueError, OverflowError):
        pass
    raise _Mismatch("a number")


def _convert_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "True", "false", "False"):
        return str(value).lower() == "true"
    raise _Mismatch("true or false")


def _convert_null(value: Any) -> None:
    if value is not None:
        raise _Mismatch("null")


def _convert_anything(value: Any) -> Any:
    return value


_SCALARS: dict[Any, tuple[str, Converter]] = {
    str: ("string", _convert_string),
    int: ("integer", _convert_integer),
    float: ("number", _convert_number),
    bool: ("boolean", _convert_boolean),
    type(None): ("null", _convert_null),
    None: ("null", _convert_null),
    Any: ("", _convert_anything),
}


def _list_converter(convert_item: Converter) -> Converter:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _Mismatch("a list")
        try:
            return [convert_item(item) for item in value]
        except _Mismatch as mismatch:
            raise _Mismatch(f"a list of which each item is {mismatch}") from None

    return convert


def _dict_converter(convert_value: Converter) -> Converter:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Mismatch("an object")
        try:
            return {key: convert_value(item) for key, item in value.items()}
        except _Mismatch as mismatch:
            raise _Mismatch(f"an object of which each value is {mismatch}") from None

    return convert


def _literal_converter(choices: tuple[Any, ...]) -> Converter:
    def convert(value: Any) -> Any:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return choice
        raise _Mismatch("one of " + ", ".join(map(repr, choices)))

    return convert


def _union_converter(converters: Sequence[Converter]) -> Converter:
    def convert(value: Any) -> Any:
        expected = []
        for converter in converters:
            try:
                converted = converter(value)
            except _Mismatch as mismatch:
                expected.append(str(mismatch))
            else:
                if type(converted) is type(value):
                    return converted
        for converter in converters:  # nothing fits as it is: take the first that can be converted
            try:
                return converter(value)
            except _Mismatch:
                continue
        raise _Mismatch(" or ".join(expected))

    return convert
