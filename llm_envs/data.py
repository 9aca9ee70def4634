"""Trajectories as datasets: lossless tables, and rows to train on. The `datasets` package is imported on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.records import SCHEMA, from_record, to_record
from llm_envs.types import Row, Trajectory

if TYPE_CHECKING:
    import datasets

__all__ = ["from_dataset", "is_scored", "sft_rows", "to_dataset"]

IGNORED_LABEL = -100
"""The label that PyTorch's cross-entropy, and so every trainer, leaves out."""


def to_dataset(trajectories: Iterable[Trajectory]) -> datasets.Dataset:
    """Return the trajectories as a table, one line each, losslessly (`from_dataset` gives them back).

    `messages` has the form that chat templates take; `rows` the token arrays; `turns` a record of each turn; `reward`
    is there to be filtered by. What has no fixed shape is JSON text.

    Half a surrogate pair, which JSON can hold and Arrow's UTF-8 cannot, stands as "?" in a message's `content`; the
    exact content is in `message_extras`, whence `from_dataset` takes it.

    Raises:
        MissingExtraError: If `datasets` is not installed.
    """
    module = _datasets()
    features, records = module.Features(_features(module)), [to_record(t) for t in trajectories]
    columns = {name: [record[name] for record in records] for name in features}
    return module.Dataset.from_dict(columns, features=features)


def from_dataset(dataset: datasets.Dataset | Iterable[Mapping[str, Any]]) -> list[Trajectory]:
    """Return the trajectories that `to_dataset` wrote."""
    return [from_record(record) for record in dataset]


def is_scored(trajectory: Trajectory) -> bool:
    """Say whether a trajectory has a reward: neither errored nor unscored."""
    return trajectory.status == "ok"


def sft_rows(
    trajectories: Iterable[Trajectory], keep: Callable[[Trajectory], bool] = is_scored
) -> list[dict[str, list[int]]]:
    """Return token rows on which only the agent's own tokens are trained.

    The form is TRL's for datasets that are already tokenised: `input_ids`, and `labels` with −100 wherever the template
    or the environment wrote. TRL takes `labels` as they are, whatever its `completion_only_loss` says. What follows the
    agent's last token cannot be trained on and is left out.

    Args:
        trajectories: Of any policy, played with a codec.
        keep: Which to keep; by default all that were scored. For the successful ones: `lambda t: bool(t.is_success)`.

    Raises:
        InvalidConfigError: If a kept trajectory was played without a codec and so has no tokens.
    """
    out = []
    for trajectory in trajectories:
        if not keep(trajectory):
            continue
        if not trajectory.rows and trajectory.turns:
            raise InvalidConfigError(
                f"trajectory {trajectory.group_id}/{trajectory.member} has no tokens: "
                "collect with codec=ChatCodec(tokenizer)."
            )
        out += [_sft_row(row) for row in trajectory.rows if row.mask.any()]
    return out


def _sft_row(row: Row) -> dict[str, list[int]]:
    stop = row.spans[-1][1]
    labels = np.where(row.mask[:stop], row.ids[:stop], IGNORED_LABEL)
    return {"input_ids": row.ids[:stop].tolist(), "labels": labels.tolist()}


def _features(module: Any, kind: Any = SCHEMA) -> Any:
    """Return the form of `datasets` for a type of `records.SCHEMA`."""
    if isinstance(kind, str):
        return module.Value(kind)
    if isinstance(kind, list):
        return module.List(_features(module, kind[0]))
    return {name: _features(module, inner) for name, inner in kind.items()}


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("trajectories as a dataset need `datasets`: pip install 'llm-envs[train]'.") from error
    return datasets
