"""Algorithms that have no name, made of the functions of `functional.state_advantages`."""

from __future__ import annotations

from functools import partial

from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.state_advantages import state_graph, tree_nodes

STATE_GRAPH = Algorithm("state_graph", advantage_fn=partial(state_graph, scale=True), by_state=True)
TREE = Algorithm(
    "tree", advantage_fn=partial(state_graph, min_visits=2, scale=True), by_state=tree_nodes, branches=0.75
)
GRAPH_ALGORITHMS = {algorithm.name: algorithm for algorithm in (STATE_GRAPH, TREE)}
