"""A trainer's episodes: a numbered list for each split, the same on every process and after a resume.

TRL's data set has only the numbers; `EpisodeDataset` maps each to an environment, seed and problem.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from datasets import Dataset
from torch.utils.data import Sampler

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers.json_calls import strict_json
from llm_envs.rollout.workers.runner import EnvMaker, close_env, env_attribute
from llm_envs.sources.curriculum import Curriculum
from llm_envs.sources.mixture import derive_seed
from llm_envs.sources.prompt_task import PromptTask
from llm_envs.sources.source import EnvChoice, Envs, EpisodeSpec, SeedSource
from llm_envs.trainers.settings.checks import with_split

__all__ = [
    "MANY",
    "EpisodeDataset",
    "ListedItems",
    "RecordedSampler",
    "SeedItems",
    "episode_seed",
    "epoch_length",
    "index_dataset",
    "index_datasets",
    "make_items",
    "name_of",
    "refills",
    "upcoming_rows",
]


MANY = 10_000
"""The rows of an epoch of a task that makes up as many problems as are asked for."""


class EpisodeDataset(Protocol):
    """A numbered list of episodes."""

    source: SeedSource
    """The environments, for the collector, with the state of a curriculum."""

    def __len__(self) -> int:
        """Return the number of episodes: the rows of one epoch."""
        ...

    def spec(self, index: int, group_id: str) -> EpisodeSpec:
        """Return item `index` as the spec of a group's member 0."""
        ...


class SeedItems:
    """Seeds of a mixture of environments: item `index` is one seed of one of them, drawn by weight.

    Args:
        envs: An environment id, a factory, or a weighted mixture (see `llm_envs.rollout.Envs`).
        split: Passed to every environment, unless its arguments have a `split` (None there omits it).
        n: Number of items; None: an epoch of the split. That is each row of a `PromptTask` once, the number of problems
            that a task declares, or `MANY`.
        seed: Run seed.
        env_kwargs: Arguments common to all environments.
        curriculum: Chooses arguments by measured success, for the train split.
        least: Fewest items with `n` None: a generation's groups. A shorter split is then played more than once.
        most: Most items: an evaluation's. A split that has fewer has no more items than that.
    """

    def __init__(
        self,
        envs: Envs,
        split: str,
        n: int | None,
        *,
        seed: int,
        env_kwargs: Mapping[str, Any],
        curriculum: Curriculum | Mapping[str, Curriculum] | None = None,
        least: int = 1,
        most: int | None = None,
    ) -> None:
        common = {"split": split} | dict(env_kwargs)
        choices = [
            replace(choice, kwargs=with_split(split, choice.kwargs))
            for choice in SeedSource(envs, env_kwargs=common).choices
        ]
        if n is None and curriculum is None:
            choices = [_with_rows(choice) for choice in choices]
        self.source = SeedSource(choices, seed=seed, curriculum=curriculum)
        self._n, self._seed, self._split = max(least, epoch_length(choices, most)) if n is None else n, seed, split

    def __len__(self) -> int:
        """Return how many there are."""
        return self._n

    def spec(self, index: int, group_id: str) -> EpisodeSpec:
        """Return item `index`; with a curriculum, at its current level."""
        spec = self.source.spec(index)
        # The seed depends on the split, so that item 0 of train and item 0 of test have different seeds.
        game = index // next(choice.n_seats for choice in self.source.choices if choice.env_id == spec.env_id)
        return replace(spec, seed=episode_seed(self._seed, self._split, game), group_id=group_id)


def _with_rows(choice: EnvChoice) -> EnvChoice:
    """Return an environment with its prompts as problems, each once per epoch; another environment as it is."""
    if choice.problems is not None or not isinstance(choice.factory, PromptTask):
        return choice
    split = str(choice.kwargs.get("split", "train"))
    try:
        return replace(choice, problems=choice.factory.rows(split, choice.kwargs.get("difficulty")))
    except InvalidConfigError:
        if split == "train":
            raise
        return choice  # perhaps nothing is evaluated


def epoch_length(choices: Sequence[EnvChoice], most: int | None = None) -> int:
    """Return the rows of one epoch: the problems of all environments, and at most `most`.

    Args:
        choices: The environments.
        most: The result if there are more, or an environment does not tell; None: all, or `MANY`.
    """
    total = 0
    for choice in choices:
        n = None if choice.problems is None else len(choice.problems) * choice.n_seats
        if n is None:
            with suppress(Exception):  # an environment that cannot be made fails where it is played
                env = EnvMaker(choice.env_id, choice.kwargs, choice.factory)()
                n = env_attribute(env, "n_problems", None)
                close_env(env)
        if n is None or (choice.problems is None and n > MANY):
            return MANY if most is None else most
        total += int(n)
    return total if most is None else min(total, most)


class ListedItems:
    """The rows of a data set, one episode each.

    Args:
        dataset: Columns `env` (an id) and `seed` (a number); optional `options` (passed to `reset`, such as
            {"problem": ...}) and `env_kwargs`, each a mapping or a JSON object.
        split: Passed to every environment, unless the arguments have a `split` (None there omits it).
        env_kwargs: Arguments common to all rows.

    Raises:
        InvalidConfigError: If a column is missing or a row is invalid; the error names the row.
    """

    def __init__(self, dataset: Dataset, split: str, *, env_kwargs: Mapping[str, Any]) -> None:
        names = dataset.column_names
        if missing := sorted({"env", "seed"} - set(names)):
            raise InvalidConfigError(
                f"the data set has the columns {names}; a list of episodes needs {' and '.join(missing)} too "
                "(options and env_kwargs are optional)."
            )
        if not len(dataset):
            raise InvalidConfigError("the data set of episodes is empty.")
        self._specs = [_listed(number, row, split, env_kwargs) for number, row in enumerate(dataset)]
        # A data set may have thousands of rows but few environments: the source gets each variant once.
        variants = {json.dumps([s.env_id, dict(s.env_kwargs)], sort_keys=True) for s in self._specs}
        self.source = SeedSource(
            [EnvChoice(env_id, kwargs=kwargs) for env_id, kwargs in map(json.loads, sorted(variants))]
        )

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._specs)

    def spec(self, index: int, group_id: str) -> EpisodeSpec:
        """Return item `index`."""
        return replace(self._specs[index], group_id=group_id)


def make_items(
    envs: Envs | Dataset,
    split: str,
    n: int | None,
    *,
    seed: int,
    env_kwargs: Mapping[str, Any],
    curriculum: Curriculum | Mapping[str, Curriculum] | None = None,
    least: int = 1,
    most: int | None = None,
) -> EpisodeDataset:
    """Return the items of a split: seeds of environments, or the rows of a data set."""
    if isinstance(envs, Dataset):
        if curriculum is not None:
            raise InvalidConfigError("the data set decides what is played: leave curriculum out, or give environments.")
        return ListedItems(envs, split, env_kwargs=env_kwargs)
    return SeedItems(envs, split, n, seed=seed, env_kwargs=env_kwargs, curriculum=curriculum, least=least, most=most)


def index_datasets(items: Mapping[str, EpisodeDataset]) -> dict[str, Dataset]:
    """Return TRL's `train_dataset`, and `eval_dataset` if there is a test split: one row per item."""
    roles = {"train": "train_dataset", "test": "eval_dataset"}
    return {roles[split]: index_dataset(part, split) for split, part in items.items()}


def index_dataset(items: EpisodeDataset, split: str) -> Dataset:
    """Return the data set that TRL shuffles and repeats, with one row per item."""
    # TRL needs a column `prompt`. Here it is only a name: the trainers play by `index` and `split`.
    n, name = len(items), name_of(items)
    return Dataset.from_dict(
        {
            "prompt": [f"{name} {split} #{index}" for index in range(n)],
            "index": list(range(n)),
            "split": [split] * n,
        }
    )


def name_of(items: EpisodeDataset) -> str:
    """Return the ids of the environments, joined."""
    return "+".join(dict.fromkeys(choice.env_id for choice in items.source.choices))


class RecordedSampler(Sampler[int]):
    """Yields what another sampler yields, and records the order of the epoch."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self._sampler = sampler
        self.order: list[int] = []
        """The indices of the present epoch."""

    def __iter__(self) -> Iterator[int]:
        """Begin an epoch."""
        self.order = list(self._sampler)
        return iter(self.order)

    def __len__(self) -> int:
        """Return the number of indices of an epoch."""
        return len(self._sampler)  # type: ignore[arg-type]


def upcoming_rows(
    order: Sequence[int], rows: Sequence[Mapping[str, Any]], *, n: int, stride: int, uses: int, n_accumulated: int
) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return what TRL will ask this process to play next; fewer generations at the end of an epoch.

    Args:
        order: The indices of the epoch.
        rows: The rows of the present generation.
        n: Number of generations.
        stride: Indices from one generation to the next: of all processes, with their repetitions.
        uses: Micro-batches that each generation is used for.
        n_accumulated: Micro-batches of an optimizer step.

    Returns:
        For each generation, the optimizer steps from the present one to its first, and its rows.

    Raises:
        InvalidConfigError: If the rows are not in this order.
    """
    here, split = [row["index"] for row in rows], rows[0]["split"]
    start = order.index(here[0]) if here[0] in order else 0
    if list(order[start : start + len(here)]) != here:
        raise InvalidConfigError(
            "async_generations plays the rows that TRL's own sampler will ask for, and the trainer has another data "
            "loader: set async_generations=0."
        )
    # A generation may begin inside a step, so count micro-batches from the beginning of the epoch, where a step begins.
    present = start // stride
    first_step = present * uses // n_accumulated
    upcoming = []
    for number in range(1, n + 1):
        indices = order[start + stride * number :][: len(here)]
        if len(indices) == len(here):
            steps = (present + number) * uses // n_accumulated - first_step
            upcoming.append((steps, [{"index": index, "split": split} for index in indices]))
    return upcoming


def refills(items: EpisodeDataset, key: Sequence[int | str]) -> Iterator[EpisodeSpec]:
    """Yield endless replacements for groups that a filter drops, drawn with replacement.

    Args:
        items: The items to draw from.
        key: Run seed, step, process, ...: the same key gives the same items, on any machine and after a resume.
    """
    number = 0
    while True:
        # By hash, not by a random generator: a resumed run has no generator state to restore.
        index = derive_seed(*key, "refill", number) % len(items)
        yield items.spec(index, "-".join([*map(str, key[1:]), f"refill{number}"]))
        number += 1


def episode_seed(run_seed: int, split: str, index: int) -> int:
    """Return the environment's seed of row `index` of a split: the same on every process and in every epoch."""
    digest = hashlib.blake2b(f"{run_seed}/{split}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def _listed(number: int, row: Mapping[str, Any], split: str, env_kwargs: Mapping[str, Any]) -> EpisodeSpec:
    env, seed = row["env"], row["seed"]
    if not isinstance(env, str) or not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InvalidConfigError(
            f"row {number} of the data set of episodes has env {env!r:.80} and seed {seed!r:.80}; they must be an "
            "id and a whole number of at least 0."
        )
    own = _mapping(number, "env_kwargs", row.get("env_kwargs")) or {}
    options = _mapping(number, "options", row.get("options"))
    return EpisodeSpec(env, with_split(split, {**env_kwargs, **own}), seed, options=options)


def _mapping(number: int, name: str, value: Any) -> dict[str, Any] | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = strict_json(value)
        except ValueError as error:
            raise InvalidConfigError(f"row {number} of the data set: {name} is not JSON ({error}).") from error
    if not isinstance(value, Mapping):
        raise InvalidConfigError(f"row {number} of the data set: {name} is {value!r:.80}; it must be a JSON object.")
    return dict(value)
