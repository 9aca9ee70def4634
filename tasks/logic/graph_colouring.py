"""`llm/GraphColouring-v0`: give neighbours different colours; many answers are right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import pick, sample
from llm_envs.tasks.logic.assignments import read_assignment

__all__ = ["GraphColouringEnv", "colour"]

_MOST_NODES = 30

_STORIES: Mapping[str, tuple[str, str, str, tuple[str, ...], tuple[str, ...]]] = {
    "map": (
        "A map has the regions {nodes}. Give each region one of the colours {colours}, so that regions with a common "
        "border differ.",
        "Common borders:",
        "{}-{}",
        (*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "AA", "BB", "CC", "DD"),
        ("red", "green", "blue", "yellow"),
    ),
    "exams": (
        "These exams are to be held: {nodes}. Give each one of the slots {colours}, so that no student has two exams "
        "in the same slot.",
        "Some student takes both of:",
        "{} and {}",
        (
            *("algebra", "biology", "botany", "chemistry", "Chinese", "drama", "economics", "French", "geology"),
            *("German", "history", "Latin", "logic", "music", "optics", "physics", "poetry", "Spanish", "statistics"),
            *(
                "anatomy",
                "Arabic",
                "art",
                "ballet",
                "dentistry",
                "ecology",
                "ethics",
                "Greek",
                "law",
                "nursing",
                "Polish",
            ),
        ),
        ("morning", "noon", "evening", "night"),
    ),
    "radio": (
        "There are the radio stations {nodes}. Give each one of the channels {colours}, so that stations that are near "
        "each other have different channels.",
        "Near each other are:",
        "{} and {}",
        (
            *("Alpha", "Bravo", "Charlie", "Delta", "Echo", "Foxtrot", "Golf", "Hotel", "India", "Juliet", "Kilo"),
            *("Lima", "Mike", "November", "Oscar", "Papa", "Quebec", "Romeo", "Sierra", "Tango"),
            *("Uniform", "Victor", "Whiskey", "Xray", "Yankee", "Zulu", "Able", "Baker", "Dog", "Easy"),
        ),
        ("one", "two", "three", "four"),
    ),
}
"""Of each story the task, what comes before the pairs, how a pair is told, and names of nodes and colours."""


class GraphColouringEnv(SingleTurnEnv):
    """Colour a graph with few colours, told as a map, as exams or as radio stations.

    ## Description
    Nodes are to get one of three or four colours (slots, channels), so that the nodes of each listed pair differ. It is
    always possible: the pairs were drawn between nodes of different colours. Every such assignment is right. Teaches
    to search with constraints, and to check each pair before answering.

    ## Observation
    The nodes, the colours and the pairs. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>A: red, B: blue, C: red</answer>`: a colour for each node, in any order. Thinking in `<think>...</think>`
    is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if no pair has the same colour. There is nothing for the pairs that are right: most are in
    any answer. `malformed` (weight -0.1): 1 for a reply without an answer, with broken tags, or whose answer does not
    give each node one of the colours.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Graphs that differ only in names are in the same split.
    - `difficulty`: "easy" (default): 8 nodes, 13 pairs, 3 colours; "medium": 10 nodes, 20 pairs, 3 colours; "hard": 16
      nodes, 35 pairs, 3 colours; "expert": 30 nodes, 68 pairs, 3 colours, on which colouring the most constrained
      node next fails.
    - `reset(options={"problem": {"story": "map", "nodes": ["A", "B"], "edges": [["A", "B"]], "colours": ["red",
      "blue"]}})` plays a given graph of at most 30 nodes; stories are "map", "exams" and "radio".

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often a random colouring of equal shares is right: 1.1%, 0.08%, below
    # 0.002%, next to 0.
    difficulties = {
        "easy": Difficulty(
            "8 nodes, 13 pairs", chance_rate=0.015, n_problems=645, settings={"nodes": 8, "edges": 13, "colours": 3}
        ),
        "medium": Difficulty("10 nodes, 20 pairs", 0.002, settings={"nodes": 10, "edges": 20, "colours": 3}),
        "hard": Difficulty("16 nodes, 35 pairs", 0.00002, settings={"nodes": 16, "edges": 35, "colours": 3}),
        "expert": Difficulty(
            "30 nodes, 68 pairs",
            0.00001,
            settings={"nodes": 30, "edges": 68, "colours": 3, "is_misleading": True},
            expected_hard="30 nodes with 68 pairs lie where three colours barely do, and who always colours the most "
            "constrained node next gets stuck: colours must be taken back, with up to 30 nodes to keep in the head.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level graphs are drawn until the usual way to colour them fails"
    problem_fields = {"story": str, "nodes": list, "edges": list, "colours": list}
    instructions = "Give a value to each name, as the task asks. The answer is every name with its value."
    answer_example = "A: red, B: blue, C: red"

    def generate(self) -> dict[str, Any]:
        """Draw a colouring with shares as equal as can be, and pairs of different colours, connecting all nodes."""
        random, n = self.np_random.random, self.settings["nodes"]
        story = pick(random, tuple(_STORIES))
        *_, names, colours = _STORIES[story]
        nodes, used = sample(random, names, n), list(colours[: self.settings["colours"]])
        solution = {node: used[i % len(used)] for i, node in enumerate(nodes)}
        nodes.sort(key=str.lower)
        pairs = [(a, b) for i, a in enumerate(nodes) for b in nodes[i + 1 :] if solution[a] != solution[b]]
        while True:
            edges = sample(random, pairs, self.settings["edges"])
            if len({node for edge in edges for node in edge}) < n:
                continue
            if not self.settings.get("is_misleading") or colour(nodes, edges, used, may_go_back=False) is None:
                break
        edges = [edge if random() < 0.5 else edge[::-1] for edge in edges]
        problem = {"story": story, "nodes": nodes, "edges": [list(edge) for edge in edges], "colours": used}
        self._drawn = problem, solution
        return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that is not a graph, or that cannot be coloured."""
        nodes, edges, colours = problem["nodes"], problem["edges"], problem["colours"]
        if problem["story"] not in _STORIES:
            raise InvalidActionError(f"the story must be one of {', '.join(_STORIES)}")
        if not all(isinstance(word, str) and re.fullmatch(r"\w+", word) for word in [*nodes, *colours]):
            raise InvalidActionError("nodes and colours must be single words")
        for words, most in ((nodes, _MOST_NODES), (colours, _MOST_NODES)):
            if not 1 <= len(words) <= most or len({word.lower() for word in words}) < len(words):
                raise InvalidActionError(f"there must be 1 to {most} different nodes, and as many colours at most")
        for edge in edges:
            if not isinstance(edge, list) or len(edge) != 2 or edge[0] == edge[1] or not all(x in nodes for x in edge):
                raise InvalidActionError("each edge must be a list of two different nodes")
        if colour(nodes, edges, colours) is None:
            raise InvalidActionError("the graph cannot be coloured with these colours")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return a key that does not depend on names: how many neighbours each node has, and these have."""
        neighbours = _neighbours(problem["nodes"], problem["edges"])
        degrees = {node: len(around) for node, around in neighbours.items()}
        profile = sorted([degrees[node], *sorted(degrees[x] for x in around)] for node, around in neighbours.items())
        return [len(problem["colours"]), profile]

    def begin(self) -> None:
        """Set up the neighbours."""
        self._pairs = [tuple(edge) for edge in self.problem["edges"]]

    def prompt(self) -> str:
        """Return the nodes, the colours and the pairs."""
        task, intro, pair, _, _ = _STORIES[self.problem["story"]]
        nodes, colours = ", ".join(self.problem["nodes"]), ", ".join(self.problem["colours"])
        pairs = ", ".join(pair.format(*edge) for edge in self.problem["edges"])
        return f"{task.format(nodes=nodes, colours=colours)}\n{intro} {pairs}."

    def solution(self) -> str:
        """Return a colouring that is right: the one the pairs were drawn for, or one that is searched for."""
        problem, colouring = getattr(self, "_drawn", (None, {}))
        nodes = self.problem["nodes"]
        if problem is not self.problem:
            colouring = colour(nodes, self.problem["edges"], self.problem["colours"]) or {}
        return ", ".join(f"{node}: {colouring[node]}" for node in nodes)

    def is_correct(self, answer: str) -> bool:
        """Check each pair."""
        found = read_assignment(answer, self.problem["nodes"], self.problem["colours"])
        return all(found[a] != found[b] for a, b in self._pairs)


def _neighbours(nodes: Sequence[str], edges: Sequence[Sequence[str]]) -> dict[str, set[str]]:
    neighbours: dict[str, set[str]] = {node: set() for node in nodes}
    for a, b in edges:
        neighbours[a].add(b)
        neighbours[b].add(a)
    return neighbours


def colour(
    nodes: Sequence[str], edges: Sequence[Sequence[str]], colours: Sequence[str], *, may_go_back: bool = True
) -> dict[str, str] | None:
    """Return a colouring, or None if none was found: the node with fewest colours left is coloured next.

    If it may not go back, the search ends where no colour is left for a node; else it finds one if there is one.
    """
    neighbours = _neighbours(nodes, edges)
    found: dict[str, str] = {}

    def search() -> bool:
        if len(found) == len(nodes):
            return True
        taken = {node: {found[x] for x in neighbours[node] if x in found} for node in nodes if node not in found}
        node = max(taken, key=lambda node: (len(taken[node]), len(neighbours[node])))
        used = set(found.values())
        for choice in colours:
            if choice not in taken[node]:
                found[node] = choice
                if search():
                    return True
                if not may_go_back:
                    return False
                del found[node]
                if choice not in used:
                    break  # another colour that is not used yet would do no better
        return False

    return found if search() else None
