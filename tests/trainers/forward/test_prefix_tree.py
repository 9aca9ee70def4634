"""The prefix tree as data: rows to nodes, and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_envs.trainers.forward.prefix_tree import build_tree

pytestmark = [pytest.mark.smoke]


def padded(rows, left=0):
    """Rows as ids and a mask, padded with a token that rows have too."""
    length = left + max(len(row) for row in rows)
    ids, mask = torch.full((len(rows), length), 1), torch.zeros(len(rows), length, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, left : left + len(row)], mask[number, left : left + len(row)] = torch.tensor(row).long(), 1
    return ids, mask


def test_a_tree_by_hand():
    """Two rows fork after two tokens, one row is the beginning of another, and one shares nothing."""
    tree = build_tree(*padded([[5, 6, 8], [9], [5, 6, 7, 1], [5, 6]]))
    # In order: 5 6 | 7 1, 8, 9.
    assert tree.ids_N.tolist() == [5, 6, 7, 1, 8, 9]
    assert tree.depth_N.tolist() == [0, 1, 2, 3, 2, 0]
    assert tree.parent_N.tolist() == [-1, 0, 1, 2, 1, -1]
    assert tree.node_BL.tolist() == [[0, 1, 4, -1], [5, -1, -1, -1], [0, 1, 2, 3], [0, 1, -1, -1]]
    runs = [(run.start, run.stop, run.path.tolist()) for run in tree.runs]
    assert runs == [(0, 2, [0, 1]), (2, 4, [0, 1, 2, 3]), (4, 5, [0, 1, 4]), (5, 6, [5])]
    assert tree.n_tokens == 10
    assert tree.ancestors()[4].tolist() == [True, True, False, False, True, False]
    assert tree.rows_of(torch.tensor([1.0, 2, 3, 4, 5, 6]))[0].tolist() == [1, 2, 5, 0]


rows_of_tokens = st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=8)


@given(rows_of_tokens, st.integers(0, 3))
def test_every_token_has_the_node_of_its_prefix(rows, left):
    ids, mask = padded(rows, left)
    tree = build_tree(ids, mask)
    # As many nodes as distinct prefixes, and the tokens come back.
    prefixes = {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    assert len(tree) == len(prefixes)
    assert torch.equal(tree.rows_of(tree.ids_N), ids * mask)
    assert torch.equal(tree.node_BL >= 0, mask.bool())
    nodes = {}
    for row, places in zip(rows, tree.node_BL, strict=True):
        path = places[places >= 0].tolist()
        assert tree.depth_N[path].tolist() == list(range(len(row)))
        assert tree.parent_N[path].tolist() == [-1, *path][: len(path)]
        for n in range(1, len(row) + 1):
            assert nodes.setdefault(tuple(row[:n]), path[n - 1]) == path[n - 1]


@given(rows_of_tokens)
def test_runs_are_all_nodes_in_order_and_their_paths_go_back_to_the_first(rows):
    tree = build_tree(*padded(rows))
    assert [node for run in tree.runs for node in range(run.start, run.stop)] == list(range(len(tree)))
    assert len(tree.runs) <= len(rows)
    ancestors = tree.ancestors()
    parts = torch.arange(len(tree)).split(tree.part_sizes)
    for run in tree.runs:
        assert torch.cat([parts[number] for number in run.parts]).equal(run.path)
        for node in range(run.start, run.stop):
            path, place = [], node
            while place >= 0:
                path.insert(0, place)
                place = int(tree.parent_N[place])
            assert run.path[: len(path)].tolist() == path
            assert torch.nonzero(ancestors[node])[:, 0].tolist() == sorted(path)


def test_gradients_of_a_shared_node_add_up():
    tree = build_tree(*padded([[5, 6], [5, 7]]))
    values = torch.zeros(3, requires_grad=True)
    (tree.rows_of(values) * torch.tensor([[1.0, 2], [10, 20]])).sum().backward()
    assert values.grad.tolist() == [11, 2, 20]
