"""Parts of a micro-batch are all its rows, within their tokens, and train like it."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainings import assert_same, trained

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.forward.prefix_tree import build_tree
from llm_envs.trainers.forward.token_parts import n_token_parts, token_parts

ROWS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=7)


def padded(rows):
    ids, mask = torch.zeros(2, len(rows), max(map(len, rows)), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = torch.tensor(row), 1
    return ids, mask


def computed(ids, mask, rows, is_tree):
    """The tokens that a pass over some rows computes."""
    return len(build_tree(ids[rows], mask[rows])) if is_tree else len(rows) * int(mask[rows].sum(1).max())


@given(ROWS, st.integers(1, 20), st.booleans())
def test_parts_are_all_rows_and_no_larger_than_allowed(rows, most, is_tree):
    ids, mask = padded(rows)
    n_parts = n_token_parts(ids, mask, most, is_tree=is_tree)
    parts = token_parts(ids, mask, n_parts, is_tree=is_tree)
    assert len(parts) == n_parts
    assert sorted(torch.cat(parts).tolist()) == list(range(len(rows)))
    assert all(computed(ids, mask, part, is_tree) <= max(most, len(max(rows, key=len))) for part in parts)


@given(ROWS, st.booleans(), st.data())
def test_more_parts_can_be_asked_for_as_another_process_needs_them(rows, is_tree, data):
    n_parts = data.draw(st.integers(1, len(rows)))
    parts = token_parts(*padded(rows), n_parts, is_tree=is_tree)
    assert len(parts) == n_parts
    assert all(len(part) for part in parts)


def test_rows_that_begin_alike_stay_together_and_parts_are_even():
    trunk = [0] * 10
    rows = [[*trunk, 1], [1] * 10 + [2], [*trunk, 2], [1] * 10 + [3], [*trunk, 3], [1] * 10 + [4]]
    ids, mask = padded(rows)
    assert n_token_parts(ids, mask, 25, is_tree=True) == 2  # 13 tokens each; 26 together
    assert [sorted(part.tolist()) for part in token_parts(ids, mask, 2, is_tree=True)] == [[0, 2, 4], [1, 3, 5]]
    assert n_token_parts(ids, mask, 25, is_tree=False) == 3


@pytest.mark.trainings
@pytest.mark.parametrize(
    "settings",
    [{}, {"forward": "padded"}, {"kind": EnvPPOTrainer}, {"num_iterations": 2, "beta": 0.1}],
    ids=str,
)
def test_a_training_in_parts_ends_with_the_same_weights(tiny_folder, configure, config, settings, keep):
    kind = settings.pop("kind", EnvGRPOTrainer)
    make = partial(configure, EnvPPOConfig, **config.keywords) if kind is EnvPPOTrainer else config
    changes = {"max_steps": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "optim": "sgd"}
    changes |= {"learning_rate": 0.1, **settings}
    ended, n_passes = [], []
    for most in (None, 40):
        trainer = keep(kind(tiny_folder, "test/Say-v0", make(**changes, max_tokens_per_micro_batch=most)))
        passes = []
        trainer.model.get_input_embeddings().register_forward_hook(lambda *called, passes=passes: passes.append(1))
        trainer.train()
        ended.append(trained(trainer))
        n_passes.append(len(passes))
    assert_same(*ended, atol=1e-5)
    assert n_passes[1] > n_passes[0]


@pytest.mark.trainings
def test_what_looks_at_a_whole_micro_batch_is_refused(tiny_folder, config):
    args = config(max_tokens_per_micro_batch=100, top_entropy_quantile=0.5)
    with pytest.raises(InvalidConfigError, match="max_tokens_per_micro_batch=100: top_entropy_quantile"):
        EnvGRPOTrainer(tiny_folder, "test/Say-v0", args)
