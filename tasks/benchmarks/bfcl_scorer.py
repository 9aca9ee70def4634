"""The scorer of `bfcl.py`: the checkers of the package `bfcl-eval`, and its simulated services.

`child.py` runs it in a process with limits. It imports nothing of this package. The package's own runner makes text of
a model's calls and hands it to `eval`, behind a list of forbidden names. This one calls a method only if it is public
and its service is part of the problem, with arguments that are JSON.
"""

from __future__ import annotations

import copy
import decimal
import importlib
import inspect
import json
import sys
from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any

_SERVICES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_FORBIDDEN = ("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run")
"""The package refuses these names, whatever they are."""


def load() -> None:
    """Import the checkers and the services."""
    # The package's table of models imports the client libraries of all of them. The checker only asks it whether "."
    # was replaced in names; ours are restored before.
    table: Any = ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = defaultdict(lambda: SimpleNamespace(underscore_to_dot=False))
    sys.modules[table.__name__] = table
    importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    importlib.import_module("mpmath")
    for module in _MODULES.values():
        importlib.import_module(f"{_SERVICES}.{module}")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Judge the calls of one turn, or play those of several turns.

    Args:
        request: With `possible`: `functions`, `calls` ([{name: arguments}, ...]), `possible`, `category`. Otherwise
            `initial_config`, `involved_classes`, `category`, `turns` (turn -> step -> [name, arguments]) and
            `right_calls` (turn -> [name, positional, named]), with which the turns are compared if it is not None.

    Returns:
        `valid`, or None if nothing was compared; and for several turns `results` of the last step.
    """
    return judge_calls(request) if "possible" in request else play_turns(request)


def judge_calls(request: dict[str, Any]) -> dict[str, Any]:
    """Compare calls with the possible answers."""
    checker: Any = sys.modules["bfcl_eval.eval_checker.ast_eval.ast_checker"]
    category = request["category"]
    language = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}.get(category, "PYTHON")
    result = checker.ast_checker(
        request["functions"],
        request["calls"],
        request["possible"],
        getattr(checker.Language, language),
        category,
        "",
    )
    return {"valid": bool(result["valid"])}


def play_turns(request: dict[str, Any]) -> dict[str, Any]:
    """Execute the calls of all turns; compare each turn's states and results with those of the right calls."""
    mpmath: Any = sys.modules["mpmath"]
    mpmath.mp.dps = 15
    decimal.setcontext(decimal.Context(prec=28))
    model, right = World(request), World(request)
    right_calls = request["right_calls"]
    results: list[str] = []
    all_results: list[str] = []
    for number, steps in enumerate(request["turns"]):
        for calls in steps:
            results = [model.call(name, [], arguments) for name, arguments in calls]
            all_results += results
        if right_calls is not None and not is_right(model, right, steps, right_calls[number], all_results, number):
            return {"valid": False, "results": results}
    return {"valid": None if right_calls is None else True, "results": results}


def is_right(
    model: World, right: World, steps: list[Any], calls: list[Any], all_results: list[str], number: int
) -> bool:
    """Return whether the states after a turn are right, and the model has seen all results that it should have."""
    checker: Any = sys.modules["bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"]
    wanted = [right.call(*call) for call in calls]
    if not calls:
        return True
    if not any(steps):
        return False
    if not checker.state_checker(model.services, right.services)["valid"]:
        return False
    return bool(checker.response_checker(all_results, wanted, number)["valid"])


class World:
    """The services of a problem.

    Args:
        request: `initial_config`, `involved_classes`, `category`.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.services: dict[str, Any] = {}
        self.methods: dict[str, Any] = {}
        is_long = "long_context" in request["category"]
        for name in request["involved_classes"]:
            service = getattr(sys.modules[f"{_SERVICES}.{_MODULES[name]}"], name)()
            if name != "MathAPI":  # it has no state
                service._load_scenario(copy.deepcopy(request["initial_config"].get(name, {})), long_context=is_long)
            self.services[name] = service
            for method_name, method in inspect.getmembers(service, predicate=inspect.ismethod):
                if not method_name.startswith("_"):
                    self.methods[method_name] = method

    def call(self, name: str, positional: list[Any], named: dict[str, Any]) -> str:
        """Call a public method of a service; return its result, or the error, as text."""
        try:
            if name in _FORBIDDEN:
                raise ValueError(f"Function call {name} is not allowed.")
            if name not in self.methods:
                raise NameError(f"name {name!r} is not defined")
            result = self.methods[name](*positional, **named)
            if isinstance(result, dict):
                try:
                    return json.dumps(result)
                except Exception:
                    return str(result)
            return str(result)
        except MemoryError:
            raise
        except Exception as error:
            return f"Error during execution: {error}"
