"""`llm/ShortestPath-v0`: find a shortest path in a weighted graph; any of them is right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_length, read_items
from llm_envs.tasks.draws import between, pick, sample

__all__ = ["ShortestPathEnv", "shortest"]

_LARGEST = 10**9
_LETTERS = tuple("ABCDEFGHJKLMNPQRSTUVWXYZ")
_CODES = tuple(first + second for first in _LETTERS for second in _LETTERS)
"""Names for more nodes than there are letters or towns."""
_TOWNS = (
    *("Aldby", "Birka", "Corin", "Dalma", "Elben", "Forsa", "Gorlitz", "Hamar", "Ilsen", "Jutta", "Kolma", "Lunde"),
    *("Marsk", "Norva", "Ostra", "Prell", "Quern", "Rudna", "Selby", "Torsa", "Ulmen", "Varde", "Wenden", "Zelle"),
)
_STORIES: Mapping[bool, tuple[tuple[tuple[str, ...], str, str, str], ...]] = {
    False: (
        (
            _TOWNS,
            "Roads between towns, with their lengths in km:",
            "{} - {}: {}",
            "Which way from {} to {} is shortest?",
        ),
        (
            _LETTERS,
            "An undirected graph has these edges, with weights:",
            "{}-{} ({})",
            "Find a path of least weight from {} to {}.",
        ),
    ),
    True: (
        (
            _TOWNS,
            "Flights, in the given direction only, with prices:",
            "{} -> {}: {}",
            "Fly from {} to {} most cheaply.",
        ),
        (
            _LETTERS,
            "A directed graph has these edges, with weights:",
            "{}->{} ({})",
            "Find a path of least weight from {} to {}.",
        ),
    ),
}


_TOTAL = re.compile(
    r"\s{0,9}(?:\([^()0-9]{0,40}[0-9][^()]{0,40}\)|=\s?[0-9]+(?: ?[a-z]+)?"
    r"|[,;:]?\s?(?:with )?(?:an? )?total\b[^,;\n0-9]{0,40}[0-9]+[^,;\n0-9]{0,20})$",
    re.IGNORECASE,
)
"""The path's total behind it: "(total: 12)", "= 12", "with a total of 12"."""
_BETWEEN_NODES = re.compile(r"\s*[-\u2013\u2014]+\s*|\s+")
_TO = re.compile(r"\s+to\s+", re.IGNORECASE)


class ShortestPathEnv(SingleTurnEnv):
    """Find a path of least total weight between two nodes.

    ## Description
    A weighted graph is told as roads, flights or edges. The path over the fewest edges is never shortest, nor is one
    that always takes the lightest edge to a new node, from either end, perhaps with a look for the goal. Every
    path of least weight is right. Teaches Dijkstra's algorithm, or any search that keeps totals.

    ## Observation
    The edges and the question. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>A -> C -> F</answer>`: the nodes of the path in order. Commas, hyphens, "to", line breaks or spaces may
    stand between them, and a total behind them in parentheses. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if it is a path from start to goal of least weight. `malformed` (weight -0.1): 1 for a
    reply without an answer, with broken tags, or whose answer is not a list of nodes of the graph.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Graphs that differ only in names are in the same split.
    - `difficulty`: "easy" (default): 7 nodes, 11 edges; "medium": 10 nodes, 20 edges; "hard": 14 nodes, 40 directed
      edges, and at least four on the way; "expert": 60 nodes, 260 directed edges, and at least seven on the way.
    - `reset(options={"problem": {"story": 1, "directed": false, "edges": [["A", "B", 3], ["B", "C", 1]], "start":
      "A", "goal": "C"}})` plays a given graph; stories are 0 and 1.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often a walk at random is a shortest path, which visits no node twice and takes the
    # goal as soon as it is next: 8.7%, 4.2%, 4.6%, below 0.5%.
    difficulties = {
        "easy": Difficulty("7 nodes", 0.11, settings={"nodes": 7, "edges": 11, "directed": False, "steps": 3}),
        "medium": Difficulty("10 nodes", 0.06, settings={"nodes": 10, "edges": 20, "directed": False, "steps": 3}),
        "hard": Difficulty("14 nodes", 0.06, settings={"nodes": 14, "edges": 40, "directed": True, "steps": 4}),
        "expert": Difficulty(
            "60 nodes",
            0.01,
            settings={"nodes": 60, "edges": 260, "directed": True, "steps": 7},
            expected_hard="The shortest path takes at least seven of 260 edges; to be sure of it, 60 nodes are "
            "settled in order and 260 totals compared. At one slip in 400 of these steps, 45% come out right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level the edges of 60 nodes are drawn, and searched through twice"
    problem_fields = {"story": int, "directed": bool, "edges": list, "start": str, "goal": str}
    instructions = "Find the best path. The answer is the names on the path, in order, from the first to the last."
    answer_example = "A -> C -> F"

    def generate(self) -> dict[str, Any]:
        """Draw edges and ends until the shortest path has enough steps, and short cuts in thinking fail."""
        random, n, directed = self.np_random.random, self.settings["nodes"], self.settings["directed"]
        story = int(random() * len(_STORIES[directed]))
        names = _STORIES[directed][story][0]
        nodes = sample(random, names if n <= len(names) else _CODES, n)
        pairs = [(a, b) for a in nodes for b in nodes if (a != b if directed else a < b)]
        while True:
            chosen = sample(random, pairs, self.settings["edges"])
            edges: list[list[Any]] = [[a, b, between(random, 2, 30)] for a, b in chosen]
            start = pick(random, nodes)
            lengths, before = _from(start, _outgoing(edges, directed))
            goals = [node for node in lengths if _steps(node, before) >= self.settings["steps"]]
            if not goals:
                continue
            goal = pick(random, goals)
            _, hops_before = _from(start, _outgoing([[a, b, _LARGEST + w] for a, b, w in edges], directed))
            straight = _path(goal, hops_before)
            weights = {(a, b): w for a, near in _outgoing(edges, directed).items() for b, w in near}
            if sum(weights[step] for step in pairwise(straight)) == lengths[goal]:
                continue
            ways = _lightest_first(start, goal, edges, directed).values()
            if not any(sum(weights[step] for step in pairwise(path)) == lengths[goal] for path in ways):
                return {"story": story, "directed": directed, "edges": edges, "start": start, "goal": goal}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that is not a graph, or that has no path."""
        if problem["story"] not in (0, 1):
            raise InvalidActionError("the story must be 0 or 1")
        seen = set()
        for edge in problem["edges"]:
            if not isinstance(edge, list) or len(edge) != 3 or type(edge[2]) is not int or not 0 < edge[2] <= _LARGEST:
                raise InvalidActionError('each edge must be ["A", "B", 3], with a whole weight from 1 to 10**9')
            if not all(isinstance(name, str) and re.fullmatch(r"\w+", name) for name in edge[:2]) or edge[0] == edge[1]:
                raise InvalidActionError("an edge must join two different nodes, whose names are single words")
            key = tuple(edge[:2]) if problem["directed"] else frozenset(edge[:2])
            if key in seen:
                raise InvalidActionError(f"the edge {edge[:2]} is there twice")
            seen.add(key)
        names = {name for edge in problem["edges"] for name in edge[:2]}
        if len({name.lower() for name in names}) < len(names):
            raise InvalidActionError("names must differ in more than upper and lower case")
        if problem["start"] == problem["goal"] or not shortest(problem):
            raise InvalidActionError(f"there is no path from {problem['start']} to {problem['goal']}, another node")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return a key that does not depend on names: each node's weights, and which nodes are the ends."""
        around: dict[str, list[int]] = {}
        for a, b, weight in problem["edges"]:
            around.setdefault(a, []).append(weight)
            around.setdefault(b, []).append(-weight if problem["directed"] else weight)
        ends = [sorted(around.get(problem[end], [])) for end in ("start", "goal")]
        return [sorted(sorted(weights) for weights in around.values()), ends if problem["directed"] else sorted(ends)]

    def begin(self) -> None:
        """Find a shortest path."""
        self._weights = {
            (a.lower(), b.lower()): weight
            for a, near in _outgoing(self.problem["edges"], self.problem["directed"]).items()
            for b, weight in near
        }
        self._nodes = {node for edge in self._weights for node in edge}
        self._path = shortest(self.problem)
        self._length = self._weigh([node.lower() for node in self._path])

    def shortcuts(self) -> Mapping[str, str]:
        """Return the paths that always take the lightest edge."""
        problem = self.problem
        ways = _lightest_first(problem["start"], problem["goal"], problem["edges"], problem["directed"])
        return {name: self.write_answer(" -> ".join(path)) for name, path in ways.items()}

    def prompt(self) -> str:
        """Return the edges and the question."""
        problem = self.problem
        _, intro, edge, question = _STORIES[problem["directed"]][problem["story"]]
        edges = "\n".join(edge.format(*each) for each in problem["edges"])
        return f"{intro}\n{edges}\n{question.format(problem['start'], problem['goal'])}"

    def solution(self) -> str:
        """Return a shortest path."""
        return " -> ".join(self._path)

    def is_correct(self, answer: str) -> bool:
        """Check that it is a path between the ends, and as short as the shortest."""
        check_length(answer)
        items = read_items(_TO.sub(" -> ", _TOTAL.sub("", answer.strip().rstrip("."))))
        nodes = [node.lower() for item in items for node in _BETWEEN_NODES.split(item) if node]
        nodes = [node for i, node in enumerate(nodes) if i == 0 or node != nodes[i - 1]]  # A-C, C-F is A-C-F
        unknown = next((node for node in nodes if node not in self._nodes), None)
        if unknown is not None or not nodes:
            raise InvalidActionError(f"{(unknown or '')[:40]!r} is not a node of the graph")
        if len(nodes) < 2:
            raise InvalidActionError("a path must have at least two nodes")
        if nodes[0] != self.problem["start"].lower() or nodes[-1] != self.problem["goal"].lower():
            return False
        return self._weigh(nodes) == self._length

    def _weigh(self, nodes: Sequence[str]) -> int | None:
        """Return the weight of a path, or None if an edge does not exist."""
        steps = list(pairwise(nodes))
        return sum(self._weights[step] for step in steps) if all(step in self._weights for step in steps) else None


Outgoing = dict[str, list[tuple[str, Any]]]


def _outgoing(edges: Sequence[Sequence[Any]], directed: bool) -> Outgoing:
    near: Outgoing = {}
    for a, b, weight in edges:
        near.setdefault(a, []).append((b, weight))
        near.setdefault(b, [])
        if not directed:
            near[b].append((a, weight))
    return near


def _from(start: str, near: Outgoing) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the length of the shortest path to each node, and the node before it on the way, by Dijkstra."""
    lengths: dict[str, Any] = {}
    before: dict[str, str] = {}
    waiting: list[tuple[Any, str, str]] = [(0, start, "")]
    while waiting:
        length, node, previous = heappop(waiting)
        if node in lengths:
            continue
        lengths[node] = length
        if previous:
            before[node] = previous
        for other, weight in near.get(node, ()):
            if other not in lengths:
                heappush(waiting, (length + weight, other, node))
    return lengths, before


def _path(goal: str, before: Mapping[str, str]) -> list[str]:
    path = [goal]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1]


def _steps(goal: str, before: Mapping[str, str]) -> int:
    return len(_path(goal, before)) - 1


def _lightest_first(start: str, goal: str, edges: Sequence[Sequence[Any]], directed: bool) -> dict[str, list[str]]:
    """Return paths that always take the lightest edge to a new node, by name; in a dead end they go one step back."""
    ways = (("forwards", edges, start, goal), ("backwards", [[b, a, weight] for a, b, weight in edges], goal, start))
    found = {}
    for way, these, first, last in ways:
        near = _outgoing(these, directed)
        for name, takes_goal in (("", False), (", the goal as soon as it is next", True)):
            path = _lightest_path(first, last, near, takes_goal)
            if path:
                found[f"the lightest edge, {way}{name}"] = path if way == "forwards" else path[::-1]
    return found


def _lightest_path(start: str, goal: str, near: Outgoing, takes_goal: bool) -> list[str]:
    path, seen = [start], {start}
    while path and path[-1] != goal:
        ahead = [(takes_goal and node != goal, weight, node) for node, weight in near[path[-1]] if node not in seen]
        if ahead:
            path.append(min(ahead)[2])
            seen.add(path[-1])
        else:
            path.pop()
    return path


def shortest(problem: Mapping[str, Any]) -> list[str]:
    """Return a shortest path from start to goal; an empty list if the goal cannot be reached."""
    lengths, before = _from(problem["start"], _outgoing(problem["edges"], problem["directed"]))
    return _path(problem["goal"], before) if problem["goal"] in lengths else []
