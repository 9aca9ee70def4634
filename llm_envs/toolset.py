"""Toolsets: tools that share state.

class Shop(Toolset):
    def reset(self, problem, rng):
        self.stock = dict(problem["stock"])

    @tool
    def sell(self, item: str) -> str:
        \"\"\"Sell one.\"\"\"
        self.stock[item] -= 1
        return f"{self.stock[item]} left"
"""

from __future__ import annotations

import json
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, overload

import numpy as np

from llm_envs.errors import InvalidConfigError
from llm_envs.tools import Tool

if TYPE_CHECKING:
    from llm_envs.sandbox import PythonTool

__all__ = ["Toolset", "as_tools", "tool"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "__tool_options__"
_users: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
"""The environment that has each toolset, by the toolset's `id`: while the environment lives, so does the toolset."""


@overload
def tool(function: _Function) -> _Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    cost: float = 0.0,
    parallel: bool | None = None,
) -> Callable[[_Function], _Function]: ...


def tool(function: Any = None, **options: Any) -> Any:
    """Mark a method of a `Toolset` as a tool; the options are those of `Tool`.

    Plain methods are run one after another, in the order of the calls, since they share the toolset's state;
    `parallel=True` says that one is safe beside others. Coroutine methods run side by side and interleave where they
    await; `parallel=False` has one run alone.
    """

    def mark(marked: Any) -> Any:
        setattr(marked, _MARK, options)
        return marked

    return mark if function is None else mark(function)


class Toolset:
    """Tools that share the state of one episode: the methods marked with `tool`.

    `ToolEnv.make_tools` returns one, or its `tools()`; the environment then resets it with each episode and closes it
    with itself. It is pickled with the environment.
    """

    shared: bool = False
    """True if several environments may use one instance. Then none of them closes it: whoever made it does."""

    def tools(self) -> list[Tool]:
        """Return the tools in the order in which they are defined, freshly made."""
        marked: dict[str, Mapping[str, Any]] = {}
        for cls in reversed(type(self).__mro__):
            for attribute, value in vars(cls).items():
                if hasattr(value, _MARK):
                    marked[attribute] = getattr(value, _MARK)
                elif value is None:
                    marked.pop(attribute, None)  # how a subclass leaves one out
        return [self.own(Tool(getattr(self, attribute), **options)) for attribute, options in marked.items()]

    def own(self, made: Tool) -> Tool:
        """Return the tool, marked as one of this set: what a `tools` of your own calls for each."""
        made.toolset = self
        return made

    def claim(self, env: object) -> None:
        """Note that the environment uses this toolset.

        Raises:
            InvalidConfigError: If another one does, and the toolset is not `shared`: their episodes would mix.
        """
        if not self.shared and _users.setdefault(id(self), env) is not env:
            raise InvalidConfigError(
                f"{type(env).__name__}: its {type(self).__name__} belongs to another environment already: make one in "
                "make_tools, for each environment its own."
            )

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Begin an episode. Called before the environment's `begin`.

        Args:
            problem: The environment's problem, its own: do not change it.
            rng: The environment's generator. What the problem decides is the same when the problem is given; what is
                drawn here is not.
        """

    def close(self) -> None:
        """Release what the toolset holds. May be called more than once."""


class _PythonToolset(Toolset):
    """The tool of a `PythonTool`, whose episodes begin with the environment's, seeded by the problem."""

    def __init__(self, python_tool: PythonTool) -> None:
        self.python_tool = python_tool
        self.seed: int | None = None

    def tools(self) -> list[Tool]:
        return [self.own(Tool(self.python_tool.python, cost=1.0))]

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        self.seed = zlib.crc32(json.dumps(problem, sort_keys=True).encode())
        self.python_tool.reset(self.seed)

    def close(self) -> None:
        self.python_tool.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.python_tool.reset(self.seed)  # a copy has an interpreter of its own, with the same seed


def as_tools(given: Any, where: str, *, default_cost: float = 0.0) -> list[Tool]:
    """Return the tools of one or several typed functions, `Tool`s, `Toolset`s or `PythonTool`s.

    Args:
        given: One of these, or an iterable of them.
        where: What the message begins with if it is none.
        default_cost: What one call of a plain function costs.

    Raises:
        InvalidConfigError: If there is anything else.
    """
    alone = isinstance(given, Tool | Toolset) or callable(given) or _is_python_tool(given)
    if not alone and (not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping)):
        raise InvalidConfigError(
            f"{where}: tools are {_quoted(given)}; give a list of typed functions, Tools, Toolsets or PythonTools, or "
            "one Toolset."
        )
    tools: list[Tool] = []
    for item in [given] if alone else given:
        if isinstance(item, Tool):
            tools.append(_adopted(item))
        elif isinstance(item, Toolset):
            tools += item.tools()
        elif _is_python_tool(item):
            tools += _PythonToolset(item).tools()
        elif callable(item) and not isinstance(item, type):
            tools.append(_adopted(Tool(item, cost=default_cost)))
        else:
            raise InvalidConfigError(
                f"{where}: {_quoted(item)} is no tool; give a typed function, a Tool, a Toolset or a PythonTool."
            )
    return tools


def _adopted(made: Tool) -> Tool:
    """Return the tool; that of a `PythonTool` becomes one of a toolset, so that its episodes begin and end."""
    owner = getattr(made.function, "__self__", None)
    return _PythonToolset(owner).own(made) if made.toolset is None and _is_python_tool(owner) else made


def _is_python_tool(item: Any) -> TypeGuard[PythonTool]:
    module = sys.modules.get("llm_envs.sandbox.tool")  # not loaded for those that have none
    return module is not None and isinstance(item, module.PythonTool)


def _quoted(item: object) -> str:
    return f"{item!r:.80}" if item is None or isinstance(item, str | type) else f"a {type(item).__name__}"
