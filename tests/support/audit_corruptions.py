"""Corruptions of a stored training, each with the part of the audit that must find it.

Each takes the folder of a copy of a run and changes one thing in it: an episode, the record of what was learned, a
checkpoint or the log. `docs/guides/audit.md` has the table of this list.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_envs.data.folder import Manifest, log_name, write_manifest
from llm_envs.data.writer import read_run
from llm_envs.trainers.episodes.training_record import pack, unpack

Record = dict[str, Any]


@dataclass(frozen=True)
class Corruption:
    """One thing that is wrong in a stored training."""

    name: str
    part: str
    """The part of the audit whose difference comes first."""
    inject: Callable[[Path], None]
    trainer: str = "grpo"


def rewrite_episodes(folder: Path, change: Callable[[list[Record]], Any]) -> None:
    """Change the stored episodes, as JSON."""
    place = folder / "trajectories" / "process-0"
    run = read_run(place)
    episodes = [trajectory.to_dict() for trajectory in run.trajectories]
    change(episodes)
    shutil.rmtree(place)
    place.mkdir()
    write_manifest(place, Manifest(run.settings))
    (place / log_name(0)).write_text("".join(json.dumps(episode) + "\n" for episode in episodes))


def rewrite_record(folder: Path, change: Callable[[list[Record]], Any]) -> None:
    """Change the record of what was learned."""
    path = folder / "record" / "process-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def episode(change: Callable[[Record], Any], which: Callable[[Record], bool] = lambda _: True) -> Callable[..., None]:
    """Return the injection of a change to one episode."""

    def inject(folder: Path) -> None:
        rewrite_episodes(folder, lambda episodes: change(next(e for e in episodes if which(e))))

    return inject


def episodes(change: Callable[[list[Record]], Any]) -> Callable[..., None]:
    """Return the injection of a change to the list of episodes."""
    return lambda folder: rewrite_episodes(folder, change)


def forgotten(kind: str) -> Callable[..., None]:
    """Return the injection that removes the last line of a kind from the record."""

    def change(lines: list[Record]) -> None:
        lines.pop(max(place for place, line in enumerate(lines) if line["kind"] == kind))

    return lambda folder: rewrite_record(folder, change)


def generation(change: Callable[[Record], Any], kind: str = "generation", which: int = 0) -> Callable[..., None]:
    """Return the injection of a change to a generation of the record, the first if no other is named."""

    def inject(folder: Path) -> None:
        rewrite_record(folder, lambda lines: change([line for line in lines if line["kind"] == kind][which]))

    return inject


def has_stop(data: Record) -> bool:
    """Return whether a turn of an episode ended with the token that ends a turn."""
    return any(turn["finish_reason"] == "stop" for turn in data["turns"])


def stopped_end(data: Record) -> int:
    """Return the place of a last token of a turn that stopped."""
    turn = next(turn for turn in data["turns"] if turn["finish_reason"] == "stop")
    return int(data["rows"][turn["row"]]["spans"][turn["span"]][1]) - 1


def lose_stop_token(data: Record) -> None:
    place, row = stopped_end(data), data["rows"][0]
    for name in ("ids", "mask", "logps"):
        del row[name][place]
    row["spans"] = [[a - (a > place), b - (b > place)] for a, b in row["spans"]]


def change_stop_token(data: Record) -> None:
    data["rows"][0]["ids"][stopped_end(data)] = 65


def change_id(place: Callable[[Record], int]) -> Callable[[Record], None]:
    def change(data: Record) -> None:
        row = data["rows"][0]
        row["ids"][place(row)] = 66 if row["ids"][place(row)] != 66 else 67

    return change


def flip_mask(data: Record) -> None:
    row = data["rows"][0]
    row["mask"][row["spans"][0][0]] = 0


def swap_rows(found: list[Record]) -> None:
    one, other = found[0], next(e for e in found if e["rows"][0]["ids"] != found[0]["rows"][0]["ids"])
    one["rows"], other["rows"] = other["rows"], one["rows"]


def set_message(role: str, change: Callable[[str], str]) -> Callable[[Record], None]:
    def inject(data: Record) -> None:
        message = next(m for m in data["messages"] if m["role"] == role)
        message["content"] = change(message["content"])

    return inject


def edit_tool_output(data: Record) -> None:
    data["turns"][0]["tool_results"][0]["output"] = "99 of 99"


def drop_turn(data: Record) -> None:
    data["turns"].pop()
    data["messages"].pop()


def pay(data: Record) -> None:
    turn = data["turns"][0]
    turn["reward"] += 0.25
    turn["components"]["letters"] += 0.25


def move_component(data: Record) -> None:
    parts = data["turns"][0]["components"]
    parts["letters"], parts["length"] = parts["letters"] + 0.5, parts["length"] - 0.5


def set_flags(**values: Any) -> Callable[[Record], None]:
    return lambda data: data.update(values)


def change_version(data: Record) -> None:
    for span in data["turns"][0]["weight_versions"]:
        span[2] += 1


def whole_group(**values: Any) -> Callable[[list[Record]], None]:
    def change(found: list[Record]) -> None:
        for data in found:
            if data["group_id"] == found[0]["group_id"]:
                data.update(values)

    return change


def omit_shaping(record: Record) -> None:
    (name,) = (name for name in record["columns"] if name.startswith("shaping/"))
    for place, total in enumerate(record["columns"][name]):
        turns = record["turn_rewards"][place]
        record["turn_rewards"][place] = [reward - total / len(turns) for reward in turns]
    record["columns"][name] = [0.0] * len(record["columns"][name])


def move_turn_reward(record: Record) -> None:
    first = record["turn_rewards"][0]
    first[0], first[1] = first[0] + 0.5, first[1] - 0.5


def unequal(values: list[float]) -> int:
    """Return the place of the value that is farthest from 0."""
    return max(range(len(values)), key=lambda place: abs(values[place]))


def scale_advantage(by: float) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        record["advantages"][unequal(record["advantages"])] *= by

    return change


def population_std(record: Record) -> None:
    """Divide by the standard deviation without Bessel's correction: by n and not by n - 1, for groups of four."""
    record["advantages"] = [value * (4 / 3) ** 0.5 for value in record["advantages"]]


def foreign_baseline(record: Record) -> None:
    """Judge the first group's episodes by the mean of the second."""
    gap = record["baselines"][0] - record["baselines"][4]
    spread = 0.1
    record["advantages"][:4] = [value + gap / spread for value in record["advantages"][:4]]


def swap_advantages(record: Record) -> None:
    values = record["advantages"]
    high, low = values.index(max(values)), values.index(min(values))
    values[high], values[low] = values[low], values[high]


def foreign_group_mean(record: Record) -> None:
    record["baselines"][:4] = record["baselines"][4:8]


def other_trained_count(record: Record) -> None:
    record["rows"][0][1] -= 1


def shift_logps(data: Record) -> None:
    row = data["rows"][0]
    start, stop = row["spans"][0]
    row["logps"][start:stop] = [*row["logps"][start + 1 : stop], row["logps"][start]]


def lower_logp(data: Record) -> None:
    row = data["rows"][0]
    row["logps"][row["spans"][0][0]] -= 0.1


def lower_logps(data: Record) -> None:
    for row in data["rows"]:
        pairs = zip(row["logps"], row["mask"], strict=True)
        row["logps"] = [logp if logp is None else logp - 0.03 * is_own for logp, is_own in pairs]


def other_checkpoint(folder: Path) -> None:
    shutil.copy(folder / "checkpoint-2" / "model.safetensors", folder / "checkpoint-1" / "model.safetensors")


def change_step_loss(record: Record) -> None:
    record["loss"] += 0.01


def set_algorithm(**values: Any) -> Callable[[Record], None]:
    return lambda record: record["algorithm"].update(values)


def change_log(name: str) -> Callable[[Path], None]:
    """Return the injection of a change to a logged number."""

    def inject(folder: Path) -> None:
        for path in (folder / "trainer_state.json", folder / "checkpoint-2" / "trainer_state.json"):
            state = json.loads(path.read_text())
            entry = next(entry for entry in state["log_history"] if "loss" in entry)
            entry[name] += 0.01
            path.write_text(json.dumps(state))

    return inject


def other_loss(record: Record) -> None:
    record["loss"] *= 1.1


def first_token_up(name: str) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        values = unpack(record[name][0])
        record[name][0] = pack([values[0] + 0.5, *values[1:]])

    return change


def duplicate(found: list[Record]) -> None:
    found.append(found[0])


def delete(found: list[Record]) -> None:
    del found[3]


def foreign_group_id(data: Record) -> None:
    data["group_id"] = "train-9-0-0-0"


CORRUPTIONS = (
    Corruption("an episode is stored twice", "episodes", episodes(duplicate)),
    Corruption("an episode is deleted", "episodes", episodes(delete)),
    Corruption("an episode has another group's id", "episodes", episode(foreign_group_id)),
    Corruption("an episode has another seed than its group", "episodes", episode(set_flags(seed=1))),
    Corruption("the version of the weights is changed", "episodes", episode(change_version)),
    Corruption("the flag `truncated` is flipped", "episodes", episode(set_flags(truncated=True))),
    Corruption("a whole group has another seed", "observations", episodes(whole_group(seed=1))),
    Corruption("a whole group has other arguments", "observations", episodes(whole_group(env_kwargs={"extra": "x"}))),
    Corruption("an observation is edited", "observations", episode(set_message("user", lambda text: text + " "))),
    Corruption("a tool's message is edited", "observations", episode(set_message("tool", lambda _: "counted 99"))),
    Corruption("a tool's result is edited", "observations", episode(edit_tool_output)),
    Corruption("the system prompt is edited", "observations", episode(set_message("system", str.upper))),
    Corruption("a turn is dropped", "observations", episode(drop_turn)),
    Corruption(
        "the end is a limit's and not the task's",
        "observations",
        episode(set_flags(terminated=False, truncated=True, stop_reason="env_truncated")),
    ),
    Corruption("the success is flipped", "observations", episode(lambda e: e.update(is_success=not e["is_success"]))),
    Corruption("a token of the prompt is another", "tokens", episode(change_id(lambda row: 5))),
    Corruption(
        "a token of an observation is another", "tokens", episode(change_id(lambda row: row["spans"][1][0] - 3))
    ),
    Corruption("a sampled token is another", "tokens", episode(change_id(lambda row: row["spans"][0][0]))),
    Corruption("the stop token is lost", "tokens", episode(lose_stop_token, has_stop)),
    Corruption("the stop token is another", "tokens", episode(change_stop_token, has_stop)),
    Corruption("the rows of two episodes are swapped", "tokens", episodes(swap_rows)),
    Corruption("a tool's schema is edited", "tokens", episode(set_flags(tools=[]))),
    Corruption("a bit of the mask is flipped", "masks", episode(flip_mask)),
    Corruption("the loss saw another mask", "masks", generation(other_trained_count)),
    Corruption("a reward is edited", "rewards", episode(pay)),
    Corruption("a component of a reward is edited", "rewards", episode(move_component)),
    Corruption("shaping is omitted", "rewards", generation(omit_shaping)),
    Corruption("a column has another weight", "rewards", generation(lambda r: r["weights"].update(reward=1.0))),
    Corruption("a reward is at another turn", "rewards", generation(move_turn_reward)),
    Corruption("the baseline is another group's", "baselines", generation(foreign_group_mean)),
    Corruption("an advantage is scaled", "advantages", generation(scale_advantage(1.1))),
    Corruption("an advantage has the other sign", "advantages", generation(scale_advantage(-1.0))),
    Corruption("two advantages are swapped", "advantages", generation(swap_advantages)),
    Corruption("advantages are against another group", "advantages", generation(foreign_baseline)),
    Corruption("the standard deviation has no correction", "advantages", generation(population_std)),
    Corruption("a generation is not recorded", "advantages", forgotten("generation")),
    Corruption("PPO: a critic's value is another", "advantages", generation(first_token_up("values")), "ppo"),
    Corruption("PPO: a token's advantage is another", "advantages", generation(first_token_up("advantages")), "ppo"),
    Corruption("a log-probability is lower by 0.1", "log-probabilities", episode(lower_logp)),
    Corruption("an episode's log-probabilities are lower by 0.03", "log-probabilities", episode(lower_logps)),
    Corruption("log-probabilities are shifted by a token", "log-probabilities", episode(shift_logps)),
    Corruption("a checkpoint has the weights of another step", "log-probabilities", other_checkpoint),
    Corruption("the loss of a step is another", "loss", generation(change_step_loss, "step")),
    Corruption("a step is not recorded", "loss", forgotten("step")),
    Corruption("the KL has another coefficient", "loss", generation(lambda r: r.update(kl_coef=0.5), which=-1)),
    Corruption("the loss is normalised otherwise", "loss", generation(set_algorithm(normalisation="token"), which=-1)),
    Corruption("the loss has a bonus for entropy", "loss", generation(set_algorithm(entropy_coef=0.01))),
    Corruption("PPO: the loss of a step is another", "loss", generation(other_loss, "step"), "ppo"),
    Corruption("the logged loss is another", "metrics", change_log("loss")),
    Corruption("the logged reward is another", "metrics", change_log("env/reward")),
)
