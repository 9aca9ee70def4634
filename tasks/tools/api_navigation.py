"""`llm/APINavigation-v0`: find something behind an interface with pages, ids, limits and failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import read_integer, split_words
from llm_envs.tools.toolset import Toolset, tool
from llm_envs.types import ToolCall, ToolResult

__all__ = ["APINavigationEnv"]

PAGE_SIZE = 5
REQUESTS_PER_TURN = 3
_MAX_PATH_CHARACTERS = 200


class Api(Toolset):
    """Users, their orders, and the lines of an order, behind paths."""

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Serve the problem's data."""
        self.users: list[dict[str, Any]] = problem["users"]
        self.failing: set[str] = set(problem["failing"])
        """Paths whose first request fails."""
        self.n_requests = 0
        """In this turn."""
        self.served: set[str] = set()
        """Paths that were answered with 200 or 301."""

    @tool
    def get(self, path: str) -> str:
        """Request a path with GET. Returns the status and the body. At most 3 requests are served in one turn.

        Args:
            path: Such as / or /users?after=u123.
        """
        self.n_requests += 1
        if self.n_requests > REQUESTS_PER_TURN:
            return (
                f"429 Too Many Requests\n{{'error': 'at most {REQUESTS_PER_TURN} requests a turn; try the next turn'}}"
            )
        path = path.strip()
        if len(path) > _MAX_PATH_CHARACTERS:
            return _written(*_refused("414 URI Too Long", f"a path may have {_MAX_PATH_CHARACTERS} characters"))
        if path in self.failing:
            self.failing.discard(path)
            return _written(*_refused("503 Service Unavailable", "try again"))
        status, body = self.answer(path)
        if status.startswith(("200", "301")):
            self.served.add(path)
        return _written(status, body)

    def answer(self, path: str) -> tuple[str, dict[str, Any]]:
        """Return status and body of a path, whatever the limits are."""
        try:
            parts = urlsplit(path)
            query = dict(parse_qsl(parts.query))
        except ValueError:
            return _refused("400 Bad Request", "the path cannot be read")
        if parts.scheme or parts.netloc or not parts.path.startswith("/"):
            return _refused("400 Bad Request", "the path must begin with /")
        segments = [segment for segment in parts.path.split("/") if segment]
        if unknown := sorted(set(query) - {"after"}):
            return _refused("400 Bad Request", f"unknown parameter {unknown[0][:20]!r}; known: after")
        match segments:
            case []:
                paths = ["/users", "/users/{user}", "/users/{user}/orders", "/orders/{order}"]
                return "200 OK", {"paths": paths, "page_size": PAGE_SIZE, "pages": "follow next until it is null"}
            case ["users"]:
                rows = [{"id": user["id"], "name": user["name"]} for user in self.users]
                return _page("/users", rows, query)
            case ["users", name]:
                user = self._user(name)
                if user is None:
                    return _refused("404 Not Found", "no such user")
                if user["moved_to"]:
                    return "301 Moved Permanently", {"location": f"/users/{user['moved_to']}"}
                return "200 OK", {"id": user["id"], "name": user["name"], "email": user["email"]}
            case ["users", name, "orders"]:
                user = self._user(name)
                if user is None:
                    return _refused("404 Not Found", "no such user")
                if user["moved_to"]:
                    return "301 Moved Permanently", {"location": f"/users/{user['moved_to']}/orders"}
                return _page(f"/users/{name}/orders", [{"id": order["id"]} for order in user["orders"]], query)
            case ["orders", name]:
                for user in self.users:
                    for order in user["orders"]:
                        if order["id"] == name:
                            return "200 OK", {"id": order["id"], "amount": order["amount"]}
                return _refused("404 Not Found", "no such order")
        return _refused("404 Not Found", "no such path; see /")

    def _user(self, name: str) -> dict[str, Any] | None:
        return next((user for user in self.users if user["id"] == name), None)


def _written(status: str, body: Mapping[str, Any]) -> str:
    return f"{status}\n{json.dumps(body)}"


def _refused(status: str, message: str) -> tuple[str, dict[str, Any]]:
    return status, {"error": message}


def _page(path: str, rows: list[dict[str, Any]], query: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the rows behind the one that `after` names, a page of them, and where the next page is."""
    start = 0
    if "after" in query:
        places = [place for place, row in enumerate(rows) if row["id"] == query["after"]]
        if not places:
            return _refused("400 Bad Request", "after names nothing in this list")
        start = places[0] + 1
    shown = rows[start : start + PAGE_SIZE]
    is_last = start + PAGE_SIZE >= len(rows)
    return "200 OK", {"items": shown, "next": None if is_last else f"{path}?after={shown[-1]['id']}"}


class APINavigationEnv(ToolEnv):
    """Answer a question about data behind an interface with pages, ids to follow, limits and failures.

    ## Description
    The tool `get(path)` requests a path of a service whose root lists what there is: users, their orders, an order.
    Lists come in pages of five, and the next page is known only from the one before; requests fail now and then and
    succeed when repeated; some users have moved to another id; more than three requests in one turn are turned away.
    The question is for something about one user or their orders. Teaches to follow links to the end, to repeat what
    failed, and not to answer from the first page.

    ## Observation
    First the question. After a call the status (200, 301, 400, 404, 429, 503) and the body. After a malformed reply a
    readable error.

    ## Action
    A call of the tool `get`, up to three in one reply, or the final answer, `<answer>ada@example.org</answer>` or
    `<answer>417</answer>`.

    ## Reward
    `correct` (weight 1): 1 for the right answer. `malformed` (weight -0.1): 1 for a reply that is neither a call nor
    an answer, is broken, or whose answer is not an address, or not a number, as the question wants.

    ## Episode End
    Terminates with the first answer. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): the e-mail address of one of 9 to 12 users; "medium": how many orders one of 12 to
      15 has, with failures; "hard": the sum or the largest of the amounts of a user's orders, with failures and users
      that moved; "expert": the same with 40 users, three times the orders and failures.
    - `max_turns`: 10, 14, 24 and 60 by default: enough for one call in each reply.
    - `reset(options={"problem": {"users": [...], "failing": [...], "asked": "count", "name": "Ada Berg"}})`: users
      as `{"id": ..., "name": ..., "email": ..., "moved_to": "", "orders": [{"id": ..., "amount": ...}]}`, paths that
      fail once, and what is asked ("email", "count", "sum" or "largest") of whom.

    ## Version History
    - v0: first version.
    """

    # An address is one of a million; counts are drawn evenly from 6 to 17; sums and largest amounts have hundreds of
    # values, and the best constant is right in 2.5% (2,000 problems).
    difficulties = {
        "easy": Difficulty(
            "an address; pages",
            chance_rate=0.01,
            settings={"users": 9, "asked": ("email",), "failures": 0, "turns": 10},
        ),
        "medium": Difficulty(
            "a number of orders; failures",
            chance_rate=1 / 12,
            settings={"users": 12, "asked": ("count",), "failures": 2, "turns": 14},
        ),
        "hard": Difficulty(
            "amounts of orders; failures; users that moved",
            chance_rate=0.03,
            settings={"users": 12, "asked": ("sum", "largest"), "failures": 4, "turns": 24},
        ),
        "expert": Difficulty(
            "amounts of many orders among many users; many failures; users that moved",
            chance_rate=0.03,
            settings={"users": 40, "asked": ("sum", "largest"), "orders": 16, "failures": 12, "turns": 60},
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"users": list, "failing": list, "asked": str, "name": str}
    instructions = (
        "Answer the question with the service. Begin at the path /. Lists come in pages. The service serves at most 3 "
        "requests in one turn. Answer with the number or the e-mail address, and nothing else. An answer that is a "
        "number is written <answer>417</answer>."
    )
    answer_example = "ada@example.org"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode, answer_form)
        if max_turns is None:
            self.max_turns = self.settings["turns"]

    def make_tools(self) -> Toolset:
        """Return the service."""
        self.api = Api()
        return self.api

    def run_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Begin a turn's count of requests, and run them."""
        self.api.n_requests = 0
        return super().run_calls(calls)

    def generate(self) -> dict[str, Any]:
        """Draw users, their orders, what fails, and a question."""
        return _draw_service(self.np_random, self.settings)

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse users that do not hang together, and a question without an answer."""
        try:
            ids = [user["id"] for user in problem["users"]] + [
                order["id"] for user in problem["users"] for order in user["orders"]
            ]
            if len(set(ids)) < len(ids) or not all(isinstance(name, str) and name.isalnum() for name in ids):
                raise InvalidActionError("its ids must be different words")
            if not all(isinstance(path, str) for path in problem["failing"]):
                raise InvalidActionError("what fails at first must be paths")
            _answer(problem)
            list(_route(problem, Api()))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, InvalidActionError):
                raise
            raise InvalidActionError(f"its users are wrong: {error!r}") from error

    def begin(self) -> None:
        """Work out the answer."""
        self._answer = _answer(self.problem)

    def prompt(self) -> str:
        """Return the question."""
        name = self.problem["name"]
        return {
            "email": f"What is the e-mail address of the user {name}?",
            "count": f"How many orders does the user {name} have?",
            "sum": f"What is the sum of the amounts of all orders of the user {name}?",
            "largest": f"What is the largest amount among all orders of the user {name}?",
        }[self.problem["asked"]]

    def is_correct(self, answer: str) -> bool:
        """Compare as numbers or as addresses."""
        if isinstance(self._answer, str):
            address = answer.strip(" .,'\"`").casefold().removeprefix("mailto:")
            if _ADDRESS.fullmatch(address) is None:
                raise InvalidActionError("the answer is not an e-mail address")
            return address == self._answer
        return read_integer(answer, units=split_words(self.prompt())) == self._answer

    def next_action(self) -> str:
        """Request what is next on the way and was not served yet; at its end, answer."""
        for paths in _route(self.problem, self.api):
            missing = [path for path in paths if path not in self.api.served]
            if missing:
                return "\n".join(format_tool_call("get", path=path) for path in missing[:REQUESTS_PER_TURN])
        return self.write_answer(self._answer)


_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+")


def _target(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user that is asked about, where it has moved to."""
    found = [user for user in problem["users"] if user["name"] == problem["name"] and not user["moved_to"]]
    if len(found) != 1:
        raise InvalidActionError("it must ask about one user, of a name that no other has")
    user: dict[str, Any] = found[0]
    return user


def _answer(problem: Mapping[str, Any]) -> str | int:
    user = _target(problem)
    amounts = [order["amount"] for order in user["orders"]]
    if problem["asked"] == "email":
        return str(user["email"]).casefold()
    if problem["asked"] == "count":
        return len(amounts)
    if problem["asked"] not in ("sum", "largest") or not amounts or not all(type(amount) is int for amount in amounts):
        raise InvalidActionError('it must ask for the "email", "count", "sum" or "largest" of whole amounts')
    return sum(amounts) if problem["asked"] == "sum" else max(amounts)


def _route(problem: Mapping[str, Any], api: Api) -> Iterator[list[str]]:
    """Yield the paths that lead to the answer, those together that can be requested in one turn."""
    reader = Api()
    reader.reset({"users": problem["users"], "failing": []}, np.random.default_rng(0))
    yield ["/"]
    listed: str | None = None
    path: str | None = "/users"
    while path is not None and listed is None:
        yield [path]
        body = reader.answer(path)[1]
        listed = next((row["id"] for row in body["items"] if row["name"] == problem["name"]), None)
        path = body["next"]
    user = _target(problem)["id"]
    if listed != user:  # it has moved
        yield [f"/users/{listed}" + ("" if problem["asked"] == "email" else "/orders")]
    if problem["asked"] == "email":
        yield [f"/users/{user}"]
        return
    path = f"/users/{user}/orders"
    orders: list[str] = []
    while path is not None:
        yield [path]
        body = reader.answer(path)[1]
        orders += [row["id"] for row in body["items"]]
        path = body["next"]
    if problem["asked"] != "count":
        for start in range(0, len(orders), REQUESTS_PER_TURN):
            yield [f"/orders/{order}" for order in orders[start : start + REQUESTS_PER_TURN]]


_FIRST_NAMES = ("Ada", "Boris", "Chen", "Dora", "Emil", "Fatou", "Greta", "Hugo", "Iris", "Jamal", "Kate", "Lars")
_LAST_NAMES = ("Amari", "Berg", "Castro", "Dietz", "Eriksen", "Fontana", "Gupta", "Hahn", "Ito", "Janda", "Kovac",
               "Lindt")  # fmt: skip


def _draw_service(rng: np.random.Generator, settings: Mapping[str, Any]) -> dict[str, Any]:
    draws: Callable[[], float] = chain(rng.random(200).tolist(), iter(rng.random, None)).__next__

    def below(n: int) -> int:
        return int(draws() * n)

    def fresh(letter: str) -> str:
        while (name := f"{letter}{100 + below(900)}") in taken:
            pass
        taken.add(name)
        return name

    taken: set[str] = set()
    asked = settings["asked"][below(len(settings["asked"]))]
    n_users, n_wanted = settings["users"] + below(4), settings.get("orders", 6)
    names = [
        _FIRST_NAMES[place % 12] + " " + _LAST_NAMES[place // 12] for place in rng.permutation(144)[:n_users].tolist()
    ]
    users: list[dict[str, Any]] = []
    wanted = below(n_users)
    for place, name in enumerate(names):
        n_orders = (6 + below(12) if asked == "count" else n_wanted + below(4)) if place == wanted else below(3)
        orders = [{"id": fresh("o"), "amount": 5 + below(400)} for _ in range(0 if asked == "email" else n_orders)]
        email = f"{name.split()[0].lower()}{below(1_000_000):06d}@example.org"
        users.append({"id": fresh("u"), "name": name, "email": email, "moved_to": "", "orders": orders})
    if settings["failures"] > 2 and draws() < 0.5:
        # The old entry stays in the list; the new one is its last.
        new = {**users[wanted], "id": fresh("u")}
        users[wanted] = {**users[wanted], "moved_to": new["id"], "orders": []}
        users.append(new)
    pages = range(PAGE_SIZE, 1 + wanted // PAGE_SIZE * PAGE_SIZE, PAGE_SIZE) if "orders" in settings else [PAGE_SIZE]
    paths = ["/users", *(f"/users?after={users[start - 1]['id']}" for start in pages)]
    user = next(user for user in reversed(users) if user["name"] == names[wanted])
    paths += [
        f"/users/{user['id']}/orders",
        *(f"/orders/{order['id']}" for order in user["orders"] if asked != "count"),
    ]
    failing = sorted({paths[below(len(paths))] for _ in range(settings["failures"])})
    return {"users": users, "failing": failing, "asked": asked, "name": names[wanted]}
