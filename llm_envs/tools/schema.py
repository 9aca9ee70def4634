"""Convert type annotations to JSON Schema, and JSON values to the annotated types.

`describe` returns the schema of an annotation, which the model reads, and the function that checks and converts the
model's value. If the schema comes from an MCP server, `schema_converter` makes that function from the schema.

A value that does not fit raises a `Mismatch`. Its message names the expected form and follows the words "it must be".
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, Union

from llm_envs.errors import InvalidConfigError, extra_needed

__all__ = ["Converter", "Mismatch", "describe", "json_default", "quote", "schema_converter", "with_default"]

Converter = Callable[[Any], Any]
"""JSON value in, Python value out; raises `Mismatch`."""

_QUOTE_LENGTH = 60
_MAX_DIGITS = 400
"""Longer texts are not read as numbers."""


class Mismatch(Exception):
    """A JSON value does not fit an annotation; the message names the expected form."""


def quote(value: object) -> str:
    """Return the model's value as short, printable ASCII, in quotes."""
    text = ascii(value) if not isinstance(value, str) else ascii(value[:_QUOTE_LENGTH])
    return text if len(text) <= 2 * _QUOTE_LENGTH else text[: 2 * _QUOTE_LENGTH] + "..."


def describe(annotation: Any, where: str, within: tuple[Any, ...] = ()) -> tuple[dict[str, Any], Converter]:
    """Return the JSON Schema of a type annotation, and the function that checks and converts a JSON value to it.

    Args:
        annotation: `str`, `int`, `float`, `bool`, `None`, `Any`, `list[...]`, `dict[str, ...]`, `tuple[...]`,
            `set[...]`, `Literal[...]`, an enumeration, a dataclass, a `TypedDict`, a union of these, or one of them as
            `Annotated[..., "description"]`.
        where: The owner of the annotation, for the error message.
        within: Classes whose fields are being described. A class that contains itself is refused: its schema would be
            infinite.

    Raises:
        InvalidConfigError: If the annotation has no JSON form.
    """
    try:
        if annotation in _SCALARS:
            name, converter = _SCALARS[annotation]
            return ({"type": name} if name else {}), converter
    except TypeError:  # unhashable, as Annotated[int, []] is
        pass
    if isinstance(annotation, NewType):
        return describe(annotation.__supertype__, where, within)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        schema, converter = describe(arguments[0], where, within)
        texts = [extra for extra in arguments[1:] if isinstance(extra, str)]
        return schema | ({"description": texts[0]} if texts else {}), converter
    if origin in (Required, NotRequired):
        return describe(arguments[0], where, within)
    if origin is Literal:
        return {"enum": list(arguments)}, _literal_converter(arguments)
    if origin in (Union, types.UnionType):
        described = [describe(argument, where, within) for argument in arguments]
        return {"anyOf": [schema for schema, _ in described]}, _union_converter([convert for _, convert in described])
    found = _describe_collection(annotation, where, within)
    if found is None and isinstance(annotation, type):
        found = _describe_class(annotation, where, within)
    if found is None:
        raise InvalidConfigError(
            f"{where}: the annotation {annotation!r} has no JSON form; use str, int, float, bool, list[...], "
            "dict[str, ...], tuple[...], set[...], Literal[...], an Enum, a dataclass, a TypedDict, None or a union "
            "of these."
        )
    return found


def json_default(value: Any) -> Any:
    """Return a JSON form of a value that `json.dumps` cannot write. Pass this function as its `default`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if hasattr(value, "tolist"):  # an array, or one number of it
        return value.tolist()
    return str(value)


def json_validator(schema: Mapping[str, Any], where: str) -> Any:
    """Return the validator of `jsonschema` for a JSON Schema; it fetches no other documents.

    Raises:
        MissingExtraError: If `jsonschema` is not installed.
        InvalidConfigError: If the schema is not valid.
    """
    with extra_needed(f"{where}: a JSON Schema needs jsonschema: pip install 'llm-envs[tools]'."):
        import jsonschema  # type: ignore[import-untyped]  # it ships no types
        from referencing import Registry
    validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator_class.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidConfigError(f"{where}: this is not a JSON Schema: {error.message[:200]}.") from error
    return validator_class(schema, registry=Registry())


def schema_converter(schema: Mapping[str, Any], where: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that checks a call's arguments against a JSON Schema and converts unambiguous values.

    The library `jsonschema` does the check. A reference to another document is never fetched.

    Args:
        schema: The schema of an object: `{"type": "object", "properties": ...}`.
        where: The owner of the schema, for messages.

    Raises:
        MissingExtraError: If `jsonschema` is not installed.
        InvalidConfigError: If the schema is not valid.
    """
    validator = json_validator(schema, where)
    from jsonschema.exceptions import best_match  # type: ignore[import-untyped]  # it ships no types

    properties = schema.get("properties", {})
    coercers = {name: coerce for name, part in properties.items() if (coerce := _coercer(part)) is not None}

    def convert(arguments: Mapping[str, Any]) -> dict[str, Any]:
        converted = {name: coercers[name](value) if name in coercers else value for name, value in arguments.items()}
        problem = best_match(validator.iter_errors(converted))
        if problem is None:
            return converted
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem.absolute_path)
        place = f"argument {path[1:][:_QUOTE_LENGTH]} of {where}" if path else f"arguments of {where}"
        message = f"{place}: {problem.message[: 4 * _QUOTE_LENGTH]}"
        raise Mismatch(message.encode("ascii", "backslashreplace").decode())

    return convert


def _coercer(schema: Any) -> Converter | None:
    """Return a function that converts unambiguous values to the schema's plain type, and leaves others unchanged."""
    name = schema.get("type") if isinstance(schema, dict) else None
    if name == "array":
        coerce_item = _coercer(schema.get("items"))
        if coerce_item is None:
            return None
        return lambda value: [coerce_item(item) for item in value] if isinstance(value, list) else value
    for scalar, converter in _SCALARS.values():
        if scalar == name and scalar in ("string", "integer", "number", "boolean"):
            return _lenient(converter)
    return None


def _lenient(converter: Converter) -> Converter:
    def convert(value: Any) -> Any:
        try:
            return converter(value)
        except Mismatch:
            return value

    return convert


def _describe_collection(
    annotation: Any, where: str, within: tuple[Any, ...]
) -> tuple[dict[str, Any], Converter] | None:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    kind = origin or annotation
    if kind is list or origin is Sequence:
        schema, convert_item = describe(arguments[0] if arguments else Any, where, within)
        return {"type": "array"} | ({"items": schema} if schema else {}), _list_converter(convert_item)
    if kind is dict or origin is Mapping:
        if arguments and arguments[0] is not str:
            return None
        schema, convert_value = describe(arguments[1] if arguments else Any, where, within)
        extra = {"additionalProperties": schema} if schema else {}
        return {"type": "object"} | extra, _dict_converter(convert_value)
    if kind in (set, frozenset):
        schema, convert_item = describe(arguments[0] if arguments else Any, where, within)
        items = {"items": schema} if schema else {}
        return {"type": "array", "uniqueItems": True} | items, _set_converter(kind, convert_item)
    if kind is tuple:
        if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
            schema, convert_item = describe(arguments[0] if arguments else Any, where, within)
            convert_list = _list_converter(convert_item)
            return {"type": "array"} | ({"items": schema} if schema else {}), lambda value: tuple(convert_list(value))
        described = [describe(argument, where, within) for argument in arguments]
        size = {"minItems": len(described), "maxItems": len(described)}
        prefix = [schema for schema, _ in described]
        return {"type": "array", "prefixItems": prefix} | size, _tuple_converter([convert for _, convert in described])
    return None


def _describe_class(cls: type, where: str, within: tuple[Any, ...]) -> tuple[dict[str, Any], Converter] | None:
    if issubclass(cls, Enum):
        return _describe_enum(cls, where)
    is_dataclass = dataclasses.is_dataclass(cls)
    if not (is_dataclass or typing.is_typeddict(cls)):
        return None
    if cls in within:
        raise InvalidConfigError(f"{where}: {cls.__name__} contains itself: its schema would have no end.")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidConfigError(f"{where}: the annotations of {cls.__name__} cannot be read: {error}") from error
    defaults: dict[str, Any] = {}
    if is_dataclass:
        fields = [field for field in dataclasses.fields(typing.cast(Any, cls)) if field.init]
        names = [field.name for field in fields]
        has_default = [
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            for field in fields
        ]
        required = [name for name, optional in zip(names, has_default, strict=True) if not optional]
        defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    else:
        names = list(hints)
        required = [name for name in names if name in cls.__required_keys__]  # type: ignore[attr-defined]
    described = {name: describe(hints[name], f"{where}, {name!r}", (*within, cls)) for name in names}
    properties = {
        name: with_default(schema, defaults[name]) if name in defaults else schema
        for name, (schema, _) in described.items()
    }
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    converters = {name: convert for name, (_, convert) in described.items()}
    return schema, _object_converter(cls, converters, required)


def with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    """Return the schema with the default, if JSON can write it."""
    try:
        return schema | {"default": json.loads(json.dumps(default, default=_strict_default, allow_nan=False))}
    except (TypeError, ValueError, RecursionError):
        return schema


def _strict_default(value: Any) -> Any:
    if isinstance(value, Enum | set | frozenset) or dataclasses.is_dataclass(value):
        return json_default(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _describe_enum(cls: type[Enum], where: str) -> tuple[dict[str, Any], Converter]:
    values = [member.value for member in cls]
    if not all(value is None or isinstance(value, str | bool | int | float) for value in values):
        values = [member.name for member in cls]
    if not values or any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise InvalidConfigError(f"{where}: the enumeration {cls.__name__} has no JSON form: give it text values.")
    members = list(zip(values, cls, strict=True))
    expected = "one of " + ", ".join(map(repr, values))

    def convert(value: Any) -> Any:
        for choice, member in members:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return member
        for _, member in members:
            if value == member.name:
                return member
        raise Mismatch(expected)

    # Convert members of IntEnum and StrEnum to plain values: not every writer does.
    return {"enum": json.loads(json.dumps(values))}, convert


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _convert_string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if _is_number(value):
        return str(value)
    raise Mismatch("a string")


def _convert_integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    is_short = isinstance(value, str) and len(value) <= _MAX_DIGITS
    if is_short and value.isascii() and value.strip().lstrip("+-").isdigit():
        try:
            return int(value)
        except ValueError:
            pass
    raise Mismatch("a whole number")


def _convert_number(value: Any) -> float:
    try:
        if _is_number(value) or (isinstance(value, str) and len(value) <= _MAX_DIGITS):
            number = float(value)
            if number - number == 0:  # neither infinite nor NaN
                return number
    except (ValueError, OverflowError):
        pass
    raise Mismatch("a number")


def _convert_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "True", "false", "False"):
        return str(value).lower() == "true"
    raise Mismatch("true or false")


def _convert_null(value: Any) -> None:
    if value is not None:
        raise Mismatch("null")


_SCALARS: dict[Any, tuple[str, Converter]] = {
    str: ("string", _convert_string),
    int: ("integer", _convert_integer),
    float: ("number", _convert_number),
    bool: ("boolean", _convert_boolean),
    type(None): ("null", _convert_null),
    None: ("null", _convert_null),
    Any: ("", lambda value: value),
}


def _list_converter(convert_item: Converter) -> Converter:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Mismatch("a list")
        try:
            return [convert_item(item) for item in value]
        except Mismatch as mismatch:
            raise Mismatch(f"a list of which each item is {mismatch}") from None

    return convert


def _set_converter(kind: type, convert_item: Converter) -> Converter:
    convert_list = _list_converter(convert_item)

    def convert(value: Any) -> Any:
        items = convert_list(value)
        try:
            return kind(items)
        except TypeError:
            raise Mismatch("a list of plain values") from None

    return convert


def _tuple_converter(converters: Sequence[Converter]) -> Converter:
    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(converters):
            raise Mismatch(f"a list of {len(converters)} items")
        converted = []
        for number, (convert_item, item) in enumerate(zip(converters, value, strict=True), 1):
            try:
                converted.append(convert_item(item))
            except Mismatch as mismatch:
                raise Mismatch(f"a list whose item {number} is {mismatch}") from None
        return tuple(converted)

    return convert


def _dict_converter(convert_value: Converter) -> Converter:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch("an object")
        try:
            return {key: convert_value(item) for key, item in value.items()}
        except Mismatch as mismatch:
            raise Mismatch(f"an object of which each value is {mismatch}") from None

    return convert


def _object_converter(cls: type, converters: Mapping[str, Converter], required: Sequence[str]) -> Converter:
    known = ", ".join(converters) or "none"

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(f"an object with the keys {known}")
        for name in value:
            if name not in converters:
                raise Mismatch(f"an object without {quote(name)}; its keys are: {known}")
        for name in required:
            if name not in value:
                raise Mismatch(f"an object with the key {name!r}")
        converted = {}
        for name, item in value.items():
            try:
                converted[name] = converters[name](item)
            except Mismatch as mismatch:
                raise Mismatch(f"an object whose {name!r} is {mismatch}") from None
        try:
            return cls(**converted)
        except (TypeError, ValueError) as error:  # its own __post_init__ refuses
            raise Mismatch(f"a valid {cls.__name__}: {error}") from None

    return convert


def _literal_converter(choices: tuple[Any, ...]) -> Converter:
    def convert(value: Any) -> Any:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return choice
        raise Mismatch("one of " + ", ".join(map(repr, choices)))

    return convert


def _union_converter(converters: Sequence[Converter]) -> Converter:
    def convert(value: Any) -> Any:
        expected = []
        for converter in converters:
            try:
                converted = converter(value)
            except Mismatch as mismatch:
                expected.append(str(mismatch))
            else:
                if type(converted) is type(value):
                    return converted
        for converter in converters:  # nothing fits as it is: take the first that can be converted
            try:
                return converter(value)
            except Mismatch:
                continue
        raise Mismatch(" or ".join(expected))

    return convert
