"""The rounds of online DPO: which items each process plays, and its share of the pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from llm_envs.sources.mixture import derive_seed
from llm_envs.trainers.dpo.config import EnvDPOConfig

__all__ = ["RoundRows", "items_of_play", "permutation", "share_of_round", "shortened_round", "too_few_pairs"]

Row = dict[str, Any]


class RoundRows(torch.utils.data.Dataset[Row]):
    """A data set of fixed length whose rows are looked up on access, because they change from round to round."""

    def __init__(self, length: int, row_at: Callable[[int], Row]) -> None:
        self._length, self._row_at = length, row_at

    def __len__(self) -> int:
        """Return the number of rows in a full round."""
        return self._length

    def __getitem__(self, place: int) -> Row:
        """Return a row of the current round."""
        return self._row_at(place)


def items_of_play(
    number: int, n_items: int, args: EnvDPOConfig, *, process_index: int, n_processes: int
) -> list[dict[str, Any]]:
    """Return the rows of one process's groups in a play of `groups_per_round`; each pass over the items is shuffled.

    Args:
        number: Number of the play in the run: a round has one, or more if its pairs are too few for a step.
        n_items: Number of items.
        args: The settings.
        process_index: Index of this process.
        n_processes: Number of processes.
    """
    n_local = args.groups_per_round // n_processes
    start = number * args.groups_per_round + process_index * n_local
    places = [divmod(place, n_items) for place in range(start, start + n_local)]
    orders = {epoch: permutation(n_items, derive_seed(args.seed, "items", epoch)) for epoch, _ in places}
    return [
        {"index": orders[epoch][place], "split": "train"}
        for epoch, place in places
        for _ in range(args.num_generations)
    ]


def share_of_round(pairs: Sequence[Row], n_local: int, *, process_index: int, n_processes: int, seed: int) -> list[Row]:
    """Return one process's pairs of a round, from a list shared by all and reshuffled for each pass over it.

    Args:
        pairs: The pairs of all processes, at least one.
        n_local: Number of pairs for each process.
        process_index: Index of this process.
        n_processes: Number of processes.
        seed: Seed of the round.
    """
    places: list[int] = []
    while len(places) < n_local * n_processes:
        places += permutation(len(pairs), derive_seed(seed, len(places)))
    # All processes build the same list and take every n-th place: the shares are disjoint and of equal length.
    return [pairs[place] for place in places[process_index : n_local * n_processes : n_processes]]


def shortened_round(args: EnvDPOConfig, n_pairs: int, n_groups: int) -> str:
    """Return the message for a round with fewer steps than a full one."""
    return (
        f"{n_pairs} preference pairs came of {n_groups} groups, too few for {args.n_steps_per_round} steps "
        f"of {args.n_pairs_per_step}: the round has {args.steps_with(n_pairs)}, so that no pair is trained more than "
        f"max_pair_uses={args.max_pair_uses} times. group_filter=create_spread_filter() replaces groups without a "
        "pair. Later rounds say it in pairs/steps and pairs/uses only."
    )


def too_few_pairs(args: EnvDPOConfig, n_pairs: int, n_tries: int, *, is_filtered: bool) -> str:
    """Return the message for a round whose pairs do not fill one step."""
    few = f"too few preference pairs are left for a step of {args.n_pairs_per_step}: {n_pairs}"
    return (
        f"{few if n_pairs else 'no preference pair is left: none'} came of {n_tries} times {args.groups_per_round} "
        f"groups of {args.num_generations} episodes: in a group without one all rewards are equal or within "
        f"pair_margin={args.pair_margin} (or the pairs are over max_length). Raise num_generations or temperature, or "
        "play problems that are sometimes solved"
        + ("" if is_filtered else "; group_filter=create_spread_filter() replaces groups of equal rewards")
        + (f"; or lower the batch, or raise max_pair_uses={args.max_pair_uses}" if n_pairs else "")
    )


def permutation(n: int, seed: int) -> list[int]:
    """Return the numbers below `n` in random order."""
    order = list(range(n))
    Random(seed).shuffle(order)
    return order
