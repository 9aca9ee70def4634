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
from llm_envs.tools.base import Tool
from llm_envs.tools.budget import Budget

if TYPE_CHECKING:
    from llm_envs.sandbox import PythonTool

__all__ = ["Toolset", "as_tools", "budgeted", "tool"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "__tool_options__"
_users: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
"""The environment of each toolset, by the toolset's `id`. The toolset lives at least as long as the environment."""


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
    """Mark a method of a `Toolset` as a tool; the options are the same as for `Tool`.

    Plain methods run one after another, in the order of the calls, because they share the toolset's state; use
    `parallel=True` for a method that is safe in parallel. Coroutine methods run in parallel and interleave where they
    await; use `parallel=False` for one that must run by itself.
    """

    def mark(marked: Any) -> Any:
        setattr(marked, _MARK, options)
        return marked

    return mark if function is None else mark(function)


class Toolset:
    """Tools that share the state of one episode: the methods marked with `tool`.

    `ToolEnv.make_tools` returns one, or its `tools()`. The environment then resets it in each episode and closes it at
    its own end. They are pickled together.
    """

    shared: bool = False
    """True if several environments may use one instance. Then none of them closes it; its creator does."""
    blocking: bool = False
    """True if a call may take long (a subprocess, a network): the collector then steps the environment in a thread."""

    def tools(self) -> list[Tool]:
        """Return the tools in the order of their definition, newly made."""
        marked: dict[str, Mapping[str, Any]] = {}
        for cls in reversed(type(self).__mro__):
            for attribute, value in vars(cls).items():
                if hasattr(value, _MARK):
                    marked[attribute] = getattr(value, _MARK)
                elif value is None:
                    marked.pop(attribute, None)  # lets a subclass remove one
        return [self.own(Tool(getattr(self, attribute), **options)) for attribute, options in marked.items()]

    def own(self, made: Tool) -> Tool:
        """Return the tool, marked as part of this set. Call it for each tool in your own `tools`."""
        made.toolset = self
        return made

    def claim(self, env: object) -> None:
        """Record that the environment uses this toolset.

        Raises:
            InvalidConfigError: If another environment uses it and it is not `shared`: their episodes would mix.
        """
        if not self.shared and _users.setdefault(id(self), env) is not env:
            raise InvalidConfigError(
                f"{type(env).__name__}: its {type(self).__name__} already belongs to another environment: make a new "
                "one in make_tools for each environment."
            )

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Begin an episode. Called before the environment's `begin`.

        Args:
            problem: The environment's own problem: do not change it.
            rng: The environment's generator. State that depends only on the problem is the same when the problem is
                given; state drawn from this generator is not.
        """

    def close(self) -> None:
        """Release the toolset's resources. May be called more than once."""


class _PythonToolset(Toolset):
    """The tool of a `PythonTool`, reset in each episode and seeded by the problem."""

    blocking = True

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
        self.python_tool.reset(self.seed)  # a copy has its own interpreter, with the same seed


def as_tools(given: Any, where: str, *, default_cost: float = 0.0) -> list[Tool]:
    """Return the tools of one or several typed functions, `Tool`s, `Toolset`s or `PythonTool`s.

    Args:
        given: One of these, or an iterable of them.
        where: Beginning of the error message.
        default_cost: Cost of one call of a plain function.

    Raises:
        InvalidConfigError: If an item is anything else.
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
                f"{where}: {_quoted(item)} is not a tool; give a typed function, a Tool, a Toolset or a PythonTool."
            )
    return tools


def budgeted(tools: Toolset | Iterable[Tool | Toolset | PythonTool | Callable[..., Any]], budget: Budget) -> list[Tool]:
    """Return the same tools with each call charged to the budget.

    Args:
        tools: `Tool`s with a `cost`; `Toolset`s, whose tools cost `tool(cost=...)`, by default nothing. A plain
            function or a `PythonTool` costs 1.
        budget: One total for all of them.

    Raises:
        InvalidConfigError: If an item is not a tool.
    """
    return [tool.under(budget) for tool in as_tools(tools, "budgeted", default_cost=1.0)]


def _adopted(made: Tool) -> Tool:
    """Return the tool; that of a `PythonTool` is put into a toolset, so that its episodes begin and end."""
    owner = getattr(made.function, "__self__", None)
    return _PythonToolset(owner).own(made) if made.toolset is None and _is_python_tool(owner) else made


def _is_python_tool(item: Any) -> TypeGuard[PythonTool]:
    module = sys.modules.get("llm_envs.sandbox.tool")  # not imported if no PythonTool is used
    return module is not None and isinstance(item, module.PythonTool)


def _quoted(item: object) -> str:
    return f"{item!r:.80}" if item is None or isinstance(item, str | type) else f"a value of type {type(item).__name__}"
