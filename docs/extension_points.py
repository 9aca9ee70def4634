"""Writes `docs/reference/extension_points.md`: what may be replaced, where it is passed, and its signature.

    python docs/extension_points.py            writes the page
    python docs/extension_points.py --check    says what would change, and exits with 1 if anything would

The list is `extension_points.yaml`; signatures, docstrings and the places where a function may be passed are read from
the code, so that a new argument that takes a function of a known kind is on the page by itself, and one of a new kind
is found by `tests/docs/test_reference.py`.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import written
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "extension_points.md"
LIST = ROOT / "docs" / "extension_points.yaml"
FOLDERS = {"llm_envs": ROOT / "llm_envs", "llm_envs.trainers": ROOT / "trainers"}
CALLABLE = "Callable"
MOST_PLACES = 8
"""Arguments that are listed of one kind; how many more there are is said."""

HEAD = """\
# Extension points

Everything that may be replaced by a function or a class of yours: what it is for, its signature, where it is passed,
the default, an example, and a test that replaces it. You register nothing, and inherit only from the classes that are
shown. `python docs/extension_points.py` writes this page from the code; a
[test](../../tests/docs/test_reference.py) fails where it has drifted, where a named argument or test does not exist,
and where a public argument takes a function and is not here.

"Passed to" has the arguments that are meant for it first, with their defaults, then others that take the same.
"""


@dataclass(frozen=True, slots=True)
class HookArgument:
    """An argument of a public function, or a field of a public class, that takes functions."""

    path: str
    """"llm_envs.rollout.collector.Collector.context_fn"."""
    annotation: str
    kinds: frozenset[str]
    """The kinds of function that it takes: paths of aliases and protocols, `CALLABLE` for one without a name."""


@dataclass(frozen=True, slots=True)
class Point:
    """Something that may be replaced; what the fields are is said at the top of the list."""

    name: str
    purpose: str
    test: str
    to: tuple[str, ...]
    types: tuple[str, ...]
    default: str
    example: str
    shown: tuple[str, ...]
    also: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """What belongs together."""

    title: str
    about: str
    points: tuple[Point, ...]


# Reading the list.


@cache
def sections() -> tuple[Section, ...]:
    """Return the list."""
    return tuple(
        Section(section["title"], section["about"], tuple(map(read_point, section["points"])))
        for section in yaml.safe_load(LIST.read_text(encoding="utf-8"))["sections"]
    )


@cache
def inside() -> dict[str, str]:
    """Return the beginnings of paths that are between our own parts, each with what it is."""
    given = yaml.safe_load(LIST.read_text(encoding="utf-8"))["inside"]
    return {f"llm_envs.{start}": what for start, what in given.items()}


def points() -> list[Point]:
    """Return all points."""
    return [point for section in sections() for point in section.points]


def read_point(given: dict[str, Any]) -> Point:
    """Return a point of the list, its paths made whole."""
    to, types, shown = (tuple(f"llm_envs.{path}" for path in given.get(key, ())) for key in ("to", "types", "shown"))
    known = {"name", "for", "to", "types", "shown", "also", "else", "example", "test"}
    if unknown := given.keys() - known:
        raise ValueError(f"{LIST.name}: {given['name']!r} has {sorted(unknown)}; known are {sorted(known)}.")
    also, default = tuple(given.get("also", ())), given.get("else", "none.")
    return Point(
        given["name"],
        given["for"],
        given["test"],
        to,
        types,
        default,
        given.get("example", ""),
        shown or types[:1],
        also,
    )


# Reading the code.


@cache
def modules() -> dict[str, ast.Module]:
    """Return the modules of the packages, without the tasks: dotted name -> its tree."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def definitions(module: str) -> dict[str, ast.stmt]:
    """Return what a module defines at its top: name -> class, function or assignment."""
    found: dict[str, ast.stmt] = {}
    for node in modules()[module].body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


@cache
def imports(module: str) -> dict[str, tuple[str, str]]:
    """Return what a module imports from ours, wherever: local name -> (module, name there)."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(modules()[module])
        if isinstance(node, ast.ImportFrom) and node.module in modules()
        for alias in node.names
    }


def origin(module: str, name: str) -> tuple[str, str] | None:
    """Return where a name that a module uses is defined, if by us."""
    while name not in definitions(module):
        if name not in imports(module):
            return None
        module, name = imports(module)[name]
    return module, name


def exported(module: str) -> list[str]:
    """Return the names of `__all__` that the module itself defines."""
    listed = definitions(module).get("__all__")
    names = ast.literal_eval(listed.value) if isinstance(listed, ast.Assign) else []
    return [name for name in names if name in definitions(module)]


@cache
def kinds_of_name(module: str, name: str) -> frozenset[str]:
    """Return the kinds of function that a name stands for: itself, if it is one, and those it is made of."""
    if name in (CALLABLE, "Awaitable") or (found := origin(module, name)) is None:
        return frozenset({CALLABLE} if name == CALLABLE else ())
    node, path = definitions(found[0])[found[1]], ".".join(found)
    if isinstance(node, ast.ClassDef):
        return frozenset({path} if any(ast.unparse(base).startswith("Protocol") for base in node.bases) else ())
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript | ast.BinOp):
        return frozenset()
    inside = kinds_of(found[0], node.value)
    is_one_itself = isinstance(node.value, ast.Subscript) and ast.unparse(node.value.value) == CALLABLE
    return frozenset({path}) if is_one_itself else (inside - {CALLABLE}) | ({path} if inside else set())


def kinds_of(module: str, annotation: ast.expr) -> frozenset[str]:
    """Return the kinds of function in an annotation."""
    found: frozenset[str] = frozenset()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            found |= kinds_of_name(module, node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            with suppress(SyntaxError):  # the words of a Literal
                found |= kinds_of(module, ast.parse(node.value, mode="eval").body)
    return found


@cache
def hook_arguments() -> dict[str, HookArgument]:
    """Return every public argument that takes functions, by its path."""
    found = {}
    for module in modules():
        for name in exported(module):
            for path, annotation in annotated(f"{module}.{name}", definitions(module)[name]):
                if kinds := kinds_of(module, annotation):
                    found[path] = HookArgument(path, ast.unparse(annotation).strip("'"), kinds)
    return found


def annotated(path: str, node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield (path, annotation) of the arguments of a function, or of a class's making and public methods."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg]:
            if argument is not None and argument.annotation is not None:
                yield f"{path}.{argument.arg}", argument.annotation
    elif isinstance(node, ast.ClassDef) and not any(ast.unparse(base).startswith("Protocol") for base in node.bases):
        is_data = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        for child in node.body:
            if isinstance(child, ast.AnnAssign) and is_data:
                yield f"{path}.{ast.unparse(child.target)}", child.annotation
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name == "__init__":
                yield from annotated(path, child)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
                yield from annotated(f"{path}.{child.name}", child)


def is_covered(argument: HookArgument) -> bool:
    """Say whether an argument is of a kind that the list has, is in it itself, or is between our own parts."""
    named = {path for point in points() for path in point.to}
    types = {path for point in points() for path in point.types}
    return argument.path in named or bool(argument.kinds & types) or argument.path.startswith(tuple(inside()))


# Writing the page.


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for section in sections():
        parts += [f"## {section.title}\n", f"{section.about}\n"]
        for point in section.points:
            parts += [*entry(point)]
    return "\n".join(parts).rstrip("\n") + "\n"


def entry(point: Point) -> Iterator[str]:
    """Yield the lines about one point."""
    yield f"### {point.name}\n"
    yield f"{point.purpose}\n"
    yield "```text"
    yield from signatures(point)
    yield "```\n"
    yield f"- Passed to: {', '.join(places(point))}."
    yield f"- Otherwise: {point.default}"
    if point.example:
        yield f"- Example: {link(point.example)}"
    file, _, test = point.test.partition("::")
    yield f"- Test: `{test}` in {link(file)}"
    yield ""


def places(point: Point) -> list[str]:
    """Return where it is passed, as `function(argument=default)`: the named ones, then all that take the same."""
    others = [
        argument.path
        for argument in hook_arguments().values()
        if argument.kinds & set(point.types) and argument.path not in point.to
        if not argument.path.startswith(tuple(inside()))
    ]
    shown = [*point.to, *others][: max(MOST_PLACES, len(point.to))]
    left = len(point.to) + len(others) - len(shown)
    listed = [*point.also, *(f"`{short(path)}`" for path in shown)]
    return list(dict.fromkeys(listed)) + ([f"{left} more"] if left > 0 else [])


def short(path: str) -> str:
    """Return "Collector(context_fn=None)" for the path of an argument, with a method's class in front."""
    *_, owner, function, argument = path.split(".")
    default = defaults().get(path)
    said = argument if default is None else f"{argument}={default}"
    return f"{owner}.{function}({said})" if owner[0].isupper() else f"{function}({said})"


@cache
def defaults() -> dict[str, str]:
    """Return the default of every argument that has one, as it is written: path -> text."""
    found: dict[str, str] = {}
    for module in modules():
        for name in exported(module):
            found |= with_defaults(f"{module}.{name}", definitions(module)[name])
    return found


def with_defaults(path: str, node: ast.stmt) -> dict[str, str]:
    """Return the defaults of a function, or of a class's making and methods; of a dataclass those of its fields."""
    found: dict[str, str] = {}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args]
        pairs = [*zip(arguments[::-1], node.args.defaults[::-1], strict=False)]
        pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
        found = {f"{path}.{argument.arg}": ast.unparse(default) for argument, default in pairs}
    elif isinstance(node, ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.AnnAssign) and child.value is not None:
                found[f"{path}.{ast.unparse(child.target)}"] = ast.unparse(child.value)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= with_defaults(path if child.name == "__init__" else f"{path}.{child.name}", child)
    return found


def link(path: str) -> str:
    """Return a link to a file of the repository, with what is in it behind `::`."""
    file, _, name = path.partition("::")
    return f"[{file}](../../{file})" + (f", `{name}`" if name else "")


def signatures(point: Point) -> Iterator[str]:
    """Yield the signature: of an alias its definition, of a class its methods, of an argument its annotation."""
    if not point.shown:
        for path in point.to[:1]:
            yield f"{path.rpartition('.')[2]}: {hook_arguments()[path].annotation}"
    for path in point.shown:
        module, name, *members = split(path)
        node = definitions(module)[name]
        if isinstance(node, ast.Assign):
            yield from textwrap.wrap(
                f"{name} = {ast.unparse(node.value)}".replace("'", ""), 110, subsequent_indent="    "
            )
            if described := text_below(module, node):
                yield from textwrap.indent(described, "    ").split("\n")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield signature(node)
        elif isinstance(node, ast.ClassDef):
            yield f"class {name}:"
            yield from (f"    {line}" for line in class_lines(node, members))


def split(path: str) -> list[str]:
    """Return [module, name, members that are shown ...] of "module.Name" or "module.Name: first, second"."""
    head, _, members = path.partition(": ")
    module, _, name = head.rpartition(".")
    return [module, name, *(member for member in members.split(", ") if member)]


def class_lines(node: ast.ClassDef, members: list[str]) -> Iterator[str]:
    """Yield a class's fields and methods with their first sentences: those that are named, else the public ones."""
    for place, child in enumerate(node.body):
        name = getattr(child, "name", None) or (ast.unparse(child.target) if isinstance(child, ast.AnnAssign) else "")
        if not name or (name not in members if members else name.startswith("_") and name != "__call__"):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield signature(child)
            described = ast.get_docstring(child) or ""
        elif isinstance(child, ast.AnnAssign):
            yield ast.unparse(child)
            described = literal(node.body, place)
        else:
            continue
        if described:
            first = " ".join(described.split("\n\n")[0].split())
            yield from textwrap.wrap(first, 106, initial_indent="    ", subsequent_indent="    ")


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the head of a function."""
    is_property = any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)
    if is_property:
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    head = f"{prefix} {node.name}({ast.unparse(node.args)}){returns}".replace("'", "")
    return "\n".join(textwrap.wrap(head, 106, subsequent_indent="        ", break_long_words=False))


def text_below(module: str, node: ast.stmt) -> str:
    """Return the string literal below an assignment."""
    body = modules()[module].body
    return literal(body, body.index(node))


def literal(body: list[ast.stmt], place: int) -> str:
    """Return the string literal that follows a statement, as one paragraph."""
    below = body[place + 1] if place + 1 < len(body) else None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
        return "\n".join(textwrap.wrap(" ".join(below.value.value.split()), 106))
    return ""


def uncovered() -> dict[str, list[str]]:
    """Return the arguments that the list does not have, by module."""
    found: dict[str, list[str]] = defaultdict(list)
    for argument in hook_arguments().values():
        if not is_covered(argument):
            found[argument.path.rpartition(".")[0]].append(f"{argument.path}: {argument.annotation}")
    return dict(found)


if __name__ == "__main__":
    sys.exit(written.main(__doc__, lambda: {PAGE: page()}, source="the code says"))
