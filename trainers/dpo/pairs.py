"""DPO's training data: pairs of episodes of one seed as token rows, with a mask of the agent's tokens.

Invariants:
1. The two episodes of a pair have the same environment, seed and prompt. The chosen one has the greater reward.
2. Token ids are the sampled ones, or for plain messages the codec's encoding.
3. Tokens of the environment or the template have mask 0: they are context, not part of the loss.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from datasets import Dataset, load_from_disk
from trl.data_utils import extract_prompt
from trl.trainer.dpo_trainer import DataCollatorForPreference

from llm_envs.chat.codec import ChatCodec
from llm_envs.data.datasets import fit_rows, preference_rows, to_groups
from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import from_messages
from llm_envs.sources.prompts import read_jsonl
from llm_envs.trainers.dpo.config import EnvDPOConfig
from llm_envs.trainers.functional.pairs import (
    PairSelector,
    all_pairs,
    best_worst_pairs,
    random_pairs,
    similar_length_pairs,
)
from llm_envs.trainers.sft.source import first_record, in_tokens_of, load_source, tools_of, without_nones
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = [
    "MASKS",
    "PairCollator",
    "as_dataset",
    "check_tokenizer",
    "fit_pairs",
    "load_pairs",
    "pair_rows",
]

IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
MASKS = ("chosen_mask", "rejected_mask")
"""Columns: 1 on the agent's tokens of `chosen_ids` and `rejected_ids`."""

_KEPT = (*IDS, *MASKS, "chosen_reward", "rejected_reward", "env_id", "group_id", "chosen_member", "rejected_member")
_N_LOOKED_AT = 32
"""Number of pairs whose tokens are compared with their texts. A wrong tokenizer shows in the first few."""

Row = dict[str, Any]


@dataclass
class PairCollator(DataCollatorForPreference):
    """TRL's preference collator, but with `completion_mask` 1 only on the agent's tokens."""

    def torch_call(self, examples: list[Row]) -> dict[str, Any]:
        """Return TRL's batch, chosen sequences before rejected ones, with our masks applied."""
        # TRL's mask covers everything after the prompt, which in several turns includes the environment's tokens.
        batch: dict[str, Any] = super().torch_call(examples)
        own_BT = torch.zeros_like(batch["completion_mask"])
        width = own_BT.shape[1]
        masks = [(example, example[name]) for name in MASKS for example in examples]
        for row, (example, mask) in enumerate(masks):
            start = len(example["prompt_ids"])
            # TRL's collator may have cut the sequence to max_length.
            kept = torch.tensor(mask, dtype=own_BT.dtype)[: max(width - start, 0)]
            own_BT[row, start : start + len(kept)] = kept
        batch["completion_mask"] = batch["completion_mask"] * own_BT
        return batch


def pair_rows(groups: Iterable[TrajectoryGroup], args: EnvDPOConfig, selector: PairSelector | None = None) -> list[Row]:
    """Return pairs of groups as token rows: ids, masks, rewards, origin and messages.

    Ties are always left out, and so are pairs with equal tokens, which teach nothing.

    Args:
        groups: The groups; a selector sees the scored episodes of one at a time, with its number as their id.
        args: The settings; `pair_margin`, and without a selector those of choosing pairs, are used.
        selector: Chooses the pairs; None: the one of `args.pair_selector`.

    Raises:
        InvalidConfigError: If a group's episodes have several seeds or environments, or what `preference_rows` raises.
    """
    pairs: list[tuple[Trajectory, Trajectory]] = []
    for number, group in enumerate(map(_checked, groups)):
        members = group.scored
        if len(members) > 1:
            places_P2 = _select(members, number, args, selector)
            pairs += [(members[one], members[other]) for one, other in places_P2.tolist()]
    rows = preference_rows(pairs, margin=args.pair_margin)
    return [row for row in rows if row["chosen_ids"] != row["rejected_ids"]]


def _select(
    members: Sequence[Trajectory], number: int, args: EnvDPOConfig, selector: PairSelector | None
) -> torch.Tensor:
    """Return the pairs of a group as places of its members, shape (P, 2)."""
    rewards_B = torch.tensor([trajectory.reward for trajectory in members], dtype=torch.float64)
    ids_B = torch.full((len(members),), number)
    if selector is not None:
        return selector(rewards_B, ids_B)
    margin = args.pair_margin
    if args.pair_selector == "random":
        return random_pairs(rewards_B, ids_B, seed=args.seed, n_per_group=args.pairs_per_group, margin=margin)
    if args.pair_selector == "length":
        lengths_B = torch.tensor([trajectory.n_sampled_tokens for trajectory in members])
        return similar_length_pairs(rewards_B, ids_B, lengths_B, max_ratio=args.pair_length_ratio, margin=margin)
    return (all_pairs if args.pair_selector == "all" else best_worst_pairs)(rewards_B, ids_B)


def fit_pairs(rows: Sequence[Row], max_length: int | None, overlong: str) -> tuple[list[Row], dict[str, int]]:
    """Return the pairs whose two sequences have at most `max_length` tokens, and counts of the others.

    Args:
        rows: From `pair_rows`.
        max_length: Maximum tokens of prompt and episode; None: no limit.
        overlong: As for `fit_rows`. A pair is dropped if either sequence is.

    Returns:
        The rows without their messages, and counts of pairs: `overlong`, and among them `dropped` and `cut`.
    """
    out: list[Row] = []
    counts = {"overlong": 0, "dropped": 0, "cut": 0}
    for row in rows:
        fitted = {key: row[key] for key in _KEPT if key in row}
        cut, dropped = False, False
        for name in ("chosen", "rejected"):
            kept, change = fit_rows([_as_labelled(row, name)], max_length, overlong)
            cut, dropped = cut or change["cut"] > 0, dropped or not kept
            if kept:
                length = len(kept[0]["input_ids"]) - len(row["prompt_ids"])
                fitted |= {key: list(row[key][:length]) for key in (f"{name}_ids", f"{name}_mask")}
        counts["overlong"] += cut or dropped
        counts["dropped"] += dropped
        counts["cut"] += cut and not dropped
        # Two episodes that differed may be equal after the cut.
        if not dropped and fitted["chosen_ids"] != fitted["rejected_ids"]:
            out.append(fitted)
    return out, counts


def load_pairs(
    source: str | Path | Dataset | Sequence[Trajectory],
    codec: ChatCodec,
    args: EnvDPOConfig,
    selector: PairSelector | None = None,
) -> list[Row]:
    """Return the pairs of a saved data set, or of trajectories, as token rows of the trained model.

    Args:
        source: Trajectories; a source for `sft.source.load_source` (the folder of a run, `to_dataset`, conversations
            with `group_id` and `reward`); pairs as token rows (`llm-envs export --to pairs`); or pairs of messages,
            TRL's `prompt`, `chosen` and `rejected` (a JSONL file, a folder of `datasets`, a `datasets.Dataset`).
        codec: Codec of the model to train.
        args: The settings of choosing pairs, and `encode_messages`.
        selector: Chooses pairs, if the source has episodes; None: the one of `args.pair_selector`.

    Raises:
        InvalidConfigError: If no pair is left, tokens have no masks or another tokenizer's ids, or messages are wrong.
    """
    table = _pair_table(source)
    if table is None:
        rows = _rows_of_episodes(source, codec, args, selector)
    elif all(name in table[0] for name in IDS):
        rows = _above_margin(_checked_tokens(table), args.pair_margin)
        check_tokenizer(rows, codec)
    else:
        groups = [_messages_group(number, row, codec) for number, row in enumerate(table)]
        # Each of these groups is one given pair, so its best and worst member are that pair.
        rows = pair_rows(groups, args, best_worst_pairs)
    if not rows:
        n = f"{len(table)} pairs" if table is not None else "the episodes"
        raise InvalidConfigError(
            f"no preference pair is left of {n}: a pair needs two scored episodes of one group whose rewards differ by "
            f"more than pair_margin={args.pair_margin} and whose tokens differ (pair_selector={args.pair_selector!r}). "
            "Collect more episodes a group at a higher temperature, on problems that are sometimes solved; "
            "conversations need group_id and reward."
        )
    return rows


def check_tokenizer(rows: Sequence[Row], codec: ChatCodec) -> None:
    """Check that the agent's tokens come from this model's tokenizer, by comparing them with the messages, if any.

    Raises:
        InvalidConfigError: If an id is beyond the vocabulary, or tokens and messages differ in text.
    """
    n_known = len(codec.tokenizer)
    for number, row in enumerate(rows[:_N_LOOKED_AT]):
        highest = max(max(row[name], default=0) for name in IDS)
        # An id beyond the vocabulary cannot be decoded, so do not try to compare texts.
        said = all(_says(row, name, codec) for name in ("chosen", "rejected")) if highest < n_known else False
        if not said:
            raise InvalidConfigError(
                f"the tokens of pair {number} are not this model's: its tokenizer has {n_known} ids, the highest here "
                f"is {highest}, or they do not read as the messages do. Collect with the model that is to learn, or "
                "have the messages encoded: encode_messages=True for episodes, and for pairs leave out the columns "
                f"{', '.join((*IDS, *MASKS))}."
            )


def as_dataset(rows: Sequence[Row], args: EnvDPOConfig) -> Dataset:
    """Return rows as a data set. With precomputed reference log-probabilities, store it where TRL can cache them."""
    if not args.precompute_ref_log_probs:
        return Dataset.from_list(list(rows))
    # The hash gives other pairs another folder, so that TRL's cache of log-probabilities never belongs to other rows.
    digest = hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=8).hexdigest()
    folder = Path(args.output_dir or ".") / f"pairs-{digest}"
    with args.main_process_first(desc="writing pairs"):
        if not (folder / "state.json").exists():
            Dataset.from_list(list(rows)).save_to_disk(str(folder))
    return load_from_disk(str(folder))


def _checked(group: TrajectoryGroup) -> TrajectoryGroup:
    """Return the group, if its episodes can be compared."""
    played = {(t.env_id, t.seed, json.dumps(dict(t.env_kwargs), sort_keys=True)) for t in group.scored}
    if len(played) > 1:
        raise InvalidConfigError(
            f"group {group.group_id} has episodes of {len(played)} seeds or environments: chosen and rejected must be "
            "answers to one problem. Give each problem a group_id of its own (runs that were collected apart may have "
            "the same ones)."
        )
    return group


def _as_labelled(row: Row, name: str) -> Row:
    """Return one side of a pair in the form that `fit_rows` takes."""
    ids, mask = row[f"{name}_ids"], row[f"{name}_mask"]
    labels = [-100] * len(row["prompt_ids"]) + [i if own else -100 for i, own in zip(ids, mask, strict=True)]
    return {"input_ids": [*row["prompt_ids"], *ids], "labels": labels}


def _pair_table(source: Any) -> list[Row] | None:
    """Return the rows of a source that has pairs; None if it has something else."""
    if isinstance(source, str | Path):
        path = Path(source)
        if (path / "dataset_info.json").exists():
            source = load_from_disk(str(path))
        elif path.is_file() and path.suffix not in (".parquet", ".arrow"):
            first = first_record(path)
            if not (isinstance(first, dict) and _has_pairs(first)):
                return None
            return [dict(row) for _, row in read_jsonl(path)]
    if isinstance(source, Dataset) and _has_pairs(source.column_names):
        return [dict(row) for row in source]
    return None


def _has_pairs(names: Iterable[str]) -> bool:
    return {"chosen", "rejected"} <= set(names) or {"chosen_ids", "rejected_ids"} <= set(names)


def _rows_of_episodes(source: Any, codec: ChatCodec, args: EnvDPOConfig, selector: PairSelector | None) -> list[Row]:
    """Return the pairs of a source of episodes."""
    loaded = load_source(source, codec) if isinstance(source, str | Path | Dataset) else list(source)
    if loaded and not isinstance(loaded[0], Trajectory):
        raise InvalidConfigError(
            "the data set has token rows of single episodes, without rewards or groups, and so no pairs: give the "
            "folder of the run, or export with --to pairs."
        )
    trajectories: list[Trajectory] = [trajectory for trajectory in loaded if isinstance(trajectory, Trajectory)]
    if args.encode_messages:
        trajectories = in_tokens_of(codec, trajectories)
    elif any(trajectory.turns and not trajectory.rows for trajectory in trajectories):
        raise InvalidConfigError(
            "there are episodes without tokens (played through a chat API, or without a codec), so that no masks are "
            "known: collect with codec=ChatCodec(tokenizer), or have their messages encoded: encode_messages=True."
        )
    rows = pair_rows(to_groups(trajectories), args, selector)
    check_tokenizer(rows, codec)
    return rows


def _checked_tokens(rows: Sequence[Row]) -> list[Row]:
    """Return rows of token ids, if each has masks that fit."""
    for number, row in enumerate(rows):
        for ids, mask in zip(IDS[1:], MASKS, strict=True):
            if row.get(mask) is None:
                raise InvalidConfigError(
                    f"pair {number} has {ids} and no {mask}: with several turns what the environment said would be "
                    "trained. Export with llm-envs export --to pairs, which writes masks, add the column (1 on the "
                    f"agent's own tokens), or leave out {', '.join(IDS)} so that messages are encoded."
                )
            if len(row[mask]) != len(row[ids]) or not any(row[mask]):
                raise InvalidConfigError(
                    f"pair {number}: {mask} has {len(row[mask])} places, {sum(map(bool, row[mask]))} of them the "
                    f"agent's, for {len(row[ids])} {ids}: it must have one for each, and not only zeros."
                )
    return [row for row in rows if list(row["chosen_ids"]) != list(row["rejected_ids"])]


def _above_margin(rows: Sequence[Row], margin: float) -> list[Row]:
    """Return the rows without ties. Rows without rewards stay, because somebody chose them."""
    rewards = [(row.get("chosen_reward"), row.get("rejected_reward")) for row in rows]
    return [row for row, (a, b) in zip(rows, rewards, strict=True) if a is None or b is None or a - b > margin]


def _says(row: Row, name: str, codec: ChatCodec) -> bool:
    """Return whether each turn of one side has the text of one of its messages; True without messages."""
    messages = row.get(name)
    if not isinstance(messages, list) or not messages:
        return True
    said = [message["content"] or "" for message in messages if message["role"] == "assistant"]
    places = groupby(zip(row[f"{name}_ids"], row[f"{name}_mask"], strict=True), key=lambda place: bool(place[1]))
    runs = [np.array([token for token, _ in run], dtype=np.int32) for own, run in places if own]
    return all(any(_is_of(text, ids, codec) for text in said) for ids in runs)


def _is_of(text: str, ids: npt.NDArray[np.int32], codec: ChatCodec) -> bool:
    """Return whether a turn's tokens have a text: if they decode to it, or are the codec's encoding of it."""
    return codec.decode_reply(ids).strip() == text.strip() or np.array_equal(ids, codec.encode_reply(text))


def _messages_group(number: int, row: Row, codec: ChatCodec) -> TrajectoryGroup:
    """Return a pair of messages as a group of two."""
    if "prompt" not in row:
        row = row | extract_prompt({"chosen": row["chosen"], "rejected": row["rejected"]})
    parts = {name: row[name] for name in ("prompt", "chosen", "rejected")}
    if wrong := [name for name, part in parts.items() if not isinstance(part, list) or not part]:
        raise InvalidConfigError(
            f"pair {number}: {', '.join(wrong)} must be lists of messages with role and content, such as "
            '[{"role": "user", "content": "2 + 2?"}]; chosen and rejected are answers to the prompt.'
        )
    rewards = {"chosen": 1.0, "rejected": 0.0}
    if row.get("chosen_reward") is not None and row.get("rejected_reward") is not None:
        rewards = {name: float(row[f"{name}_reward"]) for name in rewards}
    members = [
        from_messages(
            [without_nones(message) for message in (*row["prompt"], *row[name])],
            codec=codec,
            tools=tools_of(row),
            reward=reward,
            context=len(row["prompt"]),
            group_id=str(row.get("group_id", number)),
            member=member,
        )
        for member, (name, reward) in enumerate(rewards.items())
    ]
    better, worse = rewards.values()
    kept = members if better > worse else members[:1]  # a tie, or the worse one chosen: no pair
    return TrajectoryGroup(str(number), members[0].env_id, 0, tuple(kept))
