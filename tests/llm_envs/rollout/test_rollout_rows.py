"""Rows grow without changing what is in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_envs.rollout import RowBuilder


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_a_row_by_hand() -> None:
    row = RowBuilder(capacity=2)  # grows on the way
    row.append_context(ids(1, 2, 3))
    assert row.append_sampled(ids(4, 5), np.array([-0.5, -0.25], dtype=np.float32)) == 0
    row.append_context(ids(6))
    assert row.append_unsampled(ids(7, 8)) == 1
    built = row.build()
    assert built.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert built.mask.tolist() == [False, False, False, True, True, False, True, True]
    assert built.logps[:6].tolist() == [0, 0, 0, -0.5, -0.25, 0]
    assert np.isnan(built.logps[6:]).all()
    assert built.spans == ((3, 5), (6, 8))
    assert built.prompt_length == 3
    assert built.nbytes == 8 * 9


def test_ids_are_a_read_only_view_that_later_tokens_do_not_change() -> None:
    row = RowBuilder(capacity=4)
    row.append_context(ids(1, 2))
    seen = row.ids
    with pytest.raises(ValueError):
        seen[0] = 9
    row.append_context(ids(3, 4, 5, 6, 7))
    assert seen.tolist() == [1, 2]
    assert seen.dtype == np.int32


def test_growing_is_amortised() -> None:
    row = RowBuilder(capacity=1)
    buffers = set()
    for token in range(10_000):
        row.append_context(ids(token))
        buffers.add(row.ids.ctypes.data)
    assert len(buffers) <= 15  # doublings from 1 to 16,384


def test_truncate_forgets_whole_turns_and_refuses_to_split_one() -> None:
    row = RowBuilder()
    row.append_context(ids(1))
    row.append_unsampled(ids(2, 3))
    row.append_context(ids(4, 5))
    with pytest.raises(ValueError, match="split a turn"):
        row.truncate(2)
    row.truncate(4)
    assert row.build().spans == ((1, 3),)
    row.truncate(1)
    assert row.build().spans == ()
    assert row.build().ids.tolist() == [1]


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 token ids but 1"):
        RowBuilder().append_sampled(ids(1, 2), np.zeros(1, dtype=np.float32))


@given(st.lists(st.tuples(st.sampled_from(["context", "sampled", "unsampled"]), st.integers(0, 40)), max_size=20))
def test_any_sequence_of_pieces_makes_a_valid_row(pieces: list[tuple[str, int]]) -> None:
    row, expected_ids, expected_mask = RowBuilder(capacity=1), [], []
    for index, (kind, length) in enumerate(pieces):
        tokens = np.arange(length, dtype=np.int32) + 100 * index
        if kind == "context":
            row.append_context(tokens)
        elif kind == "sampled":
            row.append_sampled(tokens, np.full(length, -1.0, dtype=np.float32))
        else:
            row.append_unsampled(tokens)
        expected_ids += tokens.tolist()
        expected_mask += [kind != "context"] * length
    built = row.build()  # Row itself checks shapes, dtypes and spans
    assert built.ids.tolist() == expected_ids
    assert built.mask.tolist() == expected_mask
    assert len(built.spans) == sum(kind != "context" for kind, _ in pieces)


def test_a_turn_without_tokens_stays_at_a_cut_and_can_be_forgotten() -> None:
    row = RowBuilder()
    row.append_context(ids(1))
    row.append_unsampled(ids())
    row.append_context(ids(2))
    row.truncate(1)
    assert row.build().spans == ((1, 1),)
    row.append_unsampled(ids(3))
    row.forget_turn()
    row.forget_turn()
    assert row.build().spans == () and len(row) == 1
